"""Engines to compare: how each is started and asked. Read from a TOML file or from `--peer`.

A file has a table `[load]` (the fields of `Load`) and tables `[[engine]]` (those of `Engine`).
"""

import shlex
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    ValidationError,
    field_validator,
)

from tools.bench.load import Load

OURS: Final = "serve-shim"
_COMMAND = ("{python}", "-m", "serve_shim", "--port", "{port}", "--served-model-name", "m")


class ConfigError(Exception):
    """A file or an option does not say what to compare; the message says where and what to do."""


class Engine(BaseModel):
    """One server command; `{port}`, `{model}` and `{python}` in it are filled in.

    Attributes:
        name: the row's name in tables.
        command: program and arguments, as a list or split as a shell would; no shell runs it.
        model: value of `{model}`.
        served_name: the model's name in requests.
        group: what it is compared within: another group does another job, with 4 bits, say.
        ours: whether it is compared with the best of the others of its group.
        ready: path that answers 200 once the server is ready.
        ready_timeout: seconds until then.
        ignore_eos: ask for exactly `max_tokens` tokens; not all servers can.
        env: additions to its environment.
        request: additions to each request's body.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    command: tuple[str, ...]
    model: str = ""
    served_name: str = "m"
    group: str = ""
    ours: bool = False
    ready: str = "/health"
    ready_timeout: PositiveFloat = 600.0
    ignore_eos: bool = True
    env: dict[str, str] = {}
    request: dict[str, Any] = {}

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, command: object) -> object:
        return shlex.split(command) if isinstance(command, str) else command

    @field_validator("command")
    @classmethod
    def _needs_port(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not any("{port}" in word for word in command):
            raise ValueError("`{port}` is nowhere in it; put it where the server is told to listen")
        return command

    def command_line(self, port: int) -> list[str]:
        """The command with everything filled in."""
        values = {"{port}": str(port), "{model}": self.model, "{python}": sys.executable}
        words = list(self.command)
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        return words

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """A streaming greedy completion request."""
        body: dict[str, Any] = {
            "model": self.served_name,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body |= {"ignore_eos": True, "min_tokens": max_tokens}
        return {**body, **self.request}


def serve_shim(*arguments: str) -> Engine:
    """The project's server on its embedded model, with more arguments."""
    return Engine(name=OURS, command=(*_COMMAND, *arguments), ours=True)


def parse_peer(text: str) -> Engine:
    """An engine from `NAME=COMMAND…`; ConfigError says what is wrong."""
    name, _, command = text.partition("=")
    try:
        return Engine.model_validate({"name": name, "command": command})
    except ValidationError as error:
        raise ConfigError(_message(f"--peer {text}", error)) from None


def read_config(path: Path) -> tuple[Load, list[Engine]]:
    """The load and the engines of a TOML file; ConfigError says what is wrong where."""
    try:
        return _Document.model_validate(tomllib.loads(path.read_text())).contents()
    except ValidationError as error:
        raise ConfigError(_message(str(path), error)) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def select(engines: Sequence[Engine], only: Sequence[str]) -> list[Engine]:
    """Those named, or all; ConfigError for unknown names and for two of one name."""
    names = [engine.name for engine in engines]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"several engines are named `{twice[0]}`: give each a name of its own")
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"no engine is named `{unknown[0]}`; there are {_quoted(names)}")
    return [engine for engine in engines if not only or engine.name in only]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    load: Load = Load()
    engine: list[Engine] = []

    def contents(self) -> tuple[Load, list[Engine]]:
        return self.load, self.engine


def _message(where: str, error: ValidationError) -> str:
    lines: list[str] = []
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"])
        text = each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            text = f"there is no such setting; there are {_quoted(_siblings(each['loc']))}"
        lines.append(f"{where}: `{place}`: {text}")
    return "\n".join(lines)


def _siblings(location: Sequence[int | str]) -> Iterable[str]:
    model = {"load": Load, "engine": Engine}.get(str(location[0])) if len(location) > 1 else None
    return (model or _Document).model_fields


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
