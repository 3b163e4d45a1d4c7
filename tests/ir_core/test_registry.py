import threading

import pytest
import torch
from torch import Tensor

from ir_core import (
    DonationError,
    DuplicateRegistrationError,
    IrOp,
    NoImplementationError,
    Registry,
    SwitchError,
    UnknownOpError,
)


def negate(x: Tensor) -> Tensor:
    return -x


def test_a_registry_is_a_mapping_of_ops(registry: Registry, scale: IrOp) -> None:
    assert registry["scale"] is scale
    assert list(registry) == ["scale"]
    assert len(registry) == 1
    assert "scale" in registry
    assert "scael" not in registry
    assert registry.get("scale") is scale
    assert registry.get("scael") is None


def test_an_unknown_op_is_answered_with_the_nearest(registry: Registry, scale: IrOp) -> None:
    with pytest.raises(
        UnknownOpError, match=r"No op `scael`; did you mean `scale`\? Valid: `scale`"
    ):
        registry["scael"]


def test_the_same_op_again_is_the_same_object(registry: Registry) -> None:
    first = registry.register_op(negate)
    assert registry.register_op(negate) is first


def test_one_name_from_two_places_is_an_error_that_names_both(registry: Registry) -> None:
    def elsewhere(x: Tensor) -> Tensor:
        return -x

    first = registry.register_op(negate)
    with pytest.raises(DuplicateRegistrationError) as caught:
        registry.register_op(name="negate")(elsewhere)
    for function in (negate, elsewhere):
        assert f"{__file__}:{function.__code__.co_firstlineno}" in str(caught.value)
    assert first.native.fn is negate


def test_the_same_function_with_other_flags_is_an_error(registry: Registry) -> None:
    registry.register_op(negate)
    with pytest.raises(DuplicateRegistrationError, match="registered twice"):
        registry.register_op(splits=True)(negate)


def test_many_threads_may_register(registry: Registry, scale: IrOp) -> None:
    start = threading.Barrier(8)

    def register(index: int) -> None:
        def implementation(
            x: Tensor, weight: Tensor | None, factor: float, width: int | None = None
        ) -> Tensor:
            return x + index

        start.wait(10)
        scale.register_impl(f"provider_{index}")(implementation)

    threads = [threading.Thread(target=register, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(scale.implementations) == 9


def in_new_thread(function: object) -> list[BaseException]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()  # type: ignore[operator]
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return errors


def test_the_environment_turns_donation_checks_on_in_every_thread(
    writing: IrOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IR_CHECK_DONATIONS", "1")
    writing.registry.priorities.set({"add_twice": "writer"})

    def use_after_donation() -> None:
        x = torch.ones(3)
        once, _ = writing.maybe_inplace(x, torch.ones(3))
        assert once.sum() == 6
        x.sum()

    for _ in range(2):
        (error,) = in_new_thread(use_after_donation)
        assert isinstance(error, DonationError)
    assert torch.ones(1).sum() == 1


def test_a_switch_that_means_nothing_is_an_error(
    writing: IrOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IR_CHECK_DONATIONS", "maybe")
    with pytest.raises(SwitchError, match="IR_CHECK_DONATIONS='maybe'"):
        writing.maybe_inplace(torch.ones(1), torch.ones(1))


def test_a_registry_without_plugins_loads_none(registry: Registry) -> None:
    registry.load_plugins()
    assert registry.platform().name == "test"
    with pytest.raises(UnknownOpError, match="None is registered"):
        registry["anything"]


def test_refusing_everything_is_reported_as_one_error(registry: Registry, scale: IrOp) -> None:
    registry.set_batch_invariant(True)
    with pytest.raises(NoImplementationError):
        registry.select("scale", torch.ones(1), None, 1.0)
    registry.set_batch_invariant(False)
    assert registry.select("scale", torch.ones(1), None, 1.0).provider == "native"
