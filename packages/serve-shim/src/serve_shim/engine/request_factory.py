"""Owns how a validated prompt and its parameters become a request; refuses to validate."""

import itertools
import random
import time
from collections.abc import Sequence as Values
from typing import TYPE_CHECKING

from serve_shim.engine.admission import Admission
from serve_shim.engine.prefix_hash import SHARED_ROOT
from serve_shim.engine.request import Request, Sequence
from serve_shim.engine.text_stream import TextStream
from serve_shim.sampling.params import SamplingParams
from serve_shim.sampling.seeds import sequence_key

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer


class RequestFactory:
    """Makes the requests of one engine; safe from any thread.

    Requests without a seed get one from a generator that starts at the engine's own `seed`.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        tokenizer: "Tokenizer | None",
        eos_ids: frozenset[int],
        seed: int,
        shares_prefixes: bool,
    ) -> None:
        self._admission = admission
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._seeds = random.Random(seed)  # noqa: S311 (reproducible on purpose)
        self._numbers = itertools.count()
        self._shares_prefixes = shares_prefixes

    def make(
        self, request_id: str, prompt_token_ids: Values[int], params: SamplingParams
    ) -> Request:
        """A request with its `n` sequences, not yet known to any scheduler."""
        prompt_ids = tuple(map(int, prompt_token_ids))
        eos_ids: frozenset[int] = frozenset() if params.ignore_eos else self._eos_ids
        request = Request(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=params,
            max_tokens=self._admission.max_tokens(len(prompt_ids), params),
            eos_ids=eos_ids.difference(params.stop_token_ids),
            stop_ids=eos_ids.union(params.stop_token_ids),
            arrived_at=time.monotonic(),
            root=self._root(),
        )
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        request.sequences = [self._sequence(request, index, seed) for index in range(params.n)]
        request.num_unfinished = params.n
        return request

    def _root(self) -> bytes:
        """Without prefix caching only the completions of one request share blocks."""
        number = next(self._numbers)
        return SHARED_ROOT if self._shares_prefixes else b"request %d" % number

    def _sequence(self, request: Request, index: int, seed: int) -> Sequence:
        return Sequence(
            request=request,
            index=index,
            key=sequence_key(seed, index),
            text=TextStream(self._tokenizer, request.params),
            num_tokens=len(request.prompt_ids),
        )
