"""Questions about chips: searches, fronts, stages, and plans on chips that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from question_lines import question, spelled, without

if TYPE_CHECKING:
    from collections.abc import Iterator

    from question_lines import Options, Question

CODESIGN: Final[Options] = {
    "devices": 16,
    "global-batch": 64,
    "sequence": 512,
    "micro-batch": "1",
    "tp": "1,2,4",
    "recompute": "none,full",
    "schedule": "1f1b",
    "precision": "bf16",
    "memory": "80GiB",
    "memory-bandwidth": "1.2TB/s",
    "link-bandwidth": "300GB/s",
    "node-devices": 1,
    "node-bandwidth": "300GB/s",
    "tensor-overlap": 0,
    "gradient-overlap": 0,
    "clock": "1.05e9",
    "software": "none",
    "objective": "geometric",
    "weights": "1",
    "max-area": 8,
    "search": "exact",
    "seed": 0,
    "no-pareto": True,
}
FRONT: Final[Options] = {"no-pareto": None, "epsilon": 0.02, "max-area": 4}
STACKS: Final[Options] = {
    "memory": None,
    "memory-bandwidth": None,
    "stack-memory": "16GiB",
    "stack-bandwidth": "460.8GB/s",
    "stack-area": 0,
}
CHIP: Final[Options] = {
    "devices": 8,
    "global-batch": 64,
    "sequence": 1024,
    "micro-batch": "1",
    "tp": "1,2",
    "recompute": "none,full",
    "schedule": "1f1b",
}
NETWORK: Final[Options] = {
    "link-bandwidth": "50GB/s",
    "node-devices": 8,
    "node-bandwidth": "450GB/s",
}


def design_of(name: str, models: str, options: Options, **more: Any) -> Question:
    argv = ["codesign", *models.split(), *spelled(options), "--json"]
    return question(f"codesign/{name}", argv, **more)


def codesign_questions() -> Iterator[Question]:
    yield from _designs_by_model()
    yield from _designs_by_space()
    yield from _designs_of_several_models()
    yield from _fronts()
    yield from _designs_in_stages()
    yield from _plans_on_chips()
    yield from _refused_designs()


def _designs_by_model() -> Iterator[Question]:
    cases: list[tuple[str, Options]] = [
        ("gpt2", {"sequence": 1024}),
        ("gpt2-xl", {"sequence": 1024, "tp": "1"}),
        ("gpt2", {"sequence": 1024, "tp": "1,2", "max-area": 20, "micro-batch": "1,2"}),
        ("bert-base", {}),
        ("bert-large", {}),
        ("bert-large", {"devices": 64, "max-area": 40}),
        ("megatron-gpt-1.7b", {"sequence": 2048, "devices": 32}),
        ("gpt-neo-2.7b", {"sequence": 2048, "devices": 32}),
        ("llama2-7b", {"sequence": 4096, "tp": "2,4,8", "devices": 32}),
        ("llama3-8b", {"sequence": 4096, "tp": "2,4,8", "devices": 64}),
        ("gpt3-175b", {"sequence": 2048, "tp": "4,8", "devices": 256, "max-area": 20}),
        ("gpt3-175b", {"sequence": 2048, "tp": "4,8", "devices": 1024, "max-area": 278.8}),
    ]
    for model, change in cases:
        options = {**CODESIGN, **change}
        label = f"{model}/{options['devices']}-devices-{options['max-area']}mm2"
        yield design_of(label, model, options)


def _designs_by_space() -> Iterator[Question]:
    changes: dict[str, Options] = {
        "micro-batch-2": {"micro-batch": "2"},
        "micro-batch-1-4": {"micro-batch": "1,4"},
        "tp-1": {"tp": "1"},
        "tp-4": {"tp": "4"},
        "recompute-full": {"recompute": "full"},
        "recompute-none": {"recompute": "none"},
        "zb-h1": {"schedule": "1f1b,zb-h1", "memory": "4GiB"},
        "v-half": {"schedule": "1f1b,v-half", "memory": "4GiB"},
        "all-schedules": {"schedule": "1f1b,zb-h1,v-half,v-min", "memory": "3GiB"},
        "memory-2GiB": {"memory": "2GiB"},
        "memory-1-8GiB": {"memory": "1GiB,8GiB"},
        "memory-infeasible": {"memory": "64MiB"},
        "memory-bandwidths": {"memory-bandwidth": "400GB/s,2TB/s"},
        "slow-links": {"link-bandwidth": "10GB/s"},
        "links": {"link-bandwidth": "100GB/s,600GB/s"},
        "clocks": {"clock": "1.05e9,1.4e9"},
        "nodes-of-4": {"node-devices": 4, "node-bandwidth": "900GB/s", "link-bandwidth": "50GB/s"},
        "overlaps": {"tensor-overlap": 0.5, "gradient-overlap": 0.9},
        "fp32": {"precision": "fp32"},
        "fp8-bf16": {"precision": "bf16,fp8"},
        "stacks": {**STACKS, "stacks": "1,2"},
        "stacks-with-area": {**STACKS, "stacks": "1,2,4", "stack-area": 1.5},
        "max-power": {"max-power": 40},
        "max-power-infeasible": {"max-power": 0.01},
        "tdp": {"tdp": 40},
        "no-area": {"max-area": 0.5},
        "hardly-an-area": {"max-area": 3.6},
        "die": {"defect-density": 0.001},
        "descending-area": {"search": "descending-area"},
        "sample": {"sample": 20, "seed": 3},
    }
    for name, change in changes.items():
        model = "bert-base" if name not in ("zb-h1", "v-half", "all-schedules") else "bert-large"
        yield design_of(f"space/{name}", model, {**CODESIGN, **change})


def _designs_of_several_models() -> Iterator[Question]:
    both = {**CODESIGN, "weights": "1,1", "max-area": 6}
    for objective in ("geometric", "mean", "worst", "regret", "arithmetic"):
        options = {**both, "objective": objective}
        yield design_of(f"several/{objective}", "bert-base gpt2", options)
    weighted = {**both, "weights": "3,1", "objective": "mean"}
    yield design_of("several/weights", "bert-base gpt2", weighted)
    unfit = {**both, "memory": "2GiB", "devices": 4, "tp": "1"}
    yield design_of("several/one-does-not-fit", "bert-base gpt2-xl", unfit)


def _fronts() -> Iterator[Question]:
    fronts: dict[str, Options] = {
        "epsilon-0.02": {},
        "epsilon-0": {"epsilon": 0, "max-area": 3.6},
        "epsilon-0.2": {"epsilon": 0.2},
        "all-schedules": {"schedule": "1f1b,zb-h1,v-half,v-min", "max-area": 3.6, "devices": 4},
        "tdp": {"tdp": 24},
        "die": {"defect-density": 0.002},
    }
    for name, change in fronts.items():
        yield design_of(f"front/{name}", "bert-base", {**CODESIGN, **FRONT, **change})
    yield design_of(
        "front/several-models",
        "bert-base gpt2",
        {**CODESIGN, **FRONT, "weights": "1,1", "max-area": 3.6},
    )


def _designs_in_stages() -> Iterator[Question]:
    asked = without({**CODESIGN, "max-area": 4}, "search", "seed", "no-pareto")
    solved = {"search": "exact", "seed": 0, "no-pareto": True}
    folder = ["--artifacts", "stages", "--json"]
    yield question(
        "codesign/stages/graph-estimate-solve",
        ["codesign", "bert-base", *spelled(asked), "--stage", "graph", *folder],
        after=[
            ["codesign", "--stage", "estimate", *folder],
            ["codesign", "--stage", "solve", *folder, *spelled(solved)],
        ],
    )
    yield question(
        "codesign/stages/no-estimates",
        ["codesign", "bert-base", *spelled(asked), "--stage", "graph", *folder],
        after=[["codesign", "--stage", "solve", *folder, *spelled(solved)]],
    )
    yield question(
        "codesign/stages/no-graph",
        ["codesign", "--stage", "estimate", *folder],
    )
    small = {**CODESIGN, "max-area": 4}
    chip = spelled({**CHIP, "devices": 16, "sequence": 512})
    yield question(
        "codesign/document/recheck-report-and-plan",
        ["codesign", "bert-base", *spelled(small), "-o", "d.json", "--csv", "all.csv", "--json"],
        after=[
            ["codesign", "--recheck", "d.json", "--sample", "20", "--seed", "3", "--json"],
            ["report", "d.json", "-o", "page.html", "--title", "A chip", "--json"],
            ["codesign", "bert-base", "--chip", "d.json", *chip, "--json"],
            ["explain", "d.json", "--json"],
        ],
    )
    yield question(
        "codesign/document/journal",
        ["codesign", "bert-base", *spelled(small), "--journal", "j.jsonl", "--json"],
        after=[["codesign", "bert-base", *spelled(small), "--journal", "j.jsonl", "--json"]],
    )


def _plans_on_chips() -> Iterator[Question]:
    cases: list[tuple[str, str, Options]] = [
        ("gpt2", "A100-80GB-SXM", {**CHIP, **NETWORK}),
        ("gpt2", "dgx-h100", CHIP),
        ("gpt2", "tpu-v4", {**CHIP, "devices": 64}),
        ("bert-large", "V100-SXM2-16GB", {**CHIP, **NETWORK, "sequence": 512}),
        ("llama3-8b", "dgx-h100", {**CHIP, "devices": 16, "sequence": 4096, "tp": "1,2,4,8"}),
        ("llama2-7b", "mi300x", {**CHIP, "sequence": 4096, "micro-batch": "1,2"}),
        ("llama2-7b", "dgx1-v100", {**CHIP, "sequence": 4096}),
        ("llama2-70b", "dgx-a100", {**CHIP, "devices": 64, "sequence": 4096, "tp": "4,8"}),
        ("gpt2", "H100-80GB-SXM", {**CHIP, **NETWORK, "schedule": "1f1b,zb-h1"}),
    ]
    for model, chip, options in cases:
        label = f"chip/{model}-on-{chip}-{options['devices']}"
        yield design_of(label, model, {**options, "chip": chip})


def _refused_designs() -> Iterator[Question]:
    wrong: dict[str, Options] = {
        "objective": {"objective": "best"},
        "weights": {"weights": "1,2"},
        "recompute": {"recompute": "selective"},
        "schedule": {"schedule": "1f1b,gpipe"},
        "only-zb-h1": {"schedule": "zb-h1"},
        "precision": {"precision": "int4"},
        "stacks-and-memory": {"stacks": "1"},
        "stacks-0": {**STACKS, "stacks": "0"},
        "overlap": {"tensor-overlap": 1.5},
        "area": {"max-area": -1},
        "search": {"search": "random"},
        "tp": {"tp": "5"},
        "clock": {"clock": "fast"},
        "devices": {"devices": 0},
        "stage-alone": {"stage": "graph"},
        "stage": {"stage": "draw", "artifacts": "stages"},
        "epsilon": {"no-pareto": None, "epsilon": -1},
    }
    for name, change in wrong.items():
        yield design_of(f"refused/{name}", "bert-base", {**CODESIGN, **change})
    yield design_of("refused/model", "no-such-model", CODESIGN)
    yield design_of("refused/no-model", "", CODESIGN)
    yield design_of("refused/chip", "gpt2", {**CHIP, "chip": "abacus"})
    area = {**CHIP, **NETWORK, "chip": "A100-80GB-SXM", "max-area": 10}
    yield design_of("refused/area-of-a-chip", "gpt2", area)
    yield design_of("refused/two-models-on-a-chip", "gpt2 gpt2-xl", {**CHIP, "chip": "dgx-h100"})
    yield design_of("refused/network-of-a-cluster", "gpt2", {**CHIP, **NETWORK, "chip": "dgx-h100"})
