"""One commit for every file, cached snapshots offline, and a quick, useful failure."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects

from serve_shim.errors import ModelLoadError
from serve_shim.loading.hub import _HuggingFaceHub, fetch_snapshot


class _Hub:
    """Answers as told and remembers what it was asked."""

    def __init__(
        self, *, reachable: bool = True, cached: bool = False, broken: bool = False
    ) -> None:
        self.reachable, self.cached, self.broken = reachable, cached, broken
        self.calls: list[tuple[str | None, bool]] = []

    def commit_of(self, name: str, revision: str | None, timeout_s: float) -> str:
        if not self.reachable:
            raise ConnectionError("no route to host\nwith a long trace")
        return "c0ffee"

    def snapshot(self, name: str, revision: str | None, *, offline: bool) -> str:
        self.calls.append((revision, offline))
        if self.broken or (offline and not self.cached):
            raise OSError("not there")
        return "/snapshots/model"


def test_download_is_pinned_to_the_commit_of_the_revision() -> None:
    hub = _Hub()
    assert fetch_snapshot("owner/model", "main", hub) == (Path("/snapshots/model"), "c0ffee")
    assert hub.calls == [("c0ffee", False)]


def test_cached_snapshot_serves_offline() -> None:
    hub = _Hub(reachable=False, cached=True)
    assert fetch_snapshot("owner/model", "v1", hub) == (Path("/snapshots/model"), "v1")
    assert hub.calls == [("v1", True)]


def test_offline_without_cache_says_what_to_do() -> None:
    with pytest.raises(ModelLoadError, match=r"no route to host.*nothing is cached") as caught:
        fetch_snapshot("owner/model", "v1", _Hub(reachable=False))
    assert "`owner/model` at `v1`" in str(caught.value)
    assert "long trace" not in str(caught.value)


def test_broken_download_is_an_error() -> None:
    with pytest.raises(ModelLoadError, match="`owner/model` at c0ffee: download failed: not there"):
        fetch_snapshot("owner/model", None, _Hub(broken=True))


@pytest.mark.timeout(30)
def test_real_client_gives_up_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    with pytest.raises(ModelLoadError, match="nothing is cached"):
        fetch_snapshot("owner/no-such-model", None)


@pytest.mark.parametrize("offline", [True, False])
def test_real_client_fetches_one_copy_of_the_weights(
    monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options)
        return name

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert _HuggingFaceHub().snapshot("owner/model", "v1", offline=offline) == "owner/model"
    assert (asked["revision"], asked["local_files_only"]) == ("v1", offline)
    files = [
        "config.json",
        "chat_template.jinja",
        "model-00001-of-00002.safetensors",
        "consolidated.safetensors",
        "consolidated.00.safetensors",
        "original/params.json",
        "onnx/model.safetensors",
        "pytorch_model.bin",
    ]
    patterns = {key: asked[key] for key in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(files, **patterns)) == files[:3]
