from toy_engine import toy_parts

from serve_shim.engine.block_pool import BlockPool
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.request import NO_SLOT, Request, Sequence
from serve_shim.engine.scheduler import Scheduler
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.step_plan import StepPlan
from serve_shim.sampling.params import SamplingParams


class Rig:
    """A scheduler whose steps are taken by hand; every completed sequence gets token 9."""

    def __init__(self, **bounds: int | bool) -> None:
        defaults: dict[str, int | bool] = {
            "max_model_len": 64,
            "num_blocks": 64,
            "block_size": 4,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 8,
        }
        self.config = EngineConfig(**{**defaults, **bounds})  # pyright: ignore[reportArgumentType]
        self.pool = BlockPool(self.config.num_blocks)
        self.table = SlotTable(self.config.max_num_seqs, 64, self.config.max_blocks_per_sequence)
        self.scheduler = Scheduler(self.config, self.pool, self.table)
        caching = self.config.enable_prefix_caching
        self._factory = toy_parts(enable_prefix_caching=caching).factory

    def add(self, prompt: list[int], **params: int) -> Request:
        request = self._factory.make("r", prompt, SamplingParams(**params))  # pyright: ignore[reportArgumentType]
        for sequence in request.sequences:
            self.scheduler.add(sequence)
        return request

    def one(self, prompt: list[int]) -> Sequence:
        return self.add(prompt).sequences[0]

    def step(self) -> StepPlan:
        plan, _ = self.scheduler.schedule()
        done = [s for s, ready in zip(plan.sequences, plan.completes(), strict=True) if ready]
        self.scheduler.advance(plan)
        for sequence in done:
            self.table.token_ids[sequence.slot, sequence.num_tokens] = 9
            sequence.output_ids.append(9)
            sequence.num_tokens += 1
        self.pool.check(s.blocks for s in self.scheduler.running)
        return plan


def shares(plan: StepPlan) -> dict[Sequence, int]:
    return dict(zip(plan.sequences, plan.lengths, strict=True))


def test_long_prompt_is_spread_over_steps_within_the_budget() -> None:
    rig = Rig()
    sequence = rig.one(list(range(20)))
    assert [rig.step().lengths for _ in range(4)] == [[8], [8], [4], [1]]
    assert sequence.output_ids == [9, 9]


def test_decodes_come_first_and_prompts_get_what_is_left() -> None:
    rig = Rig()
    old = rig.one([1, 2])
    rig.step()
    new = rig.one(list(range(20)))
    plan = rig.step()
    assert plan.sequences == [old, new]
    assert plan.lengths == [1, 7]
    assert plan.num_prompt_tokens == 7


def test_waiting_sequences_enter_in_order_of_arrival() -> None:
    rig = Rig(max_num_seqs=2)
    first, second, third = (rig.one([n] * 3) for n in (1, 2, 3))
    assert rig.step().sequences == [first, second]
    rig.scheduler.finish(first)
    assert rig.step().sequences == [second, third]


def test_prompt_enters_whole_without_chunked_prefill() -> None:
    rig = Rig(enable_chunked_prefill=False, max_model_len=20, num_blocks=64)
    first, second = rig.one(list(range(15))), rig.one(list(range(30, 40)))
    assert shares(rig.step()) == {first: 15}
    assert shares(rig.step()) == {first: 1, second: 10}


def test_prefix_is_reused_up_to_the_last_token() -> None:
    rig = Rig()
    prompt = list(range(8))
    rig.scheduler.finish(_served(rig, prompt))
    again = rig.one(prompt)
    plan = rig.step()
    # Both blocks are cached, but the last token's logits are needed, hence its block.
    assert shares(plan) == {again: 4}
    assert (plan.num_queried, plan.num_hit) == (8, 4)


def test_longer_prompt_reuses_all_full_blocks() -> None:
    rig = Rig()
    rig.scheduler.finish(_served(rig, list(range(8))))
    longer = rig.one([*range(8), 50])
    assert shares(rig.step()) == {longer: 1}


def test_generated_tokens_can_be_reused_as_a_prompt() -> None:
    rig = Rig()
    sequence = _served(rig, [1, 2, 3])
    for _ in range(3):
        rig.step()
    follow_up = [1, 2, 3, *sequence.output_ids]
    rig.scheduler.finish(sequence)
    again = rig.one(follow_up)
    assert shares(rig.step()) == {again: len(follow_up) - 4}


def test_prefix_is_not_shared_between_requests_when_caching_is_off() -> None:
    rig = Rig(enable_prefix_caching=False)
    rig.scheduler.finish(_served(rig, list(range(8))))
    again = rig.one(list(range(8)))
    assert shares(rig.step()) == {again: 8}


def test_siblings_wait_for_the_prompt_and_share_its_blocks() -> None:
    for caching in (True, False):
        rig = Rig(enable_prefix_caching=caching)
        request = rig.add(list(range(11)), n=3)
        first, second, third = request.sequences
        assert shares(rig.step()) == {first: 8}
        assert shares(rig.step()) == {first: 3}
        assert shares(rig.step()) == {first: 1, second: 3, third: 3}
        assert first.blocks[:2] == second.blocks[:2] == third.blocks[:2]
        assert len({s.blocks[2] for s in request.sequences}) == 3


def test_youngest_gives_way_when_blocks_run_out_and_returns_first() -> None:
    rig = Rig(num_blocks=4, max_model_len=16)
    old, young = rig.one([1, 1, 1]), rig.one([2, 2, 2])
    rig.step()
    later = rig.one([3])
    for _ in range(20):
        plan = rig.step()
        if plan.num_preempted:
            break
    assert young.slot == NO_SLOT
    assert young.blocks == []
    assert rig.scheduler.running == [old]
    assert list(rig.scheduler.waiting) == [young, later]
    rig.scheduler.finish(old)
    plan = rig.step()
    assert shares(plan)[young] + plan.num_hit == young.num_tokens - 1


def test_lone_sequence_can_use_every_block() -> None:
    rig = Rig(num_blocks=4, max_model_len=16)
    sequence = rig.one([1])
    for _ in range(15):
        assert rig.step().num_preempted == 0
    assert sequence.num_tokens == 16


def test_newcomer_waits_while_running_sequences_may_need_the_blocks() -> None:
    rig = Rig(num_blocks=3, max_model_len=12)
    old, new = rig.one([1, 1, 1, 1]), rig.one([2, 2, 2, 2, 2])
    assert rig.step().sequences == [old]
    assert rig.step().sequences == [old]
    rig.scheduler.finish(old)
    assert rig.step().sequences == [new]


def test_finishing_frees_blocks_and_slot_wherever_the_sequence_is() -> None:
    rig = Rig(max_num_seqs=1)
    running, waiting = rig.one([1]), rig.one([2])
    rig.step()
    rig.scheduler.finish(waiting)
    rig.scheduler.finish(running)
    assert not rig.scheduler.has_work
    assert rig.pool.num_free == 64
    assert rig.table.num_free == 1


def _served(rig: Rig, prompt: list[int]) -> Sequence:
    """A sequence whose prompt is computed."""
    sequence = rig.one(prompt)
    while not sequence.output_ids:
        rig.step()
    return sequence
