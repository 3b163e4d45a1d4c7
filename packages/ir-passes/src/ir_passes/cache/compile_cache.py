"""Compiles a request, or loads what was compiled for an equal one; says which, and why.

On a hit nothing of the compile stack is imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ir_core.batch_invariance import read_switch
from ir_passes.backends.base import Backend
from ir_passes.backends.code_loader import load_code
from ir_passes.backends.piece import CompiledPiece
from ir_passes.backends.registry import find_backend
from ir_passes.backends.stored_code import StoredCode
from ir_passes.cache.artifact import Load, unpack
from ir_passes.cache.conditions import CONDITIONS, Conditions
from ir_passes.cache.entry import Entry
from ir_passes.cache.explain import explain_miss
from ir_passes.cache.factors import factors_of
from ir_passes.cache.layout import default_root
from ir_passes.cache.manifest import Factors, key_of
from ir_passes.cache.store import CacheStore
from ir_passes.config import CacheMode, CompilationConfig
from ir_passes.errors import (
    CacheError,
    CacheMissError,
    CannotStoreError,
    CorruptEntryError,
)
from ir_passes.programs.compiled_model import CompiledModel, ModelParts
from ir_passes.programs.progress import Progress
from ir_passes.programs.report import CacheOutcome, CacheStatus
from ir_passes.programs.request import CompileRequest

if TYPE_CHECKING:
    from ir_passes.compiling.session import Compilation

_logger = logging.getLogger("ir_passes.cache")

_LOCK_TIMEOUT_S = 300.0
_SWITCHES = ("IR_DISABLE_COMPILE_CACHE", "VLLM_DISABLE_COMPILE_CACHE")


def compile_or_load(request: CompileRequest, progress: Progress) -> CompiledModel:
    """The compiled model of a request.

    Raises:
        CacheMissError: the mode is `require`, and nothing stored fits; says what differs.
        PassesError and others: what compiling raises.
    """
    mode = effective_mode(request.config)
    if mode is CacheMode.OFF:
        return _compiled(request, progress, CacheOutcome(CacheStatus.OFF))
    if request.config.debug_dump_path is not None and mode is not CacheMode.REQUIRE:
        reason = "`debug_dump_path` asks for texts that only a compilation writes"
        return _compiled(request, progress, CacheOutcome(CacheStatus.OFF, reasons=(reason,)))
    try:
        _refuse_backend(request.config.backend)
        factors = factors_of(request)
        store = open_store(request.config, writable=mode is CacheMode.RW)
    except (CannotStoreError, CacheError) as error:
        if mode is CacheMode.REQUIRE:
            raise CacheMissError(f"`cache_mode` is `require`, but: {error}") from error
        return _unstorable(request, progress, str(error))
    return _Search(store, request, factors, mode, progress).run()


def effective_mode(config: CompilationConfig) -> CacheMode:
    """How the cache is used: as the configuration says, else as the environment does."""
    if config.cache_mode is not None:
        return config.cache_mode
    is_off = any(read_switch(os.environ, name) for name in _SWITCHES)
    return CacheMode.OFF if is_off else CacheMode.RW


def open_store(config: CompilationConfig, *, writable: bool = True) -> CacheStore:
    """The store that a configuration names."""
    try:
        root = config.cache_dir or default_root()
    except RuntimeError as error:
        raise CacheError(
            "This user has no home for a compile cache; set `cache_dir`, or `cache_mode` to `off`."
        ) from error
    return CacheStore(
        root,
        key_file=config.cache_key_file,
        trust=config.cache_trust,
        max_bytes=config.cache_max_size,
        writable=writable,
    )


class _Search:
    def __init__(
        self,
        store: CacheStore,
        request: CompileRequest,
        factors: Factors,
        mode: CacheMode,
        progress: Progress,
    ) -> None:
        self._store = store
        self._request = request
        self._factors = factors
        self._key = key_of(factors)
        self._mode = mode
        self._progress = progress
        self._reasons: list[str] = []

    def run(self) -> CompiledModel:
        found = self._load()
        if found is not None:
            return found
        if self._mode is CacheMode.REQUIRE:
            raise CacheMissError(
                "The compile cache has no entry that fits, and `cache_mode` is `require`:\n"
                + "\n".join(f"  {each}" for each in self._why())
            )
        if self._mode is CacheMode.RO:
            return self._compile()
        with self._store.lock(self._key, _LOCK_TIMEOUT_S) as is_ours:
            # Another process may have compiled it in the meantime.
            return self._load() or self._compile(None if is_ours else "its lock was not to be had")

    def _load(self) -> CompiledModel | None:
        for entry in self._entries():
            started = perf_counter()
            try:
                with self._store.in_use(entry):
                    parts = self._parts(entry)
                if parts is not None:
                    return self._hit(entry, parts, perf_counter() - started)
            except CorruptEntryError as error:
                self._store.quarantine(entry, str(error))
                self._note(entry, str(error))
            except CacheError as error:
                self._note(entry, str(error))
            except Exception as error:
                # Whatever is odd about an entry, compiling is the answer.
                self._note(entry, f"it does not load here: {type(error).__name__}: {error}")
        return None

    def _note(self, entry: Entry, reason: str) -> None:
        self._reasons.append(f"{entry.id[:12]}: {reason}")

    def _entries(self) -> Iterator[Entry]:
        for found in self._store.candidates(self._key):
            if isinstance(found, Entry):
                yield found
            else:
                self._reasons.append(f"{found.directory.name[:12]}: {found.reason}")

    def _parts(self, entry: Entry) -> ModelParts | None:
        request = self._request
        conditions = Conditions.from_bytes(entry.read(CONDITIONS))
        failure = conditions.failure(request)
        if failure is not None:
            self._note(entry, failure)
            return None
        return unpack(entry.read_all(), request.target, _loader(request.config.backend))

    def _hit(self, entry: Entry, parts: ModelParts, seconds: float) -> CompiledModel:
        outcome = CacheOutcome(CacheStatus.HIT, str(entry.directory))
        report = replace(parts.report, cache=outcome, seconds={"load": seconds})
        model = CompiledModel(replace(parts, report=report))
        _logger.info("Using cache directory: %s for the compile cache", entry.directory)
        return model

    def _why(self) -> tuple[str, ...]:
        if self._reasons:
            return tuple(dict.fromkeys(self._reasons))
        return explain_miss(self._store, self._factors)

    def _compile(self, obstacle: str | None = None) -> CompiledModel:
        """Compile, and store what came of it where the mode says so and nothing is in the way."""
        from ir_passes.compiling.session import Session  # noqa: PLC0415 - costs a second

        reasons = self._why()
        _logger.info("Compile cache: miss (%s)", "; ".join(reasons))
        compilation = Session(self._request, self._progress).run()
        outcome = CacheOutcome(CacheStatus.MISS, reasons=reasons)
        if self._mode is CacheMode.RW:
            directory = None
            if obstacle is None:
                directory, obstacle = self._stored(compilation)
            outcome = replace(outcome, directory=directory)
            if obstacle is not None:
                _logger.warning("The compiled model is not stored: %s", obstacle)
                outcome = CacheOutcome(CacheStatus.NOT_STORED, reasons=(*reasons, obstacle))
        parts = compilation.parts
        return CompiledModel(replace(parts, report=replace(parts.report, cache=outcome)))

    def _stored(self, compilation: Compilation) -> tuple[str | None, str | None]:
        """The directory of the new entry, or why there is none."""
        from ir_passes.cache.storing import files_of  # noqa: PLC0415 - as above

        request = self._request
        try:
            files = files_of(compilation, request)
            entry = self._store.publish(self._factors, files, _facts(request))
        except CannotStoreError as error:
            return None, str(error)
        except Exception as error:
            # A model that compiled must run, whatever storing it meets.
            return None, f"{type(error).__name__}: {error}"
        if entry is None:
            return None, "the cache could not be written; a warning says why"
        _logger.info("Using cache directory: %s for the compile cache", entry.directory)
        return str(entry.directory), None


def _compiled(request: CompileRequest, progress: Progress, outcome: CacheOutcome) -> CompiledModel:
    from ir_passes.compiling.session import Session  # noqa: PLC0415 - costs a second

    for reason in outcome.reasons:
        _logger.info("Compile cache: not used (%s)", reason)
    parts = Session(request, progress).run().parts
    return CompiledModel(replace(parts, report=replace(parts.report, cache=outcome)))


def _unstorable(request: CompileRequest, progress: Progress, reason: str) -> CompiledModel:
    _logger.warning("The compiled model is not stored: %s", reason)
    return _compiled(request, progress, CacheOutcome(CacheStatus.NOT_STORED, reasons=(reason,)))


def _refuse_backend(name: str) -> None:
    """Raise CannotStoreError for a backend that does not store its code, before anyone waits."""
    if name != "inductor" and type(find_backend(name)).store is Backend.store:
        raise CannotStoreError(f"Backend `{name}` does not store its code.")


def _loader(backend: str) -> Load:
    # Importing Inductor's backend would import the compile stack.
    if backend == "inductor":
        return load_code
    found = find_backend(backend)

    def load(code: StoredCode, _: str) -> CompiledPiece:
        return found.load(code)

    return load


def _facts(request: CompileRequest) -> Mapping[str, str]:
    function = request.function
    owner = type(function) if isinstance(function, torch.nn.Module) else function
    return {
        "model": str(getattr(owner, "__qualname__", owner)),
        "backend": request.config.backend,
        "torch": torch.__version__,
        "ir-passes": version("ir-passes"),
    }
