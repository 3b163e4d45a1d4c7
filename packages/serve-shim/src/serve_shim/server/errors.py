"""Errors that only HTTP knows, each with its status; refuses anything an engine could raise.

RequestError (serve_shim.errors)
└── HttpError                  a request that HTTP itself finds wrong
    ├── MalformedHttpError     400  bytes that are no HTTP request
    ├── UnauthorizedError      401  no key, or a wrong one
    ├── ModelNotFoundError     404  a model that is not served here
    ├── RouteNotFoundError     404  a path that is no route
    ├── MethodNotAllowedError  405  a route, but not by this method
    ├── RequestTimeoutError    408  a body that did not arrive in time
    ├── BodyTooLargeError      413  more bytes than are read
    ├── MediaTypeError         415  a body that is not JSON
    └── HeadersTooLargeError   431  more header bytes or lines than are read
"""

from collections.abc import Mapping

from serve_shim.errors import RequestError


class HttpError(RequestError):
    """A request that is refused with `status` and, beside the usual ones, `headers`."""

    status = 400
    code_name = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code=self.code_name)
        self.headers: Mapping[str, str] = {}


class MalformedHttpError(HttpError):
    """Bytes that are no HTTP request; the connection is closed."""

    code_name = "malformed_http"


class UnauthorizedError(HttpError):
    """No API key, or one that is not known."""

    status = 401
    code_name = "invalid_api_key"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"www-authenticate": "Bearer"}


class ModelNotFoundError(HttpError):
    """The request names a model that is not served here."""

    status = 404
    code_name = "model_not_found"


class RouteNotFoundError(HttpError):
    """The path is no route of this server."""

    status = 404
    code_name = "unknown_route"


class MethodNotAllowedError(HttpError):
    """The route exists, but not for this method; `allow` is the value of the Allow header."""

    status = 405
    code_name = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.headers = {"allow": allow}


class RequestTimeoutError(HttpError):
    """The body did not arrive in time; the connection is closed."""

    status = 408
    code_name = "request_timeout"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"connection": "close"}


class BodyTooLargeError(HttpError):
    """The body has more bytes than are read; the connection is closed."""

    status = 413
    code_name = "body_too_large"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.headers = {"connection": "close"}


class MediaTypeError(HttpError):
    """The body is declared to be something other than JSON in UTF-8."""

    status = 415
    code_name = "unsupported_media_type"


class HeadersTooLargeError(HttpError):
    """More header bytes or lines than are read; the connection is closed."""

    status = 431
    code_name = "headers_too_large"
