"""The commands on the compile cache, in process, on a cache without a model."""

import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ir_passes.cache.entry import Entry
from ir_passes.cache.store import CacheStore
from serve_shim.cli import run
from serve_shim.errors import CompileCacheError, SettingsError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without the store's warnings, which other tests look at."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def published(tmp_path: Path, factor: str = "a", home: str = "cache") -> Entry:
    """An entry of the cache in `home`, with a key beside it."""
    store = CacheStore(tmp_path / home, key_file=tmp_path / f"{home}.key")
    facts = {"model": "M", "backend": "inductor", "torch": "2"}
    entry = store.publish({"factor": factor}, {"code": factor.encode()}, facts)
    assert entry is not None
    return entry


def place(tmp_path: Path, home: str = "cache") -> list[str]:
    return [f"--cache-dir={tmp_path / home}", f"--cache-key-file={tmp_path / home}.key"]


def cache(*words: str) -> int:
    return run(["cache", *words], {})


def test_ls_shows_what_is_there_and_its_state(tmp_path: Path, capsys: Captured):
    entry = published(tmp_path)
    assert cache("ls", *place(tmp_path)) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert title.split()[:5] == ["key", "id", "model", "backend", "torch"]
    assert row.split()[:5] == [entry.key[:12], entry.id[:12], "M", "inductor", "2"]
    assert row.split()[-1] == "ok"


def test_ls_names_what_cannot_be_used_and_the_reason(tmp_path: Path, capsys: Captured):
    published(tmp_path)
    (tmp_path / "cache.key").unlink()
    assert cache("ls", "--json", *place(tmp_path)) == 0
    [row] = json.loads(capsys.readouterr().out)["entries"]
    assert row["state"] == "untrusted"
    assert "serve-shim cache import" in row["reason"]


def test_ls_of_no_cache_says_that_it_is_empty(tmp_path: Path, capsys: Captured):
    assert cache("ls", *place(tmp_path)) == 0
    assert "is empty" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


