"""`estimate --from` and `improve`: an existing job, priced and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ARGS = """\
--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear
--normalization RMSNorm --position-embedding-type rope
--untie-embeddings-and-output-weights --seq-length 2048 --max-position-embeddings 8192
--attention-dropout 0 --hidden-dropout 0
--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --sequence-parallel
--micro-batch-size 1 --global-batch-size 32 --bf16 --use-distributed-optimizer
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--lr 3e-4 --fancy-flag 1
"""
VOCABULARY = "--vocab-size 128256 "
WHERE = ("--cluster", "dgx-h100", "--nodes", "2")


@pytest.fixture
def arguments(tmp_path: Path) -> Path:
    path = tmp_path / "job.args"
    path.write_text(VOCABULARY + ARGS)
    return path


def test_a_megatron_job_is_priced_as_the_same_options_are(
    run: Callable[..., Any], arguments: Path
) -> None:
    stated = run("estimate", "--from", "megatron", str(arguments), *WHERE, "--json").document
    options = ("--tp", "4", "--pp", "2", "--global-batch", "32", "--sequence", "2048")
    options += ("--overlap", "gradients=0", "--overlap", "parameters=0")  # no flag asks for them
    options += ("--software", "megatron")  # what the file's format says
    given = run("estimate", "llama3-8b", *options, "--recompute", "full", *WHERE, "--json").document
    assert stated["step_time_s"] == given["step_time_s"]
    assert stated["memory"] == given["memory"]
    assert "not known here and not used: --fancy-flag" in " ".join(stated["warnings"])


def test_an_option_beside_the_file_replaces_what_it_states(
    run: Callable[..., Any], arguments: Path
) -> None:
    asked = ("estimate", "--from", "megatron", str(arguments), *WHERE, "--json")
    changed = run(*asked, "--recompute", "none", "--micro-batch", "2").document
    configuration = changed["request"]["configuration"]
    assert configuration["recompute"] == "none"
    assert configuration["microbatch_size"] == 2
    assert configuration["parallelism"]["tensor"] == 4


def test_a_model_that_the_file_leaves_out_must_be_named(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "job.args"
    path.write_text(ARGS)
    asked = ("estimate", "--from", "megatron", str(path), *WHERE)
    refused = run(*asked)
    assert refused.code == 2
    assert "no --vocab-size, which its tokenizer decides" in refused.err
    assert "not described" in refused.err
    named = run("estimate", "llama3-8b", *asked[1:])
    assert named.code == 0
    assert "not described" not in named.out + named.err


@pytest.mark.parametrize(
    ("arguments_given", "message"),
    [
        (("estimate", *WHERE), "model: must be given, or a framework's file, as --from"),
        (("improve",), "document: must be given, or a framework's file, as --from"),
        (("improve", "--from", "megatron", "x.sh", "job.json", *WHERE), "beside --from"),
        (
            ("improve", "--from", "deepspeed", "ds.json", "llama3-8b", *WHERE),
            "name a model by --model",
        ),
        (("estimate", "--from", "horovod", "small.json", *WHERE), "must be one of megatron"),
        (("estimate", "--from", "megatron", "nowhere", *WHERE), "cannot be read"),
    ],
)
def test_bad_calls_are_refused(
    run: Callable[..., Any], arguments_given: tuple[str, ...], message: str
) -> None:
    done = run(*arguments_given)
    assert done.code == 2
    assert message in done.err


TITAN_ALONE = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 2048
"""


