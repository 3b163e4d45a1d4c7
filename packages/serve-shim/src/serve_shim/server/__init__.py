"""The OpenAI-compatible HTTP server in front of an engine."""

from serve_shim.server.run import run

__all__ = ["run"]
