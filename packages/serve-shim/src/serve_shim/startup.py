"""What must be set for the process before torch is imported: threads, limits, switches.

The only module that writes the environment. Called once by the command, never on import.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from ir_passes.cache.layout import default_root
from ir_passes.cache.safe_files import PrivateDirectory, make_directories
from ir_passes.config import CacheMode
from ir_passes.errors import UntrustedEntryError
from serve_shim.errors import SettingsError
from serve_shim.settings.tree import Settings

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
# libgomp spins for milliseconds by default: another process on one of the cores then makes every
# parallel region wait for a time slice. This many turns last longer than the gap between ops.
_SPIN_COUNT = "20000"
# Each op of a step gives the interpreter away and waits for it again, by default up to 5 ms where
# another thread computes in Python: a step of 300 ops beside a chat template took 13 times as long.
_SWITCH_INTERVAL_S = 0.0005
_MAX_FILES = 65536
_temporary: list[Path] = []
# By default it is a directory of a known name in /tmp, where others can put code before us.
_COMPILER_FILES = "TORCHINDUCTOR_CACHE_DIR"
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def prepare_process(
    settings: Settings, environ: MutableMapping[str, str], threads: int | None = None
) -> int:
    """Write to `environ` what torch and ir_core read when they are imported; return the threads.

    Threads are the argument, `settings.threads`, `OMP_NUM_THREADS`, or else every core the process
    may use.
    Where torch keeps compiled code is a directory that nobody else can write: with the compile
    cache off it is new and removed at exit. Batch invariance is written in all its spellings, so
    that they cannot disagree. Raises SettingsError where `OMP_NUM_THREADS` is no positive number.
    """
    threads = threads or settings.threads or _inherited_threads(environ) or count_cores()
    environ["OMP_NUM_THREADS"] = str(threads)
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    switch = "1" if settings.batch_invariant else "0"
    environ["IR_BATCH_INVARIANT"] = environ["VLLM_BATCH_INVARIANT"] = switch
    if not environ.get(_COMPILER_FILES):
        is_kept = settings.compilation_config.cache_mode is not CacheMode.OFF
        environ[_COMPILER_FILES] = str(_compiler_directory(environ, is_kept=is_kept))
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    keep_freed_memory()
    raise_file_limit()
    return threads


def prepare_rank(
    settings: Settings,
    environ: MutableMapping[str, str],
    *,
    threads: int,
    interface: str,
    compiler_directory: Path,
) -> None:
    """Do as `prepare_process` does, for a rank whose ports belong on a network interface.

    The directory is for what torch compiles where the cache keeps nothing; it ends with the ranks,
    and another machine than the server's has none.
    """
    is_kept = settings.compilation_config.cache_mode is not CacheMode.OFF
    if not is_kept and compiler_directory.parent.is_dir():
        compiler_directory.mkdir(mode=0o700)
        environ[_COMPILER_FILES] = str(compiler_directory)
    prepare_process(settings, environ, threads)
    environ["GLOO_SOCKET_IFNAME"] = interface  # by default gloo listens on all


def make_temporary_directory(prefix: str) -> Path:
    """A directory that is removed at exit."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    _temporary.append(directory)
    return directory


def pause_collection() -> None:
    """Leave reference cycles alone while modules are imported: each full collection looks at all.

    Three of them fall into the imports of a start, and together cost a tenth of a second or more.
    """
    gc.disable()


def resume_collection() -> None:
    """Collect cycles again, without looking at what is there by now: it stays until the end.

    Called once imports are done, and again once the server is ready: a full collection over all of
    torch would stop a step for a tenth of a second.
    """
    gc.freeze()
    gc.enable()


def count_cores(cgroups: Path = _CGROUPS, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Cores this process may use: its affinity, cut to the CPU quota of its cgroup, at least one.

    A quota is rounded down: once it is used up, all threads wait for the next period.
    """
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quotas = [_quota(directory / "cpu.max") for directory in _own_directories(cgroups, own_cgroup)]
    limit = min((quota for quota in quotas if quota is not None), default=allowed)
    return max(1, min(allowed, int(limit)))


def keep_freed_memory() -> bool:
    """Let malloc reuse large blocks instead of giving them back; whether it could be set.

    By default glibc maps blocks above 32 MiB afresh, and every new page faults: several times
    slower than reuse. `MALLOC_*` variables are read when a process starts, hence the call. Freed
    memory up to 2 GiB then stays with the process.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none
        return False
    limits = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))
    return all(bool(mallopt(option, value)) for option, value in limits)


def raise_file_limit() -> None:
    """Let this process open as many files as it may, within reason; each connection is one.

    The usual soft limit is 1024 for the sake of `select`, which nothing here calls.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _compiler_directory(environ: MutableMapping[str, str], *, is_kept: bool) -> Path:
    """The user's own directory, or one of this process where that is not wanted or not safe."""
    if is_kept:
        with suppress(OSError, RuntimeError, UntrustedEntryError):
            own = default_root(environ).parent
            make_directories(own)
            with PrivateDirectory.open(own) as above, above.make("inductor") as directory:
                os.fchmod(directory.descriptor, 0o700)
                return directory.path
    return make_temporary_directory("serve-shim-inductor-")


@atexit.register
def remove_temporary_directories() -> None:
    """Remove what this process made for itself alone; a process that skips its exit calls it."""
    while _temporary:
        shutil.rmtree(_temporary.pop(), ignore_errors=True)


def _own_directories(cgroups: Path, own_cgroup: Path) -> list[Path]:
    """The process's directory below `cgroups` and all above it; a quota of each holds."""
    try:
        lines = own_cgroup.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    # In a container the path may be the host's, which is not there; the root is its own then.
    directory = cgroups / own
    return [each for each in (directory, *directory.parents) if each.is_relative_to(cgroups)]


def _quota(file: Path) -> float | None:
    """CPUs by a cgroup v2 quota; None where there is none."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # no cgroup v2, or the quota is "max"
        return None


def _inherited_threads(environ: MutableMapping[str, str]) -> int | None:
    text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"`OMP_NUM_THREADS`: wants a positive number, not {text[:40]!r}")
    return int(text)
