"""The figures of the page on accuracy, from the document of `validate`.

Its data are public tables of measured runs that are not part of this repository, so this part is
stored in `docs/accuracy.md` between two marks: `docs/write_accuracy.py FOLDER` writes it, and a
test holds it against the data where they are.
"""

from __future__ import annotations

from generated.chart import Axis, Bar, Series, bars_chart, pairs_chart
from trainwright.documents.validation import DatasetScore, ErrorRecord, ValidationResult

# Where each table was published, and what a reader must know of it.
SOURCES = {
    "dgxc": "NVIDIA dgxc-benchmarking, READMEs of releases 24.11 to 25.05",
    "korthikanti": "Korthikanti et al., 2022 (arXiv:2205.05198), table 5",
    "megatron_ci": "golden values of Megatron-LM's functional tests: mostly tiny models, bound by "
    "the host",
    "megatron_scaling": "Narayanan et al., SC 2021, table 1; weak scaling of Megatron core 0.8",
    "mosaicml_fsdp": "mosaicml llm-foundry, benchmarks of its README",
    "nemo_releases": "performance summaries of NeMo 24.07 and Megatron-Bridge: experts balanced by "
    "force, recomputation not stated",
    "published_runs": "arXiv:2201.11990 as collected by llm-analysis; an article on AMD Primus",
    "sailor_gh200": "Sailor, SOSP 2025: plans on GH200",
    "sailor_mixed": "Sailor, SOSP 2025: four runs on mixed RTX 3090, RTX 2080 and Titan RTX",
    "simumax_b200": "SimuMax release 1.2: runs on B200",
    "torchtitan": "torchtitan's benchmark notes: H100 of 96 GB and 500 W, H200",
    "vtrain_multi": "vTrain, MICRO 2024: Megatron-DeepSpeed on A100",
}
_QUANTITIES = (
    ("time", "step time"),
    ("memory", "peak memory"),
    ("static_memory", "static memory"),
    ("memory_apart", "peak memory, settings not recorded"),
    ("static_memory_apart", "static memory, settings not recorded"),
)


BEGIN, END = "<!-- begin: figures -->\n", "<!-- end: figures -->\n"

_INTRODUCTION = """\
{tables} public tables have {rows:,} measured rows, of which {modelled:,} can be modelled. The
shipped constants were fitted to these rows; errors on rows that a fit has not seen are in the
[reports](#reports). All figures are percent.

![Mean error of step time by table](pictures/charts/accuracy-figures.svg)

Two measurements of one plan differ by a few percent themselves, and by 16% in the median on the
tiny models of Megatron's tests, whose time is the start of kernels.

| table | rows | quantity | n | mean | median | p90 | largest | bias |
| --- | --: | --- | --: | --: | --: | --: | --: | --: |"""
_RANKING = """
*Tau* is Kendall's, *regret* how much slower the layout predicted fastest was than the fastest. A
*false fit* needs 5% more memory than predicted. Over all tables {coverage}% of the steps lie in
their *range*, which shall hold nine of ten.

| table | tau | regret, mean | largest | false fits | in the range | its width |
| --- | --: | --: | --: | --: | --: | --: |"""


def with_figures(page: str, found: ValidationResult) -> str:
    """A page with its figures written anew; raises `ValueError` where it has no marks."""
    start, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return page[:start] + accuracy_part(found) + page[end:]


def accuracy_part(found: ValidationResult) -> str:
    """Markdown: the tables of `validate` with their sources."""
    rows = sum(dataset.rows for dataset in found.datasets)
    modelled = sum(dataset.modelled for dataset in found.datasets)
    lines = [_INTRODUCTION.format(tables=len(found.datasets), rows=rows, modelled=modelled)]
    worst_first = sorted(found.datasets, key=lambda each: -each.time.mape if each.time else 0.0)
    for dataset in worst_first:
        lines += _error_rows(dataset)
    lines += [
        _RANKING.format(coverage=_percent(found.pooled_interval_coverage)),
        *map(_ranking_row, found.datasets),
        "",
        "| table | published in |",
        "| --- | --- |",
        *(f"| {each.name} | {SOURCES.get(each.name, '')} |" for each in found.datasets),
        "",
        "Not modelled:",
        "",
    ]
    lines += [
        f"- {dataset.name}: {skipped.rows} rows, {skipped.reason}"
        for dataset in found.datasets
        for skipped in dataset.skipped
    ]
    return "\n".join([*lines, ""])


def accuracy_chart(found: ValidationResult) -> str:
    """Mean and median error of step time by table."""
    scored = [(dataset.name, dataset.time) for dataset in found.datasets if dataset.time]
    bars = [
        Bar(
            name=name,
            parts=[
                ("median error", 100 * min(errors.median_ape, errors.mape)),
                ("up to the mean", 100 * max(errors.mape - errors.median_ape, 0.0)),
            ],
            note=f"{errors.n} configurations, largest {100 * errors.max_ape:.0f}%",
        )
        for name, errors in sorted(scored, key=lambda each: each[1].mape)
    ]
    return bars_chart("Error of predicted step time, by table", bars, x=Axis(label="percent"))


def predicted_chart(found: ValidationResult) -> str:
    """Every measured step time beside its prediction, by whether the row states all it ran with."""
    stated: list[tuple[float, float]] = []
    assumed: list[tuple[float, float]] = []
    for dataset in found.datasets:
        for run in dataset.runs:
            if run.step_time_s and run.measured_step_time_s:
                pair = (run.measured_step_time_s, run.step_time_s)
                (assumed if run.assumed else stated).append(pair)
    title = f"{len(stated) + len(assumed)} public measurements, predicted"
    series = [
        Series(name=f"settings published ({len(stated)})", points=sorted(stated)),
        Series(name=f"some settings assumed ({len(assumed)})", points=sorted(assumed)),
    ]
    return pairs_chart(
        title,
        [each for each in series if each.points],
        x=Axis(label="measured step, s"),
        y=Axis(label="predicted step, s"),
    )


def _error_rows(dataset: DatasetScore) -> list[str]:
    head, rows = f"{dataset.name} | {dataset.modelled} of {dataset.rows}", []
    for field, name in _QUANTITIES:
        errors: ErrorRecord | None = getattr(dataset, field)
        if errors is None:
            continue
        figures = (errors.mape, errors.median_ape, errors.p90_ape, errors.max_ape, errors.bias)
        shown = " | ".join(map(_percent, figures))
        rows.append(f"| {head} | {name} | {errors.n} | {shown} |")
        head = " | "
    return rows


def _ranking_row(dataset: DatasetScore) -> str:
    tau = "–" if dataset.kendall_tau is None else f"{dataset.kendall_tau:.2f}"
    regret = dataset.top1_regret
    figures = (
        regret.mean if regret else None,
        regret.max if regret else None,
        dataset.false_fits,
        dataset.interval_coverage,
        dataset.interval_width,
    )
    shown = map(_percent, figures)
    return f"| {dataset.name} | {tau} | " + " | ".join(shown) + " |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value + 0.0:.1f}"
