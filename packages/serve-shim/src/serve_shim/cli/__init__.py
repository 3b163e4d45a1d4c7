"""Front door of the command line: `run(argv, environ)` gives an exit code."""

from serve_shim.cli.app import run

__all__ = ["run"]
