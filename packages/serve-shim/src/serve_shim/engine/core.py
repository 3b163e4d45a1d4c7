"""Owns the step: schedule, execute, turn tokens into deliveries; refuses threads and waiting.

One thread at a time may use an `EngineCore`. What goes wrong with one request is delivered to
that request; an exception that leaves `step` means that the engine is broken.
"""

import logging
import math
import time

from serve_shim.engine.block_pool import BlockPool
from serve_shim.engine.completion import accept_token
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.delivery import Delivery, build_delivery
from serve_shim.engine.executor import Executor, StepResult
from serve_shim.engine.output import CompletionDelta, TokenLogprobs
from serve_shim.engine.protocol import EngineStats
from serve_shim.engine.request import Request, Sequence
from serve_shim.engine.request_log import RequestLog
from serve_shim.engine.scheduler import Scheduler
from serve_shim.engine.slot_table import SlotTable
from serve_shim.engine.stats_sink import NullSink, Outcome, StatsSink, StepStats
from serve_shim.engine.step_clock import StepClock, StepPhase
from serve_shim.engine.step_plan import StepPlan
from serve_shim.errors import GenerationError

logger = logging.getLogger(__name__)


class EngineCore:
    """Sequences in, deliveries out, one step at a time."""

    def __init__(
        self, executor: Executor, config: EngineConfig, sink: StatsSink | None = None
    ) -> None:
        self._executor = executor
        self._config = config
        self._pool = BlockPool(config.num_blocks)
        self._table = SlotTable(
            config.max_num_seqs, config.max_model_len, config.max_blocks_per_sequence
        )
        self._scheduler = Scheduler(config, self._pool, self._table)
        self._num_steps = 0
        self.clock = StepClock()
        self.observe(sink or NullSink())

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self._scheduler.has_work

    def observe(self, sink: StatsSink) -> None:
        """Report to `sink` from now on."""
        self._sink = sink
        self._log = RequestLog(sink)

    def submit(self, request: Request) -> None:
        """Queue a request that was validated."""
        request.is_submitted = True
        for sequence in request.sequences:
            self._scheduler.add(sequence)

    def abort(self, request: Request) -> None:
        """End a request and free all it holds; nothing if it is over or was never submitted."""
        if request.is_submitted and not request.is_closed:
            self._close(request, "abort")

    def lose(self, request: Request) -> None:
        """Report a request as failed without touching what it holds, once `step` has raised."""
        request.is_closed = True
        self._log.closed(request, "error", time.monotonic())

    def step(self) -> list[Delivery]:
        """Advance all that can run by one step."""
        self.clock.start()
        plan, admitted = self._scheduler.schedule()
        if not plan.sequences:
            return self._idle()
        for sequence in admitted:
            self._enter(sequence, time.monotonic())
        self.clock.lap(StepPhase.SCHEDULE)
        result = self._executor.execute(plan, self._table, self.clock)
        self._scheduler.advance(plan)
        deliveries = self._deliver(result) if result else []
        self._num_steps += 1
        self._report(plan, result)
        return deliveries

    def stats(self) -> EngineStats:
        """A snapshot."""
        pool, scheduler = self._pool, self._scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_usage=1.0 - pool.num_free / pool.num_blocks,
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
        )

    def forget_prefixes(self) -> None:
        """Drop all cached blocks, for example those of the warm-up."""
        self._pool.forget_all()

    def check_accounts(self) -> None:
        """Raise `RuntimeError` if blocks or slots are lost, shared wrongly, or freed in use."""
        running = self._scheduler.running
        self._pool.check(sequence.blocks for sequence in running)
        slots = {sequence.slot for sequence in running}
        if len(slots) != len(running) or self._table.num_free + len(slots) != (
            self._config.max_num_seqs
        ):
            raise RuntimeError("slots and running sequences do not agree")

    def _idle(self) -> list[Delivery]:
        if self.has_work:
            raise RuntimeError("sequences are unfinished, but none can be scheduled")
        return []

    def _enter(self, sequence: Sequence, now: float) -> None:
        self._executor.assign(sequence)
        self._log.admitted(sequence, sequence.num_computed, now)

    def _deliver(self, result: StepResult) -> list[Delivery]:
        token_ids, entries = result.sampled
        now = time.monotonic()
        deltas: dict[Request, list[CompletionDelta]] = {}
        failures: list[Delivery] = []
        for row, (sequence, token_id) in enumerate(zip(result.sequences, token_ids, strict=True)):
            if sequence.is_done:
                continue
            entry = entries[row] if entries else None
            delta = self._accept(sequence, token_id, entry, now)
            if isinstance(delta, CompletionDelta):
                deltas.setdefault(sequence.request, []).append(delta)
            else:
                deltas.pop(sequence.request, None)
                failures.append(Delivery(sequence.request, None, delta))
        return failures + [build_delivery(request, parts) for request, parts in deltas.items()]

    def _accept(
        self, sequence: Sequence, token_id: int, entry: TokenLogprobs | None, now: float
    ) -> CompletionDelta | GenerationError:
        """What a token adds to its completion, or the error that ends its whole request."""
        if token_id < 0 or _has_bad_prompt_scores(sequence):
            self._close(sequence.request, "error")
            return GenerationError(
                "the model's logits for this request have no finite maximum (NaN or infinity)"
            )
        self._table.append_token(sequence, token_id)
        self._executor.observe(sequence.slot, token_id)
        try:
            delta = accept_token(sequence, token_id, entry)
        except Exception as error:
            # Whatever it is, it concerns this request alone; the others' tokens are still good.
            self._close(sequence.request, "error")
            logger.error("A request failed while its output was processed", exc_info=error)
            return _unforeseen(error)
        if delta.token_ids:
            self._log.got_token(sequence, now)
        if delta.finish_reason:
            self._finish(sequence, delta.finish_reason, now)
        return delta

    def _finish(self, sequence: Sequence, outcome: Outcome, now: float) -> None:
        self._scheduler.finish(sequence)
        request = sequence.request
        request.num_unfinished -= 1
        if request.num_unfinished == 0:
            request.is_closed = True
            self._log.closed(request, outcome, now)

    def _close(self, request: Request, outcome: Outcome) -> None:
        for sequence in request.sequences:
            if not sequence.is_done:
                self._scheduler.finish(sequence)
        request.num_unfinished = 0
        request.is_closed = True
        self._log.closed(request, outcome, time.monotonic())

    def _report(self, plan: StepPlan, result: StepResult | None) -> None:
        pool = self._pool
        self.clock.lap(StepPhase.OUTPUT)
        self._sink.on_step(
            StepStats(
                num_running=len(self._scheduler.running),
                num_waiting=len(self._scheduler.waiting),
                kv_usage=1.0 - pool.num_free / pool.num_blocks,
                prompt_tokens=plan.num_prompt_tokens,
                generation_tokens=len(result.sequences) if result else 0,
                num_preemptions=plan.num_preempted,
                prefix_queries=plan.num_queried,
                prefix_hits=plan.num_hit,
                phase_seconds=self.clock.take(),
            )
        )


def _has_bad_prompt_scores(sequence: Sequence) -> bool:
    request = sequence.request
    if sequence.index or request.is_delivered or request.prompt_logprobs is None:
        return False
    return any(entry and math.isnan(entry.logprob) for entry in request.prompt_logprobs)


def _unforeseen(error: Exception) -> GenerationError:
    wrapped = GenerationError(
        f"this request failed while its output was processed: {type(error).__name__}: {error}"
    )
    wrapped.__cause__ = error
    return wrapped
