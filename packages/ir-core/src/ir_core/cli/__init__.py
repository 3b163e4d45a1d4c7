"""The `ir` command: list, explain, check and bench. Owns exit codes; does no work itself.

Exit codes: 0 done, 1 a check failed, 2 a wrong argument, an unknown name or a broken plug-in, 3
nothing could be checked.
"""

import sys
from collections.abc import Sequence

from ir_core.cli.parser import build_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the process's; returns the exit code."""
    options = build_parser().parse_args(argv)
    # torch is not needed to print help or to refuse an option, so its users come after parsing.
    from ir_core.cli.commands import run  # noqa: PLC0415
    from ir_core.errors import IrError  # noqa: PLC0415

    try:
        return run(options)
    except IrError as error:
        print(f"ir {options.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough (`ir list | head`); stdout must not be flushed again.
        sys.stdout = None
        return 0
