"""Owns what of a compiled model must be equal on all ranks: its programs, collectives included."""

import hashlib
import json
from typing import TYPE_CHECKING

from serve_shim.ranks.facts import Facts

if TYPE_CHECKING:
    from ir_passes.programs.report import CompileReport, ProgramReport


def program_facts(report: "CompileReport") -> Facts:
    """By program: how often each op is there, and a digest of all its selections in order.

    The order of collectives is part of it: ranks that disagree would wait for each other, or add up
    what does not belong together.
    """
    facts: dict[str, str] = {"backend": report.backend}
    for program in report.programs:
        facts[f"program {program.sizes}"] = _described(program)
    return facts


def _described(program: "ProgramReport") -> str:
    rows = [
        [piece.name, piece.num_uses, [[row.op, row.used, row.provider] for row in piece.selections]]
        for piece in program.pieces
    ]
    splitting = [[row.op, row.used, row.provider] for row in program.splitting]
    passes = [[each.name, each.effect.value, each.result.changed] for each in program.passes.passes]
    text = json.dumps([rows, splitting, passes])
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{program.num_pieces} pieces, {len(splitting)} splitting ops, selections {digest}"
