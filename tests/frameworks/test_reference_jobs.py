"""Real files of public repositories: what they state, field by field, against what they mean."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from job_files import SAME, cases
from reference import needs_reference, reference
from trainwright.errors import InvalidInput
from trainwright.frameworks.jobs import Beside, read
from trainwright.frameworks.jobs.detect import format_of
from trainwright.frameworks.read_job import text_of

# What the files of `accelerate/examples` name lies elsewhere: `truth` has accelerate's default.
ELSEWHERE = {"files/accelerate__examples__config_yaml_templates__deepspeed.yaml": {"zero"}}


def stated(case):
    path, beside = reference() / "jobs" / case["file"], case["with"]
    return read(
        SAME.get(case["format"], case["format"]),
        path.read_text(),
        Beside(
            folder=path.parent,
            name=path.name,
            arguments=tuple(beside.get("args", ())),
            variables=beside.get("env", {}),
            vocabulary=beside.get("vocab"),
            function=beside.get("function"),
        ),
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["file"][6:])
def test_a_file_states_what_it_means(case) -> None:
    run, truth = stated(case), case["truth"]
    for name in ("tp", "pp", "ep", "micro_batch", "global_batch", "zero", "sequence_parallel"):
        given = getattr(run, name)
        free = {*case["follows"], *ELSEWHERE.get(case["file"], ())}
        if name in truth and name not in free and given is not None:
            assert given == truth[name], name
    if "cp" in truth and run.cp is not None:
        assert run.cp == max(truth["cp"], truth.get("ulysses", 1))
    if "seq" in truth:
        assert run.sequence == truth["seq"]
    if "precision" in truth and run.precision is not None:
        assert run.precision == truth["precision"]
    if "recompute" in truth and run.recompute is not None:
        assert run.recompute.split(":")[0] == truth["recompute"]["granularity"]
    # What is said there of offload is of states; activations are another matter.
    moved = [each for each in run.offload if "activations" not in each]
    assert bool(moved) == bool(truth.get("offload"))
    assert run.lora_rank == truth.get("lora", {}).get("rank")
    if run.model is not None:
        sizes = {"layers": "num_layers", "hidden": "hidden_size", "heads": "num_heads"}
        for name, ours in sizes.items():
            assert truth["model"].get(name, value := getattr(run.model, ours)) == value, name


@needs_reference
def test_the_format_of_a_file_is_found_by_its_content() -> None:
    for case in cases():
        path = reference() / "jobs" / case["file"]
        wanted = SAME.get(case["format"], case["format"])
        assert format_of(path.read_text(), path.name) == wanted, path.name


@needs_reference
def test_a_file_is_read_in_three_tenths_of_a_second() -> None:
    for case in cases():
        start_s = time.process_time()
        stated(case)
        assert time.process_time() - start_s < 0.3, case["file"]


LOG = """\
0: ------------------------ arguments ------------------------
0:   bf16 ............................................ True
0:   global_batch_size ............................... 64
0:   hidden_size ..................................... 512
0:   micro_batch_size ................................ 2
0:   num_attention_heads ............................. 8
0:   num_layers ...................................... 4
0:   apply_residual_connection_post_layernorm  False
0:   seq_length ...................................... 1024
0:   tensor_model_parallel_size ...................... 2
0:   world_size ...................................... 16
0: -------------------- end of arguments ---------------------
0:  > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)
"""


def test_a_log_begins_with_what_it_was_told() -> None:
    run = read("log", LOG)
    assert (run.tp, run.global_batch, run.micro_batch, run.num_devices) == (2, 64, 2, 16)
    assert run.model is not None
    assert (run.model.num_layers, run.model.vocabulary_size) == (4, 50_257)
    assert run == read(None, LOG)
    with pytest.raises(InvalidInput, match="must hold Megatron's arguments"):
        read("log", "iteration 1: 5 ms\n")


def test_a_log_that_says_its_arguments_needs_no_command(tmp_path: Path) -> None:
    """`set -x` shows `srun bash -c '$LAUNCHER $CMD'`, of which nobody knows the variables."""
    log = tmp_path / "job.out"
    log.write_text(f"+ python -c 'print(1)'\n+ srun bash -c '$LAUNCHER $CMD'\n{LOG}")
    assert read(None, text_of(log)) == read("log", LOG)


def test_a_word_is_no_job() -> None:
    assert format_of("hello\n", "hello") is None
    with pytest.raises(InvalidInput, match="none of which starts a trainer"):
        read("megatron", "hello\n")


def test_models_and_documents_are_no_jobs() -> None:
    assert format_of('{"model_type": "llama", "hidden_size": 64}', "config.json") is None
    assert format_of('{"kind": "model_plan", "format_version": 1}', "plan.json") is None
    assert format_of("[cluster]\nname = 'x'\n", "cluster.toml") is None