@pytest.mark.parametrize("command", ["estimate", pytest.param("improve", marks=pytest.mark.slow)])
def test_a_torchtitan_file_without_a_global_batch_has_that_of_all_replicas(
    run: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    titan = tmp_path / "job.toml"
    titan.write_text(TITAN_ALONE)
    asked = (command, "--from", "torchtitan", str(titan), *WHERE, "--json")
    assert run(*asked).document["request"]["configuration"]["global_batch"] == 2 * 16
    other = run(*asked, "--global-batch", "64").document
    assert other["request"]["configuration"]["global_batch"] == 64


@pytest.mark.parametrize(("asked", "batch"), [((), 64), (("--dp", "4"), 32), (("--dp", "16"), 128)])
def test_a_torchtitan_batch_follows_the_replicas_that_are_asked_for(
    run: Callable[..., Any], tmp_path: Path, asked: tuple[str, ...], batch: int
) -> None:
    titan = tmp_path / "job.toml"
    sharded = "[parallelism]\ndata_parallel_shard_degree = 8\n"
    titan.write_text(TITAN_ALONE.replace("size = 2", "size = 8") + sharded)
    where = ("--cluster", "dgx-h100", "--memory", "800GiB", "--json")  # nothing to mend
    found = run("estimate", "--from", "torchtitan", str(titan), *where, *asked).document
    assert found["request"]["configuration"]["global_batch"] == batch


def test_a_deepspeed_batch_of_each_replica_is_one_of_all(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3, '
        '"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}'
    )
    asked = ("estimate", "llama3-8b", "--from", "deepspeed", str(path), "--sequence", "2048")
    found = run(*asked, *WHERE, "--json").document
    assert found["request"]["configuration"]["global_batch"] == 2 * 3 * 16


def test_a_deepspeed_microbatch_alone_is_priced(run: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}')
    asked = ("estimate", "llama3-8b", "--from", "deepspeed", str(path), "--sequence", "2048")
    found = run(*asked, *WHERE, "--json").document
    assert found["request"]["configuration"]["global_batch"] == 2 * 16


@pytest.mark.parametrize(
    ("stage", "moved", "said"),
    [
        (3, ("offload_optimizer",), None),
        (3, ("offload_optimizer", "offload_param"), None),
        (2, ("offload_optimizer", "offload_param"), "weights are priced on the device: ZeRO-3"),
    ],
)
def test_a_run_that_offloads_is_improved_as_it_is_estimated(
    run: Callable[..., Any], tmp_path: Path, stage: int, moved: tuple[str, ...], said: str | None
) -> None:
    path = tmp_path / "ds.json"
    sharded = {"stage": stage, **{each: {"device": "cpu"} for each in moved}}
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
    path.write_text(json.dumps({**batch, "bf16": {"enabled": True}, "zero_optimization": sharded}))
    beside = ("--from", "deepspeed", str(path), "--sequence", "2048", *WHERE, "--json")
    better = run("improve", "--model", "llama3-8b", *beside).document
    priced = run("estimate", "llama3-8b", *beside).document
    assert better["request"]["configuration"] == priced["request"]["configuration"]
    held = better["request"]["configuration"]["recipe"]["offload"]
    assert (held["optimizer"], held["gradients"]) == (1, 1)
    assert held.get("weights", 0) == ("offload_param" in moved and stage == 3)
    assert better["run"]["step_time_s"] == priced["step_time_s"]
    assert said is None or said in " ".join(better["warnings"])


def test_nodes_that_a_script_takes_from_its_surroundings_are_those_given(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "job.sh"
    launcher = "torchrun --nproc_per_node 8 --nnodes $SLURM_JOB_NUM_NODES pretrain_gpt.py "
    path.write_text(launcher + " ".join((VOCABULARY + ARGS).split()))
    found = run("estimate", "--from", "megatron", str(path), *WHERE, "--json").document
    assert found["devices_used"] == 16
    assert "nodes: ${SLURM_JOB_NUM_NODES} is not known" in " ".join(found["warnings"])


def test_a_degree_that_a_script_does_not_set_is_asked_for(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "job.sh"
    path.write_text(VOCABULARY + ARGS.replace("parallel-size 4", "parallel-size ${TP}"))
    refused = run("estimate", "--from", "megatron", str(path), *WHERE)
    assert refused.code == 2
    said = "--tensor-model-parallel-size: is not known: TP (line 6): is not set in the script; "
    assert said + "give --variable TP=VALUE" in " ".join(refused.err.split())
    given = run("estimate", "--from", "megatron", str(path), *WHERE, "--variable", "TP=4", "--json")
    assert given.document["request"]["configuration"]["parallelism"]["tensor"] == 4


def test_torchtitan_and_deepspeed_files_are_priced(run: Callable[..., Any], tmp_path: Path) -> None:
    titan, ds = tmp_path / "job.toml", tmp_path / "ds.json"
    titan.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 2048\n'
        "global_batch_size = 32\nlocal_batch_size = 1\n"
        "[parallelism]\ndata_parallel_shard_degree = -1\n"
    )
    found = run("estimate", "--from", "torchtitan", str(titan), *WHERE, "--json").document
    assert found["request"]["configuration"]["parallelism"]["data"] == 16
    assert found["request"]["configuration"]["parallelism"]["zero_stage"] == 3
    ds.write_text('{"train_batch_size": 32, "zero_optimization": {"stage": 2}}')
    asked = ("estimate", "llama3-8b", "--from", "deepspeed", str(ds), "--sequence", "2048")
    found = run(*asked, *WHERE, "--json").document
    assert found["request"]["configuration"]["parallelism"]["zero_stage"] == 2


def test_improve_refuses_a_document_beside_what_it_states(run: Callable[..., Any]) -> None:
    done = run("improve", "run.json", "--cluster", "dgx-h100", "--sequence", "2048")
    assert done.code == 2
    assert "cluster: belongs to --from" in done.err
    assert "sequence: belongs to --from" in done.err
    done = run("improve", "run.json", "--calibration", "fitted.json")
    assert "calibration: belongs to --from" in done.err


def test_improve_refuses_a_run_that_is_stated_twice(run: Callable[..., Any]) -> None:
    for document in ("run.json", "llama3-8b"):
        done = run("improve", document, "--from", "megatron", "job.args")
        assert done.code == 2
        assert "document: must not be given beside --from" in done.err
        assert "name a model by --model" in done.err


@pytest.mark.slow
def test_improve_takes_what_the_file_does_not_say(run: Callable[..., Any], tmp_path: Path) -> None:
    job = tmp_path / "ds.json"
    job.write_text('{"train_batch_size": 32, "zero_optimization": {"stage": 2}}')
    asked = ("improve", "--from", "deepspeed", str(job), "--model", "gpt2", *WHERE)
    refused = run(*asked)
    assert refused.code == 2
    assert "--sequence" in refused.err
    found = run(*asked, "--sequence", "1024", "--json").document
    assert found["request"]["configuration"]["sequence_length"] == 1024
    fitted = ("--calibration", "megatron-core", "--sequence", "1024")
    found = run(*asked, *fitted, "--json").document
    assert found["assumptions"]["times"].startswith("fitted: ")
    run_alone = ("estimate", "gpt2", "--from", "deepspeed", str(job), *WHERE, *fitted, "--json")
    assert found["run"]["step_time_s"] == run(*run_alone).document["step_time_s"]


@pytest.mark.slow
def test_improve_says_how_far_and_what_helps(
    run: Callable[..., Any], arguments: Path, tmp_path: Path
) -> None:
    document = tmp_path / "found.json"
    asked = ("improve", "--from", "megatron", str(arguments), *WHERE, "--framework", "megatron")
    done = run(*asked, "-o", str(document))
    assert done.code == 0
    assert "your run: " in done.out
    said = " ".join(done.out.split())
    wanted = "smallest change with most of the gain: --tensor-model-parallel-size 1, without "
    assert wanted + "--sequence-parallel: " in said
    assert "no plan for megatron with the run's settings takes less than" in said
    assert "taken for granted:" in done.out
    found = json.loads(document.read_text())
    assert found["kind"] == "improvement"
    assert found["best_plan"]["step_time_s"] < found["run"]["step_time_s"]
    chosen = found["recommended"]
    assert chosen["step_time_s"] < found["run"]["step_time_s"]
    assert 0 < chosen["gain_share"] <= 1
    for each in found["changes"]:
        assert each["peak_memory_bytes"] <= found["memory_limit_bytes"]
        assert each["speedup"] > 1


BASES = {
    "wasteful": ("--tp", "4", "--pp", "2", "--recompute", "full"),
    "a stated split": ("--tp", "2", "--pp", "2", "--virtual-stages", "2", "--blocks", "7,8,8,9"),
    "sequences whole": ("--tp", "2", "--no-sequence-parallel", "--dp", "8"),
}
BATCH = ("--global-batch", "32", "--sequence", "2048")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            options, id=name, marks=pytest.mark.slow if name == "wasteful" else pytest.mark.papers
        )
        for name, options in BASES.items()
    ],
)
def test_every_change_is_what_estimate_prices_with_its_options(
    run: Callable[..., Any], tmp_path: Path, options: tuple[str, ...]
) -> None:
    document = tmp_path / "run.json"
    base = ("estimate", "llama3-8b", *WHERE, *BATCH, *options)
    assert run(*base, "-o", str(document)).code == 0
    found = run("improve", str(document), "--json").document
    assert found["recommended"] in found["changes"]
    for each in found["changes"]:
        changed = run(*base, *each["options"].split(), "--json").document
        assert changed["step_time_s"] == pytest.approx(each["step_time_s"], rel=1e-12)
        assert changed["peak_memory_bytes"] == pytest.approx(each["peak_memory_bytes"], rel=1e-12)
        assert changed["fits"]


