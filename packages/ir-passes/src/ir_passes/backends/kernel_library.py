"""A kernel from the bytes of its shared library. Owns how they reach the dynamic linker.

No file that others could exchange lies between the bytes and the loaded library.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from torch._C._dynamo import guards

from ir_passes.errors import BackendError

ENTRY = "kernel"
"""The function of each library that Inductor generates, and the name it is imported under."""

_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
_LOCK = threading.Lock()
# Where the table of sections starts, which ends the file, the size of a row, and their number.
_ELF_HEADER = struct.Struct("<40xQ10xHH2x")


def load_kernel(library: bytes, name: str) -> Callable[..., None]:
    """The kernel of a library, each time loaded anew.

    Raises:
        BackendError: the library is not whole, or does not load here; has the linker's words.
    """
    if _is_cut_off(library):
        raise BackendError(f"The library of kernel `{name}` is cut off; compile it anew.")
    try:
        with _LOCK, _tensor_address():
            return _load(library)
    except Exception as error:
        raise BackendError(
            f"The library of kernel `{name}` does not load here: {error}; compile it anew."
        ) from error


def _is_cut_off(library: bytes) -> bool:
    # The linker maps what the headers say, and reading beyond the file's end kills the process.
    if not library.startswith(b"\x7fELF"):
        return False
    if len(library) < _ELF_HEADER.size:
        return True
    start, size, number = _ELF_HEADER.unpack_from(library)
    return len(library) < start + size * number


@contextmanager
def _tensor_address() -> Generator[None]:
    """Within it, a library that is loaded finds torch's function for the address of a tensor."""
    native: Any = guards
    os.putenv(_ADDRESS, str(native._torchinductor_pyobject_tensor_data_ptr))
    try:
        yield
    finally:
        # Only the C environment was written, so what Python knows is what was there.
        before = os.environ.get(_ADDRESS)
        if before is None:
            os.unsetenv(_ADDRESS)
        else:
            os.putenv(_ADDRESS, before)


def _load(library: bytes) -> Callable[..., None]:
    if hasattr(os, "memfd_create"):
        try:
            return _load_from_memory(library)
        except (OSError, ImportError):
            # Some systems forbid such files, or to execute them; else the linker says it again.
            pass
    return _load_from_directory(library)


def _load_from_memory(library: bytes) -> Callable[..., None]:
    token = uuid4()
    descriptor = os.memfd_create(token.hex, os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(library)
        file.flush()
        return _import(_unused_path(descriptor, token), token)


def _unused_path(descriptor: int, token: UUID) -> str:
    """A spelling of the descriptor's path that no other load has.

    The linker takes a path that it has seen for the library that it loaded from there, and
    descriptors are used again.
    """
    spelling = "".join("./" if bit == "1" else "/" for bit in f"{token.int:b}")
    return f"/proc/self/fd/{spelling}{descriptor}"


def _load_from_directory(library: bytes) -> Callable[..., None]:
    token = uuid4()
    with tempfile.TemporaryDirectory(prefix="kernel-") as directory:
        path = Path(directory, f"{token.hex}.so")
        path.write_bytes(library)
        return _import(str(path), token)


def _import(path: str, token: UUID) -> Callable[..., None]:
    # The last part of the name tells which function of the library makes the module.
    name = f"ir_passes_{token.hex}.{ENTRY}"
    loader = ExtensionFileLoader(name, path)
    module = module_from_spec(ModuleSpec(name, loader, origin=path))
    loader.exec_module(module)
    sys.modules.pop(name, None)
    kernel: Callable[..., None] = getattr(module, ENTRY)
    return kernel
