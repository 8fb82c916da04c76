"""Published numbers beside ours: `python benchmarks/papers.py [--only NAME] [--write]`.

A registry, one entry a paper: where its numbers are printed, how near ours must come, and a
function that yields them. Prints the page; `--write` stores it with a table of all numbers.
Figures of other programs and measured runs are read where TRAINWRIGHT_SHARED points; a paper whose
inputs are not there is named as left out. The numbers of a measured table come twice: as shipped,
with constants that were fitted to these rows, too, and unseen, with constants fitted to the others.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import known_layouts

import published_memory as memory
import published_partitions as partitions
import published_schedules as schedules
import published_vocabulary as vocabulary_runs
from reference import reference
from trainwright.commands.validate import validate
from trainwright.formats import catalog
from trainwright.formats.measured_csv import read_measured
from trainwright.formats.phaze_json import read_phaze
from trainwright.model import count_parameters, model_flops_per_sequence
from trainwright.partitioning.downset_dp import solve
from trainwright.partitioning.evaluate import evaluate, time_per_sample_s
from trainwright.partitioning.profile_planner import plan_equal
from trainwright.plans.schedule import ActionKind, ScheduleCosts
from trainwright.scheduling.families import FAMILIES, FamilyRequest
from trainwright.scheduling.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trainwright.documents.validation import DatasetScore, ScoredRun
    from trainwright.formats.measured_csv import MeasuredRun
    from trainwright.plans.lowered import Timeline

REPORTS: Final = Path(__file__).parent / "reports"
PAGE: Final = REPORTS / "papers_2026-11-23.md"
NUMBERS: Final = PAGE.with_suffix(".csv")
MOST_SHOWN: Final = 40  # numbers of a paper that the page shows; of longer ones it shows the misses

DERIVED = "derived: nothing is fitted"
OTHERS = "constants fitted to other runs"
FITTED = "constants fitted to these rows, too"
UNSEEN = "constants fitted without these rows' source"
KINDS: Final = (DERIVED, OTHERS, FITTED, UNSEEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A published number and ours. With `at_most`, ours may be smaller: a plan or an order that is
    found need not be theirs. `why` is what is known of a miss; `in_range` says of a prediction
    whether what was measured lies in the 90 % range stated beside it."""

    what: str
    published: float
    ours: float
    unit: str
    at_most: bool = False
    why: str = "not known"
    in_range: bool | None = None

    def verdict(self, tolerance: Tolerance) -> str:
        """`ok`, `better` or `miss`."""
        allowed = tolerance.absolute + tolerance.relative * abs(self.published)
        if abs(self.ours - self.published) <= allowed:
            return "ok"
        return "better" if self.at_most and self.ours < self.published else "miss"

    @property
    def deviation(self) -> str:
        """Relative, or the difference where zero is published."""
        if self.published == 0:
            return f"{self.ours:+.3g}"
        return f"{self.ours / self.published - 1:+.2%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What ours may be off: a share of the published number, and an amount on top."""

    relative: float = 0.0
    absolute: float = 0.0
    unit: str = ""

    def __str__(self) -> str:
        parts = [f"{self.relative:.3g} of it"] * (self.relative > 0)
        parts += [f"{self.absolute:g} {self.unit}".strip()] * (self.absolute > 0)
        return " and ".join(parts) or "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """An entry: `needs` is a path under the reference data, `None` where nothing is read."""

    name: str
    source: str
    tolerance: Tolerance
    numbers: Callable[[], Iterable[Number]]
    kind: str = DERIVED
    needs: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether its inputs are."""
        if self.needs is None:
            return True
        return "TRAINWRIGHT_SHARED" in os.environ and (reference() / self.needs).exists()


EXACT: Final = Tolerance(relative=1e-9)
STEP: Final = Tolerance(relative=0.10)  # of the seconds of a step


# Schedules
# ---------


def zero_bubble() -> Iterator[Number]:
    """Bubble rates from profiled times, within the limits of memory that the authors set."""
    for row in schedules.rows("zero_bubble_table5.json"):
        for name, published in row["bubble_of_span_published"].items():
            rate, peak_bytes = schedules.profiled_bubble(row, name)
            if name != "1F1B":
                limit = row["memory_limit_in_F"][name] * row["memory_delta"]["F"]
                assert peak_bytes <= limit * (1 + 1e-9)
            what = f"{row['model']}, p {row['p']}, m {row['m']}, {name}: bubble rate"
            yield Number(what=what, published=published, ours=rate, unit="", at_most=name != "1F1B")


def unit_times(families: tuple[str, ...]) -> Callable[[], Iterator[Number]]:
    """Bubble and peak at F = I = W = 1, of the authors' generators, up to 16 ranks."""

    def numbers() -> Iterator[Number]:
        for row in schedules.rows("closed_forms.json"):
            if row["family"] not in families or row["p"] > 16:
                continue
            span, peak = schedules.measured(row)
            where = f"{row['family']}, p {row['p']}, m {row['m']}"
            limit = row["params"].get("limit")
            where += f", limit {limit}" if limit is not None else ""
            bubble = row["bubble"] + span - row["span"]
            least = row["family"] in schedules.SEARCHED
            for what, published, ours, unit in (
                ("bubble", row["bubble"], bubble, "slots"),
                ("peak", row["peak_chunks"], peak, "chunks"),
            ):
                yield Number(
                    what=f"{where}: {what}",
                    published=published,
                    ours=float(ours),
                    unit=unit,
                    at_most=least,
                )

    return numbers


