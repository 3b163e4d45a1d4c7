"""One implementation of an op: what its author declared, checked against native."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ir_core.declaration import Declaration, check_name
from ir_core.errors import RegistrationError, SchemaMismatchError
from ir_core.location import location_of
from ir_core.schema import Schema, plain_signature, same_default
from ir_core.suggestion import suggest
from ir_core.weight_layouts import PLAIN

if TYPE_CHECKING:
    from ir_core.fingerprint import Fingerprint
    from ir_core.op import IrOp

NATIVE = "native"
# `default` is a torch overload's name; passes keep `unfused` for themselves.
_RESERVED = ("default", "unfused")
Supported = bool | tuple[bool, str]


class Support:
    """Whether an implementation can run on this machine, and why not; asked once, when needed."""

    def __init__(self, declared: Supported | Callable[[], Supported]) -> None:
        self._declared = declared
        self._lock = threading.Lock()
        self._answer: tuple[bool, str] | None = None

    def answer(self) -> tuple[bool, str]:
        """Return (supported, reason); a callable that raises means no, with the error as reason."""
        with self._lock:
            if self._answer is None:
                self._answer = _ask(self._declared)
            return self._answer


@dataclass(frozen=True, slots=True, eq=False)
class Implementation:
    """One provider's function for an op. Calling it runs the function as it is, no clones.

    Attributes:
        op: the op it implements.
        provider: unique among the op's implementations.
        fn: the function, with the op's exact schema.
        support: the static answer for this machine, behind `supported`.
        supports_args: predicate over views of the arguments, or None for "any".
        inplace: the function may write into the activations and return them.
        opaque: the function cannot be traced; compilers call it as a torch op of its own.
        batch_invariant: a row's result does not depend on the other rows.
        declared_layouts: weight layouts it reads; see `layouts`.
        libraries: compiled libraries outside its package whose bytes belong to its fingerprint.
        origin: the distribution whose plug-in registered it, else its top-level module.
        location: "file:line" of the function.
    """

    op: IrOp
    provider: str
    fn: Callable[..., Any]
    support: Support = field(repr=False)
    supports_args: Callable[..., Any] | None
    inplace: bool
    opaque: bool
    batch_invariant: bool
    libraries: tuple[Path, ...]
    origin: str
    location: str
    declared_layouts: tuple[str, ...] = (PLAIN,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function itself; an in-place one may write into its activations."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Implementation({self.op.name}: {self.provider}, {self.location})"

    @property
    def supported(self) -> bool:
        """Whether it can run on this machine at all."""
        return self.support.answer()[0]

    @property
    def unsupported_reason(self) -> str:
        """Why it cannot run on this machine; "" when it can."""
        return self.support.answer()[1]

    @property
    def layouts(self) -> tuple[str, ...]:
        """The weight layouts it reads, preferred ones first; native reads every one."""
        return self.op.layouts if self.provider == NATIVE else self.declared_layouts

    @property
    def written_fn(self) -> Callable[..., Any]:
        """The function as its author wrote it: `fn` of native unpacks weights around it."""
        unpacks = self.provider == NATIVE and bool(self.op.weights)
        return getattr(self.fn, "__wrapped__", self.fn) if unpacks else self.fn

    @property
    def torch_op(self) -> Any:
        """The torch op that wraps an opaque implementation; None for a traceable one.

        It never writes into its inputs except those the op itself `mutates`.
        """
        return self.op.opaque_torch_op(self.provider) if self.opaque else None

    def fingerprint(self) -> Fingerprint:
        """Digest of everything its result depends on, or None as digest and the reason."""
        return self.op.registry.fingerprinter.fingerprint(self)


def check_provider(declaration: Declaration, provider: str, inplace: bool) -> None:
    """Raise RegistrationError for a malformed or reserved name, or `inplace` where it cannot be."""
    check_name("Provider", provider)
    if provider in (NATIVE, *_RESERVED):
        raise RegistrationError(
            f"Provider name `{provider}` (op `{declaration.name}`) is reserved."
        )
    if inplace and declaration.inplace_text is None:
        raise RegistrationError(
            f"Implementation `{provider}` of `{declaration.name}` is in-place, but the op is not "
            "declared with `allow_inplace=True`."
        )


def check_implementation(op: str, native: Schema, provider: str, fn: Callable[..., Any]) -> None:
    """Raise SchemaMismatchError unless `fn` has native's names, types, defaults and returns."""
    parameters = plain_signature(fn).parameters
    bare = [name for name, each in parameters.items() if each.annotation is each.empty]
    if tuple(parameters) != native.names:
        difference = f"parameters are {list(parameters)}, not {list(native.names)}"
    elif bare:
        difference = f"{bare} have no type"
    else:
        difference = Schema.of(fn).difference(native)
    if difference is not None:
        raise SchemaMismatchError(
            f"Implementation `{provider}` of `{op}` ({location_of(fn)}) differs from native: "
            f"{difference}. It must be {op}{native.text}."
        )


def check_predicate(op: str, native: Schema, provider: str, predicate: Any) -> None:
    """Check that a predicate can be asked about every call of the op.

    Raises:
        SchemaMismatchError: its names or defaults differ from native's.
        RegistrationError: it is no function, or the op takes a list of tensors.
    """
    where = f"`supports_args` of provider `{provider}` for `{op}`"
    if not callable(predicate):
        raise RegistrationError(f"{where} is {predicate!r}, not a function.")
    lists = [each.name for each in native.parameters if each.is_tensor_list]
    if lists:
        raise RegistrationError(
            f"{where} cannot be asked: {lists} hold any number of tensors, and none of them says "
            "which of its dims count tokens."
        )
    parameters = plain_signature(predicate).parameters
    if tuple(parameters) != native.names:
        raise SchemaMismatchError(
            f"{where} ({location_of(predicate)}) takes {list(parameters)}; "
            f"it must take {list(native.names)}."
        )
    for parameter in native.parameters:
        given = parameters[parameter.name].default
        if not same_default(given, parameter.default):
            raise SchemaMismatchError(
                f"{where} ({location_of(predicate)}): the default of `{parameter.name}` differs "
                f"from native's, which is {parameter}."
            )


def check_layouts(op: str, valid: Sequence[str], provider: str, layouts: Sequence[str]) -> None:
    """Raise RegistrationError unless `layouts` are some of the op's, each named once."""
    where = f"`layouts` of provider `{provider}` for `{op}`"
    if isinstance(layouts, str) or not layouts or len(set(layouts)) != len(layouts):
        raise RegistrationError(
            f"{where} is {layouts!r}; name each layout that it reads once, in a tuple."
        )
    for layout in layouts:
        if layout not in valid:
            raise RegistrationError(
                f"{where} names `{layout}`, which is not registered; {suggest(layout, valid)}"
            )


def _ask(declared: Supported | Callable[[], Supported]) -> tuple[bool, str]:
    if not callable(declared):
        return _pair(declared)
    try:
        return _pair(declared())
    except Exception as error:
        # An optional dependency that is broken must not take the other providers along.
        return False, f"its support check raised {type(error).__name__}: {error}"


def _pair(answer: object) -> tuple[bool, str]:
    match answer:
        case True | (True, str()):
            return True, ""
        case False:
            return False, "declared as unsupported on this machine"
        case (False, str(reason)):
            return False, reason
        case _:
            return False, f"its `supported` is {answer!r}, neither a bool nor (bool, reason)"
