"""Owns the ASGI application: the table of routes and the order of the layers around them."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serve_shim.server.auth import AuthMiddleware
from serve_shim.server.error_response import ErrorMiddleware, http_exception_response
from serve_shim.server.metrics.http import HttpMetricsMiddleware
from serve_shim.server.request_id import RequestIdMiddleware
from serve_shim.server.routes import completions, docs, health, introspection, models, tokenization
from serve_shim.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]


def build_app(service: Service, *, api_keys: Sequence[str] = ()) -> Starlette:
    """The application that serves `service`; with `api_keys`, all but the public paths need one."""
    routes = build_routes(service)
    settings = service.settings
    layers = [
        Middleware(RequestIdMiddleware),
        Middleware(
            HttpMetricsMiddleware,
            families=service.metrics.http,
            paths=[route.path for route in routes],
        ),
        *_cors(settings.cors_origins),
        Middleware(ErrorMiddleware, on_error=service.metrics.http.note_error),
        Middleware(
            AuthMiddleware,
            keys=api_keys,
            metrics_public=settings.metrics_public,
            root_path=settings.root_path,
        ),
    ]
    app = Starlette(
        routes=routes,
        middleware=layers,
        exception_handlers={HTTPException: http_exception_response},
    )
    app.router.redirect_slashes = False
    return app


def build_routes(service: Service) -> list[Route]:
    """Every route, the busiest first; a path is matched exactly or not at all."""
    posts: dict[str, Handler] = {
        "/v1/completions": completions.create_completion,
        "/v1/chat/completions": completions.create_chat_completion,
        "/tokenize": tokenization.tokenize,
        "/detokenize": tokenization.detokenize,
    }
    gets: dict[str, Handler] = {
        "/metrics": introspection.get_metrics,
        **dict.fromkeys(health.READY_PATHS, health.ready),
        "/livez": health.live,
        "/version": introspection.get_version,
        "/load": introspection.get_load,
        "/v1/models": models.list_models,
        "/v1/models/{model:path}": models.get_model,
        "/debug/ir": introspection.get_selections,
    }
    if not service.settings.disable_docs:
        gets |= {"/openapi.json": docs.get_openapi, "/docs": docs.get_docs}
    return [
        Route(path, partial(handler, service), methods=[method])
        for method, table in (("POST", posts), ("GET", gets))
        for path, handler in table.items()
    ]


def _cors(origins: Sequence[str]) -> list[Middleware]:
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id"],
            expose_headers=["x-request-id"],
        )
    ]
