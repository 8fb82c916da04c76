"""What people do to make a run fit: loss and feed-forward parts in pieces, the host's memory."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import trainwright as tw
from trainwright.cluster import Cluster
from trainwright.documents.fit import host_bytes
from trainwright.documents.runs import job_of_configuration
from trainwright.errors import InvalidInput
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import framework_memory
from trainwright.frameworks.megatron import megatron_fields
from trainwright.model import LowRank, Offload, Optimizer, Recipe, TransformerConfig, Tuning
from trainwright.planning.reasons.improve import changes_that_fit
from trainwright.plans.configuration import Configuration, Overlap
from trainwright.plans.job import unsaid_training
from trainwright.plans.plan import Parallelism
from trainwright.plans.prediction import StepPrediction
from trainwright.profile import Recompute
from trainwright.step.figures import fullest_figures
from trainwright.step.predict import price_configuration

MODEL = catalog.model("qwen3-0.6b").config
CLUSTER = catalog.cluster("dgx-h100")
RUN = Configuration(
    parallelism=Parallelism(data=8, zero_stage=3),
    microbatch_size=1,
    global_batch=8,
    sequence_length=8192,
    recompute=Recompute.FULL,
)


def price(recipe: Recipe, run: Configuration = RUN) -> StepPrediction:
    return price_configuration(MODEL, CLUSTER, replace(run, recipe=recipe))


def test_a_chunked_loss_never_holds_all_logits_and_computes_the_head_once_more() -> None:
    whole, chunked = price(Recipe()), price(Recipe(loss_chunk=512))
    kept, held = whole.stages[0].memory, chunked.stages[0].memory
    logits = 8192 * 151936 * 4.0
    assert kept.logits_bytes - held.logits_bytes == pytest.approx(logits)
    head_s = 2 * 8192 * 151936 * 1024 / 989.4e12 / 0.8
    assert chunked.step_time_s - whole.step_time_s > head_s
    assert chunked.peak_memory_bytes < whole.peak_memory_bytes - logits


def test_smaller_tiles_hold_less() -> None:
    tiles = [None, 4096, 2048, 256]
    peaks = [price(Recipe(loss_chunk=16, mlp_tile=t)).peak_memory_bytes for t in tiles]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] - peaks[-1] > 8192 * 3072 * 2 * 3  # what the feed-forward part keeps


def test_activations_on_the_host_leave_the_device_and_are_counted_there() -> None:
    recipe = Recipe(loss_chunk=256, offload=Offload(activations=1.0))
    run = replace(RUN, recipe=recipe)
    there, here = price(recipe), price(replace(recipe, offload=None))
    inputs = 28 * 8192 * 1024 * 2.0
    (held,) = host_bytes(MODEL, CLUSTER, run, there)
    assert held == pytest.approx(inputs)
    gone = here.peak_memory_bytes - there.peak_memory_bytes
    assert gone == pytest.approx(inputs * (1 - 2 / 28))  # of two layers it comes back
    (half,) = host_bytes(MODEL, CLUSTER, run, price(Recipe(offload=Offload(activations=0.5))))
    assert half < held


def test_what_does_not_hide_under_compute_waits_for_the_link() -> None:
    run = replace(RUN, recompute=Recompute.NONE)
    offload = Offload(activations=1.0)
    slow = price(Recipe(offload=offload), run)
    (held,) = host_bytes(MODEL, CLUSTER, replace(run, recipe=Recipe(offload=offload)), slow)
    assert CLUSTER.accelerator.host is not None
    moved_s = 2 * held / CLUSTER.accelerator.host.link_bytes_per_s
    plain = price(Recipe(), run)
    added_s = slow.step_time_s - plain.step_time_s
    assert 0 < added_s < moved_s
    exposed = replace(run, overlap=replace(run.overlap, host=0.0))
    assert price(Recipe(offload=offload), exposed).step_time_s == pytest.approx(
        plain.step_time_s + moved_s
    )


def test_the_host_updates_what_it_holds() -> None:
    host = CLUSTER.accelerator.host
    assert host is not None
    trained = MODEL_PARAMETERS / 8
    states = price(Recipe(offload=Offload(optimizer=1.0, gradients=1.0)))
    memory = states.stages[0].memory
    assert memory.optimizer_bytes == memory.gradient_bytes == 0
    expected_s = trained * (1 / host.updates_per_s + 6 / host.link_bytes_per_s)
    assert states.optimizer_s == pytest.approx(expected_s, rel=0.01)
    half = price(Recipe(offload=Offload(optimizer=0.5)))
    assert half.stages[0].memory.optimizer_bytes == pytest.approx(
        price(Recipe()).stages[0].memory.optimizer_bytes / 2
    )


MODEL_PARAMETERS = 596_049_920


@pytest.mark.parametrize("devices", [1, 8])
def test_shards_on_the_host_come_over_the_link_with_every_gathering(devices: int) -> None:
    degrees = Parallelism(data=devices, zero_stage=3)
    run = replace(RUN, parallelism=degrees, overlap=Overlap(parameters=0.0, gradients=0.0))
    here, there = price(Recipe(), run), price(Recipe(offload=Offload(weights=1.0)), run)
    kept, held = here.stages[0].memory, there.stages[0].memory
    host = CLUSTER.accelerator.host
    assert host is not None
    shard = kept.weight_bytes
    assert shard == pytest.approx(2 * MODEL_PARAMETERS / devices, rel=1e-3)
    assert held.weight_bytes == 0
    moved = replace(run, recipe=Recipe(offload=Offload(weights=1.0)))
    assert host_bytes(MODEL, CLUSTER, moved, there) == pytest.approx((shard,))
    embedding = 2 * 151936 * 1024  # the heaviest layer, of which its own shard is to come, too
    assert held.transient_bytes - kept.transient_bytes == pytest.approx(2 * embedding / devices)
    passes, written = 2 * run.num_microbatches, 1  # forward and backward, and the update's result
    expected_s = (passes + written) * shard / host.link_bytes_per_s
    assert there.step_time_s - here.step_time_s == pytest.approx(expected_s, rel=1e-3)


def test_weights_that_are_updated_in_the_backward_pass_have_no_gradients_beside() -> None:
    recipe = Recipe(gradient_dtype="bf16")
    run = replace(RUN, parallelism=Parallelism(), global_batch=1, sequence_length=128)
    at_once = replace(recipe, update_in_backward=True)
    kept, gone = (price(each, run).stages[0].memory for each in (recipe, at_once))
    assert kept.gradient_bytes == pytest.approx(2 * MODEL_PARAMETERS, rel=1e-3)
    assert gone.gradient_bytes == 0
    account, device = framework_memory("typical"), CLUSTER.accelerator
    with_all, one_by_one = (
        fullest_figures(
            MODEL, replace(run, recipe=each), price(each, run), device, account
        ).allocated.typical_bytes
        for each in (recipe, at_once)
    )
    embedding = 2 * 151936 * 1024  # the largest gradient, which lives for a moment
    assert with_all - one_by_one == pytest.approx(2 * MODEL_PARAMETERS - embedding, rel=0.01)
    with pytest.raises(InvalidInput, match="update_in_backward: needs one stage and one microb"):
        price(at_once, replace(run, global_batch=2))
    asked = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 8, "sequence": 1024}
    with pytest.raises(InvalidInput, match="update-in-backward: must be left out"):
        tw.plan("qwen3-0.6b", **asked, update_in_backward=True)


def test_weights_that_nothing_shards_stay_on_the_device() -> None:
    run = replace(RUN, parallelism=Parallelism(data=8, zero_stage=2))
    with pytest.raises(InvalidInput, match="offload: weights: only ZeRO-3 brings them"):
        price(Recipe(offload=Offload(weights=1.0)), run)
    asked = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 8, "sequence": 1024}
    with pytest.raises(InvalidInput, match="zero: must be 3 beside weights on the host, got 2"):
        tw.plan("qwen3-0.6b", **asked, offload={"weights": 1.0}, zero=2)
    with pytest.raises(InvalidInput, match="pp: must be 1 beside weights on the host"):
        tw.plan("qwen3-0.6b", **asked, offload={"weights": 1.0}, pp=2)


def test_four_bit_weights_hold_their_scaling_constants_and_nothing_else_changes() -> None:
    def tuned(bits: int | None) -> TransformerConfig:
        low_rank = LowRank(rank=8, targets=("query", "value"), bits=bits)
        return replace(MODEL, tuning=Tuning(low_rank=low_rank))

    run = replace(RUN, parallelism=Parallelism(data=8, zero_stage=0))
    whole, four, eight = (
        price_configuration(tuned(bits), CLUSTER, run).stages[0].memory for bits in (None, 4, 8)
    )
    products = 28 * (1024 * 2048 + 2 * 1024 * 1024 + 2048 * 1024 + 3 * 1024 * 3072)
    assert whole.weight_bytes - eight.weight_bytes == pytest.approx(products)
    bits = 4 + 8 / 64 + 32 / (64 * 256)
    assert whole.weight_bytes - four.weight_bytes == pytest.approx(products * (2 - bits / 8))
    assert four.optimizer_bytes == whole.optimizer_bytes


def test_a_device_that_says_nothing_of_its_host_offloads_nothing() -> None:
    alone = replace(CLUSTER.accelerator, host=None)
    pools = tuple(replace(pool, accelerator=alone) for pool in CLUSTER.pools)
    mute: Cluster = replace(CLUSTER, pools=pools)
    with pytest.raises(InvalidInput, match="offload: needs link_bytes_per_s"):
        price_configuration(
            MODEL, mute, replace(RUN, recipe=Recipe(offload=Offload(activations=1.0)))
        )
    with pytest.raises(InvalidInput, match=r"offload.activations: must be from 0 to 1"):
        Offload(activations=1.5)


def test_a_whole_part_of_a_block_is_kept_by_its_input_alone() -> None:
    run = replace(RUN, recipe=Recipe(loss_chunk=16), recompute=Recompute.NONE)
    again = replace(run, recompute=Recompute.SELECTIVE, recompute_modules=("mlp",))
    whole, part = (price_configuration(MODEL, CLUSTER, each).stages[0] for each in (run, again))
    inner = 28 * 8192 * 3 * 3072 * 2.0
    assert whole.memory.activation_bytes - part.memory.activation_bytes == pytest.approx(inner)
    assert part.recompute_s > 0


def test_states_in_fewer_bits_are_offered_where_they_are_enough() -> None:
    plain = price(Recipe()).peak_memory_bytes
    eight = price(Recipe(moment_dtypes=("int8",))).peak_memory_bytes
    found = changes_that_fit(
        MODEL, CLUSTER, RUN, lambda _, __, step: step.peak_memory_bytes <= (plain + eight) / 2
    )
    offered = {change.options for change in found}
    assert "--moment-dtype int8" in offered
    assert not any("--gradient-dtype" in options for options in offered)
    lion = replace(RUN, recipe=Recipe(optimizer=Optimizer.LION))
    never = changes_that_fit(
        MODEL, CLUSTER, lion, lambda _, run, __: "int8" in run.recipe.moment_dtypes
    )
    assert not never


LARGE = catalog.model("llama3-8b").config
ALONE = replace(RUN, parallelism=Parallelism(), global_batch=1, sequence_length=1024)


def adapted(bits: int | None = None) -> TransformerConfig:
    low_rank = LowRank(rank=16, targets=("query", "value"), bits=bits)
    return replace(LARGE, tuning=Tuning(low_rank=low_rank))


@pytest.mark.parametrize("bits", [None, 4])
def test_adapters_come_last_and_nothing_adds_to_a_change_that_is_enough(bits: int | None) -> None:
    enough = price_configuration(adapted(bits), CLUSTER, ALONE)
    found = changes_that_fit(
        LARGE,
        CLUSTER,
        ALONE,
        lambda _, __, step: step.peak_memory_bytes <= enough.peak_memory_bytes,
    )
    last = found[-1]
    assert (last.model, last.step) == (adapted(bits), enough)
    assert last.options == "--lora-rank 16" + (" --weight-bits 4" if bits else "")
    assert all(change.model is LARGE for change in found[:-1])
    assert bits or last.device_s < min(change.device_s for change in found[:-1])
    said = [{*f" {change.options}".split(" --")} for change in found]
    assert not any(one < other for one in said for other in said)


def test_a_run_of_adapters_is_offered_no_others() -> None:
    never = changes_that_fit(adapted(), CLUSTER, ALONE, lambda model, *_: model != adapted())
    assert not never


def test_up_projections_that_run_again_spare_queries_keys_and_values() -> None:
    """Megatron-Core's mla_up_proj: latents stay, their projections and rotary embedding repeat."""
    model = catalog.model("deepseek-v2-lite").config
    run = replace(
        RUN,
        parallelism=Parallelism(data=8, expert=8, expert_tensor=1, zero_stage=1),
        sequence_length=2048,
        recompute=Recompute.NONE,
    )
    again = replace(run, recompute=Recompute.SELECTIVE, recompute_modules=("latent_up_projection",))
    whole, part = (price_configuration(model, CLUSTER, each).stages[0] for each in (run, again))
    spared = 27 * 2048 * 16 * (192 + 192 + 128) * 2.0
    held = whole.memory.activation_bytes - part.memory.activation_bytes
    assert held == pytest.approx(spared)
    products = 27 * 2 * 2048 * (2048 * 16 * 192 + 512 * 16 * (128 + 128))
    assert part.recompute_s > products / 989.4e12
    assert part.recompute_s < products / 989.4e12 / 0.3
    job = job_of_configuration(again, model, CLUSTER, model_name="deepseek-v2-lite")
    assert megatron_fields(job).model["recompute_modules"] == ["mla_up_proj"]


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ("9.5GiB", "the loss over some of the tokens at a time"),
        (
            "10.5GiB",
            "the loss and feed-forward parts over some of the tokens at a time, which is quicker "
            "than with the loss over some of the tokens at a time",
        ),
    ],
)
def test_the_least_that_fits_is_planned_or_what_keeps_less_and_is_quicker(
    memory: str, said: str
) -> None:
    """Most of what a small model with many words keeps are logits; with less, more need not run."""
    made = tw.plan(
        "gemma3-270m",
        cluster="a10",
        devices=1,
        framework="accelerate",
        memory=memory,
        global_batch=1,
        sequence=4096,
        top=0,
    )
    document = made.document
    assert document.stages
    assert document.request.recipe.loss_chunk == 1024
    assert f"loss-chunk: nothing fits as asked; planned with {said}" in document.warnings


