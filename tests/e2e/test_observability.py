"""Log, metrics, debug route and `ir explain` name one provider for each op, with reasons."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server_process import Server

IR = [str(Path(sys.executable).with_name("ir"))]


def _explain(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*IR, "explain", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _used_by_metrics(server: Server) -> dict[str, set[str]]:
    used: dict[str, set[str]] = {}
    for op, provider in re.findall(
        r'ir_impl_info\{op="(\w+)",provider="(\w+)"\} 1', server.get("/metrics").text
    ):
        used.setdefault(op, set()).add(provider)
    return used


def test_log_metrics_and_explain_agree_on_rms_norm(float32_server: Server) -> None:
    float32_server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    answer = _explain(
        "rms_norm", "--dtype", "float32", "--shape", "8x576", "--priority", "aiter,vllm_c"
    )
    chosen = answer["selected"]
    assert _used_by_metrics(float32_server)["rms_norm"] == {chosen}
    rows = float32_server.get("/debug/ir").json()["selections"]
    row = next(row for row in rows if row["op"] == "rms_norm")
    assert row["provider"] == chosen
    explained = {each["provider"]: each["reason"] for each in answer["verdicts"]}
    reasons = {each["provider"]: each["reason"] for each in row["rejections"]}
    assert reasons.keys() >= {"aiter"}
    for provider, reason in reasons.items():
        assert reason == explained[provider]
        assert f"rms_norm: rejected `{provider}`: {reason}" in float32_server.log
    assert f"rms_norm: used `{chosen}`" in float32_server.log
    table = float32_server.log.partition("Implementations used so far:")[2]
    line = next(line for line in table.splitlines() if line.split()[:1] == ["rms_norm"])
    assert line.split()[1] == chosen
    assert f"aiter: {explained['aiter']}" in line


def test_signal_shows_stacks_and_kernels(float32_server: Server) -> None:
    float32_server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    float32_server.process.send_signal(signal.SIGUSR1)
    deadline = time.monotonic() + 10
    while "SIGUSR1. " not in float32_server.log:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    before, _, table = float32_server.log.partition("SIGUSR1. ")
    assert "(most recent call first)" in before
    assert "step_loop.py" in before
    assert re.search(r"^ +rms_norm +vllm_c", table, re.MULTILINE)
    assert float32_server.get("/health").status_code == 200


def test_every_op_of_the_model_is_in_the_table(float32_server: Server) -> None:
    float32_server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    assert set(_used_by_metrics(float32_server)) >= {
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "linear",
        "rotary_paged_attention",
    }