@pytest.mark.slow
def test_so_it_is_beside_a_file_that_turns_sequence_parallelism_off(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    job = tmp_path / "job.args"
    job.write_text(VOCABULARY + ARGS.replace("--sequence-parallel", ""))
    asked = ("--from", "megatron", str(job), *WHERE)
    found = run("improve", *asked, "--json").document
    assert "lower_bound_s" not in found
    for each in found["changes"]:
        changed = run("estimate", *asked, *each["options"].split(), "--json").document
        assert changed["step_time_s"] == pytest.approx(each["step_time_s"], rel=1e-12)


@pytest.mark.slow
def test_where_nothing_fits_improve_says_so(run: Callable[..., Any], tmp_path: Path) -> None:
    document = tmp_path / "run.json"
    options = ("--dp", "8", "--global-batch", "8", "--sequence", "4096", "-o", str(document))
    estimated = run("estimate", "llama3-405b", "--cluster", "dgx-h100", *options, "--json")
    assert estimated.code == 3
    done = run("improve", str(document), "-o", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["enough"] == estimated.document["changes"]
    assert found["tried_all"]
    assert "any one of these is enough" in done.out
    assert "--pp 64 --dp 8 --nodes 64" in done.out
    assert done.code == 3
    assert "best plan: none was found that fits" in done.out
    assert "no change of one or two decisions makes it fit" in done.out


@pytest.mark.slow
def test_the_recommended_change_is_written_into_a_copy(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    job, copy, document = tmp_path / "job.sh", tmp_path / "copy.sh", tmp_path / "found.json"
    job.write_text(
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {VOCABULARY}{ARGS}".replace("\n", " \\\n")
    )
    said = run(
        "improve", str(job), "--cluster", "dgx-h100", "--patch", str(copy), "-o", str(document)
    )
    assert said.code == 0
    assert f"+++ {copy}" in said.out
    found = json.loads(document.read_text())
    chosen = found["recommended"]
    assert found["dialect"] == found["framework"] == "megatron"
    assert all(each.startswith(("--", "without --")) for each in chosen["settings"])
    again = run("estimate", str(copy), "--cluster", "dgx-h100", "--json").document
    assert again["step_time_s"] == chosen["step_time_s"]
    assert "--fancy-flag 1" in copy.read_text()
    assert run("explain", str(document)).code == 0


@pytest.mark.slow
def test_a_trainer_without_pipelines_is_not_told_to_use_one(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name_or_path: gpt2-xl\nfinetuning_type: full\nstage: sft\nbf16: true\n"
        "cutoff_len: 1024\nper_device_train_batch_size: 2\n"
    )
    found = run("improve", str(path), "--cluster", "dgx-h100", "--nodes", "1", "--json").document
    settings = [word for each in found["changes"] for word in each["settings"]]
    assert settings
    assert {each.split(" = ")[0] for each in settings} <= {
        "per_device_train_batch_size", "gradient_accumulation_steps",
        "disable_gradient_checkpointing",
    }  # fmt: skip
    assert found["best_plan"] is None or found["best_plan"]["parallelism"]["pipeline"] == 1


def test_a_job_that_needs_no_change_is_answered_and_nothing_is_written(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    job, copy = tmp_path / "job.args", tmp_path / "copy.args"
    job.write_text(
        "--num-layers 1 --hidden-size 2560 --num-attention-heads 5 --seq-length 2047 "
        "--max-position-embeddings 2047 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--vocab-size 50304 --use-distributed-optimizer --overlap-grad-reduce "
        "--overlap-param-gather --cross-entropy-loss-fusion"
    )
    asked = ("improve", str(job), "--cluster", "dgx-h100", "--patch", str(copy), "--json")
    done = run(*asked)
    assert done.code == 0
    assert done.document["changes"] == []
    assert f"no change is recommended, so {copy} is not written" in " ".join(
        done.document["warnings"]
    )
    assert not copy.exists()


def test_nothing_is_written_over_the_file_or_without_one(
    run: Callable[..., Any], arguments: Path, tmp_path: Path
) -> None:
    path = str(arguments)
    assert "another file" in run("improve", path, *WHERE, "--patch", path).err
    run("estimate", "gpt2", "--cluster", "dgx-h100", "--nodes", "1", "--global-batch", "8",
        "--sequence", "256", "-o", str(tmp_path / "run.json"))  # fmt: skip
    refused = run("improve", str(tmp_path / "run.json"), "--patch", str(tmp_path / "copy"))
    assert "needs a framework's file" in refused.err


def test_the_adapters_of_a_file_are_those_of_the_run_that_is_improved(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "qlora.yml"
    path.write_text(
        "base_model: mistralai/Mixtral-8x7B-v0.1\nadapter: qlora\nlora_r: 16\nsequence_len: 1024\n"
        "lora_target_linear: true\nmicro_batch_size: 1\ngradient_checkpointing: true\nbf16: true\n"
    )
    found = [
        run(command, str(path), "--cluster", "dgx-h100", "--json", *more).document
        for command, more in (("estimate", ()), ("improve", ("--time-limit", "1")))
    ]
    priced, improved = (each["request"]["model"]["content"]["tuning"] for each in found)
    assert priced == improved
    assert (priced["low_rank"]["rank"], priced["low_rank"]["bits"]) == (16, 4)
    assert set(priced["low_rank"]["targets"]) == {"query", "key", "value", "attention_output"}


def test_what_improve_says_fits_estimate_says_fits(run: Callable[..., Any], tmp_path: Path) -> None:
    """By the account of the program that the script runs, not by what every program keeps."""
    zero = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    (tmp_path / "zero.json").write_text(json.dumps(zero))
    script = tmp_path / "run.sh"
    script.write_text(
        "deepspeed --num_gpus=4 train.py --deepspeed zero.json --gradient_checkpointing True "
        "--model_name_or_path mistralai/Mistral-7B-v0.1 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 8 --max_seq_length 4096 --bf16 True\n"
    )
    where = ("--cluster", "dgx-a100-40gb")
    found = run("improve", str(script), *where, "--json").document
    as_it_is = run("estimate", str(script), *where, "--json").document
    assert found["request"]["framework"] == as_it_is["request"]["framework"]
    assert found["run_fits"] == as_it_is["fits"]
    for size, gathered in ((4, 4), (8, 2)):
        sizes = ("--micro-batch", str(size))
        fits = run("estimate", str(script), *where, *sizes, "--json").document["fits"]
        offered = f"--per-device-train-batch-size {size} --gradient-accumulation-steps {gathered}"
        listed = [change for change in found["changes"] if change["options"] == offered]
        assert fits or not listed
