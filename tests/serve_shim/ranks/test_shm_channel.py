"""The channel over shared memory: ranks on threads, and processes where one must die or stop."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from ir_kernels import library
from ir_kernels.all_reduce.segment import Segment, new_name, open_segment
from serve_shim.ranks.channel import ChannelError, EngineEnd, RankEnd
from serve_shim.ranks.shm_channel import ShmEngineEnd, ShmRankEnd
from serve_shim.ranks.shm_frames import MOST_BYTES

from . import channel_end

pytestmark = pytest.mark.skipif(not library.availability()[0], reason="no compiled library")

DIRECTORY = Path("/dev/shm")  # noqa: S108
OPEN_TIMEOUT_S = 60.0
TIMEOUT_S = 20.0
ENDS_WITHIN_S = 1.0
MEGABYTES_3 = 3 * 1024 * 1024

Answer = Callable[[int, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Channel:
    """The engine and two ranks, whose calls are made on threads of `pool`."""

    engine: ShmEngineEnd
    ranks: list[ShmRankEnd]
    pool: ThreadPoolExecutor

    def answer(self, answer: Answer, num_orders: int = 1) -> None:
        def serve(rank: int) -> None:
            for _ in range(num_orders):
                self.ranks[rank].reply(answer(rank, self.ranks[rank].receive()))

        for rank in range(2):
            self.pool.submit(serve, rank)

    def ask(self, order: bytes) -> list[bytes]:
        self.engine.broadcast(order)
        return self.engine.collect(TIMEOUT_S)

    def waiting_ranks(self) -> list[Future[bytes]]:
        waits = [self.pool.submit(rank.receive) for rank in self.ranks]
        time.sleep(0.1)
        return waits


@contextmanager
def open_channel(name: str = "") -> Generator[Channel]:
    name = name or new_name()
    with ThreadPoolExecutor(3) as pool:
        opening = [
            pool.submit(ShmRankEnd, name, rank, 2, open_timeout_s=TIMEOUT_S) for rank in range(2)
        ]
        engine = ShmEngineEnd(name, 2, open_timeout_s=TIMEOUT_S)
        channel = Channel(engine, [each.result() for each in opening], pool)
        try:
            yield channel
        finally:
            for end in (engine, *channel.ranks):
                end.close()


@contextmanager
def process(part: str, name: str, num_ranks: int) -> Generator[subprocess.Popen[str]]:
    arguments = [sys.executable, channel_end.__file__, part, name, str(num_ranks)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def echo(rank: int, order: bytes) -> bytes:
    return order


def error_of(wait: Future[bytes]) -> str:
    error = wait.exception(timeout=TIMEOUT_S)
    assert isinstance(error, ChannelError)
    return str(error)


def test_both_ends_are_what_engine_and_rank_ask_for() -> None:
    with open_channel() as channel:
        engine: EngineEnd = channel.engine
        rank: RankEnd = channel.ranks[0]
        channel.answer(echo)
        engine.broadcast(b"order")
        assert engine.collect(TIMEOUT_S) == [b"order", b"order"]
        assert rank is channel.ranks[0]


@pytest.mark.parametrize(
    "num_bytes", [0, 1, MOST_BYTES - 1, MOST_BYTES, MOST_BYTES + 1, 2 * MOST_BYTES, MEGABYTES_3]
)
def test_orders_and_replies_of_any_length_arrive_whole(num_bytes: int) -> None:
    order = random.Random(num_bytes).randbytes(num_bytes)
    with open_channel() as channel:
        channel.answer(lambda rank, order: order[::-1] + bytes([rank]), num_orders=2)
        expected = [order[::-1] + bytes([rank]) for rank in range(2)]
        assert [channel.ask(order), channel.ask(order)] == [expected, expected]


@pytest.mark.parametrize("lengths", [(0, MEGABYTES_3), (2 * MOST_BYTES + 1, 1), (1, MOST_BYTES)])
def test_ranks_reply_at_different_lengths(lengths: tuple[int, int]) -> None:
    with open_channel() as channel:
        # One more than comes: a rank that has replied helps the others' on by waiting.
        channel.answer(lambda rank, order: order * lengths[rank], num_orders=3)
        for order in (b"a", b"b"):
            assert channel.ask(order) == [order * length for length in lengths]


def test_ten_thousand_steps_of_random_lengths_keep_their_content() -> None:
    source = random.Random(0)
    bytes_of = memoryview(source.randbytes(4 * MOST_BYTES))
    with open_channel() as channel:
        channel.answer(lambda rank, order: order[rank:], num_orders=10_000)
        for step in range(10_000):
            most = 3 * MOST_BYTES if step % 500 == 0 else 3000
            begin = source.randrange(MOST_BYTES)
            order = bytes(bytes_of[begin : begin + source.randrange(most)])
            assert channel.ask(order) == [order, order[1:]], step


def test_a_killed_engine_ends_the_ranks_wait() -> None:
    name = new_name()
    with process("engine", name, 2) as engine, ThreadPoolExecutor(2) as pool:
        opening = [
            pool.submit(ShmRankEnd, name, rank, 2, open_timeout_s=OPEN_TIMEOUT_S)
            for rank in range(2)
        ]
        ranks = [each.result() for each in opening]
        for rank in ranks:
            rank.reply(rank.receive())
        assert engine.stdout is not None
        assert engine.stdout.readline() == "collected\n"
        waits = [pool.submit(rank.receive) for rank in ranks]
        time.sleep(0.1)
        engine.kill()
        begin = time.monotonic()
        assert all("the engine has died" in error_of(wait) for wait in waits)
        assert time.monotonic() - begin < ENDS_WITHIN_S
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize(
    ("order", "reason", "least_s"),
    [(b"kill", "rank 1 has died", 0.0), (b"stop", "rank 1 did not reply within 0.7 s", 0.7)],
    ids=["killed", "stopped"],
)
def test_a_rank_that_is_lost_in_a_step_is_named(order: bytes, reason: str, least_s: float) -> None:
    name = new_name()
    with process("1", name, 2), ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ShmRankEnd, name, 0, 2, open_timeout_s=OPEN_TIMEOUT_S)
        engine = ShmEngineEnd(name, 2, open_timeout_s=OPEN_TIMEOUT_S)
        rank = opening.result()
        engine.broadcast(b"order")
        rank.reply(rank.receive())
        assert engine.collect(TIMEOUT_S) == [b"order", b"order"]
        engine.broadcast(order)
        rank.reply(rank.receive())
        waiting = pool.submit(rank.receive)
        begin = time.monotonic()
        with pytest.raises(ChannelError, match=reason):
            engine.collect(0.7 if order == b"stop" else TIMEOUT_S)
        assert least_s <= time.monotonic() - begin < least_s + ENDS_WITHIN_S
        assert reason in error_of(waiting)
        for end in (engine, rank):
            end.close()


def test_a_rank_that_dies_is_named_though_another_is_what_the_engine_waits_for() -> None:
    name = new_name()
    with process("1", name, 2), ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ShmRankEnd, name, 0, 2, open_timeout_s=OPEN_TIMEOUT_S)
        engine = ShmEngineEnd(name, 2, open_timeout_s=OPEN_TIMEOUT_S)
        rank = opening.result()
        engine.broadcast(b"kill")
        begin = time.monotonic()
        with pytest.raises(ChannelError, match="rank 1 has died"):
            engine.collect(TIMEOUT_S)  # rank 0 has not replied either
        assert time.monotonic() - begin < ENDS_WITHIN_S
        for end in (engine, rank):
            end.close()


def test_failing_ends_engine_and_ranks_at_once_with_the_reason() -> None:
    with open_channel() as channel:
        channel.engine.broadcast(b"to nobody who replies")
        for rank in channel.ranks:
            rank.receive()
        collecting = channel.pool.submit(channel.engine.collect, TIMEOUT_S)
        time.sleep(0.1)
        begin = time.monotonic()
        channel.engine.fail("the model is on fire")
        error = collecting.exception(timeout=TIMEOUT_S)
        assert time.monotonic() - begin < ENDS_WITHIN_S
        words = "the channel is broken: the model is on fire (told by the engine)"
        assert str(error) == words
        with pytest.raises(ChannelError, match="the model is on fire"):
            channel.ranks[0].reply(b"late")


@pytest.mark.parametrize("end", ["fail", "close"])
def test_ranks_that_wait_for_an_order_end_with_the_engine(end: str) -> None:
    with open_channel() as channel:
        waits = channel.waiting_ranks()
        begin = time.monotonic()
        channel.engine.fail("enough") if end == "fail" else channel.engine.close()
        reason = "enough" if end == "fail" else "the engine has left"
        assert all(reason in error_of(wait) for wait in waits)
        assert time.monotonic() - begin < ENDS_WITHIN_S


def test_every_call_after_a_failure_tells_it() -> None:
    with open_channel() as channel:
        channel.engine.broadcast(b"order")
        with pytest.raises(ChannelError, match=r"rank 0 and rank 1 did not reply within 0\.05"):
            channel.engine.collect(0.05)
        calls = [lambda: channel.engine.broadcast(b"next"), *(r.receive for r in channel.ranks)]
        for call in calls:
            with pytest.raises(ChannelError, match="rank 0 and rank 1 did not reply"):
                call()


def test_ranks_may_leave_after_their_last_reply() -> None:
    with open_channel() as channel:
        channel.engine.broadcast(b"stop")
        for rank in reversed(channel.ranks):
            rank.reply(rank.receive())
            rank.close()
        assert channel.engine.collect(TIMEOUT_S) == [b"stop", b"stop"]


def test_calls_out_of_turn_are_errors_and_break_nothing() -> None:
    with open_channel() as channel:
        engine, rank = channel.engine, channel.ranks[0]
        with pytest.raises(ChannelError, match="No order to collect replies to"):
            engine.collect(TIMEOUT_S)
        with pytest.raises(ChannelError, match="No order to reply to"):
            rank.reply(b"")
        engine.broadcast(b"order")
        with pytest.raises(ChannelError, match="An order before the replies to the last"):
            engine.broadcast(b"order")
        rank.receive()
        with pytest.raises(ChannelError, match="The last order has no reply"):
            rank.receive()
        rank.reply(b"0")
        channel.ranks[1].receive()
        channel.ranks[1].reply(b"1")
        assert engine.collect(TIMEOUT_S) == [b"0", b"1"]


def test_closing_is_for_good_and_may_be_repeated() -> None:
    with open_channel() as channel:
        for end in (channel.engine, channel.ranks[0]):
            end.close()
            end.close()
        channel.engine.fail("nobody hears this")
        with pytest.raises(ChannelError, match="is closed"):
            channel.engine.broadcast(b"order")
        with pytest.raises(ChannelError, match="is closed"):
            channel.ranks[0].receive()


def test_what_is_no_frame_breaks_the_channel() -> None:
    name = new_name()

    def impostor() -> Segment:
        return open_segment(name, "channel", 1, 2, open_timeout_s=TIMEOUT_S, has_engine=True)

    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(impostor)
        rank = ShmRankEnd(name, 0, 1, open_timeout_s=TIMEOUT_S)
        segment = opening.result()
        segment.post(bytearray(b"?"))
        for words in ("a frame of kind 0 came where ORDER or MORE was due", "is broken"):
            with pytest.raises(ChannelError, match=words):
                rank.receive()
        segment.close()
        rank.close()


def test_signal_handlers_run_while_the_engine_collects() -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise InterruptedError(number)

    with open_channel() as channel, ExitStack() as stack:
        waits = channel.waiting_ranks()
        stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        channel.engine.broadcast(b"order")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptedError):
            channel.engine.collect(TIMEOUT_S)
        assert [wait.result(TIMEOUT_S) for wait in waits] == [b"order"] * 2
        with pytest.raises(ChannelError, match="gave up while it collected replies"):
            channel.ranks[0].reply(b"to nobody")


def test_waiting_for_an_order_costs_no_cpu_time() -> None:
    with open_channel() as channel:
        channel.waiting_ranks()
        begin = time.process_time()
        time.sleep(2.0)
        assert time.process_time() - begin < 0.1  # of 4 s that the two ranks waited


def test_no_name_is_left_once_all_have_opened() -> None:
    name = new_name()
    with open_channel(name):
        assert not (DIRECTORY / name[1:]).exists()


def test_an_end_without_the_others_says_who_is_missing_and_leaves_no_name() -> None:
    name = new_name()
    with pytest.raises(ChannelError, match="2 ranks, rank 0: rank 1 did not open the segment"):
        ShmRankEnd(name, 0, 2, open_timeout_s=0.1)
    with pytest.raises(ChannelError, match="2 ranks, the engine: rank 0 did not make the segment"):
        ShmEngineEnd(name, 2, open_timeout_s=0.1)
    assert not (DIRECTORY / name[1:]).exists()


def test_without_the_compiled_library_there_is_no_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "availability", lambda: (False, "no compiler"))
    with pytest.raises(ChannelError, match="needs ir-kernels: no compiler"):
        ShmEngineEnd(new_name(), 2, open_timeout_s=0.1)
