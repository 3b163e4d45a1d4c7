"""Owns `POST /v1/completions` and `POST /v1/chat/completions`: from body to answer."""

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from serve_shim.engine.protocol import Engine
from serve_shim.sampling.params import SamplingParams
from serve_shim.server.body import read_object
from serve_shim.server.generation import generate
from serve_shim.server.json_response import JsonResponse
from serve_shim.server.request_id import new_id
from serve_shim.server.respond import Answer
from serve_shim.server.service import Service
from serve_shim.server.sse import EventStreamResponse
from serve_shim.server.wire.chat import ChatRequest
from serve_shim.server.wire.chat_choices import ChatChoices
from serve_shim.server.wire.choices import ChoiceFormat
from serve_shim.server.wire.completion import CompletionRequest
from serve_shim.server.wire.completion_choices import CompletionChoices
from serve_shim.server.wire.envelope import Envelope
from serve_shim.server.wire.prompt import Prompt
from serve_shim.server.wire.sampling import SamplingFields
from serve_shim.server.wire.token_text import TokenText
from serve_shim.server.wire.usage import Usage


async def create_completion(service: Service, request: Request) -> Response:
    """Answers a text completion."""
    service.admit()
    body = CompletionRequest.parse(await read_object(request, service.body_limits))
    envelope = _envelope(service, body, "cmpl", "text_completion")
    engine = service.admit()
    params = body.to_params(service.settings.limits, engine.sampling_defaults)
    prompts = await service.prompts.to_prompts(
        engine.tokenizer,
        body.prompt,
        add_special_tokens=body.add_special_tokens is not False,
        with_text=bool(body.echo),
        max_model_len=engine.max_model_len,
    )
    choices = CompletionChoices(body, prompts, _token_text(engine, body))
    return await _answer(service, request, body, prompts, params, choices, envelope)


async def create_chat_completion(service: Service, request: Request) -> Response:
    """Answers a conversation."""
    service.admit()
    body = ChatRequest.parse(await read_object(request, service.body_limits))
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    envelope = _envelope(service, body, "chatcmpl", kind)
    engine = service.admit()
    params = body.to_params(service.settings.limits, engine.sampling_defaults)
    prompt = await service.prompts.render(
        engine.tokenizer, body.conversation(), max_model_len=engine.max_model_len
    )
    prompts = [prompt]
    choices = ChatChoices(body, prompts, _token_text(engine, body))
    return await _answer(service, request, body, prompts, params, choices, envelope)


async def _answer(
    service: Service,
    request: Request,
    body: SamplingFields,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    choices: ChoiceFormat,
    envelope: Envelope,
) -> Response:
    options = body.usage_options()
    answer = Answer(
        outputs=generate(service.admit(), envelope.identity, prompts, params),
        choices=choices,
        envelope=envelope,
        usage=Usage([len(prompt.token_ids) for prompt in prompts]),
    )
    if body.stream:
        return EventStreamResponse(
            answer.events(options), service.in_flight, keep_alive_s=service.keep_alive_s
        )
    return JsonResponse(await service.in_flight.run(request.receive, answer.body()))


def _envelope(service: Service, body: SamplingFields, prefix: str, kind: str) -> Envelope:
    model = service.resolve_model(body.model)
    return Envelope(new_id(prefix), kind, int(time.time()), model)


def _token_text(engine: Engine, body: SamplingFields) -> TokenText:
    return TokenText(engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