def test_room_on_hosts_is_asked_of_the_devices_that_a_change_adds() -> None:
    """A change may need more devices than a run that keeps its states on hosts has."""
    report = tw.estimate(
        "llama3-8b",
        cluster="dgx-a100-40gb",
        devices=8,
        dp=8,
        zero=3,
        global_batch=8,
        sequence=131072,
        recompute="full",
        offload={"optimizer": 1.0},
        software="trl",
        loss_chunk=0,
        changes=True,
    )
    assert not report.document.fits
    assert report.document.changes


@pytest.mark.parametrize(
    ("recipe", "unsaid"),
    [
        (Recipe(moment_dtypes=("int8",)), ["moment_dtypes"]),
        (Recipe(moment_dtypes=("bf16", "fp8")), []),
        (Recipe(offload=Offload(optimizer=1.0, gradients=1.0)), ["offload"]),
        (Recipe(offload=Offload(optimizer=1.0)), []),
    ],
)
def test_megatron_has_no_moments_of_8_bit_integers_and_no_gradients_on_hosts(
    recipe: Recipe, unsaid: list[str]
) -> None:
    """megatron/core/optimizer: precision-aware Adam; HybridDeviceOptimizer moves states alone."""
    assert [each.path for each in unsaid_training(MODEL, recipe, "megatron")] == unsaid


