"""A compiled model says what the eager one says: each token, and each candidate's probability."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny_checkpoints import make_model

import ir_core as ir
from serve_shim.engine.output import TokenLogprobs
from serve_shim.engine.result import RequestResult
from serve_shim.llm import LLM
from serve_shim.sampling.params import SamplingParams

VOCAB = 96
# No two begin alike, so that nothing of one is reused for another.
PROMPTS = [[(5 * length + 3 * i) % VOCAB for i in range(length)] for length in range(1, 18)]
BOUNDS: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 32,
}
EVERYTHING = SamplingParams(
    temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=VOCAB, prompt_logprobs=VOCAB
)
TOLERANCE = 2e-5


class Case(NamedTuple):
    """One way to compile one model."""

    family: str
    backend: str
    shapes: str
    provider: str


CASES = [
    Case(*each)
    for each in product(
        ("llama", "qwen3_tied"),
        ("eager", "inductor"),
        ("unbacked", "backed", "backed_size_oblivious"),
        ("native", "vllm_c"),
    )
]
COMMON = [
    # The default of the server.
    Case("llama", "inductor", "unbacked", "vllm_c"),
    # Most is left to the code generator, and some sizes are compiled by themselves.
    Case("qwen3_tied", "inductor", "backed", "native"),
    # The third shapes mode, and the other values with the interpreter, which costs little.
    Case("qwen3_tied", "eager", "backed_size_oblivious", "vllm_c"),
    Case("llama", "eager", "backed", "native"),
]

Answers = Sequence[RequestResult]
Expected = Callable[[str, str], tuple[Path, Answers]]


def priorities(provider: str) -> dict[str, list[str]]:
    """A provider first for every op that has it."""
    ir.load_plugins()
    return {
        name: [provider] for name, op in ir.registry().items() if provider in op.implementations
    }


def load(directory: Path, provider: str, **settings: Any) -> LLM:
    return LLM(str(directory), ir_op_priority=priorities(provider), **BOUNDS, **settings)


def answers(llm: LLM) -> Answers:
    """Every prompt by itself, so that each length is a step, then all of them together."""
    alone = [result for prompt in PROMPTS for result in llm.generate(prompt, EVERYTHING)]
    return [*alone, *llm.generate(PROMPTS, EVERYTHING)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """The checkpoint of a family and the eager answers by a provider, computed once."""

    @cache
    def checkpoint(family: str) -> Path:
        directory = tmp_path_factory.mktemp(family)
        make_model(family).save_pretrained(directory)
        return directory

    @cache
    def get(family: str, provider: str) -> tuple[Path, Answers]:
        with load(checkpoint(family), provider, optimization_level=0) as llm:
            return checkpoint(family), answers(llm)

    return get


def probabilities(entry: TokenLogprobs | None) -> Mapping[int, float]:
    return {} if entry is None else {each.token_id: each.logprob for each in entry.top}


def check_equal(found: RequestResult, wanted: RequestResult) -> None:
    (completion,), (reference,) = found.outputs, wanted.outputs
    assert completion.token_ids == reference.token_ids
    rows = zip(
        (*(found.prompt_logprobs or ()), *(completion.logprobs or ())),
        (*(wanted.prompt_logprobs or ()), *(reference.logprobs or ())),
        strict=True,
    )
    for index, (got, want) in enumerate(rows):
        assert len(probabilities(want)) == (VOCAB if index else 0)
        assert probabilities(got) == pytest.approx(probabilities(want), abs=TOLERANCE, rel=0)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(case), marks=[] if case in COMMON else pytest.mark.slow)
        for case in CASES
    ],
)
def test_compiled_answers_equal_eager_ones(case: Case, expected: Expected) -> None:
    directory, wanted = expected(case.family, case.provider)
    shapes = {"type": case.shapes, "guards": "rebuild"}
    config = {"backend": case.backend, "dynamic_shapes_config": shapes}
    with load(directory, case.provider, compilation_config=config) as llm:
        report = llm._engine.compile_report
        found = answers(llm)
    assert report is not None
    assert report.backend == case.backend
    assert set(report.selected_impls["rms_norm"]) == {case.provider}
    for got, want in zip(found, wanted, strict=True):
        check_equal(got, want)


def test_the_common_cases_cover_every_value_of_each_axis() -> None:
    for axis in range(len(Case._fields)):
        assert {case[axis] for case in COMMON} == {case[axis] for case in CASES}
