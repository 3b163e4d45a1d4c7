"""Ranks on a Ray that is already there: who may join, what is said where it does not do."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_shim.errors import RanksError
from serve_shim.ranks.cluster_address import can_connect
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.rank_group import RankGroup

pytestmark = pytest.mark.slow
_HERE = Path(__file__).parent
_TOKEN = "0123456789abcdef" * 4


@dataclass(frozen=True)
class _Cluster:
    address: str
    mark: ProcessMark

    def options(self, num_ranks: int, *, allow_insecure_ray: bool = False) -> LaunchOptions:
        return LaunchOptions(
            num_ranks=num_ranks,
            ray_address=self.address,
            allow_insecure_ray=allow_insecure_ray,
            environment={"PYTHONPATH": str(_HERE), "LEVEL": "2", "VLLM_API_KEY": "secret"},
        )


@contextmanager
def _cluster(variables: dict[str, str]) -> Generator[_Cluster]:
    """A head with one core, in the foreground of a process that is ended after."""
    directory = Path(tempfile.mkdtemp(prefix="head-"))
    mark = ProcessMark()
    port = _free_port()
    command = [
        str(Path(sys.executable).parent / "ray"),
        *("start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"),
        *(f"--port={port}", f"--temp-dir={directory}", "--num-cpus=1"),
        "--object-store-memory=80000000",
    ]
    environment = {**os.environ, **mark.environment, **variables}
    with (directory / "log").open("wb") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        cluster = _Cluster(f"127.0.0.1:{port}", mark)
        _wait_for(cluster, directory / "log")
        yield cluster
    finally:
        mark.end_all()
        head.wait(10)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def guarded() -> Iterator[_Cluster]:
    with _cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def open_to_all() -> Iterator[_Cluster]:
    with _cluster({"RAY_AUTH_MODE": "disabled"}) as cluster:
        yield cluster


def _wait_for(cluster: _Cluster, log: Path) -> None:
    deadline = time.monotonic() + 60
    while "Ray runtime started" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_ranks_live_in_a_cluster_and_leave_it(
    guarded: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", _TOKEN)
    before = set(guarded.mark.processes())
    group = RankGroup.start("toy_rank:ToyRank", guarded.options(1))
    try:
        assert group.call("who", phase="look", timeout_s=20) == [(0, 1, group.places[0].pid)]
        assert group.call("variable", "LEVEL", phase="look", timeout_s=20) == ["2"]
        assert group.call("variable", "VLLM_API_KEY", phase="look", timeout_s=20) == [None]
    finally:
        group.close()
    assert group.processes() == []
    assert group.failure is None
    assert before <= set(guarded.mark.processes())


def test_too_few_resources_are_told_in_figures(
    guarded: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", _TOKEN)
    with pytest.raises(RanksError) as caught:
        RankGroup.start("toy_rank:ToyRank", guarded.options(2))
    assert "needed 2 times 1 CPU, 0 GPU" in str(caught.value)
    assert "there is 1 CPU, 0 GPU on 1 node" in str(caught.value)
    assert caught.value.exit_code == 7


def test_resources_that_others_use_are_waited_for_until_the_deadline(
    guarded: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", _TOKEN)
    group = RankGroup.start("toy_rank:ToyRank", guarded.options(1))
    try:
        options = LaunchOptions(num_ranks=1, ray_address=guarded.address, start_timeout_s=6)
        with pytest.raises(RanksError, match=r"others still use .* 0 CPU, 0 GPU is free"):
            RankGroup.start("toy_rank:ToyRank", options)
    finally:
        group.close()


def test_wrong_token_is_refused(guarded: _Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", _TOKEN[::-1])
    with pytest.raises(RanksError, match="refuses our token"):
        RankGroup.start("toy_rank:ToyRank", guarded.options(1))


def test_cluster_without_token_is_refused(open_to_all: _Cluster) -> None:
    with pytest.raises(RanksError, match=f"{open_to_all.address} asks for no token"):
        RankGroup.start("toy_rank:ToyRank", open_to_all.options(1))


def test_cluster_without_token_can_be_allowed(open_to_all: _Cluster) -> None:
    group = RankGroup.start("toy_rank:ToyRank", open_to_all.options(1, allow_insecure_ray=True))
    try:
        assert group.call("add", 1, 1, phase="add", timeout_s=20) == [2]
    finally:
        group.close()


def test_address_where_nothing_listens_is_named() -> None:
    address = f"127.0.0.1:{_free_port()}"
    assert not can_connect(address, 1)
    with pytest.raises(RanksError, match=f"no Ray answers at {address}: nothing listens there"):
        RankGroup.start("toy_rank:ToyRank", LaunchOptions(num_ranks=1, ray_address=address))


def test_address_of_something_else_is_not_taken_for_ray() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        options = LaunchOptions(num_ranks=1, ray_address=address, allow_insecure_ray=True)
        with pytest.raises(RanksError, match=f"no Ray answers at {address}"):
            RankGroup.start("toy_rank:ToyRank", options)


def test_loss_of_the_head_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", _TOKEN)
    with _cluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}) as cluster:
        group = RankGroup.start("toy_rank:ToyRank", cluster.options(1))
        try:
            group.start_serving("serve")
            cluster.mark.end_all()
            deadline = time.monotonic() + 20
            while group.failure is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert group.failure is not None
        finally:
            start = time.monotonic()
            group.close()
        assert time.monotonic() - start < 15
        assert group.processes() == []
