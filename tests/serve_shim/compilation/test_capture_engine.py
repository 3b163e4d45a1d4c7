"""An engine captures before it is ready, counts replays afterwards, and refuses what cannot be."""

from pathlib import Path

import pytest
from tiny_checkpoints import make_model

from ir_passes.config import CompilationConfig
from serve_shim.engine.build import build_parts
from serve_shim.engine.parts import EngineParts
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.errors import ModelLoadError, SettingsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.settings.tree import CacheConfig, SchedulerConfig, Settings


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    return path


def build(directory: Path, status: StartupStatus, **compilation: object) -> EngineParts:
    config = CompilationConfig.model_validate({"backend": "eager", **compilation})
    settings = Settings(
        model=str(directory),
        scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16),
        cache=CacheConfig(num_blocks=20),
        compilation_config=config,
    )
    return build_parts(settings, status)


def tokens(parts: EngineParts) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    parts.core.submit(parts.factory.make("r", [3, 9, 27], params))
    found: list[int] = []
    while parts.core.has_work:
        for delivery in parts.core.step():
            if delivery.output is not None:
                found += [t for delta in delivery.output.deltas for t in delta.token_ids]
    return found


def test_all_is_captured_before_the_warm_up_and_counted_after_it(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "serve_shim")
    status = StartupStatus()
    plain = build(directory, StartupStatus())
    assert plain.captures is None
    assert "No graphs are captured: no CUDA device" in caplog.text
    parts = build(directory, status, cudagraph_mode="FULL_AND_PIECEWISE")
    phases = list(status.report())
    assert phases[phases.index(Phase.COMPILE) :] == [Phase.COMPILE, Phase.CAPTURE, Phase.WARMUP]
    captures = parts.captures
    assert captures is not None
    assert "(FULL_AND_PIECEWISE) for token counts 1, 2, 4, 8 in" in caplog.text
    assert {*captures.replays.values(), *captures.uncaptured.values()} == {0}
    assert tokens(parts) == tokens(plain)
    used = {(key.mode.value, key.tokens): count for key, count in captures.replays.items() if count}
    assert used == {("PIECEWISE", 4): 1, ("FULL", 1): 4}


def test_size_that_no_step_has_ends_the_start_before_anything_is_compiled(directory: Path) -> None:
    status = StartupStatus()
    with pytest.raises(SettingsError, match=r"`cudagraph_capture_sizes` names 17, .* 16 tokens"):
        build(directory, status, cudagraph_capture_sizes=[4, 17])
    assert Phase.COMPILE not in status.report()


def test_program_that_cannot_be_captured_ends_the_start(directory: Path) -> None:
    status = StartupStatus()
    with pytest.raises(ModelLoadError, match=r"cannot be captured: .*block_table"):
        build(directory, status, cudagraph_mode="PIECEWISE", splitting_ops=[])
    assert status.phase is Phase.CAPTURE
