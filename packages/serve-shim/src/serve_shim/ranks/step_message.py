"""Owns how a step travels from the engine to a rank, and its outcome back, as bytes.

Both ends are processes of one server, so what is read may be a pickle. Only the part of the step
memory that a step fills is sent; the rank pads it as the engine does.
"""

import pickle
from typing import NamedTuple

import numpy as np

from ir_core.selection import ExecutedSelection
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.step_memory import StepInputs, StepMemory
from serve_shim.engine.step_order import PromptRows, SlotAssignment, StepOrder, StepOutput

Event = SlotAssignment | tuple[int, int]
"""What happened to a slot since the step before: a new owner, or a token that it was given."""


class StepReply(NamedTuple):
    """What a rank says of a step.

    `output` is the sampling rank's, `seconds` its time by phase, `selections` all that it has
    executed, once there is something new among it; `token_ids` are what this rank would have
    chosen, where tokens are compared; `num_compilations` is what torch
    compiled on it since it serves.
    """

    output: StepOutput | None
    seconds: tuple[float, ...]
    token_ids: list[int] | None = None
    selections: tuple[ExecutedSelection, ...] = ()
    num_compilations: int = 0


class _Arrays(NamedTuple):
    """The leading part of a step's memory, each array as its bytes."""

    num_rows: int
    num_tokens: int
    num_blocks: int
    ids: bytes
    positions: bytes
    mapping: bytes
    lengths: bytes
    starts: bytes
    last_rows: bytes
    ends: bytes
    blocks: bytes


class _Message(NamedTuple):
    events: list[Event]
    arrays: _Arrays
    slots: list[int]
    rows: list[int] | None
    prompts: list[PromptRows]


def encode_order(events: list[Event], order: StepOrder, block_size: int) -> bytes:
    """A step, and what happened to slots before it."""
    arrays = _arrays_of(order.inputs, block_size)
    message = _Message(events, arrays, order.slots, order.rows, order.prompts)
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def encode_reply(reply: StepReply) -> bytes:
    """What a rank says of a step."""
    return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)


def decode_reply(data: bytes) -> StepReply:
    """The inverse of `encode_reply`."""
    return pickle.loads(data)  # noqa: S301 - from a rank of this server


class OrderDecoder:
    """Writes steps into memory of its own: that of one rank."""

    def __init__(self, config: EngineConfig) -> None:
        self._memory = StepMemory(config)

    @property
    def whole(self) -> StepInputs:
        """All of the memory, of which every step is the first part, padding after it."""
        return self._memory.whole

    def decode(self, data: bytes) -> tuple[list[Event], StepOrder]:
        """What happened to slots, then the step; its inputs are valid until the next call."""
        message: _Message = pickle.loads(data)  # noqa: S301 - from the engine of this server
        inputs = self._write(message.arrays)
        return message.events, StepOrder(inputs, message.slots, message.rows, message.prompts)

    def _write(self, arrays: _Arrays) -> StepInputs:
        host, num_rows, num_tokens = self._memory.host, arrays.num_rows, arrays.num_tokens
        host.ids[:num_tokens] = np.frombuffer(arrays.ids, np.int64)
        host.positions[:num_tokens] = np.frombuffer(arrays.positions, np.int64)
        host.mapping[:num_tokens] = np.frombuffer(arrays.mapping, np.int64)
        host.lengths[:num_rows] = np.frombuffer(arrays.lengths, np.int32)
        host.starts[: num_rows + 1] = np.frombuffer(arrays.starts, np.int32)
        host.starts[num_rows + 1 :] = num_tokens
        host.last_rows[:num_rows] = np.frombuffer(arrays.last_rows, np.int64)
        host.ends[:num_rows] = np.frombuffer(arrays.ends, np.int64)
        blocks = np.frombuffer(arrays.blocks, np.int32).reshape(num_rows, arrays.num_blocks)
        host.blocks[:num_rows, : arrays.num_blocks] = blocks
        return self._memory.finish(num_rows, num_tokens)


def _arrays_of(inputs: StepInputs, block_size: int) -> _Arrays:
    attention = inputs.attention
    num_rows = len(attention.seq_lens)
    num_blocks = -(-int(inputs.ends.max()) // block_size)  # nothing beyond is ever read
    return _Arrays(
        num_rows=num_rows,
        num_tokens=len(inputs.input_ids),
        num_blocks=num_blocks,
        ids=inputs.input_ids.numpy().tobytes(),
        positions=inputs.positions.numpy().tobytes(),
        mapping=attention.slot_mapping.numpy().tobytes(),
        lengths=attention.seq_lens.numpy().tobytes(),
        starts=attention.query_start_loc.numpy().tobytes(),
        last_rows=inputs.last_rows.numpy().tobytes(),
        ends=inputs.ends.numpy().tobytes(),
        blocks=attention.block_table[:, :num_blocks].numpy().tobytes(),
    )
