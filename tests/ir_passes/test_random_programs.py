"""What a traced program computes after all passes is what it computes in eager mode."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import ir_core as ir
from ir_core import DonationError
from ir_passes.default_pipeline import PASSES

from .graphs import apply, random_tensors, trace
from .random_programs import SHAPES, Program, programs, without_writes

_NATIVE = {"rms_norm": ["native"], "fused_add_rms_norm": ["native"], "silu_and_mul": ["native"]}
_SETTINGS = settings(
    deadline=None, max_examples=20, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
_MANY = settings(_SETTINGS, max_examples=1000, derandomize=False)


def _eager(program: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Results, as copies; None where something given away is used or returned."""
    with ir.check_donations(), suppress(DonationError):
        return tuple(each + 0 for each in program(*inputs))
    return None


def _check(program: Program) -> None:
    inputs = {tokens: random_tensors(*SHAPES, tokens=tokens) for tokens in (5, 1)}
    with torch.no_grad(), ir.priority(_NATIVE):
        wanted = _eager(program, inputs[5])
        if wanted is None:
            with pytest.raises(DonationError):
                trace(program, *SHAPES, names="x r w")
            return
        whole = trace(program, *SHAPES, names="x r w")
        apply(whole, *PASSES)
        run = whole.bind(whole.module)
        torch.testing.assert_close(tuple(run(*(fresh := random_tensors(*SHAPES)))), wanted)
        torch.testing.assert_close(fresh, inputs[5])
        # One row can be two things at once to torch, which then refuses to write it.
        with suppress(RuntimeError):
            wanted = _eager(program, inputs[1])
            fresh = random_tensors(*SHAPES, tokens=1)
            torch.testing.assert_close(tuple(run(*fresh)), wanted)
            torch.testing.assert_close(fresh, inputs[1])


@_SETTINGS
@given(programs(without_writes()))
def test_functional_program_keeps_its_meaning(program: Program) -> None:
    _check(program)


@_SETTINGS
@given(programs())
def test_program_that_writes_in_place_keeps_its_meaning(program: Program) -> None:
    _check(program)


@pytest.mark.slow
@_MANY
@given(programs(without_writes(), max_steps=12))
def test_many_functional_programs_keep_their_meaning(program: Program) -> None:
    _check(program)


@pytest.mark.slow
@_MANY
@given(programs(max_steps=12))
def test_many_programs_that_write_in_place_keep_their_meaning(program: Program) -> None:
    _check(program)
