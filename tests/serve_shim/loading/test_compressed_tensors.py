"""Tiny compressed-tensors checkpoints: kept integers, expanded ones, and what is refused."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_sequence import OneSequence
from safetensors.torch import load_file, save_file
from thread_ranks import thread_ranks
from tiny_checkpoints import make_llama_of_blocks
from torch import Tensor

import ir_core as ir
from serve_shim.errors import ModelLoadError
from serve_shim.llm import LLM
from serve_shim.loading import load_model, open_checkpoint, quantization
from serve_shim.loading.quantization import choose_forms
from serve_shim.loading.weights import check_tensors, load_weights
from serve_shim.models import CausalLM, Shard
from serve_shim.models.matrix import Matrix
from serve_shim.models.parameters import ParameterMaker
from serve_shim.models.shard import WHOLE
from serve_shim.models.span import Span
from serve_shim.models.weight_form import DENSE, W8A8, WeightForm
from serve_shim.models.weight_slots import WeightSlot, weight_slots
from serve_shim.sampling.params import SamplingParams

_IDS = torch.randint(0, 96, (24,), generator=torch.Generator().manual_seed(4)).tolist()
_Q_PROJ = "model.layers.0.self_attn.q_proj"
_OPS = ("linear", "linear_w4a16", "linear_w8a16", "linear_w8a8", "quantize_int8_per_token")


@dataclass(frozen=True, slots=True)
class _Scheme:
    """What is written; `group_size` None is a scale by row."""

    bits: int
    group_size: int | None = None
    is_packed: bool = True
    has_int8_activations: bool = False

    def config(self) -> dict[str, Any]:
        """The configuration of all linear layers but the head."""
        strategy = "channel" if self.group_size is None else "group"
        weights = {"num_bits": self.bits, "type": "int", "symmetric": True, "strategy": strategy}
        inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token"}
        group = {
            "targets": ["Linear"],
            "weights": {**weights, "group_size": self.group_size, "dynamic": False},
            "input_activations": {**inputs, "dynamic": True} if self.has_int8_activations else None,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized" if self.is_packed else "int-quantized",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "sparsity_config": {},
        }

    def compress(self, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The tensors that stand for `weight`, by the ends of their names, and its values."""
        rows, columns = weight.shape
        size, largest = self.group_size or columns, 2 ** (self.bits - 1) - 1
        groups = weight.numpy().reshape(rows, -1, size)
        scale = torch.from_numpy(np.abs(groups).max(-1) / largest).bfloat16()
        factors = scale.float().numpy()[..., None]
        integers = np.clip(np.round(groups / factors), -largest - 1, largest)
        values = torch.from_numpy((integers * factors).reshape(rows, columns))
        plain = integers.reshape(rows, columns).astype(np.int8)
        if not self.is_packed:
            return {"weight": torch.from_numpy(plain), "weight_scale": scale}, values
        per_word = 32 // self.bits
        shifted = (plain.astype(np.int64) + largest + 1).reshape(rows, -1, per_word)
        words = (shifted << (self.bits * np.arange(per_word))).sum(-1).astype(np.uint32)
        return {
            "weight_packed": torch.from_numpy(words.view(np.int32)),
            "weight_shape": torch.tensor([rows, columns]),
            "weight_scale": scale,
        }, values


_W4 = _Scheme(4, 32)
_W8A8 = _Scheme(8, is_packed=False, has_int8_activations=True)
_SCHEMES: Mapping[str, tuple[_Scheme, str]] = {
    "w4a16": (_W4, "w4a16"),
    "w4a16 by row": (_Scheme(4), "w4a16"),
    "w8a16": (_Scheme(8, 32), "w8a16"),
    "w8a16 by row": (_Scheme(8), "w8a16"),
    "w8a16 in bytes": (_Scheme(8, 32, is_packed=False), "w8a16"),
    "w8a8": (_W8A8, "w8a8"),
}
_OF_WEIGHTS = [name for name in _SCHEMES if name != "w8a8"]


