"""The recording runner computes what the function does, in fixed memory, or refuses."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_passes.capture.cuda_graph_runner import CudaGraphRunner
from ir_passes.capture.recording_runner import RecordedGraph, RecordingRunner
from ir_passes.errors import CaptureError

Function = Callable[[list[Any]], Sequence[Any]]


def double(inputs: list[Any]) -> Sequence[Any]:
    """Double the first input, and empty the list as compiled code does."""
    (x, *_) = inputs
    inputs.clear()
    return (x * 2,)


def capture(
    function: Function, *inputs: Any, runner: RecordingRunner | None = None, name: str = "piece_0"
) -> tuple[RecordedGraph, Sequence[Any]]:
    names = ["x", "weight", "count"][: len(inputs)]
    return (runner or RecordingRunner()).capture(name, function, inputs, names)


def test_replay_computes_on_what_the_inputs_hold_now() -> None:
    x = torch.ones(4, 2)
    graph, first = capture(double, x)
    assert torch.equal(first[0], torch.full((4, 2), 2.0))
    for value in (3.0, 5.0):
        x.fill_(value)
        (result,) = graph.replay([x])
        assert result is first[0]
        assert torch.equal(result, torch.full((4, 2), 2 * value))
    assert graph.num_replays == 2


def test_result_stays_until_the_next_replay_and_no_longer() -> None:
    x = torch.ones(4)
    graph, _ = capture(double, x)
    (result,) = graph.replay([x])
    kept = result.clone()
    x.fill_(7.0)
    torch.empty(4).fill_(torch.nan)
    assert torch.equal(result, kept)
    graph.replay([x])
    assert torch.equal(result, torch.full((4,), 14.0))


def test_function_is_warmed_up_before_it_is_recorded() -> None:
    calls: list[int] = []

    def count(inputs: list[Any]) -> Sequence[Any]:
        calls.append(len(inputs))
        return double(inputs)

    capture(count, torch.ones(2), runner=RecordingRunner(num_warmups=2))
    assert calls == [1, 1, 1]


MOVES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "address": (lambda w: w.clone(), "`weight` has address"),
    "shape": (lambda w: w[:2], r"`weight` has shape \(2, 4\), not \(4, 4\)"),
    "strides": (lambda w: w.t(), r"`weight` has strides \(1, 4\), not \(4, 1\)"),
    "dtype": (lambda w: w.view(torch.int32), r"`weight` has dtype torch\.int32"),
    "kind": (lambda w: None, "`weight` has value None"),
}


@pytest.mark.parametrize(("move", "message"), MOVES.values(), ids=MOVES.keys())
def test_moved_input_is_named_on_every_replay(move: Callable[[Tensor], Any], message: str) -> None:
    x, weight = torch.ones(4), torch.ones(4, 4)
    graph, _ = capture(lambda inputs: (inputs[0] @ inputs[1],), x, weight)
    graph.replay([x, weight])
    with pytest.raises(CaptureError, match=rf"`piece_0` was captured with other inputs: {message}"):
        graph.replay([x, move(weight)])
    graph.replay([x, weight])


def test_tensor_whose_memory_was_exchanged_is_noticed() -> None:
    x, weight = torch.ones(4), torch.ones(4)
    graph, _ = capture(lambda inputs: (inputs[0] + inputs[1],), x, weight)
    weight.set_(torch.zeros(4).untyped_storage())
    with pytest.raises(CaptureError, match="`weight` has address"):
        graph.replay([x, weight])


def test_other_number_is_noticed() -> None:
    x = torch.ones(4)
    graph, _ = capture(lambda inputs: (inputs[0] * inputs[2],), x, x, 3)
    with pytest.raises(CaptureError, match="`count` has value 4, not 3"):
        graph.replay([x, x, 4])


def test_memory_freed_between_capture_and_replay_does_no_harm() -> None:
    x = torch.ones(1024)
    graph, first = capture(lambda inputs: ((inputs[0] * 2) + 1,), x)
    address = first[0].data_ptr()
    del first
    gc.collect()
    held = [torch.full((1024,), torch.nan) for _ in range(32)]
    (result,) = graph.replay([x])
    assert result.data_ptr() == address
    assert torch.equal(result, torch.full((1024,), 3.0))
    assert all(each.isnan().all() for each in held)


def test_outputs_share_memory_as_those_of_the_function_do() -> None:
    def split(inputs: list[Any]) -> Sequence[Any]:
        whole = inputs[0] * 2
        return (*whole.split([1, 3], dim=1), None, 5)

    x = torch.arange(8.0).view(2, 4)
    graph, first = capture(split, x)
    left, right, nothing, number = graph.replay([x])
    assert (nothing, number) == (None, 5)
    assert left is first[0]
    assert left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()
    assert (left.stride(), right.storage_offset()) == ((4, 1), 1)
    assert torch.equal(torch.cat([left, right], 1), x * 2)


def test_output_in_the_memory_of_an_input_stays_there() -> None:
    runner = RecordingRunner()

    def add(inputs: list[Any]) -> Sequence[Any]:
        return inputs[0].add_(1), inputs[1].view(-1)

    x, y = torch.zeros(4), torch.zeros(2, 2)
    graph, _ = capture(add, x, y, runner=runner)
    x.zero_()
    result, view = graph.replay([x, y])
    assert (result.data_ptr(), view.data_ptr()) == (x.data_ptr(), y.data_ptr())
    assert torch.equal(x, torch.ones(4))
    assert runner.num_bytes == 0


def test_function_that_depends_on_more_than_its_inputs_is_refused() -> None:
    sizes = iter((4, 4, 4, 3))
    x = torch.ones(4)
    graph, _ = capture(lambda inputs: (inputs[0][: next(sizes)] * 2,), x)
    graph.replay([x])
    with pytest.raises(CaptureError, match="`piece_0` returned outputs of other sizes"):
        graph.replay([x])


def test_smaller_graphs_lie_in_the_memory_of_the_largest() -> None:
    runner = RecordingRunner()
    x = torch.arange(8.0)
    large, (first,) = capture(double, x, runner=runner)
    held = runner.num_bytes
    small, (second,) = capture(double, x[:3], runner=runner)
    assert (runner.num_bytes, held) == (32, 32)
    assert first.data_ptr() == second.data_ptr()
    large.replay([x])
    assert torch.equal(small.replay([x[:3]])[0], x[:3] * 2)
    other, _ = capture(double, x[:3], runner=runner, name="piece_1")
    assert runner.num_bytes == 32 + 12
    assert torch.equal(other.replay([x[:3]])[0], x[:3] * 2)


@pytest.mark.parametrize("is_captured_so", [True, False])
def test_inference_mode_may_differ_between_capture_and_replay(is_captured_so: bool) -> None:
    weight = torch.ones(2, requires_grad=True)
    x = torch.ones(2)
    with torch.inference_mode(is_captured_so):
        graph, _ = capture(lambda inputs: (inputs[0] * inputs[1],), x, weight)
    for mode in (True, False):
        with torch.inference_mode(mode):
            (result,) = graph.replay([x, weight])
            result.add_(1)
    assert not result.is_inference()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_graphs_without_a_device_are_refused() -> None:
    with pytest.raises(CaptureError, match="need a CUDA device"):
        CudaGraphRunner()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_graphs_compute_the_same_and_share_their_pool() -> None:
    runner = CudaGraphRunner()
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)

    def chain(inputs: list[Any]) -> Sequence[Any]:
        return ((inputs[0] * 2 + 1) * 3,)

    large, first = runner.capture("large", chain, [x], ["x"])
    assert torch.equal(first[0], (x * 2 + 1) * 3)
    del first
    held = runner.num_bytes
    small, second = runner.capture("small", chain, [x[:64]], ["x"])
    del second
    assert runner.num_bytes == held
    for value in (1.0, 2.0):
        x.fill_(value)
        for graph, inputs in ((large, x), (small, x[:64])):
            assert torch.equal(graph.replay([inputs])[0], (inputs * 2 + 1) * 3)
    with pytest.raises(CaptureError, match="`x` has address"):
        large.replay([x.clone()])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_work_of_the_host_cannot_be_captured() -> None:
    x = torch.ones(4, device="cuda")

    def read_back(inputs: list[Any]) -> Sequence[Any]:
        return (inputs[0] * inputs[0].sum().item(),)

    with pytest.raises(CaptureError, match="`piece_0` cannot be captured"):
        CudaGraphRunner().capture("piece_0", read_back, [x], ["x"])
