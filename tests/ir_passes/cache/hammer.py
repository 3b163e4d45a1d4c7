"""Processes on one cache, for tests to run as a script: each step killed, or all at random.

hammer.py steps ROOT        publish once per step of the system, killed before that step
hammer.py soak ROOT SECONDS publish, read and collect in processes that are killed at random
hammer.py hold ROOT         take a key's lock and keep it
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ir_passes.cache.entry import Entry
from ir_passes.cache.manifest import key_of
from ir_passes.cache.store import CacheStore

FACTORS = {"torch": "2.13"}
KEY = key_of(FACTORS)
STEPS = ("open", "mkdir", "chmod", "fchmod", "fsync", "rename", "link", "unlink", "rmdir")
BAD = 3
_WORKERS = 4


def files_of(variant: int) -> dict[str, bytes]:
    """Files that tell which variant they belong to."""
    return {f"a/{name}": bytes([variant]) * 50_000 for name in "xyz"}


def store_at(root: Path) -> CacheStore:
    """A store with its key beside it."""
    return CacheStore(root, key_file=root.with_suffix(".key"))


def main() -> None:
    """Run the command of the arguments."""
    command, root = sys.argv[1], Path(sys.argv[2])
    if command == "steps":
        print(publish_killed(root))
    elif command == "soak":
        sys.exit(soak(root, float(sys.argv[3])))
    else:
        with store_at(root).lock(KEY, 1.0) as is_held:
            print(is_held, flush=True)
            signal.pause()


def publish_killed(root: Path) -> int:
    """Publish to a root of its own per step; how many steps it takes until nothing is killed."""
    step = 0
    while True:
        process = os.fork()
        if process == 0:
            kill_before(step)
            store_at(root / f"{step}").publish(FACTORS, files_of(1), {})
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            return step
        step += 1


def kill_before(step: int) -> None:
    """Kill this process before its so many-th call of the system that changes something."""
    left = iter(range(step, -1, -1))

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in STEPS:
        setattr(os, name, guarded(getattr(os, name)))


def soak(root: Path, seconds: float) -> int:
    """Keep processes at work and kill some; 0 unless one of them saw what must not be."""
    deadline = time.monotonic() + seconds
    workers = {start_worker(root) for _ in range(_WORKERS)}
    try:
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.0, 0.05))
            os.kill(random.choice(list(workers)), signal.SIGKILL)
            process, status = os.wait()
            workers.remove(process)
            if os.WIFEXITED(status):
                return os.WEXITSTATUS(status)
            workers.add(start_worker(root))
    finally:
        for each in workers:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    return 0


def start_worker(root: Path) -> int:
    """A process that works until it is killed."""
    process = os.fork()
    if process == 0:
        try:
            random.seed()
            while True:
                work(store_at(root))
        except BaseException as error:  # what leaves a fork must not run the parent's code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(BAD)
    return process


def work(store: CacheStore) -> None:
    """Publish, read all there is, now and then collect; raises for a bad read."""
    variant = random.randrange(4)
    published = store.publish(FACTORS, files_of(variant), {"variant": str(variant)})
    if published is None:
        raise RuntimeError("not published")
    for each in store.candidates(KEY):
        if not isinstance(each, Entry):
            raise RuntimeError(each.reason)
        with store.in_use(each) as is_marked:
            if is_marked and each.read_all() != files_of(int(each.facts["variant"])):
                raise RuntimeError("read another entry's files")
    if random.random() < 0.3:
        store.collect(max_bytes=300_000)


if __name__ == "__main__":
    main()
