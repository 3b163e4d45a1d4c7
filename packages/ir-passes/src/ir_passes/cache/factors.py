"""What decides the compiled result of a request and is known before a trace, by name.

Two requests with equal factors may share an entry, if the entry's conditions hold too. What no
factor names must not change a result: threads, ports, homes and hosts.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ir_core
import ir_passes
from ir_core import registry
from ir_core.groups import axis_sizes, axis_transports
from ir_passes.backends.registry import GROUP as BACKENDS
from ir_passes.cache.constants import describe_constant
from ir_passes.cache.manifest import Factors
from ir_passes.config import CompilationConfig, DynamicShapesType, PassConfig
from ir_passes.errors import CannotStoreError
from ir_passes.plugins import Addition, allowed_entries, load_additions
from ir_passes.programs.argument_check import named_leaves
from ir_passes.programs.request import CompileRequest
from ir_passes.tracing.dynamic_dims import labels_of

IRRELEVANT: Mapping[str, str] = {
    "debug_dump_path": "says where texts for people go",
    "cudagraph_mode": "captures what was compiled",
    "cudagraph_capture_sizes": "captures what was compiled",
    "max_cudagraph_capture_size": "captures what was compiled",
    "max_tape_tokens": "records what was compiled",
    "cache_mode": "says how the cache is used",
    "cache_dir": "says where the cache is",
    "cache_key_file": "says whose entries are used",
    "cache_trust": "says whose entries are used",
    "cache_max_size": "bounds the cache",
    "compile_cache_save_format": "says how the same code is written",
    "mode": "decides whether this compiler is asked at all",
    "autotune": "decides between implementations, whose choice is a condition",
    "pass_config.verify_each": "checks more and changes nothing",
}
"""Fields of `CompilationConfig` that are no factors, each with the reason; all others are."""

# Those that torch's compilers read; what lies in directories and how many work is no part of code.
_VARIABLES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE", "TRITON_", "CXX", "CXXFLAGS")
_IRRELEVANT_VARIABLES = frozenset(
    ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TRITON_HOME")
)
_OPTIONS = (
    "torch._inductor.config",
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch.fx.experimental._config",
)
# Of ir_core and ir_passes, that have no part in compiling.
_ASIDE = ("cli", "testing")


def factors_of(request: CompileRequest) -> Factors:
    """All factors of a request.

    Raises:
        CannotStoreError: an argument that no text stands for.
    """
    return {**compiler_factors(request.config), **_model(request)}


def compiler_factors(config: CompilationConfig) -> Factors:
    """Those of them that do not depend on the model."""
    return {
        **_machine(),
        **_versions(),
        **{f"config {name}": value for name, value in _config(config)},
        "environment": _environment(os.environ),
        "compiler options": _compiler_options(),
        "plug-ins": _plugins(),
        "axes": json.dumps(dict(axis_sizes())),
        "transports": json.dumps(dict(axis_transports())),
        "platform": registry().platform().name,
        "execution mode": registry().priorities.mode,
        "batch invariance": str(registry().is_batch_invariant()),
    }


def config_fields() -> Iterator[str]:
    """Every field of the configuration, those of its sections too, as `section.field`."""
    return (name for name, _ in _leaves(CompilationConfig()))


@cache
def _machine() -> Factors:
    return {
        "machine": f"{sys.platform} {platform.machine()} {sys.byteorder}",
        "CPU": _cpu_features(),
        "GPU": _gpu(),
    }


@cache
def _versions() -> Factors:
    return {
        "python": f"{sys.implementation.cache_tag} {platform.python_version()}",
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "ir-core": digest_of_package(ir_core.__path__[0]),
        "ir-passes": digest_of_package(ir_passes.__path__[0]),
    }


def refuse_changed_sources() -> None:
    """Raise CannotStoreError where the compiler's own sources are no longer those of the factors.

    What ran was then read from the former ones, and the factors may be of either.
    """
    now = _versions.__wrapped__()
    for name, digest in _versions().items():
        if now[name] != digest:
            raise CannotStoreError(f"The sources of `{name}` changed while it compiled.")


def digest_of_package(directory: str) -> str:
    """Digest of a package's sources, by their names and contents."""
    root = Path(directory)
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in _ASIDE:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{name.as_posix()} {content}\n".encode())
    return digest.hexdigest()


def _cpu_features() -> str:
    """What `-march=native` may use: code for one set need not run on another."""
    names = _features_listed("/proc/cpuinfo")
    return f"{torch.backends.cpu.get_cpu_capability()}: {names}"


