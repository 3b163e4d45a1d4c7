"""`ir list`: every op and implementation, who registered it, and whether it can run here."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

import ir_core as ir
from ir_core.implementation import Implementation
from ir_core.op import IrOp


def run(options: argparse.Namespace) -> int:
    """Print the table, or JSON; an unknown op is an UnknownOpError."""
    ir.load_plugins()
    registry = ir.registry()
    ops = [registry[name] for name in options.op] or [registry[name] for name in sorted(registry)]
    if options.json:
        print(
            json.dumps({"platform": ir.platform().name, "ops": [_op(op) for op in ops]}, indent=2)
        )
    else:
        print(_text(ops))
    return 0


def _op(op: IrOp) -> dict[str, Any]:
    return {
        "name": op.name,
        "schema": f"{op.name}{op.schema.text}",
        "origin": op.native.origin,
        "location": op.native.location,
        "weights": list(op.weights),
        "layouts": list(op.layouts) if op.weights else [],
        "priority": list(ir.registry().priorities.resolve(op).providers),
        "providers": [_implementation(each) for each in op.implementations.values()],
    }


def _implementation(implementation: Implementation) -> dict[str, Any]:
    return {
        "provider": implementation.provider,
        "supported": implementation.supported,
        "reason": implementation.unsupported_reason,
        "origin": implementation.origin,
        "location": implementation.location,
        "properties": _properties(implementation),
        "layouts": list(implementation.layouts) if implementation.op.weights else [],
    }


def _properties(implementation: Implementation) -> list[str]:
    flags = ("inplace", "opaque", "batch_invariant")
    named = [flag.replace("_", "-") for flag in flags if getattr(implementation, flag)]
    return named + (["partial"] if implementation.supports_args is not None else [])


def _layouts(implementation: Implementation) -> list[str]:
    has_choice = bool(implementation.op.weights)
    return [f"reads {' and '.join(implementation.layouts)}"] if has_choice else []


def _text(ops: Iterable[IrOp]) -> str:
    lines = [f"platform {ir.platform().name}"]
    for op in ops:
        lines += ["", f"{op.name}{op.schema.text}"]
        if op.weights:
            lines.append(f"  {', '.join(op.weights)} in layout {' or '.join(op.layouts)}")
        width = max(len(provider) for provider in op.implementations)
        origins = max(len(each.origin) for each in op.implementations.values())
        for provider, implementation in op.implementations.items():
            verdict = "runs here" if implementation.supported else "cannot run here"
            properties = [*_properties(implementation), *_layouts(implementation)]
            if implementation.supported and properties:
                verdict += f" ({', '.join(properties)})"
            if not implementation.supported:
                verdict += f": {implementation.unsupported_reason}"
            lines.append(f"  {provider:{width}}  {implementation.origin:{origins}}  {verdict}")
    return "\n".join(lines)
