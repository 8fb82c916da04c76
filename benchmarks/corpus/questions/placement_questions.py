"""Questions about placement problems, in the format of PHAZE."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Final

from question_lines import compact, edges_of, plan_of, question, rounded, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from question_lines import Options, Question

PLACEMENT: Final[Options] = {
    "devices": 8,
    "memory": "16GB",
    "bandwidth": "25GB/s",
    "microbatches": 32,
    "cost-model": "native",
    "planner": "exact",
}


def phaze(
    name: str,
    shape: str,
    count: int,
    *,
    widths: Sequence[int] = (1,),
    optimizer: str = "Adam",
    recompute: bool = True,
    split: str = "all",
    fixed: tuple[int, int, int] | None = None,
) -> dict[str, Any]:
    """A placement problem; `split` says which layers a width splits: all, some or none."""
    rng = Random(name)
    joins = edges_of(shape, count, rng)
    costs = [(0.5 + rng.random(), 0.5 + rng.random(), 0.5 + rng.random()) for _ in range(count)]
    sent = [rounded(1.6e7 * (0.5 + rng.random())) for _ in joins]
    nodes, edges = {}, {}
    for t in widths:
        rows = []
        for i, (time, weight, kept) in enumerate(costs):
            is_split = t > 1 and (split == "all" or (split == "some" and i % 2 == 0))
            share = (1 + 0.1 * (t - 1)) / t if is_split else 1.0
            part = t if is_split else 1
            rows.append(
                {
                    "id": i,
                    "parameterSize": rounded(2e8 * weight / part),
                    "activationSize": rounded(2e8 * kept / part),
                    "optimalLatencyFw": rounded(0.004 * time * share),
                    "optimalLatencyBw": rounded(0.008 * time * share),
                    "isTensorParallelized": is_split,
                }
            )
        nodes[str(t)] = rows
        edges[str(t)] = [
            {"sourceId": u, "destId": v, "communicationCost": size}
            for (u, v), size in zip(joins, sent, strict=True)
        ]
    made: dict[str, Any] = {
        "maxMemoryPerDevice": 16e9,
        "maxDevices": 8,
        "bandwidth": 25e9,
        "mbsInBatch": 32,
        "nodes": nodes,
        "edges": edges,
        "activationRecomputation": recompute,
        "optimizerAlgorithm": optimizer,
    }
    if fixed is not None:
        names = ("fixedPP", "fixedTMPC", "fixedDP")
        made |= dict(zip(names, fixed, strict=True)) | {"numTransformerLayers": count - 2}
    return made


def placement_questions() -> Iterator[Question]:
    chains: list[tuple[str, int, dict[str, Any], Options]] = [
        ("adam-5", 5, {"fixed": (1, 1, 8)}, {}),
        ("sgd-8", 8, {"optimizer": "SGD", "recompute": False}, {}),
        ("widths-10", 10, {"widths": (1, 2, 4), "fixed": (2, 2, 4)}, {"devices": 16}),
        ("some-split-9", 9, {"widths": (1, 2), "split": "some", "fixed": (4, 2, 1)}, {}),
        ("none-split-8", 8, {"split": "none", "recompute": False}, {"devices": 12}),
    ]
    for name, count, more, change in chains:
        text = compact(phaze(name, "chain", count, **more))
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            limits = ("4GB",) if cost_model == "phaze-general-dag" else ("64GB", "4GB", "100MB")
            for memory in limits:
                options = {**PLACEMENT, **change, "cost-model": cost_model, "memory": memory}
                yield plan_of(f"placement/{name}/{cost_model}-{memory}", options, text)
    for shape, count in (("skip", 7), ("branches", 7), ("dag", 7)):
        text = compact(phaze(f"graph {shape}", shape, count, widths=(1, 2), fixed=(2, 1, 2)))
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            options = {**PLACEMENT, "cost-model": cost_model, "memory": "5GB"}
            yield plan_of(f"placement/{shape}-{count}/{cost_model}", options, text)
    yield from _narrowed_placements()
    yield from _refused_placements()
    yield from _shared_placements()


def _narrowed_placements() -> Iterator[Question]:
    text = compact(phaze("narrowed", "chain", 10, widths=(1, 2, 4), fixed=(2, 4, 2)))
    changes: dict[str, Options] = {
        "no-data-parallel": {"no-data-parallel": True},
        "no-tensor-parallel": {"no-tensor-parallel": True},
        "no-recompute": {"no-recompute": True, "memory": "4GB"},
        "profile-planner": {
            "no-recompute": True,
            "no-tensor-parallel": True,
            "planner": "profile",
            "cost-model": "phaze-compat",
        },
        "13-devices": {"devices": 13},
        "256-devices": {"devices": 256, "microbatches": 512},
        "5-microbatches": {"microbatches": 5},
        "slow-network": {"bandwidth": "200MB/s"},
    }
    for name, change in changes.items():
        yield plan_of(f"placement/narrowed/{name}", {**PLACEMENT, **change}, text)
    inside = compact({"input": phaze("inside", "chain", 5), "note": "kept by another program"})
    yield plan_of("placement/file/inside-a-larger-object", PLACEMENT, inside)
    yield question(
        "placement/chained/explain-and-diff",
        ["plan", "p.json", *spelled(PLACEMENT), "-o", "d.json", "--json"],
        files={"p.json": text},
        after=[
            ["explain", "d.json", "--json"],
            ["explain", "d.json"],
            ["plan", "p.json", *spelled({**PLACEMENT, "memory": "3GB"}), "-o", "tight.json"],
            ["diff", "d.json", "tight.json", "--json"],
            ["report", "d.json", "-o", "page.html", "--title", "A placement", "--json"],
        ],
    )


def _refused_placements() -> Iterator[Question]:
    good = phaze("refused", "chain", 3, widths=(1, 2))
    back = {"sourceId": 2, "destId": 0, "communicationCost": 1.0}
    files = {
        "cycle": good | {"edges": {t: [*good["edges"][t], back] for t in good["edges"]}},
        "widths-differ": good | {"nodes": good["nodes"] | {"2": good["nodes"]["2"][:2]}},
        "no-width": good | {"nodes": {}, "edges": {}},
        "half-a-strategy": good | {"fixedPP": 2},
        "optimizer": good | {"optimizerAlgorithm": "Adagrad"},
    }
    for name, value in files.items():
        yield plan_of(f"placement/refused/file-{name}", PLACEMENT, compact(value))
    text = compact(good)
    wrong: dict[str, Options] = {
        "cost-model": {"cost-model": "phaze"},
        "planner": {"planner": "equal"},
        "compare": {"compare": True, "block-layer": "all"},
        "profile-planner-recomputes": {"planner": "profile"},
        "microbatches": {"microbatches": 0},
    }
    for name, change in wrong.items():
        yield plan_of(f"placement/refused/option-{name}", {**PLACEMENT, **change}, text)


def _shared_placements() -> Iterator[Question]:
    """Problems that the published program answered, each in its own setting."""
    cases = (
        *("01_uniform4_nocomm", "02_uniform4_resync", "03_uniform4_comm"),
        *("04_memory_forces_pipeline", "06_memory_adam", "07_infeasible_oom"),
        *("09_diamond_unsupported", "10_skip_edges_ok", "11_nondivisible"),
        *("12_rand_n8_D8_w1_st_SGD", "14_rand_n12_D16_w4_st_Adam", "15_rand_n12_D32_w8_rc_Adam"),
        *("17_rand_n24_D64_w8_rc_SGD", "18_rand_n32_D64_w8_st_Adam", "22_bertlarge_D1024"),
        *("24_gpt3_D1024", "27_two_branches_D4"),
    )
    for case in cases:
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            if cost_model == "phaze-general-dag" and case[:2] not in ("09", "10", "27"):
                continue
            path = f"{{shared}}/data/codesign/placement/{case}.json"
            rest = {"cost-model": cost_model, "planner": "exact"}
            argv = ["plan", path, *spelled(rest), "--json"]
            yield question(f"placement/shared-{case}/{cost_model}", argv, shared=True)
