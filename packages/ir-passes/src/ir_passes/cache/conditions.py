"""What must hold for an entry to be used beyond its factors: what only the trace found out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ir_core import registry
from ir_passes.cache.cpp_compiler import compiler_digest
from ir_passes.cache.model_guards import ModelGuards
from ir_passes.cache.op_choices import OpChoices
from ir_passes.cache.traced_sources import changed_source
from ir_passes.errors import CorruptEntryError
from ir_passes.programs.request import CompileRequest

CONDITIONS = "conditions.json"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one entry.

    Attributes:
        guards: on the model's Python objects, of the trace for every token count (None) and of each
            that was made for one.
        sources: digests of the modules whose code was traced, or that a plug-in's pass is of.
        choices: the implementations that ops are chosen from.
        compiler: that compiled kernels; None where none were.
    """

    guards: Mapping[int | None, ModelGuards]
    sources: Mapping[str, str]
    choices: OpChoices
    compiler: str | None

    def failure(self, request: CompileRequest) -> str | None:
        """The first that does not hold for a request, for a person; None if all hold."""
        return (
            changed_source(self.sources)
            or self._compiler_failure()
            or self.choices.failure(registry())
            or next(filter(None, self._guard_failures(request)), None)
        )

    def _guard_failures(self, request: CompileRequest) -> Iterator[str | None]:
        for num_tokens, guards in self.guards.items():
            call = request if num_tokens is None else request.resized(num_tokens)
            yield guards.failure(call.function, call.args, call.kwargs)

    def to_bytes(self) -> bytes:
        """The same conditions give the same bytes."""
        value = {
            "guards": [[size, guards.to_json()] for size, guards in self.guards.items()],
            "sources": dict(self.sources),
            "choices": self.choices.to_json(),
            "compiler": self.compiler,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Conditions:
        """The conditions that `to_bytes` wrote.

        Raises:
            CorruptEntryError: it did not write this.
        """
        try:
            value: Any = json.loads(data)
            guards = {size: ModelGuards.from_json(each) for size, each in value["guards"]}
            choices = OpChoices.from_json(value["choices"])
            return cls(guards, value["sources"], choices, value["compiler"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntryError(f"The conditions are malformed: {error!r}") from error

    def _compiler_failure(self) -> str | None:
        found = None if self.compiler is None else compiler_digest()
        # A machine without a compiler could not have compiled anything else.
        if found is None or found == self.compiler:
            return None
        return f"the C++ compiler is {_name(found)}, and was {_name(self.compiler)}"


def _name(compiler: str | None) -> str:
    name, _, digest = (compiler or "none").partition(" ")
    return f"{name} ({digest[:12]})" if digest else name
