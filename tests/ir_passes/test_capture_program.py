"""Captured programs, in pieces and as a whole, give the model's numbers at every padded size."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import ir_passes
from ir_passes.capture.captured_program import CapturedProgram, capture_pieces, capture_whole
from ir_passes.capture.recording_runner import RecordingRunner
from ir_passes.config import CompilationConfig
from ir_passes.errors import CaptureError, CompileError
from ir_passes.programs.compiled_model import CompiledModel

from .test_model_trace import DIMS, Model, Step, arguments

LARGEST = 16
SIZES = (16, 8, 4, 2, 1)

Capture = Callable[..., CapturedProgram]
BOTH = pytest.mark.parametrize("capture", [capture_pieces, capture_whole])


class Buffers:
    """Static inputs of the model, of which a step is the first rows and padding the others."""

    def __init__(self) -> None:
        ids, step = arguments(LARGEST)
        self.ids, self.step = ids.clone(), Step(*(each.clone() for each in step))
        self.fill(0)

    def fill(self, tokens: int) -> None:
        """One request of so many tokens; the padding is harmless but for what it may be."""
        self.ids[:] = torch.arange(LARGEST) % 16
        self.step.slots[:] = torch.arange(LARGEST)
        self.step.slots[tokens:] = -1
        self.step.starts[1] = tokens
        self.step.lengths[0] = tokens

    def at(self, size: int) -> tuple[Tensor, Step]:
        """The arguments of a call of so many rows."""
        return self.ids[:size], self.step._replace(slots=self.step.slots[:size])


def compile_model(model: nn.Module, backend: str = "eager", **config: Any) -> CompiledModel:
    settings = CompilationConfig.model_validate({"backend": backend, **config})
    return ir_passes.compile(
        model, arguments(6), dynamic_dims=DIMS, limits={"tokens": LARGEST}, config=settings
    )


def capture_all(capture: Capture, model: CompiledModel, buffers: Buffers) -> dict[int, Any]:
    runner = RecordingRunner()
    return {size: capture(model, size, buffers.at(size), runner) for size in SIZES}


@BOTH
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_every_size_gives_the_models_numbers_whatever_ran_before(
    capture: Capture, backend: str
) -> None:
    captured, eager, buffers = Model(2), Model(2), Buffers()
    programs = capture_all(capture, compile_model(captured, backend), buffers)
    caches = [layer.get_buffer("cache") for layer in captured.layers]
    assert not any(cache.any() for cache in caches)
    for tokens in (16, 1, 15, *range(2, 17), 3, 9):
        buffers.fill(tokens)
        size = min(size for size in SIZES if size >= tokens)
        result = programs[size].call(*buffers.at(size))[:tokens]
        with torch.no_grad():
            wanted = eager(*arguments(tokens))
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5)
        for cache, layer in zip(caches, eager.layers, strict=True):
            torch.testing.assert_close(cache, layer.get_buffer("cache"), rtol=1e-5, atol=1e-5)


@BOTH
def test_what_padding_holds_changes_no_bit(capture: Capture) -> None:
    model, buffers = Model(2), Buffers()
    programs = capture_all(capture, compile_model(model), buffers)
    caches = [layer.get_buffer("cache") for layer in model.layers]
    found: list[list[Tensor]] = []
    for padding in (0, 7, 15):
        for cache in caches:
            cache.zero_()
        buffers.fill(LARGEST)
        programs[16].call(*buffers.at(16))
        buffers.fill(5)
        buffers.ids[5:] = padding
        result = programs[8].call(*buffers.at(8))[:5]
        found.append([result.clone(), *(cache.clone() for cache in caches)])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_pieces_are_graphs_of_their_own_and_a_whole_is_one() -> None:
    model, buffers = compile_model(Model(3)), Buffers()
    pieces = capture_pieces(model, 8, buffers.at(8), RecordingRunner())
    whole = capture_whole(model, 8, buffers.at(8), RecordingRunner())
    assert (len(pieces.graphs), len(whole.graphs)) == (4, 1)
    buffers.fill(8)
    for program in (pieces, whole):
        program.call(*buffers.at(8))
        program.call(*buffers.at(8))
        assert {graph.num_replays for graph in program.graphs} == {2}


def test_smaller_sizes_take_no_more_memory() -> None:
    model, buffers, runner = compile_model(Model(2)), Buffers(), RecordingRunner()
    held: list[int] = []
    for size in SIZES:
        capture_pieces(model, size, buffers.at(size), runner)
        held.append(runner.num_bytes)
    assert held[0] > 0
    assert set(held) == {held[0]}


@pytest.mark.parametrize(
    ("capture", "place"),
    [(capture_pieces, "norm"), (capture_whole, "norm"), (capture_whole, "layers.1.cache")],
)
def test_moved_tensor_of_the_model_is_named(capture: Capture, place: str) -> None:
    model, buffers = Model(2), Buffers()
    program = capture(compile_model(model), 4, buffers.at(4), RecordingRunner())
    *path, last = place.split(".")
    tensor = getattr(model.get_submodule(".".join(path)), last)
    tensor.data = tensor.data.clone()
    with pytest.raises(CaptureError, match=rf"`self\.{re.escape(place)}` has address"):
        program.call(*buffers.at(4))


@BOTH
def test_argument_outside_the_static_buffers_is_named(capture: Capture) -> None:
    buffers = Buffers()
    program = capture(compile_model(Model(1)), 4, buffers.at(4), RecordingRunner())
    ids, step = buffers.at(4)
    with pytest.raises(CaptureError, match=r"`ids` has address"):
        program.call(ids.clone(), step)


def test_arguments_of_splitting_ops_alone_may_be_others_in_pieces() -> None:
    buffers = Buffers()
    compiled = compile_model(Model(1))
    pieces = capture_pieces(compiled, 4, buffers.at(4), RecordingRunner())
    whole = capture_whole(compiled, 4, buffers.at(4), RecordingRunner())
    ids, step = buffers.at(4)
    other = step._replace(table=step.table.clone())
    pieces.call(ids, other)
    with pytest.raises(CaptureError, match=r"`step\.table` has address"):
        whole.call(ids, other)


def shaken(x: Tensor) -> Tensor:
    """A splitting op in the middle that returns a new tensor on every call."""
    return torch.sin(x * 2) + 1


def compile_function(function: Callable[..., Any], x: Tensor) -> CompiledModel:
    config = CompilationConfig(backend="eager", splitting_ops=("aten::sin",))
    return ir_passes.compile(
        function, (x,), dynamic_dims={"x": 0}, limits={"tokens": LARGEST}, config=config
    )


def test_new_tensor_of_a_splitting_op_is_brought_to_where_the_piece_reads() -> None:
    x = torch.ones(4, 2)
    program = capture_pieces(compile_function(shaken, x), 4, (x,), RecordingRunner())
    held: list[Tensor] = []
    for value in (0.5, 3.0, -1.0):
        x.fill_(value)
        held.append(torch.empty(4, 2))
        assert torch.equal(program.call(x), shaken(x))


def test_program_without_pieces_is_refused() -> None:
    x = torch.ones(4, 2)

    def split(x: Tensor) -> Tensor:
        return torch.sin(x)

    compiled = compile_function(split, x)
    with pytest.raises(CaptureError, match="no piece"):
        capture_pieces(compiled, 4, (x,), RecordingRunner())


class Pair(NamedTuple):
    """A result that only the model's own code can build."""

    double: Tensor
    next: Tensor