def test_a_plan_with_weights_on_the_host_is_the_run_that_an_estimate_prices(tmp_path: Path) -> None:
    states = {"optimizer": 1.0, "gradients": 1.0}
    run = {"cluster": "dgx-h100", "devices": 1, "global_batch": 1, "sequence": 122_880}
    run |= {"recompute": "full", "loss_chunk": 256, "offload": {**states, "weights": 1.0}}
    made = tw.plan("qwen3-8b", **run, framework="trl", top=0)
    asked = tw.estimate("qwen3-8b", **run, tp=1, zero=3, software="trl", changes=False)
    found, priced = made.document, asked.document
    assert priced.fits
    assert (found.status, found.gap) == ("optimal", 0)
    assert found.step_time_s == priced.step_time_s
    assert found.allocated_bytes == priced.allocated_bytes
    there = tw.plan("qwen3-8b", **{**run, "offload": states}, framework="deepspeed", zero=3, top=0)
    assert there.document.parallelism is None  # 16 GB of weights are too many beside the rest
    tw.export(made, "trl", output=tmp_path)
    launched = (tmp_path / "accelerate.yaml").read_text()
    assert "distributed_type: FSDP" in launched
    assert "fsdp_offload_params: true" in launched


STATES_AND_WEIGHTS = {"optimizer": 1.0, "gradients": 1.0, "weights": 1.0}


