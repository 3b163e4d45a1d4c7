"""Owns `POST /tokenize` and `POST /detokenize`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serve_shim.engine.protocol import Engine
from serve_shim.server.body import read_object
from serve_shim.server.json_response import JsonResponse
from serve_shim.server.prompts import decode
from serve_shim.server.service import Service
from serve_shim.server.wire.prompt import Prompt
from serve_shim.server.wire.tokenization import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)


async def tokenize(service: Service, request: Request) -> Response:
    """Turns a text, or a conversation by way of the chat template, into token ids."""
    engine = service.admit()
    body = await read_object(request, service.body_limits)
    if "messages" in body:
        chat = TokenizeChatRequest.parse(body)
        service.resolve_model(chat.model)
        prompt = await service.prompts.render(
            engine.tokenizer,
            chat.conversation(),
            add_special_tokens=bool(chat.add_special_tokens),
        )
        return await _answer(service, prompt, with_text=bool(chat.return_token_strs))
    text = TokenizeTextRequest.parse(body)
    service.resolve_model(text.model)
    adds = text.add_special_tokens is not False
    [prompt] = await service.prompts.to_prompts(
        engine.tokenizer, [text.prompt], add_special_tokens=adds
    )
    return await _answer(service, prompt, with_text=bool(text.return_token_strs))


async def detokenize(service: Service, request: Request) -> Response:
    """Turns token ids into text, special tokens included."""
    engine = service.admit()
    body = DetokenizeRequest.parse(await read_object(request, service.body_limits))
    service.resolve_model(body.model)
    return await service.prompts.run(partial(_text, engine, body.tokens))


def _text(engine: Engine, token_ids: Sequence[int]) -> Response:
    return JsonResponse({"prompt": decode(engine.tokenizer, token_ids, skip_special_tokens=False)})


async def _answer(service: Service, prompt: Prompt, *, with_text: bool) -> Response:
    return await service.prompts.run(partial(_tokens, service.admit(), prompt, with_text))


def _tokens(engine: Engine, prompt: Prompt, with_text: bool) -> Response:
    answer: dict[str, Any] = {
        "count": len(prompt.token_ids),
        "max_model_len": engine.max_model_len,
        "tokens": list(prompt.token_ids),
    }
    if with_text and engine.tokenizer is not None:
        answer["token_strs"] = [engine.tokenizer.token_text(id_) for id_ in prompt.token_ids]
    return JsonResponse(answer)
