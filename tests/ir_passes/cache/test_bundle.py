"""A bundle comes in whole, with proof of origin, or leaves nothing behind."""

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ir_passes.cache import bundle_archive
from ir_passes.cache.bundle import export_bundle, import_bundle, signature_path
from ir_passes.cache.entry import Entry
from ir_passes.cache.manifest import FileRecord, Manifest, canonical
from ir_passes.cache.signing import generate_key
from ir_passes.errors import BundleError, CacheError, CorruptEntryError, UntrustedEntryError

from .stores import FACTORS, FILES, files_below, flip_bit, found, publish, store_at

_FILE = b"content"
_SHA256 = hashlib.sha256(_FILE).hexdigest()

Member = tuple[tarfile.TarInfo, bytes]


def export(path: Path, **options: Any) -> tuple[Path, str]:
    """A bundle of two entries, from a store below the path."""
    store = store_at(path / "maker")
    entries = [publish(store, b"1"), publish(store, b"2")]
    bundle = path / "b.tar.gz"
    return bundle, export_bundle(entries, bundle, **options)


def refuse(path: Path, bundle: Path, message: str, **proof: Any) -> None:
    """Import into a new store: it must fail so, and leave nothing."""
    store = store_at(path / "taker")
    with pytest.raises(BundleError, match=message):
        import_bundle(store, bundle, **proof)
    assert files_below(store.root) in ([], ["tmp"])
    assert found(store) == []


def member(name: str, content: bytes = b"", **fields: Any) -> Member:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def index_of(**fields: Any) -> Member:
    manifest = Manifest.of(FACTORS, {}, {"file": _FILE})
    document = {
        "bundle": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "expires": None,
        "entries": [manifest.to_document()],
    }
    return member("bundle.json", canonical({**document, **fields}))


def craft(path: Path, members: Sequence[Member], end: bytes = bytes(1024)) -> tuple[Path, str]:
    """A bundle of any members, with its digest."""
    data = io.BytesIO()
    for info, content in members:
        data.write(info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512))
    bundle = path / "crafted.tar.gz"
    bundle.write_bytes(gzip.compress(data.getvalue() + end))
    return bundle, hashlib.sha256(bundle.read_bytes()).hexdigest()


def test_bundle_with_the_right_digest_brings_its_entries(tmp_path: Path) -> None:
    bundle, sha256 = export(tmp_path)
    store = store_at(tmp_path / "taker")
    entries = import_bundle(store, bundle, sha256=sha256)
    assert {each.id for each in entries} == {each.id for each in found(store)}  # type: ignore[union-attr]
    assert [each.read_all()["program.json"] for each in entries if isinstance(each, Entry)] != []
    assert sorted(each.read("program.json") for each in entries) == [b"1", b"2"]
    made = {
        each.id: each for each in found(store_at(tmp_path / "maker")) if isinstance(each, Entry)
    }
    for each in entries:
        assert each.created == made[each.id].created
        assert each.facts == {"model": "toy", "imported_from": f"bundle {sha256}"}
    assert files_below(store.root / "tmp") == []


def test_digest_that_is_printed_is_that_of_the_file(tmp_path: Path) -> None:
    bundle, sha256 = export(tmp_path)
    assert sha256 == hashlib.sha256(bundle.read_bytes()).hexdigest()


