"""Owns who may call what: everything needs a key except a short list of exact paths.

The decision reads the path of the ASGI scope as the server received it, never a URL rebuilt from
headers; what is not on the list is closed, routes that do not exist included.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_shim.server.error_response import error_response
from serve_shim.server.errors import UnauthorizedError

PUBLIC_PATHS = frozenset(
    {"/livez", "/readyz", "/health", "/v1/health", "/ping", "/version", "/metrics"}
)


class AuthMiddleware:
    """Lets a request pass that asks for a public path or carries one of `keys` as bearer token.

    Without keys everything passes. `metrics_public` says whether `/metrics` is a public path. Keys
    are kept and compared as digests, all of them each time.
    """

    def __init__(
        self, app: ASGIApp, *, keys: Sequence[str], metrics_public: bool, root_path: str = ""
    ) -> None:
        self._app = app
        self._digests = tuple(_digest(key.encode("utf-8")) for key in keys)
        public = PUBLIC_PATHS if metrics_public else PUBLIC_PATHS - {"/metrics"}
        self._public = frozenset(root_path + path for path in public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if not self._digests or scope["type"] == "lifespan" or self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no API key"})
        else:
            await error_response(_refusal(scope))(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        is_read = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        return (is_read and scope["path"] in self._public) or self._has_key(scope)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = _digest(token.strip().encode("latin-1"))
        matches = [hmac.compare_digest(sent, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _refusal(scope: Scope) -> UnauthorizedError:
    if "authorization" in Headers(scope=scope):
        return UnauthorizedError("The API key is not known here.")
    return UnauthorizedError("No API key was sent; send `Authorization: Bearer KEY`.")
