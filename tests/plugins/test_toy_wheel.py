"""A wheel from outside the tree brings an op, an implementation and a platform of its own."""

import importlib.metadata
import subprocess
import sys

import pytest

from .conftest import Answer, Environment

_NORM = "explain rms_norm --dtype f32 --shape 2x8 --json"
_BLEND = "explain toy_blend --shape 2x8 --json"


@pytest.fixture(scope="module")
def answers(toy_environment: Environment) -> dict[str, Answer]:
    """All short commands of this file, in one process."""
    commands = (
        "list --json",
        _NORM,
        f"{_NORM} --priority vllm_c --arg variance_size=4",
        _BLEND,
        f"{_BLEND} --priority native",
        f"{_BLEND} --priority toi",
    )
    return dict(zip(commands, toy_environment.ir(*commands), strict=True))


def test_list_shows_who_registered_what(answers: dict[str, Answer]) -> None:
    listed = answers["list --json"].data
    assert listed["platform"] == "toyland"
    ops = {op["name"]: op for op in listed["ops"]}
    assert ops["toy_blend"]["origin"] == "toy"
    origins = {each["provider"]: each["origin"] for each in ops["rms_norm"]["providers"]}
    assert origins["toy"] == "toy"
    assert origins["native"] == "ir_core"
    assert ops["rms_norm"]["priority"] == ["toy", "native"]


def test_platform_of_the_wheel_sets_the_default(answers: dict[str, Answer]) -> None:
    explained = answers[_NORM].data
    assert explained["selected"] == "toy"
    assert explained["verdicts"][0]["source"] == "platform toyland"


def test_user_comes_before_the_platform_and_native_is_last(answers: dict[str, Answer]) -> None:
    explained = answers[f"{_NORM} --priority vllm_c --arg variance_size=4"].data
    verdicts = explained["verdicts"]
    assert [(each["provider"], each["source"]) for each in verdicts[:3]] == [
        ("vllm_c", "user"),
        ("toy", "platform toyland"),
        ("native", "platform toyland"),
    ]
    assert len({each["provider"] for each in verdicts}) == len(verdicts)
    assert verdicts[1]["reason"] == "toy measures whole rows"
    first = next(each["provider"] for each in verdicts if each["accepts"])
    assert explained["selected"] == first != "toy"


def test_own_op_takes_a_priority_like_any_other(answers: dict[str, Answer]) -> None:
    by_default = answers[_BLEND].data
    assert [each["source"] for each in by_default["verdicts"]] == ["platform toyland", "fallback"]
    assert by_default["selected"] == "toy"
    assert answers[f"{_BLEND} --priority native"].data["selected"] == "native"
    unknown = answers[f"{_BLEND} --priority toi"]
    assert unknown.code == 2
    assert "did you mean `toy`" in unknown.err


def test_check_runs_the_suite_on_what_the_distribution_registered(
    toy_environment: Environment,
) -> None:
    (checked,) = toy_environment.ir("check toy --json")
    assert checked.data["ok"]
    findings = checked.data["findings"]
    made = {(each["op"], each["provider"]) for each in findings}
    assert made == {("rms_norm", "toy"), ("toy_blend", "native"), ("toy_blend", "toy")}
    rejected = {each["detail"] for each in findings if each["outcome"] == "rejected"}
    assert rejected == {"toy measures whole rows"}


def test_environment_that_lends_its_packages_does_not_see_the_toy() -> None:
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("toy")
    code = "import ir_core as ir; ir.load_plugins(); raise SystemExit('toy_blend' in ir.registry())"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
