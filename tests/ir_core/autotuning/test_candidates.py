from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ir_core import IrOp, NoImplementationError, Registry
from ir_core.autotuning.candidates import find_candidates

CALL = (torch.ones(2, 4), torch.ones(4), 2.0, None)
AddScale = Callable[..., None]


def reasons(op: IrOp, values: tuple[object, ...], *, is_fused: bool = False) -> dict[str, str]:
    found = find_candidates(op, values, is_fused=is_fused)
    return {each.provider: each.reason for each in found.rejections}


def test_all_that_accept_the_call_compete_and_the_default_is_first(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("one")
    add_scale("two")
    registry.priorities.set({"scale": "two"})
    found = find_candidates(scale, CALL, is_fused=False)
    assert found.default == "two"
    assert found.providers == ("two", "native", "one")


def test_who_cannot_run_or_refuses_is_out_with_its_reason(scale: IrOp, add_scale: AddScale) -> None:
    add_scale("absent", supported=(False, "no such unit"))
    add_scale("picky", supports_args=lambda x, weight, factor, width=None: "needs float16")
    add_scale("broken", supports_args=lambda x, weight, factor, width=None: len(x) > 1)
    found = reasons(scale, CALL)
    assert found["absent"] == "no such unit"
    assert found["picky"] == "needs float16"
    assert "reads `x.shape[0]`" in found["broken"]


def test_weights_stay_in_the_layout_that_they_have(
    registry: Registry, project: IrOp, add_project: AddScale
) -> None:
    add_project("flipped", layouts=("upside_down",))
    add_project("flat")
    call = (torch.ones(2, 4), torch.ones(3, 4), None)
    registry.priorities.set({"project": ["flipped", "flat"]})
    plain = find_candidates(project, (*call, "plain"), is_fused=False)
    packed = find_candidates(project, (*call, "upside_down"), is_fused=False)
    assert plain.providers == ("flat", "native")
    assert packed.providers == ("flipped",)
    assert [each.reason for each in packed.rejections] == [
        "reads layout `plain`, and the weight lies in `upside_down`".replace(
            "weight lies", "weights lie"
        ),
        "unpacks the weights at every call",
    ]


def test_batch_invariance_leaves_those_that_declare_it(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("steady", batch_invariant=True)
    add_scale("other")
    registry.set_batch_invariant(True)
    assert find_candidates(scale, CALL, is_fused=False).providers == ("steady",)


def test_a_call_that_nothing_can_run_is_an_error(registry: Registry, scale: IrOp) -> None:
    registry.set_batch_invariant(True)
    with pytest.raises(NoImplementationError):
        find_candidates(scale, CALL, is_fused=False)


def test_what_a_compiler_fuses_does_not_compete(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("kernel", opaque=True)
    registry.priorities.set({"scale": "kernel"})
    found = find_candidates(scale, CALL, is_fused=True)
    assert found.providers == ("kernel",)
    assert [each.provider for each in found.rejections] == ["native"]
    assert "together with its neighbours" in found.rejections[0].reason


def test_nobody_competes_with_a_default_that_is_fused(scale: IrOp, add_scale: AddScale) -> None:
    add_scale("kernel", opaque=True)
    found = find_candidates(scale, CALL, is_fused=True)
    assert found.default == "native"
    assert found.providers == ()


def test_what_timing_chose_before_is_no_default(registry: Registry) -> None:
    @registry.register_op
    def double(x: Tensor) -> Tensor:
        return x * 2

    assert find_candidates(double, (torch.ones(1),), is_fused=False).default == "native"


def test_what_a_compiler_fuses_competes_where_it_can_be_compiled(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("kernel", opaque=True)
    found = find_candidates(scale, CALL, is_fused=True, can_compile=True)
    assert (found.default, found.providers) == ("native", ("native", "kernel"))
    assert found.is_compiled
    registry.priorities.set({"scale": "kernel"})
    assert find_candidates(scale, CALL, is_fused=False, can_compile=True).is_compiled is False
