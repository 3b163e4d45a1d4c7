"""The process: hands the command line over and turns what comes back into an exit code.

A mistake of the user ends in one message on stderr; a traceback means a defect of ours.
"""

from __future__ import annotations

import os
import sys

from serve_shim.errors import ServeShimError

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def main() -> int:
    """Run `serve-shim` with this process's arguments and environment; return the exit code."""
    try:
        from serve_shim.cli import run  # noqa: PLC0415 - an interrupt during imports counts too

        code = run(sys.argv[1:], os.environ)
        sys.stdout.flush()
        return code
    except ServeShimError as error:
        print(f"serve-shim: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `serve-shim --print-config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
