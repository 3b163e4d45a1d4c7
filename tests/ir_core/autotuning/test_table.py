import json

import pytest
import torch

from ir_core import IrOp, Rejection
from ir_core.autotuning.signature import signature_of
from ir_core.autotuning.table import Timing, TunedChoice, TunedTable

CALL = (torch.ones(2, 4), torch.ones(4), 2.0, None)


def choice(provider: str = "quick", signature: str = "x") -> TunedChoice:
    timings = (Timing("native", {1: 40.3, 8: 50.0}), Timing("quick", {1: 12.1, 8: 20.0}))
    rejections = (Rejection("far", "no such unit"),)
    as_written = (Timing("native", {1: 90.5}),)
    return TunedChoice("scale", signature, "native", provider, timings, rejections, as_written)


def test_a_choice_survives_json() -> None:
    assert TunedChoice.from_json(json.loads(json.dumps(choice().to_json()))) == choice()


@pytest.mark.parametrize(
    "change",
    [{"op": None}, {"timings": [["a"]]}, {"as_written": 1}, {"rejections": 3}, {"provider": 1}],
)
def test_another_form_is_an_error(change: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        TunedChoice.from_json({**choice().to_json(), **change})


def test_a_choice_in_force_stays() -> None:
    table = TunedTable([choice("quick")]).extended([choice("native"), choice("native", "y")])
    assert table["scale", "x"].provider == "quick"
    assert table["scale", "y"].provider == "native"


def test_only_calls_with_the_signature_prefer_the_provider(scale: IrOp) -> None:
    table = TunedTable([choice("quick", signature_of(scale, CALL))])
    assert table.preferred(scale, CALL) == ("quick",)
    assert table.preferred(scale, (torch.ones(2, 5), *CALL[1:])) == ()


def test_a_choice_that_changes_nothing_prefers_nothing(scale: IrOp) -> None:
    table = TunedTable([choice("native", signature_of(scale, CALL))])
    assert table.preferred(scale, CALL) == ()
    assert not table.changes("scale")
    assert table.find(scale, CALL) is not None


def test_changed_rows_are_those_of_the_op() -> None:
    table = TunedTable([choice("quick", "x"), choice("native", "y")])
    assert table.changed_rows("scale") == {"x": "quick"}
    assert table.changed_rows("other") == {}
