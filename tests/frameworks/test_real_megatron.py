"""Exported fields and our rules against megatron-core itself (0.16.1), on a CPU, no process group.

Where Megatron and we judge alike, both verdicts are asserted; where it accepts what cannot train,
the difference is pinned by the name of the rule.
"""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from export_jobs import bundle, golden_jobs, jobs
from export_jobs import config_of as config_of_model
from export_jobs import job as job_of
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.frameworks.megatron import (
    DECIDED,
    bridge_settings,
    format_layout,
    layout_of,
    megatron_fields,
)
from trainwright.frameworks.megatron_rules import MODULES, MegatronSetup, broken_megatron_rules
from trainwright.frameworks.nearest import check_bundle
from trainwright.model import Offload, Recipe
from trainwright.model.recipe import (
    OFFLOAD_MODULES,
    model_module_faults,
    offload_module_faults,
)
from trainwright.plans.capability import Demands
from trainwright.plans.job import Job
from trainwright.plans.plan import PIPELINE_INSIDE

pytestmark = pytest.mark.exports
pytest.importorskip("megatron.core", reason="needs megatron-core==0.16.1: make test-all")

GOOD = MegatronSetup(
    layers=8, hidden=64, heads=8, kv_groups=4, sequence=128, world=32, tp=2, pp=2,
    sequence_parallel=True, global_batch=32, max_connections="1",
)  # fmt: skip


GOLDEN = (
    *("llama3-70b uneven loop", "deepseek-v3 with mtp", "mixtral ep 8"),
    "deepseek-v2 once to a node",
)


def load(path: str) -> Any:
    module, _, name = path.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(f"megatron.core.{module}"), name)


def fields_of(path: str) -> set[str]:
    return {field.name for field in dataclasses.fields(load(path))}


def test_every_field_that_is_written_exists() -> None:
    config = fields_of("transformer.transformer_config.TransformerConfig")
    latent = fields_of("transformer.transformer_config.MLATransformerConfig")
    ddp = fields_of("distributed.distributed_data_parallel_config.DistributedDataParallelConfig")
    optimizer = fields_of("optimizer.optimizer_config.OptimizerConfig")
    for job in golden_jobs().values():
        found = megatron_fields(job)
        assert set(found.model) <= config
        assert set(found.latent) <= latent
        assert set(found.ddp) <= ddp
        assert set(found.optimizer) <= optimizer


def test_every_key_of_bridge_exists() -> None:
    config = fields_of("transformer.transformer_config.TransformerConfig")
    assert set(DECIDED) <= config
    ddp = fields_of("distributed.distributed_data_parallel_config.DistributedDataParallelConfig")
    keys = bridge_settings(golden_jobs()["llama3-70b uneven loop"])
    assert {key.removeprefix("ddp.") for key in keys if key.startswith("ddp.")} <= ddp


def test_bridge_sets_a_recipe_that_megatron_accepts() -> None:
    job = golden_jobs()["llama3-70b uneven loop"]
    names: dict[str, Any] = {}
    exec(bundle(job, "megatron-bridge").files["trainwright_recipe.py"], names)

    class Part:
        pass

    recipe: Any = Part()
    for part in ("model", "train", "ddp", "optimizer", "checkpoint"):
        setattr(recipe, part, Part())
    recipe.model.virtual_pipeline_model_parallel_size = 3  # a recipe's own, to be replaced
    names["apply"](recipe)
    config = fields_of("transformer.transformer_config.TransformerConfig")
    values = {k: v for k, v in vars(recipe.model).items() if k in config}
    model = {k: v for k, v in megatron_fields(job).model.items() if k not in values}
    made = construct({**model, **values})
    assert made.virtual_pipeline_model_parallel_size == 5


def construct(values: dict[str, Any]) -> Any:
    import torch

    given = {"pipeline_dtype": torch.bfloat16, "bias_activation_fusion": False, **values}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load("transformer.transformer_config.TransformerConfig")(**given)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_jobs_are_accepted(name: str) -> None:
    job = golden_jobs()[name]
    assert "accepts" in check_bundle(bundle(job, "megatron"), job)