PART_OF_WEIGHTS = {"weights": 0.6}


@pytest.mark.parametrize(
    ("framework", "devices", "share"),
    [
        ("deepspeed", 1, STATES_AND_WEIGHTS),
        ("deepspeed", 1, PART_OF_WEIGHTS),
        ("trl", 4, STATES_AND_WEIGHTS),
        ("accelerate", 6, STATES_AND_WEIGHTS),
        ("pytorch", 6, PART_OF_WEIGHTS),
        ("deepspeed", 8, PART_OF_WEIGHTS),
    ],
)
def test_devices_just_large_enough_beside_weights_on_the_host_are_planned_for(
    framework: str, devices: int, share: dict[str, float]
) -> None:
    """Two sequences for each of one, or of a node of eight: of fewer, each holds a larger shard."""
    asked = {"cluster": "dgx-h100", "sequence": 4096, "offload": share, "recompute": "full"}
    asked |= {"global_batch": 2 * devices, "micro_batch": 1, "tp": 1, "cp": 1}
    asked |= {"software": framework, "loss_chunk": 256}
    alone = {"devices": devices, "dp": devices, "zero": 3, "changes": False}
    if framework != "trl":
        asked |= {"fit_probability": 0}
    too_small, enough = 2.0**30, 2.0**38
    while enough - too_small > 1024:
        memory = (too_small + enough) / 2
        if tw.estimate("qwen3-8b", **asked, **alone, memory=memory).document.fits:
            enough = memory
        else:
            too_small = memory
    run = tw.estimate("qwen3-8b", **asked, **alone, memory=enough).document
    asked |= {
        "devices": min(8, devices**3),
        "dp": f"1..{devices}",
        "framework": framework,
        "top": 0,
    }
    found, none = (
        tw.plan("qwen3-8b", **asked, memory=each).document for each in (enough, too_small)
    )
    assert run.fits
    assert (found.status, found.step_time_s) == ("optimal", run.step_time_s)
    if framework != "trl":  # whose account is of a run's own tensors: a run of fewer devices fits
        assert (none.status, none.parallelism) == ("infeasible", None)


