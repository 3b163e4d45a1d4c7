"""Real ranks on a local Ray: what they answer, how their failure is told, and that all ends."""

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import psutil
import pytest

from serve_shim.errors import RankFailedError
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.process_watch import ProcessWatch
from serve_shim.ranks.rank_group import RankGroup

_HERE = Path(__file__).parent
_OPTIONS = LaunchOptions(
    num_ranks=2,
    environment={"PYTHONPATH": str(_HERE), "LEVEL": "2", "VLLM_API_KEY": "secret"},
    heartbeat_timeout_s=3.0,
    start_timeout_s=90.0,
)
_SERVER = """
import sys, time
from serve_shim.ranks.launch_options import LaunchOptions
from serve_shim.ranks.rank_group import RankGroup

options = LaunchOptions(num_ranks=2, environment={"PYTHONPATH": sys.argv[1]})
group = RankGroup.start("toy_rank:ToyRank", options)
group.start_serving("serve")
print(group.directory, *group.processes(), flush=True)
time.sleep(600)
"""


@contextmanager
def _ranks(options: LaunchOptions = _OPTIONS) -> Generator[RankGroup]:
    group = RankGroup.start("toy_rank:ToyRank", options)
    try:
        yield group
    finally:
        group.close()
        assert group.processes() == []
        assert not group.directory.exists()


@pytest.fixture(scope="module")
def group() -> Iterator[RankGroup]:
    with _ranks() as started:
        yield started


def _failure(group: RankGroup, within_s: float) -> RankFailedError:
    """The failure as a callback hears of it, and as the property has it."""
    heard: SimpleQueue[RankFailedError] = SimpleQueue()
    group.on_failure(heard.put)
    with suppress(Empty):
        error = heard.get(timeout=within_s)
        assert str(group.failure) == str(error)
        return error
    return pytest.fail(f"no failure was told within {within_s} s")


def _wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def _listening_ports(processes: Iterable[psutil.Process]) -> set[int]:
    ports: set[int] = set()
    for process in processes:
        with suppress(psutil.Error):
            ports |= {
                int(each.laddr[1])
                for each in process.net_connections("tcp")
                if each.laddr and each.status == psutil.CONN_LISTEN
            }
    return ports


def _pid_of(group: RankGroup, name: str) -> int:
    return next(pid for pid in group.processes() if psutil.Process(pid).name() == name)


def test_results_come_in_order_of_ranks(group: RankGroup) -> None:
    results = group.call("who", phase="look", timeout_s=10)
    assert results == [(place.rank, 2, place.pid) for place in group.places]
    assert [place.rank for place in group.places] == [0, 1]


def test_arguments_reach_the_chosen_ranks_only(group: RankGroup) -> None:
    assert group.call("add", 40, 1, phase="add", timeout_s=10, ranks=[1]) == [42]
    assert group.call("add", 40, 1, phase="add", timeout_s=10, ranks=[1, 0]) == [42, 41]


def test_all_calls_run_on_the_thread_that_made_the_object(group: RankGroup) -> None:
    for _ in range(3):
        assert group.call("is_on_its_thread", phase="look", timeout_s=10) == [True, True]


def test_ranks_have_the_environment_but_no_api_key(group: RankGroup) -> None:
    assert group.call("variable", "LEVEL", phase="look", timeout_s=10) == ["2", "2"]
    assert group.call("variable", "VLLM_API_KEY", phase="look", timeout_s=10) == [None, None]


def test_progress_of_the_ranks_reaches_the_caller(group: RankGroup) -> None:
    heard: list[tuple[int, int]] = []
    group.call(
        "count_slowly", 2, phase="load", timeout_s=30, progress=lambda *told: heard.append(told)
    )
    of_this_call = [told for told in heard if told[1] == 2]
    assert len(of_this_call) >= 2
    assert of_this_call == sorted(of_this_call)


def test_group_shows_its_files_to_nobody_else(group: RankGroup) -> None:
    assert group.directory.stat().st_mode & 0o077 == 0


def test_healthy_ranks_have_not_failed(group: RankGroup) -> None:
    assert group.failure is None


def test_closed_group_leaves_nothing_and_has_not_failed() -> None:
    group = RankGroup.start("toy_rank:ToyRank", _OPTIONS)
    processes = [psutil.Process(pid) for pid in group.processes()]
    assert len(processes) >= 5  # the supervisor, two of Ray's, the ranks
    ports = _listening_ports(processes)
    assert ports
    shared = {each.path for process in processes for each in process.memory_maps()}
    group.close()
    group.close()
    assert [process for process in processes if process.is_running()] == []
    assert not ports & _listening_ports(psutil.process_iter())
    assert not [path for path in shared if "/shm/" in path and Path(path).exists()]
    assert not group.directory.exists()
    assert group.failure is None
    with pytest.raises(RankFailedError, match="was closed"):
        group.call("who", phase="look", timeout_s=10)


