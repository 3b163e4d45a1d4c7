"""Structural identity of pieces: a text that two pieces share if and only if they compile alike.

Names of nodes and symbols are replaced by their order of appearance. Everything else that decides
the compiled code is spelled out: targets, constants with their types, dtypes, shapes, strides,
offsets, which values share memory, what may be overwritten, and the bounds of every symbol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from ir_passes.dialect import Dialect
from ir_passes.donation import donated_arguments
from ir_passes.metadata import fake_of
from ir_passes.splitting.split import Piece
from ir_passes.symbols import SymbolNames


def structure_of(piece: Piece, dialect: Dialect) -> str:
    """The piece's structure as text; equal texts mean interchangeable compiled code."""
    return _Description(piece, dialect).text()


class _Description:
    def __init__(self, piece: Piece, dialect: Dialect) -> None:
        self._piece = piece
        self._dialect = dialect
        self._symbols = SymbolNames()
        self._bounds: dict[str, str] = {}
        self._storages: dict[int, int] = {}
        self._places: dict[Node, str] = {}

    def text(self) -> str:
        graph = self._piece.module.graph
        for number, node in enumerate(graph.nodes):
            self._places[node] = f"%{number}"
        lines = [f"{self._places[node]} {self._line(node)}" for node in graph.nodes]
        bounds = [f"{name} in {bound}" for name, bound in self._bounds.items()]
        overwritable = f"may overwrite {sorted(self._piece.overwritable)}"
        return "\n".join([*lines, *bounds, overwritable])

    def _line(self, node: Node) -> str:
        fake = self._value(fake_of(node))
        if node.op == "get_attr":
            return f"constant {_content(self._piece.module, str(node.target))} {fake}"
        arguments = self._argument((node.args, node.kwargs))
        donated = ",".join(donated_arguments(node, self._dialect))
        return f"{node.op} {_spell_target(node)} {arguments} {fake} donates({donated})"

    def _argument(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._places[value]
        if isinstance(value, list | tuple):
            return f"{type(value).__name__}({', '.join(map(self._argument, value))})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{k}: {self._argument(v)}' for k, v in value.items())}}}"
        if isinstance(value, SymInt | SymFloat | SymBool):
            return self._value(value)
        return f"{type(value).__name__}:{value!r}"

    def _value(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, list | tuple):
            return f"({', '.join(map(self._value, value))})"
        if isinstance(value, SymInt | SymFloat | SymBool):
            return self._number(value)
        return f"{type(value).__name__}:{value!r}"

    def _tensor(self, value: Tensor) -> str:
        facts = [str(value.dtype), str(value.device), str(value.layout)]
        facts.append(self._numbers(value.shape))
        if value.layout is torch.strided:
            storage = value.untyped_storage()._cdata
            place = self._storages.setdefault(storage, len(self._storages))
            facts += [self._numbers(value.stride()), self._number(value.storage_offset())]
            facts.append(f"memory {place}")
        flags = [f"{name}" for name in ("is_conj", "is_neg") if getattr(value, name)()]
        return f"[{' '.join([*facts, *flags])}]"

    def _numbers(self, values: Any) -> str:
        return f"({', '.join(map(self._number, values))})"

    def _number(self, value: Any) -> str:
        text = self._symbols.spell(value)
        if isinstance(value, SymInt) and value.node.expr.is_Symbol:
            environment: ShapeEnv = value.node.shape_env
            self._bounds[text] = str(environment.var_to_range.get(value.node.expr))
        return text


def _spell_target(node: Node) -> str:
    target = node.target
    if isinstance(target, str):
        return ""  # the name of an input
    return f"{getattr(target, '__module__', '')}.{target}"


def _content(module: GraphModule, name: str) -> str:
    value: Any = attrgetter(name)(module)
    if not isinstance(value, Tensor):
        return repr(value)
    plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()
