"""Runs compilers for the build: one command at a time, with their words as the error."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

COMMAND_TIMEOUT_S = 900.0
WORDS_KEPT = 1500


class BuildError(Exception):
    """A library cannot be built; the message is what `ir explain` shows."""


def run_command(command: Sequence[str]) -> str:
    """Run and return stdout; BuildError carries the start of what the command said."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[:WORDS_KEPT]
        raise BuildError(f"`{shlex.join(command)}` failed ({done.returncode}): {words}")
    return done.stdout
