import traceback

import pytest

from ir_core.generated_code import build


def test_a_function_is_built_over_its_environment_with_defaults() -> None:
    text = "def add(x, y):\n    return x + y + z\n"
    add = build("add", text, {"z": 100}, "toy", (10,))
    assert add(1) == 111
    assert add(x=1, y=2) == 103


def test_tracebacks_name_the_op() -> None:
    fail = build("fail", "def fail():\n    raise ValueError\n", {}, "toy")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        fail()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename == "<ir op toy>"
