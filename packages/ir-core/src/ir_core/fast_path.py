"""The functions a call goes through before the remembered implementation; one set for each op.

They have the op's own parameters, so that positional, keyword, omitted and explicit default
arguments become one positional call, in eager mode, in a graph and in the dispatcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ir_core.generated_code import build

if TYPE_CHECKING:
    from ir_core.declaration import Declaration
    from ir_core.implementation import Implementation
    from ir_core.lookup import Lookup, Run
    from ir_core.op import IrOp

_CALLER = """
def {function}(self, {names}):
    if is_dynamo_compiling():
        return self.{torch_op}({names})
    if {is_wrapped} or num_dispatch_modes() or is_functorch_active():
        return self.call_through_torch(self.{torch_op}, ({names},))
    if is_grad_enabled():
        self.refuse_grad({names})
    run = self.{lookup}.find({names})
    try:
        return run({names})
    except Exception:
        self.check_values({names})
        raise
"""
_KERNEL = """
def kernel({names}):
    if is_grad_enabled():
        refuse_grad({names})
    return lookup.find({names})({names})
"""
_CLONING = """
def functional({names}):
    return fn({cloned})
"""


def eager_caller(declaration: Declaration, function: str, torch_op: str, lookup: str) -> Run:
    """A method that calls an overload: the implementation itself in plain eager mode.

    Under a tracer, a dispatch mode or a functorch transform, and for tensor subclasses, it calls
    the torch op, so that these see it. A remembered call does not check types; if it fails, a
    wrong argument is named instead of the failure it led to.
    """
    schema = declaration.schema
    first = next((each.name for each in schema.parameters if each.type == "Tensor"), None)
    text = _CALLER.format(
        function=function,
        names=", ".join(schema.names),
        torch_op=torch_op,
        lookup=lookup,
        is_wrapped=f"type({first}) is not Tensor" if first else "False",
    )
    environment = {
        "Tensor": Tensor,
        "is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
        "is_functorch_active": torch._C._are_functorch_transforms_active,
        "is_grad_enabled": torch.is_grad_enabled,
        "num_dispatch_modes": torch._C._len_torch_dispatch_stack,
    }
    return build(function, text, environment, declaration.name, schema.defaults)


def dispatcher_kernel(op: IrOp, lookup: Lookup) -> Run:
    """What the torch dispatcher runs for an overload of the op."""
    text = _KERNEL.format(names=", ".join(op.schema.names))
    environment = {
        "is_grad_enabled": torch.is_grad_enabled,
        "lookup": lookup,
        "refuse_grad": op.refuse_grad,
    }
    return build("kernel", text, environment, op.name, op.schema.defaults)


def functional(implementation: Implementation) -> Run:
    """The implementation as a function that leaves its activations alone."""
    if not implementation.inplace:
        return implementation.fn
    op = implementation.op
    # Contiguous clones: outputs of the default overload are, whatever the inputs' strides were.
    cloned = [
        f"{name}.clone(memory_format=contiguous)" if name in op.activations else name
        for name in op.schema.names
    ]
    text = _CLONING.format(names=", ".join(op.schema.names), cloned=", ".join(cloned))
    environment = {"fn": implementation.fn, "contiguous": torch.contiguous_format}
    return build("functional", text, environment, op.name, op.schema.defaults)
