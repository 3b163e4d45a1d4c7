"""What is not as it was written, or could be another's, is not used; the reason says what to do."""

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ir_passes.cache import trust as trust_module
from ir_passes.cache.entry import Entry, Refused
from ir_passes.cache.manifest import canonical
from ir_passes.cache.store import CacheStore
from ir_passes.config import CacheTrust
from ir_passes.errors import CorruptEntryError, UnreadableEntryError, UntrustedEntryError

from .stores import FACTORS, FILES, KEY, flip_bit, found, publish, quarantined, refused, store_at


def edit_manifest(entry: Entry, **fields: object) -> None:
    place = entry.directory / "manifest.json"
    place.write_bytes(canonical({**json.loads(place.read_bytes()), **fields}))


@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_of_a_file_is_found_when_it_is_read(tmp_path: Path, name: str) -> None:
    store = store_at(tmp_path)
    publish(store)
    (entry,) = found(store)
    assert isinstance(entry, Entry)
    flip_bit(entry.directory / name)
    with pytest.raises(CorruptEntryError, match=f"{name} is not what its manifest says"):
        entry.read(name)
    with pytest.raises(CorruptEntryError):
        entry.read_all()


@pytest.mark.parametrize("content", [b"", b"{", b"{}{}"])
def test_file_of_another_size_is_found_when_it_is_read(tmp_path: Path, content: bytes) -> None:
    entry = publish(store_at(tmp_path))
    (entry.directory / "program.json").write_bytes(content)
    with pytest.raises(CorruptEntryError, match=rf"has {len(content)} bytes, its manifest says 2"):
        entry.read("program.json")


def test_missing_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    entry = publish(store_at(tmp_path))
    shutil.rmtree(entry.directory / "pieces")
    with pytest.raises(CorruptEntryError, match="is gone or not whole: No such file"):
        entry.read_all()


