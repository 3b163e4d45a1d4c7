import pytest

from serve_shim.cli.topic import headings, select_nodes
from serve_shim.errors import SettingsError


def names(topic: str | None) -> list[str]:
    return [".".join(node.path) for node in select_nodes(topic)]


def test_the_usual_page_shows_flags_but_not_every_key():
    usual = names(None)
    assert {"port", "scheduler.max_num_seqs", "compilation_config", "limits"} <= set(usual)
    assert "compilation_config.mode" not in usual
    assert "limits.max_n" not in usual


def test_all_adds_every_key():
    assert {"compilation_config.pass_config.enable_sp", "limits.max_n"} <= set(names("all"))
    assert set(names(None)) <= set(names("all"))


@pytest.mark.parametrize(
    ("topic", "shown"),
    [
        ("port", ["port"]),
        ("--max-num-seqs", ["scheduler.max_num_seqs"]),
        ("tp", ["tensor_parallel_size"]),
        ("logging", ["log_level", "log_format"]),
        ("KV cache", ["cache.block_size", "cache.num_blocks", "cache.kv_cache_memory_bytes"]),
        ("ir-op-priority", ["kernel_config.ir_op_priority"]),
    ],
)
def test_a_topic_is_a_setting_or_a_heading(topic: str, shown: list[str]):
    assert names(topic) == shown


@pytest.mark.parametrize("topic", ["cc", "compilation-config"])
def test_a_section_shows_its_keys(topic: str):
    assert {"compilation_config.mode", "compilation_config.dynamic_shapes_config.type"} <= set(
        names(topic)
    )
    assert all(name.startswith("compilation_config") for name in names(topic))


def test_an_unknown_topic_is_answered_with_the_nearest():
    with pytest.raises(SettingsError, match="Did you mean `logging`"):
        names("loging")


def test_headings_are_listed_once():
    assert len(headings()) == len(set(headings()))
    assert headings()[:2] == ["Model", "Server"]
