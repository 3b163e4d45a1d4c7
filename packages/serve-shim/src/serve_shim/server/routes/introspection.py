"""Owns what the server tells about itself: version, load, metrics, selected implementations."""

from importlib.metadata import version

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from serve_shim.server.compiled import compiled_facts, plain_rejections
from serve_shim.server.json_response import JsonResponse
from serve_shim.server.selections import executed_selections, tuned_choices
from serve_shim.server.service import Service
from serve_shim.server.startup_report import startup_facts


async def get_version(service: Service, request: Request) -> Response:
    """The version of this server."""
    return JsonResponse({"version": version("serve-shim")})


async def get_load(service: Service, request: Request) -> Response:
    """The number of generations that run or wait."""
    return JsonResponse({"server_load": len(service.in_flight)})


async def get_metrics(service: Service, request: Request) -> Response:
    """All metrics, in the Prometheus text format."""
    return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


async def get_selections(service: Service, request: Request) -> Response:
    """What ran: op, provider, weight layout, calls, and why the providers before it did not.

    Beside it the same of the compiled model, whose ops are chosen once and not counted as calls,
    what timing has chosen, and what the start cost.
    """
    selections = [
        {
            "op": row.op,
            "provider": row.provider,
            "layout": row.layout,
            "calls": row.calls,
            "rejections": plain_rejections(row.rejections),
        }
        for row in executed_selections()
    ]
    report = service.engine.compile_report if service.engine else None
    compiled = None if report is None else compiled_facts(report)
    startup = startup_facts(service.status)
    return JsonResponse(
        {
            "selections": selections,
            "compiled": compiled,
            "autotuned": tuned_choices(),
            "startup": startup,
        }
    )
