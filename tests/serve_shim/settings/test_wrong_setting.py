import pytest

from serve_shim.errors import SettingsError
from serve_shim.settings.source import Kind, Source
from serve_shim.settings.wrong_setting import (
    MAX_MESSAGE,
    WrongSettingError,
    raise_problems,
    show,
    suggest,
)


def test_no_problem_raises_nothing():
    raise_problems([])


def test_one_problem_is_raised_as_it_is():
    problem = WrongSettingError("is wrong", Source(Kind.FILE, "a.yaml:3"), ("port",))
    with pytest.raises(WrongSettingError, match=r"^`a\.yaml:3`: is wrong$"):
        raise_problems([problem])


def test_problems_are_usage_errors():
    with pytest.raises(SettingsError) as error:
        raise_problems([WrongSettingError("a"), WrongSettingError("b")])
    assert error.value.exit_code == 2
    assert str(error.value) == "2 settings are wrong:\n  - a\n  - b"


def test_long_messages_and_values_are_cut():
    assert len(str(WrongSettingError("x" * 10_000))) == MAX_MESSAGE
    assert len(show("x" * 10_000)) == 60
    assert len(show(list(range(10_000)))) <= 60


def test_suggestions_fall_back_to_a_list():
    assert suggest("prot", ["port", "host"]).startswith(" Did you mean `port`")
    assert suggest("zzz", ["port", "host"]) == " Known: `host`, `port`."
    assert suggest("zzz", []) == ""
    assert suggest("zzz", [f"n{i:02}" for i in range(20)]).endswith("`n11`, ….")
