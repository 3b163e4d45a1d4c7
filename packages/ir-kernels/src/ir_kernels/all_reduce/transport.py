"""Whether a provider reaches the other ranks of an axis, and the error for when it then fails."""

from collections.abc import Generator
from contextlib import contextmanager

from torch import Tensor, dtype

from ir_core import groups
from ir_core.groups import CollectiveError
from ir_kernels import arguments

MOST_DIMS = 8


def refusal(
    x: Tensor,
    axis: str,
    provider: str,
    device: str,
    dtypes: tuple[dtype, ...] = arguments.FLOATS,
) -> str:
    """Why a provider has no part in this collective, asked of an argument view; "" if it has."""
    group = groups.get_group(axis)
    if group.size == 1:
        return f"is for several ranks, and axis `{axis}` has one"
    if provider not in group.transports:
        return f"the group of axis `{axis}` has no transport `{provider}`"
    if not 1 <= x.ndim <= MOST_DIMS:
        return f"takes 1 to {MOST_DIMS} dims; x has {x.ndim}"
    return arguments.activation(x, device, dtypes)


@contextmanager
def failures(op: str, provider: str, axis: str) -> Generator[None]:
    """Turn what a transport raises into a CollectiveError that names op, provider, axis, rank."""
    try:
        yield
    except RuntimeError as error:
        group = groups.get_group(axis)
        raise CollectiveError(
            f"`{op}` by {provider} over axis `{axis}`, rank {group.rank} of {group.size}, timeout "
            f"{group.timeout_s:g} s: {error}"
        ) from error


def segment_of(axis: str) -> int:
    """The handle of an axis' shared-memory segment.

    Raises:
        GroupError: the group has none.
    """
    handle: int = groups.get_group(axis).transport("shm").handle
    return handle
