"""The socket: bound once, refused with words when it is taken."""

import socket
from pathlib import Path

import pytest

from serve_shim.errors import AddressInUseError, SettingsError
from serve_shim.server.listener import bind, url
from serve_shim.settings.tree import Settings


def test_port_zero_takes_a_free_port() -> None:
    with bind(Settings(port=0)) as bound:
        host, port = bound.getsockname()
        assert host == "127.0.0.1"
        assert url(bound) == f"http://127.0.0.1:{port}"
        with socket.create_connection((host, port), timeout=5):
            pass


def test_a_taken_port_is_an_error_that_names_it() -> None:
    with bind(Settings(port=0)) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"127.0.0.1:{port}") as caught:
            bind(Settings(port=port))
        assert caught.value.exit_code == 2


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "a..b", "a" * 64])
def test_an_address_of_another_machine_is_an_error(host: str) -> None:
    with pytest.raises(SettingsError, match=host):
        bind(Settings(host=host, port=0))


def test_a_stale_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "shim.sock"
    bind(Settings(uds=path)).close()
    assert path.exists()
    with bind(Settings(uds=path)) as bound:
        assert url(bound) == f"unix:{path}"
        with pytest.raises(AddressInUseError, match="--uds"):
            bind(Settings(uds=path))


def test_a_file_in_the_way_is_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AddressInUseError):
        bind(Settings(uds=path))
    assert path.read_text() == "data"


def test_ipv6_has_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        bound = bind(Settings(host="::1", port=0))
    except SettingsError:
        pytest.skip("no IPv6 loopback")
    with bound:
        assert url(bound).startswith("http://[::1]:")


@pytest.mark.parametrize(("name", "words"), [("a" * 200, "path too long"), ("a\0b", "null byte")])
def test_a_path_that_cannot_be_a_socket_is_an_error(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        bind(Settings(uds=tmp_path / name))
