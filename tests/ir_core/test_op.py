import copy

import pytest
import torch
from torch import Tensor

from ir_core import IrOp, RegistrationError, Registry


def test_native_is_an_implementation_like_the_others(scale: IrOp) -> None:
    assert dict(scale.implementations) == {"native": scale.native}
    assert scale.native.provider == "native"
    assert torch.equal(scale.native(torch.ones(2), None, 3.0), torch.full((2,), 3.0))
    assert scale.supported_providers() == ("native",)


def test_implementations_cannot_be_changed_from_outside(scale: IrOp) -> None:
    with pytest.raises(TypeError):
        scale.implementations["x"] = scale.native  # type: ignore[index]


def test_the_docstring_and_repr_are_natives(scale: IrOp) -> None:
    assert scale.__doc__ == "Scale columns."
    assert repr(scale).startswith("IrOp(scale(Tensor x, Tensor? weight, float factor")
    assert repr(scale.native).startswith("Implementation(scale: native, ")


def test_an_op_is_never_copied(scale: IrOp) -> None:
    assert copy.deepcopy({"op": scale})["op"] is scale


def test_an_input_generator_makes_arguments(scale: IrOp) -> None:
    assert not scale.has_input_generator
    with pytest.raises(RegistrationError, match=r"@scale\.register_input_generator"):
        scale.generate_inputs()

    @scale.register_input_generator
    def inputs(num_tokens: int = 1) -> tuple[Tensor, None, float]:
        return torch.ones(num_tokens, 4), None, 2.0

    assert scale.has_input_generator
    args = scale.generate_inputs(num_tokens=3)
    assert scale(*args).shape == (3, 4)
    assert inputs()[0].shape == (1, 4)


def test_an_op_that_only_writes_returns_nothing(registry: Registry) -> None:
    @registry.register_op(mutates=["cache"])
    def store(x: Tensor, cache: Tensor) -> None:
        cache.copy_(x)

    cache = torch.zeros(2)
    assert store(torch.ones(2), cache) is None
    assert store.torch_op(torch.ones(2) * 2, cache) is None
    assert torch.equal(cache, torch.full((2,), 2.0))
