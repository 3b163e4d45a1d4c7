"""Small steps of a compiled model run from a tape: the program's own bits, or not at all."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tiny_checkpoints import make_model
from torch import Tensor

import ir_core as ir
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.signature import signature_of
from ir_core.autotuning.table import TunedChoice
from ir_kernels.tape import TapeError
from ir_passes.config import CompilationConfig
from serve_shim.compilation import taped
from serve_shim.compilation.compilable_model import CompilableModel
from serve_shim.compilation.taped import TapedSteps
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.step_memory import StepInputs, StepMemory
from serve_shim.loading import load_model

BOUNDS = EngineConfig(max_model_len=64, num_blocks=32, max_num_seqs=8, max_num_batched_tokens=16)
MOST = 8
INTERMEDIATE = 80


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    return path


class Decoder:
    """A compiled tiny model with caches of its own, and the engine's static memory."""

    def __init__(self, directory: Path, **compilation: object) -> None:
        eager = load_model(str(directory), dtype=torch.float32).model
        config = eager.local_config
        shape = (BOUNDS.num_blocks, 2, config.num_kv_heads, BOUNDS.block_size, config.head_dim)
        self.caches = [torch.zeros(shape) for _ in range(config.num_layers)]
        self.forward = CompilableModel(eager)
        self.forward.bind_kv_cache(self.caches)
        self.buffers: StepInputs = StepMemory(BOUNDS).whole
        settings = CompilationConfig.model_validate({"backend": "eager", **compilation})
        self.forward.compile(settings, BOUNDS, lambda *_: None)

    def step(self, requests: list[tuple[int, int]]) -> Tensor:
        """A step of one token of each request, (position, token id); each has a block."""
        inputs = self.buffers.first(len(requests), len(requests))
        step = inputs.attention
        for row, (position, token_id) in enumerate(requests):
            inputs.input_ids[row], inputs.positions[row] = token_id, position
            step.seq_lens[row], step.query_start_loc[row + 1] = position + 1, row + 1
            step.block_table[row, 0] = row
            step.slot_mapping[row] = row * BOUNDS.block_size + position
        with torch.inference_mode():
            return self.forward(inputs.input_ids, inputs.positions, step).clone()


@pytest.fixture(scope="module")
def program(directory: Path) -> Decoder:
    """Without a tape."""
    return Decoder(directory)


@contextmanager
def tuned(choice: TunedChoice) -> Generator[None]:
    """A choice of timing in force, in no other test."""
    priorities = ir.registry().priorities
    before = priorities._tuned
    priorities.adopt_tuned([choice])
    try:
        yield
    finally:
        priorities._tuned = before
        ir.registry().forget_choices()


@pytest.fixture
def recorded(directory: Path) -> Decoder:
    decoder = Decoder(directory)
    decoder.forward.tape(MOST, decoder.buffers)
    return decoder


def test_every_size_gives_the_programs_bits(recorded: Decoder, program: Decoder) -> None:
    for size in (1, 3, MOST, 2):
        for position in range(4):
            requests = [(position, (7 * row + position + size) % 90) for row in range(size)]
            assert torch.equal(recorded.step(requests), program.step(requests))
    for mine, others in zip(recorded.caches, program.caches, strict=True):
        assert torch.equal(mine, others)


def test_requests_of_different_lengths_share_a_step(recorded: Decoder, program: Decoder) -> None:
    for each in (recorded, program):
        for position in range(5):
            each.step([(position, 3 * position + 1)])
    requests = [(5, 11), (0, 12), (0, 13)]
    assert torch.equal(recorded.step(requests), program.step(requests))


def test_the_proof_leaves_no_trace(directory: Path) -> None:
    decoder = Decoder(directory)
    before = [each.clone() for each in (*decoder.caches, *decoder.buffers.attention)]
    decoder.forward.tape(MOST, decoder.buffers)
    after = (*decoder.caches, *decoder.buffers.attention)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_a_step_of_more_tokens_runs_as_compiled(recorded: Decoder, program: Decoder) -> None:
    """A prompt of ten tokens, and one of two beside a request that decodes."""
    outputs: list[list[Tensor]] = []
    for each in (recorded, program):
        inputs = each.buffers.first(1, 10)
        inputs.input_ids.copy_(torch.arange(10) * 3)
        inputs.positions.copy_(torch.arange(10))
        step = inputs.attention
        step.seq_lens.fill_(10)
        step.query_start_loc.copy_(torch.tensor([0, 10]))
        step.slot_mapping.copy_(torch.arange(10))
        step.block_table[0, 0] = 0
        with torch.inference_mode():
            found = [each.forward(inputs.input_ids, inputs.positions, step).clone()]
            mixed = each.buffers.first(2, 3)
            mixed.input_ids.copy_(torch.tensor([5, 6, 7]))
            mixed.positions.copy_(torch.tensor([0, 1, 10]))
            step = mixed.attention
            step.seq_lens.copy_(torch.tensor([2, 11]))
            step.query_start_loc.copy_(torch.tensor([0, 2, 3]))
            step.slot_mapping.copy_(torch.tensor([16, 17, 10]))
            step.block_table[:, 0] = torch.tensor([1, 0])
            found.append(each.forward(mixed.input_ids, mixed.positions, step).clone())
        outputs.append(found)
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))


