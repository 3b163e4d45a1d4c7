import pytest

from serve_shim.settings.json_text import parse_json, to_json_or_text
from serve_shim.settings.source import Kind, Source
from serve_shim.settings.wrong_setting import WrongSettingError

HERE = Source(Kind.ARGUMENT, "-cc")


def test_the_caret_stands_under_the_mistake():
    with pytest.raises(WrongSettingError) as error:
        parse_json('{"mode": 3 "x": 1}', HERE)
    excerpt, caret = str(error.value).splitlines()[1:]
    assert excerpt[caret.index("^") :] == '"x": 1}'


def test_the_caret_stands_right_in_a_long_text():
    text = '{"a": [' + "1, " * 500 + "x" + ", 1" * 500 + "]}"
    with pytest.raises(WrongSettingError) as error:
        parse_json(text, HERE)
    excerpt, caret = str(error.value).splitlines()[1:]
    assert excerpt[caret.index("^")] == "x"
    assert len(excerpt) < 80


def test_a_mistake_on_a_later_line_is_placed_there():
    with pytest.raises(WrongSettingError, match="line 2, column 1"):
        parse_json('{"a": 1,\n}', HERE)


@pytest.mark.parametrize("text", ["", "{", '{"a": Infinity}', '{"a":1,"a":1}', "1" * 5000])
def test_what_is_no_json_is_refused(text: str):
    with pytest.raises(WrongSettingError, match="not valid JSON"):
        parse_json(text, HERE)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("1", 1),
        ("1e3", 1000.0),
        ("null", None),
        ('"1"', "1"),
        ("[1]", [1]),
        ("word", "word"),
        ("NaN", "NaN"),
        ("", ""),
    ],
)
def test_scalars_are_json_where_they_can_be(text: str, value: object):
    result = to_json_or_text(text)
    assert (result, type(result)) == (value, type(value))
