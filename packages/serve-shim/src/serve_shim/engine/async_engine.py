"""Owns the engine as asyncio sees it: admission, streams, shutdown; refuses to compute anything."""

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from serve_shim.engine.delivery import Delivery
from serve_shim.engine.output_stream import OutputStream
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.request import Request
from serve_shim.engine.step_loop import StepLoop
from serve_shim.errors import EngineDeadError, OverloadedError, UnavailableError
from serve_shim.sampling.params import SamplingParams

if TYPE_CHECKING:
    from ir_passes import CompileReport
    from serve_shim.models.model_config import ModelConfig
    from serve_shim.tokenization.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0


class AsyncEngine:
    """Serves requests from any event loop; see `serve_shim.engine.protocol.Engine`.

    The step loop's thread starts with the engine and ends with `shutdown`.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        # Re-entrant: the collector may abort a forgotten stream while this thread holds it.
        self._lock = threading.RLock()
        self._consumers: dict[Request, _Consumer] = {}
        self._num_sequences = 0
        self._refusal: Callable[[], Exception] | None = None
        self._loop = StepLoop(
            parts.core,
            deliver=self._deliver,
            on_end=self._on_end,
            watchdog_timeout_s=parts.config.watchdog_timeout_s,
        )
        self._loop.start()

    @property
    def model_name(self) -> str:
        """The name that the model was loaded under."""
        return self._parts.model_name

    @property
    def config(self) -> "ModelConfig":
        """The model's shape."""
        return self._parts.model_config

    @property
    def tokenizer(self) -> "Tokenizer | None":
        """The model's tokenizer, None where the checkpoint has none."""
        return self._parts.tokenizer

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its completion may have together."""
        return self._parts.config.max_model_len

    @property
    def sampling_defaults(self) -> Mapping[str, float | int]:
        """What the model asks for where a request says nothing."""
        return self._parts.sampling_defaults

    @property
    def compile_report(self) -> "CompileReport | None":
        """What was compiled and why, None where the model runs eagerly."""
        return self._parts.compile_report

    def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """Raise `RequestError` if this request can never be served."""
        self._parts.admission.validate(prompt_token_ids, params)

    def generate(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> OutputStream:
        """Admit a request now and return its outputs; must be called on an event loop."""
        self.validate(prompt_token_ids, params)
        request = self._parts.factory.make(request_id, prompt_token_ids, params)
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_room(request.params.n)
            stream = OutputStream(loop, lambda: self._abort(request))
            self._consumers[request] = _Consumer(loop, weakref.ref(stream))
            self._num_sequences += request.params.n
        self._loop.submit(request)
        return stream

    def stats(self) -> EngineStats:
        """The state after the last step."""
        stats, workers = self._loop.stats(), self._parts.workers
        if workers is None:
            return stats
        return replace(stats, num_rank_compilations=workers.num_compilations)

    def is_healthy(self) -> tuple[bool, str]:
        """Whether the workers live, and the step loop makes progress while it has work."""
        workers = self._parts.workers
        failure = None if workers is None else workers.failure()
        return self._loop.is_healthy() if failure is None else (False, str(failure))

    async def shutdown(self) -> None:
        """Fail everything in flight, end the step loop after the step in progress, then workers."""
        self._refusal = _shut_down
        if not await asyncio.to_thread(self._loop.stop, _JOIN_TIMEOUT_S):
            logger.error("the step loop did not end within %.0f s", _JOIN_TIMEOUT_S)
            self._fail_all(_shut_down())
        if self._parts.workers is not None:
            await asyncio.to_thread(self._parts.workers.close)

    def _check_room(self, num_sequences: int) -> None:
        if self._refusal is not None:
            raise self._refusal()
        config = self._parts.config
        if config.max_queue is None:
            return
        most = config.max_num_seqs + config.max_queue
        if self._num_sequences + num_sequences > most:
            raise OverloadedError(
                f"{self._num_sequences} sequences run or wait, the most that this server takes is "
                f"{most}; try again later"
            )

    def _forget(self, request: Request) -> None:
        with self._lock:
            if self._consumers.pop(request, None) is not None:
                self._num_sequences -= request.params.n

    def _abort(self, request: Request) -> None:
        self._forget(request)
        self._loop.abort(request)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Pass a step's deliveries on, with one wake-up per event loop."""
        batches: dict[asyncio.AbstractEventLoop, list[_Parcel]] = {}
        for delivery in deliveries:
            consumer = self._consumers.get(delivery.request)
            if consumer is None:
                continue
            if delivery.output is None or delivery.output.finished:
                self._forget(delivery.request)
            batches.setdefault(consumer.loop, []).append(_Parcel(consumer.stream, delivery))
        for loop, batch in batches.items():
            if not _call_on(loop, _hand_over, batch):
                for parcel in batch:
                    self._abort(parcel.delivery.request)

    def _on_end(self, death: BaseException | None) -> None:
        """Fail all consumers, then close the accounts: a sink may raise, they must not wait."""
        if death is not None:
            reason = f"the engine failed: {type(death).__name__}: {death}"
            self._refusal = lambda: EngineDeadError(reason)
            over = self._parts.core.lose
        else:
            over = self._parts.core.abort
        requests = tuple(self._consumers)
        self._fail_all((self._refusal or _shut_down)())
        for request in requests:
            with suppress(Exception):
                over(request)

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            consumers = tuple(self._consumers.values())
            self._consumers.clear()
            self._num_sequences = 0
        for consumer in consumers:
            _call_on(consumer.loop, _fail, consumer.stream, error)


class _Consumer(NamedTuple):
    """Who waits for a request; weak, so that a forgotten stream can abort it."""

    loop: asyncio.AbstractEventLoop
    stream: "weakref.ref[OutputStream]"


class _Parcel(NamedTuple):
    stream: "weakref.ref[OutputStream]"
    delivery: Delivery


def _call_on(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object
) -> bool:
    """Call on the loop's thread; False if that loop is closed, its consumers with it."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        return False
    return True


def _hand_over(batch: list[_Parcel]) -> None:
    for ref, delivery in batch:
        stream = ref()
        if stream is None:
            continue
        if delivery.output is not None:
            stream.put(delivery.output)
        elif delivery.error is not None:
            stream.fail(delivery.error)


def _fail(ref: "weakref.ref[OutputStream]", error: Exception) -> None:
    stream = ref()
    if stream is not None:
        stream.fail(error)


def _shut_down() -> Exception:
    return UnavailableError("the server is shutting down", code="draining")
