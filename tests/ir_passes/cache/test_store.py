"""What is published is found, whole and by its key; faults of the machine are no errors."""

import errno
import logging
import os
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

from ir_passes.cache.entry import Entry
from ir_passes.cache.manifest import key_of
from ir_passes.cache.store import CacheStore
from ir_passes.errors import CorruptEntryError

from .stores import (
    FACTORS,
    FILES,
    KEY,
    files_below,
    found,
    make_disk_read_only,
    publish,
    quarantined,
    store_at,
)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_published_entry_is_found_with_everything_it_was_given(tmp_path: Path) -> None:
    published = publish(store_at(tmp_path))
    (entry,) = found(store_at(tmp_path))
    assert entry == published
    assert isinstance(entry, Entry)
    assert (entry.key, entry.factors, entry.facts) == (KEY, FACTORS, {"model": "toy"})
    assert entry.read_all() == FILES
    assert entry.read("pieces/0/kernel.so") == FILES["pieces/0/kernel.so"]
    assert entry.num_bytes == sum(map(len, FILES.values()))
    assert entry.directory == store_at(tmp_path).root / "v1" / KEY[:2] / KEY / entry.id
    assert quarantined(store_at(tmp_path)) == files_below(tmp_path / "root" / "tmp") == []


def test_file_that_is_not_in_the_manifest_is_not_read(tmp_path: Path) -> None:
    entry = publish(store_at(tmp_path))
    (entry.directory / "more").write_bytes(b"")
    with pytest.raises(CorruptEntryError, match="has no file `more`"):
        entry.read("more")


