import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tiny_checkpoints import make_model
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

import ir_core as ir
from serve_shim.errors import EngineDeadError, ModelLoadError, RequestError, SettingsError
from serve_shim.llm import LLM
from serve_shim.sampling.params import SamplingParams
from serve_shim.settings.tree import KernelConfig

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}A{% endif %}"
)
SMALL: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "optimization_level": 0}
"""What keeps a start short; compiled models are compared in `test_llm_compiled.py`."""

PROMPTS = [[3, 9, 27], [81, 14, 5, 5, 60], [7], [*range(30, 50)]]


def write_tokenizer(directory: Path) -> None:
    letters = sorted(ByteLevel.alphabet())[:95]
    vocab = {letter: number for number, letter in enumerate(letters)} | {"<end>": 95}
    tokenizer = tokenizers.Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<end>", "chat_template": TEMPLATE})
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(str(directory), dtype="float32", **SMALL)


def greedy(count: int = 12, **params: object) -> SamplingParams:
    defaults: dict[str, object] = {"temperature": 0.0, "max_tokens": count, "ignore_eos": True}
    return SamplingParams(**{**defaults, **params})  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def reference() -> list[list[int]]:
    """Twelve greedy tokens after each of PROMPTS, by transformers without any cache."""
    model, found = make_model("llama"), []
    for prompt in PROMPTS:
        tokens = list(prompt)
        for _ in range(12):
            with torch.inference_mode():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        found.append(tokens[len(prompt) :])
    return found


def tokens(results: list) -> list[list[int]]:  # pyright: ignore[reportMissingTypeArgument]
    return [list(result.outputs[0].token_ids) for result in results]


def test_results_come_in_order_and_equal_the_reference(
    llm: LLM, reference: list[list[int]]
) -> None:
    results = llm.generate(PROMPTS, greedy())
    assert tokens(results) == reference
    assert [list(r.prompt_token_ids) for r in results] == PROMPTS
    assert all(r.outputs[0].finish_reason == "length" for r in results)


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_num_batched_tokens": 4},
        {"num_blocks": 12, "block_size": 4, "max_model_len": 48},
        {"max_num_seqs": 1, "enable_chunked_prefill": False, "enable_prefix_caching": False},
    ],
    ids=["small chunks", "few blocks", "whole prompts one at a time"],
)
def test_bounds_of_the_engine_do_not_change_tokens(
    directory: Path, reference: list[list[int]], bounds: dict[str, Any]
) -> None:
    with LLM(str(directory), dtype="float32", **{**SMALL, **bounds}) as small:
        assert tokens(small.generate(PROMPTS, greedy())) == reference


def test_prompts_may_be_given_in_every_form(llm: LLM) -> None:
    text = "hello"
    ids = llm.tokenizer.encode(text) if llm.tokenizer else []
    forms = (text, [text], ids, [ids], {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}])
    results = [llm.generate(form, greedy()) for form in forms]  # pyright: ignore[reportArgumentType]
    assert all(len(result) == 1 for result in results)
    assert len({result[0].outputs[0].token_ids for result in results}) == 1
    assert [result[0].prompt for result in results] == [text, text, None, None, None, None]
    assert llm.generate([], greedy()) == []


def test_text_is_that_of_the_tokens(llm: LLM) -> None:
    (result,) = llm.generate("hello", greedy())
    assert llm.tokenizer is not None
    assert result.outputs[0].text == llm.tokenizer.decode(list(result.outputs[0].token_ids))


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    results = llm.generate(["a", "b"], [greedy(2), greedy(5, logprobs=1)])
    assert [len(r.outputs[0].token_ids) for r in results] == [2, 5]
    assert results[0].outputs[0].logprobs is None
    assert len(results[1].outputs[0].logprobs or ()) == 5


