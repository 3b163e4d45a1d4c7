"""With batch invariance on, a prompt's numbers are the same bits however the engine batches it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_checkpoints import make_model

import ir_core as ir
from serve_shim.engine.result import RequestResult
from serve_shim.llm import LLM
from serve_shim.sampling.params import SamplingParams

# More than two blocks, so that a part can be reused; others are longer, shorter and equal.
PROMPT = [*range(20, 57)]
OTHERS = [[3, 9, 27], [7], [*range(5, 60)], [*range(20, 50)]]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3)
SCORED = SamplingParams(
    temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=3
)


@pytest.fixture(autouse=True)
def batch_invariant() -> Iterator[None]:
    ir.set_batch_invariant(True)
    yield
    ir.set_batch_invariant(None)


def load(directory: Path, dtype: str, chunk: int) -> LLM:
    return LLM(
        str(directory),
        dtype=dtype,
        max_num_seqs=5,
        max_num_batched_tokens=chunk,
        optimization_level=0,
    )


def numbers(result: RequestResult) -> Sequence[object]:
    """Every number that a result holds, of the prompt and of the tokens after it."""
    (completion,) = result.outputs
    return (result.prompt_logprobs, completion.token_ids, completion.logprobs)


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", "float32"), ("mistral_window", "bfloat16")]
)
def test_logprobs_do_not_depend_on_the_batch_the_chunks_or_the_cache(
    family: str, dtype: str, tmp_path: Path
) -> None:
    make_model(family).save_pretrained(tmp_path)
    with load(tmp_path, dtype, 64) as llm:
        (alone,) = llm.generate([PROMPT], SCORED)
        assert alone.prompt_logprobs is not None
        *_, among = llm.generate([*OTHERS, PROMPT], SCORED)
        assert numbers(among) == numbers(alone)
        assert llm._engine.core.stats().num_cached_blocks > 0
        (reused,) = llm.generate([PROMPT], GREEDY)
        assert numbers(reused)[1:] == numbers(alone)[1:]
    with load(tmp_path, dtype, 5) as chunked:
        (first, *_) = chunked.generate([PROMPT, *OTHERS], SCORED)
        assert numbers(first) == numbers(alone)
