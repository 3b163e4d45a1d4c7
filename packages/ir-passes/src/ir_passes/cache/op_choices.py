"""Which implementations a compiled model's ops would be chosen from, and what each rests on.

A choice follows from the order of providers, from what timing preferred, from what each is, and
from arguments that the guards fix. If order, preference, availability and fingerprints are as they
were, so is every choice. What passes make of an op follows from its declaration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ir_core import Implementation, IrOp, Registry
from ir_core.implementation import NATIVE
from ir_passes.errors import CannotStoreError


@dataclass(frozen=True, slots=True)
class OpChoices:
    """The ops of a compiled model.

    Attributes:
        declared: for each op the facts of its declaration, as texts.
        ops: for each op its providers in the order in which they are asked, native last, each with
            the reason why it cannot run here ("" if it can) and its own factors.
        files: digests and versions of all that these import, by factor.
        tuned: for each op that timing changed, the provider preferred by signature of calls; where
            it goes by rows, the ranges with theirs.
    """

    declared: Mapping[str, Mapping[str, str]]
    ops: Mapping[str, Sequence[tuple[str, str, Mapping[str, str]]]]
    files: Mapping[str, str]
    tuned: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, names: Iterable[str], modules: Iterable[str], registry: Registry) -> OpChoices:
        """The choices in force now, and the files that some further modules rest on.

        Raises:
            CannotStoreError: an implementation or a module has no fingerprint; says which and why.
        """
        files: dict[str, str] = {}
        for module in sorted(modules):
            files |= _files_of(module, registry)
        declared: dict[str, Mapping[str, str]] = {}
        ops: dict[str, list[tuple[str, str, Mapping[str, str]]]] = {}
        for name in sorted(set(names)):
            op = registry[name]
            declared[name] = _declared(op)
            rows = ops[name] = []
            for implementation in _asked(op, registry):
                fingerprint = implementation.fingerprint()
                if fingerprint.digest is None:
                    raise CannotStoreError(
                        f"Provider `{implementation.provider}` of `{name}` has no fingerprint: "
                        f"{fingerprint.reason}."
                    )
                own = registry.fingerprinter.own_factors(implementation) or {}
                rows.append((implementation.provider, implementation.unsupported_reason, own))
                files |= {key: text for key, text in fingerprint.factors if key not in own}
        return cls(declared, ops, files, _tuned(ops, registry))

    def failure(self, registry: Registry) -> str | None:
        """What is, or may be, chosen otherwise now; None if all is the same."""
        for name, recorded in self.ops.items():
            op = registry.get(name)
            if op is None:
                return f"op `{name}` is not registered"
            reason = _redeclared(op, self.declared.get(name, {})) or _difference(
                op, recorded, registry
            )
            if reason is not None:
                return reason
        retuned = _retuned(_tuned(self.ops, registry), self.tuned)
        if retuned is not None:
            return retuned
        changed = registry.fingerprinter.changed(self.files)
        return None if changed is None else f"{changed} has changed, on which an op rests"

    def to_json(self) -> object:
        """Plain JSON types."""
        return {
            "declared": {name: dict(facts) for name, facts in self.declared.items()},
            "ops": {name: [*map(list, rows)] for name, rows in self.ops.items()},
            "files": dict(self.files),
            "tuned": {name: dict(rows) for name, rows in self.tuned.items()},
        }

    @classmethod
    def from_json(cls, value: Any) -> OpChoices:
        """The choices that `to_json` wrote."""
        return cls(value["declared"], value["ops"], value["files"], value["tuned"])


def _tuned(names: Iterable[str], registry: Registry) -> Mapping[str, Mapping[str, str]]:
    table = registry.priorities.tuned
    return {name: table.changed_rows(name) for name in names if table.changes(name)}


def _retuned(
    now: Mapping[str, Mapping[str, str]], recorded: Mapping[str, Mapping[str, str]]
) -> str | None:
    for name in sorted({*now, *recorded}):
        found, before = now.get(name, {}), recorded.get(name, {})
        for signature in sorted({*found, *before}):
            if found.get(signature) != before.get(signature):
                default = "the priority's"
                return (
                    f"timing prefers {found.get(signature, default)} for `{name}` with "
                    f"{signature}, and preferred {before.get(signature, default)}"
                )
    return None


def _files_of(module: str, registry: Registry) -> Mapping[str, str]:
    fingerprint = registry.fingerprinter.fingerprint_module(module)
    if fingerprint.digest is None:
        raise CannotStoreError(f"Module `{module}` has no fingerprint: {fingerprint.reason}.")
    return dict(fingerprint.factors)


def _declared(op: IrOp) -> Mapping[str, str]:
    dims = ((name, sorted(each)) for name, each in op.token_dims.items())
    return {
        "schema": op.schema.text,
        "activations": str(op.activations),
        "inplace": str(op.inplace_text),
        "mutates": str(op.mutates),
        "splits": str(op.splits),
        "token dims": str(sorted(dims)),
        "weights": str(op.weights),
    }


def _redeclared(op: IrOp, recorded: Mapping[str, str]) -> str | None:
    for name, now in _declared(op).items():
        if recorded.get(name) != now:
            return f"`{name}` of op `{op.name}` is declared as {now}, was {recorded.get(name)}"
    return None


def _asked(op: IrOp, registry: Registry) -> Sequence[Implementation]:
    names = dict.fromkeys((*registry.candidates(op), NATIVE))
    return [op.implementations[name] for name in names]


def _difference(
    op: IrOp, recorded: Sequence[tuple[str, str, Mapping[str, str]]], registry: Registry
) -> str | None:
    found = _asked(op, registry)
    before = [provider for provider, _, _ in recorded]
    asked = [each.provider for each in found]
    if asked != before:
        return f"providers of `{op.name}` are asked in the order {asked}, and were in {before}"
    for implementation, (provider, reason, factors) in zip(found, recorded, strict=True):
        if implementation.unsupported_reason != reason:
            is_now = implementation.unsupported_reason or "available"
            return (
                f"provider `{provider}` of `{op.name}` is {is_now}, and was {reason or 'available'}"
            )
        own = registry.fingerprinter.own_factors(implementation) or {}
        for name in {**factors, **own}:
            if own.get(name) != factors.get(name):
                return f"`{name}` of provider `{provider}` of `{op.name}` has changed"
        # Compiled code calls it by this op, which is registered only when someone asks for it.
        _ = implementation.torch_op
    return None
