"""A program that answers as an OpenAI-compatible completion server does; no model behind it.

Takes a port and how it fails: `--exit` ends at once, `--refuse` answers 400 to every completion,
`--hang` answers none.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """GET is ready; POST streams as many words as `max_tokens` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "--hang" in sys.argv:
            self.log_message("POST without an answer")
            time.sleep(60)
        if "--refuse" in sys.argv:
            self.send_error(400, "no such model")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = body["max_tokens"]
        for _ in range(count):
            self._send({"choices": [{"text": "word ", "finish_reason": None}]})
        self._send({"choices": [{"text": "", "finish_reason": "length"}]})
        self._send({"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 5}})
        self._write(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        print("fake:", format % args, file=sys.stderr)

    def _send(self, event: dict[str, Any]) -> None:
        self._write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


if __name__ == "__main__":
    if "--exit" in sys.argv:
        sys.exit("fake: no weights")
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
