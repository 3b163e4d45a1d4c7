"""Servers whose model is spread over ranks: the tokens of one rank, and an end when one is lost."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from faults import PRIORITY, FaultyPlugin
from rank_server import RankServer, StartServer, shared_memory
from server_process import reference, run_to_exit

from serve_shim import LLM, SamplingParams

COMPLETIONS = reference("completions")
SMALL = ("--enforce-eager", "--max-model-len", "128")

pytestmark = pytest.mark.timeout(240)


def check_reference(server: RankServer) -> None:
    for entry in COMPLETIONS:
        answer = server.complete(
            prompt=entry["prompt"],
            max_tokens=len(entry["greedy_ids"]),
            skip_special_tokens=False,
            return_token_ids=True,
            logprobs=1,
        ).json()
        choice = answer["choices"][0]
        assert choice["token_ids"] == entry["greedy_ids"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(entry["logprobs"], abs=1e-3)


@pytest.mark.parametrize(
    ("num_ranks", "flags"),
    [
        (2, ("--check-rank-tokens",)),
        pytest.param(3, ("--check-rank-tokens",), marks=pytest.mark.slow),
        pytest.param(4, ("--check-rank-tokens",), marks=pytest.mark.slow),
        pytest.param(2, ("-cc.pass-config.enable-sp=true",), marks=pytest.mark.slow),
        pytest.param(3, ("--enforce-eager",), marks=pytest.mark.slow),
    ],
)
def test_the_embedded_model_gives_the_reference_and_ends_when_a_rank_is_killed(
    start_server: StartServer, num_ranks: int, flags: tuple[str, ...]
) -> None:
    server = start_server("--tp", str(num_ranks), "--dtype", "float32", *flags)
    server.server.wait_ready()
    check_reference(server)
    request = server.in_flight(4000)
    victim = server.rank_pids()[num_ranks - 1]
    ending = server.ending(lambda: os.kill(victim, signal.SIGKILL))
    assert request.status() == 500
    assert ending.code == 5
    assert ending.health_false_s < 5
    assert ending.exit_s < 12
    assert f"rank {num_ranks - 1}" in ending.last_line
    assert "SIGKILL" in ending.last_line


def test_sigterm_ends_the_ranks_and_answers_what_is_in_flight(
    start_server: StartServer, tiny: str
) -> None:
    server = start_server(tiny, "--tp", "2", *SMALL)
    server.server.wait_ready()
    assert server.complete().status_code == 200
    ending = server.ending(lambda: server.server.process.send_signal(signal.SIGTERM))
    assert ending.code == 0


def test_a_fault_of_one_rank_ends_the_server_with_its_cause_last(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    server = start_server(tiny, "--tp", "2", *SMALL, PRIORITY, env=plugin.environment)
    server.server.wait_ready()
    assert server.complete().status_code == 200
    plugin.order(1, "raise")
    answers: list[int] = []
    ending = server.ending(lambda: answers.append(server.complete().status_code))
    assert answers == [500]
    assert ending.code == 5
    assert "rank 1" in ending.last_line
    assert "ZeroDivisionError: a fault that was asked for" in ending.last_line


@pytest.mark.slow
def test_what_a_rank_compiles_while_it_serves_is_counted(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    environment = plugin.environment
    server = start_server(tiny, "--tp", "2", *SMALL, PRIORITY, env=environment)
    server.server.wait_ready()
    assert "compile_after_ready_total 0.0" in server.server.get("/metrics").text
    plugin.order(1, "compile")
    assert server.complete().status_code == 200
    text = server.server.get("/metrics").text
    (count,) = re.findall(r"^vllm:compile_after_ready_total (\S+)$", text, re.MULTILINE)
    assert float(count) > 0
    server.end()


def test_a_plug_in_on_one_rank_only_stops_the_start(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    plugin.register_on_one_rank()
    server = start_server(tiny, "--tp", "2", *SMALL, env=plugin.environment)
    ending = server.ending(lambda: None, timeout_s=60)
    assert ending.code not in (0, 5)
    assert "ranks do not agree" in server.log
    assert "`providers of op silu_and_mul`" in server.log


def test_a_model_that_so_many_ranks_cannot_share_is_refused_before_any_starts(
    start_server: StartServer, tiny: str
) -> None:
    server = start_server(tiny, "--tp", "63", *SMALL)
    ending = server.ending(lambda: None, timeout_s=60)
    assert ending.code == 3
    assert "63" in ending.last_line
    assert "Rank 0" not in server.log


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["idle", "start"])
def test_a_killed_rank_ends_the_server(
    start_server: StartServer, tiny: str, rank: int, when: str
) -> None:
    server = start_server(tiny, "--tp", "2", *SMALL)
    if when == "idle":
        server.server.wait_ready()
    else:
        server.wait_for(lambda: len(server.rank_pids()) == 2)
    ending = server.ending(lambda: os.kill(server.rank_pids()[rank], signal.SIGKILL))
    assert ending.code == 5
    assert f"rank {rank}" in ending.last_line
    assert "SIGKILL" in ending.last_line


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_stopped_rank_ends_the_server(
    start_server: StartServer, tiny: str, rank: int, is_busy: bool
) -> None:
    server = start_server(tiny, "--tp", "2", "--enforce-eager", "--heartbeat-timeout", "4")
    server.server.wait_ready()
    request = server.in_flight(90) if is_busy else None
    ending = server.ending(lambda: os.kill(server.rank_pids()[rank], signal.SIGSTOP))
    if request is not None:
        assert request.status() in (200, 500)
    assert ending.code == 5
    assert ending.health_false_s < 10
    assert f"rank {rank}" in ending.last_line


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("when", ["start", "load", "idle", "busy"])
def test_nothing_is_left_of_a_server_that_was_told_to_end(
    start_server: StartServer, tiny: str, number: signal.Signals, when: str
) -> None:
    server = start_server(tiny, "--tp", "2", "--enforce-eager", "--shutdown-timeout", "1")
    if when == "start":
        server.wait_for(lambda: "Starting serve-shim server" in server.log)
    elif when == "load":
        server.wait_for(lambda: len(server.rank_pids()) == 2)
    else:
        server.server.wait_ready()
    request = server.in_flight(90) if when == "busy" else None
    ending = server.ending(lambda: server.server.process.send_signal(number))
    if request is not None:
        request.status()
    assert ending.code == (-number if number is signal.SIGKILL else ending.code)
    assert ending.code in (0, -signal.SIGKILL, 128 + number)


@pytest.mark.slow
def test_a_rank_that_is_late_for_a_collective_is_named_with_it(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    server = start_server(tiny, "--tp", "2", *SMALL, PRIORITY, env=plugin.environment)
    server.server.wait_ready()
    plugin.order(1, "sleep", seconds=90)
    request = server.in_flight(4, waits=False)
    ending = server.ending(lambda: None, timeout_s=80)
    assert request.status() == 500
    assert ending.code == 5
    assert "rank 1 did not come within 60 s" in server.log
    assert "`all_reduce" in server.log


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--enforce-eager",), ()])
def test_a_rank_that_raises_while_the_server_starts_is_the_last_word(
    start_server: StartServer, tiny: str, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    plugin.order(1, "raise")
    limits = ("--max-model-len", "128", *flags, PRIORITY)
    server = start_server(tiny, "--tp", "2", *limits, env=plugin.environment)
    ending = server.ending(lambda: None, timeout_s=60)
    assert ending.code not in (0, 1)
    assert "rank 1" in ending.last_line
    assert "ZeroDivisionError: a fault that was asked for" in ending.last_line


@pytest.mark.slow
def test_an_idle_server_says_nothing_alarming(start_server: StartServer, tiny: str) -> None:
    server = start_server(tiny, "--tp", "2", *SMALL)
    server.server.wait_ready()
    time.sleep(100)
    assert server.complete().status_code == 200
    assert "WARNING" not in server.log
    assert "ERROR" not in server.log


@pytest.mark.slow
def test_a_rank_that_exits_in_a_step_is_named_with_its_code(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    plugin = FaultyPlugin(tmp_path / "plugin")
    server = start_server(tiny, "--tp", "2", *SMALL, PRIORITY, env=plugin.environment)
    server.server.wait_ready()
    plugin.order(0, "exit")
    ending = server.ending(server.complete)
    assert ending.code == 5
    assert "rank 0" in ending.last_line


@pytest.mark.slow
def test_one_rank_compiles_and_the_others_load(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    """With the cache on, off, and again warm: at 4 ranks as many compilations as at one."""
    key = ("--cache-dir", str(tmp_path / "cache"), "--cache-key-file", str(tmp_path / "key"))
    flags = ("--tp", "4", "--max-model-len", "128", *key)
    states: list[str] = []
    for mode in ("rw", "require", "ro", "off"):
        server = start_server(tiny, *flags, f"--cache-mode={mode}")
        server.server.wait_ready()
        facts = json.loads(server.server.get("/debug/ir").text)
        states.append(facts["compiled"]["cache"]["status"])
        line = next(each for each in server.log.splitlines() if "Compile cache by rank" in each)
        assert "1: hit, 2: hit, 3: hit" in line
        server.end()
    assert states == ["miss", "hit", "hit", "off"]
    done = run_to_exit("cache", "explain", tiny, *flags)
    assert (done.returncode, done.stdout.partition(":")[0]) == (0, "hit"), done.stderr
    done = run_to_exit("cache", "explain", tiny, *flags, "--dtype", "bfloat16")
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "miss"), done.stderr


@pytest.mark.slow
def test_the_offline_engine_on_ranks_gives_the_tokens_of_one(tiny: str) -> None:
    before = shared_memory()
    prompts = [[5, 9, 14, 33], [7] * 20, [80]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    found: list[list[list[int]]] = []
    for num_ranks in (1, 2):
        with LLM(
            tiny, tensor_parallel_size=num_ranks, enforce_eager=True, max_model_len=128
        ) as llm:
            results = llm.generate(prompts, params)
            found.append([list(each.outputs[0].token_ids) for each in results])
    assert found[0] == found[1]
    assert shared_memory() == before


@pytest.mark.slow
def test_a_required_cache_without_an_entry_stops_the_start(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    flags = ("--cache-mode=require", "--cache-dir", str(tmp_path / "cache"))
    server = start_server(tiny, "--tp", "2", "--max-model-len", "128", *flags)
    ending = server.ending(lambda: None, timeout_s=60)
    assert ending.code == 6
    assert "cache is empty" in server.log
