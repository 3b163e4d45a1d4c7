"""The default registry, whose ops live under `torch.ops.ir`, and its methods as functions."""

import os
from collections.abc import Iterable

from ir_core.plugins import PluginLoader
from ir_core.registry import Registry
from ir_core.selection import ExecutedSelection
from ir_core.selection import format_selections as _format

_default = Registry("ir", plugins=PluginLoader(os.environ))

register_op = _default.register_op
select = _default.select
selections = _default.selections
priority = _default.priorities.override
priorities = _default.resolved_priorities
set_priority = _default.priorities.set
check_priority = _default.priorities.check
set_execution_mode = _default.priorities.set_mode
set_batch_invariant = _default.set_batch_invariant
platform = _default.platform
load_plugins = _default.load_plugins


def registry() -> Registry:
    """The registry that `ir.register_op`, `ir.select` and `ir.ops` mean."""
    return _default


def format_selections(rows: Iterable[ExecutedSelection] | None = None) -> str:
    """Text table of executed selections, by default all of the default registry's."""
    return _format(_default.selections() if rows is None else rows)