@pytest.mark.parametrize("framework", ["trl", "any"])
@pytest.mark.parametrize(("devices", "memory"), [(4, "5GiB"), (6, "3GiB"), (8, "4GiB")])
def test_no_run_that_fits_is_quicker_than_a_plan_with_weights_on_the_host(
    framework: str, devices: int, memory: str
) -> None:
    software = "trl" if framework == "trl" else "typical"
    asked = {"cluster": "dgx-h100", "global_batch": 6, "sequence": 4096, "memory": memory}
    asked |= {"offload": STATES_AND_WEIGHTS, "software": software, "pp": 1, "zero": 3}
    made = tw.plan("qwen3-0.6b", **asked, devices=devices, framework=framework, top=0).document
    assert made.lower_bound_s is not None
    num_priced = 0
    for tensor, context, data in product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 3, 6)):
        used = tensor * context * data
        sizes = [each for each in (1, 2, 3, 6) if 6 % (each * data) == 0]
        for size, mode in product(sizes if used <= devices else (), ("none", "full")):
            split = {"tp": tensor, "cp": context, "dp": data, "micro_batch": size}
            run = tw.estimate(
                "qwen3-0.6b", **asked, **split, devices=used, recompute=mode, changes=False
            ).document
            if run.fits:
                num_priced += 1
                assert run.step_time_s >= made.lower_bound_s * (1 - 1e-12)
                assert run.step_time_s >= made.step_time_s * (1 - 1e-12)
    assert num_priced > 3


