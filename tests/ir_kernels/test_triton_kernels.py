"""Provider `triton` by the conformance suite in Triton's interpreter, and what it says and imports.

The suite runs in a process of its own: triton reads TRITON_INTERPRET when it is imported.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from triton_launches import OPS, record

import ir_core as ir
from ir_kernels import arguments, triton_kernels
from ir_kernels.gelu_and_mul import triton as gelu_triton
from ir_kernels.linear_w4a16 import triton as linear_triton
from ir_kernels.paged_attention import triton as attention_triton
from ir_kernels.rms_norm import triton as norm_triton
from ir_kernels.rotary_embedding import triton as rotary_triton

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="package `triton` is not installed"
)
HERE = Path(__file__).parent
PROGRAM = str(HERE / "interpret_triton.py")

Findings = list[dict[str, Any]]


def interpret(*command: str, timeout: int) -> str:
    """What a Python command prints in whose process kernels are interpreted."""
    paths = (str(HERE.parent / "support"), os.environ.get("PYTHONPATH"))
    done = subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def findings() -> Findings:
    return json.loads(interpret(PROGRAM, timeout=600))["findings"]


@needs_triton
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", OPS)
def test_kernels_conform_in_the_interpreter(op: str, findings: Findings) -> None:
    mine = [each for each in findings if each["op"] == op]
    assert not [each for each in mine if each["outcome"] == "failed"]
    numerics = [each for each in mine if each["check"] == "matches-native"]
    assert len(numerics) > 3
    assert {each["outcome"] for each in numerics} == {"passed"}


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_kernels_conform_to_every_check(op: str) -> None:
    report = json.loads(interpret(PROGRAM, op, timeout=1700))
    assert report["ok"], [each for each in report["findings"] if each["outcome"] == "failed"]


@needs_triton
def test_a_position_outside_the_table_turns_to_nan() -> None:
    code = (
        "import torch, ir_core as ir\n"
        "from ir_kernels.rotary_embedding import triton\n"
        "q, k, positions, table, *rest = ir.ops.rotary_embedding.generate_inputs(\n"
        "    num_tokens=3, dtype=torch.float32)\n"
        "positions[0], positions[2] = len(table), -1\n"
        "for out in triton.rotary_embedding(q, k, positions, table, *rest):\n"
        "    print(out.isnan().flatten(1).float().mean(1).tolist())\n"
    )
    assert interpret("-c", code, timeout=100).split("\n")[:2] == ["[1.0, 0.0, 1.0]"] * 2


def test_asking_every_provider_on_a_cpu_does_not_import_triton() -> None:
    code = (
        "import sys, torch, ir_core as ir\n"
        "ir.load_plugins()\n"
        "for op in ir.registry().values():\n"
        "    for each in op.implementations.values():\n"
        "        each.supported, each.fingerprint()\n"
        "ir.ops.rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)\n"
        "sys.exit('triton' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=100, check=False)
    assert done.returncode == 0


@needs_triton
@pytest.mark.parametrize("op", OPS)
def test_a_fingerprint_holds_the_kernels_and_tritons_version(
    op: str, registry: ir.Registry
) -> None:
    fingerprint = registry[op].implementations["triton"].fingerprint()
    assert fingerprint.digest is not None, fingerprint.reason
    names = {name for name, _ in fingerprint.factors}
    assert "module ir_kernels.triton_kernels.storage" in names
    assert "version triton" in names


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine whose state a test sets."""
    for cached in (triton_kernels.availability, triton_kernels.is_interpreted):
        cached.cache_clear()
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    yield monkeypatch
    for cached in (triton_kernels.availability, triton_kernels.is_interpreted):
        cached.cache_clear()


def test_availability_names_what_the_machine_lacks(uncached: pytest.MonkeyPatch) -> None:
    def answer() -> tuple[bool, str]:
        triton_kernels.availability.cache_clear()
        return triton_kernels.availability()

    uncached.setattr(torch.cuda, "is_available", lambda: False)
    assert answer()[1].startswith("needs a CUDA or ROCm GPU; torch sees none")
    uncached.setattr(torch.cuda, "is_available", lambda: True)
    uncached.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert answer() == (False, "needs compute capability 8.0; this GPU has 7.5")
    uncached.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    uncached.delenv("CC", raising=False)
    uncached.setattr("shutil.which", lambda _: None)
    assert answer()[1].startswith("needs a C compiler for its launchers")
    uncached.setenv("CC", "cc")
    uncached.setattr(triton_kernels, "find_spec", lambda _: None)
    assert answer() == (False, "package `triton` is not installed")
    uncached.setattr(triton_kernels, "find_spec", lambda _: object())
    assert answer() == (True, "")


def test_interpreted_kernels_take_tensors_of_the_cpu(uncached: pytest.MonkeyPatch) -> None:
    assert triton_kernels.device_type() == "cuda"
    triton_kernels.is_interpreted.cache_clear()
    uncached.setenv("TRITON_INTERPRET", "1")
    uncached.setattr(torch.cuda, "is_available", lambda: False)
    uncached.setattr(triton_kernels, "find_spec", lambda _: object())
    assert triton_kernels.availability() == (True, "")
    assert triton_kernels.device_type() == "cpu"


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "device_type", lambda: "cpu")


