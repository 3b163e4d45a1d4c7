"""The lock that measurements on a shared machine take."""

import fcntl
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tools.bench.machine_lock import MachineLock


def _is_free(path: Path, kind: int) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_shared_keeps_out_measurements_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with MachineLock(path).shared():
        assert _is_free(path, fcntl.LOCK_SH)
        assert not _is_free(path, fcntl.LOCK_EX)
    assert _is_free(path, fcntl.LOCK_EX)


def test_exclusive_keeps_out_everybody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with MachineLock(path).exclusive():
        assert not _is_free(path, fcntl.LOCK_SH)
    assert _is_free(path, fcntl.LOCK_EX)


def test_lock_is_released_by_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(ZeroDivisionError), _taken(path):
        _ = 1 / 0
    assert _is_free(path, fcntl.LOCK_EX)


def _taken(path: Path) -> AbstractContextManager[None]:
    return MachineLock(path).exclusive()
