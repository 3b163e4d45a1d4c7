"""Messages over a segment, with threads of one process for two ranks and their engine."""

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch

from ir_core.groups import GroupError
from ir_kernels.all_reduce.segment import Segment, new_name, open_segment
from ir_kernels.library import kernels

pytestmark = pytest.mark.usefixtures("compiled")

SLOT_BYTES = 4096
ENGINE = 2
FOREVER = float("inf")


@contextmanager
def participants() -> Generator[list[Segment]]:
    """Rank 0, rank 1, and the engine."""
    name = new_name()

    def opened(index: int) -> Segment:
        return open_segment(
            name, "a", index, 3, slot_bytes=SLOT_BYTES, open_timeout_s=20.0, has_engine=True
        )

    with ThreadPoolExecutor(3) as pool:
        segments = list(pool.map(opened, range(3)))
    try:
        yield segments
    finally:
        for segment in segments:
            segment.close()


@pytest.mark.parametrize("num_bytes", [1, SLOT_BYTES - 1, SLOT_BYTES])
def test_every_rank_gets_the_bytes_of_the_engine(num_bytes: int) -> None:
    message = torch.arange(num_bytes).to(torch.uint8).numpy().tobytes()
    with participants() as (*ranks, engine):
        engine.post(bytearray(message))
        got = [rank.receive(ENGINE, ENGINE + 1, 1.0) for rank in ranks]
        assert got == [[message], [message]]


def test_the_engine_gets_the_messages_of_all_ranks_in_their_order() -> None:
    with participants() as (*ranks, engine):
        for rank in (1, 0):
            ranks[rank].post(bytearray([rank] * (rank + 3)))
        assert engine.receive(0, ENGINE, 1.0) == [bytes(3), bytes([1] * 4)]


def test_two_messages_may_be_posted_before_anyone_receives() -> None:
    with participants() as (rank, _, engine):
        for text in (b"first", b"second"):
            engine.post(bytearray(text))
        got = [rank.receive(ENGINE, ENGINE + 1, 1.0)[0].tobytes() for _ in range(2)]
        assert got == [b"first", b"second"]


def test_what_was_received_outlives_its_slot() -> None:
    with participants() as (rank, _, engine):
        engine.post(bytearray(b"old"))
        [kept] = rank.receive(ENGINE, ENGINE + 1, 1.0)
        for _ in range(2):
            engine.post(bytearray(b"new"))
            rank.receive(ENGINE, ENGINE + 1, 1.0)
        assert kept == b"old"


def test_many_messages_keep_their_order_and_content() -> None:
    with participants() as (*ranks, engine), ThreadPoolExecutor(2) as pool:

        def echo(rank: Segment) -> None:
            for _ in range(2000):
                [message] = rank.receive(ENGINE, ENGINE + 1, 20.0)
                rank.post(bytearray(message))

        echoes = [pool.submit(echo, rank) for rank in ranks]
        for number in range(2000):
            message = number.to_bytes(4, "big") * (number % 1000 + 1)
            engine.post(bytearray(message))
            assert engine.receive(0, ENGINE, 20.0, late="is late") == [message] * 2
        for each in echoes:
            each.result(timeout=20)


def test_a_message_larger_than_a_slot_is_refused_and_the_segment_goes_on() -> None:
    with participants() as (rank, _, engine):
        with pytest.raises(GroupError, match="4097 bytes does not fit in a slot of 4096"):
            engine.post(bytearray(SLOT_BYTES + 1))
        engine.post(bytearray(b"a"))
        assert rank.receive(ENGINE, ENGINE + 1, 1.0) == [b"a"]


@pytest.mark.parametrize("message", [torch.zeros(2), torch.zeros(2, 2, dtype=torch.uint8)])
def test_messages_are_rows_of_bytes(message: torch.Tensor) -> None:
    with (
        participants() as (_, _, engine),
        pytest.raises(RuntimeError, match="`message` must be a contiguous row of uint8"),
    ):
        kernels.shm_post.default(engine.handle, message)


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (2, 1), (0, 4)])
def test_a_wait_for_ranks_that_are_none_is_refused(first: int, last: int) -> None:
    with (
        participants() as (rank, _, _),
        pytest.raises(GroupError, match=f"a wait for ranks {first} to before {last}"),
    ):
        rank.receive(first, last, 1.0)


