"""Traces a graph, or any function of tensors, to ATen and IR ops. It does not functionalise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from ir_passes.errors import TraceError
from ir_passes.metadata import tensors_in


def mode_of_values(values: Sequence[Any]) -> FakeTensorMode:
    """The mode of the first fake tensor among some values.

    Raises:
        TraceError: there is none.
    """
    for tensor in tensors_in(list(values)):
        if isinstance(tensor, FakeTensor):
            return tensor.fake_mode
    raise TraceError("The model takes no tensor, so there is nothing to compile.")


def trace_to_aten(
    function: Callable[..., Any], fakes: Sequence[Any], mode: FakeTensorMode
) -> GraphModule:
    """Trace a function on fake inputs, with Inductor's decompositions.

    In-place ops stay in place. Each node keeps the stack trace of the node it came from, if the
    function interprets a graph.
    """
    # It costs a second, and only what is compiled needs it.
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

    tracer = make_fx(
        function,
        decomposition_table=select_decomp_table(),
        _allow_non_fake_inputs=True,
    )
    # The mode is named twice: torch would otherwise find the one that Dynamo has put in its place.
    with (
        torch.no_grad(),
        tracing(TracingContext(mode)),
        mode,
        enable_python_dispatcher(),
        preserve_node_meta(),
    ):
        module = tracer(*fakes)
    _give_constants_fakes(module, mode)
    return module


def _give_constants_fakes(module: GraphModule, mode: FakeTensorMode) -> None:
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target), None)
        if isinstance(value, torch.Tensor) and "val" not in node.meta:
            node.meta["val"] = mode.from_tensor(value)
