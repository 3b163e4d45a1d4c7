"""Owns the bodies of `POST /tokenize` and `POST /detokenize`."""

from pydantic import Field

from serve_shim.server.wire.chat import ConversationFields
from serve_shim.server.wire.request_model import RequestModel


class TokenizeTextRequest(RequestModel):
    """A text to tokenize."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(ConversationFields):
    """A conversation to render and tokenize."""

    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """Token ids to turn into text, special tokens included."""

    tokens: list[int] = Field(max_length=1 << 20)
    model: str | None = None
