"""Who may call what: a key opens everything, without one only the probes answer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from serve_shim.engine.status import StartupStatus
from serve_shim.server.app import build_app
from serve_shim.server.auth import PUBLIC_PATHS
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client
from .fake_engine import FakeEngine

KEYS = ["first-key", "second-key-é"]


@pytest.fixture
def locked(service: Service, engine: FakeEngine, make_client: Callable[..., Client]) -> Client:
    return make_client(service, api_keys=KEYS)


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
def test_probes_need_no_key(locked: Client, path: str) -> None:
    assert locked.get(path).status == 200


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer first-ke",
        "Bearer first-keyx",
        "Bearer FIRST-KEY",
        "Basic first-key",
        "first-key",
        "Bearer first-key second-key",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("HEAD", "/v1/models"),
        ("OPTIONS", "/v1/models"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/tokenize"),
        ("GET", "/debug/ir"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/load"),
        ("GET", "/nowhere"),
        ("POST", "/health"),
    ],
)
def test_everything_else_is_401_without_a_key(
    locked: Client, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    reply = locked.request(method, path, None, headers=headers)
    assert reply.status == 401
    assert reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "x-request-id" in reply.headers


@pytest.mark.parametrize("key", ["first-key", "second-key-é".encode().decode("latin-1")])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_each_key_opens_the_routes(locked: Client, scheme: str, key: str) -> None:
    reply = locked.get("/v1/models", headers={"authorization": f"{scheme} {key}"})
    assert reply.status == 200


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/v1/models/../../health",
        "/health/../v1/models",
        "/health/",
        "/health/v1/models",
        "/metrics/../v1/models",
        "/./v1/models",
        "/v1%2Fmodels",
        "/health?x",
        "/health;/v1/models",
        "http://host/health",
        "health",
        "",
    ],
)
def test_no_spelling_of_a_path_opens_anything(locked: Client, path: str) -> None:
    assert locked.get(path).status == 401


@pytest.mark.parametrize("host", ["x/health?", "127.0.0.1/health", "x#/livez", ""])
def test_the_host_header_plays_no_part(locked: Client, host: str) -> None:
    headers = {"host": host, "x-forwarded-prefix": "/health", "x-original-url": "/health"}
    assert locked.get("/v1/models", headers=headers).status == 401


def test_a_root_path_of_the_scope_opens_nothing(locked: Client) -> None:
    assert locked.get("/v1/models", scope={"root_path": "/v1/models"}).status == 401
    assert locked.get("/health/v1/models", scope={"root_path": "/health"}).status == 401


def test_a_websocket_is_closed(locked: Client) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/models", "headers": [], "query_string": b""}
    locked.run(locked.app(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008, "reason": "no API key"}]


@pytest.fixture
def published() -> Iterator[Client]:
    """A server that a proxy publishes below `/api`."""
    service = Service(Settings(model="fake", root_path="/api"), StartupStatus())
    service.attach(FakeEngine())
    client = Client(build_app(service, api_keys=KEYS))
    yield client
    client.close()


@pytest.mark.parametrize(("path", "status"), [("/api/health", 200), ("/api/v1/models", 401)])
def test_a_published_root_path_keeps_probes_open(published: Client, path: str, status: int) -> None:
    assert published.get(path, scope={"root_path": "/api"}).status == status


def test_without_keys_everything_is_open(client: Client) -> None:
    assert client.get("/v1/models").status == 200


def test_a_preflight_needs_no_key_where_cors_is_on(make_client: Callable[..., Client]) -> None:
    service = Service(Settings(model="fake", cors_origins=("https://app",)), StartupStatus())
    service.attach(FakeEngine())
    client = make_client(service, api_keys=KEYS)
    headers = {"origin": "https://app", "access-control-request-method": "POST"}
    reply = client.request("OPTIONS", "/v1/completions", None, headers=headers)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://app"
    refused = client.post("/v1/completions", {"prompt": "x"}, headers={"origin": "https://app"})
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://app"


def test_cors_is_off_by_default(client: Client) -> None:
    reply = client.get("/v1/models", headers={"origin": "https://app"})
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize(("is_public", "status"), [(True, 200), (False, 401)])
def test_metrics_are_public_unless_the_setting_closes_them(
    make_client: Callable[..., Client], is_public: bool, status: int
) -> None:
    settings = Settings(model="fake", metrics_public=is_public)
    client = make_client(Service(settings, StartupStatus()), api_keys=KEYS)
    assert client.get("/metrics").status == status
    assert client.get("/metrics", headers={"authorization": f"Bearer {KEYS[0]}"}).status == 200
    assert client.get("/livez").status == 200
