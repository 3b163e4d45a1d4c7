"""Compiled models are stored, found again without a trace, and never mistaken for one another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
import ir_passes
from ir_passes.cache.compile_cache import effective_mode, open_store
from ir_passes.cache.entry import Entry
from ir_passes.config import CacheMode, CompilationConfig
from ir_passes.errors import CacheMissError
from ir_passes.programs.compiled_model import CompiledModel
from ir_passes.programs.progress import Progress, no_progress
from ir_passes.programs.report import CacheStatus

IN_PLACE = {"rms_norm": ["vllm_c"], "fused_add_rms_norm": ["vllm_c"]}


class Norms(nn.Module):
    """Two norms with a residual: kernels only, so that nothing is built by a compiler."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 8), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        normed = ir.ops.rms_norm(x, self.weight, self.eps)
        return ir.ops.fused_add_rms_norm(normed, residual, self.weight, self.eps)


class Donating(Norms):
    """Computes the same, and gives its activations away."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        normed = ir.ops.rms_norm(x, self.weight, self.eps)
        return ir.ops.fused_add_rms_norm.maybe_inplace(normed, residual, self.weight, self.eps)


@pytest.fixture
def config(tmp_path: Path) -> CompilationConfig:
    return config_at(tmp_path)


def config_at(directory: Path, **changes: Any) -> CompilationConfig:
    given = {"cache_mode": "rw", "cache_dir": directory / "root", "cache_key_file": directory / "k"}
    return CompilationConfig.model_validate({**given, **changes})


def arguments(num_tokens: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    return (
        torch.randn(num_tokens, 8, generator=generator),
        torch.randn(num_tokens, 8, generator=generator),
    )


def compile_model(
    config: CompilationConfig,
    model: nn.Module | None = None,
    limit: int = 16,
    priority: Mapping[str, Sequence[str]] = IN_PLACE,
    progress: Progress = no_progress,
) -> CompiledModel:
    with ir.priority(priority):
        return ir_passes.compile(
            model or Norms(),
            arguments(),
            dynamic_dims={"x": 0, "residual": 0},
            limits={"tokens": limit},
            config=config,
            progress=progress,
        )


def status(compiled: CompiledModel) -> CacheStatus:
    return compiled.report().cache.status


def why(compiled: CompiledModel) -> str:
    return "\n".join(compiled.report().cache.reasons)


def check(compiled: CompiledModel, model: nn.Module, sizes: Sequence[int] = (1, 2, 7, 16)) -> None:
    for size in sizes:
        with torch.no_grad():
            torch.testing.assert_close(compiled(*arguments(size)), model(*arguments(size)))


def test_second_compilation_is_a_hit_and_says_the_same(config: CompilationConfig) -> None:
    cold, warm = compile_model(config), compile_model(config)
    assert (status(cold), status(warm)) == (CacheStatus.MISS, CacheStatus.HIT)
    assert warm.report().cache.directory == cold.report().cache.directory
    assert warm.report().programs == cold.report().programs
    assert warm.report().guards == cold.report().guards
    assert warm.selected_impls == cold.selected_impls
    check(warm, Norms())


def test_hit_reads_the_weights_of_its_own_model(config: CompilationConfig) -> None:
    compile_model(config)
    other = Norms()
    other.weight.mul_(3)
    check(compile_model(config, other), other)


@pytest.mark.parametrize("save_format", ["binary", "unpacked"])
def test_every_shape_mode_and_program_is_restored(tmp_path: Path, save_format: str) -> None:
    shapes = {"type": "backed", "guards": "rebuild"}
    config = config_at(
        tmp_path,
        compile_cache_save_format=save_format,
        compile_sizes=[4],
        compile_ranges_endpoints=[8],
        dynamic_shapes_config=shapes,
    )
    cold, warm = compile_model(config), compile_model(config)
    assert status(warm) is CacheStatus.HIT
    ranges = ["4..4", "1..8", "9..16", "1..1"]
    assert [str(each.sizes) for each in warm.report().programs] == ranges
    assert warm.report().broken == cold.report().broken
    check(warm, Norms(), range(1, 17))


def test_entry_can_be_read_by_a_person(tmp_path: Path) -> None:
    compiled = compile_model(config_at(tmp_path, compile_cache_save_format="unpacked"))
    directory = Path(str(compiled.report().cache.directory))
    assert "What Dynamo made of Norms" in (directory / "transformed_code.py").read_text()
    graph = (directory / "computation_graph.py").read_text()
    assert "f32[" in graph
    assert "def program" in graph
    assert "rms_norm" in (directory / "code_0" / "piece.py").read_text()
    assert not (directory / "code.zip").exists()


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (Norms(1e-5), Norms(1e-6), "self.eps"),
        (Norms(), Donating(), "model"),
        (Donating(), Norms(), "model"),
    ],
)
def test_models_that_differ_share_no_entry(
    config: CompilationConfig, first: nn.Module, second: nn.Module, named: str
) -> None:
    one, other = compile_model(config, first), compile_model(config, second)
    assert status(other) is CacheStatus.MISS
    assert named in why(other)
    assert one.report().cache.directory != other.report().cache.directory
    check(other, second)
    assert status(compile_model(config, first)) is CacheStatus.HIT


def test_constant_from_a_file_is_told_apart(
    config: CompilationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sources, the classes and the weights are equal: only what was read differs."""
    (tmp_path / "scaled_model.py").write_text(
        "import json, pathlib\n"
        "from torch import Tensor, nn\n"
        "import torch\n"
        "import ir_core as ir\n"
        "SCALE = json.loads(pathlib.Path(__file__).with_name('scale.json').read_text())\n"
        "class Scaled(nn.Module):\n"
        "    def __init__(self) -> None:\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(8), requires_grad=False)\n"
        "    def forward(self, x: Tensor, residual: Tensor) -> Tensor:\n"
        "        return ir.ops.rms_norm(x + residual, self.weight, SCALE)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[CompiledModel] = []
    for scale in (1e-5, 0.5):
        (tmp_path / "scale.json").write_text(json.dumps(scale))
        sys.modules.pop("scaled_model", None)
        module: Any = __import__("scaled_model")
        found.append(compile_model(config, module.Scaled()))
        check(found[-1], module.Scaled())
    assert status(found[1]) is CacheStatus.MISS
    assert "SCALE" in why(found[1])


def test_source_that_changes_while_it_is_compiled(
    config: CompilationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's digest would be the new source's, and the code the old one's."""
    text = (
        "import torch\n"
        "from torch import Tensor, nn\n"
        "import ir_core as ir\n"
        "class Edited(nn.Module):\n"
        "    def forward(self, x: Tensor, residual: Tensor) -> Tensor:\n"
        "        return ir.ops.rms_norm(x + residual, None, 1e-5)\n"
    )
    source = tmp_path / "edited_model.py"
    source.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def edit(phase: str, done: int, _: int) -> None:
        if phase != "tracing" and done == 0:
            source.write_text(text.replace("1e-5", "0.0625"))

    module: Any = __import__("edited_model")
    edited = compile_model(config, module.Edited(), progress=edit)
    assert status(edited) is CacheStatus.NOT_STORED
    assert "`edited_model.py` was saved after module `edited_model` was imported" in why(edited)
    sys.modules.pop("edited_model")
    module = __import__("edited_model")
    compiled = compile_model(config, module.Edited())
    assert status(compiled) is CacheStatus.MISS
    with torch.no_grad():
        torch.testing.assert_close(compiled(*arguments(3)), module.Edited()(*arguments(3)))


def test_compiler_that_changes_while_it_compiles(
    config: CompilationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit(phase: str, *_: int) -> None:
        if phase != "tracing":
            monkeypatch.setattr("ir_passes.cache.factors.digest_of_package", lambda _: "edited")

    compiled = compile_model(config, progress=edit)
    assert status(compiled) is CacheStatus.NOT_STORED
    assert "The sources of `ir-core` changed" in why(compiled)


class Branching(nn.Module):
    """Reads `small` for one token only, which no other token count looks at."""

    def __init__(self, small: float) -> None:
        super().__init__()
        self.small = small

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = ir.ops.rms_norm(x + residual, None, 1e-5)
        return y * self.small if x.shape[0] == 1 else y


def test_constant_that_only_a_rebuilt_program_reads(tmp_path: Path) -> None:
    shapes = {"type": "backed", "guards": "rebuild"}
    config = config_at(tmp_path, dynamic_shapes_config=shapes)
    compile_model(config, Branching(2.0))
    other = compile_model(config, Branching(3.0))
    assert status(other) is CacheStatus.MISS
    assert "self.small is 3.0, was 2.0" in why(other).replace("`", "")
    check(other, Branching(3.0))
    assert status(compile_model(config, Branching(2.0))) is CacheStatus.HIT


def test_kernel_with_a_long_name(tmp_path: Path) -> None:
    """Inductor names a kernel after what it fuses, at any length."""

    class Long(nn.Module):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            for step in range(40):
                x = torch.sigmoid(torch.tanh(x) + residual.cos() * step).exp().sin().abs()
            return x

    config = config_at(tmp_path, compile_cache_save_format="unpacked")
    assert status(compile_model(config, Long())) is CacheStatus.MISS
    warm = compile_model(config, Long())
    assert status(warm) is CacheStatus.HIT
    check(warm, Long())


def test_fault_of_storing_does_not_stop_a_compiled_model(
    config: CompilationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("ir_passes.cache.storing.pack", fail)
    compiled = compile_model(config)
    assert status(compiled) is CacheStatus.NOT_STORED
    assert why(compiled).endswith("ZeroDivisionError: odd")
    check(compiled, Norms())


@pytest.mark.parametrize("damage", ["conditions", "programs", "code"])
def test_odd_entry_is_a_miss(tmp_path: Path, damage: str) -> None:
    """Whoever is believed by permission alone may write anything."""
    config = config_at(tmp_path, cache_trust="directory")
    compile_model(config)
    (entry,) = open_store(config).entries()
    assert isinstance(entry, Entry)
    files = entry.read_all()
    if damage == "conditions":
        value = json.loads(files["conditions.json"])
        value["sources"] = []
        files["conditions.json"] = json.dumps(value).encode()
    else:
        value = json.loads(files["model.json"])
        value["programs"] = [] if damage == "programs" else [
            {**value["programs"][0], "code": {}}
        ]  # fmt: skip
        files["model.json"] = json.dumps(value).encode()
    open_store(config).quarantine(entry, "replaced by the test")
    open_store(config).publish(entry.factors, files, entry.facts)
    again = compile_model(config)
    assert status(again) is CacheStatus.MISS
    check(again, Norms())


def test_user_without_a_home_compiles_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(*_: object) -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr("ir_passes.cache.compile_cache.default_root", no_home)
    compiled = compile_model(CompilationConfig(cache_mode=CacheMode.RW))
    assert status(compiled) is CacheStatus.NOT_STORED
    assert "no home" in why(compiled)
    with pytest.raises(CacheMissError, match="no home"):
        compile_model(CompilationConfig(cache_mode=CacheMode.REQUIRE))


def test_priority_is_told_apart_and_named(config: CompilationConfig) -> None:
    compile_model(config)
    other = compile_model(config, priority={**IN_PLACE, "rms_norm": ["native"]})
    assert status(other) is CacheStatus.MISS
    assert "providers of `rms_norm` are asked in the order" in why(other)


def test_nearest_entry_explains_a_miss(config: CompilationConfig) -> None:
    compile_model(config)
    other = compile_model(config, limit=17)
    assert status(other) is CacheStatus.MISS
    assert why(other).startswith('limits is `{"tokens": 17}`, and was `{"tokens": 16}` in ')


def test_require_never_compiles(tmp_path: Path) -> None:
    with pytest.raises(CacheMissError, match="is empty"):
        compile_model(config_at(tmp_path, cache_mode="require"))
    compile_model(config_at(tmp_path))
    assert status(compile_model(config_at(tmp_path, cache_mode="require"))) is CacheStatus.HIT
    with pytest.raises(CacheMissError, match=r"(?s)require.*self\.eps"):
        compile_model(config_at(tmp_path, cache_mode="require"), Norms(1e-3))


def test_read_only_cache_stores_nothing(tmp_path: Path) -> None:
    compiled = compile_model(config_at(tmp_path, cache_mode="ro"))
    assert status(compiled) is CacheStatus.MISS
    assert list(tmp_path.iterdir()) == []


def test_off_touches_nothing(tmp_path: Path) -> None:
    compiled = compile_model(config_at(tmp_path, cache_mode="off"))
    assert status(compiled) is CacheStatus.OFF
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["IR_DISABLE_COMPILE_CACHE", "VLLM_DISABLE_COMPILE_CACHE"])
def test_variable_turns_the_cache_off_unless_a_mode_is_set(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IR_DISABLE_COMPILE_CACHE", raising=False)
    assert effective_mode(CompilationConfig()) is CacheMode.RW
    monkeypatch.setenv(name, "1")
    assert effective_mode(CompilationConfig()) is CacheMode.OFF
    assert effective_mode(CompilationConfig(cache_mode=CacheMode.RO)) is CacheMode.RO


def test_damaged_entry_is_set_aside_and_made_anew(config: CompilationConfig) -> None:
    directory = Path(str(compile_model(config).report().cache.directory))
    (directory / "model.json").write_bytes(b"{}")
    again = compile_model(config)
    assert status(again) is CacheStatus.MISS
    assert "model.json" in why(again)
    check(again, Norms())
    assert status(compile_model(config)) is CacheStatus.HIT
    assert config.cache_dir is not None
    assert any((config.cache_dir / "quarantine").iterdir())


def test_model_that_cannot_be_stored_runs_and_says_why(config: CompilationConfig) -> None:
    class Counting(Norms):
        calls = 0

        def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            self.last = x + 1
            return super().forward(x, residual)

    compiled = compile_model(config, Counting())
    assert status(compiled) is CacheStatus.NOT_STORED
    assert "writes attributes" in why(compiled)
    check(compiled, Norms())


def test_backend_that_stores_no_code_runs_and_says_why(tmp_path: Path) -> None:
    compiled = compile_model(config_at(tmp_path, backend="eager"))
    assert status(compiled) is CacheStatus.NOT_STORED
    assert "Backend `eager` does not store its code" in why(compiled)


def test_dump_asks_for_a_compilation(tmp_path: Path) -> None:
    compile_model(config_at(tmp_path))
    dumped = compile_model(config_at(tmp_path, debug_dump_path=tmp_path / "dump"))
    assert status(dumped) is CacheStatus.OFF
    assert "debug_dump_path" in why(dumped)
    assert (tmp_path / "dump" / "transformed_code.py").exists()


def test_wrong_arguments_are_refused_after_a_hit(config: CompilationConfig) -> None:
    compile_model(config)
    warm = compile_model(config)
    with pytest.raises(ir_passes.CompileError, match=r"`x` is torch\.float64"):
        warm(arguments()[0].double(), arguments()[1])
    with pytest.raises(ir_passes.CompileError, match="17 tokens"):
        warm(*arguments(17))


_WARM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import test_compile_cache as tests
compiled = tests.compile_model(tests.config_at(Path(sys.argv[1]), cache_mode="require"))
with tests.torch.no_grad():
    found, wanted = compiled(*tests.arguments(3)), tests.Norms()(*tests.arguments(3))
print(all(map(tests.torch.allclose, found, wanted)))
print(compiled.report().cache.status.value)
heavy = ("sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes")
print([name for name in sys.modules if name.startswith(heavy)])
"""


def test_another_process_hits_without_the_compile_stack_and_without_a_compiler(
    tmp_path: Path,
) -> None:
    """Elsewhere: another home, another directory of the cache, no compiler to be found."""
    here = str(Path(__file__).parent)
    first = run(_WARM.replace("require", "rw"), tmp_path, here, os.environ["PATH"])
    assert first.splitlines()[:2] == ["True", "miss"]
    moved = tmp_path / "another" / "place" / "of-the-cache"
    moved.mkdir(parents=True)
    (tmp_path / "root").rename(moved / "root")
    (tmp_path / "k").rename(moved / "k")
    assert run(_WARM, moved, here, "/nowhere").splitlines() == ["True", "hit", "[]"]


def run(script: str, directory: Path, here: str, path: str) -> str:
    environment = {**os.environ, "PATH": path, "HOME": str(directory), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory), here],
        capture_output=True, text=True, check=False, env=environment, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_entries_of_equal_requests_are_one(config: CompilationConfig) -> None:
    compile_model(config)
    compile_model(config, Norms(1e-6))
    compile_model(config)
    entries = [each for each in open_store(config).entries() if isinstance(each, Entry)]
    assert len(entries) == 2
    assert len({each.key for each in entries}) == 1
