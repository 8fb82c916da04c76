"""A 40 MB profile: at most 500 MB, and a few times what its JSON alone takes, checks included.

Machines differ: one that parses 40 MB of JSON in a CPU second reads such a profile in 3 to 5.
"""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest

from piper_examples import config

# On Linux ru_maxrss begins with what the parent held when it forked, so the peak is read elsewhere.
READ = """
import json, pathlib, re, resource, sys, time
from trainwright.formats.piper_json import read_piper_bytes
start = time.process_time()
file = read_piper_bytes(open(sys.argv[1], "rb").read())
seconds = time.process_time() - start
if sys.platform == "linux":
    status = pathlib.Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) * 1024
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
num_layers = len(file.profiles[0].structure.layers)
del file
start = time.process_time()
json.loads(open(sys.argv[1], "rb").read())
print(num_layers, seconds, time.process_time() - start, peak)
"""


def large_profile(num_layers, *, fan, degrees, num_configs):
    """Each layer feeds the next `fan`; all figures differ, so that no two layers share a class."""
    rng = Random(1)
    nodes = []
    for v in range(num_layers):
        before, after = range(max(0, v - fan), v), range(v + 1, min(num_layers, v + fan + 1))
        table = {
            str(t): [
                config(f"option {i}", before, after, scale=rng.random()) for i in range(num_configs)
            ]
            for t in degrees
        }
        nodes.append({"id": v, "name": f"layer{v}", "TMPCs": table})
    return {
        "maxMemoryPerDevice": 8e9,
        "maxDevices": 64,
        "bandwidth": 25e9,
        "mbsInBatch": 64,
        "nodes": nodes,
        "edges": [
            {"sourceId": u, "destId": v, "communicationCost": float(rng.randrange(10**8))}
            for v in range(num_layers)
            for u in range(max(0, v - fan), v)
        ],
    }


SHAPES = {
    "many configs": {"num_layers": 20_000, "fan": 1, "degrees": (1, 2, 4, 8), "num_configs": 2},
    "many layers": {"num_layers": 113_000, "fan": 1, "degrees": (1,), "num_configs": 1},
    "many edges": {"num_layers": 2_800, "fan": 128, "degrees": (1,), "num_configs": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_forty_megabytes_are_read_within_the_limits(tmp_path, shape):
    path = tmp_path / "large.json"
    path.write_text(json.dumps(large_profile(**SHAPES[shape]), separators=(",", ":")))
    size = path.stat().st_size
    assert size > 39e6
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    num_layers, seconds, parsed_s, peak_bytes = map(float, done.stdout.split())
    print(
        f"{shape}: {size / 1e6:.0f} MB in {seconds:.2f} s CPU, of which JSON {parsed_s:.2f} s, "
        f"peak {peak_bytes / 1e6:.0f} MB"
    )
    assert num_layers == SHAPES[shape]["num_layers"]
    assert seconds < 6 * parsed_s
    assert peak_bytes < 500e6
