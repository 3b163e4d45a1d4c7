"""The settings tree as nodes that names are looked up in. It holds no values.

A node is a section (a nested model), a table (an open mapping) or a leaf. Every source spells a
name in its own way; `find` turns all of them into one canonical path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from serve_shim.settings.flag import Flag, InnerFlags, OpNames
from serve_shim.settings.source import Path
from serve_shim.settings.wrong_setting import WrongSettingError, nearest, suggest


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting; `type` is its annotation without Annotated and None."""

    path: Path
    type: object
    item: object = None
    """Type of an element where the setting is a list."""
    is_nullable: bool = False
    default: object = None
    help: str = ""
    flag: Flag | None = None

    @property
    def is_list(self) -> bool:
        """Whether the value is a list, always replaced whole."""
        return self.item is not None

    @property
    def is_secret(self) -> bool:
        """Whether the value must never be shown."""
        return SecretStr in (self.type, self.item)


@dataclass(frozen=True, slots=True)
class Table:
    """An open mapping: any key, each a setting of its own, of the type of `entry`."""

    path: Path
    entry: Leaf
    has_op_names: bool
    help: str = ""
    flag: Flag | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A nested model; `aliases` are further first names, each with the path it stands for."""

    path: Path
    children: Mapping[str, Leaf | Table | Section]
    aliases: Mapping[str, Path] = field(default_factory=dict[str, Path])
    help: str = ""
    flag: Flag | None = None


Node = Leaf | Table | Section


def to_schema(model: type[BaseModel]) -> Section:
    """The nodes of a model, its flags gathered as aliases at the top."""
    root = _section(model, (), "", None)
    aliases = {name: node.path for node in walk(root) for name in _alias_names(node)}
    return Section((), root.children, aliases)


settings_schema = cache(to_schema)
"""`to_schema`, remembered per model."""


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order of declaration."""
    yield node
    if isinstance(node, Section):
        for child in node.children.values():
            yield from walk(child)


def find(root: Section, names: Sequence[str], joiner: str = ".") -> tuple[Node, Path]:
    """The node and canonical path that `names` spell.

    `-` and `_` are interchangeable, except in the keys of a table that does not hold op names.
    All names below a table are one key, joined again with `joiner`. Raises WrongSettingError with a
    suggestion from the same level.
    """
    node: Node = root
    rest = list(names)
    while rest:
        if isinstance(node, Leaf):
            raise WrongSettingError(f"`{'.'.join(node.path)}` has no `{'.'.join(rest)}` below it.")
        if isinstance(node, Table):
            key = joiner.join(rest)
            key = key.strip().replace("-", "_") if node.has_op_names else key
            if not key:
                raise WrongSettingError(f"`{'.'.join(node.path)}` wants a name after the dot.")
            return node.entry, (*node.path, key)
        node = _child(root, node, rest.pop(0))
    return node, node.path


def at(root: Section, path: Path) -> Node:
    """The node at a canonical path."""
    return find(root, path)[0]


def usual_path(node: Node) -> Path:
    """The path that people write: one name where the node has a flag, else the canonical one."""
    return (node.flag.name or node.path[-1],) if node.flag else node.path


def _child(root: Section, section: Section, name: str) -> Node:
    key = name.strip().replace("-", "_")
    if key in section.children:
        return section.children[key]
    if key in section.aliases:
        return at(root, section.aliases[key])
    where = f" in `{'.'.join(section.path)}`" if section.path else ""
    known = [*section.children, *section.aliases]
    raise WrongSettingError(
        f"unknown setting `{name}`{where}.{_suggestion(root, section, key, known)}"
    )


def _suggestion(root: Section, section: Section, key: str, known: Sequence[str]) -> str:
    if hint := nearest(key, known):
        return hint
    elsewhere = [".".join(n.path) for n in walk(root) if n.path and n.path[-1] == key]
    if elsewhere:
        return " Did you mean " + " or ".join(f"`{path}`" for path in elsewhere[:2]) + "?"
    return suggest(key, known) if section.path else " See --help for all of them."


def _alias_names(node: Node) -> list[str]:
    if not node.flag:
        return []
    own = usual_path(node) if len(node.path) > 1 else ()
    return [*own, *(name.lstrip("-") for name in node.flag.names)]


def _section(
    model: type[BaseModel],
    path: Path,
    help_: str,
    flag: Flag | None,
    inner: Mapping[Path, Flag] = {},
) -> Section:
    fields = model.model_fields.items()
    children = {name: _node((*path, name), info, inner) for name, info in fields}
    return Section(path, children, help=help_, flag=flag)


def _node(path: Path, info: FieldInfo, inner: Mapping[Path, Flag]) -> Node:
    flag = next((m for m in info.metadata if isinstance(m, Flag)), inner.get(path))
    help_ = (info.description or "").replace("\n", " ")
    kind, is_nullable = _strip(info.annotation)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _section(kind, path, help_, flag, {**inner, **_inner_flags(path, info)})
    if get_origin(kind) is Mapping or kind is Mapping or get_origin(kind) is dict:
        has_op_names = any(isinstance(m, OpNames) for m in info.metadata)
        value, value_nullable = _strip(get_args(kind)[1])
        entry = Leaf((*path, "*"), value, _item(value), value_nullable)
        return Table(path, entry, has_op_names, help_, flag)
    return Leaf(path, kind, _item(kind), is_nullable, info.default, help_, flag)


def _inner_flags(path: Path, info: FieldInfo) -> dict[Path, Flag]:
    marks = (mark for mark in info.metadata if isinstance(mark, InnerFlags))
    return {(*path, *name.split(".")): flag for mark in marks for name, flag in mark.flags.items()}


def _strip(annotation: object) -> tuple[object, bool]:
    """The type inside Annotated and `| None`, and whether None is allowed."""
    is_nullable = False
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType) and NoneType in get_args(annotation):
            is_nullable = True
            annotation = next(a for a in get_args(annotation) if a is not NoneType)
        else:
            return annotation, is_nullable


def _item(kind: object) -> object:
    return _strip(get_args(kind)[0])[0] if get_origin(kind) in (tuple, list) else None
