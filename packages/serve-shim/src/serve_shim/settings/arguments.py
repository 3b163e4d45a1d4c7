"""Settings from the command line, in order of appearance. It knows grammar, not meaning.

`--a.b=c`, `--a.b c`, `--a '{json}'`, `--flag`, `--no-flag`, `-cc.a.b=c`, `-O3`, `-tp 2`, one
positional MODEL. `-` and `_` are interchangeable in option names. What could be read in two ways
is refused rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from serve_shim.settings.flatten import flatten_text
from serve_shim.settings.option import ACTIONS, is_known, short_options, suggest_option
from serve_shim.settings.schema import Leaf, Node, Section, find
from serve_shim.settings.source import Given, Kind, Path, Source, everywhere
from serve_shim.settings.wrong_setting import WrongSettingError, show

_LEVEL = re.compile(r"-O(\d+)$")
_NUMBER = re.compile(r"-(\d|\.\d)")
_TRUTHS = ("true", "false", "1", "0", "yes", "no", "on", "off")


@dataclass(slots=True)
class CommandLine:
    """What one command line says: settings in order, and what is to be done with them."""

    given: list[Given | WrongSettingError] = field(default_factory=list[Given | WrongSettingError])
    config_files: list[str] = field(default_factory=list[str])
    print_config: Literal["text", "json"] | None = None
    dry_run: bool = False


def from_arguments(root: Section, argv: Sequence[str]) -> CommandLine:
    """Read a command line without the program's name."""
    reader = _Reader(root, list(argv))
    reader.read()
    return reader.line