def test_other_memory_than_the_engines_runs_as_compiled(
    recorded: Decoder, program: Decoder
) -> None:
    recorded.step([(0, 5)])
    inputs = program.buffers.first(1, 1)
    expected = program.step([(0, 5)])
    arguments = (inputs.input_ids, inputs.positions, inputs.attention)
    with torch.inference_mode():
        assert torch.equal(recorded.forward(*arguments), expected)


def test_other_caches_end_the_tape(recorded: Decoder, program: Decoder) -> None:
    old = recorded.caches
    recorded.step([(0, 5)])
    kept = [each.clone() for each in old]
    recorded.forward.bind_kv_cache([torch.zeros_like(each) for each in old])
    assert torch.equal(recorded.step([(0, 8)]), program.step([(0, 8)]))
    assert all(torch.equal(one, other) for one, other in zip(kept, old, strict=True))


def test_each_program_has_a_tape_of_its_own(directory: Path, program: Decoder) -> None:
    decoder = Decoder(directory, compile_ranges_endpoints=[2])
    steps = decoder.forward.tape(MOST, decoder.buffers)
    assert [each.sizes for each in steps.taped] == [(3, MOST), (1, 2)]
    assert not steps.untaped
    for size in (1, 2, 3, MOST, 2, 1):
        for position in range(3):
            requests = [(position, (7 * row + position + size) % 90) for row in range(size)]
            assert torch.equal(decoder.step(requests), program.step(requests))


def test_a_program_that_no_tape_holds_leaves_the_others_theirs(
    directory: Path, program: Decoder
) -> None:
    call = ir.ops.silu_and_mul.bind(torch.ones(2, 2 * INTERMEDIATE))
    signature = signature_of(ir.ops.silu_and_mul, call)
    later = (LaterRange(3, "vllm_c"),)
    choice = TunedChoice("silu_and_mul", signature, "vllm_c", "native", (), (), later=later)
    with tuned(choice):
        decoder = Decoder(directory)
        steps = decoder.forward.tape(MOST, decoder.buffers)
    assert [each.sizes for each in steps.taped] == [(3, MOST)]
    ((sizes, error),) = steps.untaped.items()
    assert sizes == (1, 2)
    assert "computes what no tape holds" in str(error)
    requests = [(0, 5), (0, 6), (0, 7)]
    assert torch.equal(decoder.step(requests), program.step(requests))
    torch.testing.assert_close(decoder.step(requests[:2]), program.step(requests[:2]))


def test_what_torch_computes_is_not_recorded(directory: Path) -> None:
    with ir.priority({"silu_and_mul": ["native"]}):
        decoder = Decoder(directory)
        with pytest.raises(TapeError, match=r"`aten\.\w+\.\w+` computes what no tape holds"):
            decoder.forward.tape(MOST, decoder.buffers)
        assert decoder.step([(0, 5)]).isfinite().all()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_loop_of_inductor_is_not_recorded(directory: Path) -> None:
    with ir.priority({"silu_and_mul": ["native"]}):
        decoder = Decoder(directory, backend="inductor", cache_mode="off")
        with pytest.raises(TapeError, match="gave other bits"):
            decoder.forward.tape(MOST, decoder.buffers)


def test_other_bits_are_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tape without its last kernel leaves what it was poisoned with."""
    decoder = Decoder(directory)

    def without_replay(self: object, num_tokens: int, num_requests: int) -> None: ...

    replay: Callable[..., None] = without_replay
    monkeypatch.setattr(taped.Tape, "replay", replay)
    with pytest.raises(TapeError, match="gave other bits"):
        decoder.forward.tape(MOST, decoder.buffers)
    assert isinstance(decoder.forward, CompilableModel)
    assert not isinstance(decoder.forward._forward, TapedSteps)
