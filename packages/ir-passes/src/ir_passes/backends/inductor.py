"""Inductor on one lowered piece. Owns how it is called; its graph passes are left out.

They expect a functional graph, and a lowered one is not: kernels write into their arguments. What
Inductor does after them respects writes, once `write_order` has put readers before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule

from ir_passes.backends.base import Backend, BackendContext, CompiledPiece
from ir_passes.backends.code_loader import load_code
from ir_passes.backends.stored_code import StoredCode
from ir_passes.errors import BackendError

_SETTINGS: Mapping[str, Any] = {
    "use_post_grad_passes": False,
    # Entries of torch's cache would hide what was selected and which sizes were assumed.
    "fx_graph_cache": False,
    # Else the number of threads at compile time would be part of the code.
    "cpp.dynamic_threads": True,
    # Where an op rounds is part of its meaning: loops that are fused round there too.
    "emulate_precision_casts": True,
    # Each kind of vector instructions that the CPU has is otherwise tried by a compilation.
    "cpp.vec_isa_ok": True,
}
_STATIC_SETTINGS: Mapping[str, Any] = {"max_autotune": True}


class Inductor(Backend):
    """C++ or Triton for what lies between kernels, and the calls of these in one function."""

    name = "inductor"

    def compile(self, module: GraphModule, context: BackendContext) -> CompiledPiece:
        """Compile for the sizes of the graph's fakes; static shapes are autotuned.

        Raises:
            BackendError: an option that Inductor does not have.
        """
        # They cost two seconds, and only what is compiled needs them.
        from torch._inductor import config  # noqa: PLC0415
        from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415
        from torch._inductor.utils import BoxedBool  # noqa: PLC0415
        from torch._inductor.virtualized import V  # noqa: PLC0415

        from ir_passes.backends.write_order import reads_before_writes  # noqa: PLC0415
        from ir_passes.metadata import fake_mode_of, fake_of  # noqa: PLC0415

        settings = {**_SETTINGS, **(_STATIC_SETTINGS if context.is_static else {})}
        settings |= context.options
        _check_options(context.options, config)
        placeholders = module.graph.find_nodes(op="placeholder")
        fakes = [fake_of(node) for node in placeholders]
        output: Any = module.graph.output_node()
        output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))
        module.recompile()
        mode = fake_mode_of(module.graph)
        with (
            torch.no_grad(),
            tracing(TracingContext(mode)),
            V.set_fake_mode(mode),
            config.patch(settings),
            reads_before_writes(module.graph),
        ):
            compiled: Any = compile_fx_inner(
                module,
                fakes,
                static_input_idxs=(),
                cudagraphs=BoxedBool(False),
                is_inference=True,
            )
        return getattr(compiled, "current_callable", None) or compiled

    def store(self, piece: CompiledPiece) -> StoredCode:
        """The code of a piece that was compiled for the CPU.

        Raises:
            CannotStoreError: it needs more than its own C++ kernels and registered ops; says what.
        """
        # What only loads has no use for it.
        from ir_passes.backends.code_extraction import extract_code  # noqa: PLC0415

        return extract_code(piece)

    def load(self, code: StoredCode) -> CompiledPiece:
        """The callable of stored code; imports nothing of Inductor.

        Raises:
            BackendError: a library or an op that the code needs is not to be had here.
        """
        return load_code(code, self.name)


def _check_options(options: Mapping[str, Any], config: Any) -> None:
    for name in options:
        if name not in config.get_config_copy():
            raise BackendError(f"Inductor has no option `{name}` (`inductor_compile_config`).")
