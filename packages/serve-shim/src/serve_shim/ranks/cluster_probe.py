"""Whether a Ray listens at an address, and whether it lets a client in, with or without a token.

`probe_cluster` asks a process of its own, `python -m serve_shim.ranks.cluster_probe HOST:PORT`:
whether Ray sends a token is settled when it is imported.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from enum import Enum
from importlib import import_module

from serve_shim.ranks.cluster_address import can_connect

_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 20.0


class ClusterAccess(Enum):
    """What a client gets."""

    OPEN = "open"
    REFUSED = "refused"
    NOTHING = "nothing"


def probe_cluster(address: str, environ: Mapping[str, str]) -> tuple[ClusterAccess, str]:
    """Ask the GCS of a cluster as a client with this environment.

    The second value is why nothing came of it.
    """
    if not _waits_for_connection(address):
        return ClusterAccess.NOTHING, f"nothing listens there ({_CONNECT_TIMEOUT_S:g} s)"
    command = [sys.executable, "-P", "-m", "serve_shim.ranks.cluster_probe", address]
    try:
        done = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (
            ClusterAccess.NOTHING,
            f"what listens there does not answer in {_ANSWER_TIMEOUT_S:g} s",
        )
    word, _, reason = done.stdout.strip().partition(": ")
    if word in {access.value for access in ClusterAccess}:
        return ClusterAccess(word), reason
    return ClusterAccess.NOTHING, (done.stderr.strip().splitlines() or ["no answer"])[-1]


def main(arguments: list[str]) -> int:
    """Connect, read a value, and print the outcome in a line."""
    from ray.exceptions import AuthenticationError  # noqa: PLC0415

    try:
        client = import_module("ray._raylet").GcsClient(address=arguments[0])
        client.internal_kv_keys(b"", b"", timeout=_CONNECT_TIMEOUT_S)
    except AuthenticationError:
        print(ClusterAccess.REFUSED.value)
    except Exception as error:
        print(f"{ClusterAccess.NOTHING.value}: {type(error).__name__}: {error}".splitlines()[0])
    else:
        print(ClusterAccess.OPEN.value)
    return 0


def _waits_for_connection(address: str) -> bool:
    """Whether something listens there, at once or soon: a head may be starting."""
    deadline = time.monotonic() + _CONNECT_TIMEOUT_S
    while not can_connect(address, 3.0):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
