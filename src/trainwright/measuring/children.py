"""Child processes that never outlive the block they were started in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def started(
    module: str, arguments: Sequence[Sequence[str]], logs: Sequence[Path]
) -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Run `python -m module` once per entry of `arguments`; all are dead when the block ends.

    Each holds the other end of a pipe as its input, so that it can tell when this process is gone
    without a chance to clean up. They do not hear Ctrl-C: that is this process's to handle.
    """
    with ExitStack() as cleanup:
        children = []
        for own, log in zip(arguments, logs, strict=True):
            output = cleanup.enter_context(log.open("wb"))
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *own],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | _quiet_environment(),
                start_new_session=True,
            )
            cleanup.callback(_end, child)
            children.append(child)
        yield tuple(children)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def _quiet_environment() -> dict[str, str]:
    """One thread each, no accelerator, and no network beyond this machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
    return {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": loopback,
    }
