"""A compiled model as files, and back: what a warm start loads in the place of compiling.

Nothing here becomes code but what a backend's loader runs, and that only after the store has
verified every byte.
"""

from __future__ import annotations

import inspect
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from ir_core import IrError, registry
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.stored_code import StoredCode
from ir_passes.base import SizeRange
from ir_passes.cache.interface_json import (
    check_from_json,
    check_to_json,
    interface_from_json,
    interface_to_json,
)
from ir_passes.cache.plan_json import plan_from_json, plan_to_json
from ir_passes.cache.torch_ops import find_torch_op
from ir_passes.config import CacheSaveFormat
from ir_passes.errors import CannotStoreError, CompileError, CorruptEntryError
from ir_passes.programs.compiled_model import ModelParts
from ir_passes.programs.interface import Call, Interface
from ir_passes.programs.program import Program
from ir_passes.programs.report import CompileReport

MODEL = "model.json"
CODE = "code.zip"
TENSORS = "tensors.safetensors"

Store = Callable[[CompiledPiece], StoredCode]
Load = Callable[[StoredCode, str], CompiledPiece]

# A zip holds times; this file is the same for the same code.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Packed:
    """The files of a compiled model, and whether a compiler built kernels for it."""

    files: Mapping[str, bytes]
    has_kernels: bool


def pack(parts: ModelParts, store: Store, save_format: CacheSaveFormat) -> Packed:
    """A compiled model as files.

    Args:
        store: of the backend that compiled the pieces.
        save_format: one archive for all code, or a folder for each piece that a person can read.

    Raises:
        CannotStoreError: something in it has no representation; says what.
    """
    packer = _Packer(store)
    programs = [packer.program(interface, program) for interface, program in parts.programs]
    model = {
        "interfaces": packer.interfaces,
        "programs": programs,
        "check": check_to_json(parts.check),
        "report": _REPORT.dump_python(parts.report, mode="json"),
        "limit": parts.limit,
    }
    files = {MODEL: json.dumps(model, separators=(",", ":")).encode()}
    files |= packer.code_files() if save_format is CacheSaveFormat.UNPACKED else packer.archive()
    return Packed(files | packer.tensor_file(), packer.has_kernels)


def unpack(files: Mapping[str, bytes], target: Call, load: Load) -> ModelParts:
    """The compiled model that `pack` wrote, for a model that its conditions hold for.

    Args:
        target: the function that is called: a module's bound `forward`, or a function.
        load: of the backend that compiled the pieces.

    Raises:
        CorruptEntryError: the files are not what `pack` writes.
        BackendError, CompileError: code that cannot run in this process.
    """
    try:
        model = json.loads(files[MODEL])
        unpacker = _Unpacker(model, files, target, load)
        return ModelParts(
            tuple(unpacker.program(each) for each in model["programs"]),
            check_from_json(model["check"], inspect.signature(target)),
            _REPORT.validate_python(model["report"]),
            model["limit"],
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, zipfile.BadZipFile,
            ValidationError, IrError) as error:  # fmt: skip
        raise CorruptEntryError(
            f"The files of a compiled model are malformed: {type(error).__name__}: {error}"
        ) from error


