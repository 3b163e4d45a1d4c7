from collections.abc import Callable

import pytest
import torch

from ir_core import IrOp, NoImplementationError, Registry, SwitchError
from ir_core.batch_invariance import is_batch_invariant, read_switch


@pytest.mark.parametrize(
    ("environ", "answer"),
    [
        ({}, False),
        ({"IR_BATCH_INVARIANT": "1"}, True),
        ({"IR_BATCH_INVARIANT": "0"}, False),
        ({"VLLM_BATCH_INVARIANT": "true"}, True),
        ({"IR_BATCH_INVARIANT": "on", "VLLM_BATCH_INVARIANT": "1"}, True),
    ],
)
def test_either_spelling_turns_it_on(environ: dict[str, str], answer: bool) -> None:
    assert is_batch_invariant(environ) is answer


def test_two_spellings_that_disagree_are_an_error() -> None:
    with pytest.raises(SwitchError, match="disagree"):
        is_batch_invariant({"IR_BATCH_INVARIANT": "1", "VLLM_BATCH_INVARIANT": "0"})


def test_a_value_that_is_neither_on_nor_off_is_an_error() -> None:
    with pytest.raises(SwitchError, match="X='yes please'"):
        read_switch({"X": "yes please"}, "X")


def test_selection_takes_invariant_implementations_only(
    registry: Registry, scale: IrOp, add_scale: Callable[..., None]
) -> None:
    add_scale("fast")
    add_scale("steady", batch_invariant=True)
    registry.priorities.set({"scale": "fast"})
    x = torch.ones(2, 2)
    assert scale.select(x, None, 1.0).provider == "fast"
    registry.set_batch_invariant(True)
    selection = scale.select(x, None, 1.0)
    assert selection.provider == "steady"
    assert [each.provider for each in selection.rejections] == ["fast", "native"]
    assert "not batch-invariant" in selection.rejections[0].reason


def test_without_an_invariant_implementation_every_reason_is_listed(
    registry: Registry, scale: IrOp, add_scale: Callable[..., None]
) -> None:
    add_scale("fast")
    registry.priorities.set({"scale": "fast"})
    registry.set_batch_invariant(True)
    with pytest.raises(NoImplementationError, match=r"(?s)`scale`.*fast: .*native: not batch-inv"):
        scale(torch.ones(1, 1), None, 1.0)


def test_the_environment_is_asked_where_nothing_is_set(
    registry: Registry, scale: IrOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IR_BATCH_INVARIANT", "1")
    with pytest.raises(NoImplementationError):
        scale.select(torch.ones(1, 1), None, 1.0)
    registry.set_batch_invariant(False)
    assert scale.select(torch.ones(1, 1), None, 1.0).provider == "native"
