"""Random programs, lowered with in-place kernels and split: compiled is eager, inputs stay."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import ir_core as ir
from ir_core import DonationError
from ir_passes.default_pipeline import PASSES
from ir_passes.dialect import Dialect
from ir_passes.pipeline import Pipeline

from .compiled import compile_whole
from .graphs import random_tensors, trace
from .random_programs import SHAPES, Program, programs, without_writes

# In place, and bit for bit the same as native on one thread.
_IN_PLACE = {name: ["vllm_c"] for name in ("rms_norm", "fused_add_rms_norm", "silu_and_mul")}
_SPLITTING = Dialect(splitting_ops=("silu_and_mul",))
_SETTINGS = settings(
    deadline=None, max_examples=34, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
_MANY = settings(_SETTINGS, max_examples=500, derandomize=False)


def _eager(program: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    with ir.check_donations(), suppress(DonationError):
        return tuple(each + 0 for each in program(*inputs))
    return None


def check(program: Program, backend: str, dialect: Dialect | None = None) -> None:
    """Compare at five tokens and at one; a program that gives nothing away changes no input."""
    with torch.no_grad(), ir.priority(_IN_PLACE):
        wanted = _eager(program, random_tensors(*SHAPES))
        if wanted is None:
            return
        whole = trace(program, *SHAPES, names="x r w")
        _, run = compile_whole(whole, dialect, backend, Pipeline.of(*PASSES))
        inputs, kept = random_tensors(*SHAPES), random_tensors(*SHAPES)
        torch.testing.assert_close(tuple(run(*inputs)), wanted)
        if not _may_write(program):
            torch.testing.assert_close(inputs, kept)
        with suppress(RuntimeError):
            wanted = _eager(program, random_tensors(*SHAPES, tokens=1))
            torch.testing.assert_close(tuple(run(*random_tensors(*SHAPES, tokens=1))), wanted)


def _may_write(program: Program) -> bool:
    """Whether the program may change its inputs: it gives something away or writes."""
    return any(name == "donating" or name.endswith("_") for name, _, _ in program.steps)


@_SETTINGS
@given(programs(without_writes()))
def test_functional_program(program: Program) -> None:
    check(program, "eager")


@_SETTINGS
@given(programs())
def test_program_that_writes_in_place(program: Program) -> None:
    check(program, "eager")


@_SETTINGS
@given(programs(without_writes()))
def test_program_in_pieces(program: Program) -> None:
    check(program, "eager", _SPLITTING)


@settings(_SETTINGS, max_examples=8)
@given(programs(without_writes(), max_steps=6))
def test_program_through_inductor(program: Program) -> None:
    check(program, "inductor", _SPLITTING)


@pytest.mark.slow
@_MANY
@given(programs(without_writes(), max_steps=12))
def test_many_functional_programs(program: Program) -> None:
    check(program, "eager")


@pytest.mark.slow
@_MANY
@given(programs(max_steps=12))
def test_many_programs_that_write_in_place(program: Program) -> None:
    check(program, "eager")


@pytest.mark.slow
@settings(_MANY, max_examples=1000)
@given(programs(without_writes(), max_steps=12))
def test_many_programs_in_pieces(program: Program) -> None:
    check(program, "eager", _SPLITTING)


@pytest.mark.slow
@settings(_MANY, max_examples=200)
@given(programs(max_steps=8))
def test_many_programs_through_inductor(program: Program) -> None:
    check(program, "inductor", _SPLITTING)
