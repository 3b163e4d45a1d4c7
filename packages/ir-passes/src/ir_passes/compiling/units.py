"""One compiled piece, and what there is to say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import sympy
from torch.fx import GraphModule, Node

from ir_passes.backends.base import Backend, BackendContext, CompiledPiece, GraphForm
from ir_passes.base import SizeRange
from ir_passes.compiling.copies import copy_module, specialize
from ir_passes.dialect import Dialect
from ir_passes.errors import BackendError, PassesError
from ir_passes.guards import guards_since, num_guards
from ir_passes.lowering.clones import CloneRow, check_outputs_apart, eliminate_clones
from ir_passes.lowering.lower import lower
from ir_passes.lowering.selections import NodeSelection
from ir_passes.metadata import fake_mode_of, fake_of
from ir_passes.shape_guard import ShapeGuard
from ir_passes.splitting.split import Piece


@dataclass(frozen=True, slots=True)
class LoweredPiece:
    """A piece in the form that its backend asked for."""

    module: GraphModule
    selections: tuple[NodeSelection, ...] = ()
    clones: tuple[CloneRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """Compiled code that all pieces of one structure share.

    Attributes:
        piece: the piece that it was made from.
        call: takes the piece's inputs as a list.
        lowered: the graph that was compiled; a backend may have changed it.
        guards: what lowering and compiling assumed about sizes.
        seconds: of lowering and compiling.
    """

    piece: Piece
    call: CompiledPiece = field(repr=False)
    lowered: LoweredPiece = field(repr=False)
    guards: tuple[ShapeGuard, ...]
    seconds: float


def lower_piece(module: GraphModule, dialect: Dialect, piece: Piece) -> LoweredPiece:
    """Lower a copy of a piece's graph and remove the clones that it does not need.

    Raises:
        LoweringError: see `lower`; also results that would share memory.
    """
    before = _outputs(module)
    lowered = lower(module, dialect)
    overwritable = piece.overwritable_placeholders(module)
    rows = eliminate_clones(module.graph, lowered.clones, overwritable)
    check_outputs_apart(before, _outputs(module))
    module.recompile()
    return LoweredPiece(module, lowered.selections, rows)


def compile_piece(
    piece: Piece,
    backend: Backend,
    dialect: Dialect,
    sizes: SizeRange,
    static: Mapping[sympy.Symbol, int],
    options: Mapping[str, object],
) -> Unit:
    """Bring a piece into the backend's form and let it compile that.

    Args:
        sizes: the token counts that the code is for.
        static: the value of each symbol if it is one size only; empty for dynamic shapes.

    Raises:
        LoweringError: see `lower`.
        BackendError: the backend failed; names it and the piece.
    """
    started = perf_counter()
    module = specialize(piece.module, static) if static else copy_module(piece.module)
    mode = fake_mode_of(module.graph)
    num_before = num_guards(mode)
    lowered = LoweredPiece(module)
    if backend.form is GraphForm.LOWERED:
        lowered = lower_piece(module, dialect, piece)
    lowering = guards_since(mode, num_before, f"lowering of {piece.name}")
    num_before += len(lowering)
    context = BackendContext(piece.name, dialect, sizes, piece.overwritable, options)
    # Backends may change their graph; what was lowered is kept to be shown.
    kept = LoweredPiece(copy_module(module), lowered.selections, lowered.clones)
    try:
        call = backend.compile(module, context)
    except PassesError:
        raise
    except Exception as error:
        raise BackendError(
            f"Backend `{backend.name}` failed on {piece.name}: {type(error).__name__}: {error}"
        ) from error
    guards = (*lowering, *guards_since(mode, num_before, f"{backend.name} on {piece.name}"))
    return Unit(piece, call, kept, guards, perf_counter() - started)


def _outputs(module: GraphModule) -> list[Any]:
    """The fake value of each output; one node may be several of them."""
    outputs: Any = module.graph.output_node().args[0]
    return [fake_of(each) if isinstance(each, Node) else each for each in outputs]
