"""Owns the workers of a model that is spread over ranks, as the engine sees them.

It says what all ranks do next, one phase after the other; a rank that fails ends them all.
"""

import logging
import os
import re
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ir_core as ir
from ir_passes.config import AutotuneMode, CompilationConfig
from ir_passes.programs.report import CompileReport
from serve_shim.compilation.graph_table import GraphTable
from serve_shim.engine.config import EngineConfig
from serve_shim.engine.executor import StepRunner
from serve_shim.engine.op_tuning import log_tuning
from serve_shim.engine.step_memory import StepInputs
from serve_shim.engine.workers import LoadedWorkers, Progress
from serve_shim.errors import EngineDeadError, SettingsError
from serve_shim.loading import describe_model
from serve_shim.models.shard import Shard
from serve_shim.models.sharding import plan_sharding
from serve_shim.ranks.call_channel import CallEngineEnd
from serve_shim.ranks.channel import EngineEnd
from serve_shim.ranks.facts import compare_facts, compare_with_server, shared_facts
from serve_shim.ranks.launch_options import LaunchOptions, RankPlace
from serve_shim.ranks.meeting import Meeting, can_share_memory
from serve_shim.ranks.rank import RankPlan
from serve_shim.ranks.rank_group import RankGroup
from serve_shim.ranks.rank_runner import RankRunner
from serve_shim.ranks.rank_session import Compiled, LoadedPart
from serve_shim.ranks.shared_tuning import tune_together
from serve_shim.ranks.shm_channel import ShmEngineEnd
from serve_shim.settings.tree import Settings

logger = logging.getLogger(__name__)

MOST_RANKS = 63
"""The engine has a seat too in a segment of shared memory, which has 64."""

_RANK_CLASS = "serve_shim.ranks.rank:Rank"
_COLLECTIVE_TIMEOUT_S = 60.0
_CHANNEL_TIMEOUT_S = 60.0
_ROOT_CAUSE_TIMEOUT_S = 4.0
_PREPARE_TIMEOUT_S = 120.0
_LOAD_TIMEOUT_S = 1800.0
_TUNE_TIMEOUT_S = 1800.0
_COMPILE_TIMEOUT_S = 3600.0
_GLOO = "gloo"
_LOOPBACK = "127.0.0.1"
_PASSED_ON = ("IR_", "VLLM_", "HF_", "XDG_", "GOMP_")
_SECRET = re.compile("TOKEN|KEY|SECRET|PASSWORD", re.IGNORECASE)


