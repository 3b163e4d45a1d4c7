"""The process that owns a local Ray: `python -m serve_shim.testing.ray_driver DESCRIPTOR FOLDER`.

It answers requests from the connection that it inherits, one at a time, and ends when that closes.
A process of its own, so that its environment can be what Ray and gloo need from the start.
"""

import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import ray

from serve_shim.testing.messages import Answer, Request
from serve_shim.testing.rank_run import RankRun

_OBJECT_STORE_BYTES = 80 * 1024 * 1024  # about the least that Ray takes


def main(arguments: list[str]) -> int:
    """Serve the session that started this process."""
    connection = Connection(int(arguments[0]))
    directory = Path(arguments[1])
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(directory / "ray"),
    )
    try:
        connection.send(Answer())
        while (request := _next_request(connection)) is not None:
            connection.send(_answer(request, directory))
    finally:
        ray.shutdown()
    return 0


def _next_request(connection: Connection) -> Request | None:
    try:
        return connection.recv()
    except EOFError:
        return None


def _answer(request: Request, directory: Path) -> Answer:
    try:
        with RankRun(request, directory) as run:
            return run.answer()
    except Exception:
        return Answer(refusal=traceback.format_exc())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
