"""Steps that run as graphs, padded, have the bits of steps that do not; so has the KV cache."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import torch
from tiny_checkpoints import make_model
from torch import Tensor

import ir_core as ir
from ir_passes.config import CompilationConfig, CudagraphMode
from ir_passes.errors import CaptureError
from serve_shim.compilation.capture_counters import CaptureCounters
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.compilation.graph_table import GraphKey, GraphTable, Uncaptured
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.parts import EngineParts, assemble, cache_layout
from serve_shim.engine.worker import Worker
from serve_shim.loading import load_model
from serve_shim.loading.load_model import LoadedModel
from serve_shim.models.attention_step import AttentionStep
from serve_shim.sampling.params import SamplingParams

BOUNDS = EngineConfig(
    max_model_len=64,
    num_blocks=64,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    enable_prefix_caching=False,
)
SIZES = (1, 2, 4, 8, 16)
MODES = [mode for mode in CudagraphMode if mode is not CudagraphMode.NONE]
GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    """A model with implementations whose rows do not depend on the number of rows."""
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    ir.set_batch_invariant(True)
    yield load_model(str(path), dtype=torch.float32)
    ir.set_batch_invariant(None)


@pytest.fixture(scope="module")
def compiled(loaded: LoadedModel) -> CompilableModel:
    model = CompilableModel(loaded.model)
    engine(model, loaded)
    model.compile(CompilationConfig(backend="eager"), BOUNDS, lambda *_: None)
    return model


class Spy:
    """A `LanguageModel` that keeps what another one returned."""

    def __init__(self, model: CompilableModel) -> None:
        self.model = model
        self.steps: list[tuple[int, int]] = []
        self.hidden: list[Tensor] = []
        self.caches: list[Tensor] = []

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        hidden = self.model(input_ids, positions, step)
        self.steps.append((len(input_ids), len(step.seq_lens)))
        self.hidden.append(hidden.clone())
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.model.compute_logits(hidden)

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        self.caches = list(caches)
        for cache in self.caches:
            cache.zero_()
        self.model.bind_kv_cache(caches)


class Engine(NamedTuple):
    """An engine around a spied model."""

    parts: EngineParts
    spy: Spy

    def serve(self, prompts: Sequence[Sequence[int]]) -> None:
        """Run requests together to their end."""
        for number, prompt in enumerate(prompts):
            self.parts.core.submit(self.parts.factory.make(f"r{number}", prompt, GREEDY))
        while self.parts.core.has_work:
            self.parts.core.step()

    def capture(self, mode: CudagraphMode, sizes: Sequence[int] = SIZES) -> CaptureCounters:
        table = GraphTable(mode, sizes, BOUNDS.max_num_seqs)
        return self.spy.model.capture(table, self.parts.step_inputs, lambda *_: None)


def engine(model: CompilableModel, loaded: LoadedModel) -> Engine:
    """A fresh engine; it binds fresh caches to the model."""
    spy = Spy(model)
    layout = cache_layout(loaded.config, BOUNDS.block_size, torch.float32)
    parts = assemble(
        Worker(spy, BOUNDS, layout),
        model_name="tiny",
        model_config=loaded.config,
        tokenizer=None,
        eos_ids=(),
        config=BOUNDS,
    )
    return Engine(parts, spy)


def workload() -> Iterator[list[list[int]]]:
    """Prompts of every length from the longest down, then longer ones again, and many at once."""
    for length in (*range(16, 0, -1), 9, 16):
        yield [[(7 * place + length) % 90 for place in range(length)]]
    yield [[(number + 5 * place) % 90 for place in range(number)] for number in range(1, 24)]
    yield from ([[number] for number in range(count)] for count in (2, 3, 4))


def check_equal(found: Spy, wanted: Spy) -> None:
    assert found.steps == wanted.steps
    for size, one, other in zip(found.steps, found.hidden, wanted.hidden, strict=True):
        assert torch.equal(one, other), size
    for one, other in zip(found.caches, wanted.caches, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def uncaptured(compiled: CompilableModel, loaded: LoadedModel) -> Spy:
    running = engine(compiled, loaded)
    for prompts in workload():
        running.serve(prompts)
    assert {tokens for tokens, _ in running.spy.steps} == set(range(1, 17))
    return running.spy


@pytest.mark.parametrize("mode", MODES)
def test_padded_steps_and_the_cache_have_the_same_bits(
    mode: CudagraphMode, compiled: CompilableModel, loaded: LoadedModel, uncaptured: Spy
) -> None:
    running = engine(compiled, loaded)
    counters = running.capture(mode)
    assert not any(cache.any() for cache in running.spy.caches)
    for prompts in workload():
        running.serve(prompts)
    check_equal(running.spy, uncaptured)
    assert sum(counters.replays.values()) + sum(counters.uncaptured.values()) == len(
        running.spy.steps
    )
    assert 0 not in counters.replays.values()
    assert counters.num_graphs >= len(counters.replays)
    assert min(counters.num_bytes, counters.num_padding) > 0


@pytest.mark.parametrize("mode", [CudagraphMode.FULL, CudagraphMode.FULL_AND_PIECEWISE])
def test_memory_that_nobody_wrote_does_not_leak(
    mode: CudagraphMode, compiled: CompilableModel, loaded: LoadedModel, uncaptured: Spy
) -> None:
    torch.use_deterministic_algorithms(True)  # `empty` gives NaN
    try:
        assert torch.empty(4).isnan().all()
        running = engine(compiled, loaded)
        running.capture(mode)
        for prompts in workload():
            running.serve(prompts)
    finally:
        torch.use_deterministic_algorithms(False)
    assert running.spy.steps == uncaptured.steps
    for one, other in zip(running.spy.hidden, uncaptured.hidden, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_what_padding_holds_changes_no_bit(
    mode: CudagraphMode, compiled: CompilableModel, loaded: LoadedModel
) -> None:
    running = engine(compiled, loaded)
    running.capture(mode)
    whole = running.parts.step_inputs
    found: list[Tensor] = []
    for token, position, block in ((0, 0, 0), (95, 60, 1 << 30), (17, 3, -5)):
        for cache in running.spy.caches:
            cache.zero_()
        step = whole.first(3, 3)
        whole.input_ids[:] = token
        whole.positions[:] = position
        whole.attention.block_table[:] = block
        whole.attention.slot_mapping[:] = -1
        whole.attention.seq_lens[:] = torch.tensor([1, 1, 1, 0])
        whole.attention.query_start_loc[:] = torch.tensor([0, 1, 2, 3, 3])
        step.input_ids[:] = torch.tensor([5, 6, 7])
        step.positions[:] = 0
        step.attention.block_table[:, 0] = torch.tensor([1, 2, 3])
        step.attention.slot_mapping[:] = torch.tensor([4, 8, 12])
        with torch.inference_mode():
            found.append(running.spy(step.input_ids, step.positions, step.attention).clone())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_counts_say_which_graphs_ran_and_why_steps_did_not(
    compiled: CompilableModel, loaded: LoadedModel
) -> None:
    running = engine(compiled, loaded)
    counters = running.capture(CudagraphMode.FULL_DECODE_ONLY, (2, 4))
    running.serve([[1, 2, 3]])  # three tokens, then one and one
    decode = GraphKey(CudagraphMode.FULL, 2, 2, True)
    assert counters.replays == {decode: 2, GraphKey(CudagraphMode.FULL, 4, 4, True): 0}
    assert counters.uncaptured[Uncaptured.NOT_UNIFORM] == 1
    assert (counters.num_tokens, counters.num_padding) == (2, 2)
    running.serve([[1] * 12])
    assert counters.uncaptured[Uncaptured.TOO_LARGE] == 1
    counters.forget_steps()
    assert not any((*counters.replays.values(), *counters.uncaptured.values()))
    assert counters.num_graphs == 2


def test_new_caches_end_replays_and_not_the_numbers(
    compiled: CompilableModel, loaded: LoadedModel
) -> None:
    first = engine(compiled, loaded)
    counters = first.capture(CudagraphMode.FULL_AND_PIECEWISE)
    first.serve([[1, 2, 3]])
    replays = sum(counters.replays.values())
    second = engine(compiled, loaded)
    second.serve([[1, 2, 3]])
    check_equal(second.spy, first.spy)
    assert sum(counters.replays.values()) == replays == 3
    assert counters.uncaptured[Uncaptured.REBOUND] == 3


@pytest.mark.parametrize("mode", MODES)
def test_step_outside_the_static_buffers_is_refused_by_name(
    mode: CudagraphMode, compiled: CompilableModel, loaded: LoadedModel
) -> None:
    running = engine(compiled, loaded)
    running.capture(mode)
    step = running.parts.step_inputs.first(1, 1)
    moved = step.attention._replace(seq_lens=step.attention.seq_lens.clone())
    with torch.inference_mode(), pytest.raises(CaptureError, match=r"`step\.seq_lens` of a step"):
        running.spy(step.input_ids, step.positions, moved)


def test_capture_after_a_step_would_write_to_its_slots_and_is_refused(
    compiled: CompilableModel, loaded: LoadedModel
) -> None:
    running = engine(compiled, loaded)
    running.serve([[1, 2, 3]])
    with pytest.raises(CaptureError, match="before the first step"):
        running.capture(CudagraphMode.FULL)


def test_moved_weight_is_refused_by_name(compiled: CompilableModel, loaded: LoadedModel) -> None:
    running = engine(compiled, loaded)
    running.capture(CudagraphMode.FULL_AND_PIECEWISE)
    weight = loaded.model.norm.weight
    kept = weight.data
    weight.data = kept.clone()
    try:
        with pytest.raises(CaptureError, match=r"norm\.weight` has address"):
            running.serve([[1]])
    finally:
        weight.data = kept


def test_choices_that_part_a_step_from_its_size_are_refused(
    compiled: CompilableModel, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = engine(compiled, loaded)
    monkeypatch.setattr(ir.registry().priorities, "row_ends", lambda: (3, 64))
    with pytest.raises(CaptureError, match=r"Steps of 3 tokens would run at size 4, .* capture 3"):
        serving.capture(CudagraphMode.FULL)
    monkeypatch.setattr(ir.registry().priorities, "row_ends", lambda: (4, 64))
    assert serving.capture(CudagraphMode.FULL).num_graphs


def test_model_that_is_not_compiled_cannot_be_captured(loaded: LoadedModel) -> None:
    running = engine(CompilableModel(loaded.model), loaded)
    with pytest.raises(CaptureError, match="not"):
        running.capture(CudagraphMode.FULL)


def test_attention_inside_a_piece_is_found_before_the_first_step(loaded: LoadedModel) -> None:
    model = CompilableModel(loaded.model)
    running = engine(model, loaded)
    config = CompilationConfig(backend="eager", splitting_ops=())
    model.compile(config, BOUNDS, lambda *_: None)
    with pytest.raises(CaptureError, match=r"2 tokens, PIECEWISE: .*step\.block_table` has shape"):
        running.capture(CudagraphMode.PIECEWISE, (2,))
    counters = running.capture(CudagraphMode.FULL, (2,))
    running.serve([[1]])
    assert sum(counters.replays.values()) == 3
