"""A server on a free port of loopback, and a plain client."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)

    @property
    def faults(self) -> dict[str, str]:
        return {fault["path"]: fault["problem"] for fault in self.value["faults"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Requests to a port."""

    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """One request; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, data, {**given, **(headers or {})})
            found = connection.getresponse()
            named = {name.lower(): value for name, value in found.getheaders()}
            return Answer(status=found.status, headers=named, body=found.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers=headers)

    def ask(self, **question: Any) -> Answer:
        return self.call("POST", "/api/plans", question)


@contextmanager
def served(**limits: Any) -> Iterator[Client]:
    """A server with these limits."""
    import socket

    import uvicorn

    from trainwright.commands.serve import Limits, configured

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(configured(Limits(**limits)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE_S
    while not server.started:
        assert time.monotonic() < until, "the server does not start"
        time.sleep(0.01)
    try:
        yield Client(port=listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()
