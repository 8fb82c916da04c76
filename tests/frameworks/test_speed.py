"""Writing files costs next to nothing, and loads no framework."""

import subprocess
import sys
import time
from contextlib import suppress

import pytest

from export_jobs import STAMP, golden_jobs, ordered
from trainwright.errors import Inexpressible
from trainwright.frameworks import write
from trainwright.frameworks.launch import Launcher
from trainwright.plans.capability import TARGETS


@pytest.mark.slow
def test_a_bundle_takes_less_than_fifty_milliseconds_of_cpu() -> None:
    for job in golden_jobs().values():
        for target in TARGETS:
            made = ordered(job, target)
            spent_s = []
            for _ in range(3):
                started_s = time.process_time()
                with suppress(Inexpressible):
                    write(made, STAMP, target, launcher=Launcher.TORCHRUN)
                spent_s.append(time.process_time() - started_s)
            assert min(spent_s) < 0.05, target


def test_exporters_load_no_framework() -> None:
    code = """
import sys
import trainwright.frameworks as exports
from trainwright.frameworks import _WRITERS, _function
for module, name in _WRITERS.values():
    _function(module, name)
print([m for m in ("torch", "megatron", "accelerate", "yaml", "deepspeed") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