def test_equal_entries_give_equal_bundles(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    one, two = publish(store, b"1"), publish(store, b"2")
    assert export_bundle([one, two], tmp_path / "a") == export_bundle([two, one], tmp_path / "b")


def test_files_that_entries_share_are_there_once_and_come_out_in_each(tmp_path: Path) -> None:
    bundle, sha256 = export(tmp_path)
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
    assert names[0] == "bundle.json"
    assert len(names) == 1 + 3
    for each in import_bundle(store_at(tmp_path / "taker"), bundle, sha256=sha256):
        assert each.read("pieces/0/kernel.so") == FILES["pieces/0/kernel.so"]


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    bundle, sha256 = export(tmp_path)
    store = store_at(tmp_path / "taker")
    first = import_bundle(store, bundle, sha256=sha256)
    assert import_bundle(store, bundle, sha256=sha256) == first


def test_bundle_without_proof_is_refused_with_both_ways(tmp_path: Path) -> None:
    bundle, _ = export(tmp_path)
    refuse(tmp_path, bundle, r"(?s)without proof.*`--sha256 DIGEST`.*`--trusted-key FILE`")


def test_bundle_without_proof_is_taken_in_when_told_so(tmp_path: Path) -> None:
    bundle, _ = export(tmp_path)
    assert len(import_bundle(store_at(tmp_path / "taker"), bundle, unverified=True)) == 2


def test_wrong_digest_is_refused_whatever_else_vouches(tmp_path: Path) -> None:
    generate_key(tmp_path / "k")
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    proof = {"sha256": "0" * 64, "trusted_keys": [tmp_path / "k.pub"], "unverified": True}
    refuse(tmp_path, bundle, "does not have the digest", **proof)


def test_bundle_signed_by_a_trusted_key_is_taken_in(tmp_path: Path) -> None:
    for name in ("k", "other"):
        generate_key(tmp_path / name)
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    keys = [tmp_path / "other.pub", tmp_path / "k.pub"]
    assert len(import_bundle(store_at(tmp_path / "taker"), bundle, trusted_keys=keys)) == 2


def test_bundle_signed_by_another_key_is_refused(tmp_path: Path) -> None:
    for name in ("k", "other"):
        generate_key(tmp_path / name)
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    keys = [tmp_path / "other.pub"]
    refuse(
        tmp_path, bundle, r"signed by none of the trusted keys \(.*other\.pub", trusted_keys=keys
    )


def test_bundle_that_is_not_signed_is_refused_for_a_key(tmp_path: Path) -> None:
    generate_key(tmp_path / "k")
    bundle, _ = export(tmp_path)
    refuse(tmp_path, bundle, r"is not signed: .*b\.tar\.gz\.sig", trusted_keys=[tmp_path / "k.pub"])


@pytest.mark.parametrize("content", [b"", b"ed25519 ", b"ed25519 zz", b"rsa 00", b"\xff\xfe"])
def test_signature_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    generate_key(tmp_path / "k")
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    signature_path(bundle).write_bytes(content)
    refuse(tmp_path, bundle, "signed by none", trusted_keys=[tmp_path / "k.pub"])


def test_signature_is_of_this_bundle_only(tmp_path: Path) -> None:
    generate_key(tmp_path / "k")
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    flip_bit(bundle, 4)  # the time in the head of the compressed file: its content stays
    refuse(tmp_path, bundle, "signed by none", trusted_keys=[tmp_path / "k.pub"])


def test_private_key_is_its_owners_and_is_not_written_over(tmp_path: Path) -> None:
    generate_key(tmp_path / "keys" / "k")
    assert (tmp_path / "keys" / "k").stat().st_mode & 0o777 == 0o600
    with pytest.raises(BundleError, match="cannot be written: File exists"):
        generate_key(tmp_path / "keys" / "k")


def test_private_key_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    generate_key(tmp_path / "k")
    (tmp_path / "k").chmod(0o640)
    with pytest.raises(UntrustedEntryError, match="chmod 600"):
        export(tmp_path, signing_key=tmp_path / "k")


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n"])
def test_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    generate_key(tmp_path / "k")
    bundle, _ = export(tmp_path, signing_key=tmp_path / "k")
    (tmp_path / "bad.pub").write_bytes(content)
    refuse(tmp_path, bundle, r"bad\.pub is no public key", trusted_keys=[tmp_path / "bad.pub"])


def test_missing_library_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(BundleError, match=r"pip install 'serve-shim\[signing\]'"):
        generate_key(tmp_path / "k")
    bundle, sha256 = export(tmp_path)
    assert import_bundle(store_at(tmp_path / "taker"), bundle, sha256=sha256)


def test_expired_bundle_is_refused_and_one_that_will_expire_is_not(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    bundle, sha256 = export(tmp_path, expires=now - timedelta(seconds=1))
    refuse(tmp_path, bundle, "has expired on", sha256=sha256)
    bundle, sha256 = export(tmp_path, expires=now + timedelta(hours=1))
    assert import_bundle(store_at(tmp_path / "taker"), bundle, sha256=sha256)


def test_corrupt_entry_is_not_exported(tmp_path: Path) -> None:
    entry = publish(store_at(tmp_path))
    flip_bit(entry.directory / "program.json")
    with pytest.raises(CorruptEntryError):
        export_bundle([entry], tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_empty_bundle_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="There is no entry to export"):
        export_bundle([], tmp_path / "b")


def test_store_opened_for_reading_takes_nothing_in(tmp_path: Path) -> None:
    bundle, sha256 = export(tmp_path)
    store = store_at(tmp_path / "taker", writable=False)
    with pytest.raises(CacheError, match="opened for reading only"):
        import_bundle(store, bundle, sha256=sha256)
    assert not store.root.exists()


def test_bundle_that_is_not_there_is_named(tmp_path: Path) -> None:
    refuse(tmp_path, tmp_path / "none", "none: No such file", sha256="0" * 64)


def test_crafted_bundle_is_what_the_reader_expects(tmp_path: Path) -> None:
    bundle, sha256 = craft(tmp_path, [index_of(), member(f"files/{_SHA256}", _FILE)])
    (entry,) = import_bundle(store_at(tmp_path / "taker"), bundle, sha256=sha256)
    assert entry.read_all() == {"file": _FILE}


_GOOD = (f"files/{_SHA256}", _FILE)


@pytest.mark.parametrize(
    "bad",
    [
        member("../x", _FILE),
        member("/tmp/x", _FILE),  # noqa: S108
        member(f"files/../files/{_SHA256}", _FILE),
        member("files/" + "0" * 64, _FILE),
        member(_GOOD[0], type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member(_GOOD[0], type=tarfile.LNKTYPE, linkname="bundle.json"),
        member(_GOOD[0], type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        member(_GOOD[0], type=tarfile.BLKTYPE),
        member(_GOOD[0], type=tarfile.FIFOTYPE),
        member(_GOOD[0], type=tarfile.DIRTYPE),
        member(_GOOD[0], type=tarfile.GNUTYPE_SPARSE),
        member(_GOOD[0], b"x" * 100, type=tarfile.XHDTYPE),
        member(_GOOD[0], b"x" * 100, type=tarfile.GNUTYPE_LONGNAME),
    ],
    ids=lambda bad: f"{bad[0].name[:12]}-{bad[0].type.decode()}",
)
def test_member_that_is_not_the_next_file_is_refused(tmp_path: Path, bad: Member) -> None:
    bundle, sha256 = craft(tmp_path, [index_of(), bad, member(*_GOOD)])
    refuse(tmp_path, bundle, "has the member", sha256=sha256)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([member(*_GOOD), index_of()], r"where the file `bundle\.json` should be"),
        ([index_of()], "has no member"),
        ([index_of(), member(*_GOOD), member(*_GOOD)], "goes on after its end"),
        ([index_of(), member(*_GOOD), member("more", b"x")], "goes on after its end"),
        ([index_of(), member(_GOOD[0], b"other!!")], "not the one of its digest"),
        ([index_of(), member(_GOOD[0], b"longer than it")], "its index says 7"),
        ([index_of(bundle=2)], "has the format 2; this release reads 1"),
        ([index_of(bundle=None)], "has the format None"),
        ([index_of(expires="soon")], "no time of expiry"),
        ([index_of(expires=3)], "no time of expiry"),
        ([index_of(created=None)], "without its fields"),
        ([index_of(more=1)], "without its fields"),
        ([index_of(entries={})], "without its fields"),
        ([index_of(entries=[{}])], "format is not 1"),
        ([index_of(entries=[{"format": 1}])], "broken index"),
        ([index_of(entries=[{}] * 5000)], "5000 entries, over 4096"),
        ([member("bundle.json", b"{")], "broken index: the manifest is not JSON"),
    ],
    ids=range(17),
)
def test_bundle_that_no_release_wrote_is_refused(
    tmp_path: Path, members: list[Member], message: str
) -> None:
    bundle, sha256 = craft(tmp_path, members)
    refuse(tmp_path, bundle, message, sha256=sha256)


def test_entry_twice_is_refused(tmp_path: Path) -> None:
    entries = json.loads(index_of()[1])["entries"]
    bundle, sha256 = craft(tmp_path, [index_of(entries=entries * 2), member(*_GOOD)])
    refuse(tmp_path, bundle, "has an entry twice", sha256=sha256)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_file_name_of_an_entry_stays_below_it(tmp_path: Path, name: str) -> None:
    entries = json.loads(index_of()[1])["entries"]
    entries[0]["files"] = {name: entries[0]["files"]["file"]}
    bundle, sha256 = craft(tmp_path, [index_of(entries=entries), member(*_GOOD)])
    refuse(tmp_path, bundle, "in the manifest the file name", sha256=sha256)


def test_set_user_id_bit_does_not_reach_the_disk(tmp_path: Path) -> None:
    bundle, sha256 = craft(tmp_path, [index_of(), member(*_GOOD, mode=0o6777)])
    (entry,) = import_bundle(store_at(tmp_path / "taker"), bundle, sha256=sha256)
    assert (entry.directory / "file").stat().st_mode & 0o7777 == 0o600


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "is truncated"),
        (lambda _: b"", "is truncated"),
        (lambda _: b"no archive", "is no bundle, or damaged"),
        (lambda content: content + b"trailing", "is no bundle, or damaged"),
        (lambda content: content + gzip.compress(b"x"), "goes on after its end"),
        (lambda content: content[:-5] + b"12345", "is no bundle, or damaged"),
    ],
    ids=range(6),
)
def test_damaged_archive_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    bundle, _ = export(tmp_path)
    bundle.write_bytes(change(bundle.read_bytes()))
    refuse(tmp_path, bundle, message, unverified=True)


def test_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    zeros = FileRecord(1 << 30, "0" * 64)
    manifest = Manifest(FACTORS, {}, datetime.now(UTC), {"zeros": zeros})
    members = [index_of(entries=[manifest.to_document()]), member("files/" + "0" * 64)]
    bundle, sha256 = craft(tmp_path, members)
    refuse(tmp_path, bundle, "claims to hold far more", sha256=sha256)


def test_padding_that_is_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_archive, "_SLACK", 4096)
    members = [index_of(), member(*_GOOD)]
    bundle, sha256 = craft(tmp_path, members, end=bytes(4 << 20))
    refuse(tmp_path, bundle, "grows far beyond", sha256=sha256)


def test_disk_that_is_full_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, sha256 = export(tmp_path)

    def refuse_to_sync(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse_to_sync)
    refuse(tmp_path, bundle, "cannot be imported: .*No space left", sha256=sha256)
