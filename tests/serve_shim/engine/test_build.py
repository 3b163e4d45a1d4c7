import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ByteSize
from tiny_checkpoints import make_model

from ir_passes.config import CacheMode, CompilationConfig
from serve_shim.engine.build import build_engine, look_up
from serve_shim.engine.stats_sink import NullSink, StepStats
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.errors import CompileCacheError, ModelLoadError, SettingsError
from serve_shim.sampling.params import SamplingParams
from serve_shim.settings.tree import CacheConfig, SchedulerConfig, Settings


class Steps(NullSink):
    def __init__(self) -> None:
        self.seen: list[StepStats] = []

    def on_step(self, stats: StepStats) -> None:
        self.seen.append(stats)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model("llama").save_pretrained(path)
    return path


def small(directory: Path, level: int = 0, **settings: object) -> Settings:
    """Settings whose warm-up is short."""
    bounds = SchedulerConfig(max_num_seqs=4, max_queue=1)
    return Settings(
        model=str(directory),
        scheduler=bounds,
        optimization_level=level,
        **settings,  # pyright: ignore[reportArgumentType]
    )


async def serve_one(settings: Settings, status: StartupStatus, sink: Steps) -> list[int]:
    engine = await asyncio.to_thread(build_engine, settings, status, sink)
    try:
        assert status.phase is Phase.WARMUP
        assert sink.seen == []
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        stream = engine.generate("r", [3, 9, 27], params)
        return [t async for output in stream for delta in output.deltas for t in delta.token_ids]
    finally:
        await engine.shutdown()


def test_engine_is_built_warm_and_serves(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "serve_shim")
    status, sink = StartupStatus(), Steps()
    settings = small(directory, cache=CacheConfig(num_blocks=20))
    tokens = asyncio.run(asyncio.wait_for(serve_one(settings, status, sink), 60))
    assert len(tokens) == 5
    assert len(sink.seen) == 5
    assert list(status.report()) == [Phase.INIT, Phase.LOAD, Phase.WARMUP]
    assert (
        "Weights: float32 (auto: the checkpoint's); "
        "quantization auto (the checkpoint is not quantised): 14 x dense; 1 x embedding by "
    ) in caplog.text
    assert "KV cache size: 320 tokens" in caplog.text
    assert "Maximum concurrency for 128 tokens per request: 2.50x" in caplog.text
    assert "init engine (load model, create kv cache, warm up) took" in caplog.text


def test_engine_is_compiled_and_compared_before_it_is_warm(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    status, eager = StartupStatus(), StartupStatus()
    config = CompilationConfig(backend="eager")
    compiled = small(directory, 2, compilation_config=config)
    tokens = asyncio.run(asyncio.wait_for(serve_one(compiled, status, Steps()), 60))
    assert tokens == asyncio.run(serve_one(small(directory), eager, Steps()))
    assert list(status.report()) == [Phase.INIT, Phase.LOAD, Phase.COMPILE, Phase.WARMUP]
    assert "Compiled and eager outputs differ by" in caplog.text


def test_model_that_cannot_be_compiled_says_why_and_what_to_do(directory: Path) -> None:
    settings = small(directory, 2, compilation_config=CompilationConfig(backend="inducter"))
    with pytest.raises(ModelLoadError, match=r"`inducter`(?s:.)*--enforce-eager"):
        build_engine(settings, StartupStatus())


def required(tmp_path: Path) -> CompilationConfig:
    return CompilationConfig(
        cache_mode=CacheMode.REQUIRE,
        cache_dir=tmp_path / "cache",
        cache_key_file=tmp_path / "key",
    )


def test_a_required_cache_without_an_entry_is_an_error_with_its_reasons(
    directory: Path, tmp_path: Path
) -> None:
    settings = small(directory, 2, compilation_config=required(tmp_path))
    with pytest.raises(CompileCacheError, match=r"cache is empty(?s:.)*--cache-mode=rw") as error:
        build_engine(settings, StartupStatus())
    assert error.value.exit_code == 6


def test_a_look_up_compiles_nothing_whatever_the_mode_is(directory: Path, tmp_path: Path) -> None:
    config = required(tmp_path).model_copy(update={"cache_mode": CacheMode.RW})
    with pytest.raises(CompileCacheError, match="cache is empty") as error:
        look_up(small(directory, 2, compilation_config=config))
    assert len(error.value.reasons) == 1
    assert not (tmp_path / "cache").exists()


def test_a_model_that_runs_eagerly_has_nothing_to_look_up(directory: Path) -> None:
    with pytest.raises(SettingsError, match="runs eagerly, without the cache"):
        look_up(small(directory))


def test_context_is_cut_to_the_cache_unless_it_was_asked_for(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = CacheConfig(num_blocks=4)
    engine = build_engine(small(directory, cache=cache), StartupStatus())
    try:
        assert engine.max_model_len == 64
        assert "cut to that from 128" in caplog.text
    finally:
        asyncio.run(engine.shutdown())
    with pytest.raises(SettingsError, match="exceeds the KV cache of 64 tokens"):
        build_engine(small(directory, cache=cache, max_model_len=65), StartupStatus())


def test_context_beyond_the_models_positions_is_refused(directory: Path) -> None:
    with pytest.raises(SettingsError, match=r"`max_model_len` \(129\).*at most 128"):
        build_engine(Settings(model=str(directory), max_model_len=129), StartupStatus())


def test_context_of_a_yarn_model_is_the_extended_one(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "rope_parameters": rope}), encoding="utf-8")
    engine = build_engine(small(tmp_path), StartupStatus())
    try:
        assert engine.max_model_len == 256
    finally:
        asyncio.run(engine.shutdown())
    with pytest.raises(SettingsError, match=r"`max_model_len` \(257\).*at most 256"):
        build_engine(small(tmp_path, max_model_len=257), StartupStatus())


@pytest.mark.parametrize(
    "cache", [CacheConfig(num_blocks=10**9), CacheConfig(kv_cache_memory_bytes=ByteSize(2**50))]
)
def test_cache_beyond_the_memory_is_refused(directory: Path, cache: CacheConfig) -> None:
    bounds = SchedulerConfig(max_num_seqs=10**9, max_num_batched_tokens=10**9)
    with pytest.raises(SettingsError, match=r"bytes, but only \d+ are available; lower"):
        build_engine(Settings(model=str(directory), cache=cache, scheduler=bounds), StartupStatus())


def test_sampling_defaults_that_no_request_could_use_are_refused(tmp_path: Path) -> None:
    make_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"repetition_penalty": 0.001}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"sampling defaults of .*repetition_penalty"):
        build_engine(small(tmp_path), StartupStatus())


def test_missing_model_fails_in_the_load_phase(tmp_path: Path) -> None:
    status = StartupStatus()
    with pytest.raises(ModelLoadError):
        build_engine(Settings(model=str(tmp_path / "absent")), status)
    assert status.phase is Phase.LOAD


def test_bounds_reach_the_engine(directory: Path) -> None:
    engine = build_engine(small(directory, watchdog_timeout=7.5), StartupStatus())
    try:
        assert engine._parts.config.max_num_seqs == 4
        assert engine._parts.config.max_queue == 1
        assert engine._parts.config.watchdog_timeout_s == 7.5
    finally:
        asyncio.run(engine.shutdown())


def test_compile_stack_is_imported_only_where_something_is_compiled() -> None:
    heavy = "{'sympy', 'ir_passes.compiling'}"
    code = f"import sys, serve_shim.engine.build; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
