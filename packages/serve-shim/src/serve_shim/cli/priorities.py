"""Hands the configured priorities to the IR, or says which of them is wrong and who set it.

It imports torch through ir_core, and nothing of the engine, the server or a model.
"""

from __future__ import annotations

import ir_core as ir
from ir_core.errors import IrError, UnknownProviderError
from serve_shim.compilation.plan import plan_compilation
from serve_shim.errors import SettingsError
from serve_shim.settings import Resolved
from serve_shim.settings.wrong_setting import WrongSettingError, raise_problems

_PATH = ("kernel_config", "ir_op_priority")


def apply_priorities(resolved: Resolved) -> None:
    """Check every configured priority against what is registered, then set them process-wide.

    So is the platform's default for the way in which the model is going to run.

    Raises SettingsError that names the source, with a suggestion, for an unknown op or provider,
    for a plug-in that cannot be loaded, and for options of compilation that contradict each other.
    """
    priorities = resolved.settings.kernel_config.ir_op_priority
    try:
        ir.load_plugins()
    except IrError as error:
        raise SettingsError(str(error)) from error
    problems: list[WrongSettingError] = []
    for op, providers in priorities.items():
        path = (*_PATH, op)
        try:
            ir.check_priority({op: providers})
        except IrError as error:
            states = describe_providers(op) if isinstance(error, UnknownProviderError) else ""
            problems.append(WrongSettingError(f"{error}{states}", resolved.source_of(path), path))
    raise_problems(problems)
    ir.set_execution_mode(plan_compilation(resolved.settings).execution_mode)
    ir.set_priority(priorities)


def describe_providers(op: str) -> str:
    """One indented line per provider of an op: whether it can run here, and if not, why."""
    lines: list[str] = []
    for name, implementation in ir.registry()[op].implementations.items():
        reason = implementation.unsupported_reason
        state = "can run here" if implementation.supported else f"cannot run here: {reason}"
        lines.append(f"\n    {name}: {state}")
    return "".join(lines)
