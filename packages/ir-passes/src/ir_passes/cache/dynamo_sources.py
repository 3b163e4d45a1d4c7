"""Translates Dynamo's sources, where it found an object, to paths that another process can walk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from torch._dynamo import source as sources

from ir_passes.cache.constants import describe_constant
from ir_passes.cache.guard_paths import Step
from ir_passes.cache.guard_tree import Path
from ir_passes.cache.op_code import is_op_scope
from ir_passes.errors import CannotStoreError


class SourcePaths:
    """The paths of the sources of one trace.

    Args:
        capture: Dynamo's output for the traced function.
    """

    def __init__(self, capture: Any) -> None:
        self._globals: dict[str, Any] = capture.f_globals
        self._modules: Mapping[str, str] = capture.import_sources
        self._builtins: str | None = capture.output_graph.name_of_builtins_dict_key_in_fglobals
        self._names = frozenset(name for code in capture.traced_code for name in _names(code))
        self._known: dict[Any, Path | None] = {}

    def path(self, source: Any) -> Path | None:
        """The path of a source; None for what torch's or ir_core's version alone determines.

        Raises:
            CannotStoreError: no path leads there in another process.
        """
        if source not in self._known:
            self._known[source] = self._translate(source)
        return self._known[source]

    def _translate(self, source: Any) -> Path | None:
        kind: Any = type(source)
        if kind is sources.LocalSource:
            return (["local", source.local_name],)
        if kind is sources.GlobalSource:
            return self._global(source.global_name)
        if kind is sources.ImportSource:
            return _module(source.module_name)
        if kind is sources.SkipGuardSource:
            # Python's own modules, on which Dynamo makes no guards either.
            return None
        return self._chained(source)

    def _chained(self, source: Any) -> Path | None:
        kind: Any = type(source)
        if kind in _TRANSPARENT:
            return self.path(source.base)
        if kind not in _STEPS:
            raise CannotStoreError(f"`{source.name}` is a {kind.__name__}, which has no path")
        base = self.path(source.base)
        if base is None:
            return None
        try:
            return (*base, *_STEPS[kind](source))
        except CannotStoreError as error:
            raise CannotStoreError(f"`{source.name}` has no path: {error}") from error

    def _global(self, name: str) -> Path | None:
        if name in self._modules:
            return _module(self._modules[name])
        if name == self._builtins:
            return (["module", "builtins"], ["names"])
        if is_op_scope(self._globals.get(name)):
            return None
        module: Any = sys.modules.get(self._globals.get("__name__", ""))
        if module is None or vars(module) is not self._globals:
            raise CannotStoreError(f"the global `{name}` is of no module that is imported")
        if name not in self._names:
            raise CannotStoreError(f"the global `{name}` is Dynamo's own, and of this process")
        return (["module", module.__name__], ["attribute", name])


def _module(name: str) -> Path | None:
    # Dynamo's own replacements of Python functions come with torch, and are not imported later.
    is_dynamo = name == "torch._dynamo" or name.startswith("torch._dynamo.")
    return None if is_dynamo else (["module", name],)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def _attribute(source: Any) -> Sequence[Step]:
    return (["attribute", source.member],)


def _default(source: Any) -> Sequence[Step]:
    return (["attribute", source.field], ["item", source.idx_key])


def _item(source: Any) -> Sequence[Step]:
    key = source.unpack_slice() if source.index_is_slice else source.index
    return (["item", describe_constant(key)],)


def _dict_item(kind: str) -> Callable[[Any], Sequence[Step]]:
    def steps(source: Any) -> Sequence[Step]:
        if isinstance(source.index, sources.ConstDictKeySource):
            return (["value at", source.index.index],)
        return ([kind, describe_constant(source.index)],)

    return steps


_TRANSPARENT = {
    sources.NNModuleSource,
    sources.UnspecializedNNModuleSource,
    sources.UnspecializedBuiltinNNModuleSource,
}
_STEPS: Mapping[Any, Callable[[Any], Sequence[Step]]] = {
    sources.AttrSource: _attribute,
    sources.CellContentsSource: _attribute,
    sources.ParamBufferSource: _attribute,
    sources.UnspecializedParamBufferSource: _attribute,
    sources.GradSource: _attribute,
    sources.GenericAttrSource: lambda source: (["own attribute", source.member],),
    sources.TypeSource: lambda _: (["type"],),
    sources.TypeDictSource: lambda _: (["names"],),
    sources.TypeMROSource: lambda _: (["attribute", "__mro__"],),
    sources.CodeSource: lambda _: (["attribute", "__code__"],),
    sources.ClosureSource: lambda _: (["attribute", "__closure__"],),
    sources.NamedTupleFieldsSource: lambda _: (["attribute", "_fields"],),
    sources.DefaultsSource: _default,
    sources.GetItemSource: _item,
    sources.ListGetItemSource: lambda source: (["list item", describe_constant(source.index)],),
    sources.ConstDictKeySource: lambda source: (["key at", source.index],),
    sources.DictGetItemSource: _dict_item("item"),
    sources.DictSubclassGetItemSource: _dict_item("dict item"),
}
