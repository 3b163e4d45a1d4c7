"""A plug-in that makes a rank fail: written to a directory, which goes on a server's path."""

import json
from collections.abc import Mapping
from pathlib import Path

PROVIDER = "faulty"
PRIORITY = f"--ir-op-priority.silu_and_mul={PROVIDER}"
"""The flag with which the plug-in's implementation runs in each step."""

_CODE = '''
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor

import ir_core as ir
from ir_core import groups

DIRECTORY = Path(__file__).parent


def fault() -> dict:
    """What was ordered for this rank, taken once."""
    file = DIRECTORY / "fault.json"
    rank = groups.get_group("tp").rank
    try:
        order = json.loads(file.read_text())
    except OSError:
        return {}
    return order if order["rank"] == rank else {}


def silu_and_mul(x: Tensor) -> Tensor:
    order = fault()
    if order.get("action") == "raise":
        raise ZeroDivisionError("a fault that was asked for")
    if order.get("action") == "sleep":
        time.sleep(order["seconds"])
    if order.get("action") == "compile":
        factor = time.monotonic()
        torch.compile(lambda x: x * factor, backend="eager")(x)
    if order.get("action") == "exit":
        os._exit(41)
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def register() -> None:
    if (DIRECTORY / "on_one_rank").exists():
        for number in range(2):  # the server, and one of its ranks
            try:
                (DIRECTORY / f"taken-{number}").mkdir()
                break
            except FileExistsError:
                continue
        else:
            return
    ir.ops.silu_and_mul.register_impl("faulty", opaque=True)(silu_and_mul)
'''
_ENTRY_POINTS = "[ir_core.implementations]\nfaulty = faulty_plugin:register\n"
_METADATA = "Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n"


class FaultyPlugin:
    """The plug-in in `directory`; `environment` lets a server find it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._write("faulty_plugin.py", _CODE)
        self._write("faulty_plugin-1.0.dist-info/METADATA", _METADATA)
        self._write("faulty_plugin-1.0.dist-info/entry_points.txt", _ENTRY_POINTS)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self._directory)}

    def order(self, rank: int, action: str, **details: object) -> None:
        """From now on the rank does this in each step: raise, sleep (`seconds`), compile, exit."""
        partial = self._write("order", json.dumps({"rank": rank, "action": action, **details}))
        partial.rename(self._directory / "fault.json")

    def register_on_one_rank(self) -> None:
        """Only the first process that loads the plug-in after the server's has what it adds."""
        self._write("on_one_rank", "")

    def _write(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path
