"""What is exported reads back, or is refused with everything that cannot be said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import trainwright
from export_jobs import STAMP, bundle, golden_jobs, job, jobs, ordered
from trainwright.documents.runs import gaps_of
from trainwright.errors import Inexpressible, InvalidInput, UnsupportedFeature
from trainwright.formats.schedule_json import parse_compute_comms, parse_compute_only
from trainwright.frameworks import write
from trainwright.frameworks.jobs.bridge import read_bridge
from trainwright.frameworks.jobs.deepspeed import read_deepspeed
from trainwright.frameworks.jobs.fine_tuning import read_automodel
from trainwright.frameworks.jobs.hugging_face import (
    read_accelerate,
    read_axolotl,
    read_llamafactory,
)
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.pretraining import read_maxtext, read_nanotron, read_primus
from trainwright.frameworks.jobs.settings import Beside, StatedRun
from trainwright.frameworks.jobs.torchtitan import read_stages, read_torchtitan
from trainwright.frameworks.launch import Launcher
from trainwright.frameworks.trainers import hub_name, recomputed
from trainwright.plans.capability import TARGETS, RecomputeForm
from trainwright.plans.job import Job
from trainwright.plans.plan import DATA_INSIDE, PIPELINE_INSIDE, mapping_name

READERS = {
    "megatron": ("megatron_args.sh", read_megatron),
    "megatron-bridge": ("trainwright_recipe.py", read_bridge),
    "primus": ("primus.yaml", read_primus),
    "torchtitan@0.2": ("torchtitan.toml", read_torchtitan),
    "torchtitan@0.3": ("trainwright_config.py", read_torchtitan),
    "pytorch": ("stages.json", read_stages),
    "deepspeed": ("ds_config.json", read_deepspeed),
    "accelerate": ("accelerate.yaml", read_accelerate),
    "trl": ("accelerate.yaml", read_accelerate),
    "nanotron": ("nanotron.yaml", read_nanotron),
    "axolotl": ("axolotl.yaml", read_axolotl),
    "llamafactory": ("llamafactory.yaml", read_llamafactory),
    "automodel": ("automodel.yaml", read_automodel),
    "maxtext": ("maxtext.yml", read_maxtext),
}
# Fields that a target's files do not state; where a reader states one all the same, it must agree.
DEGREES = ("tp", "pp", "dp", "cp", "ep", "zero", "micro_batch", "global_batch", "sequence")
SILENT = {
    "megatron": {"dp"},
    "megatron-bridge": {"dp"},
    "primus": {"dp"},
    "deepspeed": {"tp", "pp", "cp", "ep", "sequence"},
    "accelerate": {"ep", "micro_batch", "global_batch", "sequence"},
    "trl": {"ep", "micro_batch", "global_batch", "sequence"},
    "axolotl": {"global_batch"},
    "llamafactory": {"tp", "pp", "cp", "ep", "global_batch"},
    "maxtext": {"global_batch"},
}


HUB = ("axolotl", "llamafactory", "automodel")


def on_host(job: Job) -> str | None:
    """The option of a run some of whose layers leave what they keep on the host."""
    mode, blocks = job.stated_recompute or (None, None)
    return None if mode is None else str(mode) if blocks is None else f"{mode}:{blocks}"


def facts(job: Job, target: str) -> dict[str, Any]:
    """The job by the names of a stated run."""
    degrees, form = job.degrees, job.recompute_form
    recompute = {
        RecomputeForm.NONE: "none",
        RecomputeForm.ALL: "full",
        RecomputeForm.FIRST: f"full:{job.first_recomputed}",
        RecomputeForm.MODULES: "selective",
        RecomputeForm.ON_HOST: on_host(job),
    }.get(form)
    return {
        "tp": degrees.tensor,
        "pp": degrees.pipeline,
        "dp": degrees.data,
        "cp": degrees.context,
        "ep": degrees.expert,
        "etp": degrees.expert_shards if job.model.experts else None,
        "zero": job.demands.zero_stage,
        "state_copies": degrees.state_copies,
        "mapping": mapping_name(job.demands.axis_order or DATA_INSIDE),
        "micro_batch": job.microbatch_size,
        "global_batch": job.global_batch,
        "sequence": job.sequence_length,
        "recompute": recompute,
        "recomputed_blocks": recomputed(job),
        "blocks": job.blocks_per_stage,
        "virtual_stages": len(job.stages) // degrees.pipeline,
        "schedule": job.schedule,
        "sequence_parallel": degrees.sequence_parallel,
        "precision": job.precision,
        "optimizer": str(job.recipe.optimizer),
        "recompute_module": job.selected_modules,
        "token_dispatcher": (
            "hierarchical" if degrees.expert > 1 and job.recipe.dispatches_once else "all_to_all"
        ),
        "vocabulary_multiple": job.vocabulary_multiple,
        "model_name": hub_name(job.model_name) if target in HUB else job.model_name,
        "batch_per_replica": job.microbatch_size * job.num_microbatches,
    }


def assert_agrees(target: str, read: StatedRun, job: Job, files: dict[str, str]) -> None:
    wanted, stated = facts(job, target), {**read.options, "model_name": read.model_name}
    if read.global_batch is None and target in ("axolotl", "llamafactory", "maxtext"):
        stated["batch_per_replica"] = read.batch_per_replica
        assert read.batch_per_replica
    loose = {"dp"} if read.dp is None else set()
    for name in DEGREES:
        if name not in SILENT.get(target, set()) | loose:
            assert stated.get(name) == wanted[name], name
    assert read.unknown == ()
    for name, value in stated.items():
        if value is None or name not in wanted:
            continue
        if name == "schedule" and "schedule.csv" in files and target != "pytorch":
            continue  # the order is in the file beside it
        if name == "etp" and (wanted["etp"] is None or job.degrees.expert == 1):
            continue  # said, and without effect
        if name == "recompute" and wanted["recompute"] == "selective":
            assert value == "selective"
            continue
        if name == "precision" and read.loaded_in == "fp32":
            # float32 weights that autocast copies: as many bytes as bf16 ones with their own copy
            assert value in (wanted[name], f"{wanted[name]}_autocast")
            continue
        if name == "recompute_module" and target.startswith("torchtitan") and job.model.experts:
            assert {*wanted[name]} <= {*value}  # by operator, experts run again, too
            continue
        if name == "recompute_module":
            routed = {"expert_activation": "mlp_activation"} if job.model.experts else {}
            assert {routed.get(each, each) for each in value} == set(wanted[name])
            continue
        assert value == wanted[name], name


def check(job: Job) -> int:
    """Every target writes and reads back, or refuses; the number that wrote."""
    written, made = 0, ordered(job, "pytorch")
    for target in TARGETS:
        try:
            found = write(made, STAMP, target, launcher=Launcher.TORCHRUN)
        except Inexpressible as error:
            assert error.faults
            assert error.target == target
            assert not set(error.alternatives) & {target}
            continue
        except InvalidInput as error:  # Megatron's experts fill what lies inside the pipeline
            assert job.demands.axis_order == PIPELINE_INSIDE
            assert [fault.path for fault in error.faults] == ["axis_order"]
            continue
        assert not gaps_of(job, target)
        name, reader = READERS[target]
        with TemporaryDirectory() as folder:  # of what a file names beside it
            for each in set(found.files) & {"ds_config.json"}:
                Path(folder, each).write_text(found.files[each])
            beside = {"beside": Beside(folder=Path(folder))} if target == "llamafactory" else {}
            run = reader(found.files[name], **beside)
        assert_agrees(target, run, job, dict(found.files))
        _check_orders(target, dict(found.files), job)
        written += 1
    return written


def _check_orders(target: str, files: dict[str, str], job: Job) -> None:
    if "schedule.csv" in files:
        orders = parse_compute_only(files["schedule.csv"])
        assert orders.placement == job.placement
        assert orders.num_microbatches == job.num_microbatches
    if "schedule_comms.csv" in files:
        lowered = parse_compute_comms(files["schedule_comms.csv"])
        assert lowered.placement == job.placement


@pytest.mark.parametrize("name", golden_jobs())
def test_golden_jobs_read_back(name: str) -> None:
    assert check(golden_jobs()[name]) > 0


def test_the_same_plan_gives_the_same_bytes() -> None:
    for made in golden_jobs().values():
        for target in ("primus", "pytorch"):
            try:
                assert bundle(made, target) == bundle(made, target)
            except Inexpressible:
                continue


@pytest.mark.slow
@given(job=jobs())
@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
def test_every_target_reads_back_or_refuses(job: Job) -> None:
    check(job)


@pytest.mark.slow
@given(job=jobs())
@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
def test_dozens_of_plans_read_back_or_are_refused(job: Job) -> None:
    check(job)


@pytest.mark.papers
@given(job=jobs())
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
def test_hundreds_of_plans_read_back_or_are_refused(job: Job) -> None:
    check(job)


def test_a_plan_with_degrees_per_stage_is_refused_everywhere() -> None:
    from dataclasses import replace

    mixed = replace(golden_jobs()["llama3-8b fsdp"], parallelism=None)
    for target in TARGETS:
        with pytest.raises(Inexpressible, match="none") as caught:
            write(mixed, STAMP, target, launcher=Launcher.TORCHRUN)
        assert caught.value.alternatives == ()


def test_v_half_with_mixed_recomputation_is_refused_as_specified() -> None:
    job = golden_jobs()["v-half mixed"]
    with pytest.raises(Inexpressible) as megatron:
        bundle(job, "megatron")
    assert {fault.path for fault in megatron.value.faults} == {"schedule", "recompute"}
    assert megatron.value.alternatives == ("primus", "pytorch")
    with pytest.raises(Inexpressible) as titan:
        bundle(job, "torchtitan@0.3")
    assert {fault.path for fault in titan.value.faults} == {"recompute"}


def test_head_and_loss_apart_fit_no_torchtitan_stage() -> None:
    from dataclasses import replace

    job = golden_jobs()["llama3-70b uneven loop"]
    last, before = job.stages[-1], job.stages[-2]
    moved = replace(
        before,
        kinds=before.kinds + last.kinds[:-1],
        recompute=before.recompute + last.recompute[:-1],
    )
    alone = replace(last, kinds=last.kinds[-1:], recompute=last.recompute[-1:], first_block=80)
    split = replace(
        job,
        stages=(*job.stages[:-2], moved, alone),
        parallelism=replace(job.degrees, zero_stage=2),
    )
    assert split.splits_head
    with pytest.raises(UnsupportedFeature, match="head and loss"):
        write(
            ordered(job, "torchtitan") and split, STAMP, "torchtitan@0.2", launcher=Launcher.SLURM
        )


def test_rules_of_megatron_are_all_reported() -> None:
    from dataclasses import replace

    job = golden_jobs()["llama3-70b uneven loop"]
    odd = replace(job, sequence_length=8190, global_batch=120)
    with pytest.raises(InvalidInput) as caught:
        bundle(odd, "megatron")
    assert {fault.path for fault in caught.value.faults} == {"sequence_parallel", "group"}


def test_side_files_name_plan_and_version() -> None:
    found = bundle(golden_jobs()["llama3-8b fsdp"], "deepspeed")
    meta = json.loads(found.files["ds_config.meta.json"])
    assert meta["plan_sha256"] == STAMP.plan_sha256
    assert meta["version"] == found.version


def test_a_pipeline_inside_the_replicas_goes_to_megatron_alone() -> None:
    made = job(
        "llama3-8b",
        tensor=2,
        pipeline=4,
        data=2,
        zero_stage=1,
        sequence_parallel=True,
        global_batch=16,
        axis_order=PIPELINE_INSIDE,
    )
    files = write(made, STAMP, "megatron", launcher=Launcher.TORCHRUN).files
    assert "  --use-tp-pp-dp-mapping\n" in files["megatron_args.sh"]
    with pytest.raises(Inexpressible, match=r"axis_order: tp-cp-ep-pp-dp.*megatron") as caught:
        write(made, STAMP, "torchtitan@0.2", launcher=Launcher.TORCHRUN)
    assert caught.value.alternatives == ("megatron", "megatron-bridge", "primus")


def test_hybrid_shard_is_said_by_every_target_that_has_it() -> None:
    made = job("llama3-8b", data=16, zero_stage=3, state_copies=4, global_batch=16)
    wanted = {
        "megatron": ("megatron_args.sh", "  --num-distributed-optimizer-instances 4\n"),
        "torchtitan@0.2": ("torchtitan.toml", "data_parallel_replicate_degree = 4\n"),
        "accelerate": ("accelerate.yaml", "parallelism_config_dp_replicate_size: 4\n"),
        "trl": ("accelerate.yaml", "parallelism_config_dp_replicate_size: 4\n"),
    }
    for target, (name, line) in wanted.items():
        files = write(made, STAMP, target, launcher=Launcher.TORCHRUN).files
        assert line in files[name]
        assert READERS[target][1](files[name]).state_copies == 4
    with pytest.raises(Inexpressible, match=r"state_copies: 4: deepspeed copies .* with MiCS"):
        write(made, STAMP, "deepspeed", launcher=Launcher.TORCHRUN)


def test_copies_of_split_experts_are_refused_by_megatron_fsdp_and_sent_where_they_run() -> None:
    split = {"data": 16, "expert": 2, "state_copies": 2, "global_batch": 16}
    made = job("mixtral-8x7b", zero_stage=3, **split)
    with pytest.raises(Inexpressible, match="state_copies: 2: megatron copies what its FSDP") as e:
        write(made, STAMP, "megatron", launcher=Launcher.TORCHRUN)
    assert "torchtitan@0.3" in e.value.alternatives
    inside = job("mixtral-8x7b", zero_stage=1, **split)
    files = write(inside, STAMP, "megatron", launcher=Launcher.TORCHRUN).files
    assert "--num-distributed-optimizer-instances 2" in files["megatron_args.sh"]


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_megatron_shards_with_its_distributed_optimizer_at_every_stage(zero: int) -> None:
    made = job("llama3-8b", data=8, zero_stage=zero, global_batch=8)
    files = write(made, STAMP, "megatron", launcher=Launcher.TORCHRUN).files
    assert "  --use-distributed-optimizer\n" in files["megatron_args.sh"]


HYBRID = {
    "model_type": "nemotron_h",
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 512,
    "vocab_size": 8000,
    "hybrid_override_pattern": "MEM*EM-E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 4,
    "ssm_state_size": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 128,
    "moe_latent_size": 64,
}
DELTA = {
    "model_type": "qwen3_next",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 8000,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
}
TWO_PARTS = HYBRID | {
    "model_type": "bamba",
    "num_hidden_layers": 4,
    "attn_layer_indices": [2],
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 64,
    "mamba_n_groups": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "pattern"),
    [
        (HYBRID, r"'[ME*|-]+'"),
        (HYBRID | {"num_nextn_predict_layers": 1}, r"'[ME*|-]+/\*E'"),
        (TWO_PARTS, r"'(M-\|?){2}\|?\*-\|?M-'"),
        (DELTA, r"'(GE\|?){3}\*E'"),
    ],
)
def test_a_hybrid_is_priced_alike_from_its_pattern(tmp_path, document, pattern) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(document))
    job: dict[str, Any] = {"cluster": "dgx-h100", "devices": 4, "calibration": "none"}
    asked = {"global_batch": 8, "sequence": 512, "tp": 2, "pp": 2, "schedule": "1f1b"}
    planned = trainwright.plan(file, **job, **asked)
    planned.save(tmp_path / "plan.json")
    trainwright.export(tmp_path / "plan.json", to="megatron", output=tmp_path / "out")
    arguments = tmp_path / "out" / "megatron_args.sh"
    text = arguments.read_text()
    assert re.search(f"--hybrid-layer-pattern {pattern}\n", text)
    assert "--position-embedding-type rope" in text or document["model_type"] != "bamba"
    read = trainwright.estimate(source=("megatron", arguments), **job, vocab_size=8000)
    assert read.document.step_time_s == pytest.approx(planned.document.step_time_s, rel=2e-3)
    assert "have no price" not in str(read)


def test_letters_without_a_price_are_named(tmp_path) -> None:
    sizes = "--hidden-size 256 --num-attention-heads 4 --seq-length 512 --micro-batch-size 1"
    text = f"--hybrid-layer-pattern 'K-*-' {sizes} --global-batch-size 8 --vocab-size 8000"
    run = read_megatron(text)
    assert run.model is not None
    assert run.model.num_layers == 4
    assert any("for K have no price" in note for note in run.notes)
    latent = read_megatron(text.replace("K-*-", "+-*-"))
    assert any("for + have no price" in note for note in latent.notes)


@pytest.mark.slow
def test_a_hybrid_of_the_bridge_takes_the_same_pattern(tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DELTA))
    asked = {"global_batch": 8, "sequence": 512, "pp": 2, "cluster": "dgx-h100", "devices": 4}
    for name, schedule in (("even", "1f1b"), ("looped", "interleaved")):
        trainwright.plan(file, schedule=schedule, framework="any", **asked).save(tmp_path / name)
    out = tmp_path / "out"
    trainwright.export(tmp_path / "even", to="megatron-bridge", output=out)
    text = (out / "trainwright_recipe.py").read_text()
    assert re.search(r"hybrid_layer_pattern = '[GE*]+\|[GE*]+'\n", text)
    assert "recipe.model.num_layers = 8\n" in text
    with pytest.raises(Inexpressible, match="several stages on a rank"):
        trainwright.export(tmp_path / "looped", to="megatron-bridge", output=tmp_path / "other")
