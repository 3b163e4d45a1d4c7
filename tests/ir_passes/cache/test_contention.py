"""Processes that die, stop or race: nobody reads a part of an entry, and nobody waits for long."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ir_passes.cache.entry import Entry

from . import hammer

_SCRIPT = Path(hammer.__file__)


def run(command: str, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(_SCRIPT), command, str(root), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@contextmanager
def lock_holder(root: Path) -> Generator[subprocess.Popen[str]]:
    """A process that holds the lock of the key."""
    arguments = [sys.executable, str(_SCRIPT), "hold", str(root)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "True\n"
            yield process
        finally:
            process.kill()


def test_publisher_killed_at_any_step_leaves_a_whole_entry_or_none(tmp_path: Path) -> None:
    result = run("steps", tmp_path)
    assert result.stderr == ""
    num_steps = int(result.stdout)
    assert num_steps > 30
    outcomes: list[int] = []
    for step in range(num_steps):
        store = hammer.store_at(tmp_path / f"{step}")
        before = list(store.candidates(hammer.KEY))
        assert all(isinstance(each, Entry) and each.read_all() for each in before)
        entry = store.publish(hammer.FACTORS, hammer.files_of(1), {})
        assert entry is not None
        assert entry.read_all() == hammer.files_of(1)
        outcomes.append(len(before))
        for draft in (store.root / "tmp").iterdir():
            os.utime(draft, (0, 0))
        store.collect()
        assert list((store.root / "tmp").iterdir()) == []
    assert set(outcomes) == {0, 1}
    assert sorted(outcomes) == outcomes


def test_processes_killed_at_random_never_read_badly(tmp_path: Path) -> None:
    result = run("soak", tmp_path / "root", "3")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.slow
def test_processes_killed_at_random_for_longer_never_read_badly(tmp_path: Path) -> None:
    result = run("soak", tmp_path / "root", "20")
    assert (result.returncode, result.stderr) == (0, "")


def test_cold_starts_on_one_root_compile_once(tmp_path: Path) -> None:
    compiled: list[int] = []

    def start(number: int) -> bytes:
        store = hammer.store_at(tmp_path / "root")
        with store.lock(hammer.KEY, 10.0) as is_held:
            assert is_held
            entries = list(store.candidates(hammer.KEY))
            if not entries:
                compiled.append(number)
                time.sleep(0.05)
                entries = [store.publish(hammer.FACTORS, hammer.files_of(1), {})]
        (entry,) = entries
        assert isinstance(entry, Entry)
        return entry.read("a/x")

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(start, range(4))) == {hammer.files_of(1)["a/x"]}
    assert len(compiled) == 1


def test_equal_entries_published_at_once_are_one(tmp_path: Path) -> None:
    def start(_: int) -> Entry | None:
        store = hammer.store_at(tmp_path / "root")
        return store.publish(hammer.FACTORS, hammer.files_of(1), {})

    with ThreadPoolExecutor(4) as pool:
        entries = list(pool.map(start, range(12)))
    assert None not in entries
    assert len({entry.id for entry in entries if entry}) == 1
    assert len(list(hammer.store_at(tmp_path / "root").entries())) == 1


def test_place_that_is_removed_while_publishing_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    rename = os.rename

    def remove_and_rename(source: str, target: str, **options: int) -> None:
        home = store.root / "v1" / hammer.KEY[:2] / hammer.KEY
        if not removed:
            removed.append(home)
            home.rmdir()
        rename(source, target, **options)

    removed: list[Path] = []
    monkeypatch.setattr(os, "rename", remove_and_rename)
    entry = store.publish(hammer.FACTORS, hammer.files_of(1), {})
    assert entry is not None
    assert entry.read_all() == hammer.files_of(1)


def test_entry_published_anew_is_not_set_aside_for_the_one_that_went(tmp_path: Path) -> None:
    store = hammer.store_at(tmp_path / "root")
    old = store.publish(hammer.FACTORS, hammer.files_of(1), {})
    assert old is not None
    store.collect(max_bytes=0)
    new = store.publish(hammer.FACTORS, hammer.files_of(1), {})
    store.quarantine(old, "it is gone")
    assert list(store.candidates(hammer.KEY)) == [new]
    assert list((store.root / "quarantine").iterdir()) == []


def test_equal_entry_is_not_collected_while_it_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    first = store.publish(hammer.FACTORS, hammer.files_of(1), {})
    read = Entry.read

    def collect_and_read(entry: Entry, name: str) -> bytes:
        collected.append(store.collect(max_bytes=0))
        return read(entry, name)

    collected: list[object] = []
    monkeypatch.setattr(Entry, "read", collect_and_read)
    assert store.publish(hammer.FACTORS, hammer.files_of(1), {}) == first
    assert collected
    assert not any(collected)


def test_lock_whose_file_was_removed_while_waiting_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    place = store.root / "locks" / f"{hammer.KEY}.lock"
    flock = fcntl.flock

    def lock_and_remove(descriptor: int, mode: int) -> None:
        flock(descriptor, mode)
        if not removed:
            removed.append(place)
            place.unlink()

    removed: list[Path] = []
    monkeypatch.setattr(fcntl, "flock", lock_and_remove)
    with store.lock(hammer.KEY, 1.0) as is_held, store.lock(hammer.KEY, 0.0) as is_held_twice:
        assert (is_held, is_held_twice) == (True, False)


def fail(monkeypatch: pytest.MonkeyPatch, module: object, name: str, code: int) -> None:
    """Let a function of the system fail."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, name, refuse)