@pytest.fixture(autouse=True)
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers are kept though this machine may have no other implementation than native."""
    monkeypatch.setattr(quantization, "_has_kernel", lambda form: True)


def _write(
    path: Path, scheme: _Scheme, ignore: tuple[str, ...] = (), *, tied: bool = False
) -> tuple[str, str]:
    """Write a model compressed, and with the values of the compressed weights; both directories."""
    compressed, dense = path / "compressed", path / "dense"
    make_llama_of_blocks(tie_word_embeddings=tied).save_pretrained(compressed)
    tensors = load_file(compressed / "model.safetensors")
    values = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        if any(part in name for part in ignore):
            continue
        module = name.removesuffix("weight")
        parts, values[name] = scheme.compress(tensors.pop(name))
        tensors |= {f"{module}{part}": tensor for part, tensor in parts.items()}
    dense.mkdir()
    config = json.loads((compressed / "config.json").read_text(encoding="utf-8"))
    (dense / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(values, dense / "model.safetensors")
    config |= {"quantization_config": scheme.config(), "dtype": "bfloat16"}
    config["quantization_config"]["ignore"] += [f"re:.*{part}" for part in ignore]
    (compressed / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, compressed / "model.safetensors")
    return str(compressed), str(dense)


def _change(path: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the quantisation in config.json."""
    file = Path(path) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    change(config["quantization_config"])
    file.write_text(json.dumps(config), encoding="utf-8")


