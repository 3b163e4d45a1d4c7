"""Owns the one shape of every error: `{"error": {"message", "type", "param", "code"}}`.

An exception goes in, a status and a body come out. Words of unexpected exceptions never leave the
process; they are logged under the request's id.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_shim.errors import (
    EngineDeadError,
    OverloadedError,
    RequestError,
    UnavailableError,
)
from serve_shim.server.errors import HttpError, MethodNotAllowedError, RouteNotFoundError
from serve_shim.server.json_response import JsonResponse

_MAX_MESSAGE_CHARS = 1000
_log = logging.getLogger(__name__)


def error_response(error: Exception) -> Response:
    """The response that tells a client about `error`."""
    return JsonResponse(error_body(error), status=error_status(error), headers=error_headers(error))


def error_body(error: Exception) -> dict[str, Any]:
    """The body of the response, and the payload of the error frame of a stream."""
    status = error_status(error)
    message, param, code = _describe(error)
    kind = {401: "authentication_error", 500: "internal_error", 503: "service_unavailable"}
    return {
        "error": {
            "message": _bounded(message),
            "type": kind.get(status, "invalid_request_error"),
            "param": param,
            "code": code,
        }
    }


def error_status(error: Exception) -> int:
    """The HTTP status of `error`."""
    match error:
        case HttpError():
            return error.status
        case OverloadedError() | UnavailableError():
            return 503
        case RequestError():
            return 400
        case _:
            return 500


def error_headers(error: Exception) -> Mapping[str, str]:
    """The headers that `error` adds to its response."""
    match error:
        case HttpError():
            return error.headers
        case UnavailableError(code="draining"):
            return {"retry-after": _seconds(error.retry_after_s), "connection": "close"}
        case OverloadedError() | UnavailableError():
            return {"retry-after": _seconds(error.retry_after_s)}
        case _:
            return {}


def log_failure(error: Exception, scope: Scope) -> None:
    """Logs an error whose client is told no more than 500, with the id that the client knows.

    The death of the engine has one cause for all requests, so each gets a line without traceback.
    """
    if error_status(error) == 500:
        trace = None if isinstance(error, EngineDeadError) else error
        _log.error("Request %s failed: %s", scope.get("request_id"), error, exc_info=trace)


def http_exception_response(request: Request, error: Exception) -> Response:
    """Turns the router's own 404 and 405 into this module's shape."""
    return error_response(_from_router(request, error))


class ErrorMiddleware:
    """Answers whatever escapes the routes, unless the response has already begun.

    `on_error` hears of each error that is answered.
    """

    def __init__(self, app: ASGIApp, *, on_error: Callable[[Exception], None]) -> None:
        self._app = app
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return
        except Exception as error:
            if started or scope["type"] != "http":
                raise
            log_failure(error, scope)
            self._on_error(error)
            await error_response(error)(scope, receive, send)


def _from_router(request: Request, error: Exception) -> Exception:
    path = request.scope["path"][:200]
    match error:
        case HTTPException(status_code=404):
            return RouteNotFoundError(
                f"There is no route `{path}`; `GET /openapi.json` lists the routes of this server."
            )
        case HTTPException(status_code=405, headers=headers):
            allow = (headers or {}).get("Allow", "")
            return MethodNotAllowedError(
                f"`{path}` does not answer {request.method[:20]}; use {allow}.", allow=allow
            )
        case _:
            return error


def _describe(error: Exception) -> tuple[str, str | None, str | None]:
    match error:
        case RequestError():
            return error.message, error.param, error.code
        case EngineDeadError():
            return "The engine has stopped; the server's log has the cause.", None, "engine_dead"
        case _:
            return "The server had an internal error; its log has more.", None, "internal_error"


def _seconds(value: float) -> str:
    return str(max(1, math.ceil(value)))


def _bounded(message: str) -> str:
    if len(message) <= _MAX_MESSAGE_CHARS:
        return message
    return message[: _MAX_MESSAGE_CHARS - 1] + "…"
