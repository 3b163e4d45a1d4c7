"""What the server and the supervisor of its ranks tell each other.

Arguments and results are pickled by the server and the ranks, and pass the supervisor as bytes.
"""

from dataclasses import dataclass

from serve_shim.ranks.launch_options import LaunchOptions, RankPlace


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message to the supervisor: start these ranks."""

    rank_class: str
    options: LaunchOptions
    num_cores: int
    working_directory: str


@dataclass(frozen=True, slots=True)
class CallRequest:
    """Call a method on these ranks; one that serves is not meant to end."""

    number: int
    method: str
    arguments: bytes
    phase: str
    timeout_s: float | None
    ranks: tuple[int, ...]
    is_serving: bool = False


@dataclass(frozen=True, slots=True)
class WatchClosely:
    """The ranks serve from now on: silence counts after `heartbeat_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Alive:
    """The supervisor's heartbeat."""


@dataclass(frozen=True, slots=True)
class Started:
    """All ranks are placed and constructed; places in order of ranks."""

    places: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class CannotStart:
    """There are no ranks, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the slowest rank of a call has come."""

    number: int
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Returned:
    """All ranks of a call have returned; pickled results in order of its ranks."""

    number: int
    results: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """The ranks have failed: the root cause in one line, and what else there is to log first.

    `rank` is -1 where it is no rank that failed.
    """

    rank: int
    phase: str
    message: str
    exit_code: int
    log: tuple[str, ...] = ()


FromSupervisor = Alive | Started | CannotStart | Progress | Returned | Failure
