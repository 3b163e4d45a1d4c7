"""An ASGI client for tests: whole answers, streams, and clients that leave; one loop per client."""

import asyncio
import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import ASGIApp, Message

T = TypeVar("T")
DEADLINE_S = 20.0


@dataclass
class Reply:
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; fails unless the body has exactly the one shape of errors."""
        body = self.json()
        assert set(body) == {"error"}, body
        error = body["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str)
        assert 0 < len(error["message"]) <= 1000
        assert error["code"] is None or isinstance(error["code"], str)
        return error

    def events(self) -> list[Any]:
        """The payloads of a stream; fails unless its bytes are as clients expect them."""
        assert b"\r" not in self.body
        assert self.body.endswith(b"data: [DONE]\n\n")
        lines = [event for event in self.body.decode().split("\n\n") if event]
        assert all("\n" not in line for line in lines)
        data = [line.removeprefix("data: ") for line in lines if not line.startswith(":")]
        return [json.loads(line) for line in data[:-1]]


@dataclass
class Call:
    """A request in progress, whose client can leave."""

    task: "asyncio.Task[None]"
    messages: "asyncio.Queue[Message]"
    gone: asyncio.Event
    sent: list[Message] = field(default_factory=list)

    async def next_message(self) -> Message:
        """The next thing the app sends."""
        message = await asyncio.wait_for(self.messages.get(), DEADLINE_S)
        self.sent.append(message)
        return message

    async def leave(self) -> None:
        """The client closes; returns when the app is done with it."""
        self.gone.set()
        await asyncio.wait_for(asyncio.shield(self.task), DEADLINE_S)

    async def reply(self) -> Reply:
        """Everything that was sent, once the app has finished."""
        await asyncio.wait_for(asyncio.shield(self.task), DEADLINE_S)
        while not self.messages.empty():
            self.sent.append(self.messages.get_nowait())
        start = self.sent[0]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        body = b"".join(message.get("body", b"") for message in self.sent[1:])
        assert not self.sent[-1].get("more_body", False)
        return Reply(start["status"], headers, body)


class Client:
    """Speaks ASGI to `app`. Bodies that are not bytes are sent as JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers: dict[str, str] = {}
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def run(self, work: Awaitable[T]) -> T:
        """Runs a coroutine on the client's loop, with a deadline."""

        async def bounded() -> T:
            return await asyncio.wait_for(work, DEADLINE_S)

        return self._runner.run(bounded())

    def get(self, path: str, **options: Any) -> Reply:
        return self.request("GET", path, None, **options)

    def post(self, path: str, body: Any, **options: Any) -> Reply:
        return self.request("POST", path, body, **options)

    def request(self, method: str, path: str, body: Any, **options: Any) -> Reply:
        async def whole() -> Reply:
            return await self.start(method, path, body, **options).reply()

        return self.run(whole())

    def start(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        scope: Mapping[str, Any] | None = None,
        chunks: int = 1,
    ) -> Call:
        """Begins a request on the running loop."""
        data = body if isinstance(body, bytes) else b"" if body is None else _dump(body)
        sent_headers = {**_defaults(data), **self.headers, **(headers or {})}
        gone, messages = asyncio.Event(), asyncio.Queue[Message]()
        size = max(1, -(-len(data) // chunks))
        parts = [data[i : i + size] for i in range(0, len(data), size)] or [b""]

        async def receive() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await gone.wait()
            return {"type": "http.disconnect"}

        connection = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in sent_headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
            "state": {},
            **(scope or {}),
        }
        task = asyncio.ensure_future(self._call(connection, receive, messages))
        return Call(task, messages, gone)

    async def _call(
        self, scope: dict[str, Any], receive: Any, messages: "asyncio.Queue[Message]"
    ) -> None:
        async def send(message: Message) -> None:
            messages.put_nowait(message)

        await self.app(scope, receive, send)


def _dump(body: Any) -> bytes:
    return json.dumps(body).encode()


def _defaults(data: bytes) -> dict[str, str]:
    return {"content-type": "application/json", "content-length": str(len(data))} if data else {}
