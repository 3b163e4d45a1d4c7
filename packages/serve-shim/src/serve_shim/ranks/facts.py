"""Owns what ranks must have in common, as named texts, and the error where they have not."""

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import torch

import ir_core as ir
from ir_core import plugins as core_plugins
from ir_passes import plugins as pass_plugins
from ir_passes.backends.registry import GROUP as BACKENDS
from ir_passes.cache.factors import digest_of_package
from ir_passes.cache.op_choices import OpChoices
from ir_passes.errors import CannotStoreError
from serve_shim.errors import RanksError
from serve_shim.loading import resolve_source
from serve_shim.settings.tree import Settings

Facts = Mapping[str, str]
"""Names and texts that are the same on all ranks of a sound group."""

_GROUPS = (*core_plugins.GROUPS, pass_plugins.GROUP, BACKENDS)
_SECRET = {"api_key", "api_key_file"}
_PACKAGES = ("ir_core", "ir_passes", "ir_kernels", "serve_shim")
_OF_A_MODEL = {".json", ".safetensors", ".jinja", ".model", ".txt"}
_READ_BYTES = 1 << 22
_PREFIXES = ("IR_", "VLLM_")
_MOST_DIFFERENCES = 5


def gather_facts(settings: Settings, *, is_one_node: bool) -> Facts:
    """What this rank would compute with, and on.

    On one node checkpoints are told apart by inode, size and time; between nodes by their bytes.
    """
    ir.load_plugins()
    shared = shared_facts(settings, is_one_node=is_one_node)
    return {**shared, **dict((*_environment(), *_plugins(), *_ops()))}


def shared_facts(settings: Settings, *, is_one_node: bool) -> Facts:
    """Those of them that the server, which computes nothing, must share with its ranks."""
    return dict(
        (
            ("python", platform.python_version()),
            ("torch", torch.__version__),
            ("batch invariance", str(ir.registry().is_batch_invariant())),
            *((f"code of {name}", digest_of_package(_directory(name))) for name in _PACKAGES),
            *_settings(settings),
            *_checkpoint(settings, is_one_node=is_one_node),
        )
    )


def compare_with_server(server: Facts, rank: Facts) -> None:
    """Raise `RanksError` where rank 0 has another model, code or settings than the server."""
    found = {name: rank[name] for name in rank if name in server}
    _refuse(_differences(server, found, "for the server", "on rank 0"), "what the server read")


def compare_facts(facts: Sequence[Facts], subject: str) -> None:
    """Raise `RanksError` that names what differs between which ranks, if anything does."""
    problems: list[str] = []
    for rank, other in enumerate(facts[1:], start=1):
        problems += _differences(facts[0], other, "on rank 0", f"on rank {rank}")
    _refuse(problems, subject)


def _differences(first: Facts, other: Facts, here: str, there: str) -> list[str]:
    return [
        f"`{name}` is {_shown(first.get(name))} {here}, and {_shown(other.get(name))} {there}"
        for name in sorted({*first, *other})
        if first.get(name) != other.get(name)
    ]


def _refuse(problems: Sequence[str], subject: str) -> None:
    if problems:
        rest = len(problems) - _MOST_DIFFERENCES
        more = [f"and {rest} more"] if rest > 0 else []
        raise RanksError(
            f"ranks do not agree about {subject}; make it the same on all nodes:\n  "
            + "\n  ".join([*problems[:_MOST_DIFFERENCES], *more])
        )


def _settings(settings: Settings) -> Iterator[tuple[str, str]]:
    yield from _leaves("settings", settings.model_dump(mode="json", exclude=_SECRET))


def _leaves(path: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(f"{path}.{name}", inner)
    else:
        yield path, json.dumps(value, sort_keys=True)


def _environment() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if name.startswith(_PREFIXES):
            yield f"variable {name}", value


def _plugins() -> Iterator[tuple[str, str]]:
    for entry in (each for group in _GROUPS for each in entry_points(group=group)):
        origin = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
        yield f"plug-in {entry.group}:{entry.name}", f"{entry.value}{origin}"


def _ops() -> Iterator[tuple[str, str]]:
    registry = ir.registry()
    for name, op in sorted(registry.items()):
        there = {each.provider: each.unsupported_reason for each in op.implementations.values()}
        yield f"providers of op {name}", json.dumps(there, sort_keys=True)
        yield f"priority of op {name}", json.dumps(registry.candidates(op))
        try:
            choices = OpChoices.of([name], (), registry)
        except CannotStoreError as error:
            yield f"code of op {name}", str(error)
        else:
            code = json.dumps(choices.to_json(), sort_keys=True)
            yield f"code of op {name}", hashlib.sha256(code.encode()).hexdigest()


def _checkpoint(settings: Settings, *, is_one_node: bool) -> Iterator[tuple[str, str]]:
    path = resolve_source(settings.model, settings.revision).path
    files = [path]
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix in _OF_A_MODEL)
    for file in files:
        yield f"checkpoint file {file.name}", _identity(file) if is_one_node else _content(file)


def _identity(file: Path) -> str:
    stat = file.stat()
    return f"inode {stat.st_dev}:{stat.st_ino}, {stat.st_size} bytes, written {stat.st_mtime_ns}"


def _content(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _directory(package: str) -> str:
    return str(Path(str(import_module(package).__file__)).parent)


def _shown(text: str | None) -> str:
    return "absent" if text is None else text if len(text) <= 200 else f"{text[:200]}…"
