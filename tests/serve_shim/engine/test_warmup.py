from toy_engine import ToyModel, ToyTokenizer, generated, toy_parts

from serve_shim.engine.warmup import warm_up


def test_warm_up_runs_many_sizes_and_leaves_nothing() -> None:
    model = ToyModel()
    parts = toy_parts(model, ToyTokenizer())
    progress: list[tuple[int, int]] = []
    warm_up(parts, lambda done, total: progress.append((done, total)))
    assert progress == [(n, 4) for n in range(5)]
    assert {1, 8, 32} <= set(model.num_tokens_of_steps)
    stats = parts.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_cached_blocks) == (0, 0, 0)
    assert stats.num_free_blocks == stats.num_blocks


def test_warm_up_works_in_the_smallest_engine() -> None:
    parts = toy_parts(
        max_model_len=1, num_blocks=1, block_size=1, max_num_seqs=1, max_num_batched_tokens=1
    )
    warm_up(parts, lambda done, total: None)
    assert not parts.core.has_work


def test_warm_up_does_not_change_what_requests_get() -> None:
    cold, warm = toy_parts(), toy_parts()
    warm_up(warm, lambda done, total: None)
    assert generated(warm, [5, 6, 7]) == generated(cold, [5, 6, 7])
