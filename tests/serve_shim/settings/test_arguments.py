"""The grammar of the command line; what values mean is tested with `resolve`."""

import pytest

from serve_shim.settings import Settings
from serve_shim.settings.arguments import from_arguments
from serve_shim.settings.schema import settings_schema
from serve_shim.settings.source import Given
from serve_shim.settings.wrong_setting import WrongSettingError

ROOT = settings_schema(Settings)


def read(*argv: str) -> list[tuple[str, object, str]]:
    """Path, value and source of everything given; raises the first error."""
    result: list[tuple[str, object, str]] = []
    for item in from_arguments(ROOT, argv).given:
        if isinstance(item, WrongSettingError):
            raise item
        result.append((".".join(item.path), item.value, item.source.name))
    return result


@pytest.mark.parametrize(
    ("argv", "path", "value"),
    [
        (["--port=80"], "port", "80"),
        (["--port", "80"], "port", "80"),
        (["--seed", "-1"], "seed", "-1"),
        (["--drain-grace", "-.5"], "drain_grace", "-.5"),
        (["--root-path=--x"], "root_path", "--x"),
        (["--root-path=a=b"], "root_path", "a=b"),
        (["--disable-docs"], "disable_docs", "true"),
        (["--disable_docs"], "disable_docs", "true"),
        (["--disable-docs=false"], "disable_docs", "false"),
        (["--no-disable-docs"], "disable_docs", "false"),
        (["--no-enable-prefix-caching"], "scheduler.enable_prefix_caching", "false"),
        (["--no-scheduler.enable-prefix-caching"], "scheduler.enable_prefix_caching", "false"),
        (["-O0"], "optimization_level", "0"),
        (["-O3"], "optimization_level", "3"),
        (["-O", "2"], "optimization_level", "2"),
        (["-O=2"], "optimization_level", "2"),
        (["--optimization-level", "1"], "optimization_level", "1"),
        (["-tp", "2"], "tensor_parallel_size", "2"),
        (["-tp=2"], "tensor_parallel_size", "2"),
        (["--tp", "2"], "tensor_parallel_size", "2"),
        (["--tensor-parallel-size=2"], "tensor_parallel_size", "2"),
        (["-cc.mode=0"], "compilation_config.mode", "0"),
        (["-cc.mode", "none"], "compilation_config.mode", "none"),
        (["--cc.mode=0"], "compilation_config.mode", "0"),
        (["-cc", '{"mode":0}'], "compilation_config.mode", 0),
        (['-cc={"mode":0}'], "compilation_config.mode", 0),
        (["--compilation-config", '{"mode":0}'], "compilation_config.mode", 0),
        (["--compilation_config", '{"mode":0}'], "compilation_config.mode", 0),
        (["--compilation-config.mode=0"], "compilation_config.mode", "0"),
        (
            ["-cc.dynamic_shapes_config.evaluate_guards"],
            "compilation_config.dynamic_shapes_config.evaluate_guards",
            "true",
        ),
        (["-cc.compile_sizes=1, 2"], "compilation_config.compile_sizes", ["1", "2"]),
        (["-cc.compile_sizes=[1,2]"], "compilation_config.compile_sizes", [1, 2]),
        (["--disable-pass=a, b"], "compilation_config.pass_config.disable", ["a", "b"]),
        (['--disable_pass=["a"]'], "compilation_config.pass_config.disable", ["a"]),
        (["--pass-limit", "3"], "compilation_config.pass_config.limit", "3"),
        (["--verify-each-pass"], "compilation_config.pass_config.verify_each", "true"),
        (["--no-verify-each-pass"], "compilation_config.pass_config.verify_each", "false"),
        (["--", "--port"], "model", "--port"),
        (["a/model"], "model", "a/model"),
    ],
)
def test_one_option(argv: list[str], path: str, value: object):
    assert [(p, v) for p, v, _ in read(*argv)] == [(path, value)]


PRIORITY_SPELLINGS = [
    ["--ir-op-priority.rms_norm=a,b"],
    ["--ir-op-priority.rms_norm", "a,b"],
    ["--ir-op-priority.rms-norm=a, b"],
    ["--ir_op_priority.rms_norm= a ,b "],
    ['--ir-op-priority.rms_norm=["a", "b"]'],
    ["--ir-op-priority", '{"rms_norm": ["a", "b"]}'],
    ["--ir-op-priority", '{"rms-norm": "a,b"}'],
    ['--ir-op-priority={"rms_norm": "a,b"}'],
    ["--kernel-config", '{"ir_op_priority": {"rms_norm": ["a", "b"]}}'],
    ["--kernel_config", '{"ir-op-priority": {"rms_norm": "a, b"}}'],
    ["--kernel-config.ir_op_priority.rms_norm=a,b"],
    ["--kernel-config.ir-op-priority", '{"rms_norm": ["a", "b"]}'],
]


@pytest.mark.parametrize("argv", PRIORITY_SPELLINGS)
def test_spellings_of_a_priority_give_one_list(argv: list[str]):
    [(path, value, source)] = read(*argv)
    assert (path, value) == ("kernel_config.ir_op_priority.rms_norm", ["a", "b"])
    assert source == argv[0].split("=")[0]


