"""The one merge of all sources into settings: file, then environment, then arguments in order.

The last source of a setting wins; lists are replaced whole, open mappings key by key. Pydantic
validates once, and each error is led back to the source that set the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ValidationError

from serve_shim.settings.arguments import CommandLine, from_arguments
from serve_shim.settings.document import from_file
from serve_shim.settings.environment import CONFIG_FILE, from_environment
from serve_shim.settings.explain import explain
from serve_shim.settings.flatten import flatten
from serve_shim.settings.inert import find_refusals
from serve_shim.settings.offline import find_misplaced
from serve_shim.settings.schema import settings_schema
from serve_shim.settings.source import DEFAULT, Given, Kind, Path, Source, source_at
from serve_shim.settings.tree import Settings
from serve_shim.settings.wrong_setting import WrongSettingError, raise_problems


@dataclass(frozen=True, slots=True)
class Resolved:
    """Validated settings, and where each given value came from.

    `provenance` holds the source that won for every path that was given; `overridden` the weaker
    ones, in order. `print_config` and `dry_run` are what the command line asked to do instead of
    serving.
    """

    settings: Settings
    provenance: Mapping[Path, Source]
    overridden: Mapping[Path, Sequence[Source]]
    print_config: Literal["text", "json"] | None = None
    dry_run: bool = False

    def source_of(self, path: Path) -> Source:
        """The source of the setting at a path, `default` where nothing gave it."""
        return self.provenance.get(path, DEFAULT)


def resolve(argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Resolved:
    """Settings from a command line (without the program's name) and an environment.

    Files named by `SERVE_SHIM_CONFIG` and `--config` are read, in that order. Raises
    SettingsError, which lists everything that is wrong with its source.
    """
    root = settings_schema(Settings)
    environ = environ or {}
    line = from_arguments(root, argv)
    files = [environ[CONFIG_FILE]] if CONFIG_FILE in environ else []
    given: list[Given | WrongSettingError] = []
    for name in (*files, *line.config_files):
        given.extend(from_file(root, name))
    given.extend(from_environment(root, environ))
    given.extend(line.given)
    return _merge(given, line)


def resolve_arguments(arguments: Mapping[str, object]) -> Resolved:
    """Settings of a model without a server, from Python names and values (models too).

    Raises SettingsError like `resolve`, and for what only a server acts on.
    """
    root = settings_schema(Settings)
    plain = {name: _to_plain(value) for name, value in arguments.items()}
    given = list(flatten(root, root, (), plain, _locate_argument))
    return _merge([*given, *find_misplaced(given)], CommandLine())


def _merge(given: Iterable[Given | WrongSettingError], line: CommandLine) -> Resolved:
    problems = [item for item in given if isinstance(item, WrongSettingError)]
    winners: dict[Path, Given] = {}
    overridden: dict[Path, list[Source]] = {}
    for item in given:
        if isinstance(item, WrongSettingError):
            continue
        if item.path in winners:
            overridden.setdefault(item.path, []).append(winners[item.path].source)
        winners[item.path] = item
    provenance = {path: item.source for path, item in winners.items()}
    settings = _validate(winners, provenance, problems)
    return Resolved(settings, provenance, overridden, line.print_config, line.dry_run)


def _validate(
    winners: Mapping[Path, Given],
    provenance: Mapping[Path, Source],
    problems: list[WrongSettingError],
) -> Settings:
    try:
        settings = Settings.model_validate(_to_tree(winners))
    except ValidationError as error:
        raise_problems([*problems, *explain(error, provenance)])
        raise
    for refusal in find_refusals(settings):
        problems.append(
            WrongSettingError(refusal.message, source_at(provenance, refusal.path), refusal.path)
        )
    raise_problems(problems)
    return settings


def _to_tree(winners: Mapping[Path, Given]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for path, item in winners.items():
        level = tree
        for name in path[:-1]:
            inner = level.setdefault(name, {})
            level = inner if isinstance(inner, dict) else {}
        level[path[-1]] = item.value
    return tree


def _to_plain(value: object) -> object:
    return value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value


def _locate_argument(below: Path) -> Source:
    return Source(Kind.CODE, ".".join(below) or "arguments")
