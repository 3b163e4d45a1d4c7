"""The platform `toyland`, which prefers this distribution's implementations."""

from collections.abc import Mapping, Sequence

import ir_core as ir


class Toyland(ir.Platform):
    """A machine on which `toy` comes first."""

    name = "toyland"

    def get_default_ir_op_priority(self) -> Mapping[str, Sequence[str]]:
        """Provider lists by op, for every mode."""
        return ir.IrOpPriorityConfig(rms_norm=["toy", "native"], toy_blend=["toy"])


def detect() -> ir.Platform:
    """This machine's platform."""
    return Toyland()
