"""Owns where a choice by the number of rows may change, so that eager and compiled steps agree.

It refuses an end that would part a step from the size that it runs at, or a row from its bits.
"""

from collections.abc import Iterable, Mapping, Sequence

import ir_core as ir
from ir_passes.config import CompilationConfig
from serve_shim.compilation.plan import plan_compilation, plan_graphs
from serve_shim.engine.config import EngineConfig
from serve_shim.settings.tree import Settings


def blocked_ends(
    counts: Iterable[int], settings: Settings, bounds: EngineConfig
) -> Mapping[int, str]:
    """Which of some numbers of tokens no range of rows may end with, each with the reason.

    Raises `SettingsError` for a size to capture that no step has.
    """
    plan = plan_compilation(settings)
    reason = None
    if ir.registry().is_batch_invariant():
        reason = "batch invariance is on, and bits of a row may not depend on their number"
    elif plan.is_compiled:
        reason = _other_rows(plan.config)
    if reason is not None:
        return dict.fromkeys(counts, reason)
    table = plan_graphs(plan.config, bounds)
    sizes = () if table is None else table.sizes
    return {
        count: f"a step of {count} runs at the captured size {padded}"
        for count in counts
        if (padded := padded_size(count, sizes)) != count
    }


def padded_size(count: int, sizes: Sequence[int]) -> int:
    """The captured size at which a step of so many tokens runs; itself if that is none."""
    return next((size for size in sorted(sizes) if size >= count), count)


def _other_rows(config: CompilationConfig) -> str | None:
    """Why a compiled model's calls have other rows than in eager mode; None if they have not."""
    # They cost a start time that only what is compiled needs.
    from ir_core.groups import axis_sizes  # noqa: PLC0415
    from ir_passes.base import PassContext  # noqa: PLC0415
    from ir_passes.default_pipeline import build_pipeline  # noqa: PLC0415
    from ir_passes.plugins import load_additions  # noqa: PLC0415

    pipeline = build_pipeline(config.pass_config, load_additions())
    name = pipeline.changing_rows(PassContext(axes=axis_sizes()))
    return None if name is None else f"pass `{name}` gives calls a part of a step's rows"
