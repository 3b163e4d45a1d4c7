import asyncio
import logging
import threading
from collections.abc import Callable

import pytest
import torch

from ir_core import (
    IrOp,
    IrOpPriorityConfig,
    Platform,
    PriorityError,
    Registry,
    UnknownOpError,
    UnknownProviderError,
)

AddScale = Callable[..., None]
X = torch.ones(1, 1)


@pytest.fixture(autouse=True)
def _providers(add_scale: AddScale) -> None:
    for index, name in enumerate(["one", "two", "three"], 1):
        add_scale(name, float(10 * index))


def used(scale: IrOp) -> float:
    return float(scale(X, None, 1.0)[0, 0])


def test_scopes_nest_and_end(registry: Registry, scale: IrOp) -> None:
    assert used(scale) == 1
    with registry.priorities.override({"scale": "one"}):
        assert used(scale) == 10
        with registry.priorities.override({"scale": ["two"]}):
            assert used(scale) == 20
        assert used(scale) == 10
    assert used(scale) == 1


def test_a_scope_ends_when_its_body_raises(registry: Registry, scale: IrOp) -> None:
    with pytest.raises(ValueError, match="body"), registry.priorities.override({"scale": "one"}):
        raise ValueError("body")
    assert used(scale) == 1


def test_an_inner_scope_keeps_what_it_does_not_name(registry: Registry, scale: IrOp) -> None:
    with registry.priorities.override({"scale": "one"}), registry.priorities.override({}):
        assert used(scale) == 10


def test_a_scope_comes_before_the_process_wide_list(registry: Registry, scale: IrOp) -> None:
    registry.priorities.set(IrOpPriorityConfig(scale="two"))
    assert used(scale) == 20
    with registry.priorities.override({"scale": "one"}):
        assert used(scale) == 10
        registry.priorities.set({"scale": "three"})
        assert used(scale) == 10
    assert used(scale) == 30
    registry.priorities.set({})
    assert used(scale) == 1


def test_threads_see_the_process_wide_list_and_not_the_scope(
    registry: Registry, scale: IrOp
) -> None:
    registry.priorities.set({"scale": "two"})
    seen: list[float] = []
    with registry.priorities.override({"scale": "one"}):
        thread = threading.Thread(target=lambda: seen.append(used(scale)))
        thread.start()
        thread.join(10)
        assert used(scale) == 10
    assert seen == [20]


def test_concurrent_scopes_do_not_mix(registry: Registry, scale: IrOp) -> None:
    barrier = threading.Barrier(3)
    wrong: list[tuple[str, float]] = []

    def run(name: str, expected: float) -> None:
        with registry.priorities.override({"scale": name}):
            for _ in range(200):
                barrier.wait(10)
                value = used(scale)
                if value != expected:
                    wrong.append((name, value))

    cases = [("one", 10.0), ("two", 20.0), ("three", 30.0)]
    threads = [threading.Thread(target=run, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_tasks_keep_their_own_scope(registry: Registry, scale: IrOp) -> None:
    async def task(name: str) -> float:
        with registry.priorities.override({"scale": name}):
            await asyncio.sleep(0)
            return used(scale)

    async def both() -> list[float]:
        return list(await asyncio.gather(task("one"), task("two")))

    assert asyncio.run(both()) == [10, 20]


@pytest.mark.parametrize("enter", ["check", "set", "override"])
@pytest.mark.parametrize(
    ("lists", "error", "words"),
    [
        ({"scael": "one"}, UnknownOpError, "No op `scael`; did you mean `scale`"),
        ({"scale": "onee"}, UnknownProviderError, "no provider `onee`; did you mean `one`"),
        ({"scale": "one,native,aiterr"}, UnknownProviderError, "Valid: `native`, `one`, `three`"),
        ({"scale": ""}, PriorityError, "is empty"),
        ({"scale": "one,one"}, PriorityError, "more than once"),
        ([("scale", "one")], PriorityError, "maps ops to lists"),
    ],
)
def test_wrong_names_are_errors_however_they_are_given(
    registry: Registry,
    scale: IrOp,
    enter: str,
    lists: dict[str, str],
    error: type[Exception],
    words: str,
) -> None:
    def use() -> None:
        result = getattr(registry.priorities, enter)(lists)
        if enter == "override":
            result.__enter__()

    with pytest.raises(error, match=words):
        use()
    assert used(scale) == 1


def test_an_unsupported_provider_that_was_asked_for_is_reported_once(
    registry: Registry, scale: IrOp, add_scale: AddScale, caplog: pytest.LogCaptureFixture
) -> None:
    add_scale("aiter", supported=(False, "no ROCm device"))
    with caplog.at_level(logging.INFO, "ir_core.dispatch"):
        for _ in range(2):
            registry.priorities.set({"scale": ["aiter", "one"]})
        with registry.priorities.override({"scale": "aiter"}):
            pass
    assert [each.getMessage() for each in caplog.records] == [
        "scale: provider `aiter` was asked for but cannot run here: no ROCm device"
    ]
    assert caplog.records[0].levelno == logging.WARNING
    assert used(scale) == 10


class Modal(Platform):
    name = "modal"

    def default_priority(self, mode: str) -> dict[str, list[str]]:
        return {"eager": {"scale": ["one"]}, "inductor": {"scale": ["two"]}}[mode]


def test_the_mode_chooses_the_platforms_default() -> None:
    registry = Registry(platform=Modal())
    scale = registry.register_op(name="scale")(_scale)
    scale.register_impl("one")(_one)
    scale.register_impl("two")(_two)
    assert registry.priorities.mode == "eager"
    assert used(scale) == 10
    registry.priorities.set_mode("inductor")
    assert used(scale) == 20
    assert registry.resolved_priorities()["scale"].providers == ("two", "native")
    with pytest.raises(PriorityError, match="`inducter` is unknown; did you mean `inductor`"):
        registry.priorities.set_mode("inducter")  # type: ignore[arg-type]


def test_a_malformed_platform_default_names_the_platform() -> None:
    class Broken(Platform):
        name = "broken"

        def get_default_ir_op_priority(self) -> dict[str, list[str]]:
            return {"scale": ["one", "one"]}

    registry = Registry(platform=Broken())
    scale = registry.register_op(name="scale")(_scale)
    with pytest.raises(PriorityError, match=r"Platform broken: .*more than once"):
        scale(X, None, 1.0)


def test_resolved_priorities_give_each_source(registry: Registry, scale: IrOp) -> None:
    with registry.priorities.override({"scale": ["two", "native", "one"]}):
        entries = registry.resolved_priorities()["scale"].entries
    assert [(each.provider, each.source) for each in entries] == [
        ("two", "user"),
        ("native", "user"),
        ("one", "user"),
    ]


def _scale(
    x: torch.Tensor, weight: torch.Tensor | None, factor: float, width: int | None = None
) -> torch.Tensor:
    return x * factor


def _one(
    x: torch.Tensor, weight: torch.Tensor | None, factor: float, width: int | None = None
) -> torch.Tensor:
    return torch.full_like(x, 10)


def _two(
    x: torch.Tensor, weight: torch.Tensor | None, factor: float, width: int | None = None
) -> torch.Tensor:
    return torch.full_like(x, 20)
