import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from serve_shim.errors import RanksError
from serve_shim.ranks import launch_environment
from serve_shim.ranks.cluster_probe import ClusterAccess
from serve_shim.ranks.launch_environment import supervisor_environment
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.process_mark import ProcessMark

_CLUSTER = LaunchOptions(num_ranks=1, ray_address="10.0.0.1:6379")
_OPEN_CLUSTER = LaunchOptions(num_ranks=1, ray_address="10.0.0.1:6379", allow_insecure_ray=True)


def _environment(
    options: LaunchOptions, directory: Path, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    return supervisor_environment(options, directory, ProcessMark(), environ or {})


def _answer(
    monkeypatch: pytest.MonkeyPatch, to_stranger: ClusterAccess, to_member: ClusterAccess
) -> None:
    def probe(_: str, environ: Mapping[str, str]) -> tuple[ClusterAccess, str]:
        is_member = environ["RAY_AUTH_MODE"] == "token"
        return (to_member if is_member else to_stranger), "no answer"

    monkeypatch.setattr(launch_environment, "probe_cluster", probe)


def test_local_ray_has_a_token_for_this_user_alone(tmp_path: Path) -> None:
    inherited = {"RAY_AUTH_TOKEN": "known", "RAY_AUTH_MODE": "disabled"}
    environment = _environment(LaunchOptions(num_ranks=1), tmp_path, inherited)
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert environment["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN" not in environment
    assert token.parent == tmp_path
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64


def test_ranks_get_no_api_key(tmp_path: Path) -> None:
    keys = {"SERVE_SHIM_API_KEY": "a", "SERVE_SHIM_API_KEY_FILE": "b", "VLLM_API_KEY": "c"}
    options = LaunchOptions(num_ranks=1, environment={**keys, "LEVEL": "2"})
    environment = _environment(options, tmp_path, {**keys, "HOME": "/home/us"})
    assert not keys.keys() & environment.keys()
    assert (environment["LEVEL"], environment["HOME"]) == ("2", "/home/us")


def test_python_path_holds_in_another_directory(tmp_path: Path) -> None:
    path = os.pathsep.join(["src", "/lib"])
    environment = _environment(LaunchOptions(num_ranks=1), tmp_path, {"PYTHONPATH": path})
    assert environment["PYTHONPATH"] == os.pathsep.join([str(Path.cwd() / "src"), "/lib"])


def test_cluster_gets_the_users_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, ClusterAccess.REFUSED, ClusterAccess.OPEN)
    environment = _environment(_CLUSTER, tmp_path, {"RAY_AUTH_TOKEN_PATH": "/keys/ray"})
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/keys/ray"


def test_open_cluster_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, ClusterAccess.OPEN, ClusterAccess.OPEN)
    with pytest.raises(RanksError, match=r"10\.0\.0\.1:6379 asks for no token"):
        _environment(_CLUSTER, tmp_path)


def test_open_cluster_can_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, ClusterAccess.OPEN, ClusterAccess.OPEN)
    assert _environment(_OPEN_CLUSTER, tmp_path)["RAY_AUTH_MODE"] == "disabled"


def test_wrong_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, ClusterAccess.REFUSED, ClusterAccess.REFUSED)
    with pytest.raises(RanksError, match="refuses our token"):
        _environment(_CLUSTER, tmp_path)


@pytest.mark.parametrize("options", [_CLUSTER, _OPEN_CLUSTER])
def test_what_does_not_answer_is_no_open_cluster(
    options: LaunchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer(monkeypatch, ClusterAccess.NOTHING, ClusterAccess.NOTHING)
    with pytest.raises(RanksError, match=r"no Ray answers at 10\.0\.0\.1:6379: no answer"):
        _environment(options, tmp_path)


@pytest.mark.parametrize(
    "address", ["auto", "ray://head:10001", "head", "head:", ":6379", "head:0", "head:70000"]
)
def test_address_is_host_and_port(address: str, tmp_path: Path) -> None:
    with pytest.raises(RanksError, match="has to be HOST:PORT"):
        _environment(LaunchOptions(num_ranks=1, ray_address=address), tmp_path)