def test_nothing_comes_of_a_wait_that_may_end_early_and_the_message_is_not_lost() -> None:
    with participants() as (*ranks, engine):
        ranks[0].post(bytearray(b"a"))
        assert engine.receive(0, ENGINE, 0.01) == []
        ranks[1].post(bytearray(b"b"))
        assert engine.receive(0, ENGINE, 1.0) == [b"a", b"b"]


def test_all_that_are_late_are_named_and_everyone_learns_it() -> None:
    with participants() as (*ranks, engine):
        reason = "the channel is broken: rank 0 and rank 1 did not reply .told by the engine"
        with pytest.raises(GroupError, match=reason):
            engine.receive(0, ENGINE, 0.05, late="did not reply")
        for rank in ranks:
            with pytest.raises(GroupError, match=reason):
                rank.receive(ENGINE, ENGINE + 1, FOREVER)
            with pytest.raises(GroupError, match=reason):
                rank.post(bytearray(b"a"))


def test_a_rank_that_has_left_is_named_though_another_is_waited_for() -> None:
    with participants() as (_, rank, engine):
        rank.close()
        with pytest.raises(GroupError, match="rank 1 has left"):
            engine.receive(0, ENGINE, FOREVER)


def test_what_was_posted_before_leaving_counts() -> None:
    with participants() as (*ranks, engine):
        for rank in ranks:
            rank.post(bytearray(b"last"))
            rank.close()
        assert engine.receive(0, ENGINE, 1.0) == [b"last", b"last"]


def test_the_engine_is_called_so_when_it_has_left() -> None:
    with participants() as (rank, _, engine):
        engine.close()
        with pytest.raises(GroupError, match="the engine has left"):
            rank.receive(ENGINE, ENGINE + 1, FOREVER)


def test_a_break_ends_all_waits_at_once_and_its_first_reason_stays() -> None:
    with participants() as (*ranks, engine), ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(rank.receive, ENGINE, ENGINE + 1, FOREVER) for rank in ranks]
        waits.append(pool.submit(engine.receive, 0, ENGINE, FOREVER))
        time.sleep(0.1)
        begin = time.monotonic()
        engine.break_off("the first")
        engine.break_off("the second")
        errors = [wait.exception(timeout=10) for wait in waits]
        assert time.monotonic() - begin < 1
        assert {str(error) for error in errors} == {
            "the channel is broken: the first (told by the engine)"
        }


def test_a_long_reason_is_cut_between_characters() -> None:
    with participants() as (rank, _, engine):
        engine.break_off("x" + "\u00e9" * 1000)
        with pytest.raises(GroupError, match=r"x\u00e9{400,} \(told by the engine\)"):
            rank.receive(ENGINE, ENGINE + 1, FOREVER)


def test_a_wait_leaves_other_threads_running() -> None:
    with participants() as (rank, _, engine), ThreadPoolExecutor(1) as pool:
        wait = pool.submit(rank.receive, ENGINE, ENGINE + 1, FOREVER)
        time.sleep(0.05)
        engine.post(bytearray(b"a"))  # by this thread, which the wait would stop
        assert wait.result(timeout=10) == [b"a"]


def test_a_closed_segment_takes_no_messages() -> None:
    with participants() as (rank, _, _):
        rank.close()
        for call in (lambda: rank.post(bytearray(b"a")), lambda: rank.receive(0, 1, 1.0)):
            with pytest.raises(GroupError, match="is closed"):
                call()


def test_who_did_not_open_the_segment_is_told_by_its_part() -> None:
    with ThreadPoolExecutor(2) as pool:
        name = new_name()
        waits = [
            pool.submit(open_segment, name, "a", rank, 3, open_timeout_s=0.2, has_engine=True)
            for rank in range(2)
        ]
        for rank, wait in enumerate(waits):
            words = f"the channel of the engine and 2 ranks, rank {rank}: the engine did not open"
            assert words in str(wait.exception(timeout=10))
