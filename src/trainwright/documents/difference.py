"""How two documents differ: first what was asked, then what came out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.plan_view import devices_by_pool, proof, use_of_pools
from trainwright.documents.printing import layout_line, ranges
from trainwright.documents.view import (
    Cell,
    Line,
    Table,
    column,
    relaxation_lines,
    table_of,
    warning_lines,
    words,
)
from trainwright.plans.plan import FORMAT_VERSION, Embedded
from trainwright.units import (
    TimeUnit,
    format_bandwidth,
    format_bytes,
    format_percent_up,
    format_seconds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key with its value in either document; absent where a document lacks it.

    Values are as in the documents: numbers in the unit that the key names, text, arrays of text.
    """

    key: str
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What a stage is and costs, for comparison."""

    layers: tuple[int, ...]
    data_parallel: int
    tensor_parallel: int
    num_recomputed: int
    time_per_sample_s: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """A stage (index, from 0) in either document; absent where a document has fewer."""

    stage: int
    before: StageFacts | None = None
    after: StageFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`time_ratio` is time of the second document over that of the first.

    `same_model` compares what the documents hold, whatever the files were called.
    """

    kind: str = "diff"
    format_version: int = FORMAT_VERSION
    same_model: bool
    time_ratio: float | None = None
    request_changes: tuple[Change, ...] = ()
    result_changes: tuple[Change, ...] = ()
    stage_changes: tuple[StageChange, ...] = ()


# The document of `whatif`: a plan, and the best one where something is different
# -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfResult:
    """`before` is the plan as it was, `after` the best under the `changes`.

    `time_ratio` is the step time of the second over that of the first.
    """

    kind: str = "whatif"
    format_version: int = FORMAT_VERSION
    changes: tuple[Change, ...]
    time_ratio: float | None = None
    before: ModelPlanResult
    after: ModelPlanResult


def remake_what_if(document: WhatIfResult) -> WhatIfResult:
    """The document with the ratio of its two plans."""
    return replace(document, time_ratio=step_ratio(document.before, document.after))


def step_ratio(before: ModelPlanResult, after: ModelPlanResult) -> float | None:
    """The step of the second over that of the first, where both have one."""
    if not before.step_time_s or after.step_time_s is None:
        return None
    return after.step_time_s / before.step_time_s


# How two clusters of one name differ: every figure that is not the same, by its path
# -----------------------------------------------------------------------------------
# Clusters of different names are told apart by these; a list of all their figures would say less.


def cluster_facts(before: Embedded | None, after: Embedded | None) -> tuple[dict[str, Any], ...]:
    """The figures of both, flat; nothing where the names differ or one of them is absent."""
    if before is None or after is None or before.name != after.name:
        return {}, {}
    return dict(_leaves(before.content, "cluster")), dict(_leaves(after.content, "cluster"))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}.{key}")
    elif isinstance(value, list) and path.endswith(".sources"):
        for field, source in value:
            yield f"{path}.{field}", f"{source['origin']}: {source['source']}"
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{path}[{index}]")
    else:
        yield path, value


# Two documents side by side, only what differs
# ---------------------------------------------


def difference_view(found: Difference) -> Iterator[Line]:
    """What was asked differently, then what came out differently."""
    tables = tuple(difference_tables(found))
    if not found.same_model:
        yield "the two documents are about different models"
    yield from tables
    differs = bool(tables) or not found.same_model
    if differs and found.time_ratio is not None:
        yield _of_other_work(found) or _verdict(found.time_ratio)
    if not differs:
        yield "no difference"


def difference_tables(
    found: Difference, first: str = "first", second: str = "second"
) -> Iterator[Table]:
    """What was asked and what came out differently, under the names of the documents."""
    for what, title, rows in (
        ("request", "asked", [change_cells(change) for change in found.request_changes]),
        ("result", "found", [change_cells(change) for change in found.result_changes]),
        ("stages", "", [_stage_row(change) for change in found.stage_changes]),
    ):
        if rows:
            yield table_of(
                f"What was {title} differently: {first} → {second}" if title else "Stages",
                (words("what", "key"), words(first, "before"), words(second, "after")),
                rows,
                caption=what,
            )


def change_cells(change: Change) -> tuple[Cell, Cell, Cell]:
    """A row in words; keys and bare numbers are what is copied."""
    name, before, after = change_texts(change)
    return (
        Cell(text=name, value=change.key),
        _told(before, change.before),
        _told(after, change.after),
    )


def _told(text: str, value: object) -> Cell:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Cell(text=text, value=value if is_number else text)  # type: ignore[arg-type]


def _of_other_work(found: Difference) -> str:
    """Steps of unlike work are compared by their tokens, where both documents count them."""
    if not any(change.key in WORK_KEYS for change in found.request_changes):
        return ""
    counted = (change for change in found.result_changes if change.key == "tokens_per_s")
    tokens = next(counted, None)
    if tokens is None or not tokens.before or not tokens.after or found.time_ratio is None:
        return ""
    return throughput_words(tokens.after / tokens.before, found.time_ratio)


