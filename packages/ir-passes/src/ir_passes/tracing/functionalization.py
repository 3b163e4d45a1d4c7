"""The second route to a functional graph: AOTAutograd, for models that write tensors in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node

from ir_passes.errors import TraceError

Program = Callable[..., Sequence[Any]]


class Functionalized:
    """A functional graph, and AOTAutograd's own code around it.

    Attributes:
        module: the graph; its inputs are those of the graph it was made from.
        needs_wrapper: outputs alias inputs, or an input changes in a way that only AOTAutograd's
            own code carries out, so the graph alone is not the whole model.
    """

    def __init__(self, original: GraphModule, fakes: Sequence[Any], mode: FakeTensorMode) -> None:
        self._num_constants = len([*original.parameters(), *original.buffers()])
        self._graphs: list[GraphModule] = []
        self._program: Program | None = None
        self.needs_wrapper = False
        self._wrapper = self._run_aot(original, fakes, mode)
        if not self._graphs:
            raise TraceError("AOTAutograd made no inference graph.")
        self.module = self._graphs[0]
        _check_inputs(self.module, self._num_constants + len(fakes))
        _restore_constants(self.module, original)

    def bind(self, program: Program) -> Program:
        """A function of the original inputs that runs a compiled form of the graph."""
        self._program = program
        return self._wrapper

    def _run_aot(
        self, original: GraphModule, fakes: Sequence[Any], mode: FakeTensorMode
    ) -> Program:
        # They cost seconds, and only a model that writes in place comes here.
        from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415
        from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415

        compiler = aot_autograd(
            fw_compiler=self._keep,
            bw_compiler=None,
            inference_compiler=self._keep,
            decompositions=select_decomp_table(),
            keep_inference_input_mutations=True,
        )
        with torch.no_grad(), tracing(TracingContext(mode)):
            return compiler(original, list(fakes))

    def _keep(self, module: GraphModule, _: Sequence[Any]) -> Callable[[list[Any]], Sequence[Any]]:
        facts: Any = TracingContext.get().fw_metadata
        self.needs_wrapper = bool(
            facts.num_mutated_inp_runtime_indices or facts.num_outputs_aliased
        )
        self._graphs.append(module)

        def run(arguments: list[Any]) -> Sequence[Any]:
            inputs = arguments[self._num_constants :]
            arguments.clear()
            return (self._program or self.module)(*inputs)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def functionalize(
    module: GraphModule, fakes: Sequence[Any], mode: FakeTensorMode
) -> Functionalized:
    """Make a graph of torch ops functional; final values of written inputs are copied back.

    Raises:
        TraceError: an input that is written shares memory with another one.
    """
    return Functionalized(module, fakes, mode)


def _check_inputs(module: GraphModule, expected: int) -> None:
    if len(module.graph.find_nodes(op="placeholder")) != expected:
        raise TraceError(
            "The model writes an input that shares memory with another input. Pass tensors that "
            "do not overlap, or clone one of them."
        )


def _restore_constants(module: GraphModule, original: GraphModule) -> None:
    """AOTAutograd makes a module's tensors its first inputs; make constants of them again."""
    tensors = [*original.named_parameters(), *original.named_buffers()]
    placeholders: list[Node] = list(module.graph.find_nodes(op="placeholder"))
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    for (name, tensor), placeholder in zip(tensors, placeholders, strict=False):
        module.register_buffer(name, tensor)
        with module.graph.inserting_before(first):
            constant = module.graph.get_attr(name)
        constant.meta.update(placeholder.meta)
        placeholder.replace_all_uses_with(constant)
        module.graph.erase_node(placeholder)
    module.recompile()
