"""Owns the body of `POST /v1/chat/completions`, and what of it a chat template gets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from serve_shim.errors import RequestError, SamplingParamsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.wire.messages import to_messages
from serve_shim.server.wire.request_model import RequestModel
from serve_shim.server.wire.sampling import SamplingFields, check_logprobs
from serve_shim.server.wire.template_options import to_template_kwargs
from serve_shim.server.wire.unsupported import unsupported
from serve_shim.settings.tree import LimitsConfig

Messages = Annotated[
    list[dict[str, Any]],
    PlainValidator(to_messages),
    WithJsonSchema({"type": "array", "minItems": 1, "items": {"type": "object"}}),
]
TemplateKwargs = Annotated[
    dict[str, Any], PlainValidator(to_template_kwargs), WithJsonSchema({"type": "object"})
]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Everything that a chat template turns into a prompt."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    kwargs: dict[str, Any]


class ConversationFields(RequestModel):
    """Fields of a chat prompt; chat and `/tokenize` share them."""

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateKwargs = {}

    def conversation(self) -> Conversation:
        """What the template renders; RequestError where two fields contradict each other."""
        continues = bool(self.continue_final_message)
        opens = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        if continues and opens:
            raise RequestError(
                "`continue_final_message` and `add_generation_prompt` exclude each other.",
                param="continue_final_message",
            )
        return Conversation(
            self.messages, self.tools or None, opens, continues, self.chat_template_kwargs
        )


class ChatRequest(ConversationFields, SamplingFields):
    """The body; sampling fields are in SamplingFields."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def to_params(
        self, limits: LimitsConfig, defaults: Mapping[str, float | int] | None = None
    ) -> SamplingParams:
        """The request's parameters over the model's; SamplingParamsError beyond the limits."""
        self._check_tools()
        check_logprobs("top_logprobs", self.top_logprobs, limits)
        wanted: dict[str, Any] = {**(defaults or {}), **self.sampling_fields(limits)}
        wanted["max_tokens"] = self._max_tokens()
        wanted["logprobs"] = self._num_logprobs()
        return SamplingParams(**wanted)

    def conversation(self) -> Conversation:
        """What the template renders; without the tools where `tool_choice` is `none`."""
        base = super().conversation()
        if self.tool_choice != "none":
            return base
        return Conversation(
            base.messages,
            None,
            base.add_generation_prompt,
            base.continue_final_message,
            base.kwargs,
        )

    def _max_tokens(self) -> int | None:
        limit = self.max_completion_tokens
        name = "max_tokens" if limit is None else "max_completion_tokens"
        limit = self.max_tokens if limit is None else limit
        if limit == 0:
            raise SamplingParamsError(f"`{name}` must be at least 1.", param=name)
        return limit

    def _num_logprobs(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise SamplingParamsError(
                "`top_logprobs` needs `logprobs` to be true.", param="top_logprobs"
            )
        return None

    def _check_tools(self) -> None:
        if self.tool_choice in (None, "none", "auto"):
            return
        raise unsupported(
            "tool_choice", "only `none` and `auto` are; the model decides by itself what to write"
        )
