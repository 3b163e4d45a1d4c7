"""A second start loads what the first compiled: on this machine, and on one that got it as a file.

Servers are whole processes. One cold start is shared by all.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from server_process import Server, command, start

_WATCHED = "SEEN_EVENTS"
_HOOK = f"""
import os, sys

STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system")
COMPILERS = ("torch._dynamo", "torch._inductor", "sympy")

def watch(event, args):
    if event in STARTS:
        note(event + " " + str(args[0]))
    elif event == "import" and args[0].startswith(COMPILERS):
        note("import " + args[0])

def note(line):
    with open(os.environ["{_WATCHED}"], "a") as file:
        file.write(line + "\\n")

sys.addaudithook(watch)
"""


@dataclass(frozen=True, slots=True)
class Start:
    """What one server told about itself before it was stopped."""

    answer: str
    facts: dict[str, Any]
    metrics: str
    log: str


@dataclass(frozen=True, slots=True)
class Cold:
    """The first start, and the options that lead to what it left."""

    start: Start
    options: tuple[str, ...]


def options(home: Path, mode: str) -> tuple[str, ...]:
    return (f"--cache-mode={mode}", f"--cache-dir={home / 'c'}", f"--cache-key-file={home / 'key'}")


def serve(log_path: Path, *arguments: str, env: dict[str, str] | None = None) -> Start:
    """Start a server, ask it, and stop it."""
    server = start(log_path, *arguments, env=env)
    try:
        server.wait_ready()
        told = Start(
            answer(server),
            server.get("/debug/ir").json(),
            server.get("/metrics").text,
            server.log,
        )
    except BaseException:
        server.process.kill()
        server.process.wait(10)
        raise
    assert server.stop() == 0, server.log
    return told


def answer(server: Server) -> str:
    name = server.get("/v1/models").json()["data"][0]["id"]
    body = {"model": name, "prompt": "One, two,", "max_tokens": 12, "temperature": 0}
    return server.post("/v1/completions", body)["choices"][0]["text"]


def run(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | (env or {}),
    )


def watching(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The environment of a process that notes what compiling needs, and where it notes it."""
    (tmp_path / "sitecustomize.py").write_text(_HOOK)
    seen = tmp_path / "seen"
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), _WATCHED: str(seen)}, seen


def events(seen: Path) -> list[str]:
    return seen.read_text().splitlines() if seen.exists() else []


def chosen(told: Start) -> list[Sequence[Any]]:
    """What was selected for each program, without times."""
    return [
        [
            program["first"],
            program["last"],
            program["splitting"],
            [(piece["name"], piece["uses"], piece["selections"]) for piece in program["pieces"]],
        ]
        for program in told.facts["compiled"]["programs"]
    ]


def outcome(told: Start) -> str:
    pattern = r'^vllm:compile_cache_outcome\{status="(\w+)"\} 1\.0$'
    [status] = re.findall(pattern, told.metrics, re.MULTILINE)
    assert told.facts["compiled"]["cache"]["status"] == status
    return status


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Cold:
    home = tmp_path_factory.mktemp("cold")
    env, seen = watching(home)
    told = serve(home / "log", *options(home, "rw"), env=env)
    assert outcome(told) == "miss"
    # Else the test of the warm start could not fail.
    assert any(line.startswith("import torch._dynamo") for line in events(seen))
    return Cold(told, options(home, "rw"))


def test_a_warm_start_compiles_nothing_and_serves_the_same(cold: Cold, tmp_path: Path) -> None:
    env, seen = watching(tmp_path)
    warm = serve(tmp_path / "log", *cold.options, env=env)
    assert outcome(warm) == "hit"
    assert events(seen) == []
    assert warm.answer == cold.start.answer
    assert chosen(warm) == chosen(cold.start)
    assert re.search(r"Using cache directory: \S+/c/v1/\S+ for the compile cache", warm.log)
    assert re.search(r"Loaded compiled programs from the cache in \d", warm.log)
    assert "torch.compile and passes took" not in warm.log
    assert re.search(r"^\s+compile\s+[\d.]+  cache: hit$", warm.log, re.MULTILINE)


def test_a_bundle_serves_in_another_home_without_a_compiler(cold: Cold, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tgz"
    exported = run("cache", "export", "--all", "-o", str(bundle), *cold.options[1:])
    [sha256] = re.findall(r"--sha256 (\w{64})", exported.stdout)
    home = tmp_path / "another-home-with-a-longer-path"
    home.mkdir()
    env = {"HOME": str(home), "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": "", "PATH": ""}
    imported = run("cache", "import", str(bundle), "--sha256", sha256, env=env)
    assert imported.returncode == 0, imported.stderr
    told = serve(tmp_path / "log", "--cache-mode=require", env=env)
    assert outcome(told) == "hit"
    assert str(home) in told.facts["compiled"]["cache"]["directory"]
    assert told.answer == cold.start.answer


def test_explain_finds_the_entry_or_names_what_differs(cold: Cold) -> None:
    found = run("cache", "explain", *cold.options)
    assert (found.returncode, found.stdout[:5]) == (0, "hit: "), found.stderr
    missed = run("cache", "explain", "--max-num-seqs=3", *cold.options)
    assert missed.returncode == 1, missed.stdout
    assert "miss:" in missed.stdout
    assert re.search(r"3.* and was .*64", missed.stdout), missed.stdout


def test_a_cache_that_is_required_and_empty_ends_the_start(tmp_path: Path) -> None:
    done = run("--port=0", *options(tmp_path, "require"))
    assert done.returncode == 6
    error = done.stderr[done.stderr.index("serve-shim: error: ") :]
    assert f"the cache {tmp_path / 'c'} is empty" in error
    assert not (tmp_path / "c").exists()
    assert not (tmp_path / "key").exists()


def test_a_key_that_others_can_read_is_named_with_the_remedy(cold: Cold, tmp_path: Path) -> None:
    key = tmp_path / "open.key"
    key.write_text("0" * 64)
    key.chmod(0o644)
    wanted = ("--cache-mode=require", cold.options[1], f"--cache-key-file={key}")
    done = run("--port=0", *wanted)
    assert done.returncode == 6
    assert f"chmod 600 {key}" in done.stderr


def test_off_leaves_the_cache_untouched(tmp_path: Path) -> None:
    told = serve(tmp_path / "log", *options(tmp_path, "off"), "-cc.backend=eager")
    assert outcome(told) == "off"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
