"""Owns offline generation: a list of prompts in, a list of results out; refuses to serve or stream.

The same scheduler and worker as the server's, stepped on the caller's thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import ir_core as ir
from ir_core.errors import IrError
from ir_passes.config import CompilationConfig
from serve_shim.engine.build import build_parts
from serve_shim.engine.delivery import Delivery
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.request import Request
from serve_shim.engine.result import CompletionResult, RequestResult, ResultBuilder
from serve_shim.engine.status import StartupStatus
from serve_shim.errors import EngineDeadError, RequestError, SettingsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.settings.resolve import resolve_arguments
from serve_shim.settings.tree import KernelConfig, Settings
from serve_shim.tokenization.tokenizer import Tokenizer

__all__ = ["LLM", "CompletionResult", "RequestResult"]

Prompt = str | Sequence[int] | Mapping[str, Sequence[int]]
"""A text, token ids, or `{"prompt_token_ids": ids}`."""

Messages = Sequence[Mapping[str, object]]
"""A conversation, in the form that chat templates take."""


class LLM:
    """A model for offline use, by one thread at a time.

    `model` is a directory, GGUF file or hub name, by default the embedded model. Further settings
    take the names of the server's flags, for example `max_num_seqs=8` or
    `ir_op_priority={"rms_norm": ["native"]}`; priorities hold for this object's calls only. What
    only a server or the whole process acts on, such as `port` or `batch_invariant`, is refused.
    Use it as a context manager, or `close` it, to free the weights early.

    Raises `SettingsError` or `ModelLoadError`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        dtype: str = "auto",
        quantization: str = "auto",
        compilation_config: CompilationConfig | Mapping[str, object] | None = None,
        kernel_config: KernelConfig | Mapping[str, object] | None = None,
        max_model_len: int | None = None,
        **settings: object,
    ) -> None:
        named: dict[str, object] = {
            "model": model,
            "compilation_config": compilation_config,
            "kernel_config": kernel_config,
            "max_model_len": max_model_len,
        }
        given = {name: value for name, value in named.items() if value is not None}
        self._settings = resolve_arguments(
            {"dtype": dtype, "quantization": quantization, **given, **settings}
        ).settings
        self._priorities = _checked_priorities(self._settings)
        with ir.priority(self._priorities):
            self._parts: EngineParts | None = build_parts(
                self._settings, StartupStatus(), is_bounded=False
            )

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, None where the checkpoint has none."""
        return self._engine.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestResult]:
        """Complete each prompt, all of them batched; results are in the order of the prompts.

        One `SamplingParams` serves all prompts, a list has one for each, None is the model's own
        defaults. Raises `RequestError` for the first prompt that is wrong, before anything is
        computed, and `GenerationError` for the first that fails.
        """
        texts = _as_list(prompts)
        encoded = [self._encode(prompt) for prompt in texts]
        if sampling_params is None:
            defaults = self._engine.sampling_defaults
            sampling_params = SamplingParams(**defaults)  # pyright: ignore[reportArgumentType]
        each = _params_for(encoded, sampling_params)
        requests = self._admit(encoded, each)
        builders = {
            request: ResultBuilder(prompt if isinstance(prompt, str) else None)
            for request, prompt in zip(requests, texts, strict=True)
        }
        try:
            self._run(builders)
        finally:
            self._abandon(requests)
        return [builders[request].build() for request in requests]

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> list[RequestResult]:
        """Answer one conversation, or several, rendered with the model's chat template."""
        tokenizer = self._tokenizer_for("chat")
        conversations = [messages] if _is_conversation(messages) else list(messages)
        prompts: list[Prompt] = [
            tokenizer.encode(
                tokenizer.apply_chat_template(
                    conversation,  # pyright: ignore[reportArgumentType]
                    add_generation_prompt=add_generation_prompt,
                ),
                add_special_tokens=False,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params)

    def close(self) -> None:
        """Free the weights and the cache, and end ranks; further calls raise `RuntimeError`."""
        parts, self._parts = self._parts, None
        if parts is not None and parts.workers is not None:
            parts.workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _engine(self) -> EngineParts:
        if self._parts is None:
            raise RuntimeError("this `LLM` is closed; make another one")
        return self._parts

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        if isinstance(prompt, str):
            return self._tokenizer_for("a text prompt").encode(prompt)
        if isinstance(prompt, Mapping):
            if set(prompt) != {"prompt_token_ids"}:
                raise RequestError(
                    "a prompt given as a mapping must have the one key `prompt_token_ids`",
                    param="prompt",
                )
            return prompt["prompt_token_ids"]
        return prompt

    def _tokenizer_for(self, purpose: str) -> Tokenizer:
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise RequestError(
                f"{purpose} needs a tokenizer, which this model has not; give token ids",
                param="prompt",
            )
        return tokenizer

    def _admit(
        self, prompts: Iterable[Sequence[int]], params: Iterable[SamplingParams]
    ) -> list[Request]:
        pairs = list(zip(prompts, params, strict=True))
        for ids, each in pairs:
            self._engine.admission.validate(ids, each)
        requests = [
            self._engine.factory.make(str(number), ids, each)
            for number, (ids, each) in enumerate(pairs)
        ]
        for request in requests:
            self._engine.core.submit(request)
        return requests

    def _run(self, builders: Mapping[Request, ResultBuilder]) -> None:
        core = self._engine.core
        with ir.priority(self._priorities):
            while core.has_work:
                for delivery in self._step():
                    if delivery.error is not None:
                        raise delivery.error
                    if delivery.output is not None:
                        builders[delivery.request].add(delivery.output)

    def _abandon(self, requests: Iterable[Request]) -> None:
        """Abort what is unfinished, unless the engine is gone."""
        if self._parts is not None:
            for request in requests:
                self._parts.core.abort(request)

    def _step(self) -> list[Delivery]:
        try:
            return self._engine.core.step()
        except Exception as error:
            self.close()
            raise EngineDeadError(
                f"the engine failed: {type(error).__name__}: {error}; make another `LLM`"
            ) from error


def _checked_priorities(settings: Settings) -> Mapping[str, Sequence[str]]:
    priorities = settings.kernel_config.ir_op_priority
    try:
        ir.load_plugins()
        ir.check_priority(priorities)
    except IrError as error:
        raise SettingsError(str(error)) from error
    return priorities


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a text, a mapping or a flat list of ids is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # pyright: ignore[reportReturnType]
    return list(prompts)  # pyright: ignore[reportReturnType]


def _is_conversation(messages: Messages | Sequence[Messages]) -> bool:
    return bool(messages) and isinstance(messages[0], Mapping)


def _params_for(
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if len(params) != len(prompts):
        raise RequestError(
            f"{len(prompts)} prompts were given with {len(params)} `sampling_params`; give one "
            "for all, or as many as prompts",
            param="sampling_params",
        )
    return params
