"""Owns the probes: `/livez` for the process, `/readyz` and its other names for the service."""

from starlette.requests import Request
from starlette.responses import Response

from serve_shim.server.json_response import JsonResponse
from serve_shim.server.service import Service

READY_PATHS = ("/readyz", "/health", "/v1/health", "/ping")


async def live(service: Service, request: Request) -> Response:
    """200 as long as the process answers."""
    return JsonResponse({"status": "alive"})


async def ready(service: Service, request: Request) -> Response:
    """200 while requests are served and the engine makes progress, else 503 and why."""
    is_ready, words = service.readiness()
    if is_ready:
        return JsonResponse(words)
    return JsonResponse(words, status=503, headers={"retry-after": "1"})