def test_error_of_a_rank_keeps_its_type_phase_and_exit_code(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with _ranks() as group, caplog.at_level(logging.ERROR):
        with pytest.raises(RankFailedError) as caught:
            group.call("fail_to_load", 1, phase="load", timeout_s=10)
        error = caught.value
        place = group.places[1]
        assert str(error) == (
            f"rank 1 (pid {place.pid}, node {place.node_ip}) failed in phase load: "
            "ModelLoadError: tensor `w` is missing"
        )
        assert (error.rank, error.phase, error.exit_code) == (1, "load", 3)
        assert "in fail_to_load" in caplog.text
        with pytest.raises(RankFailedError, match="tensor `w` is missing"):
            group.call("who", phase="look", timeout_s=10)


def test_killed_rank_is_the_root_of_what_the_others_say(caplog: pytest.LogCaptureFixture) -> None:
    with _ranks() as group, caplog.at_level(logging.ERROR):
        with pytest.raises(RankFailedError, match=r"rank 1 .*phase step: .*SIGKILL") as caught:
            group.call("lose", 1, phase="step", timeout_s=20)
        assert (caught.value.rank, caught.value.exit_code) == (1, 5)
        assert "CollectiveError: rank 1 is gone" in caplog.text


def test_rank_that_is_killed_while_idle_is_noticed() -> None:
    with _ranks() as group:
        os.kill(group.places[1].pid, signal.SIGKILL)
        error = _failure(group, within_s=3)
        assert error.rank == 1
        assert "failed in phase idle: " in str(error)
        assert str(error).endswith("SIGKILL")


def test_stopped_rank_is_noticed_while_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    with _ranks() as group, caplog.at_level(logging.ERROR):
        group.start_serving("serve")
        os.kill(group.places[1].pid, signal.SIGSTOP)
        error = _failure(group, within_s=_OPTIONS.heartbeat_timeout_s + 3)
        assert str(error).endswith(
            "failed in phase serving: silent for 3 s; its process is stopped"
        )
        assert error.rank == 1


def test_all_ends_when_the_server_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(_HERE)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        directory, *pids = server.stdout.readline().split()
        watches = [ProcessWatch(int(pid)) for pid in pids]
        server.kill()
    assert len(watches) >= 5
    assert _wait_until(lambda: all(watch.is_gone for watch in watches), within_s=15)
    assert _wait_until(lambda: not Path(directory).exists(), within_s=5)
    for watch in watches:
        watch.close()


@pytest.mark.slow
def test_rank_that_does_not_finish_shows_its_stacks(caplog: pytest.LogCaptureFixture) -> None:
    with _ranks() as group, caplog.at_level(logging.ERROR):
        with pytest.raises(RankFailedError, match=r"rank 1 .*`hang` did not finish within 2 s"):
            group.call("hang", 1, phase="compile", timeout_s=2)
        assert "toy_rank.py" in caplog.text
        assert "in hang" in caplog.text


@pytest.mark.slow
def test_rank_that_others_wait_for_is_the_root() -> None:
    with _ranks() as group, pytest.raises(RankFailedError) as caught:
        group.call("miss", 1, phase="capture", timeout_s=60)
    assert caught.value.rank == 1
    assert str(caught.value).endswith(
        "failed in phase capture: did not finish, while rank 0 had CollectiveError: "
        "rank 1 did not come"
    )


@pytest.mark.slow
def test_serving_that_ends_is_a_failure() -> None:
    with _ranks() as group:
        group.start_serving("serve_briefly")
        assert "`serve_briefly` returned, which was to last" in str(_failure(group, within_s=5))


@pytest.mark.slow
def test_rank_whose_threads_cannot_run_shows_its_stacks(caplog: pytest.LogCaptureFixture) -> None:
    with _ranks() as group, caplog.at_level(logging.ERROR):
        group.start_serving("hold_the_interpreter")
        error = _failure(group, within_s=_OPTIONS.heartbeat_timeout_s + 3)
        assert str(error).endswith(
            "failed in phase serving: silent for 3 s; its process is running"
        )
        assert "in hold_the_interpreter" in caplog.text


@pytest.mark.slow
def test_stopped_rank_is_noticed_between_calls_once_it_is_watched_closely() -> None:
    with _ranks() as group:
        group.watch_closely()
        os.kill(group.places[0].pid, signal.SIGSTOP)
        error = _failure(group, within_s=_OPTIONS.heartbeat_timeout_s + 3)
        assert str(error).endswith("failed in phase idle: silent for 3 s; its process is stopped")


@pytest.mark.slow
def test_rank_that_cannot_be_made_fails_the_start() -> None:
    with pytest.raises(
        RankFailedError, match="phase start: ModelLoadError: there are no"
    ) as caught:
        RankGroup.start("toy_rank:FailsOnTheLast", _OPTIONS)
    assert (caught.value.rank, caught.value.exit_code) == (1, 3)


@pytest.mark.slow
def test_start_has_a_deadline() -> None:
    options = dataclasses.replace(_OPTIONS, start_timeout_s=1)
    with pytest.raises(RankFailedError, match="phase start: `toy_rank:IsNeverMade` did not finish"):
        RankGroup.start("toy_rank:IsNeverMade", options)


@pytest.mark.slow
def test_end_of_the_supervisor_is_a_failure_and_leaves_nothing() -> None:
    with _ranks() as group:
        os.kill(group._supervisor._process.pid, signal.SIGKILL)
        error = _failure(group, within_s=5)
        assert str(error).startswith("the supervisor of the ranks has ended (killed by SIGKILL)")
        assert error.rank == -1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_end_of_ray_is_the_root_of_all(name: str) -> None:
    with _ranks() as group:
        os.kill(_pid_of(group, name), signal.SIGKILL)
        error = _failure(group, within_s=5)
        assert error.rank == -1
        assert str(error).startswith(f"{name} of Ray (pid ")
        assert "has ended: killed by SIGKILL" in str(error)


@pytest.mark.slow
def test_more_ranks_than_cores_share_them() -> None:
    with _ranks(dataclasses.replace(_OPTIONS, num_ranks=3)) as group:
        assert len(set(group.call("who", phase="look", timeout_s=10))) == 3
