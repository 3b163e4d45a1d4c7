"""Owns what a rank does once its process is set up: join, load, compile, step; refuses to decide.

The engine says what comes next; whatever raises here ends the group of ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ir_core as ir
from ir_passes.config import AutotuneMode, CompilationConfig
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.compilation.plan import plan_compilation
from serve_shim.compilation.watch import CompileWatch
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.memory import available_bytes
from serve_shim.engine.step_clock import StepClock
from serve_shim.engine.step_order import SlotAssignment, StepOutput
from serve_shim.engine.worker import Worker
from serve_shim.engine.worker_start import WorkerStart
from serve_shim.loading import describe_weights
from serve_shim.models.model_config import ModelConfig
from serve_shim.models.shard import Shard
from serve_shim.ranks.facts import Facts, gather_facts
from serve_shim.ranks.meeting import Meeting, StoreHost, join
from serve_shim.ranks.program_facts import program_facts
from serve_shim.ranks.shared_compile import FirstCompilation, compile_first, compile_next
from serve_shim.ranks.shared_tuning import RankTuning
from serve_shim.ranks.shm_channel import ShmRankEnd
from serve_shim.ranks.step_message import OrderDecoder, StepReply, encode_reply
from serve_shim.settings.tree import Settings
from serve_shim.startup import make_temporary_directory

Progress = Callable[[int, int], None]

_CHANNEL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """What one rank has loaded; `weights` and `details` are for the log."""

    local_config: ModelConfig
    dtype: torch.dtype
    available_bytes: int
    weights: str
    details: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one rank compiled or loaded: `facts` are those that all ranks must share."""

    first: FirstCompilation | None
    status: str
    facts: Facts


class RankSession:
    """One rank of a model, in a process whose threads and environment are set.

    Loads plug-ins and sets priorities, as a server does before it loads a model.
    """

    def __init__(self, settings: Settings, shard: Shard, threads: int, progress: Progress) -> None:
        torch.set_num_threads(threads)
        ir.load_plugins()
        ir.set_execution_mode(plan_compilation(settings).execution_mode)
        ir.set_priority(settings.kernel_config.ir_op_priority)
        self._settings = settings
        self._shard = shard
        self._progress = progress
        self._start = WorkerStart(settings, shard)
        self._store: StoreHost | None = None
        self._watch = CompileWatch()

    def facts(self, is_one_node: bool) -> Facts:
        """What must be the same on all ranks."""
        return gather_facts(self._settings, is_one_node=is_one_node)

    def host_store(self, address: str) -> tuple[str, int]:
        """Open a store on this rank's address, for ranks of several nodes."""
        self._store = StoreHost(address)
        return self._store.place

    def join(self, meeting: Meeting) -> None:
        """Meet the other ranks."""
        join(meeting, self._shard)

    def load(self) -> LoadedPart:
        """Read this rank's weights."""
        loaded = self._start.load(
            lambda _, done, total: self._progress(done, total), has_text=False
        )
        return LoadedPart(
            local_config=loaded.model.local_config,
            dtype=loaded.model.dtype,
            available_bytes=available_bytes(),
            weights=describe_weights(loaded.load_report),
            details=str(loaded.load_report),
        )

    def allocate(self, bounds: EngineConfig) -> None:
        """Make this rank's KV cache, and what steps are received in."""
        self._worker: Worker = self._start.allocate(
            bounds, can_sample=self._shard.rank == 0 or self._settings.check_rank_tokens
        )
        self._decoder = OrderDecoder(bounds)
        self._clock = StepClock()
        self._num_selections = 0

    def plan_tuning(self) -> None:
        """Get ready to choose implementations with the other ranks."""
        asked = self._settings.compilation_config.autotune
        session = self._start.plan_tuning()
        is_timed = asked is AutotuneMode.ON
        self._tuning = RankTuning(session, self._shard.rank, is_timed=is_timed)

    def tune(self, method: str, *arguments: Any) -> Any:
        """Call a method of this rank's tuning; what it knew is forgotten after `adopt`."""
        result = getattr(self._tuning, method)(*arguments)
        if method == "adopt":
            del self._tuning
        return result

    def compile_first(self, config: CompilationConfig, directory: Path) -> Compiled:
        """Compile or load, for all ranks of this node.

        `directory` is the server's own; another machine than the server's has none, and makes one.
        """
        apart = directory if directory.is_dir() else make_temporary_directory("serve-shim-ranks-")
        first = compile_first(self._start, config, apart, self._note)
        self._report = first.report
        return Compiled(first, first.report.cache.status, program_facts(first.report))

    def compile_next(self, first: FirstCompilation) -> Compiled:
        """Load what the first rank of this node compiled."""
        self._report = report = compile_next(self._start, first, self._note)
        return Compiled(None, report.cache.status, program_facts(report))

    def check(self) -> None:
        """Compare the compiled model with the eager one; all ranks at once."""
        self._start.check(self._report)

    def capture(self, table: GraphTable) -> None:
        """Capture graphs over this rank's step memory; all ranks at once."""
        self._start.capture(table, self._decoder.whole, self._progress)

    def watch_compilations(self) -> None:
        """Count what torch compiles from now on."""
        self._watch.start()

    def serve(self, channel: str) -> None:
        """Run the steps that come over shared memory until the engine leaves."""
        end = ShmRankEnd(
            channel, self._shard.rank, self._shard.size, open_timeout_s=_CHANNEL_TIMEOUT_S
        )
        try:
            while True:
                end.reply(self.step(end.receive()))
        finally:
            end.close()

    def step(self, data: bytes) -> bytes:
        """Run one step."""
        events, order = self._decoder.decode(data)
        for event in events:
            if isinstance(event, SlotAssignment):
                self._worker.assign(event)
            else:
                self._worker.observe(*event)
        self._clock.start()
        output = self._worker.run(order, self._clock)
        return encode_reply(self._reply(output))

    def _reply(self, output: StepOutput) -> StepReply:
        token_ids = None
        if self._settings.check_rank_tokens and output.sampled is not None:
            token_ids = output.sampled.token_ids
        num_compilations = self._watch.num_compilations
        if self._shard.rank != 0:
            return StepReply(None, (), token_ids, num_compilations=num_compilations)
        selections = self._new_selections()
        return StepReply(output, self._clock.take(), token_ids, selections, num_compilations)

    def _new_selections(self) -> tuple[ir.ExecutedSelection, ...]:
        log = ir.registry().log
        if len(log) == self._num_selections:
            return ()
        self._num_selections = len(log)
        return log.rows()

    def _note(self, _: str, done: int, total: int) -> None:
        self._progress(done, total)