def test_model_whose_own_code_runs_on_every_call_is_no_whole_graph() -> None:
    def model(x: Tensor) -> Pair:
        return Pair(x * 2, x + 1)

    x = torch.ones(4, 2)
    compiled = compile_function(model, x)
    with pytest.raises(CaptureError, match="PIECEWISE"):
        capture_whole(compiled, 4, (x,), RecordingRunner())
    result = capture_pieces(compiled, 4, (x,), RecordingRunner()).call(x)
    assert torch.equal(result.double, x * 2)
    assert torch.equal(result.next, x + 1)


@BOTH
def test_size_beyond_what_was_compiled_cannot_be_captured(capture: Capture) -> None:
    with pytest.raises(CompileError, match="17 tokens are outside"):
        capture(compile_model(Model(1)), 17, Buffers().at(16), RecordingRunner())


def test_static_program_of_a_size_is_the_one_that_is_captured() -> None:
    model, buffers = compile_model(Model(1), compile_sizes=(4,)), Buffers()
    program = capture_whole(model, 4, buffers.at(4), RecordingRunner())
    buffers.fill(3)
    result = program.call(*buffers.at(4))
    with torch.no_grad():
        # The fourth row is padding: attention leaves it as it was, which is anything.
        assert torch.equal(result[:3], model.program_for(4)(*buffers.at(4))[:3])
