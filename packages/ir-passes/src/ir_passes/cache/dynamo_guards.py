"""Translates the guards of a trace to data that says the same in another process.

Shapes that vary are left to the guards on shapes, and grad mode to whoever calls the program.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from ir_passes.cache.code_digest import code_digest
from ir_passes.cache.descriptions import Describer, code_of
from ir_passes.cache.dynamo_sources import SourcePaths
from ir_passes.cache.guard_checks import Check, tensor_facts
from ir_passes.cache.guard_paths import call_scope, called_function
from ir_passes.cache.guard_tree import Path, TreeBuilder, spelled
from ir_passes.cache.guard_walk import GuardWalk, PathValues
from ir_passes.cache.model_guards import ModelGuards, tensor_relations
from ir_passes.cache.tensor_memory import Groups, same_objects
from ir_passes.cache.torch_state import num_global_hooks, torch_state
from ir_passes.cache.traced_calls import AssumedConstants, refuse_hidden_python
from ir_passes.errors import CannotStoreError
from ir_passes.tracing.model_trace import ModelTrace

_SETTINGS = frozenset(
    (
        *("GLOBAL_STATE", "DETERMINISTIC_ALGORITHMS", "DEFAULT_DEVICE", "TORCH_FUNCTION_STATE"),
        *("DUAL_LEVEL", "FUNCTORCH_STACK_MATCH"),
    )
)
# The caller turns grad mode off, where hooks on saved tensors and FSDP's states mean nothing; what
# is assumed about sizes is checked for itself.
_ELSEWHERE = frozenset(
    ("GRAD_MODE", "AUTOGRAD_SAVED_TENSORS_HOOKS", "FSDP_TRAINING_STATE", "SHAPE_ENV")
)


def portable_guards(trace: ModelTrace) -> ModelGuards:
    """The guards of a trace, for the state that its model is in now.

    Raises:
        CannotStoreError: one of them cannot be told to another process, or there is none for code
            that the trace rests on; names the guard, its path and why.
    """
    capture = trace.capture.graph_capture_output
    _refuse_state(capture.output_graph)
    refuse_hidden_python(trace)
    return _Translation(trace).guards()


class _Translation:
    def __init__(self, trace: ModelTrace) -> None:
        capture = trace.capture.graph_capture_output
        self._dynamo_guards = list(capture.output_graph.guards)
        self._paths = SourcePaths(capture)
        self._function = trace.function
        self._scope, self._arguments = call_scope(trace.function, trace.args, trace.kwargs)
        self._values = PathValues(self._scope)
        self._sizes = {
            source.name: facts
            for source, facts in capture.output_graph.input_source_to_sizes_strides.items()
        }
        self._describer = Describer()
        self._assumed = AssumedConstants()
        self._inlined = frozenset(capture.traced_code)
        self._inlined_methods: dict[type, Sequence[Check]] = {}
        self._tree = TreeBuilder()
        self._twins: list[Path] = []

    def guards(self) -> ModelGuards:
        for each in self._dynamo_guards:
            try:
                self._add(each)
            except CannotStoreError as error:
                raise CannotStoreError(
                    f"The guard {each.create_fn_name()} on `{each.name}` cannot be stored: {error}."
                ) from error
        tree = self._tree.build()
        walk = GuardWalk(tree, self._scope)
        if walk.failure is not None:
            raise CannotStoreError(f"The model has changed since it was traced: {walk.failure}.")
        repeated, shared = tensor_relations(walk)
        code = code_digest(called_function(self._function).__code__)
        return ModelGuards(tree, self._same(), repeated, shared, torch_state(), code)

    def _add(self, guard: Any) -> None:
        kind = guard.create_fn_name()
        if kind in _SETTINGS or kind in _ELSEWHERE:
            return
        if kind not in _CHECKS and kind not in ("DUPLICATE_INPUT", "TENSOR_MATCH"):
            raise CannotStoreError("guards of this kind have no form that another process can read")
        path = self._paths.path(guard.originating_source)
        if path is None:
            return
        value = self._values.at(path)
        self._assumed.refuse(value)
        facts: Mapping[str, Any] = getattr(guard.create_fn, "keywords", None) or {}
        if kind == "DUPLICATE_INPUT":
            self._add_twins(path, self._paths.path(facts["source_b"]))
        elif kind == "TENSOR_MATCH":
            self._tree.add(path, [self._tensor(guard, path, value)])
        else:
            self._tree.add(path, _CHECKS[kind](value, self._describer, facts))
            if kind == "TYPE_MATCH":
                self._tree.add(path, self._methods(type(value)))

    def _methods(self, kind: type) -> Sequence[Check]:
        """Dynamo takes for granted that nobody replaces a method of a class."""
        if kind not in self._inlined_methods:
            attributes = {
                name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()
            }
            self._inlined_methods[kind] = [
                ["method", name, self._describer.code(code)]
                for name, each in sorted(attributes.items())
                if (code := code_of(each)) in self._inlined and code is not None
            ]
        return self._inlined_methods[kind]

    def _add_twins(self, first: Path, second: Path | None) -> None:
        if second is None:
            return
        if self._values.at(first) is not self._values.at(second):
            raise CannotStoreError("what was one object no longer is")
        for path in (first, second):
            self._tree.add(path)
            self._twins.append(path)

    def _same(self) -> Groups:
        numbers = self._tree.numbers()
        return same_objects({numbers[spelled(path)]: self._values.at(path) for path in self._twins})

    def _tensor(self, guard: Any, path: Path, value: Any) -> Check:
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            raise CannotStoreError("it is no tensor in strides")
        kind, name = path[0]
        is_argument = kind == "local" and name in self._arguments
        facts = tensor_facts(value, self._describer)
        sizes = self._sizes.get(guard.originating_source.name)
        if sizes is not None:
            facts[5:7] = [[_fixed(each) for each in sizes[key]] for key in ("size", "stride")]
        return ["argument" if is_argument else "tensor", *facts]


def _fixed(size: Any) -> int | None:
    """A size that cannot vary; None for one that can."""
    return size if isinstance(size, int) else size.node.maybe_as_int()


def _refuse_state(graph: Any) -> None:
    """The settings must be now what they were in the trace, and such as can be compared."""
    recorded = graph.global_state_guard
    differing = _differing(recorded, type(recorded)())
    if differing:
        raise CannotStoreError(
            f"Torch's {', '.join(differing)} changed since the model was traced."
        )
    if num_global_hooks():
        raise CannotStoreError("Hooks on every module are registered, whose code has no guard.")
    if graph.functorch_layers or graph.torch_function_mode_stack:
        raise CannotStoreError("The model was traced inside a functorch transform or a torch mode.")


def _differing(old: Any, new: Any) -> list[str]:
    before, after = json.loads(old.__getstate__()), json.loads(new.__getstate__())
    names = before.keys() - {"grad_mode", "num_threads"}
    return sorted(name for name in names if before[name] != after[name])


def _is(value: Any, describer: Describer, _: Mapping[str, Any]) -> Sequence[Check]:
    if isinstance(value, CodeType):
        raise CannotStoreError("a code object is found by its function only")
    return [["is", describer.describe(value)]]


def _type(value: Any, describer: Describer, _: Mapping[str, Any]) -> Sequence[Check]:
    return [["type", describer.describe(type(value))]]


def _closure(value: Any, describer: Describer, facts: Mapping[str, Any]) -> Sequence[Check]:
    if isinstance(value, FunctionType):
        return [["code", describer.code(value.__code__)]]
    return _is(value, describer, facts)


def _length(value: Any, describer: Describer, facts: Mapping[str, Any]) -> Sequence[Check]:
    return [*_type(value, describer, facts), ["length", len(value)]]


def _keys(value: Any, describer: Describer, facts: Mapping[str, Any]) -> Sequence[Check]:
    keys = [describer.describe(each) for each in value]
    return [*_type(value, describer, facts), ["keys", keys]]


def _based(value: Any, describer: Describer, _: Mapping[str, Any]) -> Sequence[Check]:
    bases: tuple[Any, ...] = (int, float, complex, str, bytes)
    for base in bases:
        if isinstance(value, base):
            return [["based", describer.describe(base(value)), base.__name__]]
    raise CannotStoreError(f"a {type(value).__qualname__} is not a constant")


def _contains(is_there: bool) -> Callable[..., Sequence[Check]]:
    def check(_: Any, describer: Describer, facts: Mapping[str, Any]) -> Sequence[Check]:
        return [["contains", describer.describe(facts["key"]), is_there]]

    return check


def _has(value: Any, _: Describer, facts: Mapping[str, Any]) -> Sequence[Check]:
    return [["attribute", facts["attr"], hasattr(value, facts["attr"])]]


_CHECKS: Mapping[str, Callable[[Any, Describer, Mapping[str, Any]], Sequence[Check]]] = {
    **dict.fromkeys(("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH"), _is),
    **dict.fromkeys(("ID_MATCH", "CLASS_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH"), _is),
    "MODULE_MATCH": _is,
    "CLOSURE_MATCH": _closure,
    "TYPE_MATCH": _type,
    "CONSTANT_SUBCLASS_MATCH": _based,
    **dict.fromkeys(("SEQUENCE_LENGTH", "EMPTY_NN_MODULE_HOOKS_DICT"), _length),
    **dict.fromkeys(("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"), _keys),
    "DICT_CONTAINS": _contains(True),
    "SET_CONTAINS": _contains(True),
    "DICT_NOT_CONTAINS": _contains(False),
    "SET_NOT_CONTAINS": _contains(False),
    "HASATTR": _has,
    "NOT_PRESENT_IN_GENERIC_DICT": lambda value, _, facts: [["lacks", facts["attr"]]],
    **dict.fromkeys(("NOT_NONE_MATCH", "WEAKREF_ALIVE"), lambda *_: [["not none"]]),
}
