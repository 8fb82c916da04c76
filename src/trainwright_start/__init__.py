"""The program `trainwright`, from its first line on: Ctrl-C is one line and exit code 130.

A short command spends its time starting, so what is set here is set before anything is imported:
linear algebra in one thread (starting more costs 50 ms, and no array here is large enough to gain;
commands that run models keep the caller's), and few garbage collections, as what is imported stays.

This lies beside the package because to import any part of that is to import its root, which takes
long enough to be interrupted. A search replaces the handler by one that keeps the best result.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False  # that of `typing` would cost 5 ms without a handler
if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130
_RUN_MODELS = ("profile", "verify")
_YOUNG_OBJECTS = 150_000  # created, less freed, before a collection; a small question makes 110,000


def main() -> NoReturn:
    """Run the command line. Where the parent ignores Ctrl-C, as for a background job, so do we."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    if not any(argument in _RUN_MODELS for argument in sys.argv[1:2]):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    from trainwright.commands.main import main as run

    try:
        run()
    finally:
        gc.freeze()  # what is left ends with the process: the interpreter would look through it


def _leave(*_: object) -> NoReturn:
    """End at once: an exception could be lost in a callback, or caught by what is being imported.

    Nothing needs undoing; files are written with the signal held back.
    """
    os.write(2, b"\ninterrupted\n")
    os._exit(_INTERRUPTED)