def test_the_directory_may_be_given_by_its_variable(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SERVE_SHIM_CACHE_DIR", str(tmp_path / "elsewhere"))
    cache("ls")
    assert str(tmp_path / "elsewhere") in capsys.readouterr().out


def test_verify_accepts_what_is_sound(tmp_path: Path, capsys: Captured):
    published(tmp_path)
    assert cache("verify", *place(tmp_path)) == 0
    assert "--sha256 " in capsys.readouterr().out


def test_verify_names_a_file_that_was_changed(tmp_path: Path, capsys: Captured):
    bad, good = published(tmp_path), published(tmp_path, "b")
    (bad.directory / "code").write_bytes(b"x")
    assert cache("verify", *place(tmp_path)) == 1
    text = capsys.readouterr().out
    assert f"corrupt: {bad.directory}" in text
    assert f"{bad.directory / 'code'} is not what its manifest says" in text
    assert "--sha256" not in text
    assert cache("verify", good.id[:8], *place(tmp_path)) == 0
    assert cache("verify", "--json", bad.key[:8], *place(tmp_path)) == 1


@pytest.mark.parametrize(("name", "message"), [("ab", "at least 4"), ("abcdef", "no key or id")])
def test_a_name_that_fits_nothing_is_refused(tmp_path: Path, name: str, message: str):
    with pytest.raises(SettingsError, match=message):
        cache("verify", name, *place(tmp_path))


def test_what_is_exported_is_imported_by_the_command_that_is_printed(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
):
    entry = published(tmp_path)
    bundle = tmp_path / "b.tgz"
    assert cache("export", entry.key[:6], "-o", str(bundle), *place(tmp_path)) == 0
    printed = capsys.readouterr().out.split("with: ")[1]
    monkeypatch.chdir(tmp_path)
    assert run([*shlex.split(printed)[1:], *place(tmp_path, "other")], {}) == 0
    assert "serve-shim cache explain" in capsys.readouterr().out
    other = CacheStore(tmp_path / "other", key_file=tmp_path / "other.key")
    [found] = other.entries()
    assert isinstance(found, Entry)
    assert (found.id, found.read("code")) == (entry.id, b"a")


def test_a_bundle_without_proof_is_refused_with_both_ways(tmp_path: Path):
    published(tmp_path)
    bundle = str(tmp_path / "b.tgz")
    cache("export", "--all", "-o", bundle, *place(tmp_path))
    with pytest.raises(CompileCacheError, match=r"--sha256.*--trusted-key"):
        cache("import", bundle, *place(tmp_path, "other"))
    with pytest.raises(CompileCacheError, match="digest"):
        cache("import", bundle, "--sha256", "0" * 64, *place(tmp_path, "other"))
    assert cache("import", bundle, "--unverified", *place(tmp_path, "other")) == 0


def test_a_signed_bundle_is_imported_by_its_public_key(tmp_path: Path):
    pytest.importorskip("cryptography")
    published(tmp_path)
    key, bundle = tmp_path / "k", str(tmp_path / "b.tgz")
    assert cache("keygen", str(key)) == 0
    cache("export", "--all", "-o", bundle, f"--signing-key={key}", *place(tmp_path))
    assert cache("keygen", str(tmp_path / "k2")) == 0
    with pytest.raises(CompileCacheError, match="none of the trusted keys"):
        cache("import", bundle, f"--trusted-key={key}2.pub", *place(tmp_path, "other"))
    assert cache("import", bundle, f"--trusted-key={key}.pub", *place(tmp_path, "other")) == 0


@pytest.mark.usefixtures("quiet")
def test_a_copied_directory_is_imported_by_the_digest_that_verify_prints(
    tmp_path: Path, capsys: Captured
):
    published(tmp_path)
    cache("verify", *place(tmp_path))
    digest = capsys.readouterr().out.split("--sha256 ")[1].strip()
    source = str(tmp_path / "cache")
    assert cache("import", source, "--sha256", digest, *place(tmp_path, "other")) == 0
    with pytest.raises(SettingsError, match="no signature"):
        cache("import", source, "--trusted-key=x", *place(tmp_path, "other"))


def test_export_wants_names_or_all(tmp_path: Path):
    for words in ([], ["abcdef", "--all"]):
        with pytest.raises(SettingsError, match="--all"):
            cache("export", *words, "-o", str(tmp_path / "b"), *place(tmp_path))


def test_export_of_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(CompileCacheError, match="no entry"):
        cache("export", "--all", "-o", str(tmp_path / "b"), *place(tmp_path))


def test_gc_keeps_the_size_and_says_what_it_removed(tmp_path: Path, capsys: Captured):
    entry = published(tmp_path)
    assert cache("gc", "--older-than=1d", *place(tmp_path)) == 0
    assert "Removed 0" in capsys.readouterr().out
    assert cache("gc", "--max-size=0", "--json", *place(tmp_path)) == 0
    [row] = json.loads(capsys.readouterr().out)["removed"]
    assert row["path"] == str(entry.directory)
    assert not entry.directory.exists()


@pytest.mark.parametrize("option", ["--older-than=soon", "--older-than=30", "--max-size=big"])
def test_gc_refuses_what_is_no_amount(tmp_path: Path, option: str):
    with pytest.raises(SettingsError, match=option.partition("=")[0]):
        cache("gc", option, *place(tmp_path))


@pytest.mark.parametrize("name", ["ls", "verify", "explain", "export", "import", "gc", "keygen"])
def test_every_command_has_help(capsys: Captured, name: str):
    assert cache(name, "--help") == 0
    text = capsys.readouterr().out
    assert f"serve-shim cache {name}" in text
    assert name == "keygen" or "--cache-dir" in text


def test_an_unknown_command_is_a_usage_error():
    with pytest.raises(SettingsError, match="lst"):
        cache("lst")


def test_the_overview_describes_every_command(capsys: Captured):
    assert cache("--help") == 0
    text = capsys.readouterr().out
    for name in ("ls", "verify", "explain", "export", "import", "gc", "keygen"):
        assert re.search(rf"^│ {name} +\w+ \w+", text, re.MULTILINE), name


@pytest.mark.parametrize("words", [["ls"], ["verify"], ["gc"]])
def test_a_look_at_the_cache_imports_no_torch(tmp_path: Path, words: list[str]):
    code = (
        "import os, sys; from serve_shim.cli import run\n"
        f"code = run(['cache', *{[*words, *place(tmp_path)]!r}], os.environ)\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    published(tmp_path)
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
