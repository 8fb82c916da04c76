"""`estimate --from` the log of a job that ran out of memory: rank, phase, bytes, what is enough."""

import pickle

import pytest

from trainwright.units import GIB

RUN = (
    *("llama3-8b", "--cluster", "dgx-h100", "--nodes", "1", "--dp", "4", "--pp", "2"),
    *("--micro-batch", "1", "--global-batch", "64", "--sequence", "8192"),
)
LOG = """\
[rank5]: Traceback (most recent call last):
[rank5]:   File "/opt/train.py", line 61, in train
[rank5]:     loss.backward()
[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.50 GiB. GPU 5 has a total \
capacity of 79.11 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process has \
77.61 GiB memory in use. Of the allocated memory 71.00 GiB is allocated by PyTorch, and 4.00 GiB \
is reserved by PyTorch but unallocated.
"""


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(LOG)
    return path


def test_the_log_says_which_rank_which_phase_and_how_much_is_missing(run, log):
    done = run("estimate", *RUN, "--from", "log", str(log), "--json")
    assert done.code == 3
    document = done.document
    failure = document["failure"]
    assert (failure["rank"], failure["pipeline_rank"], failure["phase"]) == (5, 1, "backward")
    assert failure["missing_bytes"] == 8 * GIB
    assert failure["reserved_bytes"] == 75 * GIB
    assert failure["outside_bytes"] == pytest.approx(2.61 * GIB)
    assert failure["predicted_bytes"] == document["memory"][1]["total_bytes"]
    assert (document["fits"], document["verdict"]) == (False, "does not fit")


def test_every_change_spares_what_was_missing_though_the_run_was_predicted_to_fit(run, log):
    plain = run("estimate", *RUN, "--json").document
    assert plain["fits"] is True
    failed = run("estimate", *RUN, "--from", "log", str(log), "--json").document
    assert failed["changes"]
    for change in failed["changes"]:
        spared = plain["peak_memory_bytes"] - change["peak_memory_bytes"]
        assert spared * 1.05 >= 8 * GIB
    others = [change for change in failed["changes"] if "--lora" not in change["options"]]
    slowdowns = [change["device_time_ratio"] for change in others]
    assert slowdowns == sorted(slowdowns)
    assert failed["changes"][: len(others)] == others


def test_the_table_tells_the_story(run, log):
    out = run("estimate", *RUN, "--from", "log", str(log)).out
    for text in ("on rank 5 (pipeline rank 1) in backward", "9.50 GiB", "any one of these"):
        assert text in " ".join(out.split())


def test_a_log_that_states_what_was_run_needs_nothing_beside(run, tmp_path):
    arguments = {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "seq_length": 8192,
        "max_position_embeddings": 8192,
        "micro_batch_size": 2,
        "global_batch_size": 64,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 2,
        "world_size": 8,
        "padded_vocab_size": 128256,
    }
    dump = "".join(f"  {name} {'.' * 30} {value}\n" for name, value in arguments.items())
    frame = "------------------------ {} ------------------------\n"
    path = tmp_path / "megatron.log"
    path.write_text(frame.format("arguments") + dump + frame.format("end of arguments") + LOG)
    found = run("estimate", "--from", "log", str(path), "--cluster", "dgx-h100", "--json").document
    assert found["failure"]["pipeline_rank"] == 1
    assert found["request"]["configuration"]["microbatch_size"] == 2
    assert found["memory_account"] == "megatron"


