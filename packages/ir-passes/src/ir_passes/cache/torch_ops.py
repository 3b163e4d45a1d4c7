"""Torch ops by the names that graphs print, `aten.add.Tensor`. Registers nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def find_torch_op(name: str) -> Callable[..., Any] | None:
    """The overload of a name; None if this process has no such op."""
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found: Any = getattr(getattr(torch.ops, namespace), packet, None)
    return getattr(found, overload or "default", None)
