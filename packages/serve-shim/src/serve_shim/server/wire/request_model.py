"""Owns how a parsed body becomes a typed request: exact types, bounded words about what is wrong.

Unknown fields are ignored, as clients add them; fields that would change the meaning of the answer
and are not supported are refused by name.
"""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from serve_shim.errors import RequestError
from serve_shim.server.wire.unsupported import refuse_unsupported

_MAX_ERRORS = 5
_log = logging.getLogger(__name__)


class RequestModel(BaseModel):
    """Base of all request bodies; `supported` names fields that this one does understand."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    supported: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """The request; RequestError names the first wrong field in `param`."""
        refuse_unsupported(body, supported=cls.supported)
        _log_unknown(cls, body)
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            raise _to_request_error(error) from None


def _log_unknown(model: type[RequestModel], body: Mapping[str, Any]) -> None:
    if not _log.isEnabledFor(logging.DEBUG):
        return
    unknown = sorted(body.keys() - model.model_fields.keys())
    if unknown:
        _log.debug("%s: ignored unknown fields %.200s", model.__name__, unknown)


def _to_request_error(error: ValidationError) -> RequestError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"`{_path(problem['loc'])}`: {problem['msg']}" for problem in problems[:_MAX_ERRORS]]
    if len(problems) > _MAX_ERRORS:
        lines.append(f"and {len(problems) - _MAX_ERRORS} more")
    return RequestError("; ".join(lines) + ".", param=_path(problems[0]["loc"][:1]))


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:64] for part in location)