def test_tensors_of_another_device_are_refused() -> None:
    x = torch.ones(2, 8)
    assert norm_triton.supports_args(x, None, 1e-5) == (
        "runs on cuda, and the activations are on cpu"
    )
    assert arguments.one_device(x, weight=torch.ones(8, device="meta")) == (
        "needs one device for all; x is on cpu, weight on meta"
    )


@pytest.mark.usefixtures("on_cpu")
def test_norms_refuse_what_does_not_fit_a_program() -> None:
    def verdict(size: int, weight: torch.dtype, x: torch.dtype = torch.bfloat16) -> bool | str:
        given = torch.empty(1, size, dtype=x)
        return norm_triton.supports_args(given, torch.empty(size, dtype=weight), 1e-5)

    assert verdict(1 << 15, torch.float32) is True
    assert verdict((1 << 15) + 1, torch.float32) == "holds up to 32768 elements in a row, not 32769"
    assert verdict(8, torch.float16) == (
        "needs a weight of x's dtype or float32; x has bfloat16, weight float16"
    )
    assert verdict(8, torch.float64, torch.float64) == (
        "takes float32, bfloat16, float16; x has float64"
    )


@pytest.mark.usefixtures("on_cpu")
def test_gelu_knows_two_formulas() -> None:
    x = torch.ones(2, 8)
    assert gelu_triton.supports_args(x, "tanh") is True
    assert gelu_triton.supports_args(x, "quick") == (
        "knows approximate `none` and `tanh`, not `quick`"
    )


@pytest.mark.usefixtures("on_cpu")
def test_rotation_needs_one_dtype_and_a_float32_table() -> None:
    query, key = torch.ones(2, 1, 8), torch.ones(2, 1, 8)
    positions, table = torch.zeros(2, dtype=torch.int64), torch.ones(4, 8)
    verdict = rotary_triton.supports_args
    assert verdict(query, key, positions, table, 8) is True
    assert "needs one dtype for both" in str(verdict(query, key.half(), positions, table, 8))
    assert "needs a float32 `cos_sin_cache`" in str(verdict(query, key, positions, table.half(), 8))
    assert "needs int64 positions" in str(verdict(query, key, positions.int(), table, 8))


@pytest.mark.usefixtures("on_cpu")
def test_w4a16_refuses_groups_that_no_tile_holds() -> None:
    x, weight = torch.ones(2, 60), torch.zeros(4, 30, dtype=torch.uint8)
    scale = torch.ones(4, 10, dtype=torch.float16)
    assert linear_triton.supports_args(x, weight, scale, group_size=6) == (
        "takes groups of 16, 32, 64, 128, not 6"
    )


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, True),
        ({"scale": -1.0}, "needs a positive scale, not -1.0"),
        ({"head_size": 512}, "holds up to 256 elements in a head, not 512"),
        ({"heads": 64}, "holds up to 32 query heads for a key head, not 64"),
        ({"heads": 64, "dtype": torch.bfloat16}, True),
        ({"cache_dtype": torch.float8_e4m3fn}, "reads a cache of float32, bfloat16, float16; "),
    ],
)
def test_attention_refuses_what_its_tiles_cannot_hold(
    changed: dict[str, Any], reason: bool | str
) -> None:
    case: dict[str, Any] = {
        "scale": 0.1,
        "head_size": 8,
        "heads": 2,
        "dtype": torch.float32,
        **changed,
    }
    query = torch.empty(3, case["heads"], case["head_size"], dtype=case["dtype"])
    key = query[:, :1]
    cache = torch.empty(2, 2, 1, 4, case["head_size"], dtype=case.get("cache_dtype", query.dtype))
    step = torch.empty(3, dtype=torch.int32)
    found = attention_triton.supports_args(
        query, key, key, query, cache, step[:, None], step, step, step.long(), case["scale"]
    )
    assert found is True if reason is True else str(found).startswith(str(reason))


@pytest.mark.parametrize(
    ("num_programs", "num_keys", "expected"),
    [(1, 8192, 16), (6, 1520, 4), (64, 8192, 4), (300, 8192, 1), (1, 255, 1), (1, 512, 2)],
)
def test_keys_are_split_where_programs_are_few_and_keys_many(
    num_programs: int, num_keys: int, expected: int
) -> None:
    num_cores = 16 if num_programs == 6 else 132
    assert attention_triton.num_splits(num_programs, num_keys, num_cores) == expected


@needs_triton
def test_the_interpreter_also_merges_split_keys(registry: ir.Registry) -> None:
    """What its checks of the workload `long` rest on."""
    inputs = {"num_tokens": 3, "context": 1500, "heads": (4, 2), "dtype": torch.bfloat16}
    launches = record(registry["paged_attention"], **inputs)
    assert [each.name for each in launches] == ["write_tokens", "attend_tiles", "merge_parts"]
    assert launches[1].grid[2] > 1
