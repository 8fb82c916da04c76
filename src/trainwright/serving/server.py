"""Running the application on an address, by default loopback."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainwright.serving.limits import Limits

LOOPBACK: Final = "127.0.0.1"
_LARGEST_PORT: Final = 65_535
_MOST_CONNECTIONS: Final = 64
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

        from trainwright.serving.app import make_app
    except ImportError:
        raise MissingExtra("the live page needs FastAPI and uvicorn", extra="serve") from None
    from trainwright.serving.limits import Limits

    if not 0 <= port <= _LARGEST_PORT:
        raise InvalidInput.of("port", f"must be from 0 to {_LARGEST_PORT}, got {port}")
    bounds = limits or Limits()
    bounds = replace(bounds, hosts=tuple(dict.fromkeys((*bounds.hosts, host))))
    listening = _listen(host, port)
    config = uvicorn.Config(
        make_app(bounds),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )
    with listening:
        if on_ready is not None:
            name = f"[{host}]" if ":" in host else host
            on_ready(f"http://{name}:{listening.getsockname()[1]}/")
        uvicorn.Server(config).run(sockets=[listening])


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