@pytest.mark.parametrize("name", ["llama3-70b uneven loop", "deepseek-v3 with mtp"])
def test_layouts_give_every_rank_the_planned_blocks(name: str) -> None:
    job = golden_jobs()[name]
    layout_class = load("transformer.pipeline_parallel_layer_layout.PipelineParallelLayerLayout")
    kinds = load("transformer.enums.LayerType")
    ranks = job.degrees.pipeline
    text = layout_of(job)
    parsed = layout_class.from_str(text, ranks)
    parsed.validate_layer_layout(job.model.num_layers, job.model.num_mtp_layers or None)
    for number, stage in enumerate(job.stages):
        held = parsed.layout[number % ranks][number // ranks]
        assert held.count(kinds.decoder) == len(stage.blocks)


@given(job=jobs())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_is_exported_is_accepted(job: Job) -> None:
    try:
        found = bundle(job, "megatron")
    except Inexpressible:
        return
    except InvalidInput as error:  # Megatron's experts fill what lies inside the pipeline
        assert job.demands.axis_order == PIPELINE_INSIDE
        assert [fault.path for fault in error.faults] == ["axis_order"]
        return
    assert "accepts" in check_bundle(found, job)


def config_of(setup: MegatronSetup) -> dict[str, Any]:
    """The setup as Megatron's configuration object takes it."""
    values: dict[str, Any] = {
        "num_layers": setup.layers,
        "hidden_size": setup.hidden,
        "num_attention_heads": setup.heads,
        "num_query_groups": setup.kv_groups,
        "kv_channels": setup.head_size,
        "tensor_model_parallel_size": setup.tp,
        "pipeline_model_parallel_size": setup.pp,
        "context_parallel_size": setup.cp,
        "expert_model_parallel_size": setup.ep,
        "expert_tensor_parallel_size": 1,
        "sequence_parallel": setup.sequence_parallel,
        "virtual_pipeline_model_parallel_size": setup.virtual_stages,
        "num_layers_in_first_pipeline_stage": setup.first_layers,
        "num_layers_in_last_pipeline_stage": setup.last_layers,
        "account_for_embedding_in_pipeline_split": setup.account_embedding,
        "account_for_loss_in_pipeline_split": setup.account_loss,
        "num_moe_experts": setup.experts,
        "moe_grouped_gemm": setup.grouped_gemm,
        "multi_latent_attention": setup.latent_attention,
        "mtp_num_layers": setup.mtp_layers or None,
        "recompute_granularity": setup.recompute,
        "recompute_method": setup.recompute_method,
        "recompute_num_layers": setup.recompute_layers,
        "recompute_modules": list(setup.recompute_modules) or None,
        "cpu_offloading": setup.activation_offload,
        "cpu_offloading_num_layers": 1 if setup.activation_offload else 0,
        "fine_grained_activation_offloading": bool(setup.offload_modules),
        "offload_modules": list(setup.offload_modules),
        "bf16": True,
        "add_bias_linear": False,
    }
    if setup.layout is not None:
        values["pipeline_model_parallel_layout"] = "|".join(setup.layout)
    if not setup.pipeline_dtype:
        values["pipeline_dtype"] = None
    if setup.shared_overlap:
        values |= {
            "moe_shared_expert_overlap": True,
            "moe_shared_expert_intermediate_size": 64,
            "moe_token_dispatcher_type": "alltoall",
        }
    return values


def megatron_refuses(setup: MegatronSetup) -> bool:
    try:
        construct(config_of(setup))
    except (AssertionError, ValueError, NotImplementedError):
        return True
    return False


def test_what_both_accept() -> None:
    assert broken_megatron_rules(GOOD) == ()
    assert not megatron_refuses(GOOD)


EVEN = ("Ett", "ttttttL")
REFUSED_BY_BOTH = {
    3: {"heads": 6, "hidden": 48, "tp": 4, "kv_groups": 2},
    4: {"kv_groups": 6, "tp": 4, "heads": 12, "hidden": 96},
    7: {"tp": 1, "sequence_parallel": True},
    12: {"layout": ("Ett", "ttt", "tttL")},
    13: {"layout": ("Ett", "tttttttL")},
    14: {"layout": ("Ettm", "ttttttL"), "mtp_layers": 1},
    15: {"layout": EVEN, "account_loss": True},
    19: {"recompute": "full", "recompute_method": None, "recompute_layers": 1},
    20: {"recompute": "selective", "recompute_modules": ("everything",)},
    21: {"recompute": "selective", "recompute_modules": ("moe_act",)},
    22: {"activation_offload": True},
    23: {"pipeline_dtype": False},
}


@pytest.mark.parametrize("modules", [("attn_proj",), ("everything",), ("core_attn",)])
def test_modules_on_the_host_are_judged_alike(modules: tuple[str, ...]) -> None:
    setup = replace(GOOD, offload_modules=modules)
    assert megatron_refuses(setup) == any(offload_module_faults(modules))
    assert megatron_refuses(replace(setup, pp=1, activation_offload=True))


@pytest.mark.parametrize("name", ["llama3-8b", "deepseek-v3"])
def test_every_module_that_is_written_is_known(name: str) -> None:
    """Of a model with experts and latent attention every one, of others those that they have."""
    model = config_of_model(name)
    modules = tuple(m for m in OFFLOAD_MODULES if not any(model_module_faults(model, (m,))))
    assert (modules == tuple(OFFLOAD_MODULES)) == (name == "deepseek-v3")
    recipe = Recipe(offload=Offload(activations=1.0), offload_modules=modules)
    made = job_of(name, data=8, zero_stage=1, global_batch=16, recipe=recipe)
    assert "accepts" in check_bundle(bundle(made, "megatron"), made)


@pytest.mark.parametrize("number", REFUSED_BY_BOTH)
def test_a_broken_rule_is_refused_by_both(number: int) -> None:
    setup = replace(GOOD, **REFUSED_BY_BOTH[number])
    assert f"(rule {number})" in " ".join(map(str, broken_megatron_rules(setup)))
    assert megatron_refuses(setup)


# What the configuration object accepts although it cannot train, or trains something else.
ACCEPTED_BY_MEGATRON = {
    6: {"sequence": 129},
    8: {"ep": 2, "experts": 8, "sequence_parallel": False},
    9: {"ep": 3, "experts": 8, "world": 48, "global_batch": 48},
    11: {"layers": 10, "pp": 4},
    16: {"layout": ("Etttttttt", "", "t", "L"), "pp": 4, "layers": 9},
    19: {"recompute": "full", "recompute_method": "block", "recompute_layers": 99},
    20: {"recompute": "selective", "recompute_method": "block"},
}


@pytest.mark.parametrize("number", ACCEPTED_BY_MEGATRON)
def test_a_rule_that_the_configuration_object_does_not_know(number: int) -> None:
    setup = replace(GOOD, **ACCEPTED_BY_MEGATRON[number])
    assert f"(rule {number})" in " ".join(map(str, broken_megatron_rules(setup)))
    assert not megatron_refuses(setup)


@pytest.mark.parametrize(
    "changes",
    [{"distributed_optimizer": False}, {"distributed_optimizer": True, "optimizer": "sgd"}],
)
def test_state_below_32_bits_is_refused_by_both(changes: dict[str, Any]) -> None:
    setup = replace(GOOD, moments=("fp16", "fp16"), **changes)
    assert "(rule 30)" in " ".join(map(str, broken_megatron_rules(setup)))
    with pytest.raises(AssertionError, match="use-precision-aware-optimizer only supported with"):
        load("optimizer.optimizer_config.OptimizerConfig")(
            optimizer=setup.optimizer,
            use_distributed_optimizer=setup.distributed_optimizer,
            use_precision_aware_optimizer=True,
        )


def test_the_known_modules_are_those_of_megatron() -> None:
    for module in MODULES:
        one = replace(
            GOOD,
            recompute="selective",
            recompute_modules=(module,),
            experts=8,
            grouped_gemm=True,
            latent_attention=True,
        )
        assert broken_megatron_rules(one) == ()
        values = config_of(one)
        assert megatron_accepts(lambda v=values: construct(v)), module


def megatron_accepts(make: Callable[[], Any]) -> bool:
    try:
        make()
    except AssertionError:
        return False
    except ValueError as error:
        return "recompute" not in str(error)
    return True


def test_runs_and_groups_read_as_megatron_reads_them() -> None:
    layout_class = load("transformer.pipeline_parallel_layer_layout.PipelineParallelLayerLayout")
    stages = ("Ettt", *["tt"] * 29, "t" * 7, "ttm", "L")
    parsed = layout_class.parse_str_to_list(format_layout(stages))
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    assert tuple("".join(letters[kind.name] for kind in stage) for stage in parsed) == stages


def test_demands_name_no_framework_twice() -> None:
    assert Demands().zero_stage == 0
