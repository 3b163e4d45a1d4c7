"""Owns reading a request's body: JSON only, at most so many bytes, within so many seconds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from serve_shim.server.errors import BodyTooLargeError, MediaTypeError, RequestTimeoutError
from serve_shim.server.strict_json import loads_object

_INLINE_BYTES = 64 * 1024  # parsed on the event loop below this, in a thread above


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How many bytes of a body are read, and how many seconds they may take to arrive."""

    max_bytes: int
    timeout_s: float


async def read_object(request: Request, limits: BodyLimits) -> dict[str, Any]:
    """The body as a JSON object.

    Raises MediaTypeError, BodyTooLargeError, RequestTimeoutError, or RequestError for bad JSON;
    ClientDisconnect when the client has gone.
    """
    _check_media_type(request)
    _check_declared_length(request, limits.max_bytes)
    try:
        async with asyncio.timeout(limits.timeout_s):
            data = await _read(request.stream(), limits.max_bytes)
    except TimeoutError:
        raise RequestTimeoutError(
            f"The body did not arrive within {limits.timeout_s:g} s."
        ) from None
    if len(data) <= _INLINE_BYTES:
        return loads_object(data)
    return await asyncio.to_thread(loads_object, data)


def _check_media_type(request: Request) -> None:
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise MediaTypeError("Send the body as JSON in UTF-8: `Content-Type: application/json`.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise MediaTypeError("Send the body uncompressed, without `Content-Encoding`.")


def _check_declared_length(request: Request, max_bytes: int) -> None:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > max_bytes):
        raise _too_large(max_bytes)


async def _read(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(chunk)
    return b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The body is larger than {max_bytes} bytes, the most that is read.")
