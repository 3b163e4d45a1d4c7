"""Every source at once: which value wins, where it came from, and what is refused."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir_passes.config import CompilationConfig, CompilationMode, CudagraphMode
from serve_shim.errors import SettingsError
from serve_shim.settings import KernelConfig, Resolved, Settings, resolve, resolve_arguments
from serve_shim.settings.source import Kind
from serve_shim.settings.wrong_setting import MAX_PROBLEMS

TOKENS = [
    "--", "-", "", "=", "--=", "--.", "-cc", "-cc.", "-cc.mode", "-cc.mode=0", "-O", "-O0", "-O9",
    "-tp", "--no-", "--no-port", "--no-disable-docs", "--disable-docs", "--port", "80", "-1",
    "--ir-op-priority", "--ir-op-priority.", "--ir-op-priority.rms_norm", "a,b", "a,,b", "{}",
    '{"rms_norm": ["a"]}', '{"a": {"b": [1, null, true]}}', "[", "null", "true", "--api-key",
    "--print-config", "--config=/absent", "--dry-run", "--limits", "--limits.max-n", "model",
]  # fmt: skip
VARIABLES = [
    "SERVE_SHIM_PORT", "SERVE_SHIM_", "SERVE_SHIM___", "SERVE_SHIM_CC", "SERVE_SHIM_CC__MODE",
    "SERVE_SHIM_IR_OP_PRIORITY__", "SERVE_SHIM_IR_OP_PRIORITY__A", "SERVE_SHIM_API_KEY",
    "SERVE_SHIM_SERVICE_HOST", "SERVE_SHIM_LIMITS", "IR_LOGGING_LEVEL", "IR_X",
    "VLLM_DISABLE_COMPILE_CACHE", "VLLM_BATCH_INVARIANT",
]  # fmt: skip


def priorities(resolved: Resolved) -> dict[str, tuple[str, ...]]:
    return dict(resolved.settings.kernel_config.ir_op_priority)


def message_of(line: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as error:
        resolve(shlex.split(line), environ)
    return str(error.value)


def test_nothing_given_gives_the_defaults():
    resolved = resolve()
    assert resolved.settings == Settings()
    assert dict(resolved.provenance) == {}


def test_arguments_beat_variables_beat_files(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nhost: a\nseed: 1\nmax-queue: 1\n", encoding="utf-8")
    environ = {"SERVE_SHIM_PORT": "2", "SERVE_SHIM_HOST": "b", "SERVE_SHIM_SEED": "2"}
    resolved = resolve(["--port=3", "--host=c", "--config", str(file)], environ)
    settings = resolved.settings
    assert (settings.port, settings.host, settings.seed) == (3, "c", 2)
    assert settings.scheduler.max_queue == 1
    kinds = {".".join(path): source.kind for path, source in resolved.provenance.items()}
    assert kinds == {
        "port": Kind.ARGUMENT,
        "host": Kind.ARGUMENT,
        "seed": Kind.ENVIRONMENT,
        "scheduler.max_queue": Kind.FILE,
    }
    assert [str(source) for source in resolved.overridden[("port",)]] == [
        f"`{file}:1`",
        "`SERVE_SHIM_PORT`",
    ]


def test_a_file_may_be_named_by_a_variable_and_is_weaker_than_the_option(tmp_path: Path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.json"
    first.write_text("port: 1\nseed: 1\n", encoding="utf-8")
    second.write_text('{"port": 2}', encoding="utf-8")
    settings = resolve([f"--config={second}"], {"SERVE_SHIM_CONFIG": str(first)}).settings
    assert (settings.port, settings.seed) == (2, 1)


# What a parser that merges by itself gets wrong without a word.


def test_a_list_in_json_below_an_open_mapping_is_kept_whole():
    resolved = resolve(["--kernel-config", '{"ir_op_priority":{"rms_norm":["a","b"]}}'])
    assert priorities(resolved) == {"rms_norm": ("a", "b")}


def test_a_list_in_yaml_below_an_open_mapping_is_kept_whole(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("ir-op-priority: {rms_norm: [a, b, c]}\n", encoding="utf-8")
    assert priorities(resolve(["--config", str(file)])) == {"rms_norm": ("a", "b", "c")}


def test_json_and_a_dotted_option_of_another_op_are_merged():
    json = '{"ir_op_priority":{"rms_norm":["a","b"]}}'
    resolved = resolve(["--kernel-config", json, "--ir-op-priority.silu_and_mul=native"])
    assert priorities(resolved) == {"rms_norm": ("a", "b"), "silu_and_mul": ("native",)}


def test_the_later_of_json_and_dotted_wins():
    json = ["--ir-op-priority", '{"rms_norm":["json"]}']
    dotted = ["--kernel-config.ir_op_priority.rms_norm=dotted"]
    assert priorities(resolve([*dotted, *json])) == {"rms_norm": ("json",)}
    assert priorities(resolve([*json, *dotted])) == {"rms_norm": ("dotted",)}


def test_the_same_json_option_twice_is_merged():
    argv = ["-cc", '{"mode":0,"cudagraph_mode":"NONE"}', "-cc", '{"mode":"none"}']
    config = resolve(argv).settings.compilation_config
    assert (config.mode, config.cudagraph_mode) == (CompilationMode.NONE, CudagraphMode.NONE)


def test_a_later_list_replaces_the_earlier_one_whole():
    argv = ["--ir-op-priority.rms_norm=a,b,c", "--ir-op-priority.rms_norm=d"]
    assert priorities(resolve(argv)) == {"rms_norm": ("d",)}


def test_scalars_below_an_open_mapping_are_json():
    line = (
        "-cc.inductor_compile_config.a=true -cc.inductor_compile_config.b=1.5"
        " -cc.inductor_compile_config.c=word -cc.inductor_compile_config.d=null"
        " -cc.inductor_compile_config.e=[1] -cc.inductor_compile_config.f=007"
    )
    config = resolve(shlex.split(line)).settings.compilation_config
    assert dict(config.inductor_compile_config) == {
        "a": True,
        "b": 1.5,
        "c": "word",
        "d": None,
        "e": [1],
        "f": "007",
    }


@pytest.mark.parametrize(
    "line",
    [
        "--disable-pass=a,b --pass-limit=2 --verify-each-pass",
        "--disable-pass a --disable-pass=b --pass-limit 2 --verify-each-pass=true",
        "-cc.pass_config.disable=a,b -cc.pass_config.limit=2 -cc.pass_config.verify_each",
    ],
)
def test_flags_of_passes_are_the_settings_of_the_compile_stack(line: str):
    config = resolve(shlex.split(line)).settings.compilation_config.pass_config
    assert (config.disable, config.limit, config.verify_each) == (("a", "b"), 2, True)


def test_variables_of_passes_are_weaker_than_flags():
    environ = {"SERVE_SHIM_DISABLE_PASS": "a,b", "SERVE_SHIM_PASS_LIMIT": "2"}
    resolved = resolve(["--disable-pass=c"], environ)
    config = resolved.settings.compilation_config.pass_config
    assert (config.disable, config.limit) == (("c",), 2)
    assert str(resolved.source_of(("compilation_config", "pass_config", "limit"))) == (
        "`SERVE_SHIM_PASS_LIMIT`"
    )


def test_a_typo_in_a_dotted_option_names_that_level():
    message = message_of("-cc.dynamic_shapes_config.typ=unbacked")
    assert message.startswith("`-cc.dynamic_shapes_config.typ`: unknown setting `typ`")
    assert "Did you mean `type`" in message


def test_an_unknown_variable_is_refused():
    message = message_of("", SERVE_SHIM_PROT="80")
    assert message.startswith("`SERVE_SHIM_PROT`: unknown variable. Did you mean")


@pytest.mark.parametrize("level", ["-O0", "-O 0", "-O=0", "--optimization-level=0"])
def test_level_zero_is_accepted(level: str):
    assert resolve(shlex.split(level)).settings.optimization_level == 0


def test_the_model_is_compiled_by_default():
    assert resolve([]).settings.optimization_level == 2
    assert resolve(["-O3"]).settings.optimization_level == 3
    assert "must be at most 3" in message_of("-O4")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--port=80x", "`--port`: `port` wants an integer, not '80x'"),
        ("--port=70000", "`--port`: `port` must be at most 65535, not '70000'"),
        ("--port=", "`port` wants an integer, not ''"),
        ("--max-num-seqs=0", "`scheduler.max_num_seqs` must be at least 1"),
        ("--max-num-seqs 4.5", "`scheduler.max_num_seqs` wants an integer"),
        (
            "--dtype=bf16",
            "must be one of auto, float32, bfloat16, float16 (Did you mean `bfloat16`",
        ),
        ("--quantization=awq", "`quantization` must be one of auto, none, not 'awq'"),
        ("--quantization=", "`quantization` must be one of auto, none"),
        ("--log-format=xml", "`log_format` must be one of text, json"),
        ("--log-level=loud", "`log_level` must be one of DEBUG, INFO"),
        ("--disable-docs=maybe", "`disable_docs` wants true or false, not 'maybe'"),
        ("--shutdown-timeout=nan", "`shutdown_timeout`"),
        ("--shutdown-timeout=inf", "wants a finite number"),
        ("--shutdown-timeout=-1", "must be at least 0"),
        ("--kv-cache-memory-bytes=lots", "wants a size such as 512MiB"),
        ("--kv-cache-memory-bytes=0", "must be at least one byte"),
        ("--uds=", "`uds` wants a path"),
        ("--model=", "`model` must not be empty"),
        ("--served-model-name=a,,b", "has an empty item"),
        ("--api-key=", "`api_key` item 1 must not be empty"),
        ("--metrics-prefix=9x", "`metrics_prefix`"),
        ("--root-path=api", "`root_path` must begin with `/`"),
        ("--root-path=/api/", "not end with `/`"),
        ("--root-path=/", "not end with `/`"),
        ("--root-path=/é", "be ASCII"),
        ("--root-path='/a b'", "without blanks"),
        ("--ir-op-priority.rms_norm=a,a", "names provider `a` twice"),
        ("--ir-op-priority '{\"rms_norm\": []}'", "names no provider"),
        ("--ir-op-priority '{\"rms_norm\": 3}'", "wants a list, not 3"),
        ("--ir-op-priority '{\"rms_norm\": [1]}'", "item 1 wants text"),
        ("--ir-op-priority '{\"rms_norm\": null}'", "wants a list, not None"),
        ("-cc.mode=17", "`compilation_config.mode` must be one of none,"),
        ("-cc.compile_sizes=1,x", "`compilation_config.compile_sizes` item 2 wants an integer"),
        ('-cc \'{"mode": 3 "x": 1}\'', "column 12"),
        ("-cc '{mode: 3}'", "double quotes"),
        ('-cc \'{"mode": 0, "mode": 1}\'', "stands twice"),
        ("-cc '{\"compile_sizes\": NaN}'", "`NaN` is no JSON value"),
        ("--max-num-seqs=600", "below `max_num_seqs` (600)"),
        ("--uds=/tmp/s --port=80", "`uds` replaces `port`"),
        ("--num-blocks=4 --kv-cache-memory-bytes=1GiB", "give one of them"),
        (f"--seed={2**63}", "`seed` must be at most"),
    ],
)
def test_a_wrong_value_is_answered_with_its_source_and_what_is_wanted(line: str, message: str):
    assert message in message_of(line)


@pytest.mark.parametrize("path", ["", "/a", "/api/v2", "/~me"])
def test_a_root_path_that_a_proxy_can_use_is_accepted(path: str):
    assert resolve([f"--root-path={path}"]).settings.root_path == path


def test_numbers_from_a_file_are_not_taken_from_booleans(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("port: true\nseed: no\n", encoding="utf-8")
    message = message_of(f"--config {file}")
    assert f"`{file}:1`: `port` wants a number, not true or false" in message
    assert f"`{file}:2`: `seed` wants a number" in message


def test_text_from_a_file_must_be_quoted(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("revision: 1234567\n", encoding="utf-8")
    assert "`revision` wants text; put it in quotes, not 1234567" in message_of(f"--config {file}")


def test_an_alias_to_itself_is_refused(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("cors_origins: &a [*a]\n", encoding="utf-8")
    assert "`cors_origins` item 1" in message_of(f"--config {file}")


def test_a_weaker_source_that_is_overridden_need_not_be_right():
    assert resolve(["--port=80"], {"SERVE_SHIM_PORT": "8O"}).settings.port == 80


def test_null_unsets_what_a_weaker_source_gave():
    environ = {"SERVE_SHIM_MAX_MODEL_LEN": "5"}
    assert resolve(["--max-model-len=null"], environ).settings.max_model_len is None
    assert resolve(["--revision=null"]).settings.revision == "null"


def test_all_mistakes_are_listed_and_the_list_is_bounded():
    message = message_of("--prot=1 --port=x --seed=y", SERVE_SHIM_HOTS="a")
    assert message.startswith("4 settings are wrong:")
    many = message_of(" ".join(f"--x{i}=1" for i in range(40)))
    assert many.count("\n  - ") == MAX_PROBLEMS
    assert "and 30 more" in many


@pytest.mark.parametrize(
    "argv",
    [
        ["--port=" + "9" * 100_000],
        ["--" + "x" * 100_000 + "=1"],
        ["-cc", "{" + '"a": ' * 100_000 + "}"],
        ["-cc", '{"a": ' + "[" * 200_000 + "}"],
        ["x" * 100_000, "y" * 100_000],
    ],
    ids=["digits", "name", "json", "deep", "model"],
)
def test_messages_are_bounded(argv: list[str]):
    with pytest.raises(SettingsError) as error:
        resolve(argv)
    assert len(str(error.value)) < 1600


@pytest.mark.parametrize("line", ["--api-key '[1]'", "--api-key=''", "--api-key '[\"s3cret\", 5]'"])
def test_a_secret_is_never_in_a_message(line: str):
    message = message_of(line)
    assert "s3cret" not in message
    assert "not " not in message.replace("must not", "")


def outcome(argv: list[str], environ: dict[str, str]) -> str:
    """The error's message, or nothing; any other exception is a failure."""
    try:
        resolve(argv, environ)
    except SettingsError as error:
        return str(error)
    return ""


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(TOKENS) | st.text(max_size=12), max_size=6))
def test_any_command_line_is_settled_or_refused_in_bounded_words(argv: list[str]):
    assert len(outcome(argv, {})) < 20_000


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(TOKENS) | st.text(max_size=12)))
def test_any_environment_is_settled_or_refused_in_bounded_words(environ: dict[str, str]):
    assert len(outcome([], environ)) < 20_000


def test_out_of_tree_ops_are_settings_like_any_other():
    assert priorities(resolve(["--ir-op-priority.my_op=mine"])) == {"my_op": ("mine",)}


def test_settings_from_python_take_models_and_mappings():
    resolved = resolve_arguments(
        {
            "model": "m",
            "max_num_seqs": 3,
            "kernel_config": KernelConfig(ir_op_priority={"rms_norm": ("a",)}),
            "ir_op_priority": {"silu_and_mul": ["b"]},
            "compilation_config": CompilationConfig(mode=CompilationMode.NONE),
        }
    )
    assert priorities(resolved) == {"rms_norm": ("a",), "silu_and_mul": ("b",)}
    assert resolved.settings.scheduler.max_num_seqs == 3
    assert str(resolved.source_of(("model",))) == "`model`"


def test_settings_from_python_name_the_argument_that_is_wrong():
    with pytest.raises(SettingsError, match="`max_num_seq`: unknown setting"):
        resolve_arguments({"max_num_seq": 3})
    with pytest.raises(SettingsError, match=r"`compilation_config\.mode` is not available"):
        resolve_arguments({"compilation_config": CompilationConfig(mode=1)})  # pyright: ignore[reportArgumentType]
