import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_shim.errors import SettingsError
from serve_shim.settings import resolve
from serve_shim.startup import (
    count_cores,
    pause_collection,
    prepare_process,
    resume_collection,
)


def prepare(*argv: str, **environ: str) -> dict[str, str]:
    prepare_process(resolve(argv).settings, environ)
    return environ


def test_threads_are_those_asked_for_else_inherited_else_all_cores():
    assert prepare("--threads=3", OMP_NUM_THREADS="5")["OMP_NUM_THREADS"] == "3"
    assert prepare(OMP_NUM_THREADS="5")["OMP_NUM_THREADS"] == "5"
    assert prepare(OMP_NUM_THREADS="4,2")["OMP_NUM_THREADS"] == "4"
    assert prepare()["OMP_NUM_THREADS"] == str(count_cores())
    assert prepare(OMP_NUM_THREADS="")["OMP_NUM_THREADS"] == str(count_cores())


def test_waiting_threads_spin_briefly_unless_told_otherwise():
    assert int(prepare()["GOMP_SPINCOUNT"]) < 100_000
    assert prepare(GOMP_SPINCOUNT="7")["GOMP_SPINCOUNT"] == "7"
    assert "GOMP_SPINCOUNT" not in prepare(OMP_WAIT_POLICY="active")


def test_threads_hand_the_interpreter_over_within_a_millisecond():
    before = sys.getswitchinterval()
    try:
        prepare()
        assert sys.getswitchinterval() <= 0.001
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_inherited_threads_that_mean_nothing_are_refused(text: str):
    with pytest.raises(SettingsError, match="`OMP_NUM_THREADS`: wants a positive number"):
        prepare(OMP_NUM_THREADS=text)


@pytest.mark.parametrize(("argv", "value"), [(["--batch-invariant"], "1"), ([], "0")])
def test_the_spellings_of_batch_invariance_cannot_disagree(argv: list[str], value: str):
    environ = prepare(*argv, VLLM_BATCH_INVARIANT="0", IR_BATCH_INVARIANT="1")
    assert environ["IR_BATCH_INVARIANT"] == environ["VLLM_BATCH_INVARIANT"] == value


def cores_with(tmp_path: Path, quotas: dict[str, str], own: str = "0::/\n") -> int:
    """What `count_cores` says with these quotas by cgroup, sixteen cores being allowed."""
    for cgroup, quota in quotas.items():
        (tmp_path / "cgroup" / cgroup).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / cgroup / "cpu.max").write_text(quota, encoding="ascii")
    (tmp_path / "own").write_text(own, encoding="ascii")
    return count_cores(tmp_path / "cgroup", tmp_path / "own")


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr("sys.platform", "linux")


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("350000 100000\n", 3),
        ("9900000 100000\n", 16),
        ("max 100000\n", 16),
        ("nonsense", 16),
    ],
)
def test_a_container_s_quota_limits_the_cores(tmp_path: Path, content: str, cores: int):
    assert cores_with(tmp_path, {"": content}) == cores


@pytest.mark.usefixtures("sixteen_cores")
def test_the_smallest_quota_of_the_own_cgroup_and_those_above_it_holds(tmp_path: Path):
    quotas = {"": "max 100000", "a": "400000 100000", "a/b": "700000 100000", "c": "100000 100000"}
    assert cores_with(tmp_path, quotas, "0::/a/b\n") == 4
    assert cores_with(tmp_path, {}, "1:cpu:/x\n0::/c\n") == 1
    assert cores_with(tmp_path, {}, "0::/not/here\n") == 16
    assert cores_with(tmp_path, {}, "0::/../..\n") == 16


