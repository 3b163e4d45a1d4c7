"""What is to be compiled: a model, an example call, and what later calls may differ in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ir_passes.config import CompilationConfig
from ir_passes.tracing.dynamic_dims import DynamicDims, target_of
from ir_passes.tracing.resizing import resize_tokens


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """The arguments of `ir_passes.compile`.

    Attributes:
        function: a module or a function.
        args: example arguments.
        kwargs: the same by name.
        dims: which dims of them vary.
        limits: greatest size of each label of a dim.
        config: how to compile.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    dims: DynamicDims = field(default_factory=lambda: MappingProxyType({}))
    limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    config: CompilationConfig = field(default_factory=CompilationConfig)

    @property
    def target(self) -> Callable[..., Any]:
        """What a call runs, with the signature of the call."""
        return target_of(self.function)

    def resized(self, num_tokens: int) -> CompileRequest:
        """The same request with an example of another token count."""
        args, kwargs = resize_tokens(self.function, self.args, self.kwargs, self.dims, num_tokens)
        return replace(self, args=args, kwargs=kwargs)
