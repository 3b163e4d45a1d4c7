"""With batch invariance on, a prompt's numbers are the same bits however the engine batches it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny_checkpoints import make_model

import ir_core as ir
from ir_kernels import library
from serve_shim.engine.result import RequestResult
from serve_shim.llm import LLM
from serve_shim.sampling.params import SamplingParams

VOCAB = 96
# More than two blocks, so that a part can be reused; others are longer, shorter and equal.
PROMPT = [*range(20, 57)]
OTHERS = [[3, 9, 27], [7], [*range(5, 60)], [*range(20, 50)]]


class Scoring(NamedTuple):
    """What a result holds: `num_logprobs` of each token, of the prompt's too where `scored`."""

    num_logprobs: int = VOCAB
    scored: bool = True

    @property
    def params(self) -> SamplingParams:
        """Greedy, six tokens."""
        count = self.num_logprobs
        return SamplingParams(
            temperature=0.0,
            max_tokens=6,
            ignore_eos=True,
            logprobs=count,
            prompt_logprobs=count if self.scored else None,
        )


ALL = Scoring()
EAGER: Mapping[str, Any] = {"optimization_level": 0}
COMPILED: Mapping[str, Any] = {"compilation_config": {"backend": "inductor"}}
INTERPRETED: Mapping[str, Any] = {"compilation_config": {"backend": "eager"}}
ROWWISE: Mapping[str, Any] = {
    "ir_op_priority": {"linear": ["rowwise"], "paged_attention": ["rowwise"]}
}
NO_CACHE: Mapping[str, Any] = {"enable_prefix_caching": False}


@pytest.fixture(autouse=True)
def batch_invariant() -> Iterator[None]:
    ir.set_batch_invariant(True)
    yield
    ir.set_batch_invariant(None)


def load(model: str | None, dtype: str, chunk: int, *settings: Mapping[str, Any]) -> LLM:
    """An engine whose steps have up to `chunk` tokens."""
    merged: dict[str, Any] = {"max_num_seqs": 5, "max_model_len": 128}
    for each in settings:
        merged |= each
    return LLM(model, dtype=dtype, max_num_batched_tokens=chunk, **merged)


def numbers(result: RequestResult) -> Sequence[object]:
    """Every number that a result holds, of the prompt and of the tokens after it."""
    (completion,) = result.outputs
    return (result.prompt_logprobs, completion.token_ids, completion.logprobs)


def in_every_batch(llm: LLM, scoring: Scoring) -> list[Sequence[object]]:
    """The prompt's numbers alone, in the last row among others, and in the first."""
    params = scoring.params
    *_, last = llm.generate([*OTHERS, PROMPT], params)
    first, *_ = llm.generate([PROMPT, *OTHERS], params)
    (alone,) = llm.generate([PROMPT], params)
    assert alone.prompt_logprobs is not None
    return [numbers(each) for each in (alone, last, first)]


def check_every_way(
    model: str | None,
    dtype: str,
    ways: Sequence[tuple[int, Mapping[str, Any], Mapping[str, Any]]],
    scoring: Scoring = ALL,
) -> None:
    """The prompt has the same numbers with every (chunk, settings, more settings) of `ways`."""
    wanted: Sequence[object] | None = None
    reused = False
    for way in ways:
        with load(model, dtype, *way) as llm:
            every = in_every_batch(llm, scoring)
            wanted = every[0] if wanted is None else wanted
            for batch, found in zip(("alone", "last", "first"), every, strict=True):
                assert found == wanted, (way, batch)
            num_steps = llm._engine.core.stats().num_steps
            (again,) = llm.generate([PROMPT], scoring._replace(scored=False).params)
            assert numbers(again)[1:] == wanted[1:], way
            num_steps = llm._engine.core.stats().num_steps - num_steps
            # A prompt without scores is taken from the cache, as far as it is there.
            without_reuse = -(-len(PROMPT) // way[0]) + 5
            assert num_steps == without_reuse if NO_CACHE in way else num_steps <= without_reuse
            reused |= num_steps < without_reuse
    assert reused


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "float32"), ("mistral_window", "bfloat16")],
)
@pytest.mark.skipif(not library.availability()[0], reason=library.availability()[1])
def test_logprobs_do_not_depend_on_the_batch_the_chunks_the_cache_or_the_compiler(
    family: str, dtype: str, tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    ways = [
        (64, EAGER, {}),
        (5, EAGER, {}),
        (17, EAGER, NO_CACHE),
        (64, COMPILED, {}),
        (7, INTERPRETED, NO_CACHE),
    ]
    check_every_way(str(tmp_path), dtype, ways)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", "float32"), ("mistral_window", "bfloat16")]
)
def test_logprobs_of_the_rowwise_providers_do_not_either(
    family: str, dtype: str, tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    ways = [(64, EAGER, ROWWISE), (5, EAGER, ROWWISE)]
    check_every_way(str(tmp_path), dtype, ways, Scoring(num_logprobs=3))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
@pytest.mark.skipif(not library.availability()[0], reason=library.availability()[1])
def test_logprobs_of_the_embedded_model_do_not_either(dtype: str) -> None:
    ways = [(64, EAGER, {}), (9, INTERPRETED, {})]
    check_every_way(None, dtype, ways, Scoring(num_logprobs=20))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.skipif(not library.availability()[0], reason=library.availability()[1])
def test_logprobs_of_the_compiled_embedded_model_do_not_either(dtype: str) -> None:
    ways = [(64, EAGER, {}), (64, COMPILED, {}), (9, COMPILED, NO_CACHE)]
    check_every_way(None, dtype, ways, Scoring(num_logprobs=20))
