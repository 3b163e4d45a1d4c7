"""Settings from a YAML or JSON file, each with its line. It reads the file and nothing else.

Keys are spelt as on the command line, flat or nested, with `-` or `_`. A setting that stands twice
in whatever spelling, a key that is no name and anything YAML would run or build are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath

import yaml

from serve_shim.settings.flatten import flatten
from serve_shim.settings.json_text import may_hold_secret, parse_json
from serve_shim.settings.schema import Section
from serve_shim.settings.source import Given, Kind, Path, Source
from serve_shim.settings.wrong_setting import WrongSettingError, show

MAX_BYTES = 1 << 20


def from_file(root: Section, name: str) -> Iterator[Given | WrongSettingError]:
    """The settings that the file gives, in its order, or what is wrong with it."""
    source = Source(Kind.FILE, name)
    try:
        text = _read(name, source)
        if name.endswith(".json"):
            value, lines = parse_json(text, source), dict[Path, int]()
        else:
            value, lines = _parse_yaml(text, source)
    except WrongSettingError as problem:
        yield problem
        return
    if value is not None and not isinstance(value, Mapping):
        yield WrongSettingError("wants names and values at the top", source)
        return
    given = flatten(root, root, (), value, lambda below: _locate(name, lines, below))
    yield from _refuse_repeated(given)


def _read(name: str, source: Source) -> str:
    try:
        with FilePath(name).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise WrongSettingError(f"cannot be read: {error.strerror}", source) from None
    if len(data) > MAX_BYTES:
        raise WrongSettingError("is larger than 1 MiB: is it a configuration file?", source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WrongSettingError(f"is not UTF-8 at byte {error.start}", source) from None


def _parse_yaml(text: str, source: Source) -> tuple[object, dict[Path, int]]:
    lines: dict[Path, int] = {}
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is not None:
            _note_lines(tree, (), lines, source)
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        message = f"not valid YAML{place}"
        if not may_hold_secret(text):  # the reason too may quote the text
            message += ": " + ", ".join(filter(None, (error.context, error.problem)))
            message += f"\n{mark.get_snippet(indent=4, max_length=70)}" if mark else ""
        raise WrongSettingError(message, source) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise WrongSettingError(
            f"not valid YAML: {error or 'it is nested too deeply'}", source
        ) from None


def _note_lines(node: yaml.Node, path: Path, lines: dict[Path, int], source: Source) -> None:
    """Note the line of each key below; refuse keys that stand twice in one mapping."""
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise WrongSettingError(f"key {show(name)} stands a second time on line {line}", source)
        seen.add(name)
        lines[(*path, name)] = line
        _note_lines(value, (*path, name), lines, source)


def _refuse_repeated(
    given: Iterable[Given | WrongSettingError],
) -> Iterator[Given | WrongSettingError]:
    """The same items, an error in place of a setting that another spelling gave before."""
    first: dict[Path, Source] = {}
    for item in given:
        if isinstance(item, Given) and item.path in first:
            message = f"`{'.'.join(item.path)}` stands a second time; first at {first[item.path]}"
            yield WrongSettingError(message, item.source, item.path)
            continue
        if isinstance(item, Given):
            first[item.path] = item.source
        yield item


def _locate(name: str, lines: Mapping[Path, int], below: Path) -> Source:
    line = lines.get(below)
    return Source(Kind.FILE, f"{name}:{line}" if line else name)
