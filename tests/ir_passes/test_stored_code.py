"""What Inductor compiled for the CPU is stored and loaded without it, or refused with a reason."""

import ctypes
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ir_passes.backends.code_environment import provided_names, unknown_names, used_names
from ir_passes.backends.code_extraction import extract_code
from ir_passes.backends.code_loader import load_code
from ir_passes.backends.inductor import Inductor
from ir_passes.backends.interpreted import Eager
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode
from ir_passes.errors import BackendError, CannotStoreError

from .stored_pieces import compile_piece, generated_module, run_elsewhere

ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
KERNEL = 'async_compile.cpp_pybinding(["float*"], """{}""")'


def layer(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Loops, a reduction and a product of every kind that has a function of its own."""
    hidden = torch.mm(x, weight)
    out = torch.addmm(bias, hidden, weight)
    batch = torch.bmm(hidden[None], weight[None])
    return torch.softmax(out, -1) * 2, batch, torch.baddbmm(bias[None, None], batch, weight[None])


def add(x: Tensor) -> tuple[Tensor]:
    """A kernel of the same name as that of `multiply`."""
    return (x + 1,)


def multiply(x: Tensor) -> tuple[Tensor]:
    """A kernel of the same name as that of `add`."""
    return (x * 3,)


def layer_inputs(dtype: torch.dtype = torch.float32, size: int = 5) -> list[Tensor]:
    """Inputs of `layer` for a number of rows."""
    torch.manual_seed(size)
    return [torch.randn(*shape).to(dtype) for shape in ((size, 32), (32, 32), (32,))]


@cache
def compiled_layer(dtype: torch.dtype = torch.float32) -> CompiledPiece:
    return compile_piece(layer, *layer_inputs(dtype))


@cache
def compiled(function: Callable[..., Any]) -> CompiledPiece:
    return compile_piece(function, torch.ones(4, 16))


def stored(function: Callable[..., Any]) -> StoredCode:
    return Inductor().store(compiled(function))


def check_equal(found: Any, expected: Any) -> None:
    """Bit for bit, with shapes, strides and dtypes."""
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=0, atol=0, check_stride=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [5, 2, 67])
def test_loaded_code_gives_the_same_bits(dtype: torch.dtype, size: int) -> None:
    piece = compiled_layer(dtype)
    loaded = load_code(Inductor().store(piece), "layer")
    inputs = layer_inputs(dtype, size)
    check_equal(loaded(list(inputs)), piece(list(inputs)))


def test_sizes_may_be_inputs() -> None:
    def narrow(x: Tensor, size: int) -> tuple[Tensor, int]:
        return x.narrow(0, 0, size) + size, size * 2

    piece = compile_piece(narrow, torch.ones(8, 16), 6)
    loaded = load_code(Inductor().store(piece), "narrow")
    check_equal(loaded([torch.ones(8, 16), 4])[:1], [torch.ones(4, 16) + 4])
    assert loaded([torch.ones(8, 16), 4])[1] == 8


def test_integers_and_flags_are_kept() -> None:
    def positive(x: Tensor) -> tuple[Tensor, Tensor]:
        return x > 2, x // 2

    x = torch.arange(-8, 8).view(4, 4)
    piece = compile_piece(positive, x)
    check_equal(load_code(Inductor().store(piece), "positive")([x]), piece([x]))


def test_custom_ops_write_in_place() -> None:
    with torch.library._scoped_library("stored_code_test", "FRAGMENT") as library:  # noqa: TID251
        library.define("double_(Tensor(a!) x) -> ()")

        def double(x: Tensor) -> None:
            x.mul_(2)

        def write(x: Tensor) -> tuple[Tensor]:
            torch.ops.stored_code_test.double_(x)
            return (x + 1,)

        library.impl("double_", double, "CPU")
        library.impl("double_", lambda x: None, "Meta")
        code = Inductor().store(compile_piece(write, torch.ones(4, 16)))
        x = torch.ones(4, 16)
        check_equal(load_code(code, "write")([x]), [torch.full((4, 16), 3.0)])
        assert x.equal(torch.full((4, 16), 2.0))
    with pytest.raises(BackendError, match=r"`torch\.ops\.stored_code_test\.double_\.default`"):
        load_code(code, "write")


@pytest.mark.parametrize(("compiling", "running"), [(1, 2), (2, 1)])
def test_other_processes_need_no_compiler_nor_as_many_threads(
    compiling: int, running: int, tmp_path: Path
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(compiling)
    try:
        piece = compile_piece(layer, *layer_inputs())
    finally:
        torch.set_num_threads(before)
    environment = {
        "PATH": "",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": str(running),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "none"),
    }
    inputs = layer_inputs(size=64)
    results, modules = run_elsewhere(tmp_path, Inductor().store(piece), inputs, environment)
    torch.testing.assert_close(tuple(results), tuple(piece(inputs)))
    assert not [each for each in modules if each.startswith(("torch._inductor", "torch._dynamo"))]
    assert not (tmp_path / "none").exists()


def test_threads_do_not_change_the_code() -> None:
    codes: list[StoredCode] = []
    before = torch.get_num_threads()
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            codes.append(Inductor().store(compile_piece(layer, *layer_inputs())))
    finally:
        torch.set_num_threads(before)
    assert (codes[0].source, codes[0].listings) == (codes[1].source, codes[1].listings)


def test_kernels_of_one_name_are_told_apart() -> None:
    codes = stored(add), stored(multiply)
    assert list(codes[0].libraries) == list(codes[1].libraries)
    first, second = (load_code(code, "piece") for code in codes)
    x = torch.full((2, 16), 5.0)
    check_equal(first([x]), [x + 1])
    check_equal(second([x]), [x * 3])


def test_code_is_loaded_twice_and_shares_nothing() -> None:
    first, second = (load_code(stored(add), "piece") for _ in range(2))
    x = torch.zeros(3, 16)
    check_equal(first([x]), second([x]))
    assert isinstance(first, MethodType)
    assert isinstance(second, MethodType)
    assert first.__func__.__globals__ is not second.__func__.__globals__


def test_callable_is_the_generated_method_itself() -> None:
    loaded = load_code(stored(add), "piece")
    assert isinstance(loaded, MethodType)
    assert loaded.__func__.__qualname__ == "Runner.call"


def test_source_names_no_file() -> None:
    code = stored(add)
    assert "import" not in code.source
    assert "/" not in code.source
    assert "kernel(" in code.listings["cpp_fused_0"]


def test_loading_leaves_no_descriptor_and_no_variable() -> None:
    get: Any = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_char_p
    descriptors, modules = os.listdir("/proc/self/fd"), set(sys.modules)
    variable = get(ADDRESS.encode())
    load_code(stored(add), "piece")
    assert os.listdir("/proc/self/fd") == descriptors
    assert get(ADDRESS.encode()) == variable
    assert set(sys.modules) == modules


def test_libraries_load_where_anonymous_files_are_forbidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError("forbidden")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    first, second = (load_code(stored(each), "piece") for each in (add, multiply))
    x = torch.ones(2, 16)
    check_equal((*first([x]), *second([x])), [x + 1, x * 3])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[: len(data) // 2], "is cut off"),
        (lambda data: data[:20], "is cut off"),
        (lambda data: b"", "does not load here: .*file too short"),
        (lambda data: b"text" * 99, "does not load here: .*invalid ELF header"),
        (
            lambda data: data.replace(b"PyInit_kernel", b"PyInit_kernex"),
            "undefined symbol: kernex",
        ),
        (lambda data: data.replace(b"libgomp.so.1", b"libnone.so.1"), r"here: libnone\.so\.1"),
    ],
    ids=["half", "header", "empty", "text", "no_symbol", "no_dependency"],
)
def test_library_that_does_not_load_is_named(change: Callable[[bytes], bytes], words: str) -> None:
    code = stored(add)
    broken = replace(code, libraries={"cpp_fused_0": change(code.libraries["cpp_fused_0"])})
    with pytest.raises(BackendError, match=f"`cpp_fused_0` .*{words}"):
        load_code(broken, "piece")


def test_missing_library_is_named() -> None:
    with pytest.raises(BackendError, match="`piece` uses `cpp_fused_0`"):
        load_code(replace(stored(add), libraries={}), "piece")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("call = (", "is not Python"),
        ("runner = 1", "does not define `call`"),
        ("call = torch.ops.nowhere.nothing.default", r"`torch\.ops\.nowhere\.nothing\.default`"),
        ("call = __import__", "`__import__`"),
    ],
)
def test_source_that_cannot_run_is_refused_when_loaded(source: str, words: str) -> None:
    with pytest.raises(BackendError, match=words):
        load_code(StoredCode(source, {}, {}), "piece")


@pytest.mark.parametrize(
    "expression",
    [
        "open(x)",
        "getattr(x, 'y')",
        "torch",
        "torch.compile(x)",
        "torch.cuda.synchronize()",
        "torch._inductor.config",
        "torch.ops.higher_order.cond(x)",
        "torch.ops.prims.add.default(x, x)",
        "aten.no_such_op(x)",
        "extern_kernels.bias_addmm(x, x, x)",
        "(lambda: constant0)()",
        "[empty_strided_cuda(y) for y in x]",
    ],
)
def test_names_that_are_not_provided_are_found(expression: str) -> None:
    names = used_names(f"def call(x):\n    return {expression}\n")
    assert len(unknown_names(names, (), provided_names())) == 1


@pytest.mark.parametrize(
    "expression",
    [
        "torch.ops.aten.add.Tensor(x, max(1, 2))",
        "aten.mul(x, math.floor(inf))",
        "extern_kernels.mm(x, x, out=empty_strided_cpu((1, ), (1, ), torch.bfloat16))",
        "x.clone(memory_format=torch.preserve_format).to(device(type='cpu'))",
        "[y for y in (kernel, call)]",
    ],
)
def test_names_that_are_provided_are_known(expression: str) -> None:
    names = used_names(f"def call(x):\n    return {expression}\n")
    assert not unknown_names(names, ["kernel"], provided_names())


def test_generated_module_is_stored(tmp_path: Path) -> None:
    module = generated_module(tmp_path / "piece.py", "aten.add.Tensor(x, x)")
    loaded = load_code(extract_code(module.call), "piece")
    check_equal(loaded([torch.ones(2)]), [torch.full((2,), 2.0)])


@pytest.mark.parametrize(
    ("result", "header", "words"),
    [
        ("x + constant0", "constant0 = torch.ones(1)", "uses `constant0`"),
        ("partition(x)", "def partition(x): return x", "uses `partition`"),
        ("aten.add.Tensor(x, x)", "aten = torch.ops.prims", "`aten.add.Tensor` means"),
        ("max(x)", "max = torch.relu", "`max` means something else"),
        ("x", "torch.set_grad_enabled(True)", r"runs `torch\.set_grad_enabled\(True\)`"),
        ("x", "for _ in range(2): pass", "runs `for _"),
        ("x", "first, second = 1, 2", "runs `first, second"),
        ("k(x)", "k = async_compile.triton('k', 'text')", r"made by `async_compile\.triton`"),
        ("k(x)", "k = " + KERNEL.format("num_threads(2)"), "fixed number of threads"),
        ("k(x)", "k = " + KERNEL.format("kernel"), "not a function of a library"),
    ],
)
def test_code_that_would_run_differently_is_refused(
    result: str, header: str, words: str, tmp_path: Path
) -> None:
    fake = "from unittest.mock import Mock\nasync_compile = Mock()\n" if "async" in header else ""
    module = generated_module(tmp_path / "piece.py", result, fake + header)
    with pytest.raises(CannotStoreError, match=words):
        extract_code(module.call)


LIBRARY = b"\x7fELF and more"


def module_with_library(folder: Path, root: Path) -> ModuleType:
    """A generated module whose one kernel is of the library `ab/k.so` below a root."""
    library = root / "ab" / "k.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(LIBRARY)
    for place, mode in ((root, 0o755), (library.parent, 0o755), (library, 0o755)):
        place.chmod(mode)
    header = "from unittest.mock import Mock\nasync_compile = Mock()\n"
    module = generated_module(folder / "piece.py", "k(x)", header + "k = " + KERNEL.format(""))
    extension = ModuleType("kernel")
    extension.__file__ = str(library)
    vars(module)["k"] = SimpleNamespace(__self__=extension, __name__="kernel")
    return module


@pytest.fixture
def inductor_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(root))
    return root


def test_library_that_others_can_only_read_is_stored(
    tmp_path: Path, inductor_directory: Path
) -> None:
    module = module_with_library(tmp_path, inductor_directory)
    assert extract_code(module.call).libraries == {"k": LIBRARY}


@pytest.mark.parametrize("bit", [0o020, 0o002])
@pytest.mark.parametrize("place", ["", "ab", "ab/k.so"])
def test_library_that_others_could_have_written_is_refused(
    tmp_path: Path, inductor_directory: Path, place: str, bit: int
) -> None:
    module = module_with_library(tmp_path, inductor_directory)
    (inductor_directory / place).chmod(0o755 | bit)
    with pytest.raises(CannotStoreError, match=r"`chmod -R go-w .*`TORCHINDUCTOR_CACHE_DIR`"):
        extract_code(module.call)


def test_library_of_another_user_is_refused(
    tmp_path: Path, inductor_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_with_library(tmp_path, inductor_directory)
    inductor_directory.chmod(0o700)
    lstat = Path.lstat

    def lstat_of_another(path: Path) -> os.stat_result:
        status = list(lstat(path))
        if path.name == "k.so":
            status[stat.ST_UID] += 1
        return os.stat_result(status)

    monkeypatch.setattr(Path, "lstat", lstat_of_another)
    with pytest.raises(CannotStoreError, match=r"`chown -R .*/k\.so.*`TORCHINDUCTOR_CACHE_DIR`"):
        extract_code(module.call)


def test_modes_below_a_directory_that_nobody_else_enters_do_not_matter(
    tmp_path: Path, inductor_directory: Path
) -> None:
    module = module_with_library(tmp_path, inductor_directory)
    inductor_directory.chmod(0o700)
    (inductor_directory / "ab").chmod(0o775)
    (inductor_directory / "ab" / "k.so").chmod(0o775)
    assert extract_code(module.call).libraries == {"k": LIBRARY}


def test_link_to_a_library_elsewhere_is_refused(tmp_path: Path, inductor_directory: Path) -> None:
    module = module_with_library(tmp_path, inductor_directory)
    (inductor_directory / "ab").rename(tmp_path / "away")
    (inductor_directory / "ab").symlink_to(tmp_path / "away")
    with pytest.raises(CannotStoreError, match=r"away/k\.so, lies outside of"):
        extract_code(module.call)


def test_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "piece.py"
    module = generated_module(path, "x + 1")
    path.write_text(path.read_text().replace("x + 1", "x + 2"))
    with pytest.raises(CannotStoreError, match="has changed"):
        extract_code(module.call)


def test_vanished_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "piece.py"
    module = generated_module(path)
    path.unlink()
    with pytest.raises(CannotStoreError, match="cannot be read"):
        extract_code(module.call)


def test_wrapped_callable_is_refused(tmp_path: Path) -> None:
    module = generated_module(tmp_path / "piece.py")
    with pytest.raises(CannotStoreError, match="not the method"):
        extract_code(partial(module.call))


def test_other_backends_store_nothing_unless_they_say_so() -> None:
    with pytest.raises(CannotStoreError, match="Backend `eager` does not store its code"):
        Eager().store(lambda inputs: inputs)
    with pytest.raises(CannotStoreError, match="Backend `eager` does not store its code"):
        Eager().load(StoredCode("", {}, {}))