def simulated(
    name: str, p: int, m: int, *, times: dict[str, object] | None = None, **options: int
) -> tuple[Timeline, float]:
    """A family's order at the times given, else one slot each, and its idle time in all."""
    asked = FamilyRequest(num_ranks=p, num_microbatches=m, **options)
    costs = ScheduleCosts.of(FAMILIES[name].place(asked), **(times or {}))
    schedule = FAMILIES[name].generate(replace(asked, costs=costs))
    timeline = simulate(schedule, costs)
    return timeline, float(timeline.makespan_s - timeline.work_by_rank_s.max())


RANKS: Final = (2, 4, 8, 16)


def _formula(what: str, published: float, ours: float, unit: str, **more: object) -> Number:
    return Number(what=what, published=float(published), ours=float(ours), unit=unit, **more)


def held(name: str, by_ranks: Callable[[int], int], **options: object) -> Iterator[Number]:
    """Most activations of any rank, against a formula of the number of ranks."""
    for p in RANKS:
        schedule = simulated(name, p, 4 * p, **options)[0].schedule
        peak = max(schedule.peak_activations)
        yield _formula(f"{name}, p {p}: peak", by_ranks(p), peak, "activations")


def vocabulary() -> Iterator[Number]:
    """One activation more than 1F1B for each barrier, and its bubble."""
    times = {"head_s": 1.0}
    yield from held("vocab-1", lambda p: p + 2, times=times)
    yield from held("vocab-2", lambda p: p + 1, times=times)
    for name in ("vocab-1", "vocab-2"):
        for p in RANKS:
            idle = simulated(name, p, 4 * p, times=times)[1]
            yield _formula(f"{name}, p {p}: bubble", 3.0 * (p - 1), idle, "slots", at_most=True)


def vocabulary_steps() -> Iterator[Number]:
    """Seconds of a step from the passes that were profiled in the same run."""
    for row in vocabulary_runs.rows():
        what, ours = vocabulary_runs.name_of(row), vocabulary_runs.simulated_step_s(row)
        yield Number(what=what, published=float(row["step_s"]), ours=ours, unit="s")


def vocabulary_estimates(quantity: str) -> Callable[[], Iterator[Number]]:
    """Steps of the printed MFU, or reserved memory, with nothing but the run's own settings."""

    def numbers() -> Iterator[Number]:
        for row in vocabulary_runs.rows():
            published, ours, unit = float(row["reserved_gib"]), vocabulary_runs.reserved_gib, "GiB"
            if quantity == "step":
                published, unit = vocabulary_runs.mfu_step_s(row), "s"
                ours = lambda row: vocabulary_runs.estimated(row).step_time_s  # noqa: E731
            why = f"at odds with the runs above, where the same setting took {row['step_s']} s"
            what = vocabulary_runs.name_of(row)
            yield Number(what=what, published=published, ours=ours(row), unit=unit, why=why)

    return numbers


def braided() -> Iterator[Number]:
    """Bubble, activations and what is exposed of T = T_AR, with T_F = T_B = 1 and T_W.

    A braided pair counts as one instant, in which one activation comes and one goes, and so does a
    forward with the backward after it. A whole backward hides its own exchange under its weight
    gradient.
    """
    forward, backward = ActionKind.F, (ActionKind.I, ActionKind.B)
    for name, lost, held_of, exposed_of in (
        ("interleaved", lambda w: 2 + w, lambda p: 3 * p - 2, lambda p: 8 * p),
        ("zb-v", lambda w: 2 - 2 * w, lambda p: 2 * p, lambda p: 16 * p),
        ("stp", lambda w: 2 - w, lambda p: 3 * p, lambda p: 2 * p + 1),
    ):
        for p in RANKS:
            for w in (1.0, 0.5):
                timeline = simulated(name, p, 4 * p, times={"weight_grad_s": w})[0]
                idle = float(timeline.span_s - timeline.work_by_rank_s.max())
                what, least = f"{name}, p {p}, T_W {w}, T_AR 0: bubble", name == "zb-v"
                yield _formula(what, (p - 1) * lost(w), idle, "slots", at_most=least)
            schedule = timeline.schedule
            kinds, begins = schedule.actions[:, 0], np.zeros(len(schedule.actions), np.bool_)
            begins[schedule.pairs] = True
            step = (kinds == forward).astype(int) - np.isin(kinds, backward)
            meets = begins.copy()
            if name == "interleaved":
                meets[:-1] |= (kinds[:-1] == forward) & (kinds[1:] == ActionKind.B)
            ranks = [schedule.rows_of(rank) for rank in range(p)]
            peak = max(int(np.cumsum(step[rows])[~meets[rows]].max()) for rows in ranks)
            if name == "zb-v":  # until W, as its authors count
                peak = max(schedule.peak_activations)
            yield _formula(f"{name}, p {p}: peak", held_of(p), peak, "activations")
            alone = ~begins & ~np.roll(begins, 1) & np.isin(kinds, (forward, ActionKind.I))
            exposed = max(int(alone[rows].sum()) for rows in ranks)
            yield _formula(f"{name}, p {p}: exposed", exposed_of(p), exposed, "T_AR")


