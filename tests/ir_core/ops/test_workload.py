import pytest

from ir_core.testing import InputGenerator, Workload, workloads


def test_workloads_stay_with_a_generator_that_can_still_be_called() -> None:
    case = Workload("one", "because", {"num_tokens": 1})

    @workloads(case)
    def generate(num_tokens: int) -> tuple[int]:
        return (num_tokens + 1,)

    assert isinstance(generate, InputGenerator)
    assert generate.workloads == (case,)
    assert generate(**case.inputs) == (2,)


def test_repeated_workload_name_is_refused() -> None:
    with pytest.raises(ValueError, match="`one` is used twice"):
        workloads(Workload("one", "a"), Workload("one", "b"))
