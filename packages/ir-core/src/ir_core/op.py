"""The op: a native meaning, the implementations that must agree with it, and what tests need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from ir_core import fast_path
from ir_core.declaration import Declaration, check_name
from ir_core.dispatch import Choice, LayoutChoice, choose_layout
from ir_core.errors import (
    ArgumentError,
    DuplicateRegistrationError,
    GradientError,
    RegistrationError,
)
from ir_core.implementation import (
    NATIVE,
    Implementation,
    Support,
    Supported,
    check_implementation,
    check_layouts,
    check_predicate,
    check_provider,
)
from ir_core.location import location_of
from ir_core.lookup import Lookup
from ir_core.selection import Selection
from ir_core.tolerance import Tolerance, default_tolerance
from ir_core.weight_layouts import PLAIN, Permutation, WeightLayout, WeightLayouts

if TYPE_CHECKING:
    from ir_core.registry import Registry

_Function = TypeVar("_Function", bound=Callable[..., Any])


class IrOp:
    """A functional operation whose native function is its meaning, its fallback and its oracle.

    Calling it runs the selected implementation: outputs are fresh and inputs stay as they are,
    except those that `mutates` names. `maybe_inplace` computes the same but takes the activations:
    the caller must not use them, nor views of them, afterwards. Neither accepts inputs that
    require grad while grad mode is on (GradientError).

    Attributes:
        registry: where it is registered.
        name: unique in the registry.
        schema: parameters, defaults and returns.
        activations: parameters that `maybe_inplace` may consume.
        allow_inplace: whether `maybe_inplace` exists.
        mutates: parameters the op writes by its meaning.
        splits: whether compilers split the graph at this op.
        token_dims: per parameter, the dims that count tokens, which predicates cannot see.
        weights: parameters that a layout permutes; the parameter `layout` names it.
        weight_layouts: the layouts that there are.
        torch_op: `torch.ops.<namespace>.<name>.default`.
        torch_maybe_inplace: the overload `maybe_inplace`; None unless `allow_inplace`.
    """

    def __init__(self, registry: Registry, declaration: Declaration) -> None:
        self.registry = registry
        self.declaration = declaration
        self.name = declaration.name
        self.schema = declaration.schema
        self.activations = declaration.activations
        self.inplace_text = declaration.inplace_text
        self.allow_inplace = declaration.inplace_text is not None
        self.mutates = declaration.mutates
        self.splits = declaration.splits
        self.token_dims = MappingProxyType(dict(declaration.token_dims))
        self.weights = declaration.weights
        self.weight_layouts = WeightLayouts(self.name, self.schema, self.weights)
        self._implementations: dict[str, Implementation] = {}
        self._opaque_torch_ops: dict[str, Any] = {}
        self._fake: Callable[..., Any] | None = None
        self._input_generator: Callable[..., tuple[Any, ...]] | None = None
        self._tolerances: dict[torch.dtype, Tolerance] = {}
        self.functional_lookup = Lookup(self, fast_path.functional)
        self.inplace_lookup = Lookup(self, registry.prepare_inplace)
        self.torch_op, self.torch_maybe_inplace = self._define_torch_ops()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op. Each op's class has its own version with the op's parameters."""
        return self.torch_op(*self.bind(*args, **kwargs))

    def maybe_inplace(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op and let it reuse the activations; only ops with `allow_inplace` can."""
        raise ArgumentError(
            f"Op `{self.name}` has no `maybe_inplace`; declare it with `allow_inplace=True`."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> IrOp:
        """An op is one of a kind: copies of a module that holds it share it."""
        return self

    def __repr__(self) -> str:
        return f"IrOp({self.name}{self.schema.text})"

    @classmethod
    def of(cls, registry: Registry, declaration: Declaration) -> IrOp:
        """Make the op with callers of its own, which have its parameters as their signature."""
        callers: dict[str, Any] = {
            "__call__": fast_path.eager_caller(
                declaration, "__call__", "torch_op", "functional_lookup"
            )
        }
        if declaration.inplace_text is not None:
            callers["maybe_inplace"] = fast_path.eager_caller(
                declaration, "maybe_inplace", "torch_maybe_inplace", "inplace_lookup"
            )
        return type(f"IrOp_{declaration.name}", (cls,), callers)(registry, declaration)

    @property
    def native(self) -> Implementation:
        """The function that defines the op's meaning."""
        return self._implementations[NATIVE]

    @property
    def implementations(self) -> Mapping[str, Implementation]:
        """All implementations by provider, native included."""
        return MappingProxyType(self._implementations)

    def supported_providers(self) -> tuple[str, ...]:
        """Providers that can run on this machine, in order of registration."""
        return tuple(name for name, each in self._implementations.items() if each.supported)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Names of the layouts in which weights may lie, `plain` first; it alone without any."""
        return self.weight_layouts.names

    def register_layout(self, name: str, *, pack: Permutation, unpack: Permutation) -> None:
        """Add a layout: a permutation of the bytes within each of the op's `weights`.

        Args:
            name: lower-case name; `plain` is taken.
            pack: from plain weights to packed ones, one argument and one result for each name in
                `weights`; None stays None. It consumes its arguments and may reuse their memory.
            unpack: the way back; its results are fresh.

        Raises:
            RegistrationError: the op has no weights, or the name is taken or malformed.
        """
        check_name("Layout", name)
        with self.registry.lock:
            self.weight_layouts.add(WeightLayout(name, pack, unpack))
        self.forget_choices()

    def with_layout(self, values: Sequence[Any], layout: str) -> tuple[Any, ...]:
        """The same values, one per parameter, naming another layout; moves no byte."""
        return self.weight_layouts.labelled(values, layout)

    def pack(self, values: Sequence[Any], layout: str) -> tuple[Any, ...]:
        """Values of a call, one per parameter, whose plain weights are packed and `layout` set.

        Consumes the weights: packed ones may lie where they did. Nothing happens to weights that
        are in `layout` already.

        Raises:
            ArgumentError: no such layout, or the weights lie in a third one.
            LayoutError: the layout's `pack` gave another shape or dtype.
        """
        return self.weight_layouts.pack(values, layout)

    def unpack(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Values of a call, one per parameter, whose weights are plain: fresh, or as they were."""
        return self.weight_layouts.unpack(values)

    def choose_layout(self, *args: Any, **kwargs: Any) -> LayoutChoice:
        """In which layout the weights of such calls should lie, and what a call then selects.

        Takes the arguments of a call; only metadata matters. The priority is walked as by `select`:
        the first provider that accepts the call in one of its layouts wins, with the first such.

        Raises:
            ArgumentError, NoImplementationError, PredicateError: as `select`.
        """
        values = self.bind(*args, **kwargs)
        providers = self.registry.candidates(self)
        return choose_layout(self, providers, values, self.registry.is_batch_invariant())

    def register_impl(
        self,
        provider: str,
        *,
        supported: Supported | Callable[[], Supported] = True,
        supports_args: Callable[..., Any] | None = None,
        inplace: bool = False,
        opaque: bool = False,
        batch_invariant: bool = False,
        layouts: Sequence[str] = (PLAIN,),
        libraries: Sequence[str | Path] = (),
    ) -> Callable[[Callable[..., Any]], Implementation]:
        """Decorate an implementation; it must have native's names, types, defaults and returns.

        Args:
            provider: lower-case name; `native` is taken.
            supported: whether this machine can run it: a bool, (bool, reason), or a function that
                returns one of these and is called once, when first needed.
            supports_args: predicate with the op's parameters; returns True, False or a reason. It
                sees views of tensors, without their token dims.
            inplace: it may write into the activations and return them.
            opaque: it cannot be traced; compilers call it as a torch op of its own.
            batch_invariant: a row's result does not depend on the other rows.
            layouts: the weight layouts that it reads, preferred ones first.
            libraries: compiled libraries outside its package that belong to its fingerprint.

        Raises:
            RegistrationError: what is wrong, where, and what it must be.
        """
        check_provider(self.declaration, provider, inplace)
        check_layouts(self.name, self.layouts, provider, layouts)
        if supports_args is not None:
            check_predicate(self.name, self.schema, provider, supports_args)

        def register(fn: Callable[..., Any]) -> Implementation:
            check_implementation(self.name, self.schema, provider, fn)
            return self.add_implementation(
                Implementation(
                    op=self,
                    provider=provider,
                    fn=fn,
                    support=Support(supported),
                    supports_args=supports_args,
                    inplace=inplace,
                    opaque=opaque,
                    batch_invariant=batch_invariant,
                    declared_layouts=tuple(layouts),
                    libraries=tuple(Path(each) for each in libraries),
                    origin=self.registry.origin_of(fn),
                    location=location_of(fn),
                )
            )

        return register

    def add_implementation(self, implementation: Implementation) -> Implementation:
        """Enter a checked implementation; the same one imported again takes its own place.

        Raises:
            DuplicateRegistrationError: another place has registered this provider.
        """
        provider = implementation.provider
        with self.registry.lock:
            known = self._implementations.get(provider)
            if known is not None and known.location != implementation.location:
                raise DuplicateRegistrationError(
                    f"Provider `{provider}` of `{self.name}` is registered twice: at "
                    f"{known.location} ({known.origin}) and at {implementation.location} "
                    f"({implementation.origin})."
                )
            # A fresh dict: readers in other threads keep iterating over theirs.
            self._implementations = {**self._implementations, provider: implementation}
            if implementation.opaque and provider not in self._opaque_torch_ops:
                self._opaque_torch_ops[provider] = self._define_opaque(provider)
        self.forget_choices()
        return implementation

    def opaque_torch_op(self, provider: str) -> Any:
        """Torch op of an opaque implementation: `torch.ops.<namespace>_impl.<op>.<provider>`."""
        return self._opaque_torch_ops[provider]

    def register_fake(self, fake: _Function) -> _Function:
        """Decorate a function that makes the outputs' metadata; without one, native does."""
        self._fake = fake
        return fake

    def register_input_generator(self, generator: _Function) -> _Function:
        """Decorate a function that makes arguments for tests and benches from keywords."""
        self._input_generator = generator
        return generator

    @property
    def input_generator(self) -> Callable[..., tuple[Any, ...]] | None:
        """The registered generator; one made by `testing.workloads` carries the op's workloads."""
        return self._input_generator

    @property
    def fake(self) -> Callable[..., Any] | None:
        """The registered fake; None where native makes the metadata."""
        return self._fake

    @property
    def tolerances(self) -> Mapping[torch.dtype, Tolerance]:
        """The tolerances that the op sets itself, by dtype."""
        return MappingProxyType(self._tolerances)

    @property
    def has_input_generator(self) -> bool:
        """Whether `generate_inputs` can be called."""
        return self._input_generator is not None

    def generate_inputs(self, **options: Any) -> tuple[Any, ...]:
        """Arguments for one call, as the registered generator makes them.

        Raises:
            RegistrationError: no generator is registered.
        """
        if self._input_generator is None:
            raise RegistrationError(
                f"Op `{self.name}` has no input generator; add one with "
                f"`@{self.name}.register_input_generator`."
            )
        return self._input_generator(**options)

    def override_tolerance(
        self, dtype: torch.dtype, *, atol: float, rtol: float, reason: str
    ) -> None:
        """Set how far implementations may be from native in one dtype, and say why.

        Raises:
            RegistrationError: an empty reason, or a tolerance that is negative or not finite.
        """
        if not reason.strip():
            raise RegistrationError(f"A tolerance of op `{self.name}` for {dtype} needs a reason.")
        self._tolerances[dtype] = Tolerance(atol, rtol, reason)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """How far implementations may be from native in a dtype."""
        return self._tolerances.get(dtype) or default_tolerance(dtype)

    def bind(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Normalise a call to one checked value per parameter.

        Raises:
            ArgumentError: names the op, the parameter and what it must be.
        """
        values = self.schema.bind(self.name, args, kwargs)
        self.check_values(*values)
        return values

    def check_values(self, *values: Any) -> None:
        """Raise ArgumentError, naming op and parameter, unless each value fits its type.

        A `layout` must also be one of `layouts`.
        """
        self.schema.check_values(self.name, values)
        self.weight_layouts.check(values)

    def select(self, *args: Any, **kwargs: Any) -> Selection:
        """Which implementation a call with these arguments gets, and why not the ones before it."""
        return self.choose(self.bind(*args, **kwargs)).selection

    def choose(self, values: Sequence[Any]) -> Choice:
        """Choose for one value per parameter; `select` with what the choice rests on."""
        return self.registry.choose(self, values)

    def forget_choices(self) -> None:
        """Drop remembered choices, because a priority or an implementation has changed."""
        self.functional_lookup.reset()
        self.inplace_lookup.reset()

    def call_through_torch(self, overload: Any, values: tuple[Any, ...]) -> Any:
        """Call an overload as a torch op, so that modes, tracers and subclasses see it."""
        self.check_values(*values)
        return overload(*values)

    def refuse_grad(self, *values: Any) -> None:
        """Raise GradientError if a value requires grad, naming its parameter."""
        named = zip(self.schema.names, values, strict=False)
        guilty = [name for name, each in named if isinstance(each, Tensor) and each.requires_grad]
        if guilty:
            raise GradientError(
                f"Op `{self.name}` got {guilty} that require grad while grad mode is on; it has "
                "no backward. Use `torch.inference_mode()` or `requires_grad_(False)`."
            )

    def _run_fake(self, *values: Any) -> Any:
        # The dispatcher leaves out trailing values that are the default.
        values = self.schema.bind(self.name, values, {})
        if torch.is_grad_enabled():
            self.refuse_grad(*values)
        self.weight_layouts.check(values)
        # A layout keeps all metadata, so no fake weight needs to be unpacked.
        return (self._fake or self.native.written_fn)(*self.with_layout(values, PLAIN))

    def _define_torch_ops(self) -> tuple[Any, Any]:
        kernel = fast_path.dispatcher_kernel(self, self.functional_lookup)
        define = self.registry.binding.define
        default = define(self.name, "", self.schema.text, kernel, self._run_fake)
        if self.inplace_text is None:
            return default, None
        # A torch op may not return its inputs, so through the dispatcher nothing is reused.
        inplace = define(self.name, "maybe_inplace", self.inplace_text, kernel, self._run_fake)
        return default, inplace

    def _define_opaque(self, provider: str) -> Any:
        def kernel(*values: Any) -> Any:
            return fast_path.functional(self._implementations[provider])(*values)

        binding = self.registry.opaque_binding
        return binding.define(self.name, provider, self.schema.text, kernel, self._run_fake)