@pytest.mark.parametrize("framework", ["accelerate", "trl", "axolotl"])
def test_fsdp_leaves_all_that_it_shards_on_the_host_and_nothing_else(framework: str) -> None:
    """torch.distributed.fsdp: CPUOffloadPolicy takes whole shards; gathered weights come back."""
    asked = {"cluster": "dgx-h100", "devices": 8, "global_batch": 8, "sequence": 2048, "top": 0}
    asked |= {"framework": framework}
    stated = tw.plan("qwen3-0.6b", **asked, offload={"optimizer": 0.5}).document
    whole = tw.plan("qwen3-0.6b", **asked, offload=STATES_AND_WEIGHTS).document
    assert stated.step_time_s == whole.step_time_s
    assert stated.request.recipe == whole.request.recipe
    said = "offload: FSDP moves all it shards: optimizer, gradients, weights are planned on the"
    assert [each for each in stated.warnings if said in each]
    assert not [each for each in whole.warnings if said in each]
    kept = tw.plan("qwen3-0.6b", **asked, offload={"optimizer": 1.0}, zero=2).document
    assert kept.request.recipe is not None
    assert kept.request.recipe.offload == Offload(optimizer=1.0, gradients=1.0)
    with pytest.raises(InvalidInput, match=r"optimizer of ZeRO 0: .* moves what FSDP shards"):
        tw.plan("qwen3-0.6b", **asked, offload={"optimizer": 1.0}, zero=0, dp=8)
    with pytest.raises(InvalidInput, match=r"optimizer of one replica: .* moves what FSDP shards"):
        tw.plan("qwen3-0.6b", **asked, offload={"optimizer": 1.0}, tp=4, dp=1, cp=1)


def test_one_device_is_told_of_its_host_as_many_are(tmp_path: Path) -> None:
    asked = {"cluster": "dgx-h100", "devices": 1, "global_batch": 8, "sequence": 2048, "top": 0}
    written = {}
    for target, name in (
        ("axolotl", "axolotl.yaml"),
        ("llamafactory", "ds_config.json"),
        ("deepspeed", "ds_config.json"),
    ):
        for share in ({"optimizer": 1.0}, STATES_AND_WEIGHTS):
            made = tw.plan("qwen3-0.6b", **asked, offload=share, framework=target)
            tw.export(made, target, output=tmp_path / target, force=True)
            written[target, len(share)] = (tmp_path / target / name).read_text()
    assert "reshard_after_forward: true\n  offload_params: true" in written["axolotl", 1]
    for target in ("llamafactory", "deepspeed"):
        states, weights = (json.loads(written[target, n])["zero_optimization"] for n in (1, 3))
        assert (states["stage"], weights["stage"]) == (1, 3)
        assert "offload_param" not in states
        assert weights["offload_param"]["device"] == "cpu"
        assert states["offload_optimizer"]["device"] == "cpu"


def test_frameworks_that_keep_weights_on_devices_are_refused() -> None:
    asked = {"cluster": "dgx-h100", "nodes": 1, "global_batch": 8, "sequence": 1024}
    with pytest.raises(InvalidInput, match=r"weights: torchtitan.* keeps them on devices"):
        tw.plan("qwen3-0.6b", **asked, offload={"weights": 1.0}, framework="torchtitan")
