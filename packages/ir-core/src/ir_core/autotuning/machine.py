"""What of a machine decides how long kernels take, as named texts."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

_CPU_INFO = Path("/proc/cpuinfo")


def machine_facts() -> Mapping[str, str]:
    """This machine, the threads that kernels have, and the versions that run them."""
    return {
        "cpu": cpu_model(),
        "instruction set": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
        "accelerators": ", ".join(_accelerators()) or "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ir-core": version("ir-core"),
    }


def cpu_model(path: Path = _CPU_INFO) -> str:
    """The name of the first processor as the kernel gives it; what Python knows where it is not."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _accelerators() -> list[str]:
    if torch.cuda.is_available():
        return [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    if torch.xpu.is_available():
        return [torch.xpu.get_device_name(each) for each in range(torch.xpu.device_count())]
    return []
