"""A copied directory is taken in when someone says that it may be, and is verified nevertheless."""

import shutil
from pathlib import Path

import pytest

from ir_passes.cache.adoption import directory_digest, import_directory
from ir_passes.cache.entry import Entry
from ir_passes.cache.store import CacheStore
from ir_passes.errors import BundleError, CorruptEntryError, UntrustedEntryError

from .stores import FILES, flip_bit, found, publish, quarantined, refused, store_at


def copy_cache(path: Path) -> tuple[Path, list[Entry]]:
    """The root of a cache with two entries that another key vouches for, and the entries."""
    store = store_at(path / "theirs")
    return store.root, [publish(store, b"1"), publish(store, b"2")]


def test_copied_cache_is_taken_in_when_told_so(tmp_path: Path) -> None:
    root, theirs = copy_cache(tmp_path)
    store = store_at(tmp_path / "ours")
    entries = import_directory(store, root, unverified=True)
    assert {each.id for each in entries} == {each.id for each in theirs}
    assert len(found(store)) == 2
    assert entries[0].read("pieces/0/kernel.so") == FILES["pieces/0/kernel.so"]
    assert entries[0].facts["imported_from"] == "directory"


def test_copied_entry_is_taken_in_from_any_place(tmp_path: Path) -> None:
    _, (entry, _) = copy_cache(tmp_path)
    shutil.copytree(entry.directory, tmp_path / "elsewhere")
    (adopted,) = import_directory(
        store_at(tmp_path / "ours"), tmp_path / "elsewhere", unverified=True
    )
    assert (adopted.id, adopted.created) == (entry.id, entry.created)


def test_entry_of_the_store_itself_is_believed_from_then_on(tmp_path: Path) -> None:
    entry = publish(store_at(tmp_path))
    store = CacheStore(tmp_path / "root", key_file=tmp_path / "ours.key")
    assert f"serve-shim cache import {entry.directory}" in refused(store).reason
    (adopted,) = import_directory(store, refused(store).directory, unverified=True)
    assert found(store) == [adopted]
    assert (adopted.directory, quarantined(store)) == (entry.directory, [])


def test_directory_without_proof_is_refused_with_both_ways(tmp_path: Path) -> None:
    root, _ = copy_cache(tmp_path)
    store = store_at(tmp_path / "ours")
    with pytest.raises(BundleError, match=r"(?s)`--sha256 DIGEST`.*`--yes-i-trust-it`"):
        import_directory(store, root)
    assert not store.root.exists()


def test_digest_of_the_directory_is_proof(tmp_path: Path) -> None:
    root, _ = copy_cache(tmp_path)
    sha256 = directory_digest(root)
    shutil.copytree(root, tmp_path / "copy")
    assert len(import_directory(store_at(tmp_path / "ours"), tmp_path / "copy", sha256=sha256)) == 2


def test_wrong_digest_of_the_directory_is_refused(tmp_path: Path) -> None:
    root, (entry, _) = copy_cache(tmp_path)
    sha256 = directory_digest(root)
    shutil.rmtree(entry.directory)
    with pytest.raises(BundleError, match="does not have the digest"):
        import_directory(store_at(tmp_path / "ours"), root, sha256=sha256, unverified=True)


def test_flipped_bit_stops_the_whole_import(tmp_path: Path) -> None:
    root, (entry, _) = copy_cache(tmp_path)
    flip_bit(entry.directory / "pieces" / "0" / "kernel.so")
    store = store_at(tmp_path / "ours")
    with pytest.raises(CorruptEntryError, match=r"kernel\.so is not what its manifest says"):
        import_directory(store, root, unverified=True)
    assert not store.root.exists()


@pytest.mark.parametrize("is_whole_cache", [False, True])
def test_corrupt_manifest_stops_the_whole_import(tmp_path: Path, is_whole_cache: bool) -> None:
    root, (entry, _) = copy_cache(tmp_path)
    (entry.directory / "manifest.json").write_bytes(b"{")
    source = root if is_whole_cache else entry.directory
    with pytest.raises(CorruptEntryError, match="the manifest is not JSON"):
        import_directory(store_at(tmp_path / "ours"), source, unverified=True)
    assert entry.directory.exists()


@pytest.mark.parametrize("place", ["", "v1", "entry"])
def test_directory_that_others_can_write_is_refused(tmp_path: Path, place: str) -> None:
    root, (entry, _) = copy_cache(tmp_path)
    (entry.directory if place == "entry" else root / place).chmod(0o777)
    source = entry.directory if place == "entry" else root
    with pytest.raises((BundleError, UntrustedEntryError), match="chmod -R go-w"):
        import_directory(store_at(tmp_path / "ours"), source, unverified=True)


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_directory_without_an_entry_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError, match=f"{name} holds no entry"):
        import_directory(store_at(tmp_path / "ours"), tmp_path / name, unverified=True)
