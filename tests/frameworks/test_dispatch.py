"""How tokens travel to experts, in the words of each framework, and back."""

from __future__ import annotations

from typing import Any

import pytest

import trainwright
from export_jobs import bundle, job
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.frameworks.jobs.bridge import read_bridge
from trainwright.frameworks.jobs.deepspeed import read_deepspeed
from trainwright.frameworks.jobs.hugging_face import read_accelerate, read_axolotl
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.pretraining import read_primus
from trainwright.frameworks.jobs.torchtitan import read_torchtitan
from trainwright.frameworks.megatron import megatron_fields
from trainwright.model import ContextExchange, Recipe, TokenDispatcher
from trainwright.model.config import Experts
from trainwright.plans.job import Job

ONCE = TokenDispatcher.HIERARCHICAL
MODEL = """--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000
--num-experts 64 --moe-router-topk 6 --expert-model-parallel-size 16
"""


def made(name: str = "deepseek-v2", **given: Any) -> Job:
    recipe = Recipe(**{"token_dispatcher": ONCE, **given.pop("recipe", {})})
    degrees = {"data": 16, "expert": 8, "expert_tensor": 1, "zero_stage": 1, "global_batch": 64}
    return job(name, recipe=recipe, **(degrees | given))


def written(job: Job, target: str) -> str:
    return "".join(bundle(job, target).files.values())


def experts_of(text: str) -> Experts:
    model = read_megatron(text).model
    assert model is not None
    assert model.experts is not None
    return model.experts


def test_megatron_is_told_the_groups_of_experts() -> None:
    text = written(made(), "megatron")
    assert "--moe-router-num-groups 8" in text
    assert "--moe-router-group-topk 3" in text
    assert "--moe-router-group-topk" not in written(made("mixtral-8x7b"), "megatron")


def test_megatron_sends_a_token_once_by_its_flexible_dispatcher() -> None:
    text = written(made(), "megatron")
    assert "--moe-token-dispatcher-type flex" in text
    assert "--moe-flex-dispatcher-backend deepep" in text
    assert "--moe-router-dtype fp32" in text  # the backends take no other


def test_a_capacity_needs_the_backend_that_pads() -> None:
    text = written(made(recipe={"capacity_factor": 1.25}), "megatron")
    assert "--moe-flex-dispatcher-backend hybridep" in text


@pytest.mark.parametrize("once", [True, False])
def test_where_experts_are_together_nothing_travels(once: bool) -> None:
    recipe = {} if once else {"token_dispatcher": TokenDispatcher.ALL_TO_ALL}
    fields = megatron_fields(made(expert=1, recipe=recipe)).model
    assert fields["moe_token_dispatcher_type"] == "alltoall"
    assert "moe_flex_dispatcher_backend" not in fields


@pytest.mark.parametrize(
    ("target", "file", "read"),
    [
        ("megatron", "megatron_args.sh", read_megatron),
        ("megatron-bridge", "trainwright_recipe.py", read_bridge),
        ("primus", "primus.yaml", read_primus),
        ("torchtitan@0.2", "torchtitan.toml", read_torchtitan),
    ],
)
@pytest.mark.parametrize("dispatcher", TokenDispatcher)
def test_the_way_of_tokens_reads_back(
    target: str, file: str, read: Any, dispatcher: TokenDispatcher
) -> None:
    zero = 3 if target == "torchtitan@0.2" else 1
    found = made(zero_stage=zero, recipe={"token_dispatcher": dispatcher})
    stated = read(bundle(found, target).files[file])
    assert (stated.token_dispatcher or "all_to_all") == dispatcher
    assert stated.unknown == ()


def test_the_groups_read_back() -> None:
    found = made()
    experts = experts_of(written(found, "megatron").replace("=(", "=(--vocab-size 1000 ", 1))
    assert (experts.num_groups, experts.groups_per_token) == (8, 3)
    assert found.model.experts is not None
    assert experts.num_groups == found.model.experts.num_groups


