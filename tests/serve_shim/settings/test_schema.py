import pytest

from serve_shim.settings import Settings
from serve_shim.settings.flag import InnerFlags
from serve_shim.settings.schema import (
    Leaf,
    Section,
    Table,
    at,
    find,
    settings_schema,
    usual_path,
    walk,
)
from serve_shim.settings.wrong_setting import WrongSettingError

ROOT = settings_schema(Settings)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("port", "port"),
        ("max-model-len", "max_model_len"),
        ("tp", "tensor_parallel_size"),
        ("O", "optimization_level"),
        ("max-num-seqs", "scheduler.max_num_seqs"),
        ("scheduler.max_num-seqs", "scheduler.max_num_seqs"),
        ("cc.dynamic-shapes-config.type", "compilation_config.dynamic_shapes_config.type"),
        ("disable-pass", "compilation_config.pass_config.disable"),
        ("ir-op-priority", "kernel_config.ir_op_priority"),
        ("ir_op_priority.rms-norm", "kernel_config.ir_op_priority.rms_norm"),
        ("kernel-config.ir-op-priority.my_op", "kernel_config.ir_op_priority.my_op"),
    ],
)
def test_every_spelling_leads_to_one_path(name: str, path: str):
    assert ".".join(find(ROOT, name.split("."))[1]) == path


def test_keys_of_a_plain_table_are_kept_as_written():
    path = find(ROOT, ["cc", "inductor_compile_config", "triton", "max-cores"])[1]
    assert path == ("compilation_config", "inductor_compile_config", "triton.max-cores")


def test_names_below_a_table_are_joined_by_the_source():
    assert find(ROOT, ["ir_op_priority", "my", "op"], joiner="__")[1][-1] == "my__op"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prot", "Did you mean `port`"),
        ("cc.dynamic_shapes_config.typ", "in `compilation_config.dynamic_shapes_config`"),
        ("cc.dynamic_shapes_config.typ", "Did you mean `type`"),
        ("compile_sizes", "Did you mean `compilation_config.compile_sizes`"),
        ("limits.zzz", "Known: `max_body_bytes`"),
        ("zzz", "See --help"),
        ("port.number", "`port` has no `number` below it"),
        ("ir_op_priority.", "wants a name after the dot"),
    ],
)
def test_unknown_names_are_answered_with_those_of_their_level(name: str, message: str):
    with pytest.raises(WrongSettingError, match="(?s).*" + message.replace(".", r"\.")):
        find(ROOT, name.split("."))


def test_leaves_know_lists_secrets_and_null():
    leaves = {".".join(n.path): n for n in walk(ROOT) if isinstance(n, Leaf)}
    assert leaves["api_key"].is_secret
    assert leaves["api_key"].is_list
    assert leaves["model"].is_nullable
    assert not leaves["port"].is_nullable
    assert leaves["compilation_config.compile_sizes"].item is int
    assert leaves["compilation_config.cudagraph_capture_sizes"].is_nullable


@pytest.mark.parametrize(
    ("path", "usual"),
    [
        ("port", "port"),
        ("scheduler.max_num_seqs", "max_num_seqs"),
        ("compilation_config.pass_config.limit", "pass_limit"),
        ("compilation_config.pass_config.enable_sp", "compilation_config.pass_config.enable_sp"),
    ],
)
def test_the_usual_path_is_short_where_there_is_a_flag(path: str, usual: str):
    assert ".".join(usual_path(at(ROOT, tuple(path.split("."))))) == usual


def test_a_flag_with_a_name_is_not_reached_by_that_of_its_field():
    for name in ("disable", "limit", "verify_each"):
        with pytest.raises(WrongSettingError):
            find(ROOT, [name])


def test_every_inner_flag_belongs_to_a_setting():
    (mark,) = [m for m in Settings.model_fields["compilation_config"].metadata
               if isinstance(m, InnerFlags)]  # fmt: skip
    for name, flag in mark.flags.items():
        assert at(ROOT, ("compilation_config", *name.split("."))).flag is flag


def test_aliases_never_hide_a_setting():
    assert not set(ROOT.aliases) & set(ROOT.children)


def test_every_setting_is_documented():
    nodes = [n for n in walk(ROOT) if n.path]
    assert [n.path for n in nodes if not n.help] == []
    assert {type(n) for n in nodes} == {Leaf, Table, Section}


def test_every_top_level_setting_has_a_flag_or_is_a_section():
    bare = [n.path for n in ROOT.children.values() if not n.flag and not isinstance(n, Section)]
    assert bare == []
