"""Owns the engine's side of a step that ranks compute: one order to all, one reply from each."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import ir_core as ir
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_order import SlotAssignment, StepOrder, StepOutput
from serve_shim.errors import EngineDeadError
from serve_shim.ranks.channel import ChannelError, EngineEnd
from serve_shim.ranks.step_message import Event, StepReply, decode_reply, encode_order

_LOOK_S = 0.1


class RankRunner:
    """A `StepRunner` whose workers are ranks at the other end of a channel.

    Rank 0 samples. Every rank has the same next inputs, the engine's, whatever it computed.
    `failure` tells why a rank failed, if one has; `root_cause` waits a moment for that.
    `num_compilations` is what torch compiled on all ranks since they serve, as of the last step.
    """

    def __init__(
        self,
        connect: Callable[[], EngineEnd],
        config: EngineConfig,
        failure: Callable[[], Exception | None],
        root_cause: Callable[[], Exception | None],
    ) -> None:
        self._connect = connect
        self._channel: EngineEnd | None = None
        self._block_size = config.block_size
        self._timeout_s = config.watchdog_timeout_s
        self._failure = failure
        self._root_cause = root_cause
        self._events: list[Event] = []
        self.num_compilations = 0

    def connect(self) -> None:
        """Open the channel; the ranks must be about to. Raises the root cause if one fails."""
        opened: Future[EngineEnd] = Future()
        # On a thread of its own: it waits for ranks that may have ended.
        threading.Thread(target=_settle, args=(opened, self._connect), daemon=True).start()
        while True:
            try:
                self._channel = opened.result(_LOOK_S)
                return
            except TimeoutError:
                if (failure := self._failure()) is not None:
                    raise failure from None
            except ChannelError as error:
                raise (self._root_cause() or EngineDeadError(str(error))) from error

    def fail(self, reason: str) -> None:
        """End a step in progress; safe from any thread."""
        if self._channel is not None:
            self._channel.fail(reason)

    def close(self) -> None:
        """Leave the channel, which ends the ranks' work."""
        if self._channel is not None:
            self._channel.close()

    def assign(self, assignment: SlotAssignment) -> None:
        """Tell the ranks of a slot's new owner with the next step."""
        self._events.append(assignment)

    def observe(self, slot: int, token_id: int) -> None:
        """Tell the ranks of a slot's token with the next step."""
        self._events.append((slot, token_id))

    def run(self, order: StepOrder, clock: StepClock) -> StepOutput:
        """Compute a step. Raises `EngineDeadError`, or the root cause, when a rank cannot."""
        if self._channel is None:
            raise EngineDeadError("a step before the ranks serve")
        data = encode_order(self._events, order, self._block_size)
        self._events.clear()
        try:
            self._channel.broadcast(data)
            replies = [decode_reply(each) for each in self._channel.collect(self._timeout_s)]
        except ChannelError as error:
            raise (self._root_cause() or EngineDeadError(str(error))) from error
        first = replies[0]
        self.num_compilations = sum(reply.num_compilations for reply in replies)
        clock.spend(first.seconds, others=StepPhase.INPUTS)
        if first.output is None:
            raise EngineDeadError("rank 0 replied to a step without its outcome")
        if first.selections:
            # So that whoever asks this process what has run is told.
            ir.registry().log.adopt(first.selections)
        _check_agreement(replies)
        return first.output


def _settle(opened: "Future[EngineEnd]", connect: Callable[[], EngineEnd]) -> None:
    try:
        opened.set_result(connect())
    except BaseException as error:
        opened.set_exception(error)


def _check_agreement(replies: list[StepReply]) -> None:
    """Raise `EngineDeadError` where ranks that were asked would have chosen other tokens."""
    wanted = replies[0].token_ids
    for rank, reply in enumerate(replies):
        if reply.token_ids != wanted:
            raise EngineDeadError(
                f"ranks disagree about the tokens of a step: rank 0 chose {wanted}, rank {rank} "
                f"{reply.token_ids}. Their logits differ: compare the kernels that each selected."
            )
