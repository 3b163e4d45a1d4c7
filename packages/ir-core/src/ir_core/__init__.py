"""A functional IR for LLM inference: ops with a native meaning, and implementations to choose from.

Declare an op with `register_op`, add kernels with `op.register_impl`, call it as `ir.ops.<name>`.
"""

from ir_core import groups, ops
from ir_core.default_registry import (
    check_priority,
    format_selections,
    load_plugins,
    platform,
    priorities,
    priority,
    register_op,
    registry,
    select,
    selections,
    set_batch_invariant,
    set_execution_mode,
    set_priority,
)
from ir_core.dispatch import LayoutChoice
from ir_core.donation import DonationCheck as check_donations  # noqa: N813
from ir_core.errors import (
    ArgumentError,
    BatchDependentPredicateError,
    DonationError,
    DuplicateRegistrationError,
    GradientError,
    IrError,
    LayoutError,
    NoImplementationError,
    PluginError,
    PredicateError,
    PriorityError,
    RegistrationError,
    RowRangeError,
    SchemaMismatchError,
    SwitchError,
    TuningTimeError,
    UnknownNameError,
    UnknownOpError,
    UnknownProviderError,
)
from ir_core.fingerprint import Fingerprint
from ir_core.groups import CollectiveError, Group, GroupError, UnknownAxisError
from ir_core.implementation import Implementation
from ir_core.op import IrOp
from ir_core.platforms import Platform
from ir_core.priority_lists import IrOpPriorityConfig, PriorityEntry, ResolvedPriority
from ir_core.registry import Registry
from ir_core.selection import ExecutedSelection, Rejection, Selection
from ir_core.tolerance import Tolerance

__all__ = [
    "ArgumentError",
    "BatchDependentPredicateError",
    "CollectiveError",
    "DonationError",
    "DuplicateRegistrationError",
    "ExecutedSelection",
    "Fingerprint",
    "GradientError",
    "Group",
    "GroupError",
    "Implementation",
    "IrError",
    "IrOp",
    "IrOpPriorityConfig",
    "LayoutChoice",
    "LayoutError",
    "NoImplementationError",
    "Platform",
    "PluginError",
    "PredicateError",
    "PriorityEntry",
    "PriorityError",
    "RegistrationError",
    "Registry",
    "Rejection",
    "ResolvedPriority",
    "RowRangeError",
    "SchemaMismatchError",
    "Selection",
    "SwitchError",
    "Tolerance",
    "TuningTimeError",
    "UnknownAxisError",
    "UnknownNameError",
    "UnknownOpError",
    "UnknownProviderError",
    "check_donations",
    "check_priority",
    "format_selections",
    "groups",
    "load_plugins",
    "ops",
    "platform",
    "priorities",
    "priority",
    "register_op",
    "registry",
    "select",
    "selections",
    "set_batch_invariant",
    "set_execution_mode",
    "set_priority",
]