class RankWorkers:
    """Implements `Workers` over `settings.tensor_parallel_size` ranks."""

    def __init__(self, settings: Settings) -> None:
        # No rank has use for the keys of requests.
        self._settings = settings.model_copy(update={"api_key": (), "api_key_file": None})
        self._size = settings.tensor_parallel_size
        self._group: RankGroup | None = None
        self._runner: RankRunner | None = None
        self._has_failed = threading.Event()

    def launch(self) -> None:
        """Start the ranks, see that they agree, and let them meet.

        Raises `ModelLoadError` for a model that so many ranks cannot share, before any is started.
        """
        settings = self._settings
        if self._size > MOST_RANKS:
            raise SettingsError(
                f"`tensor_parallel_size` ({self._size}) is more than the {MOST_RANKS} ranks that "
                "one server can have"
            )
        self._described = describe_model(
            settings.model,
            revision=settings.revision,
            tokenizer=settings.tokenizer,
            chat_template=settings.chat_template,
        )
        plan_sharding(self._described.config, Shard(0, self._size))
        self._group = group = RankGroup.start(_RANK_CLASS, _launch_options(settings))
        group.on_failure(self._end_step)
        for place in group.places:
            logger.info("Rank %d: pid %d on %s", place.rank, place.pid, place.hostname)
        self._prepare()
        is_one_node = self._is_one_node
        facts = self._run("facts", is_one_node, phase="ranks", timeout_s=_LOAD_TIMEOUT_S)
        compare_with_server(shared_facts(settings, is_one_node=is_one_node), facts[0])
        compare_facts(facts, "what they compute with")
        self._meet()

    def load(self, progress: Progress) -> LoadedWorkers:
        """Have each rank read its part of the weights."""
        parts: list[LoadedPart] = self._run(
            "load", phase="load", timeout_s=_LOAD_TIMEOUT_S, progress=progress
        )
        described, first = self._described, parts[0]
        logger.info("Weights: %s", first.weights)
        logger.info("Loaded %s on %d ranks: %s", described.source.path, self._size, first.details)
        neighbours = _ranks_by_node(self._places)
        return LoadedWorkers(
            name=described.source.name,
            source=str(described.source.path),
            config=described.config,
            local_config=first.local_config,
            dtype=first.dtype,
            tokenizer=described.tokenizer,
            generation=described.generation,
            available_bytes=min(
                part.available_bytes // len(neighbours[place.node_id])
                for part, place in zip(parts, self._places, strict=True)
            ),
        )

    def allocate(self, bounds: EngineConfig) -> StepRunner:
        """Have each rank make its KV cache, and all choose the same implementations."""
        self._run("allocate", bounds, phase="load", timeout_s=_PREPARE_TIMEOUT_S)
        if self._settings.compilation_config.autotune is not AutotuneMode.OFF:
            self._tune()
        self._runner = RankRunner(self._open_channel, bounds, self.failure, self._root_cause)
        return self._runner

    def compile(self, config: CompilationConfig, progress: Progress) -> CompileReport:
        """Have one rank of each node compile, or load, and the others load what it has."""
        nodes = list(_ranks_by_node(self._places).values())
        leaders = [ranks[0] for ranks in nodes]
        firsts: list[Compiled] = self._run(
            "compile_first",
            config,
            self._started.directory,
            phase="compile",
            timeout_s=_COMPILE_TIMEOUT_S,
            ranks=leaders,
            progress=progress,
        )
        compiled = dict(zip(leaders, firsts, strict=True))
        for ranks, first in zip(nodes, firsts, strict=True):
            if others := ranks[1:]:
                followed = self._run(
                    "compile_next",
                    first.first,
                    phase="compile",
                    timeout_s=_COMPILE_TIMEOUT_S,
                    ranks=others,
                )
                compiled |= zip(others, followed, strict=True)
        facts = [compiled[rank].facts for rank in range(self._size)]
        compare_facts(facts, "the programs that they compiled")
        states = ", ".join(f"{rank}: {compiled[rank].status}" for rank in range(self._size))
        logger.info("Compile cache by rank: %s", states)
        report = firsts[0].first.report if firsts[0].first else None
        if report is None:
            raise EngineDeadError("rank 0 compiled without a report")
        return report

    def check(self, report: CompileReport) -> None:
        """Have all ranks compare the compiled model with the eager one."""
        del report  # each has its own
        self._run("check", phase="compile", timeout_s=_LOAD_TIMEOUT_S)

    def capture(self, table: GraphTable, buffers: StepInputs, progress: Progress) -> None:
        """Have all ranks capture, over their own step memory."""
        del buffers
        timeout_s = _COMPILE_TIMEOUT_S
        self._run("capture", table, phase="capture", timeout_s=timeout_s, progress=progress)

    def tape(self, num_tokens: int, buffers: StepInputs) -> None:
        """Nothing: ranks meet between kernels, which no tape holds."""
        del num_tokens, buffers
        logger.info("No step runs from a tape: ranks meet between kernels")

    def serve(self) -> None:
        """Open the channel; each rank runs the steps that come, until the group ends."""
        self._started.call("pin", phase="serve", timeout_s=_PREPARE_TIMEOUT_S)
        self._run("watch_compilations", phase="serve", timeout_s=_PREPARE_TIMEOUT_S)
        if self._runner is None:
            raise EngineDeadError("ranks serve before they have caches")
        self._runner.connect()

    @property
    def num_compilations(self) -> int:
        """What torch compiled on all ranks, as of the last step."""
        return 0 if self._runner is None else self._runner.num_compilations

    def failure(self) -> Exception | None:
        """What broke a rank."""
        return None if self._group is None else self._group.failure

    def close(self) -> None:
        """End all ranks and what started them; a step in progress fails."""
        if self._runner is not None:
            self._runner.fail("the server ends")
        if self._group is not None:
            self._group.close()
        if self._runner is not None:
            self._runner.close()

    @property
    def _started(self) -> RankGroup:
        if self._group is None:
            raise EngineDeadError("ranks are used before they were launched")
        return self._group

    @property
    def _places(self) -> Sequence[RankPlace]:
        return self._started.places

    @property
    def _is_one_node(self) -> bool:
        """Whether all ranks are on one machine, and that is this one."""
        here = socket.gethostname()
        nodes = _ranks_by_node(self._places)
        return len(nodes) == 1 and all(
            place.hostname == here and Path(f"/proc/{place.pid}").exists() for place in self._places
        )

    def _run(self, method: str, *arguments: object, **options: Any) -> list[Any]:
        told = self._started.call("run", method, *arguments, **options)
        for text in dict.fromkeys(text for _, warnings in told for text in warnings):
            logger.warning("A rank: %s", text)
        return [result for result, _ in told]

    def _prepare(self) -> None:
        nodes = _ranks_by_node(self._places)
        plans = [
            RankPlan(
                self._settings,
                nodes[place.node_id].index(place.rank),
                len(nodes[place.node_id]),
                _LOOPBACK if self._is_one_node else place.node_ip,
                self._started.directory,
                is_alone=self._settings.ray_address is None,
            )
            for place in self._places
        ]
        self._started.call("prepare", plans, phase="ranks", timeout_s=_PREPARE_TIMEOUT_S)

    def _tune(self) -> None:
        options: dict[str, Any] = {"phase": "tune", "timeout_s": _TUNE_TIMEOUT_S}
        self._run("plan_tuning", **options)

        def call(method: str, *arguments: object, ranks: Sequence[int] | None = None) -> list[Any]:
            return self._run("tune", method, *arguments, ranks=ranks, **options)

        report = tune_together(call, [ranks[0] for ranks in _ranks_by_node(self._places).values()])
        if report is not None:
            log_tuning(report)
            # So that this process, where no op runs, can tell of them.
            ir.registry().priorities.adopt_tuned(report.choices)

    def _meet(self) -> None:
        segment = self._new_segment() if self._is_one_node and can_share_memory() else None
        store: Path | tuple[str, int] | None = None
        if not self._is_one_node:
            first = self._places[0].node_ip
            options: dict[str, Any] = {"phase": "ranks", "timeout_s": _PREPARE_TIMEOUT_S}
            (store,) = self._run("host_store", first, ranks=[0], **options)
        elif segment is None or _asks_for_gloo(self._settings):
            store = self._started.directory / "store"
        meeting = Meeting(segment, store, _COLLECTIVE_TIMEOUT_S)
        self._run("join", meeting, phase="ranks", timeout_s=_PREPARE_TIMEOUT_S)

    def _new_segment(self) -> str:
        # The group's directory is in it, so that whoever ends the group finds it.
        return f"/{self._started.shared_memory_prefix}{secrets.token_hex(8)}"

    def _open_channel(self) -> EngineEnd:
        group = self._started
        if not (self._is_one_node and can_share_memory()):
            logger.info("Steps reach the ranks by calls of Ray: they are not all on this machine")
            group.watch_closely()
            return CallEngineEnd(group)
        name = self._new_segment()
        group.start_serving("run", "serve", name)
        return ShmEngineEnd(name, self._size, open_timeout_s=_CHANNEL_TIMEOUT_S)

    def _root_cause(self) -> Exception | None:
        """Why a step failed: ranks may still be telling."""
        self._has_failed.wait(_ROOT_CAUSE_TIMEOUT_S)
        return self.failure()

    def _end_step(self, error: Exception) -> None:
        self._has_failed.set()
        if self._runner is not None:
            self._runner.fail(str(error))


def _launch_options(settings: Settings) -> LaunchOptions:
    return LaunchOptions(
        num_ranks=settings.tensor_parallel_size,
        ray_address=settings.ray_address,
        allow_insecure_ray=settings.allow_insecure_ray,
        environment={name: os.environ[name] for name in os.environ if _is_passed_on(name)},
        heartbeat_timeout_s=settings.heartbeat_timeout,
    )


def _is_passed_on(name: str) -> bool:
    """Whether ranks elsewhere get a variable: a cluster shows them to all who can ask it."""
    return name.startswith(_PASSED_ON) and not _SECRET.search(name)


def _asks_for_gloo(settings: Settings) -> bool:
    """Whether an op's priority names gloo, so that its ranks must be there."""
    return any(_GLOO in providers for providers in settings.kernel_config.ir_op_priority.values())


def _ranks_by_node(places: Sequence[RankPlace]) -> dict[str, list[int]]:
    nodes: dict[str, list[int]] = {}
    for place in places:
        nodes.setdefault(place.node_id, []).append(place.rank)
    return nodes
