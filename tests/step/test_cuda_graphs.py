"""CUDA graphs: a pool that serves nothing else, the host's time it saves, words of frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import trainwright
from export_jobs import bundle, job
from trainwright.costing.layer import KEEP_ALL, Platform, RecomputeRule, price_layer
from trainwright.errors import Inexpressible, InvalidInput
from trainwright.formats import catalog
from trainwright.formats.calibration_toml import framework_memory
from trainwright.frameworks.jobs.bridge import read_bridge
from trainwright.frameworks.jobs.megatron import read_megatron
from trainwright.frameworks.jobs.pretraining import read_primus
from trainwright.model import CudaGraph, LayerKind, Phase, Recipe, RunShape, layer_graph
from trainwright.planning.reasons.improve import changes_that_fit
from trainwright.plans.configuration import USUAL_OVERHEADS, Configuration, run_shape
from trainwright.plans.plan import Parallelism
from trainwright.profile import Recompute
from trainwright.step.figures import MemoryFigures, memory_figures, missing_bytes
from trainwright.step.predict import price_configuration

MODEL = catalog.model("llama3-8b").config
CLUSTER = catalog.cluster("dgx-h100")
DEVICE = CLUSTER.accelerator
MEGATRON = framework_memory("megatron")
LOCAL, OF_TE, OF_STEP = (
    CudaGraph.LOCAL,
    CudaGraph.TRANSFORMER_ENGINE,
    CudaGraph.FULL_ITERATION,
)
RUN = Configuration(
    parallelism=Parallelism(tensor=2, pipeline=4, sequence_parallel=True, zero_stage=1),
    microbatch_size=1,
    global_batch=16,
    sequence_length=8192,
    overheads=USUAL_OVERHEADS,
)
HIDDEN = 8192 * 4096 * 2 / 2  # bytes of a hidden state on one of two tensor ranks
BLOCKS = 32 // 4
MODULES = ("attn", "moe_router", "moe_preprocess")


def figures(
    kind: CudaGraph, modules: tuple[str, ...] = (), run: Configuration = RUN
) -> tuple[MemoryFigures, ...]:
    recipe = replace(run.recipe, cuda_graph=kind, cuda_graph_modules=modules)
    run = replace(run, recipe=recipe)
    step = price_configuration(MODEL, CLUSTER, run)
    return memory_figures(MODEL, run, step, MEGATRON, device=DEVICE)


def added(kind: CudaGraph, modules: tuple[str, ...] = ()) -> list[float]:
    """Bytes that graphs add to what tensors hold at most, by rank."""
    pairs = zip(figures(kind, modules), figures(CudaGraph.NONE), strict=True)
    return [a.allocated.typical_bytes - b.allocated.typical_bytes for a, b in pairs]


def test_transformer_engine_keeps_an_output_beside_the_input_it_is_copied_into() -> None:
    """Rank r of 4 has 4 - r microbatches in flight; the first receives nothing."""
    copies = [HIDDEN * (4 - rank) * BLOCKS + HIDDEN for rank in range(4)]
    received = [0, *(HIDDEN * (4 - rank) for rank in (1, 2, 3))]
    found = added(OF_TE)
    assert found[:3] == pytest.approx([a + b for a, b in zip(copies, received, strict=True)][:3])
    own = added(LOCAL)  # writes where the next one reads
    assert own[:3] == pytest.approx(received[:3])
    assert found[3] - own[3] == pytest.approx(copies[3])


def test_the_loss_cannot_use_what_the_pool_needs_for_a_moment() -> None:
    shape = run_shape(RUN, precision="bf16")
    (block,) = {
        layer.transient_bytes
        for layer in layer_graph(MODEL, shape).classes
        if layer.kind is LayerKind.BLOCK
    }
    assert added(LOCAL)[3] == pytest.approx(HIDDEN + block)
    partly = added(LOCAL, ("attn",))[3]
    assert HIDDEN < partly <= HIDDEN + block


def test_graphs_of_a_step_add_nothing_to_it_but_stay_during_the_update() -> None:
    assert added(OF_STEP) == [0.0] * 4
    deepspeed = framework_memory("deepspeed")  # whose update makes tensors of its own
    held = []
    for kind in (CudaGraph.NONE, OF_STEP):
        recipe = Recipe(cuda_graph=kind, gradient_dtype="bf16")
        run = replace(RUN, recipe=recipe)
        step = price_configuration(MODEL, CLUSTER, run)
        last = memory_figures(MODEL, run, step, deepspeed, device=DEVICE)[0]
        held.append(last.allocated.typical_bytes)
    assert held[1] > held[0]


def test_a_run_that_fits_without_graphs_alone_is_told_so() -> None:
    step = price_configuration(MODEL, CLUSTER, RUN)
    recipe = Recipe(cuda_graph=OF_TE)
    with_graphs = replace(RUN, recipe=recipe)
    needed = [
        max(rank.needed.typical_bytes for rank in figures(kind)) for kind in (CudaGraph.NONE, OF_TE)
    ]
    small = replace(DEVICE, memory_bytes=sum(needed) / 2, usable_fraction=1.0)

    def fits(model: Any, run: Configuration, step: Any) -> bool:
        return missing_bytes(model, run, step, small, MEGATRON) <= 0

    assert fits(MODEL, RUN, step)
    assert not fits(MODEL, with_graphs, price_configuration(MODEL, CLUSTER, with_graphs))
    changes = changes_that_fit(MODEL, CLUSTER, with_graphs, fits)
    assert "--cuda-graph none" in [change.options for change in changes]


# The host
# --------


def forward_s(name: str, kind: CudaGraph, modules: tuple[str, ...], host_pass_s: float) -> float:
    run = RunShape(
        microbatch_size=1, sequence_length=512, cuda_graph=kind, cuda_graph_modules=modules
    )
    device = replace(DEVICE, host_pass_s=host_pass_s)
    graph = layer_graph(catalog.model(name).config, run)
    block = next(layer for layer in graph.classes if layer.kind is LayerKind.BLOCK)
    platform = Platform(accelerator=device, dtype="bf16", hops={})
    rules: dict[Recompute, RecomputeRule] = {Recompute.NONE: KEEP_ALL}
    (price,) = price_layer(block, run, rules, platform)
    return price.phase_s[Phase.FORWARD]


@pytest.mark.parametrize("kind", [LOCAL, OF_TE, OF_STEP])
def test_recorded_blocks_do_not_wait_for_the_host(kind: CudaGraph) -> None:
    assert forward_s("llama3-8b", kind, (), 1.0) == forward_s("llama3-8b", kind, (), 0.0)
    assert forward_s("llama3-8b", CudaGraph.NONE, (), 1.0) == pytest.approx(1.0)


def test_the_host_starts_what_is_not_recorded() -> None:
    """A pass with experts takes the host twice as long; what is recorded of it is left out."""
    steps = [(), ("moe_router",), MODULES, ("attn", "moe")]
    found = [
        forward_s("mixtral-8x7b", LOCAL if modules else CudaGraph.NONE, modules, 1.0)
        for modules in steps
    ]
    assert found[0] == pytest.approx(2.0)
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found)
    assert found[-1] == forward_s("mixtral-8x7b", LOCAL, ("attn", "moe"), 0.0)
    both = forward_s("llama3-8b", LOCAL, ("attn", "mlp"), 1.0)  # of a dense block nothing is left
    assert both == forward_s("llama3-8b", LOCAL, (), 1.0)


# What cannot be recorded
# -----------------------


@pytest.mark.parametrize(
    ("kind", "modules", "problem"),
    [
        (LOCAL, ("heads",), "must be one of attn, mlp"),
        (OF_STEP, ("attn",), "must be left out beside cuda_graph full_iteration"),
        (CudaGraph.NONE, ("attn",), "must be left out beside cuda_graph none"),
        (LOCAL, ("moe", "moe_router"), "must not name both"),
        (OF_TE, ("moe_preprocess",), "must name moe_router beside"),
    ],
)
def test_modules_that_exclude_one_another_are_refused(
    kind: CudaGraph, modules: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Recipe(cuda_graph=kind, cuda_graph_modules=modules)


def test_experts_are_recorded_where_their_tokens_are_counted_before() -> None:
    asked: dict[str, Any] = {
        "model": "mixtral-8x7b",
        "cluster": "dgx-h100",
        "nodes": 2,
        "ep": 8,
        "tp": 2,
        "dp": 8,
        "global_batch": 16,
        "sequence": 4096,
        "cuda_graph": "local",
    }
    with pytest.raises(InvalidInput, match="whose numbers of tokens are not known"):
        trainwright.estimate(**asked)
    assert trainwright.estimate(**asked, capacity_factor=1.0).step_time_s > 0
    assert trainwright.estimate(**asked, cuda_graph_modules=MODULES).step_time_s > 0


@pytest.mark.slow
def test_blocks_that_are_recomputed_whole_have_no_graphs_of_their_own() -> None:
    asked: dict[str, Any] = {
        "model": "llama3-8b",
        "cluster": "dgx-h100",
        "nodes": 1,
        "global_batch": 16,
        "sequence": 4096,
    }
    with pytest.raises(InvalidInput, match="must be full_iteration where blocks are recomputed"):
        trainwright.estimate(**asked, dp=8, zero=1, recompute="full", cuda_graph="local")
    free = trainwright.plan(**asked, cuda_graph="transformer_engine")
    assert "full" not in {mode for stage in free.stages for mode in stage.options.values()}
    with pytest.raises(InvalidInput, match="must be full_iteration where blocks may be"):
        trainwright.plan(**asked, cuda_graph="local", recompute="full")
    assert trainwright.plan(**asked, cuda_graph="full_iteration", recompute="full").stages


# In the words of frameworks
# --------------------------


@pytest.mark.parametrize(
    ("kind", "modules"), [(LOCAL, ()), (OF_TE, MODULES), (OF_TE, ("attn",)), (OF_STEP, ())]
)
@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "primus"])
def test_graphs_are_asked_for_and_read_again(
    target: str, kind: CudaGraph, modules: tuple[str, ...]
) -> None:
    degrees = {"data": 16, "expert": 8, "expert_tensor": 1, "zero_stage": 1, "global_batch": 64}
    made = job("deepseek-v2", recipe=Recipe(cuda_graph=kind, cuda_graph_modules=modules), **degrees)
    files = bundle(made, target).files
    file, read = {
        "megatron": ("megatron_args.sh", read_megatron),
        "megatron-bridge": ("trainwright_recipe.py", read_bridge),
        "primus": ("primus.yaml", read_primus),
    }[target]
    stated = read(files[file])
    assert (stated.cuda_graph, stated.cuda_graph_modules) == (str(kind), modules or None)
    assert stated.unknown == ()
    text = "".join(files.values())
    nan = {"megatron": "--no-check-for-nan", "megatron-bridge": "check_for_nan_in_loss"}
    assert (nan.get(target, "check_for_nan") in text) == (kind is OF_STEP)


def test_who_records_nothing_says_so() -> None:
    made = job("llama3-8b", recipe=Recipe(cuda_graph=LOCAL), data=8, zero_stage=3, global_batch=8)
    with pytest.raises(Inexpressible, match="cuda_graph"):
        bundle(made, "torchtitan@0.3")


@pytest.mark.parametrize(
    ("flags", "kind", "modules"),
    [
        ("--enable-cuda-graph", "local", None),
        ("--external-cuda-graph --cuda-graph-scope attn", "transformer_engine", ("attn",)),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "full_iteration", None),
        ("--cuda-graph-impl full_iteration", "full_iteration", None),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-scope full",
            "transformer_engine",
            None,
        ),
        ("--cuda-graph-impl local --cuda-graph-modules attn mlp", "local", ("attn", "mlp")),
        ("--cuda-graph-impl none", None, None),
        ("", None, None),
    ],
)
def test_flags_of_all_versions_are_read(
    flags: str, kind: str | None, modules: tuple[str, ...] | None
) -> None:
    given = f"--num-layers 4 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 {flags}"
    found = read_megatron(given)
    assert (found.cuda_graph, found.cuda_graph_modules) == (kind, modules)
    assert not any("cuda" in note for note in (*found.notes, *found.unknown))
