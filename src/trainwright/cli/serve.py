"""`trainwright serve`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainwright.cli.output import parse_count, parse_time_limit


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is open to others.")
    ] = "127.0.0.1",
    port: Annotated[str, typer.Option(help="Port; 0 takes a free one.", metavar="N")] = "8000",
    time_limit: Annotated[
        str, typer.Option(help="Longest search for one plan, such as 20s.", metavar="TIME")
    ] = "20s",
) -> None:
    """Explore plans on a local page: choose a model and a cluster, move sliders."""
    from trainwright.serving.limits import Limits
    from trainwright.serving.server import serve as run

    limit_s = parse_time_limit(time_limit) or Limits().time_limit_s
    number = parse_count(port, "port", least=0) or 0
    run(host=host, port=number, limits=Limits(time_limit_s=limit_s), on_ready=_announce)


def _announce(address: str) -> None:
    print(f"open {address} in a browser; Ctrl-C ends", file=sys.stderr, flush=True)
