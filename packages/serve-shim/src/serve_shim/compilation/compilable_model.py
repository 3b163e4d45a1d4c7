"""Owns a decoder whose forward pass is compiled once its caches are bound; refuses to load one.

The compile stack costs a second to import: only a model that is compiled or captured pays for it.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import ir_core as ir
from ir_passes.config import CompilationConfig
from ir_passes.errors import CaptureError
from serve_shim.compilation.capture_counters import CaptureCounters
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.compilation.range_ends import padded_size
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.step_memory import StepInputs
from serve_shim.models.attention_step import AttentionStep
from serve_shim.models.causal_lm import CausalLM

if TYPE_CHECKING:
    from ir_passes import CompiledModel, CompileReport
    from ir_passes.capture.runner import CaptureRunner
    from serve_shim.compilation.capture import CapturedSteps
    from serve_shim.compilation.tapes import Tapes

logger = logging.getLogger(__name__)

DYNAMIC_DIMS = {
    "input_ids": {0: "tokens"},
    "positions": {0: "tokens"},
    "step.block_table": {0: "requests"},
    "step.seq_lens": {0: "requests"},
    "step.query_start_loc": {0: "starts"},
    "step.slot_mapping": {0: "tokens"},
}
"""The dims of a decoder's arguments that vary, and what they count."""

# Of an example, which is only looked at: sizes that a trace cannot mistake for one another.
_NUM_TOKENS, _NUM_REQUESTS = 16, 3

Progress = Callable[[str, int, int], None]


class CompilableModel:
    """A `LanguageModel` that runs its model eagerly until `compile`, and as compiled afterwards.

    After `capture`, steps of captured sizes run as graphs: a result is then valid until the next
    call, and other caches end that. So it is after `tape`.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._forward: Callable[[Tensor, Tensor, AttentionStep], Tensor] = model
        self._compiled: CompiledModel | None = None
        self._captured: CapturedSteps | None = None
        self._caches: Sequence[Tensor] = ()

    def __call__(self, input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """Final-norm hidden states [T, hidden] of int64 `input_ids` [T] at `positions` [T]."""
        return self._forward(input_ids, positions, step)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocab] of hidden states [N, hidden]; one op, which is not compiled."""
        return self._model.compute_logits(hidden)

    def bind_kv_cache(self, caches: Sequence[Tensor]) -> None:
        """Use these caches, compiled or not."""
        self._model.bind_kv_cache(caches)
        self._caches = caches
        if self._compiled is not None:
            self._compiled.rebind()
        if self._captured is not None:
            self._captured.release()
        elif self._compiled is not None:
            self._run(self._compiled)

    @property
    def report(self) -> "CompileReport | None":
        """What was compiled and why; None before `compile`."""
        return None if self._compiled is None else self._compiled.report()

    def compile(
        self, config: CompilationConfig, bounds: EngineConfig, progress: Progress
    ) -> "CompileReport":
        """Compile the forward pass for every step that the engine can make.

        Raises what `ir_passes.compile` raises; the model then stays eager.
        """
        from ir_passes import compile  # noqa: A004, PLC0415

        limits = {
            "tokens": bounds.max_step_tokens,
            "requests": bounds.max_num_seqs,
            "starts": bounds.max_num_seqs + 1,
        }
        compiled = compile(
            self._model,
            example_arguments(bounds.max_blocks_per_sequence),
            dynamic_dims=DYNAMIC_DIMS,
            limits=limits,
            config=config,
            progress=progress,
        )
        self._compiled = compiled
        self._run(compiled)
        return compiled.report()

    def _run(self, compiled: "CompiledModel") -> None:
        def forward(input_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
            # Straight to the program: the engine's buffers are always alike.
            hidden: Tensor = compiled.program_for(len(input_ids))(input_ids, positions, step)
            return hidden

        self._forward = forward

    def tape(self, num_tokens: int, buffers: StepInputs) -> "Tapes":
        """Run steps of up to `num_tokens` tokens from tapes, until other caches are bound.

        `buffers` are the engine's, in which every later step lies. Raises `TapeError` where no tape
        holds what the model computes; steps then run as before.
        """
        from ir_kernels.tape import TapeError  # noqa: PLC0415
        from serve_shim.compilation.tapes import Tapes  # noqa: PLC0415

        if self._compiled is None:
            raise TapeError("only a compiled model can be recorded, and this one is not")
        tapes = Tapes(self._compiled, buffers, self._caches, num_tokens)
        self._forward = tapes
        return tapes

    def capture(
        self, table: GraphTable, buffers: StepInputs, progress: Callable[[int, int], None]
    ) -> CaptureCounters:
        """Capture all graphs of a table, and run steps as them from now on.

        `buffers` are the engine's, in which every later step must lie. Raises `CaptureError`: the
        model is not compiled, or a size cannot be captured; steps then run as before.
        """
        from serve_shim.compilation.capture import CapturedSteps  # noqa: PLC0415

        if self._compiled is None:
            raise CaptureError("Only a compiled model can be captured, and this one is not.")
        _refuse_parted(table.sizes)
        runner = _runner(buffers.input_ids.device)
        captured = CapturedSteps(self._compiled, buffers, table, runner)
        captured.capture(progress)
        self._forward = self._captured = captured
        counters = captured.counters
        logger.info(
            "Captured %d graphs (%s) for token counts %s in %.2f s; they hold %d bytes",
            counters.num_graphs,
            table.mode.value,
            ", ".join(map(str, table.sizes)),
            counters.seconds,
            counters.num_bytes,
        )
        return counters


def _refuse_parted(sizes: Sequence[int]) -> None:
    """Raise CaptureError where timing chose otherwise for a step than for its captured size.

    What a server times fits its own sizes; another model's choices, in this process, may not.
    """
    for end in ir.registry().priorities.row_ends():
        padded = padded_size(end, sizes)
        if padded != end:
            raise CaptureError(
                f"Steps of {end} tokens would run at size {padded}, and timing chose for up to "
                f"{end} rows by themselves; capture {end} too, or turn `autotune` off."
            )


def _runner(device: torch.device) -> "CaptureRunner":
    from ir_passes.capture.cuda_graph_runner import CudaGraphRunner  # noqa: PLC0415
    from ir_passes.capture.recording_runner import RecordingRunner  # noqa: PLC0415

    return CudaGraphRunner(device) if device.type == "cuda" else RecordingRunner()


def example_arguments(max_blocks: int) -> tuple[Tensor, Tensor, AttentionStep]:
    """Arguments for a trace, with a block table of this width; zeros, since nothing is executed."""
    tokens = torch.zeros(_NUM_TOKENS, dtype=torch.int64)
    step = AttentionStep(
        block_table=torch.zeros(_NUM_REQUESTS, max_blocks, dtype=torch.int32),
        seq_lens=torch.zeros(_NUM_REQUESTS, dtype=torch.int32),
        query_start_loc=torch.zeros(_NUM_REQUESTS + 1, dtype=torch.int32),
        slot_mapping=tokens.clone(),
    )
    return tokens, tokens.clone(), step
