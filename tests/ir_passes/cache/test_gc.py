"""The least recently used leaves first; what is in use, new or evidence stays."""

import errno
import fcntl
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest

from ir_passes.cache.entry import Entry
from ir_passes.cache.store import CacheStore
from ir_passes.errors import UntrustedEntryError

from .stores import FACTORS, FILES, KEY, found, publish, quarantined, store_at

_DAY = 86400.0


def age(path: Path, days: float) -> None:
    then = time.time() - days * _DAY
    os.utime(path, (then, then))


def publish_aged(store: CacheStore, *days: float) -> list[Entry]:
    entries = [publish(store, f"{each}".encode()) for each in days]
    for entry, each in zip(entries, days, strict=True):
        age(entry.directory, each)
    return entries


def size_on_disk(entry: Entry) -> int:
    return sum(each.stat().st_size for each in entry.directory.rglob("*") if each.is_file())


def kept(store: CacheStore) -> set[str]:
    return {each.id for each in found(store) if isinstance(each, Entry)}


def test_least_recently_used_leaves_first(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entries = publish_aged(store, 3.0, 9.0, 1.0)
    removed = store.collect(max_bytes=sum(map(size_on_disk, entries)) - 1)
    assert [(each.path, each.reason) for each in removed] == [
        (entries[1].directory, "least recently used")
    ]
    assert removed[0].num_bytes == size_on_disk(publish_aged(store, 9.0)[0])
    assert kept(store) >= {entries[0].id, entries[2].id}


def test_use_makes_an_entry_recent(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    old, middle, _ = publish_aged(store, 9.0, 3.0, 1.0)
    with store.in_use(old):
        pass
    (removed,) = store.collect(older_than=timedelta(days=2))
    assert removed.path == middle.directory


def test_entry_in_use_survives_and_leaves_later(tmp_path: Path) -> None:
    (entry,) = publish_aged(store_at(tmp_path), 9.0)
    with store_at(tmp_path, writable=False).in_use(entry) as is_marked:
        assert is_marked
        assert store_at(tmp_path).collect(max_bytes=0) == []
        assert entry.read_all()
    assert [each.path for each in store_at(tmp_path).collect(max_bytes=0)] == [entry.directory]
    assert not entry.directory.parent.exists()


def test_mark_on_an_entry_that_is_gone_says_so(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    store.collect(max_bytes=0)
    with store.in_use(entry) as is_marked:
        assert not is_marked


def test_mark_that_was_waited_for_on_an_entry_that_went_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)

    def replace_and_lock(*_: object, **__: object) -> bool:
        shutil.rmtree(entry.directory)
        publish(store)
        return True

    monkeypatch.setattr("ir_passes.cache.store.try_lock", replace_and_lock)
    with store.in_use(entry) as is_marked:
        assert not is_marked


def test_nothing_leaves_where_there_are_no_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    store = store_at(tmp_path)
    publish_aged(store, 9.0)
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert store.collect(max_bytes=0) == []


def test_publication_shrinks_the_cache_to_its_limit(tmp_path: Path) -> None:
    probe = publish(store_at(tmp_path / "probe"), b"99.0")
    store = store_at(tmp_path, max_bytes=2 * size_on_disk(probe) + 10)
    old, recent = publish_aged(store, 12.0, 11.0)
    newest = publish(store, b"9999")
    assert kept(store) == {recent.id, newest.id}
    assert not old.directory.exists()


def test_entry_above_the_limit_is_not_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path, max_bytes=100)
    assert store.publish(FACTORS, FILES, {}) is None
    assert "206 bytes, over 100" in caplog.text


def test_draft_of_a_dead_writer_leaves_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    publish(store)
    dead, live, young = (store.root / "tmp" / name for name in ("dead", "live", "young"))
    for draft in (dead, live, young):
        draft.mkdir(0o700)
    (dead / "part").write_bytes(b"123")
    age(dead, 1)
    age(live, 1)
    descriptor = os.open(live, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    (removed,) = store.collect()
    os.close(descriptor)
    assert (removed.path, removed.num_bytes, removed.reason) == (dead, 3, "abandoned")
    assert sorted((store.root / "tmp").iterdir()) == [live, young]


def test_draft_of_a_writer_at_work_stays_however_slow_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    fsync = os.fsync

    def collect_and_sync(descriptor: int) -> None:
        if list((store.root / "tmp").glob("*/*")):
            (draft,) = (store.root / "tmp").iterdir()
            age(draft, 2)
            collected.append(store_at(tmp_path).collect())
        fsync(descriptor)

    collected: list[object] = []
    monkeypatch.setattr(os, "fsync", collect_and_sync)
    assert publish(store).read_all() == FILES
    assert collected
    assert not any(collected)


def test_failure_to_collect_does_not_unmake_a_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ir_passes.cache.store.collect_garbage", fail)
    entry = publish(store_at(tmp_path, max_bytes=10_000))
    assert found(store_at(tmp_path)) == [entry]


def test_evidence_stays_for_thirty_days(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for content in (b"1", b"2"):
        store.quarantine(publish(store, content), "a reason")
    old, recent = quarantined(store)
    age(old, 31)
    age(recent, 29)
    assert [each.path for each in store.collect(max_bytes=0)] == [old]


def test_other_formats_leave_only_when_asked(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    publish(store)
    (store.root / "v2" / "ab").mkdir(0o755, parents=True)
    (store.root / "vault").mkdir(0o755)
    assert store.collect() == []
    (removed,) = store.collect(other_formats=True)
    assert (removed.path, removed.reason) == (store.root / "v2", "of another release")
    assert (store.root / "vault").exists()


def test_old_locks_leave_unless_they_are_held(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with store.lock("a" * 64, 1.0), store.lock("b" * 64, 1.0):
        pass
    with store.lock(KEY, 1.0):
        locks = store.root / "locks"
        for each in locks.iterdir():
            age(each, 0 if each.name[0] == "b" else 2)
        store.collect()
        names = sorted(each.name for each in locks.iterdir())
        assert names == sorted([f"{'b' * 64}.lock", f"{KEY}.lock"])


@pytest.mark.parametrize("name", ["notes.txt", "folder"])
def test_what_no_store_wrote_stays(tmp_path: Path, name: str) -> None:
    store = store_at(tmp_path)
    home = publish(store).directory.parent
    place = home / name
    place.mkdir(0o700) if name == "folder" else place.write_text("mine")
    store.collect(max_bytes=0)
    assert list(home.iterdir()) == [place]


def test_link_is_not_followed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    outside = tmp_path / "outside"
    entry.directory.rename(outside)
    entry.directory.symlink_to(outside)
    assert store.collect(max_bytes=0, older_than=timedelta(0)) == []
    assert (outside / "manifest.json").exists()


def test_link_inside_of_an_entry_is_removed_and_not_followed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    (tmp_path / "precious").write_text("kept")
    (entry.directory / "more").symlink_to(tmp_path)
    assert len(store.collect(max_bytes=0)) == 1
    assert (tmp_path / "precious").read_text() == "kept"


def test_root_that_others_can_write_is_not_collected(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    publish(store)
    store.root.chmod(0o777)
    with pytest.raises(UntrustedEntryError, match="chmod -R go-w"):
        store.collect(max_bytes=0)
