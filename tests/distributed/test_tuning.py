"""Servers on ranks whose ops are tuned: one rank times, and all end with the same choices."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_server import RankServer, StartServer

from ir_core.autotuning.choice_file import ChoiceFile

pytestmark = pytest.mark.timeout(240)


def tuned(server: RankServer) -> list[dict[str, Any]]:
    return json.loads(server.server.get("/debug/ir").text)["autotuned"]


def used(server: RankServer, op: str) -> set[str]:
    """Who has computed an op on rank 0."""
    rows = json.loads(server.server.get("/debug/ir").text)["selections"]
    return {each["provider"] for each in rows if each["op"] == op}


def compiled_with(server: RankServer, op: str) -> set[str]:
    """Whom compiled programs call for an op."""
    programs = json.loads(server.server.get("/debug/ir").text)["compiled"]["programs"]
    rows = [row for each in programs for piece in each["pieces"] for row in piece["selections"]]
    return {each["provider"] for each in rows if each["op"] == op}


def file_below(cache: Path) -> ChoiceFile:
    """The one file of choices that a server has left."""
    (path,) = (cache / "autotune").glob("v*/*.json")
    file = ChoiceFile(cache / "autotune", json.loads(path.read_text())["machine"])
    assert file.path == path
    return file


def prefer_native(file: ChoiceFile, op: str) -> None:
    """Have a file say that timing had found native the fastest for an op, and changed no other."""
    changed = [
        replace(each, choice=replace(each.choice, provider=provider, later=()))
        for each in file.load().choices
        for provider in ("native" if each.choice.op == op else each.choice.default,)
    ]
    file.save(changed)


def test_one_rank_times_and_all_use_what_it_found(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    flags = ("--tp", "2", "--enforce-eager", "--max-model-len", "128", "--cache-mode=rw")
    flags = (*flags, f"--cache-dir={cache}", "--check-rank-tokens")
    first = start_server(tiny, *flags, "--autotune=on")
    first.server.wait_ready()
    choices = tuned(first)
    assert first.complete().status_code == 200
    assert "Autotuning: all_reduce: not tuned: the ranks compute it together" in first.log
    first.end()
    assert {each["op"] for each in choices if each["microseconds"]} >= {"rms_norm", "silu_and_mul"}
    # One rank alone would have 160 columns there.
    signatures = {each["op"]: each["signature"] for each in choices}
    assert signatures["silu_and_mul"] == "x: float32[*, 80]"
    file = file_below(cache)
    assert file.machine["threads"] == "1"
    prefer_native(file, "rms_norm")
    second = start_server(tiny, *flags, "--autotune=cached")
    second.server.wait_ready()
    assert second.complete().status_code == 200
    assert "Autotuning: 9 kinds of calls, 0 timed now" in second.log
    # The step that found out which calls there are had the priority's.
    assert used(second, "rms_norm") == {"vllm_c", "native"}
    assert [each["op"] for each in tuned(second) if each["provider"] != each["default"]] == [
        "rms_norm"
    ]
    second.end()


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_ranks_compile_what_one_of_them_chose(
    start_server: StartServer, tiny: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    flags = ("--tp", "2", "--max-model-len", "128", "--cache-mode=rw", f"--cache-dir={cache}")
    first = start_server(tiny, *flags, "--autotune=on", "--check-rank-tokens")
    first.server.wait_ready()
    assert first.complete().status_code == 200
    assert [each["op"] for each in tuned(first) if each["microseconds_as_written"]]
    first.end()
    prefer_native(file_below(cache), "silu_and_mul")
    second = start_server(tiny, *flags, "--autotune=cached", "--check-rank-tokens")
    second.server.wait_ready()
    assert second.complete().status_code == 200
    assert compiled_with(second, "silu_and_mul") == {"native"}
    assert "compile_after_ready_total 0.0" in second.server.get("/metrics").text
    second.end()
