"""The compiled library: what an install left, how a missing one is explained, its ops' fakes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.library import opcheck  # noqa: TID251  (a check; it defines nothing)

from ir_kernels import library
from ir_kernels.fakes import FAKES

BUILT = {"built": True, "reason": ""}


def write_report(package: Path, report: object) -> None:
    (package / library.REPORT).write_text(json.dumps(report), encoding="utf-8")


def test_installed_library_loads_unless_there_was_no_compiler() -> None:
    supported, reason = library.availability()
    assert supported or "no C++ compiler" in reason, reason


def test_report_of_a_failed_build_is_the_reason(tmp_path: Path) -> None:
    write_report(tmp_path, {"built": False, "reason": "no C++ compiler: no g++"})
    expected = (False, "the C++ library was not built: no C++ compiler: no g++")
    assert library.load(tmp_path) == expected


def test_stale_library_beside_a_failed_build_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / library.LIBRARY).write_bytes(b"\x7fELF of an earlier build")
    write_report(tmp_path, {"built": False, "reason": "error: expected `;`"})
    assert library.load(tmp_path)[1].endswith("error: expected `;`")


def test_missing_report_says_how_to_get_one(tmp_path: Path) -> None:
    supported, reason = library.load(tmp_path)
    assert not supported
    assert "is missing; reinstall ir-kernels with `--no-build-isolation`" in reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"built": true}', "null"])
def test_unreadable_report_is_a_reason_not_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / library.REPORT).write_text(content, encoding="utf-8")
    supported, reason = library.load(tmp_path)
    assert not supported
    assert "cannot be read" in reason


def test_library_that_is_none_is_explained_in_the_loaders_words(tmp_path: Path) -> None:
    write_report(tmp_path, BUILT)
    (tmp_path / library.LIBRARY).write_bytes(b"not a library")
    supported, reason = library.load(tmp_path)
    assert not supported
    assert reason.startswith("the C++ library does not load: ")
    assert "invalid ELF header" in reason or "file too short" in reason


@pytest.mark.usefixtures("compiled")
def test_best_isa_is_chosen_first_and_the_portable_one_is_always_there() -> None:
    assert library.isa() == library.isas()[0]
    assert library.isas()[-1] == "portable"
    report = json.loads((library.PACKAGE / library.REPORT).read_text(encoding="utf-8"))
    assert set(library.isas()) <= set(report["isas"])


@pytest.mark.usefixtures("compiled")
def test_unknown_isa_is_refused_and_nothing_changes() -> None:
    before = library.isa()
    with pytest.raises(RuntimeError, match=r"this machine runs .*portable; not `sse9`"):
        library.set_isa("sse9")
    assert library.isa() == before


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("shape", [(3, 8), (3, 2, 8), (0, 8)])
def test_fakes_give_what_the_kernels_give(shape: tuple[int, ...]) -> None:
    real = torch.randn(*shape[:-1], 2 * shape[-1], dtype=torch.bfloat16)[..., ::2]
    kernels: Any = library.kernels
    calls = (
        lambda x: kernels.rms_norm.default(x, None, 1e-5),
        kernels.silu_and_mul.default,
    )
    for call in calls:
        got = call(real)
        with FakeTensorMode() as mode:
            fake = call(mode.from_tensor(real))
        assert (fake.shape, fake.stride(), fake.dtype) == (got.shape, got.stride(), got.dtype)


@pytest.mark.usefixtures("compiled")
def test_ops_say_what_they_write() -> None:
    x, weight = torch.randn(4, 16), torch.randn(16)
    table = torch.randn(8, 16)
    positions = torch.arange(4)
    kernels: Any = library.kernels
    opcheck(kernels.rms_norm.default, (x, weight, 1e-5, None))
    opcheck(kernels.fused_add_rms_norm.default, (x, x.clone(), None, 1e-5, 8))
    opcheck(kernels.silu_and_mul.default, (x,))
    arguments = (x, x.clone(), positions, table, 16, True)
    opcheck(kernels.rotary_embedding.default, arguments)
    heads = x[:, None]
    arguments = (heads, heads.clone(), weight, weight.clone(), 1e-5, positions, table, 16, True)
    opcheck(kernels.qk_norm_rope.default, arguments)


def test_a_fake_is_needed_for_every_kernel() -> None:
    sources = (Path(library.__file__).parents[2] / "csrc").glob("binding*.cpp")
    texts = [source.read_text(encoding="utf-8") for source in sources]
    blocks = [text.split("STABLE_TORCH_LIBRARY_IMPL(ir_kernels_c, CPU, m)")[1] for text in texts]
    lines = [line for block in blocks for line in block.split("}")[0].splitlines()]
    assert {line.split('"')[1] for line in lines if "m.impl" in line} == set(FAKES)