def test_cores_without_a_quota_are_those_of_the_affinity(tmp_path: Path):
    absent = tmp_path / "absent"
    assert count_cores(absent, absent) == len(os.sched_getaffinity(0))


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_freed_memory_is_used_again_without_page_faults():
    code = """
import ctypes, resource, sys
from serve_shim.startup import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def faults_of_a_second_block():
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(64 << 20)
        ctypes.memset(block, 1, 64 << 20)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        libc.free(block)
    return faults
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit("mallopt refused")
print(faults_of_a_second_block())
"""
    counts = [
        int(subprocess.check_output([sys.executable, "-c", code, mode], timeout=60))
        for mode in ("keep", "as it is")
    ]
    assert counts[0] < 16 <= counts[1]


def test_the_limit_of_open_files_is_raised_for_connections():
    code = """
import resource
from serve_shim.startup import raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
raise_file_limit()
soft, unchanged = resource.getrlimit(resource.RLIMIT_NOFILE)
print(soft > 64 or hard == 64, soft <= 65536, unchanged == hard)
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard))
"""
    text = subprocess.check_output([sys.executable, "-c", code], timeout=60, text=True)
    assert text.split() == ["True"] * 4


def test_the_limit_of_open_files_is_raised_with_the_rest(monkeypatch: pytest.MonkeyPatch):
    raised: list[bool] = []
    monkeypatch.setattr("serve_shim.startup.raise_file_limit", lambda: raised.append(True))
    prepare()
    assert raised == [True]


def compiler_directory(*argv: str, **environ: str) -> Path:
    return Path(prepare(*argv, **environ)["TORCHINDUCTOR_CACHE_DIR"])


def test_compiled_code_is_kept_where_nobody_else_writes(tmp_path: Path):
    directory = compiler_directory(XDG_CACHE_HOME=str(tmp_path))
    assert directory == tmp_path / "serve-shim" / "inductor"
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    assert compiler_directory(XDG_CACHE_HOME=str(tmp_path)) == directory
    assert directory.stat().st_mode & 0o777 == 0o700


def test_without_the_cache_compiled_code_is_kept_nowhere(tmp_path: Path):
    first, second = (
        compiler_directory("--cache-mode=off", XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)
    )
    assert first != second
    assert first.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("open_to_others", ["serve-shim", "serve-shim/inductor"])
def test_a_directory_that_others_can_write_is_not_used(tmp_path: Path, open_to_others: str):
    (tmp_path / "serve-shim" / "inductor").mkdir(parents=True)
    (tmp_path / open_to_others).chmod(0o777)
    assert not compiler_directory(XDG_CACHE_HOME=str(tmp_path)).is_relative_to(tmp_path)


def test_a_link_instead_of_the_directory_is_not_followed(tmp_path: Path):
    (tmp_path / "serve-shim").mkdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "serve-shim" / "inductor").symlink_to(tmp_path / "elsewhere")
    assert not compiler_directory(XDG_CACHE_HOME=str(tmp_path)).is_relative_to(tmp_path)


def test_a_home_that_cannot_be_written_is_no_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    assert compiler_directory(XDG_CACHE_HOME=str(tmp_path / "file")).is_dir()


def test_the_directory_that_the_user_chose_is_left_alone(tmp_path: Path):
    chosen = str(tmp_path / "chosen")
    assert prepare(TORCHINDUCTOR_CACHE_DIR=chosen)["TORCHINDUCTOR_CACHE_DIR"] == chosen
    assert not Path(chosen).exists()


def test_a_temporary_directory_is_gone_after_exit(tmp_path: Path):
    code = (
        "import os; from serve_shim.settings import resolve\n"
        "from serve_shim.startup import prepare_process\n"
        "prepare_process(resolve(['--cache-mode=off']).settings, os.environ)\n"
        "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    )
    environ = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    directory = Path(done.stdout.strip())
    assert directory.parent == tmp_path
    assert not directory.exists()


def test_cycles_are_collected_again_after_the_imports() -> None:
    was_enabled, before = gc.isenabled(), gc.get_freeze_count()
    try:
        pause_collection()
        assert not gc.isenabled()
        resume_collection()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
        (gc.enable if was_enabled else gc.disable)()
