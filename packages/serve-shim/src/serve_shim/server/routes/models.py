"""Owns `GET /v1/models` and `GET /v1/models/{model}`."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from serve_shim.server.json_response import JsonResponse
from serve_shim.server.service import Service


async def list_models(service: Service, request: Request) -> Response:
    """Lists the served model under each of its names."""
    service.admit()
    cards = [_card(service, name) for name in service.model_names]
    return JsonResponse({"object": "list", "data": cards})


async def get_model(service: Service, request: Request) -> Response:
    """Describes the served model under one of its names."""
    service.admit()
    return JsonResponse(_card(service, service.resolve_model(request.path_params["model"])))


def _card(service: Service, name: str) -> dict[str, Any]:
    engine = service.admit()
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "serve-shim",
        "root": service.settings.model or engine.model_name,
        "parent": None,
        "max_model_len": engine.max_model_len,
    }
