"""New keys and values into the paged cache, for libraries that only read it."""

from torch import Tensor

from ir_core.ops import paged_cache
from ir_kernels import cuda_library
from ir_kernels.library import kernels


def write_tokens(key: Tensor, value: Tensor, kv_cache: Tensor, slots: Tensor) -> None:
    """Store `key` and `value` [T, H, D] at `slots` [T]; a negative one is not written.

    The CUDA library's kernel asks for no slot on the host; where it is not there, native does.
    """
    if key.is_cuda and cuda_library.availability()[0]:
        kernels.write_kv_cache.default(key, value, kv_cache, slots)
    else:
        paged_cache.write_tokens(key, value, kv_cache, slots)
