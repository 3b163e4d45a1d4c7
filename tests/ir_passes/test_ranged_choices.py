"""Choices by ranges of rows hold in compiled programs as in eager mode, or are an error."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from tuned_table import forget, own_table

import ir_core as ir
import ir_passes
from ir_core.autotuning.ranges import LaterRange
from ir_core.autotuning.signature import signature_of
from ir_core.autotuning.table import TunedChoice
from ir_passes.config import CompilationConfig, DynamicShapesType
from ir_passes.errors import LoweringError
from ir_passes.programs.compiled_model import CompiledModel
from ir_passes.programs.report import CacheStatus

LIMIT = 32
END = 8
SMALL, LARGE = "vllm_c", "native"


class Norms(nn.Module):
    """Two equal layers, whose norms are tuned, and between them activations, which are not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            normed = ir.ops.rms_norm(x, self.weight, 1e-5)
            x = ir.ops.silu_and_mul(torch.cat([normed, normed], -1))
        return x


class LastRow(nn.Module):
    """A norm of one row for each request, as before logits: their number is not the step's."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return ir.ops.rms_norm(x[rows], x.new_ones(8), 1e-5)


class Doubled(nn.Module):
    """A norm of two rows for each token."""

    def forward(self, x: Tensor) -> Tensor:
        return ir.ops.rms_norm(torch.cat([x, x]), x.new_ones(8), 1e-5)


@pytest.fixture(autouse=True)
def _own_table() -> Generator[None]:
    with own_table():
        yield


def adopt(end: int = END, small: str = SMALL, large: str = LARGE) -> None:
    """Norms of up to `end` rows by one provider, of more by another."""
    call = ir.ops.rms_norm.bind(rows(2), torch.ones(8), 1e-5)
    signature = signature_of(ir.ops.rms_norm, call)
    later = (LaterRange(end + 1, large),)
    choice = TunedChoice("rms_norm", signature, "vllm_c", small, (), (), later=later)
    ir.registry().priorities.adopt_tuned([choice])


def rows(count: int) -> Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(count))


def compile_norms(
    model: nn.Module | None = None, dims: Any = None, given: Sequence[Any] = (), **config: Any
) -> CompiledModel:
    limits = {"tokens": LIMIT, "requests": LIMIT}
    return ir_passes.compile(
        model or Norms(),
        (rows(6), *given),
        dynamic_dims=dims or {"x": 0},
        limits=limits,
        config=CompilationConfig.model_validate(
            {"backend": "eager", "cache_mode": "off", **config}
        ),
    )


def by_range(compiled: CompiledModel) -> dict[str, set[str]]:
    """Providers of the norms by the program's range."""
    return {
        str(program.sizes): {
            row.provider
            for piece in program.pieces
            for row in piece.selections
            if row.op == "rms_norm"
        }
        for program in compiled.report().programs
    }


def served(compiled: CompiledModel, count: int) -> str:
    """The norms' provider in the program that a call of so many tokens runs."""
    programs = [each for each in compiled.report().programs if count in each.sizes]
    program = min(programs, key=lambda each: each.sizes.first != each.sizes.last)
    (provider,) = by_range(compiled)[str(program.sizes)]
    return provider


def eager(count: int) -> str:
    return ir.ops.rms_norm.select(rows(count), torch.ones(8), 1e-5).provider


COUNTS = (1, 2, END, END + 1, LIMIT)


@pytest.mark.parametrize("kind", DynamicShapesType)
def test_each_range_has_a_program_with_its_provider(kind: DynamicShapesType) -> None:
    adopt()
    compiled = compile_norms(dynamic_shapes_config={"type": kind})
    assert [served(compiled, count) for count in COUNTS] == [SMALL] * 3 + [LARGE] * 2
    assert [eager(count) for count in COUNTS] == [served(compiled, count) for count in COUNTS]
    with ir.priority({"rms_norm": ["native"]}):
        expected = {count: Norms()(rows(count)) for count in range(1, LIMIT + 1)}
    for count, each in expected.items():
        torch.testing.assert_close(compiled(rows(count)), each)


def test_the_programs_are_cut_where_the_choice_changes_and_nowhere_else() -> None:
    compiled = compile_norms()
    assert list(by_range(compiled)) == ["1..32"]
    adopt()
    assert list(by_range(compile_norms())) == ["1..8", "9..32"]
    found = by_range(compile_norms(compile_ranges_endpoints=[4], compile_sizes=[16]))
    assert found == {"16..16": {LARGE}, "1..4": {SMALL}, "5..8": {SMALL}, "9..32": {LARGE}}


def test_a_boundary_behind_the_first_row_gives_it_a_program_of_its_own() -> None:
    adopt(end=1)
    compiled = compile_norms()
    assert by_range(compiled) == {"1..1": {SMALL}, "2..32": {LARGE}}
    assert [eager(count) for count in (1, 2)] == [SMALL, LARGE]
    torch.testing.assert_close(compiled(rows(1)), Norms()(rows(1)))


