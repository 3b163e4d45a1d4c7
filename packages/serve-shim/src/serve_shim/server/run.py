"""Owns the server process: socket, web server, signals and exit code around one lifecycle."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import uvicorn
import uvloop
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Route

from serve_shim.engine.protocol import Engine
from serve_shim.engine.stats_sink import StatsSink
from serve_shim.engine.status import StartupStatus
from serve_shim.errors import EngineDeadError
from serve_shim.server.app import build_app
from serve_shim.server.diagnosis import install_diagnosis
from serve_shim.server.http_protocol import bounded_protocol
from serve_shim.server.lifecycle import Build, live
from serve_shim.server.listener import bind, url
from serve_shim.server.service import Service
from serve_shim.server.signals import StopSignals, leave_now
from serve_shim.settings import read_api_keys
from serve_shim.settings.tree import Settings
from serve_shim.startup import resume_collection

_KEEP_ALIVE_S = 5
_CLOSE_S = 2
_log = logging.getLogger(__name__)


def build(settings: Settings, status: StartupStatus, sink: StatsSink) -> Engine:
    """The engine that the settings ask for; imports it here, after the port is bound."""
    from serve_shim.engine.build import build_engine  # noqa: PLC0415 - heavy

    resume_collection()
    return build_engine(settings, status, sink)


def run(settings: Settings, *, build: Build = build) -> int:
    """Serves until a signal or the engine's death; returns the exit code, or does not return.

    Raises ServeShimError for what stops a start. Where a thread cannot be interrupted (a start
    that was stopped, an engine that hangs) the process ends inside this call.
    """
    keys = read_api_keys(settings)
    with bind(settings) as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            code = runner.run(_serve(settings, keys, bound, build))
        except EngineDeadError as error:
            _log.critical("%s", error)
            leave_now(error.exit_code)
        if code != 0:
            leave_now(code)
    return code


async def _serve(
    settings: Settings, keys: Sequence[SecretStr], bound: socket.socket, build: Build
) -> int:
    signals = StopSignals()
    signals.install()
    install_diagnosis()
    service = Service(settings, StartupStatus())
    app = build_app(service, api_keys=[key.get_secret_value() for key in keys])
    web = _WebServer(_web_config(settings, app, service.metrics.http.note_error))
    _log.info("Starting serve-shim server on %s", url(bound))
    _log_routes(app)
    serving = asyncio.create_task(web.serve(sockets=[bound]))
    living = asyncio.create_task(live(service, build, signals.first))
    try:
        return await first_to_end(living, serving)
    finally:
        web.should_exit = True
        await asyncio.wait((living, serving))


async def first_to_end(living: "asyncio.Task[int]", serving: "asyncio.Task[None]") -> int:
    """The exit code of `living`; cancels it and raises if `serving` ends first."""
    await asyncio.wait((living, serving), return_when=asyncio.FIRST_COMPLETED)
    if living.done():
        return living.result()
    living.cancel()
    serving.result()
    raise RuntimeError("The web server has ended by itself.")


class _WebServer(uvicorn.Server):
    """uvicorn without its signal handlers, which would close the port before anyone is told."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _web_config(
    settings: Settings, app: Starlette, on_refusal: Callable[[Exception], None]
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded_protocol(settings.limits.max_header_bytes, on_refusal=on_refusal),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSE_S,
    )


def _log_routes(app: Starlette) -> None:
    lines = [
        f"  {', '.join(sorted(route.methods or ()))} {route.path}"
        for route in app.routes
        if isinstance(route, Route)
    ]
    _log.info("Available routes are:\n%s", "\n".join(lines))
