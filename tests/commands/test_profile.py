"""`profile` on the command line: from tables without torch, on the CPU with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from reference import needs_reference, reference
from trainwright.formats.profile_json import read_profile
from trainwright.provenance import Origin

TIMES = """model,accelerator,micro_batch_seqs,tp,layer_index,forward_s,backward_s,update_s
m,A,1,1,0,0.1,0.0,0.5
m,A,1,1,1,1.0,2.0,0.5
m,A,1,1,2,1.0,2.0,0.5
m,A,1,1,3,0.1,0.2,0.5
"""
SIZES = """model,tp,layer_index,parameters,output_bytes,saved_activation_bytes
m,1,0,100,8,4
m,1,1,50,8,32
m,1,2,50,8,32
m,1,3,90,40,16
"""
TINY = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 256,
}
TABLES = ("--csv", "times.csv", "--csv", "sizes.csv", "--accelerator", "A")


@pytest.fixture(autouse=True)
def files(folder):
    (folder / "times.csv").write_text(TIMES, encoding="utf-8")
    (folder / "sizes.csv").write_text(SIZES, encoding="utf-8")
    (folder / "tiny.json").write_text(json.dumps(TINY), encoding="utf-8")


def test_tables_become_a_profile_that_plan_takes(run, folder):
    told = run("profile", "m", *TABLES, "-o", "made.json")
    assert told.code == 0
    assert "embedding" in told.out and "measured: layers of m on A" in told.out
    made = read_profile(json.loads((folder / "made.json").read_text()))
    assert made.profiles[0].costs.duration_s.tolist() == pytest.approx([0.1, 3.0, 0.3])
    planned = run(
        "plan",
        "made.json",
        *("--devices", "2", "--memory", "1GiB", "--bandwidth", "1GB/s"),
        *("--microbatches", "4", "--json"),
    )
    assert planned.document["status"] == "optimal"


def test_json_on_stdout_is_the_profile(run):
    document = run("profile", "m", *TABLES, "--json").document
    assert document["kind"] == "profile"
    assert read_profile(document).profiles[0].costs.provenance.origin is Origin.MEASURED


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("m,A,1,1,2,1.0", "m,A,1,1,2,abc", "line 4: must have counts and amounts >= 0"),
        ("m,A,1,1,2,1.0", "m,A,1,1,2,-1", "line 4"),
        ("m,A,1,1,2,1.0", "m,A,1,1,2,nan", "line 4"),
        ("m,A,1,1,2", "m,A,0,1,2", "line 4"),
        ("m,A,1,1,2", "m,A,1,1,4", "layer_index: must run from 0 without gaps for m, A, 1, 1"),
        ("backward_s", "back", "backward_s: must be a column"),
    ],
)
def test_faulty_tables_name_their_line(run, folder, old, new, told):
    (folder / "times.csv").write_text(TIMES.replace(old, new), encoding="utf-8")
    found = run("profile", "m", *TABLES)
    assert found.code == 2
    assert "times.csv" in found.err and told in found.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("m", "--csv", "times.csv"), "accelerator: must be given with --csv"),
        (("x", *TABLES), 'must have times of model "x"; it has m'),
        (("m", *TABLES, "--tp", "1,2"), "tensor degree 2"),
        (("m", *TABLES, "--tp", "1,x"), "tp: must be a whole number"),
        (
            ("m", *TABLES, "--precision", "int3"),
            "error: precision: must be one of bf16, fp16, fp32, tf32, fp8, fp4, fp8_delayed",
        ),
        (("gpt2", "--budget", "0s"), "budget: must be > 0"),
        (("gpt2", "--device", "tpu"), "device: must be one of cpu, cuda"),
        (("small.json",), "must be a model, not a profile"),
        (("tiny.json", "-o", "tiny.json"), "must not be the input"),
    ],
)
def test_wrong_calls_end_with_a_sentence(run, arguments, told):
    found = run("profile", *arguments)
    assert found.code == 2
    assert told in found.err


def test_without_torch_the_extra_is_named(folder):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from trainwright.commands.main import main\n"
        "main(['profile', 'tiny.json', '--device', 'cpu'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert "timing layers needs PyTorch; install it with: pip install '.[torch]'" in (done.stderr)


def test_an_interpolated_microbatch_is_told(run, folder):
    larger = TIMES.replace("m,A,1,", "m,A,4,").partition("\n")[2]
    (folder / "times.csv").write_text(TIMES + larger, encoding="utf-8")
    found = run("profile", "m", *TABLES, "--micro-batch", "2")
    assert "microbatch 2 is not in the tables" in found.out
    assert "interpolated: layers of m on A" in found.out


@needs_reference
def test_published_layer_tables_are_read(run):
    tables = [reference() / "profiles" / f"sailor_layer_{x}.csv" for x in ("times", "memory")]
    document = run(
        *("profile", "opt-350m-sailor", "--csv", str(tables[0]), "--csv", str(tables[1])),
        *("--accelerator", "GH200-96GB", "--tp", "1,2,4", "--micro-batch", "3", "--json"),
    ).document
    made = read_profile(document).profiles[0]
    assert len(made.structure.layers) == 26
    assert made.point.tensor_parallel == (1, 2, 4)
    assert made.costs.provenance.origin is Origin.INTERPOLATED


@pytest.mark.torch
def test_a_tiny_model_is_timed_and_planned(run, folder):
    pytest.importorskip("torch")
    options = ("--device", "cpu", "--tp", "1,2", "--budget", "0.5s")
    told = run("profile", "tiny.json", *options, "-o", "made.json")
    assert told.code == 0, told.err
    assert "collectives" in told.out
    made = read_profile(json.loads((folder / "made.json").read_text())).profiles[0]
    assert [layer.name for layer in made.structure.layers] == [
        *("embedding", "block", "block", "final_norm", "lm_head", "loss")
    ]
    assert made.point.sequence_length == 64
    provenance = made.costs.provenance
    assert provenance.origin is Origin.MEASURED
    assert "CPU" in provenance.source and "torch 2" in provenance.source
    planned = run(
        "plan",
        "made.json",
        *("--devices", "2", "--memory", "1GiB", "--bandwidth", "1GB/s"),
        *("--microbatches", "4", "--json"),
    )
    assert planned.document["status"] == "optimal"


@pytest.mark.torch
def test_what_memory_cannot_hold_is_refused_before_any_work(run):
    pytest.importorskip("torch")
    vast = ("--sequence", "131072", "--micro-batch", "1024")
    found = run("profile", "llama3-405b", "--device", "cpu", *vast)
    assert found.code == 2
    assert "a layer of kind" in found.err and "free; use a smaller --micro-batch" in found.err