def fail_to_open(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Let every open of that name fail."""
    opened = os.open

    def open_or_fail(path: str, *arguments: Any, **options: Any) -> int:
        if path == name:
            raise OSError(code, os.strerror(code))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_or_fail)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_file_that_the_system_does_not_give_now_is_not_called_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    entry = publish(store_at(tmp_path))
    fail_to_open(monkeypatch, "program.json", code)
    with pytest.raises(UnreadableEntryError, match=f"cannot be read now: {os.strerror(code)}"):
        entry.read_all()


def test_manifest_that_the_system_does_not_give_now_is_no_reason_to_set_it_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    fail_to_open(monkeypatch, "manifest.json", errno.EIO)
    result = refused(store)
    assert (result.kind, quarantined(store)) == ("unreadable", [])
    assert f"{entry.directory} cannot be read now: Input/output error" in result.reason
    monkeypatch.undo()
    assert found(store) == [entry]


def test_no_flipped_bit_of_a_manifest_is_believed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    place = entry.directory / "manifest.json"
    content = place.read_bytes()
    kinds: set[str] = set()
    for index in range(0, len(content), 3):
        flip_bit(place, index)
        result = refused(store_at(tmp_path, writable=False))
        kinds.add(result.kind)
        place.write_bytes(content)
    assert kinds == {"corrupt", "untrusted", "format"}
    assert found(store) == [entry]


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_truncated_manifest_is_set_aside_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    place = entry.directory / "manifest.json"
    place.write_bytes(place.read_bytes()[:length])
    assert refused(store).kind == "corrupt"
    assert found(store) == []
    (aside,) = quarantined(store)
    assert str(entry.directory) in (aside / "reason.txt").read_text()
    (warning,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert str(aside) in warning.getMessage()


def test_entry_without_a_manifest_is_set_aside(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    (publish(store).directory / "manifest.json").unlink()
    assert "has no manifest" in refused(store).reason
    assert len(quarantined(store)) == 1


def test_manifest_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    with (publish(store).directory / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert "has 1099511627776 bytes, over 4194304" in refused(store).reason


def test_listing_leaves_corrupt_entries_where_they_are(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    (publish(store).directory / "manifest.json").write_bytes(b"")
    (only,) = store.entries()
    assert isinstance(only, Refused)
    assert (only.kind, quarantined(store)) == ("corrupt", [])


def test_entry_of_another_place_is_corrupt(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    entry.directory.rename(entry.directory.with_name("0" * 64))
    assert "is the entry of" in refused(store).reason


def test_factors_that_do_not_give_the_key_are_corrupt(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    edit_manifest(publish(store), factors={**FACTORS, "torch": "2.14"})
    assert "factors do not give its key" in refused(store).reason


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.0])
def test_other_format_is_neither_used_nor_touched(tmp_path: Path, version: object) -> None:
    store = store_at(tmp_path)
    edit_manifest(publish(store), format=version, unheard_of=[])
    result = refused(store)
    assert result.kind == "format"
    assert f"has the format {version!r}; this release reads 1" in result.reason
    assert quarantined(store) == []


def test_directories_of_other_formats_are_listed(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    (store.root / "v2").mkdir()
    first, second = store.entries()
    assert first == entry
    assert isinstance(second, Refused)
    assert (second.kind, second.directory) == ("format", store.root / "v2")


def test_copied_cache_is_refused_with_the_command_and_stays(tmp_path: Path) -> None:
    publish(store_at(tmp_path / "a b"))
    theirs = CacheStore(tmp_path / "a b" / "root", key_file=tmp_path / "other.key")
    theirs.publish({"another": "key"}, FILES, {})
    result = refused(theirs)
    assert result.kind == "untrusted"
    assert "not made with this key" in result.reason
    assert f"`serve-shim cache import '{result.directory}'`" in result.reason
    assert quarantined(theirs) == []
    assert len(found(store_at(tmp_path / "a b"))) == 1


def test_nodes_that_share_a_key_accept_a_plain_copy(tmp_path: Path) -> None:
    publish(store_at(tmp_path / "a"))
    shutil.copytree(tmp_path / "a" / "root", tmp_path / "b" / "root")
    (entry,) = found(CacheStore(tmp_path / "b" / "root", key_file=tmp_path / "a" / "cache.key"))
    assert isinstance(entry, Entry)
    assert entry.read_all() == FILES


@pytest.mark.parametrize("mac", ["", "0" * 64, None, 3])
def test_forged_code_is_untrusted(tmp_path: Path, mac: object) -> None:
    store = store_at(tmp_path)
    edit_manifest(publish(store), mac=mac)
    assert refused(store).kind == "untrusted"


def test_manifest_without_a_code_is_untrusted(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    place = publish(store).directory / "manifest.json"
    document = json.loads(place.read_bytes())
    del document["mac"]
    place.write_bytes(canonical(document))
    assert "signed with no key" in refused(store).reason


def test_own_entry_takes_the_place_of_an_equal_one_of_unknown_origin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    edit_manifest(publish(store), facts={"model": "of someone else"})
    entry = publish(store)
    assert found(store) == [entry]
    assert (entry.facts, quarantined(store)) == ({"model": "toy"}, [])
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_key_that_others_can_read_vouches_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    publish(store)
    (tmp_path / "cache.key").chmod(0o644)
    assert f"`chmod 600 {tmp_path / 'cache.key'}`" in refused(store).reason
    assert store.publish({"b": "c"}, FILES, {}) is None
    assert "chmod 600" in caplog.text


def test_directory_trust_needs_no_key_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trust_module._warn_of_directory_trust.cache_clear()
    entry = publish(store_at(tmp_path))
    for _ in range(2):
        store = CacheStore(
            tmp_path / "root", key_file=tmp_path / "other.key", trust=CacheTrust.DIRECTORY
        )
        assert found(store) == [entry]
    assert caplog.text.count("--cache-trust=directory") == 1


def test_directory_trust_publishes_without_a_key_what_others_do_not_believe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "link", refuse)
    entry = publish(store_at(tmp_path, trust=CacheTrust.DIRECTORY))
    monkeypatch.undo()
    assert found(store_at(tmp_path, trust=CacheTrust.DIRECTORY)) == [entry]
    assert refused(store_at(tmp_path)).kind == "untrusted"


def test_user_without_a_home_has_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(trust_module, "default_key_file", refuse)
    store = CacheStore(tmp_path / "root")
    assert store.publish(FACTORS, FILES, {}) is None
    assert "the user has no home directory" in caplog.text
    publish(store_at(tmp_path))
    assert "the user has no home directory" in refused(store).reason


def test_directory_trust_still_verifies_digests_and_permissions(tmp_path: Path) -> None:
    store = store_at(tmp_path, trust=CacheTrust.DIRECTORY)
    entry = publish(store)
    flip_bit(entry.directory / "program.json")
    with pytest.raises(CorruptEntryError):
        entry.read("program.json")
    entry.directory.chmod(0o777)
    assert refused(store).kind == "untrusted"


def places(entry: Entry, depth: str) -> Path:
    root = entry.directory.parents[3]
    return {
        "root": root,
        "format": root / "v1",
        "shard": root / "v1" / KEY[:2],
        "key": entry.directory.parent,
        "entry": entry.directory,
        "manifest": entry.directory / "manifest.json",
    }[depth]


@pytest.mark.parametrize("bit", [0o020, 0o002])
@pytest.mark.parametrize("depth", ["root", "format", "shard", "key", "entry", "manifest"])
def test_what_others_can_write_is_refused_with_the_command(
    tmp_path: Path, depth: str, bit: int
) -> None:
    store = store_at(tmp_path)
    place = places(publish(store), depth)
    place.chmod(place.stat().st_mode | bit)
    result = refused(store)
    assert result.kind == "untrusted"
    assert f"{place} can be written by other users" in result.reason
    assert f"`chmod -R go-w {place}`" in result.reason
    place.chmod(place.stat().st_mode & ~bit)
    assert len(quarantined(store)) == 0
    assert isinstance(found(store)[0], Entry)


@pytest.mark.parametrize("depth", ["root", "format", "shard", "key", "entry"])
def test_listing_shows_what_others_can_write(tmp_path: Path, depth: str) -> None:
    store = store_at(tmp_path)
    place = places(publish(store), depth)
    place.chmod(0o777)
    (only,) = store.entries()
    assert isinstance(only, Refused)
    assert f"`chmod -R go-w {place}`" in only.reason


@pytest.mark.parametrize("depth", ["format", "shard", "key", "entry", "manifest"])
def test_link_below_the_root_is_refused(tmp_path: Path, depth: str) -> None:
    store = store_at(tmp_path)
    place = places(publish(store), depth)
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "away")
    result = refused(store)
    assert result.kind == "untrusted"
    assert f"{place} is a symbolic link" in result.reason
    assert (tmp_path / "away").exists()


def test_what_another_user_owns_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    publish(store)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    result = refused(store)
    assert result.kind == "untrusted"
    assert f"`chown -R 12345 {store.root}`" in result.reason


@pytest.mark.parametrize("kind", ["writable", "link", "folder link", "pipe"])
def test_file_that_is_not_ones_own_is_not_read(tmp_path: Path, kind: str) -> None:
    entry = publish(store_at(tmp_path))
    place = entry.directory / "pieces" / "0" / "kernel.so"
    if kind == "writable":
        place.chmod(0o622)
    elif kind == "pipe":
        place.unlink()
        os.mkfifo(place, 0o600)
    else:
        moved = place if kind == "link" else place.parent
        moved.rename(tmp_path / "away")
        moved.symlink_to(tmp_path / "away")
    with pytest.raises(UntrustedEntryError, match=r"other users|symbolic link|no regular file"):
        entry.read("pieces/0/kernel.so")


def test_nothing_is_published_where_others_can_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_at(tmp_path)
    store.root.mkdir()
    store.root.chmod(0o777)
    assert store.publish(FACTORS, FILES, {}) is None
    assert f"chmod -R go-w {store.root}" in caplog.text
    assert list(store.root.iterdir()) == []


def test_entry_swapped_after_it_was_found_is_not_read(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    entry = publish(store)
    other = publish(store, b"[]")
    shutil.rmtree(entry.directory)
    other.directory.rename(entry.directory)
    with pytest.raises(CorruptEntryError, match="is not what its manifest says"):
        entry.read("program.json")