def test_the_older_flag_limits_a_token_to_devices() -> None:
    experts = experts_of(f"{MODEL} --moe-router-topk-limited-devices 3")
    assert (experts.num_groups, experts.groups_per_token) == (16, 3)
    free = experts_of(f"{MODEL} --moe-router-num-groups 4")  # without the other it limits nothing
    assert (free.num_groups, free.groups_per_token) == (1, 1)


def test_groups_that_leave_too_few_experts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="must leave a token 6 experts"):
        read_megatron(f"{MODEL} --moe-router-num-groups 16 --moe-router-group-topk 1")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--moe-router-num-groups 4 --moe-router-group-topk 9", "must be in 1..4, got 9"),
        ("--moe-router-group-topk 2", "needs --moe-router-num-groups beside it"),
    ],
)
def test_a_wrong_number_of_groups_is_named_as_megatron_names_it(flags: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_megatron(f"{MODEL} {flags}")
    assert [str(fault) for fault in caught.value.faults] == [f"--moe-router-group-topk: {problem}"]


def test_an_unknown_dispatcher_is_refused_and_gathering_is_noted() -> None:
    with pytest.raises(InvalidInput, match="--moe-token-dispatcher-type"):
        read_megatron("--moe-token-dispatcher-type teleport")
    found = read_megatron(f"{MODEL} --moe-token-dispatcher-type allgather")
    assert found.token_dispatcher == "all_to_all"
    assert any("allgather is priced as alltoall" in note for note in found.notes)
    assert read_megatron(MODEL).notes == found.notes  # Megatron's default
    together = read_megatron(MODEL.replace("--expert-model-parallel-size 16", ""))
    assert not any("allgather" in note for note in together.notes)


@pytest.mark.parametrize("target", ["megatron", "torchtitan@0.2", "deepspeed", "nanotron"])
def test_no_framework_sends_tokens_in_a_format_of_their_own(target: str) -> None:
    found = made("mixtral-8x7b", recipe={"dispatch_dtype": "fp8"})
    with pytest.raises(Inexpressible) as caught:
        bundle(found, target)
    (fault,) = [f for f in caught.value.faults if f.path == "dispatch_dtype"]
    assert "in the format of activations" in fault.problem
    assert "pytorch" in fault.problem
    same = made("mixtral-8x7b", zero_stage=3, recipe={"dispatch_dtype": "bf16"})
    assert "deepep" in written(same, "torchtitan@0.2")


@pytest.mark.parametrize("target", ["deepspeed", "nanotron"])
def test_who_sends_a_copy_for_each_expert_says_so(target: str) -> None:
    with pytest.raises(Inexpressible, match="sends a copy of a token for each of its experts"):
        bundle(made("mixtral-8x7b"), target)


def test_torchtitan_sends_tokens_once_to_whole_experts_only() -> None:
    cut = {"tensor": 2, "sequence_parallel": True, "data": 8, "zero_stage": 3}
    with pytest.raises(Inexpressible, match="only where experts are whole; choose --etp 1"):
        bundle(made("mixtral-8x7b", **cut, expert_tensor=2), "torchtitan@0.2")
    assert "deepep" in written(made("mixtral-8x7b", **cut), "torchtitan@0.2")


def test_what_torchtitan_leaves_to_the_model_is_asked_of_the_user() -> None:
    found = bundle(made(zero_stage=3), "torchtitan@0.3")
    assert any("moe_comm_backend" in each for each in found.asked_of_user)
    plain = made(zero_stage=3, recipe={"token_dispatcher": TokenDispatcher.ALL_TO_ALL})
    assert not any("moe_comm_backend" in e for e in bundle(plain, "torchtitan@0.3").asked_of_user)


def test_nanotron_knows_no_groups_of_experts() -> None:
    with pytest.raises(Inexpressible, match="groups_per_token"):
        bundle(made(recipe={"token_dispatcher": TokenDispatcher.ALL_TO_ALL}), "nanotron")


def test_the_loader_of_pytorch_says_what_the_model_is_to_send() -> None:
    found = bundle(made(zero_stage=3, recipe={"dispatch_dtype": "fp8"}), "pytorch").not_represented
    assert any("your model sends a copy per node, passed on inside, in fp8" in e for e in found)


def test_the_nearest_plan_sends_tokens_as_the_framework_can() -> None:
    run = trainwright.estimate(
        "mixtral-8x7b",
        cluster="dgx-h100",
        nodes=4,
        ep=8,
        zero=3,
        global_batch=64,
        sequence=2048,
        dispatch_dtype="fp8",
        token_dispatcher="hierarchical",
    )
    found = trainwright.export(run, "torchtitan@0.2", allow_nearest=True).document
    assert found.nearest is not None
    (change,) = found.nearest.changes
    once = "a copy per node, passed on inside, in"
    assert change == f"dispatch: {once} fp8 becomes {once} the format of activations"
    assert found.nearest.after.step_time_s > found.nearest.before.step_time_s


def test_a_plan_for_a_framework_says_what_it_cannot_send() -> None:
    found = trainwright.plan(
        "mixtral-8x7b",
        cluster="dgx-h100",
        nodes=2,
        global_batch=32,
        sequence=4096,
        framework="megatron",
        pp=1,
        tp=1,
        ep=8,
        micro_batch=1,
        dispatch_dtype="fp8",
        token_dispatcher="hierarchical",
    ).document
    (warning,) = [each for each in found.warnings if "dispatch" in each]
    assert "sends tokens to experts in the format of activations; what can: pytorch" in warning


@pytest.mark.parametrize(
    ("exchange", "ulysses", "flags"),
    [
        ("all_gather", None, ["--cp-comm-type all_gather"]),
        ("all_to_all", None, ["--cp-comm-type a2a"]),
        (
            "all_to_all_ring",
            2,
            ["--cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes 2 4"],
        ),
    ],
)
def test_context_ranks_meet_in_the_words_of_megatron(
    exchange: str, ulysses: int | None, flags: list[str]
) -> None:
    recipe = Recipe(context_exchange=ContextExchange(exchange), ulysses=ulysses)
    found = job("llama3-8b", recipe=recipe, context=8, data=2, global_batch=8)
    text = written(found, "megatron")
    assert all(flag in text for flag in flags)
    again = read_megatron(text)
    assert (again.cp, again.context_exchange, again.ulysses) == (8, exchange, ulysses)
    bridge = read_bridge(bundle(found, "megatron-bridge").files["trainwright_recipe.py"])
    assert (bridge.context_exchange, bridge.ulysses) == (exchange, ulysses)
    if exchange != "all_gather":
        with pytest.raises(Inexpressible, match="context_exchange"):
            bundle(found, "torchtitan@0.3")


def test_a_ring_of_groups_states_both_sizes() -> None:
    flags = "--context-parallel-size 8 --cp-comm-type a2a+p2p"
    with pytest.raises(InvalidInput, match="must be two sizes, of all-to-all and of the ring"):
        read_megatron(f"{MODEL} {flags}")
    with pytest.raises(InvalidInput, match="must be one of p2p, all_gather, a2a"):
        read_megatron(f"{MODEL} --context-parallel-size 8 --cp-comm-type b2b")
    assert read_megatron(f"{MODEL} --cp-comm-type a2a+p2p").context_exchange is None
    of_deepspeed = "--ds-sequence-parallel-size 4 --context-parallel-size 2"
    found = read_megatron(f"{MODEL} {of_deepspeed}")
    assert (found.cp, found.context_exchange, found.ulysses) == (8, "all_to_all_ring", 4)


def test_inputs_of_activations_that_wait_in_8_bit_are_asked_for_and_read_again() -> None:
    found = made(recipe={"activation_input_dtype": "fp8"})
    assert megatron_fields(found).model["activation_func_fp8_input_store"] is True
    flag = "--activation-func-fp8-input-store"
    assert flag in written(found, "megatron")
    assert "activation_func_fp8_input_store" in written(found, "megatron-bridge")
    assert read_megatron(f"{MODEL} {flag}").activation_input_dtype == "fp8"
    assert read_megatron(MODEL).activation_input_dtype is None
    with pytest.raises(Inexpressible, match="activation_input_dtype"):
        bundle(found, "torchtitan@0.3")
    same = made(recipe={"activation_input_dtype": "bf16"})
    assert flag not in written(same, "megatron")


NARROW = '[training]\nmixed_precision_reduce = "bfloat16"\n'


def test_the_format_in_which_gradients_are_summed_is_read_and_written() -> None:
    asked: Any = {"expert": 1, "expert_tensor": None, "zero_stage": 3}
    recipe = {"reduce_dtype": "bf16", "token_dispatcher": TokenDispatcher.ALL_TO_ALL}
    found = made("llama3-8b", recipe=recipe, **asked)
    json = written(found, "deepspeed")
    assert '"communication_data_type": "bf16"' in json
    assert "reduce dtype: bf16" in " ".join(bundle(found, "torchtitan@0.3").not_represented)
    config = '{"zero_optimization": {"stage": 1}, "communication_data_type": "bf16"}'
    assert read_deepspeed(config).reduce_dtype == "bf16"
    half = '"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}'
    assert read_deepspeed(f"{{{half}}}").gradient_dtype == "bf16"
    summed = f'{{"data_types": {{"grad_accum_dtype": "fp32"}}, {half}}}'
    assert read_deepspeed(summed).gradient_dtype is None  # as usual
    assert read_torchtitan(NARROW).reduce_dtype == "bf16"
    assert read_torchtitan("[training]\nseq_len = 2048\n").reduce_dtype is None
    pure = read_torchtitan('[training]\ndtype = "bfloat16"\n')
    assert (pure.gradient_dtype, pure.reduce_dtype) == ("bf16", "fp32")


def test_deepspeed_and_fsdp_sum_gradients_in_16_bit_unless_told_otherwise() -> None:
    """`communication_data_type` of DeepSpeed's engine; `set_mixed_precision` of accelerate."""
    half = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}%s}'
    assert read_deepspeed(half % "").reduce_dtype == "bf16"
    assert read_deepspeed(half % ', "communication_data_type": "fp32"').reduce_dtype == "fp32"
    assert read_deepspeed('{"zero_optimization": {"stage": 2}}').reduce_dtype is None
    config = "distributed_type: {}\nmixed_precision: {}\n"
    for kind, precision, reduced in (
        ("FSDP", "fp16", "fp16"), ("FSDP", "no", None), ("MULTI_GPU", "bf16", None),
    ):  # fmt: skip
        assert read_accelerate(config.format(kind, precision)).reduce_dtype == reduced
    trained = "base_model: gpt2\nbf16: true\nmicro_batch_size: 1\n"
    sharded = read_axolotl(trained + "fsdp_config: {reshard_after_forward: true}\n")
    assert read_axolotl(trained).reduce_dtype is None
    assert (sharded.zero, sharded.reduce_dtype) == (3, "bf16")


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "trl", "axolotl", "llamafactory"])
def test_what_a_framework_does_by_itself_is_represented_and_else_it_is_said(target: str) -> None:
    def unsaid(dtype: str | None) -> str:
        recipe = Recipe(precision="bf16", reduce_dtype=dtype)
        made = job("llama3-8b", data=16, zero_stage=3, global_batch=64, recipe=recipe)
        return " ".join(bundle(made, target).not_represented)

    assert "reduce dtype" not in unsaid("bf16")
    assert "gradients summed" not in unsaid("bf16")
    for wide in ("fp32", None):
        said = "gradients summed in fp32" in unsaid(wide)
        assert said == (target not in ("deepspeed", "llamafactory"))
