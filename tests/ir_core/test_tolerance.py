import pytest
import torch

from ir_core import IrOp, RegistrationError
from ir_core.tolerance import Tolerance, default_tolerance

TABLE = [
    (torch.float64, 1e-8, 1e-8),
    (torch.float32, 1e-5, 1.3e-6),
    (torch.float16, 1e-3, 1e-3),
    (torch.bfloat16, 1e-3, 1.6e-2),
    (torch.float8_e4m3fn, 0.1, 0.1),
    (torch.int8, 1, 0),
    (torch.int64, 0, 0),
]


@pytest.mark.parametrize(("dtype", "atol", "rtol"), TABLE)
def test_each_dtype_has_a_default(dtype: torch.dtype, atol: float, rtol: float) -> None:
    assert default_tolerance(dtype) == Tolerance(atol, rtol)


def test_an_op_overrides_one_dtype_with_a_reason(scale: IrOp) -> None:
    scale.override_tolerance(torch.float16, atol=1e-2, rtol=2e-3, reason="sums 4096 terms")
    assert scale.tolerance(torch.float16) == Tolerance(1e-2, 2e-3, "sums 4096 terms")
    assert scale.tolerance(torch.float32) == default_tolerance(torch.float32)


@pytest.mark.parametrize(
    ("atol", "rtol", "reason"),
    [(-1.0, 0.0, "r"), (0.0, float("nan"), "r"), (float("inf"), 0.0, "r"), (1.0, 1.0, "  ")],
)
def test_a_meaningless_override_is_refused(
    scale: IrOp, atol: float, rtol: float, reason: str
) -> None:
    with pytest.raises(RegistrationError):
        scale.override_tolerance(torch.float16, atol=atol, rtol=rtol, reason=reason)
    assert scale.tolerance(torch.float16) == default_tolerance(torch.float16)
