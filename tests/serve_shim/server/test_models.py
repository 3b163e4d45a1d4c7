"""The list of models, as benchmark clients read it."""

from collections.abc import Callable

from serve_shim.engine.status import StartupStatus
from serve_shim.server.service import Service
from serve_shim.settings.tree import Settings

from .client import Client
from .fake_engine import FakeEngine


def test_the_list_has_id_root_and_length(client: Client, service: Service) -> None:
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert body["data"] == [
        {
            "id": "fake",
            "object": "model",
            "created": service.created,
            "owned_by": "serve-shim",
            "root": "fake",
            "parent": None,
            "max_model_len": 256,
        }
    ]


def test_one_model_by_name(client: Client) -> None:
    assert client.get("/v1/models/fake").json()["id"] == "fake"
    reply = client.get("/v1/models/other/name")
    assert reply.status == 404
    assert reply.error["code"] == "model_not_found"


def test_served_names_are_the_only_names(make_client: Callable[..., Client]) -> None:
    settings = Settings(model="fake", served_model_name=("org/one", "two"))
    service = Service(settings, StartupStatus())
    service.attach(FakeEngine())
    client = make_client(service)
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["org/one", "two"]
    assert client.get("/v1/models/org/one").json()["root"] == "fake"
    body = {"prompt": "x", "max_tokens": 1}
    assert client.post("/v1/completions", {**body, "model": "two"}).json()["model"] == "two"
    assert client.post("/v1/completions", body).json()["model"] == "org/one"
    assert client.post("/v1/completions", {**body, "model": "fake"}).status == 404
