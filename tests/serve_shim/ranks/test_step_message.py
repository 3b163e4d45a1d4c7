import threading
import time

import numpy as np
import pytest
import torch
from toy_engine import ToyModel, run, submit, toy_config, toy_parts

import ir_core as ir
from ir_core.selection import ExecutedSelection
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.executor import StepRunner
from serve_shim.engine.parts import EngineParts, assemble, cache_layout
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_order import SlotAssignment, StepOrder, StepOutput
from serve_shim.engine.worker import Worker
from serve_shim.errors import EngineDeadError
from serve_shim.ranks.channel import ChannelError, EngineEnd
from serve_shim.ranks.rank_runner import RankRunner
from serve_shim.ranks.step_message import (
    OrderDecoder,
    StepReply,
    decode_reply,
    encode_order,
    encode_reply,
)

BOUNDS = EngineConfig(
    max_model_len=128, num_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=16
)


class Mirror:
    """Runs steps as a rank does, from messages, and compares its memory with the engine's."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.decoder = OrderDecoder(BOUNDS)
        self.events: list[SlotAssignment | tuple[int, int]] = []
        self.num_steps = 0
        self.engine: EngineParts | None = None

    def assign(self, assignment: SlotAssignment) -> None:
        self.events.append(assignment)

    def observe(self, slot: int, token_id: int) -> None:
        self.events.append((slot, token_id))

    def run(self, order: StepOrder, clock: StepClock) -> StepOutput:
        data = encode_order(self.events, order, BOUNDS.block_size)
        self.events.clear()
        events, received = self.decoder.decode(data)
        for event in events:
            if isinstance(event, SlotAssignment):
                self.worker.assign(event)
            else:
                self.worker.observe(*event)
        self._compare(order, received)
        self.num_steps += 1
        output = self.worker.run(received, clock)
        reply = decode_reply(encode_reply(StepReply(output, clock.take())))
        assert reply.output is not None
        return reply.output

    def _compare(self, sent: StepOrder, received: StepOrder) -> None:
        assert received[1:] == sent[1:]
        rows = len(sent.inputs.last_rows)
        for name in ("input_ids", "positions", "last_rows", "ends"):
            assert torch.equal(getattr(received.inputs, name), getattr(sent.inputs, name)), name
        assert self.engine is not None
        mine, theirs = self.decoder.whole, self.engine.step_inputs
        for name in ("input_ids", "positions"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
        for name in ("seq_lens", "query_start_loc", "slot_mapping"):
            one, other = getattr(mine.attention, name), getattr(theirs.attention, name)
            assert torch.equal(one, other), name
        blocks = -(-sent.inputs.ends.numpy() // BOUNDS.block_size)
        for row in range(rows):
            one = received.inputs.attention.block_table[row, : blocks[row]]
            assert torch.equal(one, sent.inputs.attention.block_table[row, : blocks[row]])


def parts_of(runner: StepRunner) -> EngineParts:
    return assemble(
        runner,
        model_name="toy",
        model_config=toy_config(),
        tokenizer=None,
        eos_ids=(1,),
        config=BOUNDS,
    )


def worker_of(model: ToyModel) -> Worker:
    return Worker(model, BOUNDS, cache_layout(toy_config(), BOUNDS.block_size, torch.float32))


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_computes_from_messages_what_a_worker_does_here(seed: int) -> None:
    random = np.random.default_rng(seed)
    mirror = Mirror(worker_of(ToyModel()))
    far = mirror.engine = parts_of(mirror)
    near = toy_parts(
        ToyModel(), max_num_seqs=4, max_num_batched_tokens=16, num_blocks=64, block_size=4
    )
    results: list[list[object]] = []
    for parts in (far, near):
        random = np.random.default_rng(seed)
        requests = [
            submit(
                parts,
                random.integers(2, 60, int(random.integers(1, 30))).tolist(),
                max_tokens=int(random.integers(1, 20)),
                temperature=float(number % 2),
                seed=number,
                repetition_penalty=1.0 + 0.5 * (number % 3),
                logprobs=2 if number % 4 == 0 else None,
                prompt_logprobs=1 if number % 5 == 0 else None,
            )
            for number in range(9)
        ]
        outcomes = run(parts.core)
        results.append([(outcomes[r].deltas, outcomes[r].prompt_logprobs) for r in requests])
    assert _ids(results[0]) == _ids(results[1])
    assert mirror.num_steps > 10


def _ids(results: list[object]) -> list[object]:
    found: list[object] = []
    for deltas, prompt_logprobs in results:  # pyright: ignore[reportGeneralTypeIssues]
        found.append(
            (
                [token for delta in deltas for token in delta.token_ids],
                [entry for delta in deltas for entry in delta.logprobs or ()],
                prompt_logprobs,
            )
        )
    return found


class Replies(EngineEnd):
    """A channel whose ranks reply what a test says."""

    def __init__(self, *replies: StepReply | str) -> None:
        self.replies = replies

    def broadcast(self, order: bytes) -> None:
        pass

    def collect(self, timeout_s: float) -> list[bytes]:
        found: list[bytes] = []
        for reply in self.replies:
            if isinstance(reply, str):
                raise ChannelError(reply)
            found.append(encode_reply(reply))
        return found

    def fail(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


SECONDS = (0.0,) * len(StepPhase)


def step(*replies: StepReply | str, root_cause: Exception | None = None) -> StepOutput:
    return run_step(RankRunner(lambda: Replies(*replies), BOUNDS, lambda: None, lambda: root_cause))


def run_step(runner: RankRunner) -> StepOutput:
    runner.connect()
    engine = parts_of(runner)
    inputs = engine.step_inputs.first(1, 1)
    return runner.run(StepOrder(inputs, [0], None, []), StepClock())


def test_tokens_are_those_of_rank_0() -> None:
    output = StepOutput(None, [[]])
    assert step(StepReply(output, SECONDS), StepReply(None, SECONDS)) == output


def test_what_rank_0_has_run_is_shown_by_the_server() -> None:
    row = ExecutedSelection("an_op_of_ranks", "shm", 2, ())
    step(StepReply(StepOutput(None, []), SECONDS, selections=(row,)))
    assert row in ir.selections()


def test_what_torch_compiles_on_any_rank_is_counted_by_the_engine() -> None:
    runner = RankRunner(
        lambda: Replies(
            StepReply(StepOutput(None, []), SECONDS, num_compilations=1),
            StepReply(None, SECONDS, num_compilations=2),
        ),
        BOUNDS,
        lambda: None,
        lambda: None,
    )
    run_step(runner)
    assert runner.num_compilations == 3


def test_ranks_that_would_choose_other_tokens_end_the_engine() -> None:
    output = StepOutput(None, [])
    with pytest.raises(EngineDeadError, match=r"rank 0 chose \[5\], rank 2 \[6\]"):
        step(
            StepReply(output, SECONDS, [5]),
            StepReply(None, SECONDS, [5]),
            StepReply(None, SECONDS, [6]),
        )


def test_a_broken_channel_is_told_by_its_root_cause() -> None:
    root = EngineDeadError("rank 1 was killed by SIGKILL")
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        step("rank 1 has left", root_cause=root)
    with pytest.raises(EngineDeadError, match="rank 1 has left"):
        step("rank 1 has left")


def test_a_rank_0_without_an_outcome_is_no_silent_success() -> None:
    with pytest.raises(EngineDeadError, match="without its outcome"):
        step(StepReply(None, SECONDS))


def test_a_rank_that_fails_while_the_channel_opens_ends_the_start_at_once() -> None:
    root = EngineDeadError("rank 1 was killed by SIGKILL")
    never = threading.Event()

    def connect() -> EngineEnd:
        never.wait(60)
        return Replies()

    started = time.monotonic()
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        RankRunner(connect, BOUNDS, lambda: root, lambda: root).connect()
    never.set()
    assert time.monotonic() - started < 10


def test_a_channel_that_does_not_open_is_no_bare_error() -> None:
    def connect() -> EngineEnd:
        raise ChannelError("rank 1 did not open the segment")

    with pytest.raises(EngineDeadError, match="did not open the segment"):
        RankRunner(connect, BOUNDS, lambda: None, lambda: None).connect()
