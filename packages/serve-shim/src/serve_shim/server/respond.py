"""Owns the answer to an admitted request: one body, or a stream of events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from serve_shim.server.generation import Outputs
from serve_shim.server.wire.choices import ChoiceFormat, Gathered
from serve_shim.server.wire.envelope import Envelope, EventWriter
from serve_shim.server.wire.sampling import UsageOptions
from serve_shim.server.wire.usage import Usage


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of one request and how they are to look."""

    outputs: Outputs
    choices: ChoiceFormat
    envelope: Envelope
    usage: Usage

    async def body(self) -> dict[str, Any]:
        """The whole answer, once everything has been generated."""
        gathered = Gathered()
        async with aclosing(self.outputs) as outputs:
            async for prompt_index, output in outputs:
                self.choices.note_prompt(prompt_index, output)
                self.usage.note(prompt_index, output)
                gathered.add(prompt_index, output)
        choices = [self.choices.whole(index, whole) for index, whole in gathered.completions()]
        return self.envelope.body(choices, self.usage.to_wire())

    async def events(self, options: UsageOptions) -> AsyncGenerator[bytes, None]:
        """An event per delta; those of one output are joined, as they are ready together."""
        writer = EventWriter(self.envelope)
        async with aclosing(self.outputs) as outputs:
            async for prompt_index, output in outputs:
                self.choices.note_prompt(prompt_index, output)
                self.usage.note(prompt_index, output)
                if not output.deltas:
                    continue
                so_far = self.usage.to_wire() if options.in_each_chunk else None
                yield b"".join(
                    writer.choice(self.choices.piece(prompt_index, delta), so_far)
                    for delta in output.deltas
                )
        if options.at_end:
            yield writer.usage(self.usage.to_wire())