class _Reader:
    """A cursor over the tokens of one command line."""

    def __init__(self, root: Section, tokens: list[str]) -> None:
        self.root = root
        self.tokens = tokens
        self.next = 0
        self.line = CommandLine()
        self.model: str | None = None
        self.last_list: str | None = None

    def read(self) -> None:
        """Read all tokens; after `--` all of them are positional."""
        only_positional = False
        while self.next < len(self.tokens):
            token = self.tokens[self.next]
            self.next += 1
            if token in ("--",) and not only_positional:
                only_positional = True
                continue
            try:
                if only_positional or not token.startswith("-") or token in ("-", ""):
                    self._read_positional(token)
                else:
                    self._read_option(token)
            except WrongSettingError as problem:
                self.line.given.append(problem)

    def _read_positional(self, token: str) -> None:
        source = Source(Kind.ARGUMENT, "MODEL")
        if self.last_list:
            raise WrongSettingError(
                f"what follows `{self.last_list}` may be MODEL or another item."
                f" Write `{self.last_list}=a,b` for a list, and put MODEL first.",
                source,
            )
        if self.model is not None:
            raise WrongSettingError(
                f"{show(token)} is one too many: MODEL is {show(self.model)}", source
            )
        if any(isinstance(g, Given) and g.path == ("model",) for g in self.line.given):
            raise WrongSettingError(
                f"{show(token)} is one too many: `--model` is given too", source
            )
        self.model = token
        self.line.given.append(Given(("model",), token, source))

    def _read_option(self, token: str) -> None:
        self.last_list = None
        if level := _LEVEL.match(token):
            self._give(*find(self.root, ["optimization_level"]), level[1], token)
            return
        option, has_equals, text = token.partition("=")
        value = text if has_equals else None
        name = option[2:] if option.startswith("--") else option[1:]
        key = name.replace("-", "_")
        if option.startswith("--") and key in ACTIONS:
            self._read_command(key, option, value)
            return
        try:
            node, path = self._find(option, name)
        except WrongSettingError as problem:
            if not key.startswith("no_") or not option.startswith("--"):
                raise
            self._read_negative(option, name[3:], value, problem)
            return
        if path == ("model",) and self.model is not None:
            raise WrongSettingError(f"is one too many: MODEL is {show(self.model)}", _at(option))
        if value is None and isinstance(node, Leaf) and node.type is bool:
            self._refuse_truth(option)
            value = "true"
        if value is None:
            value = self._take_value(option)
            is_short = isinstance(node, Leaf) and node.is_list and not value.count(",")
            self.last_list = option if is_short else None
        self._give(node, path, value, option)

    def _read_negative(
        self, option: str, name: str, value: str | None, why: WrongSettingError
    ) -> None:
        try:
            node, path = find(self.root, name.split("."))
        except WrongSettingError:
            raise why from None
        if not isinstance(node, Leaf) or node.type is not bool:
            raise WrongSettingError(
                f"`{'.'.join(path)}` is no switch: `--no-` fits only switches", _at(option)
            )
        if value is not None:
            raise WrongSettingError(f"takes no value; write `--{name}={value}`", _at(option))
        self._refuse_truth(option)
        self._give(node, path, "false", option)

    def _read_command(self, key: str, option: str, value: str | None) -> None:
        if key == "config":
            self.line.config_files.append(self._take_value(option) if value is None else value)
        elif key == "print_config":
            self.line.print_config = self._read_format(option, value)
        else:
            if value is not None:
                raise WrongSettingError("takes no value", _at(option))
            self.line.dry_run = True

    def _read_format(self, option: str, value: str | None) -> Literal["text", "json"]:
        following = self.tokens[self.next] if self.next < len(self.tokens) else None
        if value is None and following in ("text", "json"):
            self.next += 1
            raise WrongSettingError(
                f"write `{option}={following}`; for a model of this name `--model {following}`",
                _at(option),
            )
        if value not in (None, "text", "json"):
            raise WrongSettingError(f"wants text or json, not {show(value)}", _at(option))
        return "json" if value == "json" else "text"

    def _find(self, option: str, name: str) -> tuple[Node, Path]:
        """The setting an option names. A single dash is for the short spellings alone."""
        first, *rest = name.split(".")
        if not option.startswith("--") and f"-{first}" not in short_options(self.root):
            raise WrongSettingError(
                f"unknown option.{suggest_option(self.root, option)}", _at(option)
            )
        try:
            return find(self.root, [first, *rest])
        except WrongSettingError as problem:
            is_inside = bool(rest) and is_known(self.root, first)
            hint = "" if is_inside else suggest_option(self.root, option)
            message = f"unknown option.{hint}" if hint else problem.message
            raise WrongSettingError(message, _at(option)) from None

    def _take_value(self, option: str) -> str:
        following = self.tokens[self.next] if self.next < len(self.tokens) else None
        if following is None or (following.startswith("-") and not _NUMBER.match(following)):
            dash = f" If the value begins with `-`, write `{option}=…`." if following else ""
            raise WrongSettingError(f"wants a value.{dash}", _at(option))
        self.next += 1
        return following

    def _refuse_truth(self, option: str) -> None:
        following = self.tokens[self.next] if self.next < len(self.tokens) else ""
        if following.lower() in _TRUTHS:
            self.next += 1
            name = "--" + option.removeprefix("--no-").removeprefix("--")
            raise WrongSettingError(
                f"is a switch; write `{name}=true` or `{name}=false`", _at(option)
            )

    def _give(self, node: Node, path: Path, text: str, option: str) -> None:
        items = flatten_text(self.root, node, path, text, everywhere(_at(option)))
        if _is_repeatable(node, option):
            items = [self._take_in_earlier(node, item) for item in items]
        self.line.given.extend(items)

    def _take_in_earlier(
        self, node: Node, item: Given | WrongSettingError
    ) -> Given | WrongSettingError:
        """The item with what the same flag gave before in front, which it replaces."""
        if isinstance(item, WrongSettingError):
            return item
        values: list[object] = []
        for earlier in list(self.line.given):
            if not isinstance(earlier, Given) or earlier.path != item.path:
                continue
            if _is_repeatable(node, earlier.source.name):
                self.line.given.remove(earlier)
                values += _as_list(earlier.value)
        return replace(item, value=[*values, *_as_list(item.value)])


def _is_repeatable(node: Node, option: str) -> bool:
    if node.flag is None or not node.flag.is_repeatable:
        return False
    return option.lstrip("-").replace("-", "_") == node.flag.name


def _as_list(value: object) -> list[object]:
    return [*value] if isinstance(value, list) else [value]


def _at(option: str) -> Source:
    return Source(Kind.ARGUMENT, option)