def test_newest_entry_of_a_key_comes_first(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    ids = [publish(store, content).id for content in (b"1", b"2", b"3")]
    assert [each.id for each in found(store) if isinstance(each, Entry)] == ids[::-1]


def test_other_key_finds_nothing(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    publish(store)
    assert list(store.candidates(key_of({**FACTORS, "torch": "2.14"}))) == []


def test_text_that_is_no_key_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no key"):
        list(store_at(tmp_path).candidates("../" + KEY[3:]))


def test_text_that_is_no_key_names_no_lock(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no key"), store_at(tmp_path).lock("../x", 1.0):
        pass


def test_all_entries_are_listed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert list(store.entries()) == []
    one, two = publish(store, b"1"), publish(store, b"2")
    other = store.publish({"torch": "3"}, FILES, {})
    listed = {each.id: each for each in store.entries() if isinstance(each, Entry)}
    assert other is not None
    assert listed == {one.id: one, two.id: two, other.id: other}


def test_root_that_is_not_there_is_empty_and_is_not_made(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert found(store) == []
    assert store.collect() == []
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_everything_is_closed_to_others_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    store = store_at(tmp_path / "new")
    before = os.umask(umask)
    try:
        publish(store)
        with store.lock(KEY, 1.0):
            pass
    finally:
        os.umask(before)
    every = [store.root.parent, store.root, *store.root.rglob("*")]
    modes = {(each.is_dir(), stat.S_IMODE(each.stat().st_mode)) for each in every}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_root_may_be_reached_through_a_link(tmp_path: Path) -> None:
    publish(store_at(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "root")
    store = CacheStore(tmp_path / "link", key_file=tmp_path / "cache.key")
    assert len(found(store)) == 1
    assert publish(store, b"2").directory.is_relative_to(tmp_path / "root")


def test_cache_that_moved_is_found_with_its_key(tmp_path: Path) -> None:
    publish(store_at(tmp_path / "a"))
    (tmp_path / "a").rename(tmp_path / "b")
    (entry,) = found(store_at(tmp_path / "b"))
    assert isinstance(entry, Entry)
    assert entry.read_all() == FILES


def test_equal_entry_is_stored_once_and_the_first_is_returned(tmp_path: Path) -> None:
    first, second = publish(store_at(tmp_path)), publish(store_at(tmp_path))
    assert second == first
    assert files_below(tmp_path / "root" / "tmp") == []


def test_corrupt_entry_makes_room_for_an_equal_one(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    first = publish(store)
    (first.directory / "program.json").write_bytes(b"[]")
    again = publish(store)
    assert (again.id, again.read_all()) == (first.id, FILES)
    assert len(quarantined(store)) == 1


@pytest.mark.parametrize("name", ["manifest.json", "program.json"])
def test_equal_entry_that_cannot_be_read_now_is_neither_set_aside_nor_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store = store_at(tmp_path)
    first = publish(store)
    opened = os.open

    def fail_to_read(path: str, flags: int, *arguments: Any, **options: Any) -> int:
        if path == name and not flags & os.O_CREAT:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", fail_to_read)
    assert store.publish(FACTORS, FILES, {}) is None
    monkeypatch.undo()
    assert (found(store), quarantined(store)) == ([first], [])
    (warning,) = warnings_of(caplog)
    assert "cannot be read now: Input/output error" in warning


def test_order_on_disk_is_files_then_manifest_then_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store_at(tmp_path))
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_rename(source: str, target: str, **options: int) -> None:
        done.append("rename")
        rename(source, target, **options)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    publish(store_at(tmp_path), b"2")
    last_file = max(done.index("program.json"), done.index("kernel.so"))
    assert last_file < done.index("manifest.json") < done.index("rename")
    assert len(done[done.index("manifest.json") + 1 : done.index("rename")]) == 1
    assert done[-2:] == ["rename", KEY]


@pytest.mark.parametrize("name", ["../x", "/x", "manifest.json"])
def test_name_that_no_entry_can_hold_is_an_error_of_the_caller(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="the file name"):
        store_at(tmp_path).publish(FACTORS, {name: b""}, {})
    assert files_below(tmp_path) == []


def test_disk_that_is_full_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        assert store.publish(FACTORS, FILES, {}) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (warning,) = warnings_of(caplog)
    assert str(store.root) in warning
    assert "File too large. Make room" in warning
    assert files_below(store.root) == ["tmp"]


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failure_of_any_write_to_disk_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
    code: int,
) -> None:
    store = store_at(tmp_path)
    publish(store, b"before")
    fsync, calls = os.fsync, iter(range(100))

    def fail_once(descriptor: int) -> None:
        if next(calls) == step:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    result = store.publish(FACTORS, FILES, {})
    monkeypatch.undo()
    assert len(warnings_of(caplog)) == (1 if result is None else 0)
    assert files_below(store.root / "tmp") == []
    assert all(isinstance(each, Entry) and each.read_all() for each in found(store))


def test_read_only_disk_is_read_and_writes_cost_one_warning_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    make_disk_read_only(monkeypatch)
    assert found(store) == [entry]
    with store.in_use(entry) as is_marked, store.lock(KEY, 0.1) as is_held:
        assert (is_marked, is_held) == (True, False)
        assert entry.read_all() == FILES
    assert warnings_of(caplog) == []
    assert store.publish(FACTORS, {"other": b""}, {}) is None
    assert "Read-only file system. Make room or allow" in warnings_of(caplog)[0]
    assert len(warnings_of(caplog)) == 1


def test_corrupt_entry_on_a_read_only_disk_stays_and_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    (entry.directory / "manifest.json").write_bytes(b"")
    make_disk_read_only(monkeypatch)
    (only,) = found(store)
    assert not isinstance(only, Entry)
    assert only.kind == "corrupt"
    assert "it stays there: [Errno 30] Read-only file system" in warnings_of(caplog)[0]


def test_home_that_cannot_be_written_gives_no_key_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "link", refuse)
    store = store_at(tmp_path)
    assert [store.publish(FACTORS, FILES, {}) for _ in range(3)] == [None] * 3
    (warning,) = warnings_of(caplog)
    assert "no key to vouch for" in warning
    assert "Read-only file system" in warning
    assert not store.root.exists()


def test_root_that_vanishes_while_publishing_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    rename = os.rename

    def rename_elsewhere(source: str, target: str, **options: int) -> None:
        if store.root.exists():
            rename(store.root, tmp_path / "moved")
            for each in (tmp_path / "moved" / "tmp").iterdir():
                rename(each, tmp_path / each.name)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", rename_elsewhere)
    assert store.publish(FACTORS, FILES, {}) is None
    assert len(warnings_of(caplog)) == 1


def test_store_that_is_not_writable_writes_nothing(tmp_path: Path) -> None:
    entry = publish(store_at(tmp_path))
    corrupt = publish(store_at(tmp_path), b"2")
    (corrupt.directory / "manifest.json").write_bytes(b"")
    before = [(each, each.stat().st_mtime_ns) for each in sorted(tmp_path.rglob("*"))]
    store = store_at(tmp_path, writable=False)
    assert found(store)[0] == entry
    assert store.publish(FACTORS, {"x": b""}, {}) is None
    store.quarantine(entry, "a reason")
    with store.in_use(entry) as is_marked, store.lock(KEY, 1.0) as is_held:
        assert (is_marked, is_held) == (True, False)
    assert store.collect(max_bytes=0) == []
    assert [(each, each.stat().st_mtime_ns) for each in sorted(tmp_path.rglob("*"))] == before


def test_reader_makes_no_key(tmp_path: Path) -> None:
    publish(store_at(tmp_path))
    (tmp_path / "cache.key").unlink()
    (only,) = found(store_at(tmp_path, writable=False))
    assert not isinstance(only, Entry)
    assert "there is no key" in only.reason
    assert not (tmp_path / "cache.key").exists()


@pytest.mark.parametrize(
    ("limits", "problem"),
    [({"MAX_FILES": 1}, "2 files, over 1"), ({"MAX_FILE_BYTES": 9}, "a file of 204 bytes, over 9")],
)
def test_entry_that_no_reader_would_take_is_not_stored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: dict[str, int],
    problem: str,
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(f"ir_passes.cache.store.{name}", value)
    assert store_at(tmp_path).publish(FACTORS, FILES, {}) is None
    assert problem in warnings_of(caplog)[0]


def test_quarantine_keeps_the_evidence_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    store.quarantine(entry, "the loader says: missing symbol")
    assert found(store) == []
    (place,) = quarantined(store)
    assert (place / "entry" / "program.json").read_bytes() == FILES["program.json"]
    assert "missing symbol" in (place / "reason.txt").read_text()
    assert len(warnings_of(caplog)) == 1
    store.quarantine(entry, "again")
    assert len(quarantined(store)) == len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("path", ["", "tmp", "v1", "../elsewhere"])
def test_quarantine_takes_entries_only(tmp_path: Path, path: str) -> None:
    store = store_at(tmp_path)
    with pytest.raises(ValueError, match="root"):
        store.quarantine(store.root / path, "a reason")
