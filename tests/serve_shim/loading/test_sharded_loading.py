"""A rank reads its part of a checkpoint and no more; all parts together are the whole model."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest
import torch
from one_sequence import OneSequence
from thread_ranks import thread_ranks
from tiny_checkpoints import MAKERS, make_llama_of_blocks, make_model, write_gguf
from torch import Tensor

import ir_core as ir
from serve_shim.errors import ModelLoadError
from serve_shim.loading import (
    describe_weights,
    load_model,
    open_checkpoint,
    quantization,
    resolve_source,
)
from serve_shim.loading.quantization import choose_forms
from serve_shim.loading.weights import check_tensors, load_weights
from serve_shim.models import CausalLM, Shard
from serve_shim.models.matrix import Matrix
from serve_shim.models.weight_slots import WeightSlot, separate_head_slot, weight_slots

_GGUF = {"llama": "llama", "llama_biases_tied": "llama", "qwen3_tied": "qwen3"}
_TYPES = gguf.GGMLQuantizationType
_FORMATS = {
    "q4_0": {"weight": _TYPES.Q4_0},
    "q4_1": {"weight": _TYPES.Q4_1},
    "q8_0": {"weight": _TYPES.Q8_0, "attn_k": _TYPES.Q5_0},
    "some dense": {"weight": _TYPES.Q8_0, "attn_output": _TYPES.Q5_1, "attn_q": _TYPES.F32},
}
_OPS = ("linear", "linear_w4a16", "linear_w8a16", "embedding", "embedding_w8a16")
_IDS = torch.randint(0, 96, (20,), generator=torch.Generator().manual_seed(8)).tolist()


@pytest.fixture(autouse=True)
def any_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Integers are kept whatever kernels this machine has, and weights lie plain."""
    monkeypatch.setattr(quantization, "_has_kernel", lambda form: True)
    with ir.priority({op: ["native"] for op in _OPS}):
        yield


class _Part(NamedTuple):
    """One rank's model with the slots it was filled from."""

    model: CausalLM
    slots: list[WeightSlot]
    bytes_read: int

    def stored(self, slot: WeightSlot) -> list[Tensor]:
        """What the slot fills, its padding included."""
        module = self.model.get_submodule(slot.module)
        if slot.is_matrix and isinstance(module, Matrix):
            return module.stored_rows(slot.start, slot.stop)
        return [self.model.get_parameter(slot.parameter)[slot.start : slot.stop]]


def _load(path: Path, shard: Shard, *, keep: bool = False, num_layers: int | None = None) -> _Part:
    """Load into float32 activations, for which kept integers are exact."""
    checkpoint = open_checkpoint(path)
    slots = check_tensors(checkpoint, str(path))
    forms = choose_forms("auto", torch.bfloat16, slots, checkpoint).forms if keep else {}
    config = replace(checkpoint.config, num_layers=num_layers or checkpoint.config.num_layers)
    model = CausalLM(config, dtype=torch.float32, forms=forms, shard=shard)
    for parameter in model.parameters():
        parameter.fill_(77)
    slots = list(weight_slots(model.plan))
    if config.tie_word_embeddings and "lm_head" in forms:
        slots.append(separate_head_slot(model.plan))
    load_weights(model, slots, checkpoint)
    return _Part(model, slots, checkpoint.bytes_read)


def _ranks(path: Path, size: int, *, keep: bool = False, num_layers: int | None = None):
    return [
        _load(path, Shard(rank, size), keep=keep, num_layers=num_layers) for rank in range(size)
    ]


def _check_assembly(whole: _Part, ranks: Iterable[_Part]) -> None:
    """Each rank has its part and zeros around it, and nothing of the whole is in no part."""
    unseen = [
        [torch.ones_like(each, dtype=torch.bool) for each in whole.stored(slot)]
        for slot in whole.slots
    ]
    for part in ranks:
        for slot, total, left in zip(part.slots, whole.slots, unseen, strict=True):
            for found, expected, missing in zip(
                part.stored(slot), whole.stored(total), left, strict=True
            ):
                wanted = torch.zeros_like(found)
                held, source = _places(slot, total, expected)
                wanted[held] = expected[source]
                assert torch.equal(found, wanted), slot.name
                missing[source] = False
    assert not any(each.any() for left in unseen for each in left)


