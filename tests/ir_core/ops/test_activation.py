import pytest
import torch

import ir_core as ir

_X = torch.linspace(-6, 6, 24).reshape(2, 12)


def test_silu_and_mul_gates_the_second_half_by_the_first() -> None:
    gate, up = _X.double().chunk(2, dim=-1)
    expected = (gate / (1 + (-gate).exp()) * up).float()
    torch.testing.assert_close(ir.ops.silu_and_mul(_X), expected)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_mul_knows_both_formulas(approximate: str) -> None:
    gate, up = _X.double().chunk(2, dim=-1)
    if approximate == "none":
        gelu = gate * 0.5 * (1 + torch.erf(gate / 2**0.5))
    else:
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        gelu = gate * 0.5 * (1 + inner.tanh())
    expected = (gelu * up).float()
    torch.testing.assert_close(ir.ops.gelu_and_mul(_X, approximate), expected)


def test_gelu_and_mul_refuses_a_third_formula() -> None:
    with pytest.raises(RuntimeError, match="approximate"):
        ir.ops.gelu_and_mul(_X, "cubic")


def test_activation_rounds_once() -> None:
    x = _X.bfloat16()
    exact = ir.ops.silu_and_mul(x.float())
    assert torch.equal(ir.ops.silu_and_mul(x), exact.bfloat16())


def test_activation_of_an_odd_width_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        ir.ops.silu_and_mul(torch.ones(2, 5))
