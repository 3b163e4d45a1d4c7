"""Engines from TOML files and options, and what is said of those that cannot be."""

import sys
from pathlib import Path

import pytest

from tools.bench.engine import ConfigError, Engine, parse_peer, read_config, select

_GOOD = """
[load]
streams = [1, 2]

[[engine]]
name = "ours"
ours = true
group = "bf16"
command = "{python} -m server --port {port} '--name=a b'"

[[engine]]
name = "peer"
group = "bf16"
model = "m.gguf"
command = ["peer", "{model}", "127.0.0.1:{port}"]
env = { THREADS = "2" }
ignore_eos = false
request = { seed = 1 }
"""


def _read(tmp_path: Path, text: str) -> list[Engine]:
    path = tmp_path / "engines.toml"
    path.write_text(text)
    return read_config(path)[1]


def test_file_fills_in_load_and_engines(tmp_path: Path) -> None:
    path = tmp_path / "engines.toml"
    path.write_text(_GOOD)
    load, (ours, peer) = read_config(path)
    assert load.streams == (1, 2)
    assert ours.command_line(80) == [sys.executable, "-m", "server", "--port", "80", "--name=a b"]
    assert peer.command_line(80) == ["peer", "m.gguf", "127.0.0.1:80"]
    assert (ours.ours, peer.ours, peer.env) == (True, False, {"THREADS": "2"})


def test_body_asks_for_exact_lengths_unless_told_otherwise(tmp_path: Path) -> None:
    ours, peer = _read(tmp_path, _GOOD)
    assert ours.body("x", 7)["min_tokens"] == 7
    assert "ignore_eos" not in peer.body("x", 7)
    assert peer.body("x", 7)["seed"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[load]\nstream = [1]", "`load.stream`: there is no such setting; there are `streams`"),
        ("[load]\nstreams = []", "`load.streams`"),
        ("[[engine]]\nname = 'a'\ncommand = 'x {port}'\nmodell = 'b'", "`engine.0.modell`"),
        ("[[engine]]\nname = 'a'", "`engine.0.command`"),
        ("[[engine]]\nname = 'a'\ncommand = 'x'", "`{port}` is nowhere in it"),
        ("[[engine]]\nname = 'a'\ncommand = \"x ' {port}\"", "No closing quotation"),
        ("[peer]", "`peer`: there is no such setting; there are `load`, `engine`"),
        ("load = ", "engines.toml: Invalid value"),
    ],
)
def test_wrong_file_is_named_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _read(tmp_path, text)
    assert said in str(caught.value)
    assert "engines.toml" in str(caught.value)


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_config(tmp_path / "none.toml")


def test_peer_option_is_a_name_and_a_command() -> None:
    peer = parse_peer("fast=fast-server -p {port} --flag=x")
    assert (peer.name, peer.command) == ("fast", ("fast-server", "-p", "{port}", "--flag=x"))


@pytest.mark.parametrize("text", ["fast", "fast=", "=x {port}", "fast=x"])
def test_peer_option_without_name_command_or_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--peer"):
        parse_peer(text)


def test_select_refuses_equal_and_unknown_names(tmp_path: Path) -> None:
    engines = _read(tmp_path, _GOOD)
    assert select(engines, ["peer"]) == [engines[1]]
    with pytest.raises(ConfigError, match="no engine is named `x`; there are `ours`, `peer`"):
        select(engines, ["x"])
    with pytest.raises(ConfigError, match="several engines are named `ours`"):
        select([*engines, engines[0]], [])