def throughput_words(ratio: float, time_ratio: float) -> str:
    """What a change of the work of a step does to tokens per second, and to the step beside."""
    steps = f"its steps, of another size, take {time_ratio:.4g}x as long"
    return f"{ratio:.4g}x as many tokens per second; {steps}"


def _verdict(ratio: float) -> str:
    if ratio == 1:
        return "both take the same time"
    if ratio == 0:
        return "the second takes no time at all"
    word = "slower" if ratio > 1 else "faster"
    excess = max(ratio, 1 / ratio) - 1
    size = f"{1 + excess:.4g}x" if excess >= 1e-3 else f"a fraction of {excess:.2g}"
    return f"the second is {size} {word}"


WORK_KEYS: Final = ("global_batch", "sequence_length")  # what decides the tokens of a step
_SHOWN: Final = {
    "num_devices": "devices",
    "num_stages": "stages",
    "sequence_length": "sequence",
    "micro_batch": "microbatch",
    "zero_stage": "ZeRO stage",
    "zero_stages": "ZeRO stages",
    "recompute_modes": "kinds of recomputation",
    "recomputed_layers": "layers recomputed",
    "moment_dtypes": "optimizer moments",
    "cuda_graph": "CUDA graph",
    "cuda_graph_modules": "modules under CUDA graphs",
    "offload_modules": "modules on the host",
    "cost_model": "cost model",
    "gap": "optimality gap",
    "step_time_s": "step time",
    "time_per_batch_s": "time per batch",
    "time_per_sample_s": "time per microbatch",
    "compute_s": "compute",
    "recompute_s": "recomputation",
    "tensor_s": "exposed tensor communication",
    "context_s": "exposed context communication",
    "expert_s": "exposed expert communication",
    "pipeline_s": "exposed transfers between stages",
    "transfers_s": "exposed transfers between stages",
    "gradients_s": "exposed sums of gradients",
    "parameters_s": "exposed gathers of parameters",
    "data_s": "exposed data communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
    "peak_memory_bytes": "peak memory",
    "tokens_per_s": "tokens per second",
    "mfu": "MFU",
    "blocks_per_stage": "blocks of each stage",
    "recompute_per_stage": "recomputation of each stage",
}


def change_texts(change: Change) -> tuple[str, str, str]:
    """What a change is about, and both values, as a person reads them."""
    key, values = change.key, (change.before, change.after)
    before, after = (value_text(key, value) for value in values)
    if before == after:  # too close to tell apart when rounded
        before, after = map(str, values)
    return key_words(key), before, after


def key_words(key: str) -> str:
    """A key as the field says it, without its unit; one of a cluster by what it belongs to."""
    if key in _SHOWN:
        return _SHOWN[key]
    *path, name = key.removeprefix("cluster.pools[0].").split(".")
    of_source = "sources" in path
    path = ["device" if part == "accelerator" else part for part in path if part != "sources"]
    words = " ".join((*path, _UNIT.sub("", name) or name)).replace("_", " ")
    words = re.sub(r"levels\[(\d+)\]", r"network level \1", words)
    return f"source of {words}" if of_source else words


# A unit at the end of a key; speeds that are counted in something are named by it.
_UNIT: Final = re.compile(r"(_bytes(_per_s)?|_?flops_per_s|_per_s|_slots|_s)$")


