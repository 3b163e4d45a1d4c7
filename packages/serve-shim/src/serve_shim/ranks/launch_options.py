"""What a group of ranks is asked to be, and where each rank came to be."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How many ranks, on which Ray, and how long they may take or be silent.

    `ray_address` is `HOST:PORT` of a cluster that this machine belongs to; None starts a local Ray
    that ends with the group. `environment` has variables for the ranks, on whatever machine.
    `heartbeat_timeout_s` counts from when an answer was due, once the ranks serve.
    `start_timeout_s` is for all ranks to be placed and constructed.

    Raises:
        ValueError: a number that makes no sense.
    """

    num_ranks: int
    ray_address: str | None = None
    allow_insecure_ray: bool = False
    gpus_per_rank: int = 0
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    heartbeat_timeout_s: float = 10.0
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or self.gpus_per_rank < 0:
            raise ValueError(
                f"wants at least one rank and no negative number of GPUs, not "
                f"num_ranks={self.num_ranks}, gpus_per_rank={self.gpus_per_rank}"
            )
        if min(self.heartbeat_timeout_s, self.start_timeout_s) <= 0:
            raise ValueError(
                f"wants times above 0 s, not heartbeat_timeout_s={self.heartbeat_timeout_s}, "
                f"start_timeout_s={self.start_timeout_s}"
            )


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank lives; `num_cores` may be used by it and the other ranks of its node."""

    rank: int
    pid: int
    node_id: str
    node_ip: str
    hostname: str
    num_cores: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid}, node {self.node_ip})"
