"""Owns the way from texts and conversations to token ids; long work leaves the event loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from serve_shim.errors import RequestError, TemplateError
from serve_shim.server.wire.chat import Conversation
from serve_shim.server.wire.prompt import Prompt

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer

T = TypeVar("T")

_INLINE_SIZE = 2048  # characters or ids: less work than a thread's round trip under load
_NUM_THREADS = 2


class PromptMaker:
    """Makes the prompts of one server, in threads of its own where that takes long.

    `max_model_len`, where given, refuses a text of which no tokenization can fit before it is
    tokenized: RequestError `context_length_exceeded`.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="prompts")
        self._longest_token = 0

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def to_prompts(
        self,
        tokenizer: "Tokenizer | None",
        prompts: Sequence[str | list[int]],
        *,
        add_special_tokens: bool = True,
        with_text: bool = False,
        max_model_len: int | None = None,
    ) -> list[Prompt]:
        """A Prompt for each text or list of ids; ids stay as they are, nothing is added to them."""

        def make() -> list[Prompt]:
            for prompt in prompts:
                if isinstance(prompt, str):
                    self._check_length(_require(tokenizer), prompt, max_model_len, "prompt")
            return [_to_prompt(tokenizer, p, add_special_tokens, with_text) for p in prompts]

        size = sum(len(prompt) for prompt in prompts if with_text or isinstance(prompt, str))
        return make() if size <= _INLINE_SIZE else await self.run(make)

    async def render(
        self,
        tokenizer: "Tokenizer | None",
        conversation: Conversation,
        *,
        add_special_tokens: bool = False,
        max_model_len: int | None = None,
    ) -> Prompt:
        """The conversation through the model's chat template, tokenized.

        TemplateError when there is no template, it refuses, or it exceeds its limits.
        """
        known = _require(tokenizer)
        if not known.has_chat_template:
            raise TemplateError(
                "This model has no chat template; give one with `--chat-template` or use "
                "`/v1/completions`.",
                param="messages",
                code="chat_template_missing",
            )

        def make() -> Prompt:
            text = _render(known, conversation)
            self._check_length(known, text, max_model_len, "messages")
            return Prompt(known.encode(text, add_special_tokens=add_special_tokens), text)

        return await self.run(make)

    def _check_length(
        self, tokenizer: "Tokenizer", text: str, max_model_len: int | None, param: str
    ) -> None:
        if max_model_len is None or len(text) <= max(max_model_len, _INLINE_SIZE):
            return
        # No token stands for more characters than it has bytes.
        self._longest_token = self._longest_token or _longest_token(tokenizer)
        if len(text) > max_model_len * self._longest_token:
            raise RequestError(
                f"this model's context is {max_model_len} tokens, which the {len(text)} "
                f"characters of the prompt exceed in any case; shorten `{param}`",
                param=param,
                code="context_length_exceeded",
            )


def decode(
    tokenizer: "Tokenizer | None", token_ids: Sequence[int], *, skip_special_tokens: bool
) -> str:
    """The text of ids; RequestError where one is not in the vocabulary."""
    known = _require(tokenizer)
    for token_id in token_ids:
        if not 0 <= token_id < known.vocab_size:
            raise RequestError(
                f"Token id {token_id} is outside the vocabulary of {known.vocab_size} tokens."
            )
    return known.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _to_prompt(
    tokenizer: "Tokenizer | None",
    prompt: str | list[int],
    add_special_tokens: bool,
    with_text: bool,
) -> Prompt:
    if isinstance(prompt, str):
        ids = _require(tokenizer).encode(prompt, add_special_tokens=add_special_tokens)
        return Prompt(ids, prompt)
    if not with_text:
        return Prompt(prompt)
    return Prompt(prompt, decode(tokenizer, prompt, skip_special_tokens=True))


def _render(tokenizer: "Tokenizer", conversation: Conversation) -> str:
    return tokenizer.apply_chat_template(
        conversation.messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        tools=conversation.tools,
        **conversation.kwargs,
    )


def _longest_token(tokenizer: "Tokenizer") -> int:
    return max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))


def _require(tokenizer: "Tokenizer | None") -> "Tokenizer":
    if tokenizer is None:
        raise RequestError(
            "This model has no tokenizer; send token ids to `/v1/completions`.", param="prompt"
        )
    return tokenizer
