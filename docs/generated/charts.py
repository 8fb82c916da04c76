"""The chart of each algorithm's page, from the library itself: `charts()` has all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

import trainwright
from generated.chart import Axis, Bar, Series, bars_chart, points_chart, rows_chart
from trainwright.chips.layer_schedule import CoreOperator, LayerProblem, Unit, schedule_layer
from trainwright.chips.space import area_parts_mm2
from trainwright.cluster import REFERENCE_DESIGN, Surroundings
from trainwright.costing.estimate import Estimator
from trainwright.costing.tiled import Product, machine_of, product_times
from trainwright.documents.schedule import FrontPoint
from trainwright.formats import catalog
from trainwright.planning.bounds.stages import StageKinds
from trainwright.planning.question.question import ModelQuestion, Point, Workload, estimate_profile
from trainwright.planning.splits.types import SplitQuestion, best_family_split
from trainwright.plans.plan import Parallelism
from trainwright.profile import Recompute
from trainwright.units import GIB

EXAMPLES = Path(__file__).parents[2] / "examples"


def planner() -> str:
    """Plans of one model: time against memory, and the bound below all of them."""
    found = trainwright.plan(
        "llama3-70b",
        cluster="dgx-h100",
        framework="any",
        nodes=8,
        global_batch=128,
        sequence=8192,
        schedule="1f1b,zb-h1",
        top=40,
    ).document
    best = (max(found.peak_memory_bytes_per_rank) / GIB, found.step_time_s)
    others = [(each.peak_memory_bytes / GIB, each.step_time_s) for each in found.alternatives]
    memory = [point[0] for point in (best, *others)]
    bound = [(min(memory), found.lower_bound_s), (max(memory), found.lower_bound_s)]
    return points_chart(
        "Llama 3 70B on 64 H100: the best plan, the forty next best, the bound",
        [
            Series(name="next best", points=others),
            Series(name="best", points=[best]),
            Series(name="no plan is faster", points=bound, line=True),
        ],
        x=Axis(label="GiB on the fullest device"),
        y=Axis(label="seconds of a step"),
    )


def partitioning() -> str:
    """Where the stages of the best plan and of an equal split spend their time."""
    bars, bound = [], None
    for planner, name in (("exact", "best"), ("equal", "equal")):
        document = trainwright.plan(
            str(EXAMPLES / "profile.json"), devices=12, memory="2GiB", planner=planner
        ).document
        bound = document.lower_bound_s if planner == "exact" else bound
        for index, stage in enumerate(document.stages):
            spent = stage.breakdown
            parts = (
                ("layers", spent.compute_s),
                ("traffic", spent.edge_traffic_s),
                ("gradients", spent.gradient_sync_s),
            )
            degrees = f"d {stage.data_parallel}, t {stage.tensor_parallel}"
            words = f"{len(stage.layers)} layers, {degrees}, {stage.num_recomputed} recompute"
            shown = [(part, 1e3 * length) for part, length in parts]
            bars.append(Bar(name=f"{name}, stage {index}", parts=shown, note=words))
    return bars_chart(
        "12 devices of 2 GiB: no plan's slowest stage is shorter than the dashed line",
        bars,
        x=Axis(label="milliseconds per sample"),
        limit=1e3 * bound if bound else None,
    )


def family_splits() -> str:
    """Work of each rank, blocks dealt out evenly and balanced against the head."""
    cluster = catalog.cluster("dgx-h100").with_nodes(8)
    question = ModelQuestion(
        model=catalog.model("llama3-70b").config,
        cluster=cluster,
        workload=Workload(global_batch=128, sequence_length=8192),
        num_devices=64,
    )
    estimator = Estimator(model=question.model, cluster=cluster)
    profile = estimate_profile(estimator, question, Point(microbatch_size=1, tensor=4))
    degrees = Parallelism(
        tensor=4, pipeline=8, data=2, virtual_stages=5, sequence_parallel=True, zero_stage=1
    )
    asked = SplitQuestion(
        kinds=StageKinds.of(profile),
        degrees=degrees,
        cluster=cluster,
        family="interleaved",
        num_microbatches=64,
    )
    split = best_family_split(asked)
    costs = profile.costs
    kept = [mode is Recompute.NONE for mode in costs.recompute]
    rows = [
        next(row for row in range(costs.class_offsets[c], costs.class_offsets[c + 1]) if kept[row])
        for c in (layer.layer_class for layer in profile.structure.layers)
    ]
    spent_ms = 1e3 * np.asarray(costs.duration_s)[rows]
    last = len(spent_ms)
    even = [0, *range(3, 80, 2), last]
    bars = []
    for name, cuts in (("even", even), ("balanced", list(split.cuts))):
        work = np.zeros(8)
        for stage, (a, b) in enumerate(pairwise(cuts)):
            work[stage % 8] += spent_ms[a:b].sum()
        slowest = work.argmax()
        bars += [
            Bar(
                name=f"{name}, rank {rank}",
                parts=[("forward and backward", length)],
                note="longest" if rank == slowest else "",
            )
            for rank, length in enumerate(work)
        ]
    return bars_chart(
        "Llama 3 70B, eight ranks with five stages each: work of a microbatch",
        bars,
        x=Axis(label="milliseconds per microbatch"),
    )


def placement() -> str:
    """The best batch by devices, and what the strategy stated in the file takes."""
    case = str(EXAMPLES / "placement.json")
    counts = (4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32)
    found = [trainwright.plan(case, devices=count).document for count in counts]
    best = [
        (float(count), each.time_per_batch_s)
        for count, each in zip(counts, found, strict=True)
        if each.time_per_batch_s is not None
    ]
    stated = found[-1].fixed_strategy
    series = [Series(name="best placement", points=best, line=True)]
    if stated is not None and stated.time_per_batch_s is not None:
        point = (32.0, stated.time_per_batch_s)
        series.append(Series(name="the stated strategy", points=[point]))
    return points_chart(
        "examples/placement.json: the best placement at each number of devices",
        series,
        x=Axis(label="devices", least=0.0),
        y=Axis(label="seconds of a batch", least=0.0),
    )


def schedule_search() -> str:
    """Makespan against memory: what names reach, what a search adds, what no schedule passes."""
    asked = {
        "ranks": 4,
        "microbatches": 12,
        "forward": "3ms",
        "input_grad": "4ms",
        "weight_grad": "2ms",
        "comm": "0.3ms",
        "placement": "v",
    }
    named = trainwright.schedule(pareto=True, **asked).document.points
    found = trainwright.schedule(pareto=True, search=True, evaluations=4000, **asked).document
    return points_chart(
        "Four ranks in V, 12 microbatches: named schedules and searched ones",
        [
            Series(name="by name", points=[_front(point) for point in named]),
            Series(name="searched", points=[_front(point) for point in found.points]),
            Series(
                name="no schedule of this memory is shorter",
                points=[(p.peak_activations, 1e3 * p.lower_bound_s) for p in found.points],
                line=True,
            ),
        ],
        x=Axis(label="chunk activations on the fullest rank"),
        y=Axis(label="makespan, ms"),
    )


def _front(point: FrontPoint) -> tuple[float, float]:
    return (float(point.peak_activations), 1e3 * point.makespan_s)


def layer_schedule() -> str:
    """The example of the page: which core runs what, when."""
    matmul = CoreOperator(unit=Unit.TENSOR, single_s=8e-3, spread_s=3e-3)
    norm = CoreOperator(unit=Unit.VECTOR, single_s=2e-3)
    reduce = CoreOperator(unit=Unit.LINK, single_s=5e-3)
    problem = LayerProblem(
        operators=(norm, matmul, matmul, matmul, reduce, norm),
        edges=((0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 5), (4, 5)),
        num_tensor_cores=2,
        num_vector_cores=1,
    )
    words = ("norm", "product 1", "product 2", "product 3", "reduce", "norm")
    found = schedule_layer(problem)
    rows: dict[str, list[tuple[float, float, str]]] = {
        name: [] for name in ("tensor core 0", "tensor core 1", "vector core", "link")
    }
    for index, run in enumerate(found.runs):
        bar = (1e3 * run.start_s, 1e3 * run.end_s, words[index])
        names = [f"tensor core {core}" for core in run.tensor_cores]
        names += ["vector core"] * bool(run.vector_cores)
        for name in names or ["link"]:
            rows[name].append(bar)
    title = "Products are spread over both tensor cores; the link works beside them"
    return rows_chart(title, list(rows.items()), x=Axis(label="milliseconds"))


def chip_template() -> str:
    """Area by part of the reference design and of designs that differ in one way."""
    whole = REFERENCE_DESIGN
    designs = {
        "reference": whole,
        "half the cores": replace(whole, num_tc=whole.num_tc // 2),
        "half the width": replace(whole, width=whole.width // 2),
        "a quarter of the buffer": replace(whole, glb_bytes=whole.glb_bytes // 4),
    }
    bars = []
    for name, design in designs.items():
        parts = [(part.replace("_", " "), a) for part, a in area_parts_mm2(design).items()]
        total = f"{sum(area for _, area in parts):.0f} mm²"
        bars.append(Bar(name=name, parts=parts, note=total))
    return bars_chart("Where the area of cores and buffers goes", bars, x=Axis(label="mm²"))


def chip_estimator() -> str:
    """The share of a chip's peak that products of one shape but for m reach."""
    machine = machine_of(REFERENCE_DESIGN, Surroundings())
    series = []
    rows = np.unique(np.geomspace(16, 8192, 60).astype(int))
    for width in (1024, 4096, 12288):
        products = [Product(m=int(m), n=width, k=width) for m in rows]
        seconds = product_times([machine], products).seconds[0]
        flops = np.array([product.flops for product in products])
        shares = flops / (seconds * machine.peak_flops_per_s)
        points = list(zip(np.log2(rows).tolist(), (100 * shares).tolist(), strict=True))
        series.append(Series(name=f"n = k = {width:,}", points=points, line=True))
    return points_chart(
        "Small products cannot fill the arrays",
        series,
        x=Axis(label="log2 of the rows m"),
        y=Axis(label="percent of the peak", least=0.0, most=100.0),
    )


