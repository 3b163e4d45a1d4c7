from toy_engine import ToyModel, run, step, submit, toy_parts


def test_cache_is_bound_before_the_first_step() -> None:
    model = ToyModel()
    toy_parts(model, num_blocks=40, block_size=4)
    assert tuple(model._cache.shape) == (40, 2, 1, 4, 2)


def test_step_that_completes_nobody_samples_nothing() -> None:
    model = ToyModel()
    parts = toy_parts(model, max_num_batched_tokens=8)
    submit(parts, [5] * 20)
    step(parts.core, {})
    assert (model.num_computed, model.num_scored_rows) == (8, 0)


def test_step_with_some_complete_samples_exactly_those() -> None:
    model = ToyModel()
    parts = toy_parts(model, max_num_batched_tokens=8)
    short, long = submit(parts, [5, 6], max_tokens=4), submit(parts, [7] * 20, max_tokens=4)
    outcomes = {}
    step(parts.core, outcomes)
    assert list(outcomes) == [short]
    run(parts.core, outcomes)
    assert outcomes[short].tokens() == model.greedy([5, 6], 4)
    assert outcomes[long].tokens() == model.greedy([7] * 20, 4)
