"""A model whose next token depends on every token of its history, read back from the paged cache.

Any mistake in scheduling, paging, prefix reuse or slot handling changes its tokens. Next to it a
tokenizer with awkward bytes, and the engine's parts around both.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from serve_shim.engine.config import EngineConfig
from serve_shim.engine.core import EngineCore
from serve_shim.engine.output import CompletionDelta
from serve_shim.engine.parts import EngineParts, assemble, cache_layout
from serve_shim.engine.request import Request
from serve_shim.engine.worker import Worker
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.rope import RopeConfig
from serve_shim.sampling.params import SamplingParams
from serve_shim.tokenization.token_stream import TokenStream

VOCAB = 64
EOS = 1
POISON = 63
"""A history that holds this token has NaN logits."""

_PRIME = 65521


class ToyModel:
    """Implements `LanguageModel`; `script[p]`, where given, is the greedy token of position p."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.script = script
        self.num_computed = 0
        self.num_scored_rows = 0
        self.num_tokens_of_steps: list[int] = []
        self.failure: BaseException | None = None
        self._cache = torch.empty(0)

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        (self._cache,) = caches

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        if self.failure is not None:
            raise self.failure
        self._write(input_ids, positions, step.slot_mapping)
        self.num_computed += len(input_ids)
        self.num_tokens_of_steps.append(len(input_ids))
        starts, rows = step.query_start_loc.tolist(), []
        for row, length in enumerate(step.seq_lens.tolist()):
            count = starts[row + 1] - starts[row]
            history = self._read(step.block_table[row], length)
            rows.extend(self._state(history[: length - left]) for left in range(count - 1, -1, -1))
        return torch.tensor(rows, dtype=torch.float32)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        self.num_scored_rows += len(hidden)
        return torch.stack([self._logits(*row) for row in hidden.tolist()])

    def greedy(self, history: Sequence[int], count: int) -> list[int]:
        """The tokens that follow `history`, computed without any engine."""
        tokens = list(history)
        for _ in range(count):
            tokens.append(int(self._logits(*self._state(torch.tensor(tokens))).argmax()))
        return tokens[len(history) :]

    def raw_logits(self, history: Sequence[int]) -> Tensor:
        return self._logits(*self._state(torch.tensor(history)))

    def _write(self, input_ids: Tensor, positions: Tensor, slots: Tensor) -> None:
        size = self._cache.shape[3]
        self._cache[slots // size, 0, 0, slots % size, 0] = input_ids.float()
        self._cache[slots // size, 1, 0, slots % size, 0] = positions.float()

    def _read(self, blocks: Tensor, length: int) -> Tensor:
        place = torch.arange(length)
        size = self._cache.shape[3]
        found = self._cache[blocks[place // size].long(), :, 0, place % size, 0]
        if not torch.equal(found[:, 1], place.float()):
            raise AssertionError("the cache holds another position than the table says")
        return found[:, 0].long()

    def _state(self, history: Tensor) -> tuple[float, float]:
        """(hash of the history, its length); a NaN hash if it is poisoned."""
        if (history == POISON).any():
            return float("nan"), float(len(history))
        weights = torch.tensor([pow(31, place, _PRIME) for place in range(len(history))])
        return float(((history + 1) * weights).sum() % _PRIME), float(len(history))

    def _logits(self, state: float, length: float) -> Tensor:
        if math.isnan(state):
            return torch.full((VOCAB,), float("nan"))
        ids = torch.arange(VOCAB)
        logits = ((int(state) * 7919 + ids * 104729) % 9973).float() / 1000.0
        if int(length) < len(self.script):
            logits[self.script[int(length)]] = 20.0
        logits[POISON] = -5.0
        return logits


class ToyTokenizer:
    """Ids below 64 as bytes: letters, and the pieces of a four-byte character."""

    eos_ids = (EOS,)
    special_ids = frozenset({0, EOS})
    vocab_size = VOCAB

    def token_bytes(self, token_id: int) -> bytes:
        if token_id in (60, 61, 62):
            return {60: "😀".encode()[:1], 61: "😀".encode()[1:3], 62: "😀".encode()[3:]}[token_id]
        return bytes([ord("A") + token_id - 2]) if token_id >= 2 else b"<%d>" % token_id

    def stream(self, skip_special_tokens: bool) -> TokenStream:
        return TokenStream(self.token_bytes, self.special_ids if skip_special_tokens else ())

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) - ord("A") + 2 for letter in text]


def toy_config(**changes: object) -> ModelConfig:
    """The shape of `ToyModel`: one layer, one head of two numbers."""
    facts: dict[str, object] = {
        "architecture": "Toy",
        "hidden_size": 2,
        "intermediate_size": 2,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(theta=10000.0),
    }
    return ModelConfig(**{**facts, **changes})  # pyright: ignore[reportArgumentType]


def toy_parts(
    model: ToyModel | None = None,
    tokenizer: ToyTokenizer | None = None,
    **bounds: int | bool | None,
) -> EngineParts:
    """An engine around the toys; small blocks and plenty of them unless told otherwise."""
    defaults: dict[str, int | bool | None] = {
        "max_model_len": 128,
        "num_blocks": 256,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "max_queue": 64,
    }
    config = EngineConfig(**{**defaults, **bounds})  # pyright: ignore[reportArgumentType]
    layout = cache_layout(toy_config(), config.block_size, torch.float32)
    return assemble(
        Worker(model or ToyModel(), config, layout),
        model_name="toy",
        model_config=toy_config(),
        tokenizer=tokenizer,  # pyright: ignore[reportArgumentType]
        eos_ids=(EOS,),
        config=config,
    )


def submit(parts: EngineParts, prompt: Sequence[int], **params: object) -> Request:
    """Submit a greedy request that ignores end-of-sequence unless told otherwise."""
    defaults: dict[str, object] = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8}
    sampling = SamplingParams(**{**defaults, **params})  # pyright: ignore[reportArgumentType]
    parts.admission.validate(prompt, sampling)
    request = parts.factory.make("toy", prompt, sampling)
    parts.core.submit(request)
    return request


class Outcome:
    """What one request has delivered so far, joined."""

    def __init__(self) -> None:
        self.deltas: list[CompletionDelta] = []
        self.errors: list[Exception] = []
        self.prompt_logprobs: object = None
        self.is_finished = False

    def tokens(self, index: int = 0) -> list[int]:
        return [t for d in self.deltas if d.index == index for t in d.token_ids]

    def text(self, index: int = 0) -> str:
        return "".join(d.text for d in self.deltas if d.index == index)


def run(core: EngineCore, outcomes: dict[Request, Outcome] | None = None) -> dict[Request, Outcome]:
    """Step until there is no work, checking the accounts after each step."""
    outcomes = {} if outcomes is None else outcomes
    for _ in range(10_000):
        if not core.has_work:
            return outcomes
        step(core, outcomes)
    raise AssertionError("the engine does not come to an end")


def step(core: EngineCore, outcomes: dict[Request, Outcome]) -> None:
    """One step, its deliveries added to `outcomes`."""
    for delivery in core.step():
        outcome = outcomes.setdefault(delivery.request, Outcome())
        if delivery.error is not None:
            outcome.errors.append(delivery.error)
        if delivery.output is not None:
            outcome.deltas.extend(delivery.output.deltas)
            outcome.is_finished = delivery.output.finished
            if delivery.output.prompt_logprobs is not None:
                outcome.prompt_logprobs = delivery.output.prompt_logprobs
    core.check_accounts()


def generated(parts: EngineParts, prompt: Sequence[int], **params: object) -> list[int]:
    """The tokens of one request served alone."""
    request = submit(parts, prompt, **params)
    return run(parts.core)[request].tokens()
