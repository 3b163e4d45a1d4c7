"""Why nothing fits is said by what is there: nothing, what is refused, or the nearest entry."""

import os
from pathlib import Path

import pytest

from ir_passes.cache.explain import explain_miss
from ir_passes.cache.store import CacheStore

from .stores import FACTORS, publish, store_at


def test_empty_cache_is_said_to_be_empty(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    assert explain_miss(store, FACTORS) == (f"the cache {store.root} is empty",)


def test_entries_of_another_key_are_counted_and_the_first_reason_is_given(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    first = min(publish(store, content).id for content in (b"1", b"2"))
    stranger = CacheStore(store.root, key_file=tmp_path / "other.key")
    (line,) = explain_miss(stranger, FACTORS)
    assert "has no entry that can be used; refused: 2, the first: " in line
    assert f"{first}: there is no key" in line
    assert "serve-shim cache import" in line


def test_cache_that_others_can_write_is_not_said_to_be_empty(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    publish(store)
    store.root.chmod(0o777)
    (line,) = explain_miss(store, FACTORS)
    assert f"`chmod -R go-w {store.root}`" in line


def test_cache_of_another_user_is_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    publish(store)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (line,) = explain_miss(store, FACTORS)
    assert f"`chown -R 12345 {store.root}`" in line


def test_nearest_entry_is_compared_beside_refused_ones(tmp_path: Path) -> None:
    publish(CacheStore(tmp_path / "root", key_file=tmp_path / "other.key"))
    store = store_at(tmp_path)
    entry = store.publish({**FACTORS, "torch": "2.12"}, {"x": b""}, {})
    assert entry is not None
    assert explain_miss(store, FACTORS) == (f"torch is `2.13`, and was `2.12` in {entry.id[:12]}",)
