"""Starts that must fail do so early, with the exit code of their kind and a message that helps."""

import socket
import time
from pathlib import Path

import httpx
import pytest
from server_process import Server, command, free_port, run_to_exit, start


def test_misspelt_op_exits_2_with_a_suggestion() -> None:
    done = run_to_exit("--ir-op-priority.rms_nrm=vllm_c")
    assert done.returncode == 2
    assert "`rms_nrm`" in done.stderr
    assert "rms_norm" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_provider_exits_2_and_lists_the_providers() -> None:
    done = run_to_exit("--ir-op-priority.rms_norm=aiterr,vllm_c")
    assert done.returncode == 2
    assert "aiterr" in done.stderr
    for provider in ("aiter", "vllm_c", "native"):
        assert provider in done.stderr


def test_option_that_would_do_nothing_is_refused() -> None:
    done = run_to_exit("--compilation-config", '{"mode": 1}')
    assert done.returncode == 2
    assert "compilation-config" in done.stderr


def test_options_of_compilation_that_contradict_each_other_are_refused() -> None:
    done = run_to_exit("--enforce-eager", "-cc.mode=vllm_compile")
    assert done.returncode == 2
    assert "contradict each other" in done.stderr


def test_taken_port_exits_2_before_the_model_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_to_exit("--port", str(port))
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "KV cache" not in done.stderr


def test_missing_model_exits_3_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    done = run_to_exit(str(tmp_path / "model"), "--port", str(free_port()))
    assert done.returncode == 3
    assert "config.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_requests_before_ready_get_503_with_progress(tmp_path: Path) -> None:
    server = start(tmp_path / "server.log")
    try:
        health = _first_answer(server)
        answer = httpx.post(
            server.url + "/v1/completions", json={"prompt": "a"}, timeout=10, trust_env=False
        )
        alive = server.get("/livez")
        server.wait_ready()
    finally:
        code = server.stop()
    assert (health.status_code, answer.status_code, alive.status_code) == (503, 503, 200)
    assert health.json()["phase"]
    assert answer.headers["Retry-After"]
    assert answer.json()["error"]["code"] == "starting"
    assert code == 0


def _first_answer(server: Server) -> httpx.Response:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return server.get("/health")
        except httpx.TransportError:
            time.sleep(0.01)
    raise AssertionError(server.log)


def test_command_is_the_module(tmp_path: Path) -> None:
    assert command("--version")[1:] == ["-m", "serve_shim", "--version"]
    done = run_to_exit("--version")
    assert done.returncode == 0
    assert done.stdout.strip()


@pytest.mark.parametrize("flag", ["--help", "--print-config", "--dry-run"])
def test_questions_exit_0_without_a_server(flag: str) -> None:
    done = run_to_exit(flag)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
