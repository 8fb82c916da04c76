"""`trainwright verify`: exit codes, the document, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCHEDULE = ("schedule", "--family", "1f1b", "--ranks", "2", "--microbatches", "4", "-o", "s.json")


@pytest.fixture
def document(run) -> Path:
    assert run(*SCHEDULE).code == 0
    return Path("s.json")


def edit(path: Path, change) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def test_what_holds_ends_with_0_and_one_document(run, document):
    done = run("verify", "s.json", "--level", "0", "--json")
    assert (done.code, done.err) == (0, "")
    found = done.document
    assert (found["kind"], found["passed"], found["level"]) == ("verification", True, 0)
    assert found["subject"]["name"] == "s.json"
    assert [check["outcome"] for check in found["checks"]] == ["pass"] * 5


def test_what_does_not_hold_ends_with_4_and_says_where(run, document):
    edit(document, lambda found: found.update(makespan_s=1.0))
    done = run("verify", "s.json")
    assert done.code == 4
    assert "makespan_s: must be 15.0, as the request gives, got 1.0" in done.out
    assert "verify: FAIL" in done.out


def test_orders_that_lock_up_end_with_4_and_the_cycle(run, document):
    def swap(found):
        found["orders"][1] = found["orders"][1].replace("1F0,1B0,1F1", "1F1,1F0,1B0")
        found["orders"][0] = "0F0,0B0,0F1,0F2,0B1,0F3,0B2,0B3"

    edit(document, swap)
    done = run("verify", "s.json", "--json")
    assert done.code == 4
    assert "deadlock: " in done.document["checks"][0]["where"][0]


def test_without_pytorch_the_table_is_printed_and_the_code_is_2(run, document, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = run("verify", "s.json")
    assert done.code == 2
    assert "1 replay" in done.out
    assert "install it with: pip install '.[torch]'" in done.err


def test_another_kind_of_document_and_another_level_are_bad_input(run, document):
    assert run("verify", "s.json", "--level", "0", "-o", "v.json").code == 0
    done = run("verify", "v.json")
    assert done.code == 2
    assert 'kind: must be one of "plan", "model-plan"' in done.err
    done = run("verify", "s.json", "--level", "3")
    assert (done.code, done.err) == (2, "error: level: must be 0, 1 or 2, got 3\n")


@pytest.mark.torch
@pytest.mark.slow
def test_ctrl_c_ends_every_process_and_prints_what_is_known(run, document):
    program = "import sys; from trainwright.commands.main import main; main(sys.argv[1:])"
    started = subprocess.Popen(
        [sys.executable, "-c", program, "verify", "s.json", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children, deadline = [], time.monotonic() + 120
    while not children and started.poll() is None:
        assert time.monotonic() < deadline, "no process was started"
        time.sleep(0.05)
        children = children_of(started.pid)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=120)
    assert started.returncode == 130, err
    found = json.loads(out)
    assert found["interrupted"]
    assert [check["outcome"] for check in found["checks"] if check["level"] == 0] == ["pass"] * 5
    end_s = time.monotonic() + 60
    while any(map(is_running, children)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not any(map(is_running, children))


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"


@pytest.mark.slow
def test_a_dry_run_is_held_against_the_account_of_what_it_runs(monkeypatch):
    """FSDP2's tensors, of which the document names the fullest rank's."""
    import trainwright
    from trainwright.documents.verification import Check, Outcome

    plan = trainwright.plan(
        "llama3-8b", cluster="dgx-h100", devices=16, global_batch=16, sequence=8192,
        framework="torchtitan", tp=1, cp=1, pp=2, zero=2, schedule="1f1b", reduce_dtype="bf16",
    )  # fmt: skip
    asked = []

    def held(job, predicted):
        asked.append(list(predicted))
        return Check(level=2, name="memory", outcome=Outcome.PASS, detail="")

    monkeypatch.setattr("trainwright.lab.verify_runs.dry_run_check", held)
    assert Check in {type(each) for each in trainwright.verify(plan, dry_run=True).document.checks}
    ((first, second),) = asked
    assert max(first, second) == plan.document.allocated_bytes
    assert [first, second] != list(plan.document.peak_memory_bytes_per_rank)
