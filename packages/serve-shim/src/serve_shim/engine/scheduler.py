"""Owns who runs, with which blocks, and how much of each per step; refuses to run anything.

First come, first served. A step's token budget goes to decoding sequences first, then to prompts
in progress, then to waiting ones. A sequence gets blocks for all its known tokens when it is
admitted, so only decoding can run out of blocks; then the youngest running sequence gives up its
blocks, goes back to the head of the queue, and is computed anew later. Thus the oldest always
advances, and every running sequence is older than every waiting one.
"""

from collections import deque

from serve_shim.engine.block_pool import BlockPool
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.prefix_hash import extend_chain
from serve_shim.engine.request import NO_SLOT, Sequence
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_plan import StepPlan


class Scheduler:
    """Schedules sequences over `pool` and `table`; all of it belongs to one thread."""

    def __init__(self, config: EngineConfig, pool: BlockPool, table: SlotTable) -> None:
        self._config = config
        self._pool = pool
        self._table = table
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any sequence is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence behind all others."""
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free what it holds."""
        if sequence.slot == NO_SLOT:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._vacate(sequence)
        sequence.is_done = True

    def schedule(self) -> tuple[StepPlan, list[Sequence]]:
        """The next step, and the sequences that enter with it; empty only without work."""
        plan = StepPlan()
        self._plan_decodes(plan)
        self._plan_prefills(plan)
        admitted = [] if plan.num_preempted else self._admit(plan)
        self.num_preemptions += plan.num_preempted
        return plan, admitted

    def advance(self, plan: StepPlan) -> None:
        """Take note that a step was computed: its tokens are in the cache now."""
        block_size = self._config.block_size
        for sequence, length in zip(plan.sequences, plan.lengths, strict=True):
            sequence.num_computed += length
            if sequence.num_computed // block_size > sequence.num_published:
                self._publish(sequence)

    def _plan_decodes(self, plan: StepPlan) -> None:
        for sequence in tuple(self.running):
            is_decoding = sequence.num_computed == sequence.num_tokens - 1
            if is_decoding and sequence.slot != NO_SLOT and self._grow(sequence, plan):
                plan.add(sequence, 1)

    def _plan_prefills(self, plan: StepPlan) -> None:
        for sequence in self.running:
            length = sequence.num_tokens - sequence.num_computed
            if length > 1:
                self._plan_prefill(sequence, length, plan)

    def _plan_prefill(self, sequence: Sequence, length: int, plan: StepPlan) -> None:
        length = min(length, self._config.max_step_tokens - plan.num_tokens)
        if length > 0:
            plan.add(sequence, length)
            plan.num_prompt_tokens += length

    def _grow(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Make room for the token to compute; False if that took the sequence's own blocks."""
        if sequence.num_tokens <= len(sequence.blocks) * self._config.block_size:
            return True
        while not self._pool.num_free:
            victim = self.running.pop()
            self._preempt(victim)
            plan.num_preempted += 1
            if victim is sequence:
                return False
        self._table.append_block(sequence, self._pool.allocate())
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._vacate(sequence)
        sequence.num_computed = sequence.num_published = 0
        self.waiting.appendleft(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        self._table.vacate(sequence)
        self._pool.release(sequence.blocks)
        sequence.blocks = []

    def _admit(self, plan: StepPlan) -> list[Sequence]:
        admitted: list[Sequence] = []
        while self.waiting and self._table.has_free_slot:
            sequence = self.waiting[0]
            if _waits_for_sibling(sequence) or not self._enter(sequence, plan):
                break
            self.waiting.popleft()
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def _enter(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Give a waiting sequence blocks, a slot and a first chunk, if all of that is there."""
        shared = self._find_prefix(sequence)
        num_cached = len(shared) * self._config.block_size
        length = sequence.num_tokens - num_cached
        room = self._config.max_step_tokens - plan.num_tokens
        if room <= 0 or (length > room and not self._config.enable_chunked_prefill):
            return False
        num_new = -(-sequence.num_tokens // self._config.block_size) - len(shared)
        # A spare block for each running sequence keeps a newcomer from being pre-empted at once.
        if not self._pool.can_take(shared, num_new + len(self.running)):
            return False
        self._pool.reference(shared)
        sequence.blocks = shared + [self._pool.allocate() for _ in range(num_new)]
        sequence.num_computed, sequence.num_published = num_cached, len(shared)
        self._table.occupy(sequence)
        plan.num_queried += sequence.num_tokens
        plan.num_hit += num_cached
        self._plan_prefill(sequence, length, plan)
        return True

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks to reuse; the last token is always computed, since its logits are needed."""
        if sequence.scores_prompt:
            return []
        self._extend_chain(sequence)
        num_reusable = (sequence.num_tokens - 1) // self._config.block_size
        return self._pool.find(sequence.chain[:num_reusable])

    def _publish(self, sequence: Sequence) -> None:
        self._extend_chain(sequence)
        num_full = sequence.num_computed // self._config.block_size
        for place in range(sequence.num_published, num_full):
            self._pool.publish(sequence.blocks[place], sequence.chain[place])
        sequence.num_published = num_full

    def _extend_chain(self, sequence: Sequence) -> None:
        block_size = self._config.block_size
        if len(sequence.chain) < sequence.num_tokens // block_size:
            tokens = self._table.tokens_of(sequence)
            extend_chain(sequence.chain, tokens, block_size, sequence.request.root)


def _waits_for_sibling(sequence: Sequence) -> bool:
    """Whether the first completion of this request is about to compute the prompt for all."""
    first = sequence.request.sequences[0]
    return (
        sequence is not first
        and first.slot != NO_SLOT
        and first.num_computed < len(sequence.request.prompt_ids)
    )
