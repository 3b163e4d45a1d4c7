"""What a measurement was taken on, for its record."""

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def describe_machine() -> dict[str, str | int]:
    """Processor, the CPUs this process may use, system and Python."""
    return {
        "processor": _processor(),
        "cpus": num_cpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def num_cpus() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