def test_a_boundary_beyond_all_sizes_cuts_nothing() -> None:
    adopt(end=LIMIT)
    assert by_range(compile_norms()) == {"1..32": {SMALL}}


class Splitting(nn.Module):
    """A norm, then an activation, in pieces of their own."""

    def forward(self, x: Tensor) -> Tensor:
        x = ir.ops.rms_norm(x, x.new_ones(8), 1e-5)
        x = ir.ops.quantize_int8_per_token(x)[1] * x
        return ir.ops.silu_and_mul(torch.cat([x, x], -1))


def test_only_pieces_whose_choices_agree_are_shared_between_ranges() -> None:
    adopt()
    options = {"splitting_ops": ["quantize_int8_per_token"], "compile_ranges_endpoints": [16]}
    programs = compile_norms(Splitting(), **options).report().programs
    assert [str(each.sizes) for each in programs] == ["1..8", "9..16", "17..32"]
    low, middle, high = (list(each.pieces) for each in programs)
    assert len(low) == 2
    assert low[0].selections != middle[0].selections
    assert low[1] == middle[1]
    assert middle == high


def test_passes_ask_for_the_choice_of_their_range() -> None:
    """The norm is fused with the quantisation only where one library would run both."""
    adopt()

    class Quantizing(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return ir.ops.quantize_int8_per_token(ir.ops.rms_norm(x, x.new_ones(8), 1e-5))

    with ir.priority({"rms_norm_quantize_int8_per_token": ["vllm_c"]}):
        compiled = compile_norms(Quantizing())
    fused = {
        str(program.sizes): {row.op for piece in program.pieces for row in piece.selections}
        for program in compiled.report().programs
    }
    assert fused["1..8"] == {"rms_norm_quantize_int8_per_token"}
    assert fused["9..32"] == {"rms_norm", "quantize_int8_per_token"}


@pytest.mark.parametrize(
    ("model", "given", "dims", "bounds"),
    [
        (LastRow(), (torch.tensor([0, 2, 3]),), {"x": 0, "rows": {0: "requests"}}, "0.."),
        (Doubled(), (), {"x": 0}, "2..16"),
    ],
)
def test_rows_that_straddle_a_boundary_are_an_error(
    model: nn.Module, given: tuple[Tensor, ...], dims: Any, bounds: str
) -> None:
    adopt()
    with pytest.raises(LoweringError) as error:
        compile_norms(model, dims, given)
    text = str(error.value)
    assert text.startswith("`rms_norm")
    assert "test_ranged_choices.py:" in text
    assert f"Op `rms_norm` is called with {bounds}" in text
    assert f"1..8: {SMALL}, 9..: {LARGE}" in text
    assert "let one end at 8" in text


def test_a_priority_of_the_users_settles_what_straddles() -> None:
    adopt()
    with ir.priority({"rms_norm": ["native"]}):
        compiled = compile_norms(Doubled())
    assert {each for found in by_range(compiled).values() for each in found} == {"native"}


def test_rows_that_cannot_straddle_are_none() -> None:
    """Half a step's tokens are in the range of the whole, if the program is for few."""
    adopt()

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return ir.ops.rms_norm(x[: x.shape[0] // 16 + 1], x.new_ones(8), 1e-5)

    assert {*by_range(compile_norms(Half()))} == {"1..8", "9..32"}


def test_batch_invariance_follows_no_ranges() -> None:
    adopt()
    ir.registry().set_batch_invariant(True)
    try:
        assert list(by_range(compile_norms())) == ["1..32"]
        assert eager(1) == eager(LIMIT)
    finally:
        ir.registry().set_batch_invariant(None)


def test_a_warm_start_rests_on_the_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = {"backend": "inductor", "cache_mode": "rw", "cache_dir": tmp_path / "c"}

    def start(change: Callable[[], None]) -> CompiledModel:
        forget(monkeypatch)
        change()
        return compile_norms(**config)

    first, second = start(adopt), start(adopt)
    assert second.report().cache.status is CacheStatus.HIT
    assert by_range(second) == by_range(first) == {"1..8": {SMALL}, "9..32": {LARGE}}
    for count in COUNTS:
        torch.testing.assert_close(second(rows(count)), first(rows(count)))
    moved = start(lambda: adopt(end=4)).report().cache
    assert moved.status is CacheStatus.MISS
    assert f"timing prefers 1..4: {SMALL}, 5..: {LARGE} for `rms_norm`" in str(moved.reasons)
    assert f"and preferred 1..8: {SMALL}, 9..: {LARGE}" in str(moved.reasons)
    assert start(adopt).report().cache.status is CacheStatus.HIT
