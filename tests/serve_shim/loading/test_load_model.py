"""The embedded model loads and reproduces its reference; options and reports of loading."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from one_sequence import OneSequence
from tiny_checkpoints import make_model
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

import ir_core as ir
from serve_shim.errors import ModelLoadError, TokenizerError
from serve_shim.loading import LoadedModel, load_model

_REFERENCE = Path(__file__).parents[2] / "data" / "smollm2_greedy.json"


@pytest.fixture(scope="module")
def embedded() -> LoadedModel:
    return load_model(None, dtype=torch.float32)


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    reference = json.loads(_REFERENCE.read_text(encoding="utf-8"))
    return reference["completions"] + reference["chat"]


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    make_model("llama").save_pretrained(tmp_path)
    return str(tmp_path)


def test_embedded_prompt_logits_equal_the_reference(
    embedded: LoadedModel, entries: list[dict[str, Any]]
) -> None:
    for entry in entries:
        logits = OneSequence(embedded.model).step(entry["prompt_ids"])[-1]
        expected = torch.tensor(entry["last_prompt_logits_first16"])
        assert (logits[:16] - expected).abs().max() < 1e-3


def test_embedded_greedy_ids_equal_the_reference(
    embedded: LoadedModel, entries: list[dict[str, Any]]
) -> None:
    for entry in entries[::3]:
        expected = entry["greedy_ids"][:12]
        assert OneSequence(embedded.model).greedy(entry["prompt_ids"], len(expected)) == expected


def test_embedded_facts(embedded: LoadedModel) -> None:
    assert embedded.name == "SmolLM2-135M-Instruct"
    assert embedded.generation.eos_ids == (2,)
    assert embedded.tokenizer is not None
    assert embedded.tokenizer.has_chat_template
    report = embedded.load_report
    assert (report["tensors"], report["dtype"], report["origin"]) == (272, "float32", "embedded")
    assert report["bytes"] == sum(p.numel() * 4 for p in embedded.model.parameters())


def test_parameters_are_frozen_and_ordinary(embedded: LoadedModel) -> None:
    for parameter in embedded.model.parameters():
        assert not parameter.requires_grad
        assert not parameter.is_inference()


def test_auto_dtype_is_the_checkpoints(tiny: str) -> None:
    assert load_model(tiny).model.dtype is torch.float32
    quantised = load_model(None)
    assert quantised.model.dtype is torch.bfloat16


def test_batch_invariance_leaves_an_implementation_for_every_matrix() -> None:
    ir.set_batch_invariant(True)
    try:
        loaded = load_model(None)
        logits = OneSequence(loaded.model).step([1, 2, 3])
    finally:
        ir.set_batch_invariant(None)
    assert logits.isfinite().all()
    assert loaded.load_report["quantization"] == "auto"


def test_dtype_is_converted_while_loading(tiny: str) -> None:
    full, half = load_model(tiny).model, load_model(tiny, dtype=torch.float16).model
    every_id = torch.arange(full.config.vocab_size)
    assert torch.equal(full.embedding.embed(every_id).half(), half.embedding.embed(every_id))


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_other_dtypes_are_refused(tiny: str, dtype: torch.dtype) -> None:
    with pytest.raises(ModelLoadError, match="not supported; supported: auto, float32"):
        load_model(tiny, dtype=dtype)


def test_model_without_tokenizer_loads(tiny: str) -> None:
    loaded = load_model(tiny)
    assert loaded.tokenizer is None
    with pytest.raises(TokenizerError, match="the model has no tokenizer"):
        load_model(tiny, chat_template="{{ x }}")


def test_tokenizer_can_come_from_elsewhere(tiny: str, embedded: LoadedModel) -> None:
    loaded = load_model(tiny, tokenizer=embedded.source, chat_template="{{ eos_token }}")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.apply_chat_template([]) == "<|im_end|>"
    with pytest.raises(TokenizerError, match="no such directory"):
        load_model(tiny, tokenizer="/no/such/tokenizer")
    with pytest.raises(TokenizerError, match=r"no tokenizer.json there"):
        load_model(tiny, tokenizer=tiny)


def _with_end_of_turn(directory: str, eos_token_id: int | list[int] | None, letter: str) -> None:
    """Add a tokenizer that ends with `letter`, whose id is its place, and an id to the config."""
    vocab = {chr(ord("a") + place): place for place in range(26)} | {"<far>": 96}
    tokenizer = tokenizers.Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = ByteLevelDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(f"{directory}/tokenizer.json")
    for name, values in (
        ("tokenizer_config.json", {"eos_token": letter}),
        ("generation_config.json", {"eos_token_id": eos_token_id}),
    ):
        Path(directory, name).write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("configured", "letter", "expected"),
    [(2, "h", (2, 7)), ([2, 7], "h", (2, 7)), (None, "h", (2, 7)), (5, "<far>", (5,))],
)
def test_completions_end_at_the_ids_of_config_and_tokenizer(
    tiny: str, configured: int | list[int] | None, letter: str, expected: tuple[int, ...]
) -> None:
    _with_end_of_turn(tiny, configured, letter)
    assert load_model(tiny).generation.eos_ids == expected


def test_chat_template_can_be_a_file(tiny: str, embedded: LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages | length }}", encoding="utf-8")
    loaded = load_model(tiny, tokenizer=embedded.source, chat_template=str(path))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.apply_chat_template([]) == "0"
    with pytest.raises(TokenizerError, match=r"`absent.jinja` is no file that can be read"):
        load_model(tiny, tokenizer=embedded.source, chat_template="absent.jinja")


def test_progress_counts_every_tensor(tiny: str) -> None:
    seen: list[tuple[str, int, int]] = []
    load_model(tiny, progress=lambda *state: seen.append(state))
    assert seen == [("weights", done, 30) for done in range(31)]


def test_rotary_cache_is_shared_and_bounded(tiny: str) -> None:
    model = load_model(tiny, max_positions=10).model
    caches = [layer.get_submodule("attention").get_buffer("cos_sin") for layer in model.layers]
    assert caches[0].shape == (10, 12)
    assert len({cache.data_ptr() for cache in caches}) == 1


def test_rotary_cache_covers_what_yarn_adds(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    config = {**json.loads(path.read_text(encoding="utf-8")), "rope_parameters": rope}
    path.write_text(json.dumps(config), encoding="utf-8")
    attention = load_model(str(tmp_path)).model.layers[0].get_submodule("attention")
    assert attention.get_buffer("cos_sin").shape == (256, 12)


def test_tied_embeddings_are_one_parameter(embedded: LoadedModel) -> None:
    assert embedded.model.lm_head is embedded.model.embedding
