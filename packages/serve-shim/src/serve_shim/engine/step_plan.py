"""Owns what one step computes: which sequences, and how many tokens of each; refuses arrays."""

from dataclasses import dataclass, field

from serve_shim.engine.request import Sequence


@dataclass(slots=True, eq=False)
class StepPlan:
    """Parallel lists: `lengths[i]` tokens of `sequences[i]`, from its `num_computed` on.

    Sequences that decode stand before those that prefill. `num_prompt_tokens` counts what is
    computed to start or resume a sequence, `num_queried` and `num_hit` the tokens that were
    looked up and found in the prefix cache.
    """

    sequences: list[Sequence] = field(default_factory=list[Sequence])
    lengths: list[int] = field(default_factory=list[int])
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_preempted: int = 0
    num_queried: int = 0
    num_hit: int = 0

    def add(self, sequence: Sequence, length: int) -> None:
        """Compute `length` more tokens of `sequence` in this step."""
        self.sequences.append(sequence)
        self.lengths.append(length)
        self.num_tokens += length

    def completes(self) -> list[bool]:
        """For each entry, whether all its tokens are then known to the cache: a token follows."""
        return [
            sequence.num_computed + length == sequence.num_tokens
            for sequence, length in zip(self.sequences, self.lengths, strict=True)
        ]
