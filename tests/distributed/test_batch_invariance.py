"""With batch invariance on, a token's logits are the same bits on any number of ranks."""

from collections.abc import Iterator, Sequence

import pytest
import torch
from rank_logits import Result, Way, run_invariant
from torch import Tensor

from ir_kernels import library
from serve_shim.errors import ModelLoadError
from serve_shim.testing import RankError, RaySession

SIZES = (1, 2, 7, 16, 17, 40)
DTYPES = (torch.float32, torch.bfloat16)
EAGER = None
COMPILED = Way("unbacked", None, "inductor", None)
# As far as rows can be sharded where ranks sum nothing but embeddings.
SHARDED = Way("unbacked", None, "eager", 1)
WAYS = (EAGER, COMPILED, SHARDED)

pytestmark = pytest.mark.skipif(
    not library.availability()[0], reason="without the C++ library nothing promises it"
)


@pytest.fixture(scope="module")
def session() -> Iterator[RaySession]:
    with RaySession() as ranks:
        yield ranks


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "num_ranks",
    [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)],
)
def test_tiny_model_has_the_bits_of_one_rank(
    num_ranks: int, session: RaySession, tiny: str
) -> None:
    compare(session, num_ranks, tiny, WAYS, DTYPES)


@pytest.mark.timeout(300)
def test_embedded_model_has_the_bits_of_one_rank(session: RaySession) -> None:
    """Of two ranks, one has a key head that is padding; the model has three."""
    compare(session, 2, None, [EAGER], [torch.bfloat16])


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_embedded_model_has_the_bits_of_one_rank_in_every_way(
    num_ranks: int, session: RaySession
) -> None:
    compare(session, num_ranks, None, WAYS, DTYPES)


@pytest.mark.timeout(120)
def test_a_model_without_these_bits_is_refused(session: RaySession, tiny: str) -> None:
    providers = {"linear": ["rowwise"], "paged_attention": ["rowwise"]}
    words = r"(?s)`linear` by `rowwise` does not .*`paged_attention` by `rowwise` does not "
    with pytest.raises(RankError, match=words) as caught:
        session.run_on_ranks(2, run_invariant, tiny, [EAGER], [1], DTYPES, providers)
    assert isinstance(caught.value.__cause__, ModelLoadError)


def compare(
    session: RaySession,
    num_ranks: int,
    source: str | None,
    ways: Sequence[Way | None],
    dtypes: Sequence[torch.dtype],
) -> None:
    """The logits of each token in every step of every way on every rank, with one rank's.

    All prompts begin alike, so that a token is among few others in one step and many in the next.
    """
    arguments = source, ways, SIZES, dtypes
    alone = run_invariant(*arguments)
    ranks = session.run_on_ranks(num_ranks, run_invariant, *arguments, timeout_s=2900)
    for at, dtype in enumerate(dtypes):
        wanted = dict(rows_of(alone[at][0]))
        assert sorted(wanted) == list(range(max(SIZES) + 1))
        for name, results in (("alone", alone), *enumerate(ranks)):
            for way, result in zip(ways, results[at], strict=True):
                for position, row in rows_of(result):
                    assert torch.equal(row, wanted[position]), (dtype, name, way, position)


def rows_of(result: Result) -> Iterator[tuple[int, Tensor]]:
    """Each token's position in its prompt, and its logits."""
    prompts, afters = result.logits[::2], result.logits[1::2]
    for size, prompt, after in zip(SIZES, prompts, afters, strict=True):
        yield from enumerate(prompt)
        yield size, after[0]
