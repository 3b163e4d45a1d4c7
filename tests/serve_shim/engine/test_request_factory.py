from toy_engine import EOS, toy_parts

from serve_shim.sampling.params import SamplingParams


def test_request_has_a_sequence_per_completion_with_its_own_key() -> None:
    request = toy_parts().factory.make("r", [5, 6], SamplingParams(n=3, seed=1))
    assert [s.index for s in request.sequences] == [0, 1, 2]
    assert len({s.key for s in request.sequences}) == 3
    assert request.num_unfinished == 3
    assert request.prompt_array.tolist() == [5, 6]


def test_seed_decides_the_keys_whatever_came_before() -> None:
    parts = toy_parts()
    first = parts.factory.make("a", [5], SamplingParams(seed=9))
    parts.factory.make("b", [5], SamplingParams())
    assert parts.factory.make("c", [6], SamplingParams(seed=9)).sequences[0].key == (
        first.sequences[0].key
    )


def test_requests_without_seed_differ_and_repeat_with_the_engines_seed() -> None:
    keys = [
        [parts.factory.make("r", [5], SamplingParams()).sequences[0].key for _ in range(3)]
        for parts in (toy_parts(seed=4), toy_parts(seed=4), toy_parts(seed=5))
    ]
    assert keys[0] == keys[1]
    assert len({*keys[0], *keys[2]}) == 6


def test_ids_that_end_a_sequence_are_resolved() -> None:
    factory = toy_parts().factory
    usual = factory.make("r", [5], SamplingParams(stop_token_ids=(7,)))
    assert (usual.stop_ids, usual.eos_ids) == ({EOS, 7}, {EOS})
    ignoring = factory.make("r", [5], SamplingParams(stop_token_ids=(7,), ignore_eos=True))
    assert (ignoring.stop_ids, ignoring.eos_ids) == ({7}, set())


def test_open_maximum_is_the_room_in_the_context() -> None:
    request = toy_parts(max_model_len=40).factory.make(
        "r", [5] * 30, SamplingParams(max_tokens=None)
    )
    assert request.max_tokens == 10


def test_requests_share_a_root_only_with_prefix_caching() -> None:
    def roots(*, caching: bool) -> set[bytes]:
        factory = toy_parts(enable_prefix_caching=caching).factory
        return {factory.make("r", [5], SamplingParams()).root for _ in range(3)}

    assert len(roots(caching=True)) == 1
    assert len(roots(caching=False)) == 3
