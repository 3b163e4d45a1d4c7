"""A key is the whole digest of its factors; a manifest is what it was written as, or corrupt."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ir_passes.cache.layout import default_key_file, default_root
from ir_passes.cache.manifest import Manifest, canonical, key_of
from ir_passes.cache.manifest_parser import parse_document, parse_manifest
from ir_passes.errors import CorruptEntryError

from .stores import FACTORS, FILES


def make_document() -> dict[str, Any]:
    return Manifest.of(FACTORS, {"model": "toy"}, FILES).to_document()


def test_key_is_the_whole_digest_of_canonical_factors() -> None:
    expected = hashlib.sha256(b'{"a":"1","b":"\\u00e9"}').hexdigest()
    assert key_of({"b": "é", "a": "1"}) == expected == key_of({"a": "1", "b": "é"})


def test_key_tells_where_a_name_ends_and_its_value_begins() -> None:
    assert len({key_of(each) for each in ({"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""})}) == 3


def test_factor_that_is_no_text_is_an_error_of_the_caller() -> None:
    with pytest.raises(TypeError, match="factor 'limit' has the value 3"):
        key_of({"limit": 3})  # pyright: ignore[reportArgumentType]


def test_id_depends_on_names_and_contents_alone() -> None:
    one = Manifest.of(FACTORS, {"model": "toy"}, {"a": b"1", "b": b"2"})
    assert one.id == Manifest.of({}, {}, {"b": b"2", "a": b"1"}).id
    assert one.id != Manifest.of(FACTORS, {"model": "toy"}, {"a": b"2", "b": b"1"}).id


def test_manifest_comes_back_from_its_document() -> None:
    manifest = Manifest.of(FACTORS, {"model": "toy"}, FILES)
    again = parse_manifest(parse_document(canonical(manifest.to_document())))
    assert again == manifest
    assert again.created.utcoffset() is not None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a//b",
        "a/.",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "\ud800",
        "manifest.json",
        "manifest.json/x",
        "x" * 201,
        "/".join("abcdefghi"),
    ],
)
def test_impossible_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the file name"):
        Manifest.of(FACTORS, {}, {name: b""})
    document = make_document()
    document["files"][name] = document["files"]["program.json"]
    with pytest.raises(CorruptEntryError, match="in the manifest the file name"):
        parse_manifest(document)


def test_file_that_is_also_a_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' is also that of a folder"):
        Manifest.of(FACTORS, {}, {"a": b"", "a/b": b""})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("key", "0" * 64, "do not give its key"),
        ("factors", {"torch": "2.14"}, "do not give its key"),
        ("factors", {"torch": 2}, "factors are no texts"),
        ("facts", [], "facts are no texts"),
        ("created", "2026-01-01T00:00:00", "not one in UTC"),
        ("created", "2026-01-01T00:00:00+02:00", "not one in UTC"),
        ("created", 3, "not one in UTC"),
        ("files", [], "no list of at most 4096"),
        ("files", dict.fromkeys(map(str, range(4097))), "no list of at most 4096"),
        ("files", {"a": None}, "`a` has not its fields"),
        ("files", {"a": {"size": True, "sha256": "0" * 64}}, "`a` has not its fields"),
        ("files", {"a": {"size": -1, "sha256": "0" * 64}}, "`a` has no possible size"),
        ("files", {"a": {"size": 1 << 40, "sha256": "0" * 64}}, "`a` has no possible size"),
        ("files", {"a": {"size": 1, "sha256": "0" * 63}}, "`a` has no sha256"),
        (
            "files",
            {name: {"size": 1 << 30, "sha256": "0" * 64} for name in "abcde"},
            "more than 4294967296 bytes",
        ),
        ("extra", "", "has the fields"),
    ],
)
def test_impossible_field_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(CorruptEntryError, match=message):
        parse_manifest({**make_document(), field: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a":NaN}', "is not JSON"),
        (b"\xff", "is not JSON"),
        (b'{"a":' + b"1" * 5000 + b"}", "is not JSON"),
        (b"[1]", "is no JSON object"),
        (b'{"a": 1}', "is not spelled"),
        (b'{"a":1,"a":1}', "is not spelled"),
        (b'{"b":1,"a":1}', "is not spelled"),
        (json.dumps({"a": "é"}, ensure_ascii=False).encode(), "is not spelled"),
    ],
    ids=range(10),
)
def test_bytes_that_no_writer_wrote_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(CorruptEntryError, match=message):
        parse_document(content)


def test_default_places_follow_the_environment_where_it_names_absolute_paths() -> None:
    assert default_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/serve-shim/compile_cache")
    assert default_key_file({"XDG_CONFIG_HOME": "/k"}) == Path("/k/serve-shim/cache.key")
    relative = {"XDG_CACHE_HOME": "c", "XDG_CONFIG_HOME": "", "HOME": "/srv/one"}
    assert default_root(relative) == Path("/srv/one/.cache/serve-shim/compile_cache")
    assert default_key_file(relative) == Path("/srv/one/.config/serve-shim/cache.key")
