"""A callable from stored code. Compiles nothing and imports no compiler."""

from __future__ import annotations

from types import ModuleType

from ir_passes.backends.code_environment import provided_names, unknown_names, used_names
from ir_passes.backends.kernel_library import load_kernel
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode
from ir_passes.errors import BackendError

CALL = "call"
"""What the source calls the function of the piece."""


def load_code(code: StoredCode, name: str) -> CompiledPiece:
    """The callable of a piece; equal code that is loaded twice shares nothing.

    Args:
        code: it is executed, so it must come from where only trusted writers write.
        name: the piece's name, for messages.

    Raises:
        BackendError: a library does not load here, or the code calls an op that is not registered
            or a name that is not provided.
    """
    namespace = provided_names()
    try:
        names = used_names(code.source)
    except SyntaxError as error:
        raise BackendError(f"Stored code of `{name}` is not Python: {error}") from error
    unknown = unknown_names(names, code.libraries, namespace)
    if unknown:
        raise BackendError(
            f"Stored code of `{name}` uses {', '.join(f'`{each}`' for each in unknown)}, which "
            "this process does not have; register the ops before the code is loaded."
        )
    module = ModuleType(f"stored code of {name}")
    kernels = {each: load_kernel(data, each) for each, data in code.libraries.items()}
    vars(module).update(namespace, **kernels)
    try:
        exec(compile(code.source, f"<{module.__name__}>", "exec"), vars(module))  # noqa: S102
        call: CompiledPiece = vars(module)[CALL]
    except Exception as error:
        raise BackendError(
            f"Stored code of `{name}` does not define `{CALL}`: {type(error).__name__}: {error}"
        ) from error
    return call
