import pytest

from ir_passes.config import CacheMode
from serve_shim.settings import Settings, resolve
from serve_shim.settings.environment import (
    READ_BY_IR_CORE,
    TWINS,
    from_environment,
    to_variable,
    variable_names,
)
from serve_shim.settings.schema import find, settings_schema
from serve_shim.settings.wrong_setting import WrongSettingError

ROOT = settings_schema(Settings)


def read(**environ: str) -> list[tuple[str, object, str]]:
    result: list[tuple[str, object, str]] = []
    for item in from_environment(ROOT, environ):
        if isinstance(item, WrongSettingError):
            raise item
        result.append((".".join(item.path), item.value, item.source.name))
    return result


@pytest.mark.parametrize(
    ("variable", "text", "path", "value"),
    [
        ("SERVE_SHIM_PORT", "80", "port", "80"),
        ("SERVE_SHIM_MAX_NUM_SEQS", "4", "scheduler.max_num_seqs", "4"),
        ("SERVE_SHIM_SCHEDULER__MAX_NUM_SEQS", "4", "scheduler.max_num_seqs", "4"),
        ("SERVE_SHIM_TP", "2", "tensor_parallel_size", "2"),
        ("SERVE_SHIM_CC__MODE", "0", "compilation_config.mode", "0"),
        (
            "SERVE_SHIM_COMPILATION_CONFIG__DYNAMIC_SHAPES_CONFIG__TYPE",
            "unbacked",
            "compilation_config.dynamic_shapes_config.type",
            "unbacked",
        ),
        ("SERVE_SHIM_COMPILATION_CONFIG", '{"mode": 0}', "compilation_config.mode", 0),
        (
            "SERVE_SHIM_IR_OP_PRIORITY__RMS_NORM",
            "a, b",
            "kernel_config.ir_op_priority.rms_norm",
            ["a", "b"],
        ),
        (
            "SERVE_SHIM_IR_OP_PRIORITY__MY__OP",
            "a",
            "kernel_config.ir_op_priority.my__op",
            ["a"],
        ),
        (
            "SERVE_SHIM_KERNEL_CONFIG",
            '{"ir_op_priority": {"MyOp": ["a"]}}',
            "kernel_config.ir_op_priority.MyOp",
            ["a"],
        ),
        ("SERVE_SHIM_API_KEY", "a,b", "api_key", ["a,b"]),
        ("SERVE_SHIM_API_KEY", '["a", "b"]', "api_key", ["a", "b"]),
        ("SERVE_SHIM_DISABLE_DOCS", "1", "disable_docs", "1"),
        ("IR_LOGGING_LEVEL", "DEBUG", "log_level", "DEBUG"),
        ("VLLM_LOGGING_LEVEL", "debug", "log_level", "debug"),
        ("IR_BATCH_INVARIANT", "1", "batch_invariant", "1"),
        ("VLLM_BATCH_INVARIANT", "1", "batch_invariant", "1"),
        ("IR_DISABLE_COMPILE_CACHE", "1", "compilation_config.cache_mode", "off"),
        ("VLLM_DISABLE_COMPILE_CACHE", "true", "compilation_config.cache_mode", "off"),
        (
            "VLLM_COMPILE_CACHE_SAVE_FORMAT",
            "unpacked",
            "compilation_config.compile_cache_save_format",
            "unpacked",
        ),
        (
            "IR_COMPILE_CACHE_SAVE_FORMAT",
            "unpacked",
            "compilation_config.compile_cache_save_format",
            "unpacked",
        ),
    ],
)
def test_one_variable(variable: str, text: str, path: str, value: object):
    assert read(**{variable: text}) == [(path, value, variable)]


@pytest.mark.parametrize("text", ["0", "false", "", "no"])
def test_a_switch_that_is_off_sets_nothing(text: str):
    assert read(IR_DISABLE_COMPILE_CACHE=text) == []


def test_the_more_specific_variable_comes_later():
    given = read(SERVE_SHIM_LOG_LEVEL="ERROR", VLLM_LOGGING_LEVEL="INFO", IR_LOGGING_LEVEL="DEBUG")
    assert [name for _, _, name in given] == [
        "VLLM_LOGGING_LEVEL",
        "IR_LOGGING_LEVEL",
        "SERVE_SHIM_LOG_LEVEL",
    ]


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("SERVE_SHIM_PROT", "80", "Did you mean `SERVE_SHIM_PORT`"),
        ("SERVE_SHIM_MAX_NUM_SEQ", "4", "Did you mean `SERVE_SHIM_MAX_NUM_SEQS`"),
        ("SERVE_SHIM_SCHEDULER_MAX_NUM_SEQS", "4", "`SERVE_SHIM_SCHEDULER__MAX_NUM_SEQS`"),
        ("SERVE_SHIM_ZZZZZZ", "4", "unknown variable. See --help"),
        ("SERVE_SHIM_", "4", "unknown variable"),
        ("SERVE_SHIM_SCHEDULER", "4", "`SERVE_SHIM_SCHEDULER__KEY=VALUE`"),
        ("SERVE_SHIM_IR_OP_PRIORITY__RMS_NORM", "", "is empty"),
        ("SERVE_SHIM_COMPILATION_CONFIG", '{"mode": 0', "column 11"),
        ("IR_LOGING_LEVEL", "DEBUG", "Did you mean `IR_LOGGING_LEVEL`"),
        ("IR_PLUGIN", "none", "Did you mean `IR_PLUGINS`"),
        ("IR_DISABLE_COMPILE_CACHE", "maybe", "wants 1 or 0, not 'maybe'"),
        ("SERVE_SHIM_SERVICE_HOST", "10.0.0.1", "enableServiceLinks"),
        ("SERVE_SHIM_PORT", "tcp://10.0.0.1:80", "enableServiceLinks"),
        ("SERVE_SHIM_PORT_80_TCP_ADDR", "10.0.0.1", "enableServiceLinks"),
    ],
)
def test_a_variable_that_is_wrong_is_named(variable: str, text: str, message: str):
    with pytest.raises(WrongSettingError) as error:
        read(**{variable: text})
    assert f"`{variable}`: " in str(error.value)
    assert message in str(error.value)


def test_variables_of_others_are_left_alone():
    known_to_core = dict.fromkeys(READ_BY_IR_CORE, "1")
    assert read(VLLM_USE_V1="1", PATH="/bin", SERVE_SHIMMY="1", **known_to_core) == []


def test_every_variable_leads_to_a_setting():
    for variable in variable_names(ROOT):
        name = variable.removeprefix("SERVE_SHIM_").lower().split("__")
        assert to_variable(tuple(name)) == variable
        find(ROOT, name)


def test_every_twin_leads_to_a_setting():
    for twin in TWINS:
        assert ".".join(find(ROOT, twin.path.split("."))[1]) == twin.path


@pytest.mark.parametrize(
    ("argv", "environ", "mode"),
    [
        ([], {}, None),
        ([], {"IR_DISABLE_COMPILE_CACHE": "0"}, None),
        ([], {"IR_DISABLE_COMPILE_CACHE": "1"}, CacheMode.OFF),
        ([], {"VLLM_DISABLE_COMPILE_CACHE": "1", "SERVE_SHIM_CACHE_MODE": "ro"}, CacheMode.RO),
        (["--cache-mode=rw"], {"IR_DISABLE_COMPILE_CACHE": "1"}, CacheMode.RW),
    ],
)
def test_a_flag_beats_the_switch_of_the_compile_cache(
    argv: list[str], environ: dict[str, str], mode: CacheMode | None
):
    assert resolve(argv, environ).settings.compilation_config.cache_mode is mode
