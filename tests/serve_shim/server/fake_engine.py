"""A deterministic engine and tokenizer without a model: bytes are tokens, text is a fixed loop."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, cast

from serve_shim.engine.admission import Admission
from serve_shim.engine.output import CompletionDelta, RequestOutput, TokenLogprob, TokenLogprobs
from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.stats_sink import NullSink, RequestStats, StatsSink, StepStats
from serve_shim.errors import EngineDeadError, OverloadedError, TemplateError
from serve_shim.sampling.params import SamplingParams

if TYPE_CHECKING:
    from ir_passes import CompileReport
    from serve_shim.models.model_config import ModelConfig
    from serve_shim.tokenization.tokenizer import Tokenizer

BOS, EOS, VOCAB_SIZE = 256, 257, 300
PHASE_S = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
SCRIPT = "the quick brown fox jumps over the lazy dog; "


def completion_text(prompt_token_ids: Sequence[int], index: int, num_tokens: int) -> str:
    """What the fake engine answers."""
    start = sum(prompt_token_ids) + index
    return "".join(SCRIPT[(start + k) % len(SCRIPT)] for k in range(num_tokens))


class FakeTokenizer:
    """One token a byte; BOS is added to texts."""

    vocab_size = VOCAB_SIZE
    has_chat_template = True
    eos_ids = frozenset({EOS})
    special_ids = frozenset({BOS, EOS})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        parts = [self.token_text(i) for i in ids if i < 256 or not skip_special_tokens]
        return "".join(parts)

    def token_text(self, token_id: int) -> str:
        return {BOS: "<s>", EOS: "</s>"}.get(token_id) or chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        if messages[0]["content"] == "refuse":
            raise TemplateError("the template refuses this", param="messages")
        text = "".join(f"<{m['role']}>{m['content']}\n" for m in messages)
        if continue_final_message:
            text = text.removesuffix("\n")
        text += "".join(f"[{key}={value}]" for key, value in sorted(kwargs.items()))
        return (
            text + ("<tools>" if tools else "") + ("<assistant>" if add_generation_prompt else "")
        )


class FakeEngine:
    """An Engine whose speed, queue and death a test decides."""

    model_name = "fake"

    def __init__(
        self,
        *,
        max_model_len: int = 256,
        capacity: int = 1000,
        step_s: float = 0.0,
        sink: StatsSink | None = None,
    ) -> None:
        self.tokenizer = cast("Tokenizer", FakeTokenizer())
        self.config = cast("ModelConfig", None)
        self.max_model_len = max_model_len
        self.sampling_defaults: dict[str, float | int] = {}
        self.compile_report: CompileReport | None = None
        self.capacity = capacity
        self.step_s = step_s
        self.sink = sink or NullSink()
        self.gate = asyncio.Event()
        self.gate.set()
        self.running: set[str] = set()
        self.ended: list[str] = []
        self.aborted: list[str] = []
        self.seen: list[tuple[str, tuple[int, ...], SamplingParams]] = []
        self.death: str | None = None
        self.is_shut_down = False
        self._admission = Admission(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            max_sequences=None,
            has_tokenizer=True,
        )

    def validate(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._admission.validate(prompt_token_ids, params)

    def generate(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        self.validate(prompt_token_ids, params)
        if self.death is not None:
            raise EngineDeadError(self.death)
        if len(self.running) >= self.capacity:
            raise OverloadedError("the queue is full", retry_after_s=2.5)
        ids = tuple(prompt_token_ids)
        self.seen.append((request_id, ids, params))
        self.running.add(request_id)
        return self._outputs(request_id, ids, params)

    async def _outputs(
        self, request_id: str, ids: tuple[int, ...], params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        num_tokens = self._admission.max_tokens(len(ids), params)
        try:
            await self.gate.wait()
            for k in range(max(1, num_tokens)):
                await asyncio.sleep(self.step_s)
                if self.death is not None:
                    raise EngineDeadError(self.death)
                self.sink.on_tokens(k == 0, 0.01)
                self.sink.on_step(StepStats(1, 0, 0.25, len(ids) * (k == 0), 1, 0, 8, 4, PHASE_S))
                yield _output(request_id, ids, params, k, num_tokens)
            self.ended.append(request_id)
            self.sink.on_request_finished(_stats(ids, params, num_tokens))
        finally:
            self.running.discard(request_id)
            if request_id not in self.ended:
                self.aborted.append(request_id)

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.running), kv_usage=0.25, num_blocks=64)

    def is_healthy(self) -> tuple[bool, str]:
        return self.death is None, self.death or ""

    async def shutdown(self) -> None:
        self.is_shut_down = True


def _output(
    request_id: str, ids: tuple[int, ...], params: SamplingParams, k: int, num_tokens: int
) -> RequestOutput:
    is_last = k + 1 >= num_tokens
    prompt_logprobs = None
    if k == 0 and params.prompt_logprobs is not None:
        scored = tuple(_logprobs(token_id, params.prompt_logprobs) for token_id in ids[1:])
        prompt_logprobs = (None, *scored)
    return RequestOutput(
        request_id=request_id,
        prompt_token_ids=ids,
        deltas=tuple(
            _delta(ids, index, k if num_tokens else None, params, is_last)
            for index in range(params.n)
        ),
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=2,
        finished=is_last,
    )


def _delta(
    ids: tuple[int, ...], index: int, k: int | None, params: SamplingParams, is_last: bool
) -> CompletionDelta:
    text = "" if k is None else completion_text(ids, index, k + 1)[-1]
    tokens = tuple(text.encode())
    wanted = params.logprobs
    return CompletionDelta(
        index=index,
        text=text,
        token_ids=tokens,
        logprobs=None if wanted is None else tuple(_logprobs(t, wanted) for t in tokens),
        finish_reason="length" if is_last else None,
    )


def _logprobs(token_id: int, num_top: int) -> TokenLogprobs:
    chosen = -0.5 - token_id / 1000
    others = tuple(
        TokenLogprob((token_id + rank) % 256, chosen - rank, rank + 1) for rank in range(1, num_top)
    )
    return TokenLogprobs(token_id, chosen, (TokenLogprob(token_id, chosen, 1), *others))


def _stats(ids: tuple[int, ...], params: SamplingParams, num_tokens: int) -> RequestStats:
    return RequestStats(
        finish_reason="length",
        prompt_tokens=len(ids),
        generation_tokens=num_tokens * params.n,
        queue_s=0.01,
        prefill_s=0.02,
        decode_s=0.03,
        ttft_s=0.03,
        e2e_s=0.06,
        n=params.n,
        max_tokens=params.max_tokens,
    )