def value_text(key: str, value: object) -> str:
    """A value in the unit its key names, as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if is_dataclass(value):
        parts = ((part.name, getattr(value, part.name)) for part in fields(value))
        return ", ".join(f"{key_words(name)} {value_text(name, each)}" for name, each in parts)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, (int, float)):
        for suffix, shown in _UNITS:
            if key.endswith(suffix):
                return shown(value)
    return str(value)


_UNITS: Final = (
    ("_bytes_per_s", format_bandwidth),
    ("tokens_per_s", lambda value: f"{value:,.1f}"),
    ("mfu", lambda value: f"{value:.2%}"),
    ("flops_per_s", lambda value: f"{value / 1e12:.5g} TFLOP/s"),
    ("_per_s", lambda value: f"{value:.4g} per second"),
    ("_bytes", format_bytes),
    ("_s", format_seconds),
    ("_slots", TimeUnit.SLOTS.describe),
    ("gap", format_percent_up),
)


def _stage_row(change: StageChange) -> tuple[str, str, str]:
    values = (change.before, change.after)
    before, after = map(_stage_text, values)
    if before == after:
        before, after = map(_exact_text, values)
    return f"stage {change.stage}", before, after


def _exact_text(stage: StageFacts | None) -> str:
    return f"{stage.time_per_sample_s!r} s, {stage.memory_bytes!r} B" if stage else ""


def _stage_text(stage: StageFacts | None) -> str:
    if stage is None:
        return ""
    return (
        f"layers {ranges(stage.layers)}; d={stage.data_parallel}, t={stage.tensor_parallel}, "
        f"recompute {stage.num_recomputed}/{len(stage.layers)}, "
        f"{format_seconds(stage.time_per_sample_s)}, {format_bytes(stage.memory_bytes)}"
    )


# A plan and the best one under changes, side by side
# ---------------------------------------------------

_SMALL: Final = 5e-4  # of a step: parts below this in both plans are left out


def what_if_view(document: WhatIfResult) -> Iterator[Line]:
    """What was changed, then both plans."""
    before, after = document.before, document.after
    yield f"{before.request.model.name}: what if"
    yield table_of(
        "Before and after",
        (words("", "what"), words("before"), words("after"), column("change")),
        (*map(_change_row, document.changes), ("",) * 4, *filter(_says, _rows(before, after))),
    )
    yield from _what_if_verdict(document)
    yield from warning_lines(after.warnings)


def _says(row: tuple[str, ...]) -> bool:
    """Whether either plan has the figure: a profile has no FLOPs, and may not count tokens."""
    return any(row[1:])


def _change_row(change: Change) -> tuple[str, ...]:
    before, after = (value_text(change.key, each) for each in (change.before, change.after))
    return key_words(change.key), before, after, _ratio(change.before, change.after)


def _rows(before: ModelPlanResult, after: ModelPlanResult) -> Iterator[tuple[str, ...]]:
    both = (before, after)
    times = [plan.step_time_s for plan in both]
    yield (
        "step",
        *(format_seconds(t) if t else str(p.status) for t, p in zip(times, both, strict=True)),
        _ratio(*times),
    )
    for name, key in (("tokens/s", "tokens_per_s"), ("per device", "tokens_per_s_per_device")):
        values = [getattr(plan, key) for plan in both]
        yield (name, *(f"{v:,.0f}" if v else "" for v in values), _ratio(*values))
    yield ("MFU", *(f"{p.mfu:.1%}" if p.mfu else "" for p in both), "")
    yield ("layout", *(_layout(p) for p in both), "")
    yield ("microbatch", *(str(p.micro_batch or "") for p in both), "")
    yield ("schedule", *(p.schedule or "" for p in both), "")
    if any(p.groups for p in both):
        yield ("devices used", *(devices_by_pool(p) for p in both), "")
    recomputed = [sum(stage.num_recomputed for stage in p.stages) for p in both]
    yield (
        "recomputed layers",
        *(str(n) if p.stages else "" for n, p in zip(recomputed, both, strict=True)),
        "",
    )
    memory = [p.peak_memory_bytes for p in both]
    yield ("fullest device", *(format_bytes(m) if m else "" for m in memory), _ratio(*memory))
    yield from _part_rows(before, after)


def _part_rows(before: ModelPlanResult, after: ModelPlanResult) -> Iterator[tuple[str, ...]]:
    """Where the time of either step goes."""
    for name in dict.fromkeys((*before.time_by_part_s, *after.time_by_part_s)):
        pair = [p.time_by_part_s.get(name) for p in (before, after)]
        shares = [
            (spent_s or 0) / (plan.step_time_s or 1)
            for spent_s, plan in zip(pair, (before, after), strict=True)
        ]
        if max(shares) >= _SMALL:
            texts = ("" if spent_s is None else format_seconds(spent_s) for spent_s in pair)
            yield (f"  {name}", *texts, _ratio(*pair))


def _layout(plan: ModelPlanResult) -> str:
    if plan.parallelism is None:
        return ""
    return f"{use_of_pools(plan)}{layout_line(plan.parallelism)}"


def _ratio(before: float | str | None, after: float | str | None) -> str:
    if isinstance(before, str) or isinstance(after, str) or not before or after is None:
        return ""
    change = round(after / before - 1, 3)
    return f"{change:+.1%}" if change else ""


def _what_if_verdict(document: WhatIfResult) -> Iterator[str]:
    after = document.after
    if after.step_time_s is None:
        yield f"with these changes: {after.status}"
        if after.binding is not None:
            yield f"why: {after.binding.description}"
        yield from relaxation_lines(after.relaxations)
        return
    ratio, before = document.time_ratio, document.before
    has_other_work = any(change.key in WORK_KEYS for change in document.changes)
    if has_other_work and ratio and before.tokens_per_s and after.tokens_per_s:
        yield throughput_words(after.tokens_per_s / before.tokens_per_s, ratio)
    elif ratio is not None:
        word = "slower" if ratio > 1 else "faster"
        same = abs(ratio - 1) < 1e-12
        yield "the step takes as long" if same else f"{max(ratio, 1 / ratio):.4g}x {word}"
    yield f"after: {proof(after)}"
