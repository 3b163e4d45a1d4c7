"""What a tuned choice rests on: it is used only where all of it is as it was.

What the machine is stands beside all choices, not here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ir_core.implementation import Implementation
    from ir_core.op import IrOp

SIZES = "token counts"
"""The fact that says which numbers of tokens were timed."""
ENDS = "ends of ranges"
"""The fact that says with which of them a range of rows could end."""
COMPILER = "compiler"
"""The fact that says what compiled what was timed."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a choice for an op rests on.

    Attributes:
        facts: named texts: how it was timed, who is asked in which order, what each is.
        files: digests and versions of all that the implementations import, by factor.
    """

    facts: Mapping[str, str]
    files: Mapping[str, str]

    def to_json(self) -> dict[str, dict[str, str]]:
        """Plain JSON types."""
        return {"facts": dict(self.facts), "files": dict(self.files)}

    @classmethod
    def from_json(cls, value: Any) -> Grounds:
        """The grounds that `to_json` wrote. Raises KeyError or TypeError for others."""
        return cls(to_texts(value["facts"]), to_texts(value["files"]))


@dataclass(frozen=True, slots=True)
class Ungrounded:
    """Why a choice cannot be told from an outdated one."""

    reason: str


def find_grounds(op: IrOp, facts: Mapping[str, str]) -> Grounds | Ungrounded:
    """What a choice for an op rests on now besides `facts_of` it.

    Parses the sources of implementations that can run.
    """
    fingerprinter = op.registry.fingerprinter
    files: dict[str, str] = {}
    for implementation in op.implementations.values():
        if not implementation.supported:
            continue
        fingerprint = implementation.fingerprint()
        if fingerprint.digest is None:
            return Ungrounded(f"provider `{implementation.provider}`: {fingerprint.reason}")
        own = fingerprinter.own_factors(implementation) or {}
        files |= {name: text for name, text in fingerprint.factors if name not in own}
    return Grounds(facts, files)


def facts_of(
    op: IrOp,
    weights: Mapping[int, float],
    *,
    is_fused: bool,
    compiler: str | None = None,
    blocked: Collection[int] = (),
) -> Mapping[str, str]:
    """The facts of an op's grounds now; parses nothing."""
    ends = (each for each in sorted(weights)[:-1] if each not in blocked)
    registry = op.registry
    return {
        SIZES: ", ".join(f"{count} x {weight:g}" for count, weight in weights.items()),
        ENDS: ", ".join(map(str, ends)) or "none",
        "execution": "compiled" if is_fused else "as written",
        COMPILER: compiler or "none",
        "batch invariance": "on" if registry.is_batch_invariant() else "off",
        "schema": op.schema.text,
        "priority": ", ".join(registry.candidates(op)),
        **{f"provider `{each.provider}`": _state(each) for each in op.implementations.values()},
    }


def changed_file(op: IrOp, files: Mapping[str, str]) -> str | None:
    """The first of the files of an op's grounds that is another now, for a person."""
    changed = op.registry.fingerprinter.changed(files)
    return None if changed is None else f"{changed} has changed"


def difference(now: Mapping[str, str], before: Mapping[str, str]) -> str | None:
    """The first fact that is another now, for a person; None if all are the same."""
    for name in {**now, **before}:
        if now.get(name) != before.get(name):
            return f"{name} is {now.get(name, 'absent')}, and was {before.get(name, 'absent')}"
    return None


def to_texts(value: Any) -> dict[str, str]:
    """A JSON object of texts. Raises TypeError for something else."""
    if not isinstance(value, dict):
        raise TypeError(f"a table is {type(value).__name__}")
    pairs: dict[Any, Any] = value
    return {str(name): str(text) for name, text in pairs.items()}


def _state(implementation: Implementation) -> str:
    if not implementation.supported:
        return implementation.unsupported_reason
    own = implementation.op.registry.fingerprinter.own_factors(implementation)
    text = json.dumps(own, sort_keys=True)
    return f"available ({hashlib.sha256(text.encode()).hexdigest()[:16]})"