def _change_tensors(path: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    file = Path(path) / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def _logits(model: CausalLM) -> Tensor:
    sequence = OneSequence(model)
    return torch.cat([sequence.step(_IDS[:9]), sequence.step(_IDS[9:10]), sequence.step(_IDS[10:])])


def _keep(path: str, shard: Shard = WHOLE) -> CausalLM:
    """Load with integers kept, though activations are float32, which hides no mistake."""
    checkpoint = open_checkpoint(Path(path))
    slots = check_tensors(checkpoint, path)
    forms = choose_forms("auto", torch.bfloat16, slots, checkpoint).forms
    model = CausalLM(checkpoint.config, dtype=torch.float32, forms=forms, shard=shard)
    load_weights(model, list(weight_slots(model.plan)), checkpoint)
    return model


def _relative_error(found: Tensor, expected: Tensor) -> float:
    error = (found.float() - expected).square().mean().sqrt()
    return float(error / expected.square().mean().sqrt())


@pytest.mark.parametrize("name", _SCHEMES)
def test_every_scheme_is_kept_in_its_form(name: str, tmp_path: Path) -> None:
    scheme, form = _SCHEMES[name]
    report = load_model(_write(tmp_path, scheme)[0]).load_report
    assert report["forms"] == {form: 12, "dense": 2}
    assert report["dtype_reason"] == "auto: the checkpoint is quantised"
    assert report["expanded"] == {"stored as F32, which no form holds": 2}


@pytest.mark.parametrize("name", _SCHEMES)
def test_expanded_weights_are_the_values_of_the_integers(name: str, tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _SCHEMES[name][0])
    expanded = load_model(compressed, dtype=torch.float32)
    assert expanded.load_report["forms"] == {"dense": 14}
    expected = load_model(dense, dtype=torch.float32)
    for found, wanted in zip(expanded.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", _OF_WEIGHTS)
def test_kept_weights_compute_what_expanded_ones_do(name: str, tmp_path: Path) -> None:
    compressed, _ = _write(tmp_path, _SCHEMES[name][0])
    with ir.priority({op: ["native"] for op in _OPS}):
        kept = _logits(load_model(compressed).model)
        expanded = _logits(load_model(compressed, quantization="none").model)
    assert torch.equal(kept, expanded)


@pytest.mark.parametrize("name", _OF_WEIGHTS)
def test_kernels_stay_near_the_float32_oracle(name: str, tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _SCHEMES[name][0])
    exact = _logits(load_model(dense, dtype=torch.float32).model)
    assert _relative_error(_logits(load_model(compressed).model), exact) < 0.06


def _product_of_integers(x: Tensor, *weights: Any) -> Tensor:
    integers, scale = ir.ops.quantize_int8_per_token(x)
    return ir.ops.linear(integers.float() * scale, *weights)


def test_w8a8_is_off_by_its_activations_alone(tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _W8A8)
    model = load_model(dense, dtype=torch.float32).model
    exact = _logits(model)
    for layer in model.layers:
        for matrix in layer.modules():
            if isinstance(matrix, Matrix):
                matrix.product = _product_of_integers  # type: ignore[assignment]
    found = _logits(_keep(compressed))
    # Where sums are rounded otherwise, an activation may become the next integer.
    assert _relative_error(found, _logits(model)) < 2e-3
    assert 0.006 < _relative_error(found, exact) < 0.06


def test_modules_that_are_ignored_stay_as_they_are(tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _W4, ignore=("down_proj", "layers.1.self_attn"))
    kept = load_model(compressed)
    assert kept.load_report["forms"] == {"w4a16": 7, "dense": 7}
    exact = _logits(load_model(dense, dtype=torch.float32).model)
    assert _relative_error(_logits(kept.model), exact) < 0.06


def test_parts_of_a_merged_matrix_may_not_agree(tmp_path: Path) -> None:
    compressed, _ = _write(tmp_path, _W8A8, ignore=("up_proj",))
    report = load_model(compressed).load_report
    assert report["forms"] == {"w8a8": 9, "dense": 5}
    assert report["expanded"] == {
        "stored as F32 and int-quantized W8A8, which no form holds": 3,
        "stored as F32, which no form holds": 2,
    }


def test_a_name_is_closer_than_a_pattern_and_that_than_a_class(tmp_path: Path) -> None:
    compressed, _ = _write(tmp_path, _W4)

    def add_groups(config: dict[str, Any]) -> None:
        group = config["config_groups"]["group_0"]
        wrong = {**group, "weights": {**group["weights"], "num_bits": 2}}
        config["config_groups"] = {
            "class": {**wrong, "targets": ["Linear"]},
            "pattern": {**group, "targets": ["re:.*_proj$"]},
            "name": {**wrong, "targets": [_Q_PROJ]},
        }

    _change(compressed, add_groups)
    with pytest.raises(ModelLoadError, match=rf"`name`: module `{_Q_PROJ}` has weights of 2 bits"):
        load_model(compressed)
    _change(compressed, lambda config: config["config_groups"].pop("name"))
    assert load_model(compressed).load_report["forms"] == {"w4a16": 12, "dense": 2}


def _with_weights(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"]["weights"].update(changes)


def _with_inputs(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config_groups"]["group_0"]["input_activations"].update(changes)


def _with(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update(changes)


_REFUSED: Mapping[str, tuple[_Scheme, Callable[[dict[str, Any]], None], str]] = {
    "another method": (_W4, _with(quant_method="gptq"), "`quant_method` is 'gptq'; supported is"),
    "fp8": (_W8A8, _with_weights(type="float"), "weights of 8 bits of type float"),
    "three bits": (_W4, _with_weights(num_bits=3), "weights of 3 bits of type int"),
    "asymmetric": (_W4, _with_weights(symmetric=False), "asymmetric weights"),
    "one scale": (_W8A8, _with_weights(strategy="tensor"), "scales of weights by tensor"),
    "blocks": (_W8A8, _with_weights(strategy="block"), "scales of weights by block"),
    "act order": (_W4, _with_weights(actorder="group"), "columns in groups by an index"),
    "nibbles in bytes": (_W4, _with(format="int-quantized"), "4 bits stored as int-quantized"),
    "not compressed": (_W8A8, _with(format="dense"), "8 bits stored as dense"),
    "static": (_W8A8, _with_inputs(dynamic=False), "static scales of activations"),
    "one activation scale": (_W8A8, _with_inputs(strategy="tensor"), "of activations by tensor"),
    "asymmetric inputs": (_W8A8, _with_inputs(symmetric=False), "asymmetric activations"),
    "fp8 inputs": (_W8A8, _with_inputs(type="float"), "activations of 8 bits of type float"),
    "w8a8 in groups": (
        _W8A8,
        _with_weights(strategy="group", group_size=32),
        "quantised activations with weights that are not 8 bits by channel",
    ),
    "outputs": (
        _W4,
        lambda config: config["config_groups"]["group_0"].update(output_activations={}),
        "quantised outputs",
    ),
    "2:4 sparse": (
        _W8A8,
        _with(sparsity_config={"format": "sparse-24-bitmask"}),
        "`sparsity_config` .*sparse weights are not supported; supported: dense, W8A8",
    ),
    "kv cache": (_W8A8, _with(kv_cache_scheme={"num_bits": 8}), "`kv_cache_scheme` .*KV cache"),
    "transforms": (_W4, _with(transform_config={"a": 1}), "`transform_config` .*transformed"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_schemes_of_no_form_are_refused_with_what_works(name: str, tmp_path: Path) -> None:
    scheme, change, words = _REFUSED[name]
    compressed, _ = _write(tmp_path, scheme)
    _change(compressed, change)
    with pytest.raises(ModelLoadError, match=words) as refusal:
        load_model(compressed)
    assert "config.json" in str(refusal.value)


def test_a_refusal_names_a_module_its_scheme_and_what_works(tmp_path: Path) -> None:
    compressed, _ = _write(tmp_path, _W8A8)
    _change(compressed, _with_weights(type="float", symmetric=False))
    with pytest.raises(ModelLoadError) as refusal:
        load_model(compressed)
    (where, module, scheme, supported) = re.split("module | has |, which", str(refusal.value))
    assert where.endswith("config.json `quantization_config` `config_groups` `group_0`: ")
    assert module.strip("`").endswith("_proj")
    assert scheme == "weights of 8 bits of type float, asymmetric weights"
    assert "supported: W8A8 (int8 weights by channel" in supported


@pytest.mark.parametrize(
    ("scheme", "change", "words"),
    [
        (_W8A8, lambda t: t.pop(f"{_Q_PROJ}.weight_scale"), "there is no `weight_scale`"),
        (_W4, lambda t: t.pop(f"{_Q_PROJ}.weight_shape"), "there is no `weight_shape`"),
        (
            _W4,
            lambda t: t.update({f"{_Q_PROJ}.weight_zero_point": torch.zeros(1)}),
            "`weight_zero_point` is not supported",
        ),
        (
            _W4,
            lambda t: t.update({f"{_Q_PROJ}.weight_g_idx": torch.zeros(64)}),
            "`weight_g_idx` is not supported",
        ),
        (
            _W8A8,
            lambda t: t.update({f"{_Q_PROJ}.weight": torch.zeros(64, 64)}),
            "`weight` is F32, expected I8",
        ),
        (
            _W4,
            lambda t: t.update({f"{_Q_PROJ}.weight_scale": torch.zeros(64, 3)}),
            r"`weight_scale` has shape \[64, 3\] for a weight of \[64, 64\] in groups of 32",
        ),
        (
            _W8A8,
            lambda t: t.update({f"{_Q_PROJ}.weight_scale": torch.zeros(64, 2)}),
            r"`weight_scale` has shape \[64, 2\] for a weight of \[64, 64\] with a scale by row",
        ),
        (
            _W8A8,
            lambda t: t.update({f"{_Q_PROJ}.weight_scale": torch.zeros(64, 1).int()}),
            "`weight_scale` is I32, expected F32, BF16, F16",
        ),
        (
            _W4,
            lambda t: t.update({f"{_Q_PROJ}.weight_shape": torch.tensor([64, 63])}),
            rf"`{_Q_PROJ}.weight_shape` is \[64, 63\]",
        ),
        (
            _W4,
            lambda t: t[f"{_Q_PROJ}.weight_scale"].fill_(1e6),
            f"`{_Q_PROJ}.weight_scale` has values that torch.float16 does not hold",
        ),
    ],
)
def test_tensors_that_are_not_those_of_the_scheme_are_named(
    scheme: _Scheme, change: Callable[[dict[str, Tensor]], Any], words: str, tmp_path: Path
) -> None:
    compressed, _ = _write(tmp_path, scheme)
    _change_tensors(compressed, change)
    with pytest.raises(ModelLoadError, match=words) as refusal:
        load_model(compressed)
    assert _Q_PROJ in str(refusal.value)


@pytest.mark.parametrize(
    ("scheme", "form"),
    [
        (_Scheme(4, 64), WeightForm("w4a16", group_size=64)),
        (_Scheme(4, 128), WeightForm("w4a16", group_size=128)),
        (_Scheme(8, 256), WeightForm("w8a16", group_size=128)),
        (_Scheme(8), WeightForm("w8a16", group_size=128)),
        (_W8A8, W8A8),
    ],
)
def test_any_part_on_bounds_of_groups_is_read(
    scheme: _Scheme, form: WeightForm, tmp_path: Path
) -> None:
    compressed, _ = _write(tmp_path, scheme if scheme.group_size is None else _W4)
    weight = torch.randn(24, 512, generator=torch.Generator().manual_seed(5))
    parts, values = scheme.compress(weight)
    _change(compressed, lambda config: config.update(scheme.config()))
    file = Path(compressed) / "model.safetensors"
    save_file({f"{_Q_PROJ}.{part}": tensor for part, tensor in parts.items()}, file)
    checkpoint = open_checkpoint(Path(compressed))
    assert checkpoint.stored_format(f"{_Q_PROJ}.weight").forms == (form,)
    part = (Span(3, 20, 17), Span(256, 512, 256))
    slot = WeightSlot(f"{_Q_PROJ}.weight", (24, 512), "q.weight", part=part)
    dense = torch.empty(17, 256)
    checkpoint.read_into(slot, DENSE, [dense])
    assert torch.equal(dense, values[3:20, 256:])
    matrix = ParameterMaker(torch.float32, forms={"q": form}).matrix("q", 256, 17)
    checkpoint.read_into(slot, form, matrix.stored_rows(0, 17))
    # Each row of the identity has one scale, which rounds 1 to itself but for the last bits.
    torch.testing.assert_close(matrix(torch.eye(256)).T, values[3:20, 256:], atol=0, rtol=1e-6)


def test_expanding_reads_columns_that_begin_inside_a_word(tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _W4)
    values = load_file(Path(dense) / "model.safetensors")[f"{_Q_PROJ}.weight"]
    slot = WeightSlot(
        f"{_Q_PROJ}.weight", (64, 64), "q.weight", part=(Span(1, 9, 8), Span(27, 38, 11))
    )
    found = torch.empty(8, 11)
    open_checkpoint(Path(compressed)).read_into(slot, DENSE, [found])
    assert torch.equal(found, values[1:9, 27:38])


def _of_ranks(path: str, size: int) -> list[Tensor]:
    models = [_keep(path, Shard(rank, size)) for rank in range(size)]
    with thread_ranks(size) as ranks:
        return ranks.run(lambda rank: _logits(models[rank]))


@pytest.mark.parametrize("name", ["w4a16", "w8a16", "w8a16 in bytes"])
def test_ranks_compute_the_logits_of_the_whole(name: str, tmp_path: Path) -> None:
    compressed, dense = _write(tmp_path, _SCHEMES[name][0])
    exact = _logits(load_model(dense, dtype=torch.float32).model)
    for logits in _of_ranks(compressed, 2):
        assert (logits - exact).abs().max() < 1e-4


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_w8a8_scale_their_own_part_of_an_activation(size: int, tmp_path: Path) -> None:
    """So a sum of theirs is not the whole's, but no further from the truth."""
    compressed, dense = _write(tmp_path, _W8A8)
    exact = _logits(load_model(dense, dtype=torch.float32).model)
    found = _of_ranks(compressed, size)
    assert all(torch.equal(each, found[0]) for each in found)
    assert 0.006 < _relative_error(found[0], exact) < 0.06


@pytest.mark.parametrize("name", ["w4a16", "w8a8"])
def test_a_compiled_model_answers_what_an_eager_one_does(name: str, tmp_path: Path) -> None:
    compressed, _ = _write(tmp_path, _SCHEMES[name][0])
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = [_IDS[:5], _IDS[3:20]]
    answers: list[list[list[int]]] = []
    for level in (0, 2):
        with LLM(
            compressed,
            optimization_level=level,
            max_model_len=64,
            max_num_seqs=2,
            max_num_batched_tokens=32,
        ) as llm:
            results = llm.generate(prompts, greedy)
        answers.append([list(each.outputs[0].token_ids) for each in results])
    assert answers[0] == answers[1]
    assert all(len(set(answer)) > 1 for answer in answers[0])
