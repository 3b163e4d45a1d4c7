"""How a check ends without passing.

ConformanceError    an implementation does not do what its op means (an AssertionError, for pytest)
CheckDeclined       the check cannot be made here; the reason says why
└── CheckRejected   the implementation's own predicate refuses these arguments
"""

from ir_core.errors import IrError


class ConformanceError(IrError, AssertionError):
    """An implementation does not do what its op means."""


class CheckDeclined(Exception):  # noqa: N818
    """A check that cannot be made on this case; its message is the reason that is reported."""


class CheckRejected(CheckDeclined):
    """The implementation's predicate refuses the arguments of this check."""