def test_models_own_parameters_are_used_where_none_are_given(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    defaults = {"temperature": 1.0, "top_k": 1, "repetition_penalty": 100.0}
    (tmp_path / "generation_config.json").write_text(json.dumps(defaults))
    with LLM(str(tmp_path), dtype="float32", **SMALL) as model:
        expected = SamplingParams(**defaults)  # pyright: ignore[reportArgumentType]
        own, given = model.generate(PROMPTS), model.generate(PROMPTS, expected)
        greedy_ones = model.generate(PROMPTS, greedy(16))
    assert tokens(own) == tokens(given)
    assert tokens(own) != tokens(greedy_ones)


def test_completions_of_a_prompt_are_listed_by_index(llm: LLM) -> None:
    (result,) = llm.generate("a", SamplingParams(n=3, seed=1, max_tokens=6, temperature=2.0))
    assert [completion.index for completion in result.outputs] == [0, 1, 2]


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    (result,) = llm.chat(messages, greedy())
    (direct,) = llm.generate("uhiA", greedy())
    assert result.prompt_token_ids == direct.prompt_token_ids
    assert result.outputs == direct.outputs
    assert len(llm.chat([messages, messages], greedy())) == 2


@pytest.mark.parametrize(
    ("prompts", "params"),
    [
        ([[5], []], greedy()),
        ([[5], [96]], greedy()),
        ([[5] * 500], greedy()),
        ({"prompt": "x"}, greedy()),
        (["a", "b"], [greedy()]),
    ],
)
def test_wrong_request_is_refused_before_anything_runs(
    llm: LLM, prompts: object, params: object
) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompts, params)  # pyright: ignore[reportArgumentType]
    assert llm.generate([[5]], greedy(1))[0].outputs[0].finish_reason == "length"


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    with LLM(str(tmp_path), **SMALL) as bare:
        assert bare.tokenizer is None
        assert bare.generate([5, 6], greedy(3))[0].outputs[0].text == ""
        for call in (lambda: bare.generate("x"), lambda: bare.chat([{"role": "user"}])):
            with pytest.raises(RequestError, match="tokenizer"):
                call()


def test_priorities_hold_for_this_object_only(directory: Path) -> None:
    before = ir.select("rms_norm", torch.ones(2, 48), torch.ones(48), 1e-5).provider
    for setting in (
        {"kernel_config": KernelConfig(ir_op_priority={"rms_norm": ("native",)})},
        {"ir_op_priority": {"rms_norm": ["native"]}},
    ):
        with LLM(str(directory), **SMALL, **setting) as forced:  # pyright: ignore[reportArgumentType]
            assert forced._priorities == {"rms_norm": ("native",)}
            forced.generate([[5]], greedy(1))
    assert ir.select("rms_norm", torch.ones(2, 48), torch.ones(48), 1e-5).provider == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seq": 3}, "max_num_seqs"),
        ({"ir_op_priority": {"rms_nrm": ["native"]}}, "rms_norm"),
        ({"max_model_len": 4096}, "128 positions"),
        ({"max_model_len": 100, "num_blocks": 2}, "`max_model_len`"),
        ({"dtype": "int8"}, "dtype"),
        ({"port": 8000}, "`port`: only a server"),
        ({"quantization": "awq"}, "`quantization` must be one of auto, none, not 'awq'"),
        ({"batch_invariant": True}, "IR_BATCH_INVARIANT=1"),
    ],
)
def test_wrong_setting_is_refused_with_a_hint(
    directory: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        LLM(str(directory), **settings)  # pyright: ignore[reportArgumentType]


def test_revision_of_a_local_directory_is_a_load_error(directory: Path) -> None:
    with pytest.raises(ModelLoadError, match="`revision`"):
        LLM(str(directory), revision="v1")


def test_missing_model_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        LLM(str(tmp_path / "absent"))


def test_closed_model_refuses_work(directory: Path) -> None:
    llm = LLM(str(directory), **SMALL)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate("x")


def test_failure_of_the_engine_is_final(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(str(directory), **SMALL)

    def fail() -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(llm._engine.core, "step", fail)
    with pytest.raises(EngineDeadError, match="MemoryError: no more"):
        llm.generate([[5]], greedy())
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[5]], greedy())
