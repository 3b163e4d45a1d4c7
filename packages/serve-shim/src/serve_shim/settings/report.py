"""Resolved settings for people and programs, each value with its source. Secrets become `***`.

The text is itself a valid `--config` file: defaults and secrets stand in it as comments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from serve_shim.settings.inert import find_row
from serve_shim.settings.resolve import Resolved
from serve_shim.settings.schema import Leaf, Table, settings_schema, walk
from serve_shim.settings.source import DEFAULT, Path, Source
from serve_shim.settings.tree import Settings

REDACTED = "***"


@dataclass(frozen=True, slots=True)
class Row:
    """One setting as resolved; `value` is plain JSON, a secret already replaced."""

    path: Path
    value: JsonValue
    source: Source
    overridden: Sequence[Source]
    is_default: bool
    is_secret: bool
    note: str = ""


def to_rows(resolved: Resolved) -> Iterator[Row]:
    """Every setting in the order of the tree; an open mapping's keys one by one."""
    plain: dict[str, JsonValue] = resolved.settings.model_dump(mode="json")
    defaults: dict[str, JsonValue] = Settings().model_dump(mode="json")
    for node in walk(settings_schema(Settings)):
        if isinstance(node, Leaf):
            yield _row(resolved, node, node.path, plain, defaults)
        elif isinstance(node, Table):
            table = _get(plain, node.path)
            for key in table if isinstance(table, dict) else ():
                yield _row(resolved, node.entry, (*node.path, key), plain, defaults)


def non_default(resolved: Resolved) -> dict[str, JsonValue]:
    """Settings whose value is not the default, by dotted path, for the log."""
    return {".".join(row.path): row.value for row in to_rows(resolved) if not row.is_default}


def to_json(resolved: Resolved) -> str:
    """All settings and the source of each as one JSON object, keyed by dotted path."""
    entries = {
        ".".join(row.path): {
            "value": row.value,
            "source": row.source.kind.value,
            "name": row.source.name,
            "overrides": [source.name for source in row.overridden],
        }
        for row in to_rows(resolved)
    }
    return json.dumps(entries, indent=2, ensure_ascii=False)


def to_text(resolved: Resolved) -> str:
    """All settings as YAML, the source of each behind it."""
    lines = ["# All settings and their sources: a valid --config file, with defaults as comments."]
    above: Path = ()
    for row in to_rows(resolved):
        lines.extend(_headings(row.path[:-1], above))
        above = row.path[:-1]
        lines.append(_line(row))
    return "\n".join(lines)


def _row(
    resolved: Resolved,
    leaf: Leaf,
    path: Path,
    plain: dict[str, JsonValue],
    defaults: dict[str, JsonValue],
) -> Row:
    value, default = _get(plain, path), _get(defaults, path)
    if leaf.is_secret and value:
        value = _redact(value)
    source = resolved.source_of(path)
    row = find_row(path)
    note = row.reason if row and source is DEFAULT else ""
    overridden = resolved.overridden.get(path, ())
    return Row(path, value, source, overridden, value == default, leaf.is_secret, note)


def _redact(value: JsonValue) -> JsonValue:
    return [REDACTED for _ in value] if isinstance(value, list) else REDACTED


def _get(tree: dict[str, JsonValue], path: Path) -> JsonValue:
    value: JsonValue = tree
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _headings(section: Path, above: Path) -> Iterator[str]:
    shared = 0
    while shared < min(len(section), len(above)) and section[shared] == above[shared]:
        shared += 1
    for depth in range(shared, len(section)):
        yield f"{'  ' * depth}{section[depth]}:"


def _line(row: Row) -> str:
    is_comment = row.source is DEFAULT or (row.is_secret and bool(row.value))
    text = f"{'  ' * (len(row.path) - 1)}{'# ' if is_comment else ''}{_key(row.path[-1])}: "
    text += json.dumps(row.value, ensure_ascii=False)
    origin = row.note or str(row.source)
    if row.overridden:
        origin += ", instead of " + ", ".join(str(source) for source in row.overridden)
    return f"{text:<48}  # {origin}"


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)
