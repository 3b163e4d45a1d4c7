"""A process at one end of a channel: `channel_end.py engine|RANK NAME NUM_RANKS`.

A rank echoes each order; `kill` and `stop` are signals that it sends itself instead. An engine
broadcasts one order, collects the replies, says so, and sleeps.
"""

import os
import signal
import sys
import time

from serve_shim.ranks.shm_channel import ShmEngineEnd, ShmRankEnd

_SIGNALS = {b"kill": signal.SIGKILL, b"stop": signal.SIGSTOP}


def be_rank(name: str, rank: int, num_ranks: int) -> None:
    """Echo orders until the engine is gone."""
    end = ShmRankEnd(name, rank, num_ranks, open_timeout_s=60.0)
    while True:
        order = end.receive()
        if order in _SIGNALS:
            os.kill(os.getpid(), _SIGNALS[order])
        end.reply(order)


def be_engine(name: str, num_ranks: int) -> None:
    """One order, and no further one."""
    end = ShmEngineEnd(name, num_ranks, open_timeout_s=60.0)
    end.broadcast(b"order")
    end.collect(60.0)
    print("collected", flush=True)
    time.sleep(100.0)


if __name__ == "__main__":
    part, its_name, number = sys.argv[1:]
    if part == "engine":
        be_engine(its_name, int(number))
    else:
        be_rank(its_name, int(part), int(number))
