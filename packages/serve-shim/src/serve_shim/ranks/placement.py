"""A place in Ray for each rank: what ranks ask for, and what is said when Ray has not got it."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from serve_shim.errors import RanksError

# A node that is joining is not in the books yet.
_INFEASIBLE_AFTER_S = 5.0
_PERIOD_S = 0.2
_KINDS = ("CPU", "GPU")
_FINEST = 10_000  # parts of a core that Ray counts in


def rank_resources(num_ranks: int, gpus_per_rank: int, num_cores: int | None) -> dict[str, float]:
    """What one rank asks of Ray: a core and its GPUs.

    Where the ranks are more than the `num_cores` of the only machine, they share them; None is a
    cluster, in which each rank has a core.
    """
    cores = 1.0
    if num_cores is not None and num_ranks > num_cores:
        cores = num_cores * _FINEST // num_ranks / _FINEST
    return {"CPU": cores, "GPU": float(gpus_per_rank)} if gpus_per_rank else {"CPU": cores}


def place_ranks(num_ranks: int, per_rank: Mapping[str, float], timeout_s: float) -> PlacementGroup:
    """Reserve `per_rank` for each rank, on as few nodes as possible.

    Raises:
        RanksError: Ray has not got them, or they were not free in time; it says what was needed,
            what there is and what is free.
    """
    bundles = [dict(per_rank) for _ in range(num_ranks)]
    group = placement_group(bundles, strategy="PACK")
    ready = group.ready()
    start = time.monotonic()
    while not ray.wait([ready], timeout=_PERIOD_S)[0]:
        waited = time.monotonic() - start
        lacks = _num_that_fit(per_rank, _nodes()) < num_ranks
        if waited > timeout_s or (lacks and waited > _INFEASIBLE_AFTER_S):
            words = "Ray has not got" if lacks else f"after {waited:.0f} s others still use"
            reason = f"{words} what {num_ranks} ranks need: {_figures(num_ranks, per_rank)}"
            remove_placement_group(group)
            raise RanksError(reason)
    return group


def _figures(num_ranks: int, per_rank: Mapping[str, float]) -> str:
    nodes = _nodes()
    return (
        f"needed {num_ranks} times {_counts(per_rank)}; there is {_counts(_sum(nodes))} on "
        f"{len(nodes)} node{'s' * (len(nodes) != 1)}, of which {_counts(ray.available_resources())}"
        " is free. Start fewer ranks, or add nodes"
    )


def _num_that_fit(per_rank: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many ranks all nodes would hold if they were empty."""
    return sum(
        min(math.floor(node.get(kind, 0.0) / each + 1e-6) for kind, each in per_rank.items())
        for node in nodes
    )


def _nodes() -> list[dict[str, float]]:
    nodes: list[dict[str, Any]] = ray.nodes()
    return [node["Resources"] for node in nodes if node["Alive"]]


def _sum(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in _KINDS}


def _counts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(kind, 0.0):g} {kind}" for kind in _KINDS)
