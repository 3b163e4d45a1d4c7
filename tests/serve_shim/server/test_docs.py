"""The OpenAPI document names what is served, and the page needs no network."""

import json
from collections.abc import Callable

from serve_shim.engine.status import StartupStatus
from serve_shim.server.app import build_routes
from serve_shim.server.routes.docs import openapi
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client


def test_every_route_is_documented(service: Service) -> None:
    routed = {route.path.replace(":path", "") for route in build_routes(service)} - {
        "/openapi.json",
        "/docs",
    }
    assert set(openapi()["paths"]) == routed


def test_every_reference_resolves() -> None:
    document = openapi()
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert "ChatRequest" in names


def test_the_document_and_the_page_are_served(client: Client) -> None:
    assert client.get("/openapi.json").json()["openapi"].startswith("3.")
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"/v1/chat/completions" in page.body
    assert b"http://" not in page.body
    assert b"https://" not in page.body


def test_documents_can_be_disabled(make_client: Callable[..., Client]) -> None:
    client = make_client(Service(Settings(disable_docs=True), StartupStatus()))
    assert client.get("/openapi.json").status == 404
    assert client.get("/docs").status == 404
