"""From a parsed command line to the module that does it, and its output. Parses nothing."""

import argparse
import logging

from ir_core.cli import benching, checking, explanation, listing


def run(options: argparse.Namespace) -> int:
    """Run one command; returns the exit code."""
    # What the log would say about providers that cannot run, the commands say themselves.
    logging.getLogger("ir_core").addHandler(logging.NullHandler())
    match options.command:
        case "list":
            return listing.run(options)
        case "explain":
            return explanation.run(options)
        case "check":
            return checking.run(options)
        case _:
            return benching.run(options)
