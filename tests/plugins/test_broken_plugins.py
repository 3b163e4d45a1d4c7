"""Plug-ins that are broken or in each other's way: the error names every distribution involved."""

from collections.abc import Callable, Iterable

from .conftest import Environment

AddPlugin = Callable[[str, str, Iterable[str]], dict[str, str]]

_RMS_NORM = """
import ir_core as ir

def register():
    ir.ops.rms_norm.register_impl("toy")(ir.ops.rms_norm.native.fn)
"""


def test_broken_plugin_is_an_error_that_names_its_distribution(
    toy_environment: Environment, add_plugin: AddPlugin
) -> None:
    source = "raise OSError('no such library: libfast.so')"
    entry = ["[ir_core.implementations]", "fast = shaky_kernels:register"]
    variables = add_plugin("shaky-kernels", source, entry)
    first, second = toy_environment.ir("list", "explain rms_norm", variables=variables)
    for answer in (first, second):
        assert (answer.code, answer.out) == (2, "")
        assert "`shaky-kernels`" in answer.err
        assert "OSError: no such library: libfast.so" in answer.err
        assert "IR_PLUGINS" in answer.err
        assert "Traceback" not in answer.err


def test_allow_list_goes_on_without_the_broken_plugin(
    toy_environment: Environment, add_plugin: AddPlugin
) -> None:
    entry = ["[ir_core.implementations]", "fast = shaky_kernels:register"]
    variables = add_plugin("shaky-kernels", "", entry)
    variables["IR_PLUGINS"] = "toy"
    (listed,) = toy_environment.ir("list toy_blend --json", variables=variables)
    assert [op["name"] for op in listed.data["ops"]] == ["toy_blend"]


def test_provider_that_two_distributions_register_is_an_error_with_both(
    toy_environment: Environment, add_plugin: AddPlugin
) -> None:
    entry = ["[ir_core.implementations]", "second = other_toys:register"]
    variables = add_plugin("other-toys", _RMS_NORM, entry)
    (listed,) = toy_environment.ir("list", variables=variables)
    assert listed.code == 2
    assert "Provider `toy` of `rms_norm` is registered twice" in listed.err
    assert "(toy)" in listed.err
    assert "(other-toys)" in listed.err
