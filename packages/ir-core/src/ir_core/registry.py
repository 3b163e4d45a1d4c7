"""The registry: ops by name, and the state that selections depend on. Owns no choice itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

from ir_core.autotuning.signature import signature_reads
from ir_core.batch_invariance import is_batch_invariant, read_switch
from ir_core.declaration import TokenDims, declare
from ir_core.dispatch import Choice, choose
from ir_core.donation import DonationCheck
from ir_core.errors import DuplicateRegistrationError, UnknownOpError
from ir_core.fingerprint import Fingerprinter
from ir_core.implementation import NATIVE, Implementation, Support
from ir_core.location import location_of
from ir_core.op import IrOp
from ir_core.platforms import Platform, builtin_platform
from ir_core.plugins import PluginLoader
from ir_core.priority_lists import USER, ResolvedPriority
from ir_core.priority_state import PriorityState
from ir_core.selection import ExecutedSelection, Selection, SelectionLog
from ir_core.suggestion import suggest
from ir_core.torch_binding import TorchBinding

Native = Callable[..., Any]


class Registry(Mapping[str, IrOp]):
    """Ops by name. Ops of one registry know nothing of another's.

    Args:
        namespace: torch namespace of its ops; a fresh one by default.
        platform: whose default priorities apply; this machine's by default.
        plugins: loaded before the first selection; none by default.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        platform: Platform | None = None,
        plugins: PluginLoader | None = None,
    ) -> None:
        self.namespace = namespace or f"ir_{id(self):x}"
        self.binding = TorchBinding(self.namespace)
        self.opaque_binding = TorchBinding(f"{self.namespace}_impl")
        self.log = SelectionLog()
        self.priorities = PriorityState(self)
        self.fingerprinter = Fingerprinter()
        self._ops: dict[str, IrOp] = {}
        self.lock = threading.RLock()
        self._platform = platform
        self._plugins = plugins
        self._thread = threading.local()
        self._batch_invariant: bool | None = None

    def __getitem__(self, name: str) -> IrOp:
        op = self._ops.get(name)
        if op is None:
            # It may be a plug-in's.
            self.load_plugins()
            op = self._ops.get(name)
        if op is None:
            raise UnknownOpError(f"No op `{name}`; {suggest(name, self._ops)}")
        return op

    def __contains__(self, name: object) -> bool:
        if name not in self._ops:
            self.load_plugins()
        return name in self._ops

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    @overload
    def register_op(self, native: Native, /) -> IrOp: ...

    @overload
    def register_op(
        self,
        /,
        *,
        name: str | None = None,
        activations: Sequence[str] | None = None,
        allow_inplace: bool = False,
        mutates: Sequence[str] = (),
        splits: bool = False,
        opaque: bool = False,
        token_dims: TokenDims | None = None,
        batch_invariant: bool = False,
        weights: Sequence[str] = (),
    ) -> Callable[[Native], IrOp]: ...

    def register_op(
        self,
        native: Native | None = None,
        /,
        *,
        name: str | None = None,
        activations: Sequence[str] | None = None,
        allow_inplace: bool = False,
        mutates: Sequence[str] = (),
        splits: bool = False,
        opaque: bool = False,
        token_dims: TokenDims | None = None,
        batch_invariant: bool = False,
        weights: Sequence[str] = (),
    ) -> IrOp | Callable[[Native], IrOp]:
        """Declare an op by its native function, which defines what it computes.

        Args:
            native: annotated function; its parameters become the op's.
            name: the function's name by default.
            activations: tensors that `maybe_inplace` may consume and whose dim 0 counts tokens;
                by default the parameters that start with `x`.
            allow_inplace: give the op a `maybe_inplace`; it then returns one tensor per activation.
            mutates: tensors that the op writes by its meaning.
            splits: compilers split the graph at this op.
            opaque: native cannot be traced.
            token_dims: further dims that count tokens, by parameter; for an `int` parameter that is
                itself a number of tokens, `()`.
            batch_invariant: a row of native's result does not depend on the other rows.
            weights: tensors that are loaded once and that layouts permute; the op then has a
                parameter `layout: str = "plain"`. Native always sees them plain.

        Raises:
            RegistrationError: what is wrong, where, and what it must be.
        """

        def register(function: Native) -> IrOp:
            declaration = declare(
                function,
                name=name,
                activations=activations,
                allow_inplace=allow_inplace,
                mutates=mutates,
                splits=splits,
                token_dims=token_dims,
                weights=weights,
            )
            with self.lock:
                op = self._ops.get(declaration.name)
                if op is None:
                    op = IrOp.of(self, declaration)
                    op.__doc__ = function.__doc__
                elif declaration != op.declaration:
                    raise DuplicateRegistrationError(
                        f"Op `{op.name}` is registered twice: at {op.native.location} and at "
                        f"{location_of(function)}."
                    )
                op.add_implementation(self._native(op, function, opaque, batch_invariant))
                self._ops = {**self._ops, op.name: op}
            return op

        return register if native is None else register(native)

    def select(self, op: IrOp | str, /, *args: Any, **kwargs: Any) -> Selection:
        """Which implementation a call gets, and each rejected provider with its reason.

        Raises:
            UnknownOpError, ArgumentError, NoImplementationError, PredicateError.
        """
        return (self[op] if isinstance(op, str) else op).select(*args, **kwargs)

    def resolved_priorities(self) -> Mapping[str, ResolvedPriority]:
        """The effective priority of every op in this context, with each entry's source."""
        self.load_plugins()
        return {name: self.priorities.resolve(op) for name, op in self._ops.items()}

    def selections(self) -> tuple[ExecutedSelection, ...]:
        """What was really executed since start, one row per distinct selection."""
        return self.log.rows()

    def record(self, selection: Selection) -> None:
        """Note that a selection has run; a user hears of it where a provider they named did not."""
        entries = self.priorities.resolve(selection.op).entries
        named = {entry.provider for entry in entries if entry.source == USER}
        self.log.record(selection, named)

    def candidates(self, op: IrOp, values: Sequence[Any] | None = None) -> tuple[str, ...]:
        """Providers in the order they are asked, by a call with these values if some are given.

        With batch invariance on, those that declare it follow the priority, so that one is found
        where the priority names none.
        """
        self.load_plugins()
        providers = self.priorities.resolve(op, values).providers
        if not self.is_batch_invariant():
            return providers
        extra = [name for name, each in op.implementations.items() if each.batch_invariant]
        return tuple(dict.fromkeys((*providers, *extra)))

    def choose(self, op: IrOp, values: Sequence[Any]) -> Choice:
        """Choose for one value per parameter, with what the choice rests on.

        Raises:
            NoImplementationError, PredicateError: as `dispatch.choose`.
        """
        choice = choose(op, self.candidates(op, values), values, self.is_batch_invariant())
        if not self.priorities.tuned.changes(op.name):
            return choice
        # Which providers were asked rests on the signature too.
        return replace(choice, reads=choice.reads | signature_reads(op), asked=True)

    def platform(self) -> Platform:
        """The platform whose default priorities apply."""
        self.load_plugins()
        if self._platform is None:
            recognised = self._plugins.platform if self._plugins is not None else None
            self._platform = recognised or builtin_platform()
            if recognised is not None:
                self.priorities.warn_unknown_defaults(recognised)
        return self._platform

    def is_batch_invariant(self) -> bool:
        """Whether only batch-invariant implementations may be chosen."""
        if self._batch_invariant is None:
            return is_batch_invariant(os.environ)
        return self._batch_invariant

    def set_batch_invariant(self, value: bool | None) -> None:
        """Turn batch invariance on or off, process-wide; None asks the environment again."""
        self._batch_invariant = value
        self.forget_choices()

    def forget_choices(self) -> None:
        """Drop all remembered choices."""
        for op in self._ops.values():
            op.forget_choices()

    def load_plugins(self) -> None:
        """Load the plug-ins, once; does nothing for a registry without them.

        Raises:
            PluginError: names the entry point, its distribution and what went wrong.
        """
        if self._plugins is not None and not self._plugins.is_done:
            self._plugins.load()

    def origin_of(self, fn: Callable[..., Any]) -> str:
        """Whose an implementation is: the distribution whose plug-in runs, else its top module."""
        if self._plugins is not None and self._plugins.distribution is not None:
            return self._plugins.distribution
        return str(getattr(fn, "__module__", None) or "unknown").partition(".")[0]

    def prepare_inplace(self, implementation: Implementation) -> Callable[..., Any]:
        """What eager `maybe_inplace` runs: the function itself, unless donations are checked."""
        if not read_switch(os.environ, "IR_CHECK_DONATIONS"):
            return implementation.fn

        def checked(*values: Any) -> Any:
            self._enter_donation_check()
            return implementation.op.torch_maybe_inplace(*values)

        return checked

    def _enter_donation_check(self) -> None:
        # A mode belongs to one thread; with the variable set it stays on for the thread's life.
        if not hasattr(self._thread, "donation_check"):
            self._thread.donation_check = DonationCheck()
            self._thread.donation_check.__enter__()

    def _native(
        self, op: IrOp, function: Native, opaque: bool, batch_invariant: bool
    ) -> Implementation:
        return Implementation(
            op=op,
            provider=NATIVE,
            fn=op.weight_layouts.reading_any(function),
            support=Support(True),
            supports_args=None,
            inplace=False,
            opaque=opaque,
            batch_invariant=batch_invariant,
            libraries=(),
            origin=self.origin_of(function),
            location=location_of(function),
        )
