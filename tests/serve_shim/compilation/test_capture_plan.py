"""What settings ask of graph capture: decided with a reason, or refused with both options."""

from dataclasses import replace

import pytest

from ir_passes.config import CudagraphMode
from serve_shim.compilation.plan import plan_compilation, plan_graphs, plan_tape
from serve_shim.engine.config import EngineConfig
from serve_shim.errors import SettingsError
from serve_shim.settings import resolve

BOUNDS = EngineConfig(max_model_len=64, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=16)

MODE = "-cc.cudagraph_mode="
SIZES = "-cc.cudagraph_capture_sizes="
TAPE = "-cc.max_tape_tokens="


def option_of(argument: str) -> str:
    """`cudagraph_mode` of `-cc.cudagraph_mode=FULL`."""
    return argument.removeprefix("-cc.").partition("=")[0]


def decide(*argv: str, has_cuda: bool = False) -> tuple[CudagraphMode | None, str]:
    plan = plan_compilation(resolve(argv).settings, has_cuda=has_cuda)
    return plan.config.cudagraph_mode, plan.reasons["cudagraph_mode"]


def test_the_device_decides_what_nobody_asked_for() -> None:
    on_cpu = "no CUDA device: a CPU has a tape instead"
    assert decide() == (CudagraphMode.NONE, on_cpu)
    assert decide("-O3") == (CudagraphMode.NONE, on_cpu)
    for level in ("-O1", "-O2", "-O3"):
        assert decide(level, has_cuda=True)[0] is CudagraphMode.FULL_AND_PIECEWISE
    eager = (CudagraphMode.NONE, "the model is not compiled")
    assert decide("-O0", has_cuda=True) == decide("--enforce-eager") == eager


@pytest.mark.parametrize("mode", CudagraphMode)
def test_a_mode_is_kept(mode: CudagraphMode) -> None:
    reason = f"`compilation_config.cudagraph_mode` ({mode.value}) is set"
    assert decide(MODE + mode.value.lower()) == (mode, reason)


@pytest.mark.parametrize("option", [SIZES + "1,2,4,8", "-cc.max_cudagraph_capture_size=8"])
def test_sizes_ask_for_capture_by_themselves(option: str) -> None:
    mode, reason = decide(option)
    assert mode is CudagraphMode.FULL_AND_PIECEWISE
    assert reason == f"`compilation_config.{option_of(option)}` is given"


def test_no_sizes_are_no_capture() -> None:
    assert decide(SIZES + "[]", has_cuda=True)[0] is CudagraphMode.NONE
    with pytest.raises(SettingsError, match=r"cudagraph_mode` \(FULL\).*capture_sizes` is empty"):
        decide(SIZES + "[]", MODE + "FULL")


@pytest.mark.parametrize("wish", [MODE + "PIECEWISE", MODE + "FULL", SIZES + "4"])
@pytest.mark.parametrize(
    ("eager", "named"),
    [
        ("--enforce-eager", "`enforce_eager` is set"),
        ("-cc.mode=none", "`compilation_config.mode` is set"),
        ("-O0", "the optimization level is 0"),
    ],
)
def test_capture_of_an_eager_model_names_both_options(wish: str, eager: str, named: str) -> None:
    with pytest.raises(SettingsError) as error:
        decide(wish, eager)
    assert option_of(wish) in str(error.value)
    assert named in str(error.value)


def test_sizes_without_capture_are_a_contradiction() -> None:
    with pytest.raises(SettingsError, match=r"cudagraph_mode` \(NONE\) and .*capture_sizes`"):
        decide(MODE + "NONE", SIZES + "4")


def sizes(*argv: str) -> tuple[int, ...] | None:
    plan = plan_compilation(resolve(argv).settings)
    table = plan_graphs(plan.config, BOUNDS)
    return None if table is None else table.sizes


def test_sizes_follow_the_bounds_of_the_engine() -> None:
    assert sizes() is None
    assert sizes(MODE + "FULL") == (1, 2, 4, 8)
    assert sizes(MODE + "FULL", "-cc.max_cudagraph_capture_size=16") == (1, 2, 4, 8, 16)
    assert sizes(SIZES + "16,3") == (3, 16)


def tape(*argv: str) -> int:
    return plan_tape(plan_compilation(resolve(argv).settings), BOUNDS)


def test_a_tape_holds_as_many_as_decode_at_once() -> None:
    assert tape() == 4
    assert tape(TAPE + "3") == 3
    assert tape(TAPE + "0") == 0
    assert tape("--enforce-eager") == tape(MODE + "FULL") == 0
    many = replace(BOUNDS, max_num_seqs=200, max_num_batched_tokens=256)
    assert plan_tape(plan_compilation(resolve([]).settings), many) == 64


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("--enforce-eager", "`max_tape_tokens` records a compiled model, but `enforce_eager` is"),
        (MODE + "FULL", "`cudagraph_mode` contradict each other"),
        ("-O1", r"`max_tape_tokens` \(5\) exceeds `max_num_seqs` \(4\)"),
    ],
)
def test_a_tape_that_cannot_be_names_what_is_in_its_way(other: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason.replace("`max_t", "max_t")):
        tape(TAPE + "5", other)


@pytest.mark.parametrize("option", [SIZES + "17,1", "-cc.max_cudagraph_capture_size=17"])
def test_size_that_no_step_has_names_option_size_and_limit(option: str) -> None:
    with pytest.raises(SettingsError) as error:
        sizes(option)
    assert f"`{option_of(option)}` names 17, but a step has at most 16" in str(error.value)


@pytest.mark.parametrize("wrong", ["0", "-1", "4,4", "true", "x"])
def test_impossible_sizes_are_located(wrong: str) -> None:
    with pytest.raises(SettingsError, match="cudagraph_capture_sizes"):
        resolve([SIZES + wrong])
