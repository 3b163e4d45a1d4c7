"""Layouts of an op with two weights: registering, packing, unpacking, and native that reads all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import (
    ArgumentError,
    DuplicateRegistrationError,
    IrOp,
    LayoutError,
    RegistrationError,
    Registry,
)

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
WEIGHT = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
BIAS = torch.tensor([10.0, 20.0, 30.0])


def identity(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight, bias


def test_plain_is_always_there_and_comes_first(scale: IrOp, project: IrOp) -> None:
    assert scale.layouts == ("plain",)
    assert project.layouts == ("plain", "upside_down")
    project.register_layout("other", pack=identity, unpack=identity)
    assert project.layouts == ("plain", "upside_down", "other")


def test_packing_permutes_every_weight_and_names_the_layout(project: IrOp) -> None:
    values = project.bind(X, WEIGHT.clone(), BIAS.clone())
    x, weight, bias, layout = project.pack(values, "upside_down")
    assert layout == "upside_down"
    assert x is values[0]
    assert torch.equal(weight, WEIGHT.flip(0))
    assert torch.equal(bias, BIAS.flip(0))
    plain = project.unpack((x, weight, bias, layout))
    assert plain[3] == "plain"
    assert torch.equal(plain[1], WEIGHT)
    assert torch.equal(plain[2], BIAS)


def test_a_weight_that_is_absent_stays_absent(project: IrOp) -> None:
    packed = project.pack(project.bind(X, WEIGHT), "upside_down")
    assert packed[2] is None
    assert project.unpack(packed)[2] is None


def test_native_reads_every_layout_and_sees_plain_weights(project: IrOp) -> None:
    expected = X @ WEIGHT.T + BIAS
    packed = project.pack(project.bind(X, WEIGHT.clone(), BIAS.clone()), "upside_down")
    assert torch.equal(project(*packed), expected)
    assert torch.equal(project.native(*packed), expected)
    assert torch.equal(project.native.fn(*packed), expected)
    assert torch.equal(project.torch_op(*packed), expected)
    assert not torch.equal(project(*packed[:3]), expected)
    assert project.native.layouts == project.layouts


def test_packing_in_the_same_layout_moves_nothing(project: IrOp) -> None:
    values = project.bind(X, WEIGHT)
    assert all(a is b for a, b in zip(project.pack(values, "plain"), values, strict=True))
    packed = project.pack(values, "upside_down")
    assert project.pack(packed, "upside_down") == packed
    assert project.unpack(values) == values


def test_packed_weights_are_not_packed_again(project: IrOp) -> None:
    project.register_layout("other", pack=identity, unpack=identity)
    packed = project.pack(project.bind(X, WEIGHT), "upside_down")
    with pytest.raises(ArgumentError, match="`project` lie in `upside_down`; unpack them before"):
        project.pack(packed, "other")


@pytest.mark.parametrize(
    "call",
    [
        lambda op, values: op(*values),
        lambda op, values: op.torch_op(*values),
        lambda op, values: op.native(*values),
        lambda op, values: op.select(*values),
        lambda op, values: op.unpack(values),
        lambda op, values: op.pack((*values[:3], "plain"), values[3]),
    ],
    ids=["call", "torch", "native", "select", "unpack", "pack"],
)
def test_an_unknown_layout_is_an_error_that_lists_the_valid_ones(
    project: IrOp, call: Callable[[IrOp, tuple[Any, ...]], object]
) -> None:
    project(X, WEIGHT)
    with pytest.raises(
        ArgumentError, match=r"no layout `upside_dwn`; did you mean `upside_down`\? Valid: `plain`"
    ):
        call(project, (X, WEIGHT, None, "upside_dwn"))


def test_a_compiled_call_takes_packed_weights_and_refuses_unknown_layouts(project: IrOp) -> None:
    compiled = torch.compile(project, backend="eager", fullgraph=True)
    packed = project.pack(project.bind(X, WEIGHT, BIAS), "upside_down")
    assert torch.equal(compiled(*packed), X @ WEIGHT.T + BIAS)
    with pytest.raises(Exception, match="no layout `sideways`"):
        compiled(X, WEIGHT, None, "sideways")
    torch.compiler.reset()


def test_only_an_op_with_weights_has_layouts(scale: IrOp) -> None:
    with pytest.raises(RegistrationError, match=r"`scale` has no weights to lay out; declare them"):
        scale.register_layout("packed", pack=identity, unpack=identity)


@pytest.mark.parametrize(
    ("name", "words"),
    [("plain", "Layout name `plain`.*reserved"), ("Panel", "Layout name `Panel` is malformed")],
)
def test_a_reserved_or_malformed_name_is_refused(project: IrOp, name: str, words: str) -> None:
    with pytest.raises(RegistrationError, match=words):
        project.register_layout(name, pack=identity, unpack=identity)


def test_a_layout_from_another_place_is_a_duplicate(project: IrOp) -> None:
    project.register_layout("other", pack=identity, unpack=identity)
    project.register_layout("other", pack=identity, unpack=identity)
    with pytest.raises(DuplicateRegistrationError, match=r"Layout `other` of `project` .* twice"):
        project.register_layout("other", pack=lambda weight, bias: (weight, bias), unpack=identity)


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        (lambda weight, bias: (weight.T, bias), r"made `weight`, .*\[3, 2\].* into .*\[2, 3\]"),
        (lambda weight, bias: (weight.double(), bias), r"made `weight`.*float64"),
        (lambda weight, bias: (weight, None), r"made `bias`.*into None"),
        (lambda weight, bias: weight, "returned Tensor; it must return a tuple of 2 weights"),
        (lambda weight, bias: (weight,), "tuple of 2 weights"),
    ],
)
def test_a_layout_that_is_no_permutation_is_an_error(
    project: IrOp, pack: Callable[..., Any], words: str
) -> None:
    project.register_layout("broken", pack=pack, unpack=identity)
    with pytest.raises(LayoutError, match=words):
        project.pack(project.bind(X, WEIGHT, BIAS), "broken")


def test_packing_needs_no_gradient(registry: Registry, project: IrOp) -> None:
    weight = torch.nn.Parameter(WEIGHT.clone())
    packed = project.pack(project.bind(X, weight), "upside_down")
    assert not packed[1].requires_grad


def test_choose_layout_gives_the_first_provider_its_preferred_layout(
    registry: Registry, project: IrOp, add_project: Callable[..., None]
) -> None:
    project.register_layout("other", pack=identity, unpack=identity)
    add_project("both", layouts=("other", "upside_down"))
    add_project("unpacked")
    registry.priorities.set({"project": ["unpacked", "both"]})
    assert project.choose_layout(X, WEIGHT).layout == "plain"
    registry.priorities.set({"project": ["both", "unpacked"]})
    choice = project.choose_layout(X, WEIGHT)
    assert (choice.layout, choice.selection.provider) == ("other", "both")
    packed = project.pack(project.bind(X, WEIGHT), choice.layout)
    assert project.select(*packed) == choice.selection


def test_choose_layout_asks_for_each_layout_and_keeps_the_reasons(
    registry: Registry, project: IrOp, add_project: Callable[..., None]
) -> None:
    project.register_layout("other", pack=identity, unpack=identity)

    def only_other(x: Any, weight: Any, bias: Any = None, layout: str = "plain") -> bool | str:
        return layout == "other" or f"no bias in {layout}"

    def half(x: Any, weight: Any, bias: Any = None, layout: str = "plain") -> bool | str:
        return x.dtype == torch.float16 or "needs float16"

    add_project("half", layouts=("upside_down",), supports_args=half)
    add_project("picky", layouts=("upside_down", "other"), supports_args=only_other)
    registry.priorities.set({"project": ["half", "picky"]})
    choice = project.choose_layout(X, WEIGHT)
    assert (choice.layout, choice.selection.provider) == ("other", "picky")
    assert [(each.provider, each.reason) for each in choice.selection.rejections] == [
        ("half", "needs float16")
    ]
    assert project.choose_layout(X.half(), WEIGHT.half()).layout == "upside_down"


def test_choose_layout_falls_back_to_plain_native(
    registry: Registry, project: IrOp, add_project: Callable[..., None]
) -> None:
    add_project("far", layouts=("upside_down",), supported=(False, "no such device"))
    registry.priorities.set({"project": "far"})
    choice = project.choose_layout(X, WEIGHT, layout="upside_down")
    assert (choice.layout, choice.selection.provider) == ("plain", "native")
    assert choice.selection.rejections[0].reason == "no such device"


def test_choose_layout_of_an_op_without_weights_is_its_selection(scale: IrOp) -> None:
    choice = scale.choose_layout(X, None, 1.0)
    assert choice.layout == "plain"
    assert choice.selection == scale.select(X, None, 1.0)
    assert choice.selection.layout is None
