"""`ir explain --autotuned`: puts the choices that a server has stored for one op in force."""

from collections.abc import Mapping
from pathlib import Path

from ir_core.autotuning.choice_file import ChoiceFile
from ir_core.autotuning.grounds import COMPILER, ENDS, SIZES, changed_file, difference, facts_of
from ir_core.autotuning.machine import machine_facts
from ir_core.autotuning.recorder import why_once
from ir_core.op import IrOp


def adopt_stored(
    op: IrOp, directory: Path, *, is_fused: bool, machine: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Adopt the choices for `op` that hold here; returns why others, or all, do not.

    Args:
        op: whose choices.
        directory: where a server keeps them.
        is_fused: look at those for a compiled model.
        machine: this one by default.
    """
    loaded = ChoiceFile(directory, machine_facts() if machine is None else machine).load()
    remarks = [] if loaded.reason is None else [loaded.reason]
    once = why_once(op)
    if once is not None:
        remarks.append(f"it is not timed: {once}")
    now = facts_of(op, {}, is_fused=is_fused)
    for each in loaded.choices:
        if each.choice.op != op.name:
            continue
        changed = difference(_compared(now), _compared(each.grounds.facts))
        changed = changed or changed_file(op, each.grounds.files)
        if changed is None:
            op.registry.priorities.adopt_tuned([each.choice])
        else:
            remarks.append(f"the choice for {each.choice.signature} is not used: {changed}")
    return tuple(remarks)


def _compared(facts: Mapping[str, str]) -> Mapping[str, str]:
    # Which numbers of tokens matter, and what compiles, is the server's to say, not of one who only
    # looks.
    return {name: text for name, text in facts.items() if name not in (SIZES, ENDS, COMPILER)}
