"""Owns the socket that the server listens on; it is bound before anything expensive begins."""

import errno
import socket
import stat
from pathlib import Path
from typing import Any

from serve_shim.errors import AddressInUseError, SettingsError
from serve_shim.settings.tree import Settings

_BACKLOG = 2048


def bind(settings: Settings) -> socket.socket:
    """A listening-to-be socket on `uds`, else on `host` and `port`.

    AddressInUseError if it is taken, SettingsError if it is no address of this machine.
    """
    where = str(settings.uds) if settings.uds else f"{settings.host}:{settings.port}"
    try:
        return _bind_uds(Path(settings.uds)) if settings.uds else _bind_tcp(settings)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            flag = "--uds" if settings.uds else "--port"
            raise AddressInUseError(
                f"`{where}` is already in use; stop what listens there or choose another "
                f"with `{flag}`."
            ) from None
        raise SettingsError(f"Cannot listen on `{where}`: {error.strerror or error}.") from None
    except ValueError as error:  # a name that cannot be one
        raise SettingsError(f"Cannot listen on {where!r}: {error}.") from None


def url(bound: socket.socket) -> str:
    """Where clients reach a bound socket."""
    address = bound.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _bind_tcp(settings: Settings) -> socket.socket:
    infos = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = infos[0]
    bound = socket.socket(family, kind, protocol)
    return _bound(bound, address)


def _bind_uds(path: Path) -> socket.socket:
    if "\0" in str(path):  # the system would end the name there
        raise ValueError("the path has a null byte")
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
        path.unlink()
    return _bound(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), str(path))


def _bound(unbound: socket.socket, address: tuple[Any, ...] | str) -> socket.socket:
    try:
        if unbound.family != socket.AF_UNIX:
            unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        unbound.bind(address)
        unbound.listen(_BACKLOG)
    except OSError:
        unbound.close()
        raise
    unbound.setblocking(False)
    return unbound


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
