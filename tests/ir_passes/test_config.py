import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from ir_passes.config import (
    AutotuneMode,
    CacheMode,
    CompilationConfig,
    CompilationMode,
    CudagraphMode,
    DynamicShapesConfig,
    DynamicShapesType,
    PassConfig,
)


@pytest.mark.parametrize(
    ("spelling", "mode"),
    [
        (0, CompilationMode.NONE),
        ("3", CompilationMode.VLLM_COMPILE),
        ("NONE", CompilationMode.NONE),
        ("vllm-compile", CompilationMode.VLLM_COMPILE),
        (CompilationMode.DYNAMO_TRACE_ONCE, CompilationMode.DYNAMO_TRACE_ONCE),
    ],
)
def test_compilation_mode_is_found_by_number_or_name(spelling: object, mode: CompilationMode):
    assert CompilationConfig.model_validate({"mode": spelling}).mode is mode


@pytest.mark.parametrize("spelling", [4, -1, True, "fast", 1.0, []])
def test_compilation_mode_refuses_what_it_does_not_know(spelling: object):
    with pytest.raises(ValidationError, match="mode"):
        CompilationConfig.model_validate({"mode": spelling})


@pytest.mark.parametrize(
    ("spelling", "kind"),
    [
        ("unbacked", DynamicShapesType.UNBACKED),
        ("BACKED", DynamicShapesType.BACKED),
        ("backed-size-oblivious", DynamicShapesType.BACKED_SIZE_OBLIVIOUS),
    ],
)
def test_dynamic_shapes_type_is_found_in_either_case(spelling: str, kind: DynamicShapesType):
    config = DynamicShapesConfig.model_validate({"type": spelling})
    assert config.type is kind


def test_cudagraph_mode_none_is_a_mode_and_null_is_undecided():
    assert CompilationConfig.model_validate({"cudagraph_mode": "none"}).cudagraph_mode is (
        CudagraphMode.NONE
    )
    assert CompilationConfig.model_validate({"cudagraph_mode": None}).cudagraph_mode is None


def test_yaml_switches_are_read_as_words():
    config = CompilationConfig.model_validate({"autotune": True, "cache_mode": False})
    assert config.autotune is AutotuneMode.ON
    assert config.cache_mode is CacheMode.OFF


def test_sizes_are_sorted_and_duplicates_refused():
    config = CompilationConfig.model_validate({"compile_sizes": [8, 1, 4]})
    assert config.compile_sizes == (1, 4, 8)
    with pytest.raises(ValidationError, match="names a size twice"):
        CompilationConfig.model_validate({"cudagraph_capture_sizes": [1, 1]})


@pytest.mark.parametrize("size", [0, -1, True, "x", 1.5])
def test_sizes_refuse_what_is_no_token_count(size: object):
    with pytest.raises(ValidationError, match="compile_ranges_endpoints"):
        CompilationConfig.model_validate({"compile_ranges_endpoints": [size]})


def test_empty_path_is_not_the_current_directory():
    with pytest.raises(ValidationError, match="wants a path"):
        CompilationConfig.model_validate({"debug_dump_path": ""})


def test_number_of_passes_may_be_zero_but_not_true():
    assert PassConfig(limit=0).limit == 0
    with pytest.raises(ValidationError, match="wants a number"):
        PassConfig.model_validate({"limit": True})


@pytest.mark.parametrize(
    ("model", "field"),
    [(CompilationConfig, "compile_size"), (PassConfig, "fuse"), (DynamicShapesConfig, "kind")],
)
def test_unknown_keys_are_refused(model: type[CompilationConfig], field: str):
    with pytest.raises(ValidationError, match="Extra inputs"):
        model.model_validate({field: 1})


def test_configuration_is_immutable():
    config = CompilationConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.backend = "eager"


def test_every_field_is_documented():
    for model in (CompilationConfig, DynamicShapesConfig, PassConfig):
        assert [n for n, f in model.model_fields.items() if not f.description] == []


def test_specification_example_is_accepted():
    config = CompilationConfig(
        dynamic_shapes_config=DynamicShapesConfig(type=DynamicShapesType.BACKED_SIZE_OBLIVIOUS),
        debug_dump_path=Path("dump"),
    )
    assert config.dynamic_shapes_config.type.value == "backed_size_oblivious"


def test_import_does_not_load_torch():
    code = "import sys, ir_passes.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