def _places(
    slot: WeightSlot, whole: WeightSlot, stored: Tensor
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where a slot's part lies in the rank's tensor, and where in the `stored` whole one."""
    held: list[slice] = []
    source: list[slice] = []
    for span, size, num_stored in zip(slot.spans, whole.shape, stored.shape, strict=True):
        assert span.start * num_stored % size == span.stop * num_stored % size == 0
        start, stop = span.start * num_stored // size, span.stop * num_stored // size
        held.append(slice(stop - start))
        source.append(slice(start, stop))
    return tuple(held), tuple(source)


@pytest.mark.parametrize("family", MAKERS)
def test_parts_of_safetensors_are_the_whole(family: str, tmp_path: Path) -> None:
    make_model(family).save_pretrained(tmp_path)
    whole = _load(tmp_path, Shard())
    for size in (2, 3, 4):
        _check_assembly(whole, _ranks(tmp_path, size))


@pytest.mark.parametrize("family", _GGUF)
def test_parts_of_gguf_are_the_whole(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.gguf"
    write_gguf(model, path, _GGUF[family])
    whole = _load(tmp_path, Shard())
    for size in (2, 3, 4):
        _check_assembly(whole, _ranks(path, size))


def test_parts_of_expanded_blocks_may_cut_them(tmp_path: Path) -> None:
    path = _write_blocks(tmp_path, "q8_0")
    whole = _load(path, Shard())
    for size in (2, 3, 4):
        _check_assembly(whole, _ranks(path, size))


def _write_blocks(directory: Path, formats: str, head_dim: int = 32) -> Path:
    path = directory / "model.gguf"
    model = make_llama_of_blocks(tie_word_embeddings=True, head_dim=head_dim)
    write_gguf(model, path, "llama", _FORMATS[formats])
    return path


@pytest.mark.parametrize(("size", "head_dim"), [(2, 32), (3, 32), (2, 16)])
@pytest.mark.parametrize("formats", _FORMATS)
def test_parts_of_kept_integers_are_the_whole(
    formats: str, size: int, head_dim: int, tmp_path: Path
) -> None:
    path = _write_blocks(tmp_path, formats, head_dim)
    whole, ranks = _load(path, Shard(), keep=True), _ranks(path, size, keep=True)
    _check_assembly(whole, ranks)
    sequence = OneSequence(whole.model)
    expected = torch.cat([sequence.step(_IDS), sequence.step([1])])

    def logits(rank: int) -> Tensor:
        sequence = OneSequence(ranks[rank].model)
        return torch.cat([sequence.step(_IDS), sequence.step([1])])

    with thread_ranks(size) as threads:
        for found in threads.run(logits):
            assert (found - expected).abs().max() < 1e-4


@pytest.mark.parametrize("size", [2, 3, 4])
def test_parts_of_the_embedded_model_are_the_whole(size: int) -> None:
    path = resolve_source(None).path
    whole = _load(path, Shard(), keep=True, num_layers=1)
    assert {str(each.form) for each in whole.model.modules() if isinstance(each, Matrix)} == {
        "w8a16",
        "w4a16 with minimum",
    }
    _check_assembly(whole, _ranks(path, size, keep=True, num_layers=1))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_rank_reads_and_holds_its_fraction(size: int) -> None:
    path = resolve_source(None).path
    whole = _load(path, Shard(), keep=True, num_layers=1)
    for part in _ranks(path, size, keep=True, num_layers=1):
        assert part.bytes_read < 1.05 * whole.bytes_read / size
        assert _num_bytes(part.model) < 1.05 * _num_bytes(whole.model) / size


def test_bytes_read_of_safetensors_are_those_of_the_parts(tmp_path: Path) -> None:
    make_model("llama_biases_tied").save_pretrained(tmp_path)
    whole = _load(tmp_path, Shard())
    assert whole.bytes_read == _num_bytes(whole.model)
    read = [part.bytes_read for part in _ranks(tmp_path, 2)]
    norms, summed_biases = 7 * 48 * 4, 6 * 48 * 4
    assert sum(read) == whole.bytes_read + norms
    assert read[0] - read[1] == summed_biases


def _num_bytes(model: CausalLM) -> int:
    return sum(each.nbytes for each in model.parameters())


def test_report_says_which_rank_it_is_of(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    whole = load_model(str(tmp_path))
    part = load_model(str(tmp_path), shard=Shard(1, 2))
    assert part.config == whole.config == part.model.config
    report = part.load_report
    assert (report["rank"], report["num_ranks"]) == (1, 2)
    assert report["bytes"] == _num_bytes(part.model) < 0.6 * _num_bytes(whole.model)
    assert report["bytes_read"] == report["bytes"]
    assert describe_weights(report).startswith("rank 1 of 2; float32")
    assert describe_weights(whole.load_report).startswith("float32")


@pytest.mark.parametrize(
    ("huge", "said"),
    [
        (None, "3.0 MiB"),
        (0, "3.0 MiB, 0% in huge pages"),
        (2 << 20, "3.0 MiB, 67% in huge pages"),
        (4 << 20, "3.0 MiB, 100% in huge pages"),  # whole pages, of which the last is not full
    ],
)
def test_report_says_how_much_is_in_huge_pages(tmp_path: Path, huge: int | None, said: str) -> None:
    make_model("llama").save_pretrained(tmp_path)
    report = load_model(str(tmp_path)).load_report
    described = describe_weights({**report, "bytes": 3 << 20, "huge_page_bytes": huge})
    assert described.endswith(f"; {said}")


def test_model_with_too_few_heads_is_refused(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=r"`num_heads` is 4: too few for 5 .* 1 to 4"):
        load_model(str(tmp_path), shard=Shard(0, 5))
