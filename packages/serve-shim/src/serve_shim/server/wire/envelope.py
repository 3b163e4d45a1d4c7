"""Owns what surrounds choices: one body, or the events of a stream.

A stream's events share everything but the choice, so that part is encoded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_shim.server.json_response import to_json


@dataclass(frozen=True, slots=True)
class Envelope:
    """Identity of one response; `kind` is the `object` field, `created` is Unix seconds."""

    identity: str
    kind: str
    created: int
    model: str

    def body(
        self, choices: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The whole answer of a request that does not stream."""
        return {**self._fields(), "choices": choices, "usage": usage}

    def event_head(self) -> str:
        """The beginning of every event, up to the first choice."""
        return f'data: {to_json(self._fields())[:-1]},"choices":['

    def _fields(self) -> dict[str, Any]:
        return {
            "id": self.identity,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
        }


class EventWriter:
    """Writes the events of one stream."""

    def __init__(self, envelope: Envelope) -> None:
        self._head = envelope.event_head()

    def choice(self, choice: str, usage: Mapping[str, Any] | None = None) -> bytes:
        """An event with one choice, given as JSON, and, where wanted, the usage so far."""
        tail = f',"usage":{to_json(usage)}' if usage is not None else ""
        return f"{self._head}{choice}]{tail}}}\n\n".encode("ascii")

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The event without choices that ends a stream."""
        return self.choice("", usage)
