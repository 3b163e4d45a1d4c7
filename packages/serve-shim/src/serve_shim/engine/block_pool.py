"""Owns the KV cache's blocks, their reference counts and contents; refuses to know sequences.

A block is referenced, or free; a free block either is blank or still holds a known content, which
a later lookup may revive. Blank blocks are handed out first, then the least recently freed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """`num_blocks` blocks; contents are named by their hash chain (see `prefix_hash`)."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._content: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._blank = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that nothing references, cached ones included."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content may still be reused."""
        return len(self._cached)

    def find(self, contents: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest known prefix of a hash chain; takes no reference."""
        found: list[int] = []
        for content in contents:
            block = self._block_of.get(content)
            if block is None:
                break
            found.append(block)
        return found

    def can_take(self, shared: Sequence[int], num_new: int) -> bool:
        """Whether `shared` can be referenced and `num_new` blocks allocated besides."""
        revived = sum(1 for block in shared if self._references[block] == 0)
        return self.num_free - revived >= num_new

    def reference(self, blocks: Iterable[int]) -> None:
        """Take one more reference to each of these blocks, free or not."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def allocate(self) -> int:
        """A block of unknown content with one reference; the caller checked `num_free`."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        self._references[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, given in the sequence's order.

        The last block is freed first, so that a chain is evicted from its end.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block]:
                continue
            if self._content[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, content: bytes) -> None:
        """Name the content of a full block; the first block with a content keeps the name."""
        if content in self._block_of:
            return
        self._block_of[content] = block
        self._content[block] = content

    def forget_all(self) -> None:
        """Forget every content; references stay."""
        self._blank.extend(self._cached)
        self._cached.clear()
        self._block_of.clear()
        self._content = [None] * self.num_blocks

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Raise `RuntimeError` unless the accounts agree with `holders`, the block lists in use."""
        counts = Counter(block for blocks in holders for block in blocks)
        free = [*self._blank, *self._cached]
        if any(count != counts[block] for block, count in enumerate(self._references)):
            raise RuntimeError("a reference count differs from the number of holders")
        if sorted(free) != [b for b in range(self.num_blocks) if not counts[b]]:
            raise RuntimeError("the free blocks are not exactly those without a holder")
        named = {b: content for b, content in enumerate(self._content) if content is not None}
        if {content: b for b, content in named.items()} != self._block_of:
            raise RuntimeError("the content index differs from the blocks' contents")
        if any(block in named for block in self._blank) or any(
            block not in named for block in self._cached
        ):
            raise RuntimeError("a free block is filed under the wrong kind")

    def _forget(self, block: int) -> None:
        content = self._content[block]
        if content is not None:
            del self._block_of[content]
            self._content[block] = None
