"""The address of a cluster's head, `HOST:PORT`, and whether anything listens there."""

import socket

from serve_shim.errors import RanksError


def check_address(address: str) -> None:
    """Refuse what is no `HOST:PORT`.

    Raises:
        RanksError: it has another form; those of Ray's client and `auto` are not known here.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise RanksError(
            f"the address of Ray is {address!r}; it has to be HOST:PORT of the cluster's head, "
            "for example 10.0.0.1:6379"
        )


def can_connect(address: str, timeout_s: float) -> bool:
    """Whether anything listens at `HOST:PORT`."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return True
    except OSError:
        return False
