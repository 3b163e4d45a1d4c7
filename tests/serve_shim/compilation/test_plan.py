"""What settings ask of the compile stack, each open decision with its reason."""

import subprocess
import sys

import pytest

from ir_passes.config import CompilationMode
from serve_shim.compilation.plan import CompilationPlan, plan_compilation
from serve_shim.errors import SettingsError
from serve_shim.settings import resolve


def plan(*argv: str) -> CompilationPlan:
    return plan_compilation(resolve(argv).settings)


def test_a_model_is_compiled_unless_somebody_says_otherwise():
    decided = plan()
    assert decided.is_compiled
    assert decided.config.mode is CompilationMode.VLLM_COMPILE
    assert decided.reasons["mode"] == "the optimization level is 2"


@pytest.mark.parametrize(
    ("level", "mode"),
    [
        ("-O0", CompilationMode.NONE),
        ("-O1", CompilationMode.VLLM_COMPILE),
        ("-O2", CompilationMode.VLLM_COMPILE),
        ("-O3", CompilationMode.VLLM_COMPILE),
    ],
)
def test_the_level_decides_and_is_the_reason(level: str, mode: CompilationMode):
    decided = plan(level)
    assert decided.config.mode is mode
    assert decided.is_compiled is (mode is not CompilationMode.NONE)
    assert decided.reasons["mode"] == f"the optimization level is {level[2:]}"


@pytest.mark.parametrize("level", ["-O0", "-O3"])
@pytest.mark.parametrize("mode", ["none", "vllm_compile"])
def test_a_mode_beats_the_level(level: str, mode: str):
    decided = plan(level, f"-cc.mode={mode}")
    assert decided.config.mode == mode
    assert decided.is_compiled is (mode == "vllm_compile")
    assert decided.reasons["mode"] == "`compilation_config.mode` is set"


def test_a_null_mode_leaves_the_decision_to_the_level():
    assert plan("-cc.mode=null", "-O0").reasons["mode"] == "the optimization level is 0"


@pytest.mark.parametrize("rest", [[], ["-O3"], ["-cc.mode=none"], ["-O3", "-cc.mode=0"]])
def test_enforce_eager_beats_the_level(rest: list[str]):
    decided = plan("--enforce-eager", *rest)
    assert not decided.is_compiled
    assert decided.config.mode is CompilationMode.NONE
    assert decided.reasons["mode"] == "`enforce_eager` is set"


def test_enforce_eager_with_a_mode_that_compiles_is_a_contradiction():
    with pytest.raises(SettingsError) as error:
        plan("--enforce-eager", "-cc.mode=vllm_compile")
    assert "`enforce_eager`" in str(error.value)
    assert "`compilation_config.mode` (vllm_compile)" in str(error.value)
    assert "remove one" in str(error.value)


def test_what_the_user_chose_is_kept():
    decided = plan(
        "-cc.backend=eager",
        "-cc.compile_sizes=4,1",
        "-cc.dynamic_shapes_config.type=backed",
        "--disable-pass=eliminate_noops",
        "--pass-limit=1",
    )
    config = decided.config
    assert (config.backend, config.compile_sizes) == ("eager", (1, 4))
    assert config.dynamic_shapes_config.type == "backed"
    assert (config.pass_config.disable, config.pass_config.limit) == (("eliminate_noops",), 1)


def test_the_settings_themselves_do_not_change():
    settings = resolve(["-O3"]).settings
    plan_compilation(settings)
    assert settings.compilation_config.mode is None


def test_the_module_imports_no_torch():
    code = """
import importlib.util, sys
from pathlib import Path
import serve_shim
path = Path(serve_shim.__file__).parent / "compilation" / "plan.py"
spec = importlib.util.spec_from_file_location("plan", path)
module = importlib.util.module_from_spec(spec)
sys.modules["plan"] = module
spec.loader.exec_module(module)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
