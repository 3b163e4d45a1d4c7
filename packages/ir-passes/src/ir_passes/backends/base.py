"""What a backend is given and what it gives back. Owns no compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar

from torch.fx import GraphModule

from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode
from ir_passes.base import SizeRange
from ir_passes.dialect import Dialect
from ir_passes.errors import CannotStoreError


class GraphForm(StrEnum):
    """The form of graph that a backend asks for."""

    FUNCTIONAL = "functional"
    """IR ops as single nodes in their `default` form; nothing is written."""
    LOWERED = "lowered"
    """Implementations in the place of IR ops; in-place kernels write where it is proven safe."""


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend may know besides the graph.

    Attributes:
        name: the piece's name, for messages and dumps.
        dialect: which nodes are IR ops.
        sizes: the token counts that the code is for; one size means static shapes.
        overwritable: positions of placeholders whose memory is dead after the piece.
        options: the user's options for this backend.
    """

    name: str
    dialect: Dialect = field(default_factory=Dialect)
    sizes: SizeRange = field(default_factory=SizeRange)
    overwritable: frozenset[int] = frozenset()
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_static(self) -> bool:
        """Whether the code is for one token count only."""
        return self.sizes.first == self.sizes.last


class Backend(ABC):
    """Compiles pieces. Out-of-tree ones are entry points in the group `ir_passes.backends`.

    An entry point names a subclass, which is made without arguments, or an instance.

    Attributes:
        name: what `compilation_config.backend` calls it.
        form: the form of graph that `compile` takes.
    """

    name: ClassVar[str]
    form: ClassVar[GraphForm] = GraphForm.LOWERED

    @abstractmethod
    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Compile one piece; the graph is the backend's to change.

        Every node has its fake value in `meta["val"]`. Placeholders are tensors and sizes; the
        graph returns a tuple.
        """

    def store(self, piece: CompiledPiece) -> StoredCode:
        """The code of a piece that this backend compiled, to be loaded in another process.

        Raises:
            CannotStoreError: the backend stores nothing, or not this piece; says why.
        """
        raise CannotStoreError(f"Backend `{self.name}` does not store its code.")

    def load(self, code: StoredCode) -> CompiledPiece:
        """The callable of stored code, without compiling.

        Raises:
            CannotStoreError: the backend stores nothing.
            BackendError: the code does not load here; says why.
        """
        raise CannotStoreError(f"Backend `{self.name}` does not store its code.")