def test_a_log_and_the_file_of_its_job_are_read_together(run, log, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(
        "model_name_or_path: Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
        "cutoff_len: 4096\nper_device_train_batch_size: 4\ndeepspeed: ds_z3_config.json\n"
    )
    asked = ("estimate", str(job), "--from", "log", str(log), "--cluster", "dgx-h100", "--json")
    found = run(*asked).document
    assert found["failure"]["rank"] == 5
    assert found["request"]["configuration"]["microbatch_size"] == 4
    assert found["memory_account"] == "hugging-face-deepspeed"


def test_a_message_without_bytes_is_a_failure_all_the_same(run, tmp_path):
    path = tmp_path / "job.log"
    path.write_text("[rank5]:   in backward\n[rank5]: RuntimeError: CUDA error: out of memory\n")
    done = run("estimate", *RUN, "--from", "log", str(path), "--json")
    assert (done.code, done.document["fits"]) == (3, False)
    assert done.document["failure"].get("tried_bytes") is None
    assert done.document["changes"]
    said = " ".join(run("estimate", *RUN, "--from", "log", str(path)).out.split())
    assert "on rank 5 (pipeline rank 1) in backward: the message does not name the bytes" in said


def test_a_log_of_a_host_that_ran_out_says_so(run, tmp_path):
    path = tmp_path / "slurm.out"
    path.write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")
    done = run("estimate", *RUN, "--from", "log", str(path))
    assert done.code == 2
    assert "a host's memory ran out (oom_kill)" in " ".join(done.err.split())


def test_a_log_without_a_run_asks_for_one(run, log):
    done = run("estimate", "--from", "log", str(log), "--cluster", "dgx-h100")
    assert done.code == 2


def test_a_snapshot_is_compared_class_by_class(run, tmp_path):
    def block(size, file, function):
        frames = [{"filename": file, "name": function, "line": 1}]
        return {"size": size, "state": "active_allocated", "frames": frames}

    blocks = [
        block(16 * GIB, "torch/nn/modules/module.py", "_apply"),
        block(20 * GIB, "torch/nn/modules/linear.py", "forward"),
        block(GIB, "elsewhere.py", "main"),
    ]
    segment = {"device": 3, "total_size": 40 * GIB, "blocks": blocks}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    done = run("estimate", *RUN, "--from", "snapshot", str(path), "--json")
    rows = {row["name"]: row for row in done.document["snapshot"]}
    fullest = done.document["memory"][done.document["heaviest_rank"]]
    assert rows["weight"]["measured_bytes"] == 16 * GIB
    assert rows["activation"]["predicted_bytes"] == fullest["activation_bytes"]
    assert rows["optimizer"]["measured_bytes"] == 0
    assert "predicted_bytes" not in rows["unknown"]
    assert "Device 3 at its fullest" in run("estimate", *RUN, "--from", "x", str(path)).out


def test_a_snapshot_that_would_run_something_is_refused(run, tmp_path):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR.")
    done = run("estimate", *RUN, "--from", "snapshot", str(path))
    assert done.code == 2
    assert "os.system" in done.err


def test_what_is_offered_is_what_the_software_can_run(run):
    one = ("llama2-7b", "--cluster", "dgx-a100", "--devices", "1", "--micro-batch", "4")
    one += ("--global-batch", "8", "--sequence", "512", "--json")

    def offered(software):
        done = run("estimate", *one, "--software", software)
        return " ".join(change["options"] for change in done.document["changes"])

    assert "--pp 2" in offered("megatron-core")
    assert "--pp" not in offered("trl")  # whose trainer has no pipeline
    assert "--offload" in offered("trl")


def test_a_log_that_says_its_end_alone_is_told_what_is_missing(run, log):
    done = run("estimate", "--from", "log", str(log), "--cluster", "dgx-h100")
    assert done.code == 2
    said = " ".join((done.out + done.err).split())
    for text in ("ran out of memory on rank 5 in backward, 8.00 GiB short", "give the model"):
        assert text in said


TUNED = """\
W1002 10:11:12.131000 42 torch/distributed/run.py:793] Setting OMP_NUM_THREADS
{start}Running {recipe} with resolved config:

batch_size: 8
dataset:
  _component_: torchtune.datasets.alpaca_dataset
  packed: true
dtype: bf16
enable_activation_checkpointing: false
gradient_accumulation_steps: 2
model:
  _component_: torchtune.models.llama3_1.llama3_1_8b
optimizer:
  _component_: torch.optim.AdamW
tokenizer:
  max_seq_len: 8192

DEBUG:torchtune.utils._logging:Setting manual seed to local seed 5
[rank3]: Traceback (most recent call last):
[rank3]:   File "recipes/full_finetune_distributed.py", line 800, in train
[rank3]:     logits = self._model(**batch)
[rank3]:   File "torch/nn/modules/module.py", line 1747, in _call_impl
[rank3]:     return forward_call(*args, **kwargs)
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 3 has a total \
capacity of 79.10 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has \
77.88 GiB memory in use. Of the allocated memory 74.90 GiB is allocated by PyTorch, and 1.10 GiB \
is reserved by PyTorch but unallocated.
"""


@pytest.mark.parametrize(
    ("start", "recipe", "zero"),
    [
        ("INFO:torchtune.utils._logging:", "FullFinetuneRecipeDistributed", 3),
        ("2024-04-14:14:29:36,160 INFO     [_utils.py:34] ", "LoRAFinetuneRecipeSingleDevice", 0),
    ],
)
def test_the_log_of_torchtune_alone_says_what_was_run_and_how_it_ended(
    run, tmp_path, start, recipe, zero
):
    log = tmp_path / "job.log"
    log.write_text(TUNED.format(start=start, recipe=recipe))
    found = run("estimate", str(log), "--cluster", "dgx-h100", "--nodes", "1", "--json").document
    asked = found["request"]["configuration"]
    assert asked["parallelism"]["zero_stage"] == zero
    assert (asked["microbatch_size"], asked["sequence_length"]) == (8, 8192)
    assert asked["recompute"] == "none"
    assert (found["failure"]["rank"], found["failure"]["phase"]) == (3, "forward")
    assert found["changes"]


def test_a_log_that_shows_its_command_says_what_was_run_and_how_it_ended(run, tmp_path):
    """`set -x` in a script shows each command behind plus signs, as bash understood it."""
    (tmp_path / "ds_z2.json").write_text('{"zero_optimization": {"stage": 2}}')
    log = tmp_path / "job.log"
    command = (
        "torchrun --nproc_per_node 8 src/train.py --stage sft --finetuning_type full --bf16 "
        "--model_name_or_path meta-llama/Meta-Llama-3-8B --deepspeed ds_z2.json --cutoff_len 16384 "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --output_dir 'a b'"
    )
    before, after = "+ export NCCL_DEBUG=INFO\n+ python prepare.py", "+ python3 clean.py --all"
    log.write_text(f"{before}\n+ {command}\n{{'loss': 1.02}}\n{LOG}\n+ {command}\n{after}\n")
    found = run("estimate", str(log), "--cluster", "dgx-h100", "--nodes", "1", "--json").document
    assert (found["failure"]["rank"], found["failure"]["missing_bytes"]) == (5, 8 * GIB)
    asked = found["request"]["configuration"]
    assert (asked["microbatch_size"], asked["sequence_length"]) == (2, 16384)
    assert asked["parallelism"]["zero_stage"] == 2
    assert found["changes"]


JOB = (
    "model_name_or_path: Meta-Llama-3-8B\nstage: sft\nfinetuning_type: full\nbf16: true\n"
    "cutoff_len: 4096\nper_device_train_batch_size: 4\ndeepspeed: ds_z2_config.json\n"
)


def test_every_change_of_a_jobs_own_file_is_enough_beside_its_log(run, log, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    asked = ("estimate", str(job), "--from", "log", str(log), "--cluster", "dgx-h100")
    asked += ("--nodes", "1", "--json")
    failed = run(*asked)
    assert failed.code == 3
    offered = [change["options"] for change in failed.document["changes"]]
    assert any("--zero 3" in each for each in offered)
    for options in offered:
        again = run(*asked, *options.split())
        assert (again.code, again.document["fits"]) == (0, True), options
        first = options.split()[0]
        assert any(f"was run without {first}" in each for each in again.document["warnings"])


def test_what_a_file_says_already_is_no_change_of_it(run, log, tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    asked = ("estimate", str(job), "--from", "log", str(log), "--cluster", "dgx-h100", "--json")
    again = run(*asked, "--zero", "2", "--tp", "1", "--sequence", "4096")
    assert (again.code, again.document["failure"]["rank"]) == (3, 5)


def test_beside_a_model_the_changes_are_to_be_asked_for_without_the_log(run, log):
    failed = " ".join(run("estimate", *RUN, "--from", "log", str(log)).out.split())
    assert "the log is of the run without them: beside a model leave out its --from" in failed
    assert "if the log is of another run, before a change, ask without it as --from" in failed
    offered = run("estimate", *RUN, "--from", "log", str(log), "--json").document["changes"]
    for change in offered:
        assert run("estimate", *RUN, *change["options"].split(), "--json").code == 0