def offloaded() -> Iterator[Number]:
    """With everything offloaded four activations, however many stages; else 1F1B, its bubble."""
    for p in RANKS:
        timeline, idle = simulated("po-f", p, 4 * p, times={"offload_s": 1.5})
        peak = float(max(timeline.schedule.peak_activations))
        yield _formula(f"p {p}: peak", 4.0, peak, "activations", at_most=True)
        yield _formula(f"p {p}: bubble", 3.0 * (p - 1), idle, "slots", at_most=True)


def chunks(*families: str) -> Callable[[], Iterator[Number]]:
    """(p - 1) / (vm) of the work is lost, with v chunks on each rank."""

    def numbers() -> Iterator[Number]:
        for name in families:
            for p in RANKS:
                for v in (1, 2, 4):
                    timeline, idle = simulated(name, p, 4 * p, virtual_stages=v)
                    lost = idle / float(timeline.work_by_rank_s.max())
                    yield _formula(
                        f"{name}, p {p}, v {v}: lost", 1 / (v * 4 * p) * (p - 1), lost, ""
                    )

    return numbers


def two_ways() -> Iterator[Number]:
    """Bubble (PP/2 - 1)(F&B + B - 3W) and PP + 1 activations, PP stages, at two sets of times."""
    for name, ranks in (("dualpipe", lambda stages: stages), ("dualpipe-v", lambda s: s // 2)):
        for stages in (4, 8, 16):
            p = ranks(stages)
            for both, w in ((3.0, 1.0), (2.5, 0.75)):
                times = {"weight_grad_s": w, "pair_s": both}
                timeline, idle = simulated(name, p, 4 * stages, times=times)
                published = (stages / 2 - 1) * (both + 1 + w - 3 * w)
                what = f"{name}, PP {stages}, F&B {both}, W {w}: bubble"
                yield _formula(what, published, idle, "slots", at_most=True)
            peak = float(max(timeline.schedule.peak_activations))
            yield _formula(f"{name}, PP {stages}: peak", stages + 1.0, peak, "activations")


def bidirectional() -> Iterator[Number]:
    """Chimera with equal slots: (D - 2) / (2N + D - 2) of the time."""
    halves = {"input_grad_s": 0.5, "weight_grad_s": 0.5}
    for p in RANKS:
        for m in (p, 4 * p):
            timeline, idle = simulated("chimera", p, m, times=halves)
            share = idle / float(timeline.makespan_s)
            yield _formula(f"D {p}, N {m}: bubble", (p - 2) / (2 * m + p - 2), share, "")


def two_stage_backward() -> Iterator[Number]:
    """2BP on 1F1B, as many microbatches as ranks: (N - 1) / (4N - 1) of the time."""
    for p in RANKS:
        timeline, idle = simulated("2bp", p, p)
        share = idle / float(timeline.makespan_s)
        yield _formula(f"N {p}: bubble", (p - 1) / (4 * p - 1), share, "")


def slices() -> Iterator[Number]:
    """SlimPipe: (p - 1) / (nvm) of the work is lost, 1/p + 2(p - 1) / (npv) is held."""
    for p in RANKS:
        for v in (1, 2):
            n, m = 2 * p, 3
            timeline, idle = simulated("slimpipe", p, m, num_slices=n, virtual_stages=v)
            lost = idle / float(timeline.work_by_rank_s.max())
            peak = max(timeline.schedule.peak_activations) / (n * p * v)
            where = f"p {p}, v {v}, n {n}"
            yield _formula(f"{where}, m {m}: lost", (p - 1) / (n * v * m), lost, "")
            yield _formula(f"{where}: held", 1 / p + 2 * (p - 1) / (n * p * v), peak, "")


# Partitioning
# ------------


def piper() -> Iterator[Number]:
    """Time per sample of the published program's plans: ours are proven, so at most that."""
    for instance, mode in partitions.published_modes(partitions.SOLVER_MODES, having="original"):
        published = instance["modes"][mode]["original"]["time_per_sample"]
        if published is None:
            continue
        _, profile, setting = partitions.load(instance)
        restrictions = partitions.SOLVER_MODES[mode]
        found = solve(profile, setting, restrictions=restrictions).time_per_sample_s
        what = f"{instance['name']}, {mode}"
        yield Number(what=what, published=published, ours=found, unit="", at_most=True)


def piper_baselines() -> Iterator[Number]:
    """Time per sample of the equal splits that the paper compares with."""
    for instance, mode in partitions.published_modes(partitions.BASELINES):
        published = instance["modes"][mode].get("time_per_sample")
        if published is None:
            continue
        _, profile, setting = partitions.load(instance)
        plan = plan_equal(profile, setting, **partitions.BASELINES[mode])
        ours = time_per_sample_s(evaluate(plan, profile, setting))
        yield Number(what=f"{instance['name']}, {mode}", published=published, ours=ours, unit="")


def phaze() -> Iterator[Number]:
    """Time of a batch from the published placement program, for the best and the expert's plan."""
    for given in partitions.placements():
        found = None
        if given["expected"]["status"] == "optimal":
            found = partitions.placed(read_phaze(given), "phaze-compat")
            published = given["expected"]["time_per_batch"]
            ours = found.outcome.cost.time_s
            yield Number(what=f"{given['case']}: best", published=published, ours=ours, unit="s")
        fixed = given["expected_fixed_strategy"]
        if found is not None and fixed is not None and fixed["status"] == "ok":
            published, ours = fixed["time_per_batch"], found.fixed.cost.time_s
            yield Number(what=f"{given['case']}: expert", published=published, ours=ours, unit="s")


# Memory and parameters
# ---------------------


def activation_memory() -> Iterator[Number]:
    """GiB of the first stage and of the matrices' states, for the four models of table 3."""
    for model in memory.PAPER:
        plain, selective = memory.first_stage_gib(model)
        for what, published, ours in (
            ("activations, nothing recomputed", memory.NO_RECOMPUTE_GIB[model], plain),
            ("activations, selective and sequence", memory.SELECTIVE_SP_GIB[model], selective),
            ("parameters and states", memory.STATIC_GIB[model], memory.static_gib(model)),
        ):
            what = f"{model}: {what}"
            yield Number(what=what, published=published, ours=ours, unit="GiB")


# Heads, hidden size, layers and billions of parameters, as table 1 of arXiv:2104.04473 prints them.
SC21_MODELS: Final = (
    (24, 2304, 24, 1.7),
    (32, 3072, 30, 3.6),
    (32, 4096, 36, 7.5),
    (48, 6144, 40, 18.4),
    (64, 8192, 48, 39.1),
    (80, 10240, 60, 76.1),
    (96, 12288, 80, 145.6),
    (128, 16384, 96, 310.1),
    (128, 20480, 105, 529.6),
    (160, 25600, 128, 1008.0),
)
# Billions of parameters: sections 3.1 of arXiv:2407.21783 and 4.2 of arXiv:2412.19437.
CATALOG_MODELS: Final = {"llama3-405b": 405.0, "deepseek-v3": 671.0}


def sc21_parameters() -> Iterator[Number]:
    """Parameters of the ten models, by our own list of matrices."""
    for heads, hidden, layers, published in SC21_MODELS:
        ours = count_parameters(memory.gpt(heads=heads, hidden=hidden, layers=layers)) / 1e9
        what = f"{heads} heads, hidden {hidden}, {layers} layers: parameters"
        yield Number(what=what, published=published, ours=ours, unit="10⁹")


def catalog_parameters() -> Iterator[Number]:
    """Parameters of two models of the catalog."""
    for name, published in CATALOG_MODELS.items():
        ours = count_parameters(catalog.model(name).config) / 1e9
        yield Number(what=f"{name}: parameters", published=published, ours=ours, unit="10⁹")


# Measured runs
# -------------


def layouts(prefix: str) -> Callable[[], Iterator[Number]]:
    """Seconds of a step of the published layouts whose names begin so."""

    def numbers() -> Iterator[Number]:
        for run in known_layouts.RUNS:
            if run.name.startswith(prefix):
                ours = known_layouts.estimated(run).step_time_s
                what = f"{run.name}: step"
                yield Number(what=what, published=run.step_time_s, ours=ours, unit="s")

    return numbers


def llama() -> Iterator[Number]:
    """The three rows of table 4; known_layouts has no plan for the third, of long sequences."""
    yield from layouts("Llama-3")()
    short = next(run for run in known_layouts.RUNS if run.name == "Llama-3-405B, 16,384 H100")
    batch, sequence, tflops = 128, 131_072, 380.0
    run = replace(
        short,
        global_batch=batch,
        sequence=sequence,
        layout=short.layout | {"dp": 8, "cp": 16},
        step_time_s=known_layouts.llama_step_s(batch, sequence, short.devices, tflops),
    )
    config = catalog.model(run.model).config
    dense = 6 * count_parameters(config) * sequence
    attention = model_flops_per_sequence(config, sequence) - dense
    causal_s = run.step_time_s * (dense + attention / 2) / (dense + attention)
    yield Number(
        what=f"{run.name}, 131,072 tokens: step",
        published=run.step_time_s,
        ours=known_layouts.estimated(run).step_time_s,
        unit="s",
        why="the paper does not say how it counts attention's FLOPs, most of them here; "
        f"by half, as causal, its rate means {causal_s:.1f} s",
    )


# Seconds and layouts of Qwen3-235B-A22B, in bf16.
QWEN3: Final = (
    (
        19.7,
        {
            "tp": 2,
            "dp": 16,
            "ep": 32,
            "recompute": "selective",
            "recompute_module": ("norm", "mlp_activation"),
        },
    ),
    (29.0, {"tp": 4, "dp": 8, "ep": 8}),
)


def mixtures() -> Iterator[Number]:
    """The two rows of a table of five that can be told."""
    for step_s, own in QWEN3:
        run = known_layouts.Run(
            name=f"Qwen3-235B-A22B, 256 H100, TP {own['tp']}, EP {own['ep']}",
            model="qwen3-235b-a22b",
            cluster="dgx-h100",
            devices=256,
            global_batch=2048,
            sequence=4096,
            layout={"pp": 8, "etp": 1, "virtual_stages": 4, "schedule": "interleaved", **own},
            source="best_practice/qwen3/readme.md",
            step_time_s=step_s,
            calibration="megatron-core",
        )
        ours, why = known_layouts.estimated(run).step_time_s, "what overlaps is not said"
        yield Number(what=f"{run.name}: step", published=step_s, ours=ours, unit="s", why=why)


def deepseek_table_2() -> Iterator[Number]:
    """Bubble (PP - 1)(F + B) of 1F1B and (PP - 1)(F + B - 2W) of ZB1P, and their PP activations.

    B is the whole backward pass; here F = W = 1, B = 2 and PP = 16.
    """
    ranks, batches = 16, 32
    for theirs, name, bubble in (("1F1B", "1F1B", 45), ("ZB1P", "ZB-H1", 15)):
        row = {"family": name, "p": ranks, "m": batches, "params": {}}
        span, peak = schedules.measured(row)
        for what, published, ours, unit in (
            ("bubble", bubble, span - 3 * batches, "slots"),
            ("activations", ranks, peak, ""),
        ):
            what = f"{theirs}, PP {ranks}: {what}"
            yield Number(what=what, published=published, ours=float(ours), unit=unit)


@cache
def scores(unseen: bool) -> dict[str, DatasetScore]:
    """The scores of all measured tables, by name."""
    document = validate(reference() / "measured", leave_out="source" if unseen else None).document
    return {dataset.name: dataset for dataset in document.datasets}


def measured(
    table: str, quantity: str, *, unseen: bool = False, only: Callable[..., bool] | None = None
) -> Callable[[], Iterator[Number]]:
    """Every configuration of a measured table; `only` chooses by the run of a row."""
    unit, scale = {"step_time": ("s", 1.0), "peak_memory": ("GiB", 2.0**30)}[quantity]
    field = {"step_time": "step_time_s", "peak_memory": "peak_memory_bytes"}[quantity]

    def numbers() -> Iterator[Number]:
        runs = {run.row_id: run for run in read_measured(reference() / "measured" / f"{table}.csv")}
        rows = [
            (row, runs[row.row_id], published, ours)
            for row in scores(unseen)[table].runs
            if (published := getattr(row, f"measured_{field}")) is not None
            and (ours := getattr(row, field)) is not None
            and (only is None or only(runs[row.row_id]))
        ]
        typical = median(ours / published for *_, published, ours in rows)
        of_layout: dict[object, list[tuple[str, float]]] = {}
        for row, run, published, ours in rows:
            of_layout.setdefault(_layout(run), []).append((row.row_id, ours / published))
        known = [(run, published) for _, run, published, _ in rows]
        for row, run, published, ours in rows:
            others = [ratio for name, ratio in of_layout[_layout(run)] if name != row.row_id]
            odds = at_odds(run, quantity, published, ours, known)
            yield Number(
                what=f"{row.row_id}: {run.model}, {run.num_devices} {run.accelerator}",
                published=published / scale,
                ours=ours / scale,
                unit=unit,
                why=odds or _reason(row, quantity, ours / published / typical, typical, others),
                in_range=_in_range(row) if quantity == "step_time" else None,
            )

    return numbers


def at_odds(
    run: MeasuredRun,
    quantity: str,
    published: float,
    ours: float,
    known: Sequence[tuple[MeasuredRun, float]],
) -> str | None:
    """What other rows of its table say against a row that is missed; None where nothing does.

    Memory: a device of another row has no more of anything, and holds more; or no less, and holds
    less. Times: without a pipeline a larger microbatch takes longer; and a layer takes no less of a
    slot of the pipeline where a device has no less work, in no smaller a microbatch.
    """
    alike = [(each, value) for each, value in known if _beside(each) == _beside(run)]
    if quantity == "peak_memory":
        for each, value in alike:
            smaller, larger = (each, run) if ours > published else (run, each)
            splits = smaller.tensor >= larger.tensor and smaller.data >= larger.data
            held = [(x.pipeline, x.microbatch_size, _in_flight(x)) for x in (each, run)]
            apart = value / published if ours > published else published / value
            if splits and held[0] == held[1] and apart > 1.1:
                how = "as much or more" if ours > published else "no more"
                value_gib = f"{value / 2**30:.4g} GiB at tp {each.tensor}, dp {each.data}"
                return f"at odds with {each.row_id}, which splits {how} and holds {value_gib}"
    if quantity != "step_time" or ours > published:
        return None
    size = run.microbatch_size or 0
    for each, time_s in alike:
        same = (each.pipeline, each.tensor, each.data) == (1, run.tensor, run.data)
        less = run.pipeline == 1 and (each.microbatch_size or 0) < size
        if same and less and published > 1.1 * time_s:
            sizes = f"microbatches of {each.microbatch_size}"
            return f"at odds with {each.row_id}: {time_s:.4g} s in {sizes}, without a pipeline"
    own_s = _layer_in_slot_s(run, published)
    no_less = [
        (layer_s, each.row_id)
        for each, time_s in alike
        if (layer_s := _layer_in_slot_s(each, time_s)) is not None
        and each.tensor >= run.tensor
        and (each.microbatch_size or 0) * run.tensor >= size * each.tensor
    ]
    layer_s, name = min(no_less, default=(published, ""))
    if own_s is None or own_s <= 1.1 * layer_s:
        return None
    compared = f"{1e3 * own_s:.3g} ms a layer and slot, {1e3 * layer_s:.3g} there"
    return f"at odds with {name}: {compared}, with no less work on a device"


def _in_flight(run: MeasuredRun) -> float:
    """Microbatches that a first stage holds in 1F1B; one per stage where it is not told."""
    if not (run.global_batch and run.microbatch_size):
        return run.pipeline
    return min(run.pipeline, run.global_batch / (run.data * run.microbatch_size))


def _layer_in_slot_s(run: MeasuredRun, step_s: float) -> float | None:
    """A step's part for one layer of a stage in one of m + p - 1 slots; None where not told.

    What a table says of reducing gradients is no part of it.
    """
    if not (run.num_layers and run.global_batch and run.microbatch_size):
        return None
    slots = run.global_batch / (run.data * run.microbatch_size) + run.pipeline - 1
    computed_s = step_s - float(run.setting("grad_reduce_time_s") or 0.0)
    return computed_s * run.pipeline / (slots * run.num_layers)


def _beside(run: MeasuredRun) -> object:
    """What rows share that differ in degrees and microbatch alone; uneven stages share a number."""
    uneven = run.pipeline if run.setting("layers_per_stage") else None
    sizes = run.model, run.num_layers, run.accelerator, run.sequence_length, run.precision, uneven
    return *sizes, run.zero_stage, run.context, run.expert, run.virtual_stages, run.recompute


def _layout(run: MeasuredRun) -> object:
    """What rows share that differ in their microbatch alone."""
    degrees = run.tensor, run.pipeline, run.data, run.context, run.expert, run.virtual_stages
    return run.model, run.accelerator, run.sequence_length, run.global_batch, run.recompute, degrees


def _reason(
    row: ScoredRun, quantity: str, beside: float, typical: float, others: Sequence[float]
) -> str:
    """What is known of a miss; `beside` is its ratio to the `typical` one of its table.

    `others` are the ratios of rows that differ in the microbatch alone.
    """
    if row.assumed:
        return f"the row leaves open: {', '.join(row.assumed)}"
    if abs(beside - 1) <= STEP.relative and abs(typical - 1) > STEP.relative:
        return f"the table as a whole is predicted at {typical:.2f} of what was measured"
    if quantity == "step_time" and _in_range(row):
        return "inside our 90% range"
    said = "not known" + (": outside our 90% range" if quantity == "step_time" else "")
    if others:
        rows = "row of this layout is" if len(others) == 1 else "rows of this layout are"
        said += f"; {len(others)} more {rows} at {median(others):.2f} of what was measured"
    return said


def _in_range(row: ScoredRun) -> bool:
    return row.step_time_low_s <= row.measured_step_time_s <= row.step_time_high_s


def _tables() -> Iterator[Paper]:
    """Two entries for the times of each table, and one for memory, in which nothing is fitted."""
    for name, table, source in (
        ("SC'21, table 1, times", "megatron_scaling", "Narayanan et al., arXiv:2104.04473"),
        ("Korthikanti, table 5", "korthikanti", "arXiv:2205.05198"),
        ("vTrain", "vtrain_multi", "Bang et al., MICRO 2024, ground truth of several nodes"),
        ("SimuMax B200", "simumax_b200", "MooreThreads/SimuMax, docs/b200, release 1.2"),
        ("Sailor, GH200", "sailor_gh200", "Strati et al., SOSP 2025, validation data"),
        ("Sailor, mixed devices", "sailor_mixed", "Strati et al., SOSP 2025, validation data"),
    ):
        sc21 = table == "megatron_scaling"
        for kind in (FITTED, UNSEEN):
            yield Paper(
                name=name if kind == FITTED else f"{name}, unseen",
                source=f"{source}; `{table}.csv`",
                tolerance=STEP,
                numbers=measured(
                    table, "step_time", unseen=kind == UNSEEN, only=_of_sc21 if sc21 else None
                ),
                kind=kind,
                needs=f"measured/{table}.csv",
            )
    for name, table in (
        ("SimuMax B200, memory", "simumax_b200"),
        ("Sailor, GH200, memory", "sailor_gh200"),
        ("Sailor, mixed devices, memory", "sailor_mixed"),
    ):
        yield Paper(
            name=name,
            source=f"`{table}.csv`, as above",
            tolerance=Tolerance(relative=0.05),
            numbers=measured(table, "peak_memory"),
            needs=f"measured/{table}.csv",
        )


def _of_sc21(run: object) -> bool:
    return run.setting("table") == "sc21_table1"


CLOSED = "schedules/closed_forms.json"
PAPERS: Final = (
    Paper(
        name="Zero Bubble, table 5",
        source="Qi et al., ICLR 2024; profiled times and memory of the table",
        tolerance=Tolerance(absolute=1e-4),
        numbers=zero_bubble,
        needs="schedules/zero_bubble_table5.json",
    ),
    Paper(
        name="Zero Bubble, at unit times",
        source="Qi et al., ICLR 2024; the authors' orders, and formulas of ZB-H1 and ZB-H2",
        tolerance=EXACT,
        numbers=unit_times(("1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p")),
        needs=CLOSED,
    ),
    Paper(
        name="Controllable Memory, at unit times",
        source="Qi et al., NeurIPS 2024; orders of the authors' generators",
        tolerance=EXACT,
        numbers=unit_times(("V-Min", "V-Half", "ZB-V", "1F1B-V", "GIS", "GIS-H", "Adaptive-V")),
        needs=CLOSED,
    ),
    Paper(
        name="Vocabulary Parallelism",
        source="Yeung et al., MLSys 2025, figure 10 and the table of sail-sg/VocabularyParallelism",
        tolerance=EXACT,
        numbers=vocabulary,
    ),
    Paper(
        name="Vocabulary Parallelism, passes",
        source="arXiv:2411.05288, artifact/exp_one_host.csv; a step from its profiled passes",
        tolerance=Tolerance(relative=0.03),
        numbers=vocabulary_steps,
    ),
    Paper(
        name="Vocabulary Parallelism, memory",
        source="arXiv:2411.05288, artifact/example-results/full-exp.txt; reserved, "
        "typically 1.05 of what tensors hold",
        tolerance=Tolerance(relative=0.05),
        numbers=vocabulary_estimates("memory"),
    ),
    Paper(
        name="PipeOffload",
        source="Wan et al., ICML 2025; all activations offloaded beside 1F1B, copies that hide",
        tolerance=EXACT,
        numbers=offloaded,
    ),
    Paper(
        name="SC'21, bubbles",
        source="Narayanan et al., arXiv:2104.04473, section 2.2; the share of the work",
        tolerance=EXACT,
        numbers=chunks("interleaved"),
    ),
    Paper(
        name="Breadth-first, bubbles",
        source="Lamy-Poirier, MLSys 2023; the share of the work",
        tolerance=EXACT,
        numbers=chunks("breadth-first"),
    ),
    Paper(
        name="STP, comparison of schedules",
        source="Qi et al., arXiv:2510.27257, the authors' table (MICLAB-BUPT/STP)",
        tolerance=EXACT,
        numbers=braided,
    ),
    Paper(
        name="DualPipe and DualPipeV",
        source="DeepSeek-V3, arXiv:2412.19437, table 2, and the table of deepseek-ai/DualPipe",
        tolerance=EXACT,
        numbers=two_ways,
    ),
    Paper(
        name="Chimera, table 2",
        source="Li and Hoefler, SC 2021; slots of equal length",
        tolerance=EXACT,
        numbers=bidirectional,
    ),
    Paper(
        name="2BP, table 1",
        source="Rae et al., 2024; 1F1B with as many microbatches as ranks",
        tolerance=EXACT,
        numbers=two_stage_backward,
    ),
    Paper(
        name="SlimPipe, table 2",
        source="Li et al., 2025; slices of equal length",
        tolerance=EXACT,
        numbers=slices,
    ),
    Paper(
        name="Piper",
        source="Tarnawski et al., NeurIPS 2021; plans of the published program",
        tolerance=EXACT,
        numbers=piper,
        needs="partitioning",
    ),
    Paper(
        name="Piper, equal splits",
        source="Tarnawski et al., NeurIPS 2021; baselines by the rules of the paper",
        tolerance=EXACT,
        numbers=piper_baselines,
        needs="partitioning",
    ),
    Paper(
        name="PHAZE, placement",
        source="Wang et al., ICML 2024; answers of the published program, version 1.0",
        tolerance=EXACT,
        numbers=phaze,
        needs="codesign/placement",
    ),
    Paper(
        name="Korthikanti, memory",
        source="arXiv:2205.05198; the formulas of table 2, evaluated for the models of table 3",
        tolerance=Tolerance(absolute=1e-4, unit="GiB"),
        numbers=activation_memory,
    ),
    Paper(
        name="SC'21, table 1, parameters",
        source="Narayanan et al., arXiv:2104.04473; printed to 0.1",
        tolerance=Tolerance(absolute=0.05, unit="10⁹"),
        numbers=sc21_parameters,
    ),
    Paper(
        name="DeepSeek-V3, table 2",
        source="arXiv:2412.19437, section 3.2.1; the formulas of the two families we share",
        tolerance=EXACT,
        numbers=deepseek_table_2,
    ),
    Paper(
        name="Llama 3 and DeepSeek-V3, parameters",
        source="arXiv:2407.21783, section 3.2; arXiv:2412.19437, section 4.2; "
        "printed to 1, cut or rounded",
        tolerance=Tolerance(absolute=1.0, unit="10⁹"),
        numbers=catalog_parameters,
    ),
    Paper(
        name="SC'21, tables 1 and 2, layouts",
        source="arXiv:2104.04473; TFLOP/s a device as seconds, by its formula",
        tolerance=STEP,
        numbers=layouts("GPT"),
        kind=OTHERS,
    ),
    Paper(
        name="Llama 3, table 4",
        source="arXiv:2407.21783; TFLOP/s a device as seconds, attention counted in full",
        tolerance=STEP,
        numbers=llama,
        kind=OTHERS,
    ),
    Paper(
        name="DeepSeek-V3, its training run",
        source="arXiv:2412.19437; 180 K device hours per trillion tokens of section 1, "
        "layout and number formats of section 3",
        tolerance=STEP,
        numbers=layouts("DeepSeek"),
        kind=OTHERS,
    ),
    Paper(
        name="Vocabulary Parallelism, steps",
        source="arXiv:2411.05288, artifact/example-results/full-exp.txt; MFU as seconds",
        tolerance=STEP,
        numbers=vocabulary_estimates("step"),
        kind=OTHERS,
    ),
    Paper(
        name="Megatron Core, mixtures of experts",
        source="arXiv:2603.07685, the authors' table (yanring/Megatron-MoE-ModelZoo at e865051)",
        tolerance=STEP,
        numbers=mixtures,
        kind=OTHERS,
    ),
    *_tables(),
)
NOT_YET: Final = """\
Not here, since their inputs are not at hand: what PipeOffload measured, the interleaved rows of
Zero Bubble's table 5, the throughput tables of Controllable Memory and the chip tables of PHAZE.
Not here, since no order or option of ours is theirs: the 24 interlaced numbers of Vocabulary
Parallelism, and of Qwen3 on H100 three rows of five (hidden exchanges, FSDP, 96 virtual stages)."""


# The page
# --------


def table_of(paper: Paper, numbers: list[Number]) -> Iterator[str]:
    """The numbers of a paper; of many the misses alone."""
    shown = numbers
    if len(numbers) > MOST_SHOWN:
        shown = [each for each in numbers if each.verdict(paper.tolerance) == "miss"]
    if not shown:
        return
    yield "| number | published | ours | deviation | | why |"
    yield "|---|--:|--:|--:|---|---|"
    for each in shown:
        verdict = each.verdict(paper.tolerance)
        why = each.why if verdict == "miss" else ""
        values = f"{each.published:.6g} | {each.ours:.6g} {each.unit}".rstrip()
        yield f"| {each.what} | {values} | {each.deviation} | {verdict} | {why} |"


def section(paper: Paper, numbers: list[Number]) -> Iterator[str]:
    """A part of the page."""
    yield f"## {paper.name}"
    yield ""
    yield f"{paper.source}. Tolerance: {paper.tolerance}. {paper.kind.capitalize()}."
    yield ""
    if len(numbers) > MOST_SHOWN:
        count = sum(each.verdict(paper.tolerance) == "miss" for each in numbers)
        yield f"{len(numbers)} numbers, {count} missed; all are in `{NUMBERS.name}`."
        yield ""
    yield from table_of(paper, numbers)
    yield ""


def summary(found: dict[Paper, list[Number]]) -> Iterator[str]:
    """One line a paper, and one for each kind."""
    yield "| paper | numbers | ok | better | miss | within |"
    yield "|---|--:|--:|--:|--:|--:|"
    for kind in KINDS:
        total = [0, 0, 0]
        for paper, numbers in found.items():
            if paper.kind == kind:
                verdicts = [each.verdict(paper.tolerance) for each in numbers]
                counts = [verdicts.count(name) for name in ("ok", "better", "miss")]
                total = [one + more for one, more in zip(total, counts, strict=True)]
                yield _counted(paper.name, counts)
        if sum(total):
            yield _counted(f"**{kind}**", total)


def once(found: dict[Paper, list[Number]]) -> Iterator[str]:
    """How many there are when each published number counts once, as shipped and unseen."""
    for left_out, words in ((UNSEEN, "with the constants as shipped"), (FITTED, "unseen")):
        kept = [(p, each) for p, own in found.items() if p.kind != left_out for each in own]
        if not kept:
            continue
        within = sum(each.verdict(paper.tolerance) != "miss" for paper, each in kept)
        yield f"{within} of {len(kept)} numbers ({within / len(kept):.1%}) {words}"
    unseen = [each for paper, own in found.items() if paper.kind == UNSEEN for each in own]
    inside = sum(each.in_range or False for each in unseen)
    yield f"{inside} of {len(unseen)} unseen rows lie in the 90 % range stated beside them"


def _counted(name: str, counts: list[int]) -> str:
    ok, better, miss = counts
    share = f"{(ok + better) / sum(counts):.0%}".replace("%", " %")
    return f"| {name} | {sum(counts)} | {ok} | {better} | {miss} | {share} |"


def page(found: dict[Paper, list[Number]]) -> str:
    """The report, in Markdown."""
    absent = [paper.name for paper in PAPERS if paper not in found]
    lines = [
        "# Numbers of papers beside ours",
        "",
        "`make papers` computes every number again and writes this page. `ok` is within the",
        "tolerance; `better` is a shorter time, bubble or peak where the published one is what a",
        "program found; everything else is a miss, with what is known of it. `unseen` repeats the",
        "measured rows with constants fitted to the tables of other sources: what to expect of a",
        "run that nobody has measured. As shipped, the constants have seen these rows.",
        "",
        *summary(found),
        "",
        "Each published number once, within its tolerance: " + "; ".join(once(found)) + ".",
        "",
        NOT_YET,
        "",
    ]
    if absent:
        lines += [f"Left out, their inputs are not here: {', '.join(absent)}.", ""]
    for paper, numbers in found.items():
        lines += section(paper, numbers)
    return "\n".join(lines).rstrip() + "\n"


def numbers_csv(found: dict[Paper, list[Number]]) -> str:
    """All numbers in one table."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("paper", "number", "published", "ours", "unit", "deviation", "verdict", "kind", "source")
    )
    for paper, numbers in found.items():
        for each in numbers:
            writer.writerow(
                (
                    paper.name,
                    each.what,
                    f"{each.published:.8g}",
                    f"{each.ours:.8g}",
                    each.unit,
                    each.deviation,
                    each.verdict(paper.tolerance),
                    paper.kind,
                    paper.source,
                )
            )
    return text.getvalue()


def main() -> None:
    """Print the page, and store it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="papers whose names hold this", default="")
    parser.add_argument("--write", action="store_true", help="store page and table, of all papers")
    asked = parser.parse_args()
    chosen = [paper for paper in PAPERS if asked.only.lower() in paper.name.lower()]
    found = {paper: list(paper.numbers()) for paper in chosen if paper.is_there}
    print(page(found))
    if asked.write:
        if len(found) < len(PAPERS):
            sys.exit("papers: nothing is stored unless every paper was computed")
        PAGE.write_text(page(found), encoding="utf-8")
        NUMBERS.write_text(numbers_csv(found), encoding="utf-8")


if __name__ == "__main__":
    main()
