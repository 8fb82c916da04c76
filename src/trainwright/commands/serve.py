"""`trainwright serve`."""

from __future__ import annotations

import json
import socket
import sys
from asyncio import Protocol, Transport, timeout
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from trainwright.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from uvicorn import Config

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


# What the server accepts at all, before any of it is read: hosts, origins, sizes
# -------------------------------------------------------------------------------
# A page on the web can make a browser send requests to loopback, and a name on the web can be made
# to point there. Requests must name a host that is served, come from the page itself where they
# change anything, and be small.

_TOO_LARGE: Final = 413
_LINGERING: Final = 8  # times the largest body
_LINGERING_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server; `max_waiting` counts questions beside those being answered.

    Headers have `header_s` seconds to arrive and a body `body_s`, so that nobody holds a
    connection with half of them.
    """

    max_body_bytes: int = 2**20
    header_s: float = 5.0
    body_s: float = 5.0
    max_running: int = 2
    max_waiting: int = 8
    max_kept: int = 64
    time_limit_s: float = 120.0
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")


class Guard:
    """Passes on what is within the limits, answers the rest itself."""

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """The ASGI protocol."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        refusal = self._refusal(scope["method"], headers)
        if refusal is None:
            try:
                async with timeout(self._limits.body_s):
                    body = await _read(receive, self._limits.max_body_bytes)
            except TimeoutError:
                said = f"must be here within {self._limits.body_s:g} s"
                await _refuse(receive, send, (408, "body", said), 0)
                return
            if body is not None:
                await self._app(scope, _replay(body, receive), send)
                return
            refusal = 413, "body", f"must be at most {self._limits.max_body_bytes} bytes"
        most = _LINGERING * self._limits.max_body_bytes if refusal[0] == _TOO_LARGE else 0
        await _refuse(receive, send, refusal, most)

    def _refusal(self, method: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if _host_name(host) not in self._limits.hosts:
            return 421, "host", "is not served here"
        if method not in ("GET", "HEAD"):
            origin = headers.get(b"origin")
            if origin is not None and _origin_host(origin.decode("latin-1")) != host:
                return 403, "origin", "must be this page"
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if kind != b"application/json":
                return 415, "content-type", "must be application/json"
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "content-length", "must be a number"
        if len(length) > 15 or int(length) > self._limits.max_body_bytes:
            return 413, "body", f"must be at most {self._limits.max_body_bytes} bytes"
        return None


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _origin_host(origin: str) -> str:
    """Host and port of an origin; nothing of what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def _read(receive: Receive, most: int) -> bytes | None:
    """The whole body; None as soon as it is too long."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever else happens to the connection."""
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed


async def _refuse(receive: Receive, send: Send, refusal: tuple[int, str, str], most: int) -> None:
    """Say why, then read on for a moment, at most `most` bytes: a connection that is closed over
    unread bytes is reset, and takes the answer with it.
    """
    status, path, problem = refusal
    body = json.dumps({"faults": [{"path": path, "problem": problem}]}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if most:
        with suppress(TimeoutError):
            async with timeout(_LINGERING_S):
                await _read(receive, most)
    await send({"type": "http.response.body", "body": b""})


# Running the application on an address, by default loopback
# ----------------------------------------------------------

LOOPBACK: Final = "127.0.0.1"
_LARGEST_PORT: Final = 65_535
_MOST_CONNECTIONS: Final = 512  # each is waited for no longer than its limits say
_KEEP_ALIVE_S: Final = 5


def serve(
    *,
    host: str = LOOPBACK,
    port: int = 8000,
    limits: Limits | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted; `on_ready` gets the address, also where port 0 chose it.

    Raises `MissingExtra` without the extra [serve], `InvalidInput` where the port cannot be used.
    """
    try:
        import uvicorn

        import trainwright.commands.live  # noqa: F401
    except ImportError:
        raise MissingExtra("the live page needs FastAPI and uvicorn", extra="serve") from None
    if not 0 <= port <= _LARGEST_PORT:
        raise InvalidInput.of("port", f"must be from 0 to {_LARGEST_PORT}, got {port}")
    bounds = limits or Limits()
    bounds = replace(bounds, hosts=tuple(dict.fromkeys((*bounds.hosts, host))))
    listening = _listen(host, port)
    with listening:
        if on_ready is not None:
            name = f"[{host}]" if ":" in host else host
            on_ready(f"http://{name}:{listening.getsockname()[1]}/")
        uvicorn.Server(configured(bounds)).run(sockets=[listening])


def configured(bounds: Limits) -> Config:
    """The application on a server that keeps to the limits."""
    import uvicorn

    from trainwright.commands.live import make_app

    return uvicorn.Config(
        Guard(make_app(bounds), bounds),
        http=_impatient(bounds.header_s),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


def _impatient(header_s: float) -> type[Protocol]:
    """The protocol of the server, which closes a connection whose next request does not begin."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Impatient(AutoHTTPProtocol):  # type: ignore[misc]
        def connection_made(self, transport: Transport) -> None:
            super().connection_made(transport)
            self._expect_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_request()

        def _expect_request(self) -> None:
            self.loop.call_later(header_s, self._close_unless_begun, self.cycle)

        def _close_unless_begun(self, last: object) -> None:
            if self.cycle is last and not self.transport.is_closing():
                self.transport.close()

    return Impatient


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InvalidInput.of("port", f"{host}:{port} cannot be used: {error}") from None
    return listening


# `trainwright serve`
# -------------------


def command(*, host: str, port: int, time_limit: float) -> None:
    """Serve until interrupted."""
    serve(host=host, port=port, limits=Limits(time_limit_s=time_limit), on_ready=_announce)


def _announce(address: str) -> None:
    print(f"open {address} in a browser; Ctrl-C ends", file=sys.stderr, flush=True)
