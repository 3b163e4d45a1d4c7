import json

import pytest
import torch

from ir_core import IrOp, Rejection, RowRangeError
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.signature import signature_of
from ir_core.autotuning.table import Timing, TunedChoice, TunedTable

LATER = (LaterRange(9, "native"), LaterRange(65, "far"))
CALL = (torch.ones(2, 4), torch.ones(4), 2.0, None)


def choice(
    provider: str = "quick", signature: str = "x", later: tuple[LaterRange, ...] = ()
) -> TunedChoice:
    timings = (Timing("native", {1: 40.3, 8: 50.0}), Timing("quick", {1: 12.1, 8: 20.0}))
    rejections = (Rejection("far", "no such unit"),)
    as_written = (Timing("native", {1: 90.5}),)
    given = (timings, rejections, as_written, later, "a remark")
    return TunedChoice("scale", signature, "native", provider, *given)


@pytest.mark.parametrize("later", [(), LATER])
def test_a_choice_survives_json(later: tuple[LaterRange, ...]) -> None:
    stored = choice(later=later)
    assert TunedChoice.from_json(json.loads(json.dumps(stored.to_json()))) == stored


@pytest.mark.parametrize(
    "change",
    [
        {"op": None},
        {"timings": [["a"]]},
        {"as_written": 1},
        {"rejections": 3},
        {"provider": 1},
        {"later": 1},
        {"later": [[9]]},
        {"later": [["a", "native"]]},
        {"later": [[1, "native"]]},
        {"later": [[9, "quick"]]},
        {"later": [[9, "native"], [9, "far"]]},
        {"later": [[65, "native"], [9, "far"]]},
    ],
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


def test_a_choice_without_ranges_is_of_another_format() -> None:
    value = choice().to_json()
    del value["later"]
    with pytest.raises(KeyError):
        TunedChoice.from_json(value)


def test_one_winner_reads_as_one() -> None:
    assert choice().winners == "quick"
    assert [str(each) for each in choice().ranges] == ["1..: quick"]


def test_ranges_cover_all_rows() -> None:
    ranged = choice(later=LATER)
    assert ranged.winners == "1..8: quick, 9..64: native, 65..: far"
    found = [ranged.provider_for((count, count)) for count in (0, 1, 8, 9, 64, 65, 10**6)]
    assert found == ["quick", "quick", "quick", "native", "native", "far", "far"]


def test_rows_within_one_range_need_not_be_known() -> None:
    ranged = choice(later=LATER)
    bounds = [(0, 0), (0, 8), (1, 8), (9, 64), (65, None), (10, 20)]
    found = [ranged.provider_for(each) for each in bounds]
    assert found == ["quick", "quick", "quick", "native", "far", "native"]


@pytest.mark.parametrize(
    ("bounds", "rows", "end"),
    [((0, None), "0..", 8), ((8, 9), "8..9", 8), ((9, None), "9..", 64), ((64, 65), "64..65", 64)],
)
def test_rows_that_straddle_an_end_are_an_error(
    bounds: tuple[int, int | None], rows: str, end: int
) -> None:
    with pytest.raises(RowRangeError) as error:
        choice(later=LATER).provider_for(bounds)
    text = str(error.value)
    assert f"Op `scale` is called with {rows} rows" in text
    assert "1..8: quick, 9..64: native, 65..: far" in text
    assert f"let one end at {end}" in text


def test_ranges_prefer_nothing_where_they_change_nothing(scale: IrOp) -> None:
    table = TunedTable([choice("quick", signature_of(scale, CALL), LATER)])
    found = [table.preferred(scale, (torch.ones(n, 4), *CALL[1:])) for n in (8, 9, 65)]
    assert found == [("quick",), (), ("far",)]


def test_a_change_in_a_later_range_is_one(scale: IrOp) -> None:
    later = (LaterRange(9, "quick"),)
    table = TunedTable([choice("native", signature_of(scale, CALL), later)])
    assert table.changes("scale")
    assert [each.winners for each in table.values()] == ["1..8: native, 9..: quick"]
    assert table.changed_rows("scale") == {signature_of(scale, CALL): "1..8: native, 9..: quick"}


def test_ends_are_those_of_all_signatures_of_an_op() -> None:
    table = TunedTable(
        [choice(later=LATER), choice("quick", "y", (LaterRange(17, "far"),)), choice("far", "z")]
    )
    assert table.ends("scale") == (8, 16, 64)
    assert table.ends() == (8, 16, 64)
    assert table.ends("other") == ()
    assert TunedTable([choice()]).ends() == ()
