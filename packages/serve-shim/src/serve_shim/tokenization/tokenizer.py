"""Owns text to ids and back for one model, chat template included; refuses invalid text."""

from collections.abc import Mapping, Sequence
from copy import copy

import tokenizers

from serve_shim.errors import RequestError, TemplateError
from serve_shim.tokenization.chat_template import ChatTemplate
from serve_shim.tokenization.token_spelling import spelling_of
from serve_shim.tokenization.token_stream import TokenStream


class Tokenizer:
    """A `tokenizers` pipeline with the facts that the server needs; safe to use from threads.

    `special_tokens` maps names such as `bos_token` to their text. `add_bos` prepends the
    beginning-of-sequence token where the pipeline itself does not.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        where: str,
        add_bos: bool = False,
        chat_template: str | Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._special_tokens = dict(special_tokens)
        self._where = where
        self._spelling = spelling_of(backend, where)
        added = backend.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bos_id = self._id_of("bos_token") if add_bos else None
        self._bytes: dict[int, bytes] = {}
        self._template = self._compile(chat_template)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The end-of-sequence token, if the tokenizer has one."""
        token_id = self._id_of("eos_token")
        return () if token_id is None else (token_id,)

    @property
    def has_chat_template(self) -> bool:
        """Whether `apply_chat_template` can work."""
        return self._template is not None

    def with_chat_template(self, source: str) -> "Tokenizer":
        """Return this tokenizer with another template; raises `TokenizerError` if malformed."""
        other = copy(self)
        other._template = self._compile(source)
        return other

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens spelt in it become their ids.

        Encode the result of `apply_chat_template` without adding special tokens: it holds them.
        Raises `RequestError` for text that is no valid Unicode.
        """
        try:
            ids = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise RequestError(f"the text cannot be encoded: {error}", param="prompt") from error
        if add_special_tokens and self._bos_id is not None and ids[:1] != [self._bos_id]:
            return [self._bos_id, *ids]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; ids without a token count as empty.

        Raises `RequestError` for ids that are negative or no 32-bit integers.
        """
        try:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise RequestError(f"not token ids: {error}", param="tokens") from error

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that `token_id` stands for, b"" for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """Return the text of one token, U+FFFD where it is part of a character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def stream(self, skip_special_tokens: bool = True) -> TokenStream:
        """Return a decoder for one completion."""
        return TokenStream(self.token_bytes, self.special_ids if skip_special_tokens else ())

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """Return the prompt for `messages`; blocks for up to the time limit, so call it off-loop.

        Raises `TemplateError`, also where the model has no template.
        """
        if self._template is None:
            raise TemplateError(
                "the model has no chat template; give one with --chat-template, "
                "or use /v1/completions",
                code="chat_template_missing",
            )
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
        )

    def _compile(self, source: str | Mapping[str, str] | None) -> ChatTemplate | None:
        if source is None:
            return None
        return ChatTemplate.compile(source, self._special_tokens, self._where)

    def _id_of(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8", "replace")
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._spelling(token)
