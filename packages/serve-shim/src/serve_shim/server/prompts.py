"""Owns the way from texts and conversations to token ids; long work leaves the event loop."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_shim.errors import RequestError, TemplateError
from serve_shim.server.wire.chat import Conversation
from serve_shim.server.wire.prompt import Prompt

if TYPE_CHECKING:
    from serve_shim.tokenization.tokenizer import Tokenizer

_INLINE_SIZE = 2048  # characters or ids: less work than a thread's round trip under load
_TEMPLATE_TIMEOUT_S = 5.0


async def to_prompts(
    tokenizer: "Tokenizer | None",
    prompts: Sequence[str | list[int]],
    *,
    add_special_tokens: bool = True,
    with_text: bool = False,
) -> list[Prompt]:
    """A Prompt for each text or list of ids; ids stay as they are, nothing is added to them."""
    size = sum(len(prompt) for prompt in prompts if with_text or isinstance(prompt, str))
    if size <= _INLINE_SIZE:
        return [_to_prompt(tokenizer, prompt, add_special_tokens, with_text) for prompt in prompts]
    return await asyncio.to_thread(
        lambda: [_to_prompt(tokenizer, prompt, add_special_tokens, with_text) for prompt in prompts]
    )


async def render(
    tokenizer: "Tokenizer | None",
    conversation: Conversation,
    *,
    add_special_tokens: bool = False,
) -> Prompt:
    """The conversation through the model's chat template, tokenized.

    TemplateError when there is no template, it refuses, or it takes longer than a few seconds.
    """
    known = _require(tokenizer)
    if not known.has_chat_template:
        raise TemplateError(
            "This model has no chat template; give one with `--chat-template` or use "
            "`/v1/completions`.",
            param="messages",
            code="chat_template_missing",
        )
    work = asyncio.to_thread(_render, known, conversation, add_special_tokens)
    try:
        return await asyncio.wait_for(work, _TEMPLATE_TIMEOUT_S)
    except TimeoutError:
        raise TemplateError(
            f"The chat template took longer than {_TEMPLATE_TIMEOUT_S:g} s.", param="messages"
        ) from None


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


def _require(tokenizer: "Tokenizer | None") -> "Tokenizer":
    if tokenizer is None:
        raise RequestError(
            "This model has no tokenizer; send token ids to `/v1/completions`.", param="prompt"
        )
    return tokenizer


def _render(tokenizer: "Tokenizer", conversation: Conversation, add_special_tokens: bool) -> Prompt:
    text = tokenizer.apply_chat_template(
        conversation.messages,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        tools=conversation.tools,
        **conversation.kwargs,
    )
    return Prompt(tokenizer.encode(text, add_special_tokens=add_special_tokens), text)
