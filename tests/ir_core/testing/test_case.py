import pytest
import torch

from ir_core import testing
from ir_core.testing import CheckDeclined, CheckRejected, Workload

from .toy_ops import projection, scaled_add


def test_cases_cross_implementations_workloads_and_dtypes() -> None:
    op = scaled_add()
    found = testing.cases([op], dtypes=[torch.float32])
    assert [str(case) for case in found] == [
        "scaled_add-native-one-token-float32",
        "scaled_add-native-odd-count-float32",
        "scaled_add-native-no-tokens-float32",
        "scaled_add-native-wide-float32",
        "scaled_add-native-no-factor-float32",
    ]
    assert len(testing.cases([op])) == 3 * len(found)
    assert testing.cases([op], providers=["other"]) == []


def test_cases_cross_the_layouts_that_each_implementation_reads() -> None:
    op = projection()
    op.register_impl("packed", layouts=("upside_down",))(op.native.written_fn)
    found = testing.cases([op], dtypes=[torch.float32])
    assert [str(case) for case in found if case.workload.name == "rows"] == [
        "projection-native-plain-rows-float32",
        "projection-native-upside_down-rows-float32",
        "projection-packed-upside_down-rows-float32",
    ]


def test_arguments_of_a_case_are_packed_in_its_layout() -> None:
    plain, packed = (
        each
        for each in testing.cases([projection()], dtypes=[torch.float32])
        if each.workload.name == "rows"
    )
    x, weight, layout = packed.arguments()
    assert layout == "upside_down"
    assert torch.equal(x, plain.arguments()[0])
    assert torch.equal(weight.flip(0), plain.arguments()[1])


def test_workload_that_is_not_checked_makes_no_case() -> None:
    op = scaled_add()
    op.register_input_generator(
        testing.workloads(Workload("huge", "bench", {"num_tokens": 1}, checked=False))(
            op.generate_inputs
        )
    )
    assert "huge" in {each.name for each in testing.workloads_of(op)}
    assert "huge" not in {case.workload.name for case in testing.cases([op])}


def test_own_workload_takes_the_place_of_a_standard_one() -> None:
    op = scaled_add()
    own = Workload("one-token", "ours", {"num_tokens": 1, "width": 2})
    op.register_input_generator(testing.workloads(own)(op.generate_inputs))
    assert testing.workloads_of(op).count(own) == 1
    assert [each.name for each in testing.workloads_of(op)].count("one-token") == 1


def test_arguments_fill_in_defaults_and_can_be_changed() -> None:
    case = testing.cases([scaled_add()])[0]
    x, _, factor, power = case.arguments()
    assert (x.shape, factor.shape, power) == ((1, 5), (5,), 2.0)
    assert case.arguments(num_tokens=4)[0].shape == (4, 5)
    assert not torch.equal(case.arguments(seed=1)[0], x)


def test_require_selected_tells_rejected_from_unavailable() -> None:
    op = scaled_add()

    def half(x, x_other, factor, power=2.0):  # type: ignore[no-untyped-def]
        return x.dtype == torch.float16 or "only float16"

    op.register_impl("half", supports_args=half)(op.native.fn)
    op.register_impl("absent", supported=(False, "no such device"))(op.native.fn)
    arguments = testing.cases([op])[0].arguments()
    with pytest.raises(CheckRejected, match="only float16"):
        testing.require_selected(op.implementations["half"], arguments)
    with pytest.raises(CheckDeclined, match="no such device"):
        testing.require_selected(op.implementations["absent"], arguments)


def test_forced_puts_one_provider_first_for_the_block_only() -> None:
    op = scaled_add()
    op.register_impl("fast")(op.native.fn)
    arguments = testing.cases([op])[0].arguments()
    with testing.forced(op.implementations["fast"]):
        assert op.select(*arguments).provider == "fast"
    assert op.select(*arguments).provider == "native"
