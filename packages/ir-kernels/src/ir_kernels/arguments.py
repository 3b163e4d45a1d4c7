"""What kernels can take, asked of argument views: each function returns a reason, or "" for yes.

Sibling ops ask the same function, so that what one accepts the other does too. Nothing here reads
a stride: whether a layout suits may depend on the number of tokens, so kernels take any layout.
"""

from torch import Tensor, bfloat16, dtype, float8_e4m3fn, float16, float32, int8, int64

FLOATS = (float32, bfloat16, float16)
HALVES = (bfloat16, float16)
CARRIED = (*FLOATS, int8, float8_e4m3fn)
GROUP_SIZES = (16, 32, 64, 128)


def activation(x: Tensor, device: str, dtypes: tuple[dtype, ...] = FLOATS) -> str:
    """An activation lies on a kind of device and has one of `dtypes`."""
    if x.device.type != device:
        return f"runs on {device}, and the activations are on {x.device.type}"
    if x.dtype not in dtypes:
        return f"takes {', '.join(name(each) for each in dtypes)}; x has {name(x.dtype)}"
    return ""


def one_device(x: Tensor, **others: Tensor | None) -> str:
    """What goes with x lies on its device, as far as it is there."""
    for other_name, other in others.items():
        if other is not None and other.device != x.device:
            return f"needs one device for all; x is on {x.device}, {other_name} on {other.device}"
    return ""


def same_dtype(x: Tensor, other: Tensor, other_name: str) -> str:
    """Two activations have one dtype."""
    if other.dtype != x.dtype:
        return f"needs one dtype for both; x has {name(x.dtype)}, {other_name} {name(other.dtype)}"
    return ""


def norm_weight(x: Tensor, weight: Tensor | None, extra: tuple[dtype, ...] = ()) -> str:
    """A norm's weight, if there is one, has x's dtype or one of `extra`."""
    if weight is None or weight.dtype == x.dtype or weight.dtype in extra:
        return ""
    allowed = " or ".join(("x's dtype", *(name(each) for each in extra)))
    return f"needs a weight of {allowed}; x has {name(x.dtype)}, weight {name(weight.dtype)}"


def plain_norm(weight: Tensor | None, variance_size: int | None) -> str:
    """A norm with a weight, over whole rows."""
    if weight is None:
        return "needs a weight"
    if variance_size is not None:
        return "has no `variance_size`"
    return ""


def rotary_table(positions: Tensor, cos_sin_cache: Tensor) -> str:
    """int64 positions and a float32 table."""
    if positions.dtype != int64:
        return f"needs int64 positions, not {name(positions.dtype)}"
    if cos_sin_cache.dtype != float32:
        return f"needs a float32 `cos_sin_cache`, not {name(cos_sin_cache.dtype)}"
    return ""


def at_most(limit: int, what: str, number: int) -> str:
    """A size that a kernel holds at once stays within its limit."""
    return f"holds up to {limit} {what}, not {number}" if number > limit else ""


def token_ids(ids: Tensor) -> str:
    """Token ids are int64, on the CPU."""
    if ids.device.type != "cpu":
        return f"runs on cpu, and the ids are on {ids.device.type}"
    return "" if ids.dtype == int64 else f"needs int64 ids, not {name(ids.dtype)}"


def quantized_groups(
    weight: Tensor, kind: dtype, scale: Tensor, minimum: Tensor | None, group_size: int
) -> str:
    """Integers of dtype `kind` in groups that the C++ kernels know, with float16 scales."""
    if weight.dtype != kind:
        return f"needs a weight of {name(kind)}, not {name(weight.dtype)}"
    for each, word in ((scale, "scale"), (minimum, "minimum")):
        if each is not None and each.dtype != float16:
            return f"needs a float16 `{word}`, not {name(each.dtype)}"
    if group_size not in GROUP_SIZES:
        return f"takes groups of {', '.join(map(str, GROUP_SIZES))}, not {group_size}"
    return ""


def float_cache(kv_cache: Tensor) -> str:
    """A cache holds one of `FLOATS`."""
    if kv_cache.dtype not in FLOATS:
        allowed = ", ".join(name(each) for each in FLOATS)
        return f"reads a cache of {allowed}; kv_cache has {name(kv_cache.dtype)}"
    return ""


def attention_dtypes(
    x_query: Tensor, x_key: Tensor, x_value: Tensor, output: Tensor, kv_cache: Tensor
) -> str:
    """Queries, keys, values, output and cache have one dtype, as libraries of attention want it."""
    return (
        same_dtype(x_query, x_key, "x_key")
        or same_dtype(x_query, x_value, "x_value")
        or same_dtype(x_query, output, "output")
        or same_dtype(x_query, kv_cache, "kv_cache")
    )


def name(of: dtype) -> str:
    """A dtype without torch's prefix."""
    return str(of).removeprefix("torch.")