def chip_search() -> str:
    """The front of throughput and area over all designs."""
    found = trainwright.codesign(["bert-large"], devices=64, max_area=60).document
    front = [(point.area_mm2, point.tokens_per_s / 1e6) for point in found.pareto]
    best = (found.best.area_mm2, found.best.tokens_per_s / 1e6)
    return points_chart(
        "BERT large on 64 chips of at most 60 mm²: the front, and the fastest design",
        [Series(name="front", points=front), Series(name="fastest", points=[best])],
        x=Axis(label="mm² of cores and buffers", least=0.0),
        y=Axis(label="million tokens per second", least=0.0),
    )


def costs() -> str:
    """Memory by class of every rank of one run, with the limit."""
    found = trainwright.estimate(
        "llama3-70b", cluster="dgx-h100", nodes=8, tp=4, pp=8, global_batch=128, sequence=8192
    ).document
    classes = ("weight", "gradient", "optimizer", "activation", "logits", "transient", "buffer")
    bars = []
    for rank in found.memory:
        parts = [(name, getattr(rank, f"{name}_bytes") / GIB) for name in classes[:4]]
        rest = sum(getattr(rank, f"{name}_bytes") for name in classes[4:]) + rank.workspace_bytes
        parts.append(("logits, buffers and the rest", rest / GIB))
        bars.append(
            Bar(
                name=f"rank {rank.rank}",
                parts=parts,
                note=f"{rank.microbatches_in_flight} in flight",
            )
        )
    return bars_chart(
        "Llama 3 70B, tensor 4, pipeline 8, data 2: memory of one device of each rank",
        bars,
        x=Axis(label="GiB"),
        limit=found.memory_limit_bytes / GIB,
    )


def charts() -> dict[str, Callable[[], str]]:
    """The function that draws each picture, by the name of its page."""
    drawn = (planner, partitioning, family_splits, placement, schedule_search)
    drawn += (layer_schedule, chip_template, chip_estimator, chip_search, costs)
    return {function.__name__.replace("_", "-"): function for function in drawn}