def _features_listed(file: str) -> str:
    try:
        with open(file, encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor()


def _gpu() -> str:
    # Only the CPU's wheel is sure to have none; asking costs a library's start elsewhere.
    if (torch.version.cuda is None and torch.version.hip is None) or not torch.cuda.is_available():
        return "none"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{names} {torch.cuda.get_device_capability()} {torch.version.cuda or torch.version.hip}"


def _config(config: CompilationConfig) -> Iterator[tuple[str, str]]:
    return ((name, text) for name, text in _leaves(config) if name not in IRRELEVANT)


def _leaves(config: CompilationConfig) -> Iterator[tuple[str, str]]:
    for name, value in config.model_dump(mode="json").items():
        if isinstance(getattr(config, name), PassConfig) or name == "dynamic_shapes_config":
            yield from ((f"{name}.{key}", json.dumps(each)) for key, each in value.items())
        else:
            yield name, json.dumps(value, sort_keys=True)


def _environment(variables: Mapping[str, str]) -> str:
    relevant = {
        name: value
        for name, value in sorted(variables.items())
        if name.startswith(_VARIABLES) and name not in _IRRELEVANT_VARIABLES
    }
    return json.dumps(relevant)


def _compiler_options() -> str:
    """What a program has changed in the options of torch's compilers that are loaded.

    An option that a variable sets is not among them: `_environment` has it, loaded or not.
    """
    changed: dict[str, str] = {}
    for module in _OPTIONS:
        config: Any = sys.modules.get(module)
        values: Mapping[str, Any] = {} if config is None else config.get_config_copy()
        for name, value in values.items():
            if not _is_given(config, name, value):
                changed[f"{module}.{name}"] = repr(value)
    return json.dumps(changed, sort_keys=True)


def _is_given(config: Any, name: str, value: object) -> bool:
    entry = config._config[name]
    return any(value == each for each in (entry.default, entry.env_value_default))


def _plugins() -> str:
    """What other distributions add to compiling: their versions, and each pass with its options."""
    entries = (*allowed_entries(), *entry_points(group=BACKENDS))
    rows = [[each.group, each.name, each.value, *_origin(each)] for each in entries]
    passes = [_addition(each) for each in load_additions()] if allowed_entries() else []
    return json.dumps([sorted(rows), passes])


def _addition(addition: Addition) -> Any:
    step = addition.step
    options = {each.name: repr(getattr(step, each.name)) for each in fields(step)}
    place = [addition.before, addition.after, addition.is_enabled, addition.origin]
    return [type(step).__module__, type(step).__qualname__, step.name, options, *place]


def _origin(entry: EntryPoint) -> tuple[str, ...]:
    return () if entry.dist is None else (entry.dist.name, entry.dist.version)


def _model(request: CompileRequest) -> Factors:
    function: Any = request.function
    is_module = isinstance(function, torch.nn.Module)
    target = function.forward if is_module else function
    owner = type(function) if is_module else function
    tensors = [*function.named_parameters(), *function.named_buffers()] if is_module else []
    rows = [[name, str(each.dtype), list(each.shape)] for name, each in tensors]
    return {
        "model": f"{owner.__module__}.{getattr(owner, '__qualname__', owner)}",
        "weights": f"{len(rows)}: {_digest(rows)}",
        "arguments": _arguments(request, target),
        "dynamic dims": _dims(request),
        "limits": json.dumps(dict(request.limits), sort_keys=True),
    }


def _arguments(request: CompileRequest, target: Any) -> str:
    leaves = named_leaves(inspect.signature(target), request.args, request.kwargs)
    return json.dumps([[path, _argument(path, value, request)] for path, value in leaves])


def _argument(path: str, value: Any, request: CompileRequest) -> Any:
    if not isinstance(value, Tensor):
        return describe_constant(value)
    labels = labels_of(request.dims[path]) if path in request.dims else {}
    # A branch on a size that is not unbacked takes the way of the example.
    is_free = request.config.dynamic_shapes_config.type is DynamicShapesType.UNBACKED
    sizes = [
        labels[dim] if is_free and dim in labels else size for dim, size in enumerate(value.shape)
    ]
    strides = "contiguous" if value.is_contiguous() else list(value.stride())
    return [str(value.dtype), str(value.device), sizes, strides, value.requires_grad]


def _dims(request: CompileRequest) -> str:
    rows = ([path, sorted(labels_of(dims).items())] for path, dims in request.dims.items())
    return json.dumps(sorted(rows))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
