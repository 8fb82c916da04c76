import subprocess
import sys

SCRIPT = """
from trainwright.scheduling.families import FamilyRequest, generate
request = FamilyRequest(num_ranks=4, num_microbatches=8)
held = [generate(name, request) for name in ("v-half", "zb-1p")]
"""


def test_schedules_still_held_when_python_ends_are_no_complaint():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
