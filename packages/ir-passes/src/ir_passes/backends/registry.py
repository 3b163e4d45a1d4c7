"""Backends by name: those that ship, and those of other distributions."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from ir_core import PluginError
from ir_core.suggestion import suggest
from ir_passes.backends.base import Backend
from ir_passes.errors import BackendError

GROUP = "ir_passes.backends"
SHIPPED = ("inductor", "eager", "aot_eager")


def find_backend(name: str) -> Backend:
    """The backend of a name; a plug-in is imported only when its name is asked for.

    Raises:
        BackendError: there is none of this name; lists those that there are.
        PluginError: the plug-in fails, or two distributions have the name.
    """
    if name in SHIPPED:
        return _shipped(name)
    found = [each for each in entry_points(group=GROUP) if each.name == name]
    if not found:
        raise BackendError(f"No backend is called `{name}`; {suggest(name, _names())}")
    if len(found) > 1:
        raise PluginError(
            f"Backend `{name}` is offered by {' and by '.join(map(_describe, found))}; uninstall "
            "one of them."
        )
    return _load(found[0])


def _shipped(name: str) -> Backend:
    # Each imports what only it needs.
    if name == "inductor":
        from ir_passes.backends.inductor import Inductor  # noqa: PLC0415

        return Inductor()
    from ir_passes.backends.interpreted import AotEager, Eager  # noqa: PLC0415

    return Eager() if name == "eager" else AotEager()


def _names() -> Iterator[str]:
    yield from SHIPPED
    yield from (each.name for each in entry_points(group=GROUP))


def _load(entry: EntryPoint) -> Backend:
    try:
        found = entry.load()
        backend = found() if isinstance(found, type) else found
        if not isinstance(backend, Backend):
            raise TypeError(f"it names {found!r}, which is no `ir_passes.Backend`")
    except Exception as error:
        raise PluginError(
            f"Backend {_describe(entry)} failed: {type(error).__name__}: {error}"
        ) from error
    return backend


def _describe(entry: EntryPoint) -> str:
    origin = entry.dist.name if entry.dist is not None else "unknown"
    return f"`{entry.name}` of `{origin}` ({entry.group}: {entry.value})"
