"""The token counts that are captured: chosen, or checked if they were given. Captures nothing."""

from __future__ import annotations

from ir_passes.config import CompilationConfig
from ir_passes.errors import CaptureError

_SMALL = (1, 2, 4)
_STEP = 8


def automatic_sizes(largest: int) -> tuple[int, ...]:
    """1, 2, 4, then multiples of 8, none above `largest`: at most seven rows of padding."""
    return tuple(each for each in (*_SMALL, *range(_STEP, largest + 1, _STEP)) if each <= largest)


def capture_sizes(config: CompilationConfig, *, limit: int, largest: int) -> tuple[int, ...]:
    """The token counts to capture, ascending.

    Args:
        limit: the most tokens that a call can have.
        largest: bound of automatic sizes where the configuration has none.

    Raises:
        CaptureError: a size is over a limit; names the option, the size and the limit.
    """
    sizes, bound = config.cudagraph_capture_sizes, config.max_cudagraph_capture_size
    if bound is not None and bound > limit:
        raise _over_limit("max_cudagraph_capture_size", bound, limit)
    if sizes is None:
        return automatic_sizes(bound or min(largest, limit))
    over = [size for size in sizes if size > limit]
    if over:
        raise _over_limit("cudagraph_capture_sizes", over[0], limit)
    if bound is not None and sizes and sizes[-1] > bound:
        raise CaptureError(
            f"`cudagraph_capture_sizes` names {sizes[-1]}, which is over "
            f"`max_cudagraph_capture_size` ({bound}); remove the size or the bound"
        )
    return sizes


def _over_limit(option: str, size: int, limit: int) -> CaptureError:
    return CaptureError(
        f"`{option}` names {size}, but a step has at most {limit} tokens; lower it to that"
    )
