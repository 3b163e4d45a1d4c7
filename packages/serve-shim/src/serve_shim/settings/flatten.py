"""From a value at a place in the tree to the settings below it, each with its source.

Text from variables and arguments is read by the type of the setting: lists by commas, open
mappings and sections as JSON. Ranges and types are left to pydantic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import JsonValue, SecretStr

from serve_shim.settings.json_text import parse_json, to_json_or_text
from serve_shim.settings.schema import Leaf, Node, Section, find
from serve_shim.settings.source import Given, Kind, Locate, Path, everywhere
from serve_shim.settings.wrong_setting import WrongSettingError, show


def flatten(
    root: Section, node: Node, path: Path, value: object, locate: Locate, below: Path = ()
) -> Iterator[Given | WrongSettingError]:
    """The settings that `value` gives at `node`, or what is wrong with it, in its own order.

    `below` is the place inside what the source handed over, as written there; `locate` turns it
    into the source. A section that is null gives nothing.
    """
    source = locate(below)
    if isinstance(node, Leaf):
        try:
            yield Given(path, to_value(node, value), source)
        except ValueError as error:
            yield WrongSettingError(f"`{'.'.join(path)}` {error}", source, path)
        return
    if value is None:
        return
    if not isinstance(value, Mapping):
        name = ".".join(path) or "the settings"
        yield WrongSettingError(
            f"`{name}` wants an object of settings, not {show(value)}", source, path
        )
        return
    for key, inner in value.items():
        if not isinstance(key, str):
            yield WrongSettingError(
                f"key {show(key)} is not a name; put it in quotes", source, path
            )
            continue
        inside = (*below, key)
        try:
            child, child_path = _find_child(root, node, key)
        except WrongSettingError as problem:
            yield WrongSettingError(problem.message, locate(inside), path)
            continue
        yield from flatten(root, child, child_path, inner, locate, inside)


def flatten_text(
    root: Section, node: Node, path: Path, text: str, locate: Locate
) -> Iterator[Given | WrongSettingError]:
    """The same for text from a variable or an argument."""
    source = locate(())
    if isinstance(node, Leaf):
        try:
            yield Given(path, to_value(node, _read_scalar(node, text)), source)
        except WrongSettingError as problem:
            reason = "is no JSON list of keys" if node.is_secret else problem.message
            yield WrongSettingError(f"`{'.'.join(path)}`: {reason}", source, path)
        except ValueError as error:
            yield WrongSettingError(f"`{'.'.join(path)}` {error}", source, path)
        return
    if not text.lstrip().startswith("{"):
        dot = "__" if source.kind is Kind.ENVIRONMENT else "."
        example = f"one key at a time: `{source.name}{dot}KEY=VALUE`"
        yield WrongSettingError(
            f"wants a JSON object, not {show(text)}; or {example}", source, path
        )
        return
    try:
        value = parse_json(text, source)
    except WrongSettingError as problem:
        yield problem
        return
    yield from flatten(root, node, path, value, everywhere(source))


def to_value(leaf: Leaf, value: object) -> object:
    """`value` in the form that pydantic is given. Raises ValueError with the rest of a sentence.

    Text for a list is split at commas, blanks around its items dropped; a list of secrets is not
    split, since a key may hold a comma.
    """
    if not leaf.is_list or not isinstance(value, str):
        return value
    if leaf.item is SecretStr:
        return [value]
    items = [item.strip() for item in value.split(",")]
    if items == [""]:
        raise ValueError("is empty; name at least one item, or leave the setting out")
    if "" in items:
        raise ValueError(f"has an empty item in {show(value)}")
    return items


def _read_scalar(leaf: Leaf, text: str) -> object:
    if leaf.is_nullable and leaf.type is not str and text == "null":
        return None
    if leaf.is_list and text.lstrip().startswith("["):
        return parse_json(text)
    if leaf.type is JsonValue:
        return to_json_or_text(text)
    return text


def _find_child(root: Section, node: Node, key: str) -> tuple[Node, Path]:
    if node is root:
        return find(root, [key])
    return find(root, [*node.path, key])
