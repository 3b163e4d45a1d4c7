"""Owns what all routes share: the engine once there is one, and whether requests are admitted."""

import time
from collections.abc import Sequence
from typing import Any

from ir_passes.config import CacheTrust
from serve_shim.engine.protocol import Engine
from serve_shim.engine.status import Phase, StartupStatus
from serve_shim.errors import UnavailableError
from serve_shim.server.body import BodyLimits
from serve_shim.server.errors import ModelNotFoundError
from serve_shim.server.in_flight import InFlight
from serve_shim.server.metrics.server_metrics import ServerMetrics
from serve_shim.server.prompts import PromptMaker
from serve_shim.settings.tree import Settings

_BODY_TIMEOUT_S = 60.0
_KEEP_ALIVE_S = 10.0


class Service:
    """One server's state; lives on one event loop.

    Starts without an engine, gets one by `attach`, and ends by `drain` or `fail`.
    """

    def __init__(self, settings: Settings, status: StartupStatus) -> None:
        self.settings = settings
        self.status = status
        self.metrics = ServerMetrics(settings.metrics_prefix, status)
        self.in_flight = InFlight()
        self.prompts = PromptMaker()
        self.created = int(time.time())
        self.body_limits = BodyLimits(settings.limits.max_body_bytes, _BODY_TIMEOUT_S)
        self.keep_alive_s = _KEEP_ALIVE_S
        self._engine: Engine | None = None

    def attach(self, engine: Engine) -> None:
        """Serves with `engine` from now on."""
        self._engine = engine
        self.metrics.bind(
            engine,
            self.model_names[0],
            self.settings.cache,
            is_directory_trusted=self.settings.compilation_config.cache_trust
            is CacheTrust.DIRECTORY,
        )
        self.status.advance(Phase.READY)

    def drain(self) -> None:
        """Admits nothing from now on; what runs goes on."""
        self.status.advance(Phase.DRAINING)

    def fail(self, reason: str) -> None:
        """Admits nothing from now on, because the engine is dead for `reason`."""
        self.status.fail(reason)

    @property
    def engine(self) -> Engine | None:
        """The engine, None while the server starts."""
        return self._engine

    @property
    def model_names(self) -> Sequence[str]:
        """The names that requests may use; the first is the one that is reported."""
        if self.settings.served_model_name:
            return self.settings.served_model_name
        return (self._engine.model_name if self._engine else self.settings.model or "",)

    def admit(self) -> Engine:
        """The engine, for a request that may use it now; UnavailableError says why not."""
        phase = self.status.phase
        if phase in (Phase.DRAINING, Phase.STOPPED):
            raise UnavailableError("The server is shutting down.", code="draining")
        if phase is Phase.FAILED:
            raise UnavailableError("The engine has stopped.", code="engine_dead")
        if self._engine is None or phase is not Phase.READY:
            raise UnavailableError(
                f"The server is starting ({self._progress()}).", code="starting", retry_after_s=2.0
            )
        return self._engine

    def resolve_model(self, name: str | None) -> str:
        """The served name for a request's `model`; ModelNotFoundError for an unknown one."""
        names = self.model_names
        if name is None or name in names:
            return name or names[0]
        known = ", ".join(f"`{known}`" for known in names)
        raise ModelNotFoundError(
            f"The model `{name[:200]}` is not served here; {known} is.", param="model"
        )

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests are served, and the words of a readiness probe.

        Anyone may probe, so the engine's own words are for the log.
        """
        phase = self.status.phase
        if phase is Phase.READY and self._engine is not None:
            is_healthy, _ = self._engine.is_healthy()
            return is_healthy, {"status": "ok"} if is_healthy else _failed("stalled")
        if phase is Phase.FAILED:
            return False, _failed("engine_dead")
        if phase in (Phase.DRAINING, Phase.STOPPED):
            return False, {"status": "draining", "in_flight": len(self.in_flight)}
        return False, {
            "status": "starting",
            "phase": phase.value,
            "done": self.status.done,
            "total": self.status.total,
            "elapsed_s": round(self.status.elapsed_s, 3),
        }

    def _progress(self) -> str:
        done, total = self.status.done, self.status.total
        return f"{self.status.phase} {done}/{total}" if total else str(self.status.phase)


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}
