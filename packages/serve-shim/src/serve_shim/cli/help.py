"""The options as cyclopts shows and completes them, made from the settings tree alone.

The function built here is never called: cyclopts reads its signature for `--help` and for shell
completion, while `serve_shim.settings` reads the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from inspect import Parameter as Slot
from inspect import Signature
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

from cyclopts import Group, Parameter
from pydantic import ByteSize

from serve_shim.cli.topic import heading, headings, select_nodes
from serve_shim.settings.environment import CONFIG_FILE, to_variable
from serve_shim.settings.inert import find_row
from serve_shim.settings.schema import Leaf, Node, Table, usual_path

_METAVARS = {int: "INT", float: "FLOAT", ByteSize: "BYTES", Path: "PATH", str: "TEXT"}


def serve_signature(topic: str | None = None) -> Callable[..., None]:
    """A function whose parameters are the options of `serve` that `topic` selects."""
    nodes = list(select_nodes(topic))

    def serve(**_options: object) -> None:
        """Serve MODEL over HTTP."""

    groups = _groups()
    slots = [] if topic else [_positional(), *_actions(groups["Command"])]
    slots += [_slot(node, groups) for node in nodes]
    serve.__signature__ = Signature(slots)  # pyright: ignore[reportFunctionMemberAccess]
    serve.__annotations__ = {slot.name: slot.annotation for slot in slots}
    return serve


def _groups() -> dict[str, Group]:
    return {name: Group(name, sort_key=i) for i, name in enumerate(["Command", *headings()])}


def _positional() -> Slot:
    parameter = Parameter(help="Directory, GGUF file or hub name.", show_default=False)
    annotation = Annotated[str | None, parameter]
    return Slot("MODEL", Slot.POSITIONAL_ONLY, default=None, annotation=annotation)


def _actions(group: Group) -> Iterator[Slot]:
    """The options that say what to do; they are no settings."""
    texts = {
        "--config": ("PATH", f"YAML or JSON file of settings. [env: {CONFIG_FILE}]"),
        "--print-config": (
            "",
            "Print every setting with its source, and exit: --print-config[=text|json].",
        ),
        "--dry-run": ("", "Check settings, priorities and names of passes, and exit."),
    }
    for name, (metavar, text) in texts.items():
        parameter = Parameter(
            name=[name], help=text, metavar=metavar or None, group=group, negative="",
            show_default=False,
        )  # fmt: skip
        kind = str | None if metavar else bool
        default = None if metavar else False
        identifier = name.lstrip("-").replace("-", "_")
        annotation = Annotated[kind, parameter]
        yield Slot(identifier, Slot.KEYWORD_ONLY, default=default, annotation=annotation)


def _slot(node: Node, groups: dict[str, Group]) -> Slot:
    is_switch = isinstance(node, Leaf) and node.type is bool and not node.is_nullable
    shown = usual_path(node)
    parameter = Parameter(
        name=_names(node, shown),
        help=f"{_text(node)} [env: {to_variable(shown)}]",
        metavar=None if is_switch else _metavar(node),
        choices=_choices(node),
        show_choices=False,
        group=groups[heading(node)],
        show_default=_default(node),
        negative="",
    )
    kind = bool if is_switch else str | None
    default = node.default if isinstance(node, Leaf) and is_switch else None
    annotation = Annotated[kind, parameter]
    return Slot("__".join(node.path), Slot.KEYWORD_ONLY, default=default, annotation=annotation)


def _names(node: Node, shown: tuple[str, ...]) -> list[str]:
    name = "--" + ".".join(shown).replace("_", "-")
    name += ".OP" if isinstance(node, Table) and node.has_op_names else ""
    return [name, *(node.flag.names if node.flag else ())]


def _text(node: Node) -> str:
    row = find_row(node.path)
    return node.help + (f" ({row.reason}.)" if row else "")


def _metavar(node: Node) -> str:
    if isinstance(node, Table) and node.has_op_names:
        return "A,B"
    if not isinstance(node, Leaf):
        return "JSON"
    if node.is_list:
        return "KEY" if node.is_secret else "A,B"
    if node.type is bool:
        return "BOOL"
    return next((word for kind, word in _METAVARS.items() if node.type is kind), "CHOICE")


def _choices(node: Node) -> list[str] | None:
    """The words that completion offers."""
    kind = node.type if isinstance(node, Leaf) else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    return [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else None


def _default(node: Node) -> Callable[[object], str] | bool:
    if not isinstance(node, Leaf) or node.default in (None, (), "", False):
        return False
    text = str(node.default)
    return lambda _value: text
