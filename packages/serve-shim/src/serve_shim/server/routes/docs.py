"""Owns `/openapi.json` and `/docs`: made from the request models, readable without a network."""

import html
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from serve_shim.server.json_response import JsonResponse
from serve_shim.server.routes.health import READY_PATHS
from serve_shim.server.service import Service
from serve_shim.server.wire.chat import ChatRequest
from serve_shim.server.wire.completion import CompletionRequest
from serve_shim.server.wire.request_model import RequestModel
from serve_shim.server.wire.tokenization import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)

_POSTS: dict[str, tuple[str, tuple[type[RequestModel], ...]]] = {
    "/v1/completions": ("Complete a text.", (CompletionRequest,)),
    "/v1/chat/completions": ("Answer a conversation.", (ChatRequest,)),
    "/tokenize": ("Turn text into token ids.", (TokenizeTextRequest, TokenizeChatRequest)),
    "/detokenize": ("Turn token ids into text.", (DetokenizeRequest,)),
}
_GETS: dict[str, str] = {
    "/v1/models": "List the served model.",
    "/v1/models/{model}": "Describe the served model.",
    **dict.fromkeys(READY_PATHS, "Whether requests are served."),
    "/livez": "Whether the process answers.",
    "/version": "The version of this server.",
    "/load": "Generations in flight.",
    "/metrics": "Prometheus metrics.",
    "/debug/ir": "Implementations that ran or were compiled in, and why others did not.",
}
_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


async def get_openapi(service: Service, request: Request) -> Response:
    """The OpenAPI document."""
    return JsonResponse(openapi())


async def get_docs(service: Service, request: Request) -> Response:
    """The routes as one page of HTML that loads nothing else."""
    rows = "".join(
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td></tr>"
        for path, methods in openapi()["paths"].items()
        for method, operation in methods.items()
    )
    return HTMLResponse(
        "<!doctype html><meta charset=utf-8><title>serve-shim</title><h1>serve-shim</h1>"
        f"<table>{rows}</table><p>Fields: <a href=openapi.json>openapi.json</a></p>"
    )


def openapi() -> dict[str, Any]:
    """The OpenAPI document of all routes, as a new dictionary."""
    models = [model for _, models in _POSTS.values() for model in models]
    _, schemas = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    gets = {path: {"get": _operation(words)} for path, words in _GETS.items()}
    posts = {
        path: {"post": {**_operation(words), "requestBody": _request_body(models)}}
        for path, (words, models) in _POSTS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "serve-shim", "version": version("serve-shim")},
        "paths": {**posts, **gets},
        "components": {"schemas": {**schemas.get("$defs", {}), "Error": _ERROR_SCHEMA}},
    }


def _operation(words: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": words,
        "responses": {
            "200": {"description": "Success."},
            "default": {"description": "An error.", "content": error},
        },
    }


def _request_body(models: tuple[type[RequestModel], ...]) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {"required": True, "content": {"application/json": {"schema": schema}}}
