"""A matrix computes the same in every form and layout, and is packed in its own memory."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import ir_core as ir
from serve_shim.models.matrix import Matrix, MatrixUse
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.weight_form import DENSE, W4A16, W4A16_MINIMUM, W8A8, W8A16, WeightForm

_ROWS, _COLUMNS = 37, 96
_FORMS = [DENSE, W4A16, W4A16_MINIMUM, W8A16]
_WITH_LOOKUP = [form for form in _FORMS if form.has_lookup]
_OPS = ("linear", "linear_w4a16", "linear_w8a16", "linear_w8a8", "embedding", "embedding_w8a16")


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with ir.priority({op: ["native"] for op in _OPS}):
        yield


def _make(
    form: WeightForm,
    *,
    dtype: torch.dtype = torch.bfloat16,
    use: MatrixUse = MatrixUse.PRODUCT,
    bias: bool = False,
) -> Matrix:
    maker = ParameterMaker(dtype, forms={"mlp.down_proj": form}).at("mlp")
    matrix = maker.matrix("down_proj", _COLUMNS, _ROWS, use=use, bias=bias)
    generator = torch.Generator().manual_seed(2)
    for parameter in matrix.parameters():
        if parameter.is_floating_point():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        else:
            parameter.copy_(torch.randint(0, 256, parameter.shape, generator=generator))
    return matrix


def _values(matrix: Matrix) -> Tensor:
    """The weights in float32, from the meaning of the form, while they are plain."""
    weight = matrix.weight.float()
    if matrix.form == DENSE:
        return weight
    if matrix.form.kind == "w4a16":
        packed = matrix.weight
        weight = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1).float()
        weight -= 0 if matrix.form.has_minimum else 8
    groups = weight.view(_ROWS, -1, 32) * matrix.get_parameter("scale").float()[..., None]
    if matrix.form.has_minimum:
        groups += matrix.get_parameter("minimum").float()[..., None]
    return groups.view(_ROWS, _COLUMNS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", _FORMS, ids=str)
def test_product_is_that_of_the_values(form: WeightForm, bias: bool) -> None:
    matrix = _make(form, bias=bias)
    x = torch.randn(2, 3, _COLUMNS, generator=torch.Generator().manual_seed(3)).bfloat16()
    expected = x @ _values(matrix).bfloat16().T
    if matrix.bias is not None:
        expected = expected + matrix.bias
    torch.testing.assert_close(matrix(x), expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("form", _WITH_LOOKUP, ids=str)
def test_rows_are_looked_up_in_the_dtype(form: WeightForm) -> None:
    matrix = _make(form, use=MatrixUse.LOOKUP)
    ids = torch.tensor([36, 0, 5, 0])
    assert torch.equal(matrix.embed(ids), _values(matrix)[ids].bfloat16())


@pytest.mark.parametrize("bias", [True, False])
def test_w8a8_multiplies_activations_rounded_to_bytes(bias: bool) -> None:
    matrix = _make(W8A8, bias=bias)
    x = torch.randn(2, 3, _COLUMNS, generator=torch.Generator().manual_seed(3)).bfloat16()
    integers, x_scale = ir.ops.quantize_int8_per_token(x)
    values = matrix.weight.float() * matrix.get_parameter("weight_scale")[:, None]
    expected = (integers.float() * x_scale) @ values.T
    if matrix.bias is not None:
        expected = expected + matrix.bias.float()
    found = matrix(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), atol=1e-4, rtol=8e-3)


def test_w8a8_reads_one_scale_for_any_columns_of_a_row() -> None:
    matrix = _make(W8A8)
    weight, scale = matrix.stored_rows(3, 8, 25)
    assert (weight.shape, scale.shape) == ((5, 25), (5,))
    assert scale.data_ptr() == matrix.get_parameter("weight_scale")[3:].data_ptr()


@pytest.mark.parametrize("form", [W4A16, W4A16_MINIMUM, W8A8], ids=str)
def test_table_of_a_form_without_look_ups_is_refused(form: WeightForm) -> None:
    with pytest.raises(ValueError, match=f"no op looks up rows of {form.kind}"):
        _make(form, use=MatrixUse.PRODUCT | MatrixUse.LOOKUP)


def _mirror(*weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.copy_(each.flip(0)) for each in weights)


def _mirrored(*weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.flip(0) for each in weights)


def _mirrored_copy(*weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.flip(0).clone() for each in weights)


def _product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """What `linear_w8a16` computes; a provider of it gets the weights as they lie."""
    return ir.ops.linear_w8a16(x, weight, scale, bias, group_size)


def _lookup(
    input_ids: Tensor,
    weight: Tensor,
    scale: Tensor,
    dtype: torch.dtype,
    group_size: int = 32,
    layout: str = "plain",
) -> Tensor:
    """What `embedding_w8a16` computes; a provider of it gets the weights as they lie."""
    return ir.ops.embedding_w8a16(input_ids, weight, scale, dtype, group_size)


class _NoPreference(ir.Platform):
    name = "test"


@pytest.fixture
def registry() -> ir.Registry:
    """Ops `_product` and `_lookup`, in which provider `mirror` reads layout `mirrored` alone."""
    registry = ir.Registry(platform=_NoPreference())
    for function in (_product, _lookup):
        op = registry.register_op(weights=("weight", "scale"))(function)
        op.register_layout("mirrored", pack=_mirror, unpack=_mirrored)
        op.register_impl("mirror", layouts=("mirrored",))(function)
    return registry


def _with_ops(registry: ir.Registry, use: MatrixUse) -> Matrix:
    matrix = _make(W8A16, use=use)
    matrix.product, matrix.lookup = registry["_product"], registry["_lookup"]
    return matrix


def test_packing_reorders_weights_in_their_own_memory(registry: ir.Registry) -> None:
    matrix = _with_ops(registry, MatrixUse.PRODUCT)
    plain = [each.clone() for each in matrix.parameters()]
    addresses = [each.data_ptr() for each in matrix.parameters()]
    with registry.priorities.override({"_product": ["mirror"]}):
        choice = matrix.pack()
        found = matrix(torch.eye(_COLUMNS).bfloat16())
    assert (choice.layout, matrix.layout, choice.selection.provider) == ("mirrored",) * 2 + (
        "mirror",
    )
    assert [each.data_ptr() for each in matrix.parameters()] == addresses
    for packed, before in zip(matrix.parameters(), plain, strict=True):
        assert torch.equal(packed, before.flip(0))
    # The provider takes the rows as they lie, native as they were.
    assert torch.equal(found.flip(1), matrix(torch.eye(_COLUMNS).bfloat16()))


def test_layout_is_plain_where_the_implementation_reads_that(registry: ir.Registry) -> None:
    matrix = _with_ops(registry, MatrixUse.PRODUCT)
    before = matrix.weight.clone()
    assert matrix.pack().layout == "plain"
    assert torch.equal(matrix.weight, before)


@pytest.mark.parametrize(
    ("use", "layout"),
    [
        (MatrixUse.LOOKUP, "mirrored"),
        (MatrixUse.PRODUCT, "plain"),
        (MatrixUse.PRODUCT | MatrixUse.LOOKUP, "plain"),
    ],
)
def test_layout_follows_the_use_that_reads_all_rows(
    registry: ir.Registry, use: MatrixUse, layout: str
) -> None:
    with registry.priorities.override({"_lookup": ["mirror"]}):
        assert _with_ops(registry, use).pack().layout == layout


def test_shared_matrix_lies_in_a_layout_of_both_ops(registry: ir.Registry) -> None:
    registry["_product"].register_layout("own", pack=_mirror, unpack=_mirrored)
    registry["_product"].register_impl("owner", layouts=("own",))(_product)
    matrix = _with_ops(registry, MatrixUse.PRODUCT | MatrixUse.LOOKUP)
    with registry.priorities.override({"_product": ["owner"]}):
        assert matrix.pack().layout == "plain"
        assert _with_ops(registry, MatrixUse.PRODUCT).pack().layout == "own"
    assert torch.equal(matrix.embed(torch.tensor([3])), _values(matrix)[[3]].bfloat16())


def test_packed_copies_take_the_place_of_the_parameters(registry: ir.Registry) -> None:
    registry["_product"].register_layout("copied", pack=_mirrored_copy, unpack=_mirrored)
    registry["_product"].register_impl("copier", layouts=("copied",))(_product)
    matrix = _with_ops(registry, MatrixUse.PRODUCT)
    before = matrix.weight.clone()
    with registry.priorities.override({"_product": ["copier"]}):
        matrix.pack()
    assert torch.equal(matrix.weight, before.flip(0))
    assert not any(each.requires_grad for each in matrix.parameters())
    assert {name for name, _ in matrix.named_parameters()} == {"weight", "scale"}