def test_a_repeatable_flag_adds_to_what_it_gave_before():
    argv = ["--disable-pass=a,b", "--port=1", "--disable_pass", "c", '--disable-pass=["d"]']
    path = "compilation_config.pass_config.disable"
    assert read(*argv) == [
        ("port", "1", "--port"),
        (path, ["a", "b", "c", "d"], "--disable-pass"),
    ]


def test_a_repeatable_flag_adds_to_no_other_spelling():
    path = "compilation_config.pass_config.disable"
    dotted = "-cc.pass_config.disable=a"
    assert [v for p, v, _ in read(dotted, dotted, "--disable-pass=b") if p == path] == [
        ["a"],
        ["a"],
        ["b"],
    ]


def test_a_repeatable_flag_that_is_wrong_keeps_what_it_gave_before():
    given = from_arguments(ROOT, ["--disable-pass=a", "--disable-pass="]).given
    assert [type(item) for item in given] == [Given, WrongSettingError]


def test_order_of_appearance_is_kept():
    argv = ["--port=1", "-cc", '{"mode":0,"backend":"eager"}', "--port", "2", "-cc.mode=1"]
    assert [p for p, _, _ in read(*argv)] == [
        "port",
        "compilation_config.mode",
        "compilation_config.backend",
        "port",
        "compilation_config.mode",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prot", "80"], "`--prot`: unknown option. Did you mean `--port`"),
        (["-port", "80"], "`-port`: unknown option. Did you mean `--port`"),
        (["-x"], "`-x`: unknown option."),
        (["--no-prot"], "`--no-prot`: unknown option."),
        (["--no-port"], "`port` is no switch"),
        (["--no-disable-docs=true"], "takes no value; write `--disable-docs=true`"),
        (["--disable-docs", "false"], "is a switch; write `--disable-docs=true`"),
        (["--no-disable-docs", "false"], "write `--disable-docs=true` or `--disable-docs=false`"),
        (["--port"], "`--port`: wants a value."),
        (["--root-path", "--x"], "begins with `-`, write `--root-path=…`"),
        (["-cc.mod=0"], "`-cc.mod`: unknown setting `mod` in `compilation_config`"),
        (["-cc"], "`-cc`: wants a value"),
        (["-cc", "mode=0"], "or one key at a time: `-cc.KEY=VALUE`"),
        (["--ir-op-priority", "rms_norm=a"], "`--ir-op-priority.KEY=VALUE`"),
        (["--ir-op-priority.=a"], "wants a name after the dot"),
        (["--ir-op-priority.rms_norm"], "wants a value"),
        (["--ir-op-priority.rms_norm="], "is empty"),
        (["--ir-op-priority.rms_norm= "], "is empty"),
        (["--ir-op-priority.rms_norm=a,,b"], "has an empty item in 'a,,b'"),
        (["--ir-op-priority.rms_norm=a,"], "has an empty item"),
        (["a", "b"], "'b' is one too many: MODEL is 'a'"),
        (["--model=a", "b"], "`--model` is given too"),
        (["a", "--model", "b"], "`--model`: is one too many"),
        (["--cors-origins", "a", "b"], "may be MODEL or another item"),
        (["--print-config=yaml"], "wants text or json"),
        (["--print-config", "json"], "write `--print-config=json`; for a model of this name"),
        (["--print-config", "text", "m"], "write `--print-config=text`"),
        (["--dry-run=1"], "takes no value"),
        (["--config"], "wants a value"),
    ],
)
def test_what_cannot_be_understood_is_refused(argv: list[str], message: str):
    with pytest.raises(WrongSettingError) as error:
        read(*argv)
    assert message in str(error.value)


def test_refusing_an_option_does_not_hide_the_next_mistake():
    given = from_arguments(ROOT, ["--prot=1", "--hots=2", "--port=3"]).given
    assert [isinstance(item, Given) for item in given] == [False, False, True]


def test_a_list_with_a_comma_may_be_followed_by_the_model():
    assert [p for p, _, _ in read("--ir-op-priority.rms_norm", "a,b", "m")][-1] == "model"


def test_actions_are_no_settings():
    line = from_arguments(
        ROOT, ["--config", "a.yaml", "--config=b.yaml", "--print-config=json", "--dry_run"]
    )
    assert line.config_files == ["a.yaml", "b.yaml"]
    assert (line.print_config, line.dry_run, line.given) == ("json", True, [])


def test_print_config_is_text_unless_told():
    for argv in (["--print-config"], ["--print-config", "m"], ["json", "--print-config"]):
        line = from_arguments(ROOT, argv)
        assert line.print_config == "text"
        assert all(isinstance(item, Given) for item in line.given)


def test_a_refused_token_is_not_shown_after_a_secret():
    with pytest.raises(WrongSettingError) as error:
        read("--api-key", "k1", "hunter2")
    assert "hunter2" not in str(error.value)
