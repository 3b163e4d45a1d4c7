import pytest

from ir_core import IrOpPriorityConfig, PriorityError
from ir_core.priority_lists import resolve


@pytest.mark.parametrize(
    "config",
    [
        IrOpPriorityConfig(rms_norm=["aiter", "vllm_c"]),
        IrOpPriorityConfig(rms_norm=("aiter", "vllm_c")),
        IrOpPriorityConfig(rms_norm="aiter,vllm_c"),
        IrOpPriorityConfig(rms_norm=" aiter , vllm_c "),
        IrOpPriorityConfig({"rms_norm": "aiter,vllm_c"}),
        IrOpPriorityConfig({"rms_norm": ["x"]}, rms_norm=["aiter", "vllm_c"]),
    ],
)
def test_every_spelling_gives_one_list(config: IrOpPriorityConfig) -> None:
    assert config == {"rms_norm": ("aiter", "vllm_c")}
    assert hash(config) == hash(IrOpPriorityConfig(rms_norm="aiter,vllm_c"))


@pytest.mark.parametrize(
    ("providers", "words"),
    [
        ("", "is empty"),
        ([], "is empty"),
        (",", "empty name"),
        ("a,,b", r"empty name in \['a', '', 'b'\]"),
        (["a", " "], "empty name"),
        ("a,a", r"names \['a'\] more than once"),
        (["a", "b", " a"], "more than once"),
        (3, "is 3; give names"),
        (None, "is None"),
        ([1, 2], r"is \[1, 2\]"),
        ({"a": 1}, "give names"),
    ],
)
def test_a_malformed_list_is_an_error_that_names_the_op(providers: object, words: str) -> None:
    with pytest.raises(PriorityError, match=f"op `rms_norm`.*{words}"):
        IrOpPriorityConfig(rms_norm=providers)  # type: ignore[arg-type]


def test_a_config_is_an_immutable_mapping() -> None:
    config = IrOpPriorityConfig(my_op=["a"], rms_norm=["b"])
    assert dict(config) == {"my_op": ("a",), "rms_norm": ("b",)}
    assert len(config) == 2
    assert config != {"my_op": ("a",)}
    assert "my_op" in repr(config)
    with pytest.raises(TypeError):
        config["x"] = ("y",)  # type: ignore[index]


def test_user_then_platform_then_native_without_repetition() -> None:
    resolved = resolve(
        "op",
        registered=["native", "a", "b", "c"],
        user=["c"],
        default=["a", "absent", "c", "b"],
        platform="toy",
    )
    assert [(entry.provider, entry.source) for entry in resolved.entries] == [
        ("c", "user"),
        ("a", "platform toy"),
        ("b", "platform toy"),
        ("native", "fallback"),
    ]
    assert resolved.providers == ("c", "a", "b", "native")


def test_native_may_be_placed_by_the_user() -> None:
    resolved = resolve("op", ["native", "a"], ["native"], ["a"], "toy")
    assert resolved.providers == ("native", "a")
