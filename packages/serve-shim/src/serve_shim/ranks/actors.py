"""The actors in which ranks live, one in each bundle of a placement group."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serve_shim.errors import RanksError
from serve_shim.ranks.launch_environment import without_api_keys
from serve_shim.ranks.messages import Begin
from serve_shim.ranks.process_mark import ProcessMark
from serve_shim.ranks.rank_actor import CONTROL, WORK, RankActor
from serve_shim.ranks.rank_handle import RankHandle
from serve_shim.ranks.ray_words import first_words

_ray: Any = ray  # its annotations do not know all that `remote` takes


def start_actors(
    begin: Begin,
    group: PlacementGroup,
    per_rank: Mapping[str, float],
    directory: Path,
    mark: ProcessMark,
    timeout_s: float,
) -> list[RankHandle]:
    """Start an actor for each rank and wait until all have said where they are.

    Raises:
        RanksError: one did not start, or not in time.
    """
    options = begin.options
    common: dict[str, Any] = {
        "num_cpus": per_rank["CPU"],
        "num_gpus": per_rank.get("GPU", 0.0),
        "max_restarts": 0,
        "concurrency_groups": {WORK: 1, CONTROL: 1},
    }
    if options.ray_address is not None:  # ranks of a local Ray inherit their environment
        variables = {**without_api_keys(options.environment), **mark.environment}
        common["runtime_env"] = {"env_vars": variables}
    handles: list[RankHandle] = []
    for rank in range(options.num_ranks):
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
        actor_class = _ray.remote(**common, scheduling_strategy=strategy)(RankActor)
        actor = actor_class.remote(rank, options.num_ranks, str(directory), begin.working_directory)
        handles.append(RankHandle(rank, actor, directory))
    _settle(handles, mark, timeout_s)
    return handles


def _settle(handles: list[RankHandle], mark: ProcessMark, timeout_s: float) -> None:
    try:
        places = ray.get([handle.locate() for handle in handles], timeout=timeout_s)
    except GetTimeoutError:
        raise RanksError(
            f"the ranks had their places in Ray, but not all answered within {timeout_s:.0f} s"
        ) from None
    except RayError as error:
        raise RanksError(f"a rank did not start: {first_words(error)}") from error
    for handle, place in zip(handles, places, strict=True):
        handle.settle(place, mark)
