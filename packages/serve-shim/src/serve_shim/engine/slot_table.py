"""Owns the token ids and block numbers of running sequences, one row each; refuses scheduling."""

import numpy as np
import numpy.typing as npt

from serve_shim.engine.request import NO_SLOT, Sequence


class SlotTable:
    """Arrays indexed by slot, from which a step's inputs are gathered without Python loops.

    `token_ids` is [num_slots, max_model_len + 1] int32: a token may be chosen after the last that
    fits, and is then dropped. `blocks` is [num_slots, max_blocks] int32. Entries beyond a
    sequence's length are left over from earlier owners and never read.
    """

    def __init__(self, num_slots: int, max_model_len: int, max_blocks: int) -> None:
        # Zeroed memory is only backed by pages once it is written, so long contexts cost nothing.
        self.token_ids = np.zeros((num_slots, max_model_len + 1), np.int32)
        self.blocks = np.zeros((num_slots, max_blocks), np.int32)
        # For single cells a memoryview costs a fraction of what numpy does.
        self._cells = self.token_ids.data
        self._free = list(range(num_slots - 1, -1, -1))

    @property
    def has_free_slot(self) -> bool:
        """Whether another sequence can run."""
        return bool(self._free)

    @property
    def num_free(self) -> int:
        """Slots that no sequence occupies."""
        return len(self._free)

    def occupy(self, sequence: Sequence) -> None:
        """Give `sequence` a slot and copy its tokens and blocks into it."""
        sequence.slot = self._free.pop()
        self.token_ids[sequence.slot, : sequence.num_tokens] = sequence.token_ids
        self.blocks[sequence.slot, : len(sequence.blocks)] = sequence.blocks

    def vacate(self, sequence: Sequence) -> None:
        """Take the slot back."""
        self._free.append(sequence.slot)
        sequence.slot = NO_SLOT

    def tokens_of(self, sequence: Sequence) -> npt.NDArray[np.int32]:
        """The tokens of a sequence: a view of its row while it runs."""
        if sequence.slot == NO_SLOT:
            return sequence.token_ids
        return self.token_ids[sequence.slot, : sequence.num_tokens]

    def append_block(self, sequence: Sequence, block: int) -> None:
        """Extend a running sequence by one block."""
        self.blocks[sequence.slot, len(sequence.blocks)] = block
        sequence.blocks.append(block)

    def append_token(self, sequence: Sequence, token_id: int) -> None:
        """Write the token that follows those that a running sequence has."""
        self._cells[sequence.slot, sequence.num_tokens] = token_id
