"""Runs functions on several ranks of this machine, for tests and benches. Nothing here serves."""

from serve_shim.testing.errors import RankError, RankSessionError
from serve_shim.testing.ranks import RaySession, run_on_ranks

__all__ = ["RankError", "RankSessionError", "RaySession", "run_on_ranks"]
