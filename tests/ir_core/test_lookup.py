"""Choices are made once per distinct facts, and again as soon as something they rest on changes."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_core import ArgumentError, IrOp, Registry

AddScale = Callable[..., None]


class Counting:
    """Predicates that count how often each is asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def predicate(self, name: str, answer: Callable[[Any, Any], bool]) -> Any:
        def ask(x: Any, weight: Any, factor: Any, width: Any = None) -> bool:
            self.asked[name] += 1
            return answer(x, weight)

        return ask


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_five_predicates_are_asked_once(
    registry: Registry, scale: IrOp, add_scale: AddScale, counting: Counting
) -> None:
    names = [f"provider_{index}" for index in range(5)]
    for name in names:
        refuses = counting.predicate(name, lambda x, weight: x.dtype == torch.float64)
        add_scale(name, supports_args=refuses)
    registry.priorities.set({"scale": names})
    for tokens in range(10):
        scale(torch.ones(tokens, 8), None, 1.0)
    assert counting.asked == dict.fromkeys(names, 1)


def test_what_a_predicate_reads_tells_calls_apart(
    registry: Registry, scale: IrOp, add_scale: AddScale, counting: Counting
) -> None:
    add_scale("wide", 7.0, supports_args=counting.predicate("wide", lambda x, _: x.shape[-1] == 8))
    registry.priorities.set({"scale": "wide"})
    for _ in range(3):
        assert scale(torch.ones(2, 8), None, 1.0).sum() == 7 * 16
        assert scale(torch.ones(2, 4), None, 1.0).sum() == 8
        assert scale(torch.ones(3, 2, 8), None, 1.0).sum() == 7 * 48
        assert scale(torch.ones(3, 8, dtype=torch.float64), None, 1.0).sum() == 7 * 24
    # One for each width and rank; the dtype was never read, so it does not count.
    assert counting.asked["wide"] == 3


@pytest.mark.parametrize(
    ("read", "one", "other"),
    [
        (lambda x, w: x.ndim == 2, torch.ones(4, 8), torch.ones(4, 2, 4)),
        (lambda x, w: x.dtype == torch.float32, torch.ones(4, 8), torch.ones(4, 8).double()),
        (lambda x, w: x.is_cpu, torch.ones(4, 8), None),
        (lambda x, w: x.layout == torch.strided, torch.ones(4, 8), None),
    ],
    ids=["ndim", "dtype", "device", "layout"],
)
def test_each_fact_is_part_of_the_key(
    registry: Registry,
    scale: IrOp,
    add_scale: AddScale,
    counting: Counting,
    read: Callable[[Any, Any], bool],
    one: Tensor,
    other: Tensor | None,
) -> None:
    add_scale("probe", 5.0, supports_args=counting.predicate("probe", read))
    registry.priorities.set({"scale": "probe"})
    for _ in range(2):
        assert scale(one, None, 1.0).flatten()[0] == 5
        if other is not None:
            assert scale(other, None, 1.0).flatten()[0] == 1
    assert counting.asked["probe"] == (1 if other is None else 2)


@pytest.mark.parametrize("read", [lambda w: w.is_contiguous(), lambda w: w.stride(0) == 1])
def test_the_layout_of_a_weight_is_part_of_the_key(
    registry: Registry, scale: IrOp, add_scale: AddScale, read: Callable[[Any], bool]
) -> None:
    add_scale("probe", 5.0, supports_args=lambda x, weight, factor, width=None: read(weight))
    registry.priorities.set({"scale": "probe"})
    for _ in range(2):
        assert scale(torch.ones(1, 8), torch.ones(8), 1.0)[0, 0] == 5
        assert scale(torch.ones(1, 8), torch.ones(16)[::2], 1.0)[0, 0] == 1


