"""What capturing is, as an interface of runners and of the graphs that they make. Captures nothing.

A captured graph reads and writes fixed memory. Whoever replays it writes new values into the inputs
that it was captured with, and replays; the outputs appear where they appeared before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ir_passes.backends.piece import CompiledPiece


class CapturedGraph(Protocol):
    """One function, recorded for one set of inputs."""

    @property
    def num_replays(self) -> int:
        """How often it was replayed."""
        ...

    def replay(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Run the graph and return its outputs, always the same tensors.

        They are valid until the runner's next replay, whichever graph that is: graphs of one runner
        share memory.

        Args:
            inputs: what the function would be called with. Tensors must lie where they lay when
                the graph was captured, and numbers must be the same.

        Raises:
            CaptureError: an input is not what it was; names it.
        """
        ...


class CaptureRunner(Protocol):
    """Captures functions one by one; all its graphs share memory, so capture the largest first."""

    @property
    def num_bytes(self) -> int:
        """Memory that its graphs hold."""
        ...

    def capture(
        self,
        name: str,
        function: CompiledPiece,
        inputs: Sequence[Any],
        input_names: Sequence[str],
    ) -> tuple[CapturedGraph, Sequence[Any]]:
        """Run a function to warm it up, then record it.

        Args:
            name: what to call it in messages; graphs of one name never run after one another within
                a step, so that they may take the same memory.
            function: takes a list of inputs, which it may empty. What it does must depend on
                nothing but their values.
            inputs: valid in shape; their values do not matter, and those that the function may
                overwrite are overwritten.
            input_names: for messages.

        Returns:
            The graph, and the outputs of its first run. While these are alive, no other graph takes
            their memory: hold them as long as something that is yet to be captured reads them.

        Raises:
            CaptureError: the function cannot be captured.
        """
        ...