@pytest.mark.parametrize("name", ["fchmod", "truncate", "pwrite"])
def test_lock_whose_holder_cannot_be_written_is_a_lock_and_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = hammer.store_at(tmp_path / "root")
    fail(monkeypatch, os, name, errno.ENOSPC)
    with store.lock(hammer.KEY, 0.0) as is_held, store.lock(hammer.KEY, 0.0) as is_held_twice:
        assert (is_held, is_held_twice) == (True, False)
    with store.lock(hammer.KEY, 0.0) as is_held:
        assert is_held


def test_lock_that_fails_once_it_is_taken_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    with monkeypatch.context() as failing:
        fail(failing, os.path, "samestat", errno.EIO)
        with store.lock(hammer.KEY, 0.0) as is_held:
            assert not is_held
    with store.lock(hammer.KEY, 0.0) as is_held:
        assert is_held


@contextmanager
def inherited_locks(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Each lock has a second descriptor, as one that a forked child has."""
    flock, copies = fcntl.flock, list[int]()

    def lock_and_copy(descriptor: int, mode: int) -> None:
        flock(descriptor, mode)
        copies.append(os.dup(descriptor))

    with monkeypatch.context() as copying:
        copying.setattr(fcntl, "flock", lock_and_copy)
        yield
    for each in copies:
        os.close(each)


def test_child_that_was_forked_under_a_lock_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    with inherited_locks(monkeypatch):
        with store.lock(hammer.KEY, 0.0) as is_held:
            assert is_held
        with store.lock(hammer.KEY, 0.0) as is_held:
            assert is_held


def test_child_that_leaves_the_lock_of_its_parent_does_not_release_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hammer.store_at(tmp_path / "root")
    with inherited_locks(monkeypatch):
        with monkeypatch.context() as child, store.lock(hammer.KEY, 0.0):
            child.setattr(os, "getpid", lambda: 0)
        with store.lock(hammer.KEY, 0.0) as is_held:
            assert not is_held


def test_file_system_without_locks_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = hammer.store_at(tmp_path / "root")
    fail(monkeypatch, fcntl, "flock", errno.ENOLCK)
    for _ in range(2):
        with store.lock(hammer.KEY, 300.0) as is_held:
            assert not is_held
    assert "gives no locks: No locks available" in caplog.text
    assert "was locked for" not in caplog.text
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1


def test_stopped_holder_of_a_lock_is_waited_for_no_longer_than_the_bound(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "root"
    with lock_holder(root) as process:
        process.send_signal(signal.SIGSTOP)
        with hammer.store_at(root).lock(hammer.KEY, 0.2) as is_held:
            assert not is_held
        assert f"locked for 0.2 s by process {process.pid} on " in caplog.text
        process.kill()
        with hammer.store_at(root).lock(hammer.KEY, 10.0) as is_held:
            assert is_held


def test_lock_of_another_key_is_free(tmp_path: Path) -> None:
    store = hammer.store_at(tmp_path)
    with store.lock("a" * 64, 0.0) as one, store.lock("b" * 64, 0.0) as other:
        assert (one, other) == (True, True)
    with store.lock("a" * 64, 0.0) as again:
        assert again
