"""`ir explain`: the priority, every provider's verdict, the choice. The choice is `select`'s."""

import argparse
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ir_core as ir
from ir_core.autotuning.table import TunedChoice, format_timings
from ir_core.cli.arguments import (
    example_arguments,
    parse_assignments,
    parse_dtype,
    parse_shape,
)
from ir_core.cli.errors import UsageError
from ir_core.cli.stored_choices import adopt_stored
from ir_core.errors import NoImplementationError
from ir_core.op import IrOp
from ir_core.weight_layouts import LAYOUT


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one provider says to the arguments; `source` says who put it in the priority.

    `layouts` are the weight layouts that it reads; none for an op without weights.
    """

    provider: str
    source: str
    accepts: bool
    reason: str
    origin: str
    layouts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a call gets the implementation it gets; `selected` is None if no provider can run it.

    `layout` is that of the weights and `layouts` are all there are; None and none for an op without
    weights. `tuned` is what timing says about such calls, and `remarks` why stored choices are not
    used.
    """

    op: str
    platform: str
    mode: str
    arguments: dict[str, str]
    selected: str | None
    verdicts: tuple[Verdict, ...]
    layout: str | None
    layouts: tuple[str, ...]
    tuned: TunedChoice | None = None
    remarks: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The arguments, then a line per provider in order of priority, the chosen one marked."""
        lines = [f"{self.op} on {self.platform}, {self.mode} defaults"]
        lines += [f"  {name} = {value}" for name, value in self.arguments.items()]
        width = max(len(each.provider) for each in self.verdicts)
        sources = max(len(each.source) for each in self.verdicts)
        for each in self.verdicts:
            mark = "->" if each.provider == self.selected else "  "
            said = "accepts" if each.accepts else f"rejects: {each.reason}"
            if self.layout is not None and each.accepts:
                said += f", reads {' and '.join(each.layouts)}"
            lines.append(f"{mark} {each.provider:{width}}  {each.source:{sources}}  {said}")
        if self.layout is not None:
            lines.append(f"layout: {self.layout}, of {', '.join(self.layouts)}")
        if self.tuned is not None:
            lines += _times(self.tuned)
            out = self.tuned.rejections
            lines += [f"  not chosen: {each.provider}: {each.reason}" for each in out]
        lines += [f"autotuned: {each}" for each in self.remarks]
        lines.append(f"selected: {self.selected or 'none, the call is an error'}")
        return "\n".join(lines)


def run(options: argparse.Namespace) -> int:
    """Print the explanation; the exit code is 1 where no implementation can run."""
    ir.load_plugins()
    op = ir.registry()[options.op]
    assignments = parse_assignments(options.arg, op)
    arguments = example_arguments(
        op,
        parse_dtype(options.dtype),
        parse_shape(options.shape) if options.shape else None,
        assignments,
        _device(options.device),
    )
    if options.mode:
        ir.set_execution_mode(options.mode)
    remarks: tuple[str, ...] = ()
    if options.autotuned:
        is_fused = op.registry.priorities.mode == "inductor"
        remarks = adopt_stored(op, Path(options.autotuned), is_fused=is_fused)
    override = ir.priority({op.name: options.priority}) if options.priority else nullcontext()
    with override:
        if op.weights and LAYOUT not in assignments:
            arguments = _as_loaded(op, arguments)
        explanation = replace(explain(op, arguments), remarks=remarks)
    print(json.dumps(asdict(explanation), indent=2) if options.json else explanation.to_text())
    return 0 if explanation.selected else 1


def explain(op: IrOp, arguments: Sequence[Any]) -> Explanation:
    """Explain the choice for `arguments`, one per parameter, under the priority in force."""
    registry = op.registry
    named = zip(op.schema.names, arguments, strict=True)
    return Explanation(
        op.name,
        registry.platform().name,
        registry.priorities.mode,
        {name: _describe(value) for name, value in named},
        _selected(op, arguments),
        tuple(_verdict(op, provider, arguments) for provider in _in_order(op, arguments)),
        op.weight_layouts.of(arguments) if op.weights else None,
        op.layouts if op.weights else (),
        registry.priorities.tuned.find(op, arguments),
    )


def _times(tuned: TunedChoice) -> list[str]:
    lines = [f"timed: {tuned.to_text()}"]
    if tuned.as_written:
        written = format_timings(tuned.as_written)
        lines = [
            f"timed, compiled: {tuned.to_text()}",
            f"  as written, which decides nothing: {written}",
        ]
    if tuned.later:
        lines.append(f"  chosen by rows: {tuned.winners}")
    return [*lines, f"  {tuned.remark}"] if tuned.remark else lines


def _as_loaded(op: IrOp, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments as if the weights had been packed when they were loaded."""
    try:
        return op.with_layout(arguments, op.choose_layout(*arguments).layout)
    except NoImplementationError:
        return tuple(arguments)


def _selected(op: IrOp, arguments: Sequence[Any]) -> str | None:
    try:
        return ir.select(op, *arguments).provider
    except NoImplementationError:
        return None


def _in_order(op: IrOp, arguments: Sequence[Any]) -> list[str]:
    """Providers that a call asks, in that order, then those it never reaches."""
    return list(dict.fromkeys((*op.registry.candidates(op, arguments), *op.implementations)))


def _verdict(op: IrOp, provider: str, arguments: Sequence[Any]) -> Verdict:
    priority = op.registry.priorities
    sources = {each.provider: each.source for each in priority.resolve(op, arguments).entries}
    implementation = op.implementations[provider]
    reason = implementation.unsupported_reason or _refusal(op, provider, arguments)
    return Verdict(
        provider,
        sources.get(provider, "not in the priority"),
        not reason,
        reason,
        implementation.origin,
        implementation.layouts if op.weights else (),
    )


def _refusal(op: IrOp, provider: str, arguments: Sequence[Any]) -> str:
    with op.registry.priorities.override({op.name: [provider]}):
        try:
            rejections = ir.select(op, *arguments).rejections
        except NoImplementationError as error:
            return str(error)
    return next((each.reason for each in rejections if each.provider == provider), "")


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"No device `{name}` here: {str(error).splitlines()[0]}") from None


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    sizes = "x".join(str(size) for size in value.shape)
    return f"{str(value.dtype).removeprefix('torch.')}[{sizes}] on {value.device}"
