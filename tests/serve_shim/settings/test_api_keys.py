from pathlib import Path

import pytest

from serve_shim.errors import SettingsError
from serve_shim.settings import read_api_keys, resolve


def keys(*argv: str) -> list[str]:
    return [key.get_secret_value() for key in read_api_keys(resolve(argv).settings)]


def test_no_key_leaves_the_server_open():
    assert keys() == []


def test_keys_of_option_and_file_are_joined(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# team a\n  k1  \n\nk2,with comma\n", encoding="utf-8")
    assert keys("--api-key=k0,x", f"--api-key-file={file}") == ["k0,x", "k1", "k2,with comma"]


def test_several_keys_are_a_json_list():
    assert keys('--api-key=["a", "b"]') == ["a", "b"]


def test_blanks_around_a_key_are_dropped():
    assert keys("--api-key= padded ") == ["padded"]
    assert keys('--api-key=[" a", "b "]') == ["a", "b"]
    with pytest.raises(SettingsError, match="`api_key` item 1 must not be empty"):
        keys("--api-key= ")


@pytest.mark.parametrize(
    "text",
    [
        "[hunter2",
        '["hunter2" 1]',
        '[{"hunter2": 1, "hunter2": 2}]',
        '[["hunter2"]]',
        '["hunter2", ""]',
    ],
)
def test_a_list_of_keys_that_is_wrong_is_not_shown(text: str):
    for argv, environ in (
        (["--api-key", text], {}),
        ([f"--api-key={text}"], {}),
        ([], {"SERVE_SHIM_API_KEY": text}),
    ):
        with pytest.raises(SettingsError, match="`api_key`") as error:
            resolve(argv, environ)
        assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"# only a comment\n\n", b"\xff\xfe"])
def test_a_file_without_a_key_does_not_open_the_server(tmp_path: Path, content: bytes):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="`api_key_file`"):
        keys(f"--api-key-file={file}")


def test_a_file_that_is_absent_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"absent.*No such file"):
        keys(f"--api-key-file={tmp_path / 'absent'}")
