"""Owns fetching a model's files from the Hugging Face hub; refuses to wait long when offline."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from serve_shim.errors import ModelLoadError

_REACH_TIMEOUT_S = 5.0
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
_UNWANTED = ["consolidated*", "*/*"]


class HubClient(Protocol):
    """The two calls of `huggingface_hub` that are used, so that tests need no network."""

    def commit_of(self, name: str, revision: str | None, timeout_s: float) -> str:
        """Return the commit that `revision` (default branch if None) is at."""
        ...

    def snapshot(self, name: str, revision: str | None, *, offline: bool) -> str:
        """Return the local directory with the snapshot's files, downloading unless `offline`."""
        ...


def fetch_snapshot(
    name: str, revision: str | None, client: HubClient | None = None
) -> tuple[Path, str | None]:
    """Return (directory, commit) of model `name`; every file comes from that one commit.

    Where the hub cannot be reached within seconds a cached snapshot is used. Raises
    `ModelLoadError` that says what to do where there is none, or the hub refuses the name.
    """
    hub = client or _default_client()
    try:
        commit = hub.commit_of(name, revision, _REACH_TIMEOUT_S)
    except Exception as error:
        cached = _attempt(lambda: hub.snapshot(name, revision, offline=True))
        if cached is not None:
            return Path(cached), revision
        raise ModelLoadError(_unreachable(name, revision, error)) from error
    try:
        return Path(hub.snapshot(name, commit, offline=False)), commit
    except Exception as error:
        raise ModelLoadError(f"model `{name}` at {commit}: download failed: {error}") from error


def _attempt(call: Callable[[], str]) -> str | None:
    try:
        return call()
    except Exception:
        return None


def _unreachable(name: str, revision: str | None, error: Exception) -> str:
    wanted = f"model `{name}`" + (f" at `{revision}`" if revision else "")
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
    return (
        f"{wanted} is no local path, and the hub did not give it "
        f"({type(error).__name__}: {reason}); nothing is cached. Offline, give a local Hugging "
        "Face directory or .gguf file; for a private model set HF_TOKEN"
    )


def _default_client() -> HubClient:
    return _HuggingFaceHub()


class _HuggingFaceHub:
    """The real client; `huggingface_hub` is imported only when a hub name is asked for."""

    def commit_of(self, name: str, revision: str | None, timeout_s: float) -> str:
        from huggingface_hub import HfApi  # noqa: PLC0415 - 0.2 s that a local model saves

        commit = HfApi().model_info(name, revision=revision, timeout=timeout_s).sha
        if commit is None:
            raise ModelLoadError(f"model `{name}`: the hub gave no commit")
        return commit

    def snapshot(self, name: str, revision: str | None, *, offline: bool) -> str:
        from huggingface_hub import snapshot_download  # noqa: PLC0415

        return snapshot_download(
            name,
            revision=revision,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            local_files_only=offline,
        )
