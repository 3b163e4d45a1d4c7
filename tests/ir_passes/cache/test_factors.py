"""Every input that decides the compiled result changes the key, and nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ir_core as ir
from ir_core.groups import Group, scoped_groups
from ir_passes.cache import factors as factors_module
from ir_passes.cache.factors import IRRELEVANT, config_fields, digest_of_package, factors_of
from ir_passes.cache.manifest import key_of
from ir_passes.config import CompilationConfig
from ir_passes.errors import CannotStoreError
from ir_passes.plugins import GROUP, Addition
from ir_passes.programs.request import CompileRequest
from ir_passes.transforms.shard_sequence import ShardSequence

# A value that differs from the default, for every field of the configuration.
OTHERS: Mapping[str, Any] = {
    "mode": "vllm_compile",
    "backend": "eager",
    "splitting_ops": ["rms_norm"],
    "compile_sizes": [4],
    "compile_ranges_endpoints": [8],
    "cudagraph_mode": "FULL",
    "cudagraph_capture_sizes": [1, 2],
    "max_cudagraph_capture_size": 4,
    "max_tape_tokens": 4,
    "dynamic_shapes_config.type": "backed",
    "dynamic_shapes_config.evaluate_guards": True,
    "dynamic_shapes_config.guards": "fail",
    "pass_config.fuse_norm_quant": True,
    "pass_config.fuse_act_quant": True,
    "pass_config.fuse_allreduce_rms": True,
    "pass_config.enable_qk_norm_rope_fusion": False,
    "pass_config.fuse_rope_kvcache": False,
    "pass_config.enable_sp": True,
    "pass_config.sp_min_token_num": 8,
    "pass_config.fuse_gemm_comms": True,
    "pass_config.enable": ["eliminate_noops"],
    "pass_config.disable": ["eliminate_noops"],
    "pass_config.order": ["fuse_add_rms_norm", "eliminate_noops"],
    "pass_config.limit": 1,
    "pass_config.verify_each": True,
    "inductor_compile_config": {"max_autotune": True},
    "autotune": "on",
    "cache_mode": "ro",
    "cache_dir": "somewhere",
    "cache_key_file": "somewhere.key",
    "cache_trust": "directory",
    "cache_max_size": 1000,
    "compile_cache_save_format": "unpacked",
    "debug_dump_path": "dumps",
}


class Model(nn.Module):
    def __init__(self, width: int = 8, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, dtype=dtype))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x * self.weight * scale


def request(**changes: Any) -> CompileRequest:
    given: dict[str, Any] = {
        "function": Model(),
        "args": (torch.zeros(6, 8),),
        "dims": {"x": 0},
        "limits": {"tokens": 16},
        **changes,
    }
    return CompileRequest(**given)


def key(**changes: Any) -> str:
    return key_of(factors_of(request(**changes)))


def config(field: str, value: Any) -> CompilationConfig:
    section, _, name = field.rpartition(".")
    return CompilationConfig.model_validate({section: {name: value}} if section else {name: value})


def test_every_field_of_the_configuration_is_decided_upon() -> None:
    """A new field fails here until it is a factor, with a value above, or has a reason."""
    assert set(config_fields()) == set(OTHERS)
    assert set(IRRELEVANT) <= set(OTHERS)


@pytest.mark.parametrize("field", OTHERS)
def test_field_of_the_configuration(field: str) -> None:
    changed = key(config=config(field, OTHERS[field]))
    assert (changed == key()) == (field in IRRELEVANT)


@pytest.mark.parametrize(
    "changes",
    [
        {"function": Model(9)},
        {"function": Model(dtype=torch.bfloat16)},
        {"function": nn.Identity()},
        {"args": (torch.zeros(6, 8, dtype=torch.bfloat16),)},
        {"args": (torch.zeros(6, 9),)},
        {"args": (torch.zeros(8, 6).t(),)},
        {"kwargs": {"scale": 2.0}},
        {"dims": {"x": {0: "requests"}}},
        {"limits": {"tokens": 17}},
    ],
    ids=repr,
)
def test_what_is_compiled_is_a_factor(changes: dict[str, Any]) -> None:
    if isinstance(changes.get("function"), nn.Identity):
        changes = {**changes, "dims": {}, "args": (torch.zeros(6, 8),)}
        assert key(**changes) != key(dims={})
        return
    assert key(**changes) != key()


def test_example_of_another_token_count_is_the_same_request_if_nothing_could_read_it() -> None:
    other = (torch.zeros(3, 8),)
    assert key(args=other) == key()
    backed = config("dynamic_shapes_config.type", "backed")
    assert key(args=other, config=backed) != key(config=backed)


def test_model_that_is_made_anew_is_the_same_request() -> None:
    assert key() == key()


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("torch.__version__", "9.9"),
        ("torch.version.git_version", "abc"),
        ("platform.python_version", lambda: "3.99"),
        ("platform.machine", lambda: "other"),
        ("ir_passes.cache.factors._cpu_features", lambda: "other"),
        ("ir_passes.cache.factors._gpu", lambda: "other"),
        ("ir_passes.cache.factors.digest_of_package", lambda _: "other"),
        ("ir_passes.cache.factors._plugins", lambda: "other"),
    ],
)
def test_machine_and_versions_are_factors(
    target: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setattr(target, value)
    forget_machine()
    try:
        assert key() != before
    finally:
        monkeypatch.undo()
        forget_machine()


def forget_machine() -> None:
    factors_module._machine.cache_clear()
    factors_module._versions.cache_clear()


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_FREEZING", "TORCH_COMPILE_X", "CXX", "CXXFLAGS"])
def test_variable_that_compilers_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv(name, "other")
    assert key() != before


@pytest.mark.parametrize(
    "name",
    [
        *("HOME", "XDG_CACHE_HOME", "TMPDIR", "USER", "HOSTNAME", "OMP_NUM_THREADS", "RANK"),
        *("RAY_BUNDLE_INDEX", "MASTER_PORT", "POD_NAME", "PWD", "VIRTUAL_ENV", "PATH"),
        *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "SERVE_SHIM_PORT"),
    ],
)
def test_variable_of_the_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv(name, "/other")
    assert key() == before


def test_threads_and_directory_are_no_factors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, threads = key(), torch.get_num_threads()
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(threads + 1)
    try:
        assert key() == before
    finally:
        torch.set_num_threads(threads)


def test_execution_mode_and_batch_invariance_are_factors() -> None:
    before, registry = key(), ir.registry()
    registry.set_batch_invariant(True)
    try:
        assert key() != before
    finally:
        registry.set_batch_invariant(None)
    registry.priorities.set_mode("inductor")
    try:
        assert key() != before
    finally:
        registry.priorities.set_mode("eager")


def test_passes_of_plugins_are_a_factor_with_their_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = EntryPoint("toy", "toy_passes:passes", "ir_passes.passes")

    def offer(*additions: Addition) -> None:
        monkeypatch.setattr(factors_module, "allowed_entries", lambda: [entry])
        monkeypatch.setattr(factors_module, "load_additions", lambda: additions)

    keys = [key()]
    for addition in (
        Addition(ShardSequence()),
        Addition(ShardSequence(min_tokens=7)),
        Addition(ShardSequence(), before="eliminate_noops"),
        Addition(ShardSequence(), is_enabled=False),
    ):
        offer(addition)
        keys.append(key())
    assert len(set(keys)) == 5


def test_list_of_allowed_plugins_is_a_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*, group: str) -> list[EntryPoint]:
        return [EntryPoint("toy", "toy_passes:passes", group)] if group == GROUP else []

    monkeypatch.setattr("ir_passes.plugins.entry_points", found)
    monkeypatch.setattr(factors_module, "load_additions", tuple)
    before = key()
    monkeypatch.setenv("IR_PLUGINS", "another")
    assert key() != before


def test_ranks_of_an_axis_are_a_factor_and_which_of_them_this_is_is_not() -> None:
    with scoped_groups(Group("tp", 0, 2)):
        first = key()
    with scoped_groups(Group("tp", 1, 2)):
        assert key() == first
    assert key() != first


def test_transports_of_an_axis_are_a_factor_for_providers_are_chosen_by_them() -> None:
    with scoped_groups(Group("tp", 0, 2, {"shm": object()})):
        shm = factors_of(request())
    with scoped_groups(Group("tp", 0, 2, {"gloo": object()})):
        gloo = factors_of(request())
    assert {name for name in shm if shm[name] != gloo[name]} == {"transports"}


def test_changed_compiler_options_are_a_factor() -> None:
    before = key()
    from torch._inductor import config

    assert key() == before
    with config.patch(max_fusion_size=3):
        assert key() != before
    assert key() == before


def test_sources_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "cli").mkdir()
    for name in ("a.py", "b.py", "cli/c.py"):
        (tmp_path / name).write_text("1")
    first = digest_of_package(str(tmp_path))
    (tmp_path / "cli/c.py").write_text("2")
    (tmp_path / "notes.txt").write_text("2")
    assert digest_of_package(str(tmp_path)) == first
    (tmp_path / "b.py").write_text("2")
    assert digest_of_package(str(tmp_path)) != first


def test_factors_name_no_place_of_this_machine() -> None:
    text = repr(dict(factors_of(request())))
    assert sys.prefix not in text


def test_argument_without_a_text_is_refused() -> None:
    with pytest.raises(CannotStoreError):
        factors_of(request(kwargs={"scale": object()}))
