"""The key is made once, whole, for its owner only; a key that is no secret is refused."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ir_passes.cache.key_file import MacKey, ensure_key, read_key
from ir_passes.errors import UntrustedEntryError


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_key(path: Path) -> Path:
    place = path / "config" / "cache.key"
    ensure_key(place, outside=path / "root")
    return place


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_new_key_is_open_to_its_owner_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        place = make_key(tmp_path)
    finally:
        os.umask(before)
    assert (mode_of(place), mode_of(place.parent)) == (0o600, 0o700)
    assert len(bytes.fromhex(place.read_text())) == 32
    assert list(place.parent.iterdir()) == [place]


def test_racing_makers_agree_on_one_key(tmp_path: Path) -> None:
    for attempt in range(20):
        place = tmp_path / str(attempt) / "cache.key"
        with ThreadPoolExecutor(8) as pool:
            made = pool.map(lambda _: ensure_key(place, outside=tmp_path / "root"), range(8))  # noqa: B023
        assert len({key.secret for key in made}) == 1


def test_key_that_is_there_is_kept(tmp_path: Path) -> None:
    place = make_key(tmp_path)
    content = place.read_bytes()
    ensure_key(place, outside=tmp_path / "root")
    assert place.read_bytes() == content


def test_absent_key_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_key(tmp_path / "cache.key", outside=tmp_path / "root")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_key_open_to_others_is_refused_with_the_command(tmp_path: Path, mode: int) -> None:
    place = make_key(tmp_path)
    place.chmod(mode)
    with pytest.raises(UntrustedEntryError, match=f"mode {mode:04o}.*`chmod 600 {place}`"):
        ensure_key(place, outside=tmp_path / "root")


def test_key_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_key(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(UntrustedEntryError, match="this process is user 12345: `chown 12345"):
        read_key(place, outside=tmp_path / "root")


def test_key_that_is_a_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(make_key(tmp_path))
    with pytest.raises(UntrustedEntryError, match=r"link\.key is a symbolic link"):
        ensure_key(link, outside=tmp_path / "root")


@pytest.mark.parametrize("through_link", [False, True])
def test_key_inside_of_the_cache_is_refused(tmp_path: Path, through_link: bool) -> None:
    root = tmp_path / "root"
    (root / "keys").mkdir(parents=True)
    (tmp_path / "away").symlink_to(root / "keys")
    place = (tmp_path / "away" if through_link else root / "keys") / "cache.key"
    with pytest.raises(UntrustedEntryError, match="lies in the cache"):
        ensure_key(place, outside=root)
    assert not place.exists()


@pytest.mark.parametrize("content", ["", "ab", "z" * 64, "0" * 66, "é" * 32])
def test_file_without_a_key_is_refused_with_the_command(tmp_path: Path, content: str) -> None:
    place = make_key(tmp_path)
    place.write_text(content)
    with pytest.raises(
        UntrustedEntryError, match=r"64 hexadecimal digits; .*`openssl rand -hex 32"
    ):
        read_key(place, outside=tmp_path / "root")


def test_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "cache.key"
    os.mkfifo(place, 0o600)
    with pytest.raises(UntrustedEntryError, match="is no regular file"):
        read_key(place, outside=tmp_path / "root")


def test_code_of_one_key_is_none_of_another() -> None:
    one, other = MacKey(b"1" * 32), MacKey(b"2" * 32)
    code = one.mac_of(b"content")
    assert one.vouches(b"content", code)
    assert not one.vouches(b"Content", code)
    assert not other.vouches(b"content", code)
    assert not any(one.vouches(b"content", each) for each in (None, 3, "", "é", "\ud800"))


def test_secret_does_not_show() -> None:
    assert "1111" not in repr(MacKey(b"1" * 32))