@pytest.mark.parametrize("has_predicate", [False, True])
def test_the_layout_of_packed_weights_is_part_of_the_key(
    registry: Registry,
    project: IrOp,
    add_project: Callable[..., None],
    counting: Counting,
    has_predicate: bool,
) -> None:
    def accept(x: Any, weight: Any, bias: Any = None, layout: str = "plain") -> bool:
        counting.asked["packed"] += 1
        return True

    predicate = accept if has_predicate else None
    add_project("packed", 5.0, layouts=("upside_down",), supports_args=predicate)
    registry.priorities.set({"project": "packed"})
    x, weight = torch.ones(1, 2), torch.ones(3, 2)
    for _ in range(3):
        assert project(x, weight)[0, 0] == 2
        assert project(x, weight, None, "upside_down")[0, 0] == 5
        with pytest.raises(ArgumentError, match="no layout `sideways`"):
            project(x, weight, None, "sideways")
    assert counting.asked["packed"] == has_predicate


def test_none_and_scalars_are_part_of_the_key(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    def predicate(x: Any, weight: Any, factor: Any, width: Any = None) -> bool:
        return weight is None and factor == 1.0 and width is None

    add_scale("bare", 5.0, supports_args=predicate)
    registry.priorities.set({"scale": "bare"})
    x, weight = torch.ones(2, 4), torch.ones(4)
    for _ in range(2):
        assert scale(x, None, 1.0)[0, 0] == 5
        assert scale(x, weight, 1.0)[0, 0] == 1
        assert scale(x, None, 2.0)[0, 0] == 2
        assert scale(x, None, 1.0, 3)[0, 0] == 1


def test_a_middle_token_dim_keeps_the_key_exact(registry: Registry) -> None:
    asked: list[int] = []

    @registry.register_op(token_dims={"x": 1})
    def double(x: Tensor) -> Tensor:
        return x * 2

    def wide(x: Any) -> bool:
        asked.append(1)
        return x.shape[0] == 2 and x.shape[-1] == 3

    @double.register_impl("wide", supports_args=wide)
    def triple(x: Tensor) -> Tensor:
        return x * 3

    registry.priorities.set({"double": "wide"})
    for _ in range(2):
        assert double(torch.ones(2, 4, 3))[0, 0, 0] == 3
        assert double(torch.ones(2, 9, 3))[0, 0, 0] == 3
        assert double(torch.ones(1, 4, 3))[0, 0, 0] == 2
        assert double(torch.ones(2, 4, 1))[0, 0, 0] == 2
    assert len(asked) == 3


@pytest.mark.parametrize("order", [(None, 3, None), (3, None, 3)])
def test_whether_a_hidden_scalar_is_there_is_part_of_the_key(
    registry: Registry, order: tuple[int | None, ...]
) -> None:
    @registry.register_op(token_dims={"count": ()})
    def take(x: Tensor, count: int | None = None) -> Tensor:
        return x[:count].clone()

    @take.register_impl("all", supports_args=lambda x, count=None: count is None)
    def take_all(x: Tensor, count: int | None = None) -> Tensor:
        return x + 1

    registry.priorities.set({"take": "all"})
    values = [take(torch.ones(9, 2), count)[0, 0] for count in order]
    assert values == [2 if count is None else 1 for count in order]


@pytest.mark.parametrize(("right", "wrong"), [(1, True), (2, 2.0)])
def test_an_equal_scalar_of_another_type_is_still_refused(
    registry: Registry, scale: IrOp, add_scale: AddScale, right: int, wrong: Any
) -> None:
    add_scale("probe", supports_args=lambda x, weight, factor, width=None: True)
    registry.priorities.set({"scale": "probe"})
    for width in (right, 3, right):
        scale(torch.ones(1, 4), None, 1.0, width)
    with pytest.raises(ArgumentError, match="for `width`, which is int"):
        scale(torch.ones(1, 4), None, 1.0, wrong)


def test_a_hidden_scalar_does_not_tell_calls_apart(registry: Registry) -> None:
    asked: list[int] = []

    @registry.register_op(token_dims={"num_tokens": ()})
    def take(x: Tensor, num_tokens: int) -> Tensor:
        return x[:num_tokens].clone()

    def predicate(x: Any, num_tokens: Any) -> bool:
        asked.append(1)
        return x.dtype == torch.float64

    @take.register_impl("other", supports_args=predicate)
    def other(x: Tensor, num_tokens: int) -> Tensor:
        return x[:num_tokens].clone()

    registry.priorities.set({"take": "other"})
    assert [len(take(torch.ones(9, 2), count)) for count in range(9)] == list(range(9))
    assert asked == [1]


def test_unhashable_scalars_work(registry: Registry) -> None:
    @registry.register_op
    def fold(x: Tensor, sizes: list[int]) -> Tensor:
        return x.reshape(sizes).clone()

    @fold.register_impl("flat", supports_args=lambda x, sizes: len(sizes) == 1)
    def flat(x: Tensor, sizes: list[int]) -> Tensor:
        return x.reshape(sizes) + 1

    registry.priorities.set({"fold": "flat"})
    assert fold(torch.zeros(4), [2, 2]).sum() == 0
    assert fold(torch.zeros(4), [4]).sum() == 4


def test_scalars_that_never_repeat_do_not_pile_up(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("probe", supports_args=lambda x, weight, factor, width=None: True)
    registry.priorities.set({"scale": "probe"})
    x = torch.ones(1, 1)
    for index in range(1100):
        scale(x, None, float(index))
    assert len(scale.functional_lookup._memory) <= 1024


def test_an_implementation_registered_late_is_used_at_once(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    add_scale("first", supported=False)
    registry.priorities.set({"scale": "first"})
    x = torch.ones(2, 4)
    assert scale(x, None, 1.0)[0, 0] == 1
    add_scale("late", 9.0)
    assert scale(x, None, 1.0)[0, 0] == 1
    registry.priorities.set({"scale": ["first", "late"]})
    assert scale(x, None, 1.0)[0, 0] == 9


def test_a_default_whose_provider_comes_late_is_applied(scale: IrOp, add_scale: AddScale) -> None:
    x = torch.ones(2, 4)
    assert scale(x, None, 1.0)[0, 0] == 1
    platform = scale.registry.platform()
    platform.get_default_ir_op_priority = lambda: {"scale": ["late"]}  # type: ignore[method-assign]
    add_scale("late", 9.0)
    assert scale(x, None, 1.0)[0, 0] == 9


def test_a_choice_made_under_an_older_priority_is_not_remembered(
    registry: Registry, scale: IrOp, add_scale: AddScale
) -> None:
    started, proceed = threading.Event(), threading.Event()

    def slow(x: Any, weight: Any, factor: Any, width: Any = None) -> bool:
        started.set()
        return proceed.wait(10)

    add_scale("slow", 1.5, supports_args=slow)
    add_scale("new", 2.5)
    registry.priorities.set({"scale": "slow"})
    x = torch.ones(1, 1)
    thread = threading.Thread(target=lambda: scale(x, None, 1.0))
    thread.start()
    assert started.wait(10)
    registry.priorities.set({"scale": "new"})
    proceed.set()
    thread.join(10)
    assert not thread.is_alive()
    assert scale(x, None, 1.0)[0, 0] == 2.5


def test_a_call_counts_as_executed_when_it_has_not_failed(registry: Registry, scale: IrOp) -> None:
    @scale.register_impl("fragile")
    def fragile(
        x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
    ) -> Tensor:
        if weight is None:
            raise RuntimeError("no such kernel")
        return x * weight

    registry.priorities.set({"scale": "fragile"})
    with pytest.raises(RuntimeError, match="no such kernel"):
        scale(torch.ones(1, 1), None, 1.0)
    assert registry.selections() == ()
    scale(torch.ones(1, 1), torch.ones(1), 1.0)
    assert [row.provider for row in registry.selections()] == ["fragile"]
