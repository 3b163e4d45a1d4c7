"""Errors of the command line itself.

UsageError    an argument that argparse cannot judge: a dtype, a shape, a value for a parameter
"""

from ir_core.errors import IrError


class UsageError(IrError):
    """An argument whose form is right and whose content is not."""
