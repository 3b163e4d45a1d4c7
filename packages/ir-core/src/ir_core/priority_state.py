"""The priorities in force: process-wide user lists, scoped overrides, what timing chose, defaults.

Times nothing: that is `autotuning`.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ir_core.autotuning.rows import KnownSizes
from ir_core.autotuning.table import TunedChoice, TunedTable
from ir_core.errors import PriorityError, UnknownProviderError
from ir_core.platforms import EXECUTION_MODES, ExecutionMode, Platform
from ir_core.priority_lists import (
    IrOpPriorityConfig,
    PriorityLists,
    ResolvedPriority,
    resolve,
)
from ir_core.suggestion import suggest

if TYPE_CHECKING:
    from ir_core.op import IrOp
    from ir_core.registry import Registry

_logger = logging.getLogger("ir_core.dispatch")


class Scope:
    """User lists of one nest of `with priority(...)`; equal nests share one object."""

    __slots__ = ("lists",)

    def __init__(self, lists: IrOpPriorityConfig) -> None:
        self.lists = lists


class PriorityState:
    """What users and the platform prefer, for the ops of one registry.

    Scoped overrides follow `contextvars`: a new thread starts without them and sees the
    process-wide lists only.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._user = IrOpPriorityConfig()
        self._tuned = TunedTable()
        self._mode: ExecutionMode = "eager"
        self._scope: ContextVar[Scope | None] = ContextVar("ir_priority", default=None)
        self._scopes: dict[IrOpPriorityConfig, Scope] = {}
        self._sizes: ContextVar[KnownSizes] = ContextVar("ir_sizes", default=MappingProxyType({}))
        self._reported: set[tuple[str, str]] = set()
        self.scope = self._scope.get
        """The scope of this context; an identity that remembered choices may be keyed by."""

    @property
    def mode(self) -> ExecutionMode:
        """Which of the platform's defaults apply."""
        return self._mode

    @property
    def tuned(self) -> TunedTable:
        """What timing has chosen, by op and signature."""
        return self._tuned

    def row_ends(self, op: IrOp | None = None) -> tuple[int, ...]:
        """Numbers of rows after which timing may give calls of an op, or of any, another provider.

        None under batch invariance: bits of a row may not depend on how many rows there are, so a
        choice by ranges is not followed.
        """
        ends = self._tuned.ends(None if op is None else op.name)
        return () if ends and self._registry.is_batch_invariant() else ends

    def adopt_tuned(self, choices: Iterable[TunedChoice]) -> None:
        """Put choices in force, process-wide and for good: one that is in force already stays."""
        self._tuned = self._tuned.extended(choices)
        self._registry.forget_choices()

    def set_mode(self, mode: ExecutionMode) -> None:
        """Apply the platform's defaults for "eager" or "inductor", process-wide.

        Raises:
            PriorityError: another mode.
        """
        if mode not in EXECUTION_MODES:
            raise PriorityError(
                f"Execution mode `{mode}` is unknown; {suggest(mode, EXECUTION_MODES)}"
            )
        self._mode = mode
        self._registry.forget_choices()

    def set(self, lists: PriorityLists) -> None:
        """Replace the process-wide user lists; an op that is left out has none.

        Raises:
            UnknownOpError, UnknownProviderError, PriorityError: as `check` does.
        """
        self._user = self.check(lists)
        self._report_unsupported(self._user)
        self._registry.forget_choices()

    @contextmanager
    def override(self, lists: PriorityLists) -> Generator[IrOpPriorityConfig]:
        """Put lists in force for this context; ops that are left out keep the outer ones.

        Raises:
            UnknownOpError, UnknownProviderError, PriorityError: as `check` does.
        """
        inner = self.check(lists)
        self._report_unsupported(inner)
        outer = self._scope.get()
        joined = IrOpPriorityConfig({**(outer.lists if outer else {}), **inner})
        token = self._scope.set(self._scopes.setdefault(joined, Scope(joined)))
        try:
            yield inner
        finally:
            self._scope.reset(token)

    @contextmanager
    def within_sizes(self, known: KnownSizes) -> Generator[None]:
        """Let choices for traced calls in this context rest on bounds of symbols in their sizes."""
        token = self._sizes.set({**self._sizes.get(), **known})
        try:
            yield
        finally:
            self._sizes.reset(token)

    def check(self, lists: PriorityLists | object) -> IrOpPriorityConfig:
        """Return the lists parsed, all names known.

        Raises:
            UnknownOpError: no such op; lists the valid ones.
            UnknownProviderError: no such implementation of the op; lists the valid ones.
            PriorityError: an empty list, an empty or repeated name, or something that is no list.
        """
        if not isinstance(lists, Mapping):
            raise PriorityError(f"A priority maps ops to lists of providers, got {lists!r}.")
        self._registry.load_plugins()
        parsed = IrOpPriorityConfig(lists)
        for name, providers in parsed.items():
            op = self._registry[name]
            for provider in providers:
                if provider not in op.implementations:
                    raise UnknownProviderError(
                        f"Op `{name}` has no provider `{provider}`; "
                        f"{suggest(provider, op.implementations)}"
                    )
        return parsed

    def resolve(self, op: IrOp, values: Sequence[Any] | None = None) -> ResolvedPriority:
        """The effective order of providers for one op in this context.

        With the values of a call, one per parameter, what timing chose for such calls is in it; not
        a choice by rows if there is a user's list.

        Raises:
            RowRangeError: the call is traced, and its rows may lie in several ranges of a choice.
        """
        scope = self._scope.get()
        user = scope.lists.get(op.name) if scope else None
        if user is None:
            user = self._user.get(op.name, ())
        platform = self._registry.platform()
        default = self._defaults(platform).get(op.name, ())
        tuned = () if values is None else self._preferred(op, values, is_asked=bool(user))
        return resolve(op.name, tuple(op.implementations), user, default, platform.name, tuned)

    def warn_unknown_defaults(self, platform: Platform) -> None:
        """Say which ops a platform names that nobody registered; they may be another plug-in's."""
        for name in self._defaults(platform):
            if name not in self._registry:
                _logger.warning(
                    "Platform %s prefers providers for `%s`, which is no registered op; %s",
                    platform.name,
                    name,
                    suggest(name, self._registry),
                )

    def _preferred(self, op: IrOp, values: Sequence[Any], *, is_asked: bool) -> Sequence[str]:
        """What timing chose; by rows only where it alone decides, so that it need not be known."""
        if self._tuned.ends(op.name) and (is_asked or not self.row_ends(op)):
            found = self._tuned.find(op, values)
            if found is not None and found.later:
                return ()
        return self._tuned.preferred(op, values, self._sizes.get())

    def _defaults(self, platform: Platform) -> IrOpPriorityConfig:
        try:
            return IrOpPriorityConfig(platform.default_priority(self._mode))
        except PriorityError as error:
            raise PriorityError(f"Platform {platform.name}: {error}") from error

    def _report_unsupported(self, lists: IrOpPriorityConfig) -> None:
        for name, providers in lists.items():
            for provider in providers:
                implementation = self._registry[name].implementations[provider]
                if implementation.supported or (name, provider) in self._reported:
                    continue
                self._reported.add((name, provider))
                _logger.warning(
                    "%s: provider `%s` was asked for but cannot run here: %s",
                    name,
                    provider,
                    implementation.unsupported_reason,
                )
