"""Runs a pipeline on one graph: checks each pass's work, times it, dumps it, names who failed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from ir_passes.base import Pass, PassContext, PassResult
from ir_passes.errors import PassError, PassesError
from ir_passes.guards import guards_since, num_guards
from ir_passes.metadata import fake_mode_of, fake_of
from ir_passes.pipeline import Entry, Pipeline
from ir_passes.printer import print_graph
from ir_passes.report import Effect, PassReport, PipelineReport
from ir_passes.verifier import verify

_logger = logging.getLogger("ir_passes.pipeline")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How closely a run is watched.

    Attributes:
        verify_each: check every fake value after each pass, not only of what it changed, and run
            each idempotent pass again.
        dump_path: directory for the graph's text, before the first pass and after each one.
    """

    verify_each: bool = False
    dump_path: Path | None = None


def run_pipeline(
    pipeline: Pipeline,
    module: GraphModule,
    context: PassContext,
    options: RunOptions = RunOptions(),
) -> PipelineReport:
    """Run the enabled passes on a functional graph, in place, and report on every one.

    Raises:
        VerificationError: the graph was not in the dialect to begin with.
        PassError: a pass failed, left a broken graph, or misreported; names it.
    """
    started = perf_counter()
    verify(module.graph, context.dialect, None if options.verify_each else ())
    run = _Run(module.graph, context, options)
    run.dump("traced")
    reports = tuple(run.step(entry) for entry in pipeline)
    module.recompile()
    warnings = (*pipeline.conflicts(), *_unmatched(pipeline, reports))
    for warning in warnings:
        _logger.warning("%s", warning)
    return PipelineReport(reports, warnings, perf_counter() - started)


class _Run:
    def __init__(self, graph: Graph, context: PassContext, options: RunOptions) -> None:
        self._graph = graph
        self._context = context
        self._options = options
        self._mode = fake_mode_of(graph)
        self._done: list[str] = []
        self._num_dumps = 0

    def step(self, entry: Entry) -> PassReport:
        """Run one pass, unless it is disabled or does not apply."""
        effect, reason = entry.effect, entry.reason
        refusal = entry.step.refusal(self._context) if entry.is_enabled else None
        if refusal is not None:
            effect, reason = Effect.DOES_NOT_APPLY, refusal
        facts = (entry.name, entry.step.describe_options(), entry.requested_by, effect, reason)
        if effect is not Effect.RAN:
            return PassReport(*facts)
        guards = num_guards(self._mode)
        result, seconds = self._checked(entry.step)
        self._done.append(entry.name)
        self.dump(entry.name)
        return PassReport(*facts, result, seconds, guards_since(self._mode, guards, entry.name))

    def dump(self, name: str) -> None:
        """Write the graph's text, numbered in the order of the run."""
        if self._options.dump_path is None:
            return
        self._options.dump_path.mkdir(parents=True, exist_ok=True)
        path = self._options.dump_path / f"{self._num_dumps:02}-{name}.txt"
        path.write_text(print_graph(self._graph, self._context.dialect))
        self._num_dumps += 1

    def _checked(self, step: Pass) -> tuple[PassResult, float]:
        before = {node: _State.of(node) for node in self._graph.nodes}
        started = perf_counter()
        try:
            result = step.run(self._graph, self._context)
            seconds = perf_counter() - started
            changed = _changed_nodes(self._graph, before)
            self._check_report(result, bool(changed) or len(before) != len(self._graph.nodes))
            verify(
                self._graph, self._context.dialect, None if self._options.verify_each else changed
            )
            if self._options.verify_each and step.is_idempotent:
                self._check_idempotence(step)
        except Exception as error:
            raise PassError(self._blame(step, error)) from error
        return result, seconds

    def _check_report(self, result: PassResult, is_changed: bool) -> None:
        if bool(result.changed) is not is_changed:
            did = "did change" if is_changed else "did not change"
            raise PassError(f"it reports {result.changed} changes, but the graph {did}")

    def _check_idempotence(self, step: Pass) -> None:
        again = step.run(self._graph, self._context).changed
        if again:
            raise PassError(
                f"it changed {again} places when it ran again, but claims to be idempotent"
            )

    def _blame(self, step: Pass, error: Exception) -> str:
        after = f" after {', '.join(f'`{each}`' for each in self._done)}" if self._done else ""
        kind = "" if isinstance(error, PassesError) else f"{type(error).__name__}: "
        return (
            f"Pass `{step.name}` ({step.describe_options() or 'default options'}) failed{after}: "
            f"{kind}{error}"
        )


def _unmatched(pipeline: Pipeline, reports: Sequence[PassReport]) -> list[str]:
    warnings: list[str] = []
    for entry, report in zip(pipeline, reports, strict=True):
        if not entry.is_wanted or report.result.changed:
            continue
        cause = report.reason or f"it found nothing to change ({len(report.near_misses)} near)"
        warnings.append(
            f"Pass `{entry.name}`, requested by {entry.requested_by}, changed nothing: {cause}."
        )
    return warnings


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    target: Any
    arguments: Any
    fake: Any

    @classmethod
    def of(cls, node: Node) -> _State:
        arguments = map_aggregate((node.args, node.kwargs), _freeze)  # type: ignore[arg-type]
        return cls(node.target, arguments, fake_of(node))

    def is_state_of(self, node: Node) -> bool:
        now = _State.of(node)
        return (
            self.target is now.target and self.arguments == now.arguments and self.fake is now.fake
        )


def _freeze(argument: Any) -> Any:
    # Comparing symbolic sizes would add a guard.
    return argument if isinstance(argument, Node) else repr(argument)


def _changed_nodes(graph: Graph, before: Mapping[Node, _State]) -> list[Node]:
    """New and altered nodes, and their users: a value that changed may have staled theirs."""
    changed = [
        node for node in graph.nodes if node not in before or not before[node].is_state_of(node)
    ]
    users = (user for node in changed for user in node.users)
    return list(dict.fromkeys((*changed, *users)))
