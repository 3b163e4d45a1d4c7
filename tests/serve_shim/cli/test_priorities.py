import pytest

import ir_core as ir
from serve_shim.cli.priorities import apply_priorities
from serve_shim.errors import SettingsError
from serve_shim.settings import resolve


def test_priorities_of_the_settings_come_first():
    apply_priorities(resolve(["--ir-op-priority.rms-norm=native"]))
    first = ir.priorities()["rms_norm"].entries[0]
    assert (first.provider, first.source) == ("native", "user")


def test_a_later_start_forgets_the_earlier_one():
    apply_priorities(resolve(["--ir-op-priority.rms_norm=native"]))
    apply_priorities(resolve([]))
    assert "user" not in {entry.source for entry in ir.priorities()["rms_norm"].entries}


@pytest.mark.parametrize(
    ("argv", "environ", "parts"),
    [
        (
            ["--ir-op-priority.rms_nrm=native"],
            {},
            ["`--ir-op-priority.rms_nrm`", "`rms_nrm`", "did you mean `rms_norm`"],
        ),
        (
            ["--kernel-config", '{"ir_op_priority": {"rms_norm": ["nativ"]}}'],
            {},
            ["`--kernel-config`", "`nativ`", "native: can run here"],
        ),
        (
            [],
            {"SERVE_SHIM_IR_OP_PRIORITY__RMS_NRM": "native"},
            ["`SERVE_SHIM_IR_OP_PRIORITY__RMS_NRM`", "did you mean `rms_norm`"],
        ),
    ],
)
def test_an_unknown_name_is_led_back_to_its_source(
    argv: list[str], environ: dict[str, str], parts: list[str]
):
    with pytest.raises(SettingsError) as error:
        apply_priorities(resolve(argv, environ))
    for part in parts:
        assert part in str(error.value)


def test_all_wrong_priorities_are_listed_and_none_is_set():
    argv = ["--ir-op-priority.a=native", "--ir-op-priority.rms_norm=x"]
    argv.append("--ir-op-priority.silu_and_mul=native")
    with pytest.raises(SettingsError, match="2 settings are wrong"):
        apply_priorities(resolve(argv))
    assert "user" not in {entry.source for entry in ir.priorities()["silu_and_mul"].entries}
