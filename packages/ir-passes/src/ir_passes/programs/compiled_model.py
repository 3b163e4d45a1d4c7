"""A compiled model: called as the model is, for every size that it was compiled for, and no other.

Nothing is compiled by a call. Every guard that was dropped has been evaluated before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ir_passes.base import SizeRange
from ir_passes.errors import CompileError
from ir_passes.programs.argument_check import ArgumentCheck
from ir_passes.programs.interface import Call, Interface
from ir_passes.programs.program import Program, Wrap
from ir_passes.programs.report import CompileReport


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """The program of one token count, on the model's tensors as they were when it was bound.

    Attributes:
        call: takes the model's arguments by position.
        parameters: their names.
        state: the model's tensors by path; None where code of the model reads them on every call.
    """

    call: Call
    parameters: tuple[str, ...]
    state: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a compiled model is made of.

    Attributes:
        programs: each with the interface that it is called through.
        check: of every call's arguments.
        report: what was compiled and why.
        limit: the greatest token count; None without end.
    """

    programs: tuple[tuple[Interface, Program], ...]
    check: ArgumentCheck
    report: CompileReport
    limit: int | None


class CompiledModel:
    """Programs of one model by token count; made by `ir_passes.compile`.

    A call runs the program of its token count on the model's tensors as they were when it was
    compiled, or at the last `rebind`.
    """

    def __init__(self, parts: ModelParts) -> None:
        self._programs = parts.programs
        self._check = parts.check
        self._report = parts.report
        self._limit = parts.limit
        self._count = parts.programs[0][0].counter()
        self.rebind()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model; same arguments and result as the model's own call.

        Raises:
            CompileError: a token count that nothing was compiled for, or an argument that is not
                like that of the example: a constant, a dtype, a fixed size.
        """
        self._check(args, kwargs)
        with torch.no_grad():
            return self.program_for(self._count(*args, **kwargs))(*args, **kwargs)

    def program_for(self, num_tokens: int) -> Call:
        """The function that runs calls of so many tokens, without a look at their arguments.

        Raises:
            CompileError: nothing was compiled for this count.
        """
        single = self._single.get(num_tokens)
        if single is not None:
            return single
        if num_tokens < 1 or (self._limit is not None and num_tokens > self._limit):
            raise CompileError(
                f"{num_tokens} tokens are outside the sizes that were compiled, "
                f"{SizeRange(1, self._limit)}."
            )
        return self._calls[bisect_left(self._lasts, num_tokens)]

    def bind(self, num_tokens: int, wrap: Wrap | None = None) -> BoundProgram:
        """A function of its own for calls of so many tokens; `wrap` as of `RangeProgram.bind`.

        Raises:
            CompileError: nothing was compiled for this count, or a tensor of the model is gone.
        """
        self.program_for(num_tokens)
        fitting = [each for each in self._programs if num_tokens in each[1].sizes]
        single = [each for each in fitting if each[1].sizes.first == each[1].sizes.last]
        interface, program = (single or fitting)[-1]
        call = _bound(interface, program, wrap)
        paths = [each.path for each in interface.inputs]
        state = {paths[position]: value for position, value in interface.state().items()}
        parameters = tuple(interface.signature.parameters)
        return BoundProgram(call, parameters, state if interface.is_direct else None)

    def rebind(self) -> None:
        """Take the model's tensors anew: after weights or caches were replaced by others.

        Raises:
            CompileError: one is gone.
        """
        self._single: dict[int, Call] = {}
        self._calls: list[Call] = []
        self._lasts: list[int] = []
        for interface, program in self._programs:
            call = _bound(interface, program)
            first, last = program.sizes.first, program.sizes.last
            if first == last:
                self._single[first] = call
                continue
            self._calls.append(call)
            if last is not None:
                self._lasts.append(last)

    def report(self) -> CompileReport:
        """What was compiled and why; see `ir_passes.format_compile_report`."""
        return self._report

    @property
    def selected_impls(self) -> Mapping[str, Mapping[str, int]]:
        """Number of nodes by op and provider, `{"rms_norm": {"vllm_c": 61}}`."""
        return self._report.selected_impls


def _bound(interface: Interface, program: Program, wrap: Wrap | None = None) -> Call:
    state = interface.state() if interface.is_direct else {}
    return interface.wrap(program.bind(state, wrap))
