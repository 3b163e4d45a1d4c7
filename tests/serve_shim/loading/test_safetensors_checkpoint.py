"""Directories that cannot be loaded are refused with file, tensor and what to do."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import make_model

from serve_shim.errors import ModelLoadError
from serve_shim.loading import load_model
from serve_shim.loading.safetensors_header import read_safetensors_header


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_model("llama").save_pretrained(tmp_path)
    return tmp_path


def _change_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")


def _change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def _refused(directory: Path, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        load_model(str(directory))


def test_directory_without_config(directory: Path) -> None:
    (directory / "config.json").unlink()
    _refused(directory, "no config.json; expected a Hugging Face model directory")
    (directory / "model-q4.gguf").touch()
    _refused(directory, r"give one of them: \['model-q4.gguf'\]")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\udcff", "[" * 100_000])
def test_config_that_is_no_json_object(directory: Path, text: str) -> None:
    (directory / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    _refused(directory, r"config.json: (not valid JSON|expected a JSON object)")


def test_remote_code_is_refused(directory: Path) -> None:
    _change_config(directory, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    _refused(directory, "`auto_map`.*never done")


def test_pickled_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    _refused(directory, r"only pickled weights \(pytorch_model.bin\).*convert them to safetensors")


def test_no_weights_at_all(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    _refused(directory, "neither model.safetensors nor model.safetensors.index.json")


def test_missing_tensors_are_listed_up_to_a_bound(directory: Path) -> None:
    _change_config(directory, num_hidden_layers=9)
    _refused(directory, r"54 missing tensors: `model.layers.3.*and 46 more$")


def test_unexpected_tensors_are_listed(directory: Path) -> None:
    _change_tensors(directory, lambda tensors: tensors.update(extra=torch.zeros(1)))
    _refused(directory, "1 unexpected tensors: `extra`")


def test_wrong_shape_names_tensor_and_both_shapes(directory: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    _change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(80, 47)}))
    _refused(directory, rf"`{name}` has shape \[80, 47\], expected \[80, 48\]")


def test_vocabulary_of_another_size(directory: Path) -> None:
    _change_config(directory, vocab_size=97)
    _refused(directory, r"`model.embed_tokens.weight` has shape \[96, 48\], expected \[97, 48\]")


def test_integer_weights_are_refused(directory: Path) -> None:
    weight = torch.zeros(80, 48, dtype=torch.int8)
    name = "model.layers.0.mlp.up_proj.weight"
    _change_tensors(directory, lambda tensors: tensors.update({name: weight}))
    _refused(directory, f"`{name}`: dtype 'I8' is not supported; supported: F64, F32, BF16, F16")


def test_half_of_the_biases_is_not_enough(directory: Path) -> None:
    bias = torch.zeros(48)
    name = "model.layers.0.self_attn.q_proj.bias"
    _change_tensors(directory, lambda tensors: tensors.update({name: bias}))
    _refused(directory, "missing tensors: `model.layers.0.self_attn.k_proj.bias`")


def test_buffers_of_old_checkpoints_are_ignored(directory: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    _change_tensors(directory, lambda tensors: tensors.update({name: torch.zeros(6)}))
    assert load_model(str(directory)).load_report["tensors"] == 3 * 9 + 3


def test_every_truncation_of_the_weights_is_refused(directory: Path) -> None:
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        _refused(directory, r"model.safetensors: .*(too few|truncated)")
    path.write_bytes(whole + b"\0")
    _refused(directory, "truncated or damaged")


def test_shards_are_read_through_the_index(directory: Path) -> None:
    whole = load_model(str(directory)).model.state_dict()
    make_model("llama").save_pretrained(directory, max_shard_size="50KB")
    (directory / "model.safetensors").unlink(missing_ok=True)
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    sharded = load_model(str(directory)).model.state_dict()
    assert all(torch.equal(sharded[name], value) for name, value in whole.items())


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "absent.safetensors"])
def test_index_that_leaves_the_directory_is_refused(directory: Path, name: str) -> None:
    index = {"weight_map": {"lm_head.weight": name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    _refused(directory, f"shard `{name}` is not in")


def test_index_that_misplaces_a_tensor_is_refused(directory: Path) -> None:
    index = {"weight_map": {"elsewhere": "model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    _refused(directory, "lists `elsewhere` in `model.safetensors`, which does not hold it")


def _shard(directory: Path) -> dict[str, str]:
    """Split the weights into shards and return the index's map."""
    make_model("llama").save_pretrained(directory, max_shard_size="50KB")
    (directory / "model.safetensors").unlink(missing_ok=True)
    index = directory / "model.safetensors.index.json"
    return json.loads(index.read_text(encoding="utf-8"))["weight_map"]


def test_index_that_names_another_shard_is_refused(directory: Path) -> None:
    files = _shard(directory)
    right, wrong = files["model.norm.weight"], files["model.layers.0.mlp.up_proj.weight"]
    assert right != wrong
    index = {"weight_map": {**files, "model.norm.weight": wrong}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    _refused(directory, f"lists `model.norm.weight` in `{wrong}`, which does not hold it")


def test_tensor_in_two_shards_is_refused(directory: Path) -> None:
    files = _shard(directory)
    name, first = "model.norm.weight", files["model.norm.weight"]
    other = next(file for file in files.values() if file != first)
    tensors = {**load_file(directory / other), name: torch.zeros(48)}
    save_file(tensors, directory / other)
    _refused(directory, rf"tensor `{name}` is in `model-\S+` and in `model-\S+` \(1 such")


def _entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> Any:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("{", "header is not valid JSON"),
        ([], "header is no JSON object"),
        ({"w": 3}, "`w`: the header's entry is no object"),
        (_entry(shape=[-1]), "`w`: shape .* malformed"),
        (_entry(shape="x"), "`w`: shape .* malformed"),
        (_entry(offsets=[0]), "`w`: shape .* malformed"),
        (_entry(offsets=[8, 0]), "`w`: F32 .* needs 8 bytes, the header gives -8"),
        (_entry(shape=[3]), "`w`: F32 .* needs 12 bytes, the header gives 8"),
        (_entry(shape=[2**62, 2**62]), "`w`: F32 .* needs"),
        (_entry(offsets=[4, 12]), "`w` starts at 4, leaves a gap"),
        ({**_entry(), "v": _entry()["w"]}, "starts at 0, overlaps"),
    ],
)
def test_header_that_does_not_add_up(tmp_path: Path, header: Any, reason: str) -> None:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ModelLoadError, match=reason):
        read_safetensors_header(path)


def test_generation_defaults_come_from_their_file(directory: Path) -> None:
    path = directory / "generation_config.json"
    values = {"eos_token_id": [2, 7], "temperature": 0.6, "top_p": 0.9, "top_k": 20}
    path.write_text(json.dumps(values), encoding="utf-8")
    generation = load_model(str(directory)).generation
    assert generation.eos_ids == (2, 7)
    assert (generation.temperature, generation.top_p, generation.top_k) == (0.6, 0.9, 20)
    assert generation.min_p is None
    path.write_text('{"temperature": "hot"}', encoding="utf-8")
    _refused(directory, "`temperature` is 'hot'; expected a number")
    path.unlink()
    _change_config(directory, eos_token_id=5)
    assert load_model(str(directory)).generation.eos_ids == (5,)
