"""Front door of the settings: the tree, and the one merge of every source into it."""

from serve_shim.settings.api_keys import read_api_keys
from serve_shim.settings.report import non_default
from serve_shim.settings.resolve import Resolved, resolve, resolve_arguments
from serve_shim.settings.tree import (
    CacheConfig,
    Dtype,
    KernelConfig,
    LimitsConfig,
    LogLevel,
    SchedulerConfig,
    Settings,
)

__all__ = [
    "CacheConfig",
    "Dtype",
    "KernelConfig",
    "LimitsConfig",
    "LogLevel",
    "Resolved",
    "SchedulerConfig",
    "Settings",
    "non_default",
    "read_api_keys",
    "resolve",
    "resolve_arguments",
]
