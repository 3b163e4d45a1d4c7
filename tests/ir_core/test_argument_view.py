"""What predicates may read, and what each forbidden read is answered with."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import BatchDependentPredicateError, PredicateError
from ir_core.argument_view import ScalarView, TensorView
from ir_core.inquiry import Inquiry

ROWS = frozenset({0})


def view(tensor: Tensor, hidden: frozenset[int] = ROWS) -> Any:
    return TensorView(Inquiry("op", "probe", test_static_facts_can_be_read), "x", tensor, hidden)


def test_static_facts_can_be_read() -> None:
    x = view(torch.empty(4, 3, 8, dtype=torch.bfloat16))
    assert (x.dtype, x.device.type, x.layout) == (torch.bfloat16, "cpu", torch.strided)
    assert (x.ndim, x.dim(), len(x.shape)) == (3, 3, 3)
    assert (x.shape[1], x.shape[-1], x.size(2), x.size(-2)) == (3, 8, 8, 3)
    assert x.shape[1:] == (3, 8)
    assert (x.itemsize, x.element_size()) == (2, 2)
    assert x.is_floating_point()
    assert not x.is_complex()
    assert (x.is_cpu, x.is_cuda, x.is_xpu) == (True, False, False)


def test_a_view_passes_as_a_tensor_in_isinstance() -> None:
    assert isinstance(view(torch.empty(1)), Tensor)


def test_sizes_are_open_where_no_dim_counts_tokens() -> None:
    weight = view(torch.empty(4, 8), frozenset())
    assert tuple(weight.shape) == (4, 8)
    assert weight.shape == torch.Size([4, 8])
    assert 8 in weight.shape
    assert weight.numel() == weight.shape.numel() == 32
    assert len(weight) == 4
    assert f"{weight.shape} {weight.shape!r}" == "(4, 8) (4, 8)"


def test_a_layout_is_open_where_no_dim_counts_tokens() -> None:
    weight = view(torch.empty(4, 8), frozenset())
    assert (weight.stride(0), weight.stride(-1), weight.stride()) == (8, 1, (8, 1))
    assert weight.is_contiguous()
    assert not view(torch.empty(4, 8).t(), frozenset()).is_contiguous()


BATCH_READS: list[Callable[[Any], object]] = [
    lambda x: x.shape[0],
    lambda x: x.shape[-2],
    lambda x: x.size(0),
    lambda x: x.size()[0],
    lambda x: x.shape[:],
    lambda x: x.shape[0:1],
    lambda x: tuple(x.shape),
    lambda x: list(x.shape),
    lambda x: x.shape == (4, 8),
    lambda x: x.shape != (4, 8),
    lambda x: 4 in x.shape,
    lambda x: str(x.shape),
    lambda x: repr(x.shape),
    lambda x: f"{x.shape}",
    lambda x: x.shape.numel(),
    lambda x: x.numel(),
    len,
    lambda x: max(x.shape),
    lambda x: x.stride(),
    lambda x: x.stride(0),
    lambda x: x.stride(-1),
    lambda x: x.is_contiguous(),
]


@pytest.mark.parametrize("read", BATCH_READS, ids=range(len(BATCH_READS)))
@pytest.mark.parametrize("tokens", [0, 1, 4])
def test_every_way_to_the_number_of_tokens_is_an_error(
    read: Callable[[Any], object], tokens: int
) -> None:
    with pytest.raises(BatchDependentPredicateError) as caught:
        read(view(torch.empty(tokens, 8)))
    message = str(caught.value)
    assert "`probe`" in message
    assert "`test_static_facts_can_be_read`" in message
    assert f"{__file__}:" in message


def test_the_error_names_the_line_of_the_read() -> None:
    x = view(torch.empty(4, 8))
    code = test_the_error_names_the_line_of_the_read.__code__
    with pytest.raises(BatchDependentPredicateError, match=r"`x\.shape\[0\]`") as caught:
        _ = x.shape[0]
    assert f"{__file__}:{code.co_firstlineno + 4}" in str(caught.value)


def heads(tokens: int) -> Tensor:
    return torch.empty(tokens, 192)[:, :64].view(tokens, 4, 16)


def columns(tokens: int) -> Tensor:
    return torch.empty(8, tokens).t()


@pytest.mark.parametrize("make", [heads, columns])
def test_no_layout_tells_one_token_from_two(make: Callable[[int], Tensor]) -> None:
    one, two = make(1), make(2)
    assert one.is_contiguous() is not two.is_contiguous()
    messages: set[str] = set()
    for tensor in (one, two):
        with pytest.raises(BatchDependentPredicateError) as caught:
            view(tensor).is_contiguous()
        messages.add(str(caught.value))
    assert len(messages) == 1


FORBIDDEN: list[Callable[[Any], object]] = [
    lambda x: x.data_ptr(),
    lambda x: x.item(),
    lambda x: x.tolist(),
    lambda x: x.storage_offset(),
    lambda x: x.requires_grad,
    lambda x: x + 1,
    lambda x: 1 - x,
    lambda x: x @ x,
    lambda x: -x,
    lambda x: x == 1,
    lambda x: x < 1,
    bool,
    float,
    lambda x: x[0],
    list,
    lambda x: 1 in x,
    lambda x: f"{x}",
    repr,
    torch.sum,
    lambda x: torch.equal(torch.ones(1), x),
    lambda x: torch.stack([x, x]),
    lambda x: x.to(torch.float32),
]


@pytest.mark.parametrize("use", FORBIDDEN, ids=range(len(FORBIDDEN)))
def test_values_arithmetic_and_torch_functions_are_errors_that_say_so(
    use: Callable[[Any], object],
) -> None:
    with pytest.raises(PredicateError, match="a predicate sees only dtype") as caught:
        use(view(torch.empty(4, 8)))
    assert not isinstance(caught.value, BatchDependentPredicateError)


SCALAR_USES: list[Callable[[Any], object]] = [
    lambda n: n <= 8,
    lambda n: n + 1,
    int,
    str,
    bool,
    lambda n: n == 4,
    range,
    lambda n: n.bit_length(),
]


@pytest.mark.parametrize("use", SCALAR_USES, ids=range(len(SCALAR_USES)))
def test_a_number_of_tokens_given_as_a_scalar_is_hidden(use: Callable[[Any], object]) -> None:
    count = ScalarView(Inquiry("op", "probe", test_static_facts_can_be_read), "num_tokens")
    with pytest.raises(BatchDependentPredicateError, match="`num_tokens`"):
        use(count)


def test_a_size_that_is_dynamic_without_being_declared_is_an_error() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        x = torch.empty((4, env.create_unbacked_symint()))
    for read in (lambda w: w.shape[1], lambda w: w.stride(), lambda w: w.is_contiguous()):
        with pytest.raises(BatchDependentPredicateError, match="`token_dims` does not name it"):
            read(view(x, frozenset()))


def test_reads_are_noted_and_nothing_else() -> None:
    inquiry = Inquiry("op", "probe", test_static_facts_can_be_read)
    x: Any = TensorView(inquiry, "x", torch.empty(4, 8), ROWS)
    _ = x.dtype, x.shape[1]
    assert inquiry.reads == {("x", "dtype"), ("x", "ndim"), ("x", "sizes")}
    assert inquiry.facts == {"x.dtype": torch.float32, "x.shape[1]": 8}


def test_a_layout_is_noted_with_the_sizes_that_it_depends_on() -> None:
    inquiry = Inquiry("op", "probe", test_static_facts_can_be_read)
    weight: Any = TensorView(inquiry, "weight", torch.empty(4, 8), frozenset())
    _ = weight.stride(-1), weight.is_contiguous()
    assert inquiry.reads == {("weight", "ndim"), ("weight", "sizes"), ("weight", "strides")}
    assert inquiry.facts == {"weight.stride(-1)": 1, "weight.is_contiguous()": True}