class _Packer:
    """Collects what several programs share: interfaces, code and tensors."""

    def __init__(self, store: Store) -> None:
        self.interfaces: list[Any] = []
        self._store = store
        self._known: list[Interface] = []
        self._names: dict[int, str] = {}
        self._code: dict[str, StoredCode] = {}
        self._tensors: dict[str, Tensor] = {}

    def program(self, interface: Interface, program: Program) -> Mapping[str, Any]:
        return {
            "interface": self._interface(interface),
            "sizes": [program.sizes.first, program.sizes.last],
            "plan": plan_to_json(program.plan),
            "code": {name: self._piece(call) for name, call in program.code.items()},
            "targets": [_storable_target(each) for each in program.targets],
            "constants": {name: self._tensor(each) for name, each in program.constants.items()},
        }

    @property
    def has_kernels(self) -> bool:
        return any(code.libraries for code in self._code.values())

    def code_files(self) -> dict[str, bytes]:
        return {
            f"{name}/{file}": data
            for name, code in self._code.items()
            for file, data in _files_of(code).items()
        }

    def archive(self) -> dict[str, bytes]:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self.code_files().items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
        return {CODE: buffer.getvalue()}

    def tensor_file(self) -> dict[str, bytes]:
        if not self._tensors:
            return {}
        from safetensors.torch import save  # noqa: PLC0415 - few models have constants

        return {TENSORS: save(self._tensors)}

    def _interface(self, interface: Interface) -> int:
        for number, known in enumerate(self._known):
            if known is interface:
                return number
        self.interfaces.append(interface_to_json(interface))
        self._known.append(interface)
        return len(self._known) - 1

    def _piece(self, call: CompiledPiece) -> str:
        if id(call) not in self._names:
            name = self._names[id(call)] = f"code_{len(self._names)}"
            self._code[name] = self._store(call)
        return self._names[id(call)]

    def _tensor(self, value: Any) -> str:
        is_plain = type(value) is Tensor and value.device.type == "cpu" and value.is_contiguous()
        if not is_plain:
            raise CannotStoreError(f"A constant of the graph is a {type(value).__name__} that is "
                                   "no plain, contiguous CPU tensor.")  # fmt: skip
        name = f"tensor_{len(self._tensors)}"
        self._tensors[name] = value.detach().clone()
        return name


class _Unpacker:
    def __init__(self, model: Any, files: Mapping[str, bytes], target: Call, load: Load) -> None:
        self._interfaces = [interface_from_json(each, target) for each in model["interfaces"]]
        self._files = dict(files)
        if CODE in files:
            with zipfile.ZipFile(io.BytesIO(files[CODE])) as archive:
                self._files |= {name: archive.read(name) for name in archive.namelist()}
        self._load = load
        self._pieces: dict[str, CompiledPiece] = {}
        self._tensors: Mapping[str, Tensor] = {}
        if TENSORS in files:
            from safetensors.torch import load as load_tensors  # noqa: PLC0415 - as above

            self._tensors = load_tensors(files[TENSORS])

    def program(self, value: Any) -> tuple[Interface, Program]:
        plan = plan_from_json(value["plan"])
        program = Program(
            SizeRange(*value["sizes"]),
            plan,
            {step.name: self._piece(value["code"][step.name], step.name) for step in plan.pieces},
            {name: _target(name) for name in value["targets"]},
            {name: self._tensors[each] for name, each in value["constants"].items()},
        )
        return self._interfaces[value["interface"]], program

    def _piece(self, code: str, name: str) -> CompiledPiece:
        if code not in self._pieces:
            prefix = f"{code}/"
            own = {
                file.removeprefix(prefix): data
                for file, data in self._files.items()
                if file.startswith(prefix)
            }
            self._pieces[code] = self._load(_code_of(own), name)
        return self._pieces[code]


def _files_of(code: StoredCode) -> dict[str, bytes]:
    """Files by number: the name of a kernel may be longer than a file's can be."""
    names = sorted({*code.libraries, *code.listings})
    files = {"piece.py": code.source.encode(), "kernels.json": json.dumps(names).encode()}
    for number, name in enumerate(names):
        if name in code.libraries:
            files[f"kernel_{number}.so"] = code.libraries[name]
        if name in code.listings:
            files[f"kernel_{number}.cpp"] = code.listings[name].encode()
    return files


def _code_of(files: Mapping[str, bytes]) -> StoredCode:
    names: list[str] = json.loads(files["kernels.json"])

    def named(suffix: str) -> dict[str, bytes]:
        numbered = {name: f"kernel_{number}{suffix}" for number, name in enumerate(names)}
        return {name: files[file] for name, file in numbered.items() if file in files}

    listings = {name: text.decode() for name, text in named(".cpp").items()}
    return StoredCode(files["piece.py"].decode(), named(".so"), listings)


def _storable_target(name: str) -> str:
    if name.startswith("python."):
        raise CannotStoreError(f"`{name}` is called between pieces, and is no op that has a name.")
    return name


def _target(name: str) -> Call:
    namespace, _, rest = name.partition(".")
    found = registry().get(rest) if namespace == "ir" else find_torch_op(name)
    if found is None:
        raise CompileError(f"This process has no op `{name}`, which the program calls.")
    return found


_REPORT = TypeAdapter(CompileReport)
