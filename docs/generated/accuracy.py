"""The page of accuracy figures, from the document of `validate`.

Its data are public tables of measured runs that are not part of this repository, so this page is
stored: `docs/write_accuracy.py FOLDER` writes it, and a test holds it against the data where they
are.
"""

from __future__ import annotations

from generated.chart import Axis, Bar, bars_chart
from trainwright.plan.results.validation import DatasetScore, ErrorRecord, ValidationResult

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

_INTRODUCTION = """\
# How accurate it is, in figures

`trainwright validate` on {tables} public tables with {rows:,} measured rows, of which {modelled:,}
can be modelled. The constants that ship with the package were fitted to these rows, so the scores
are *seen*; unseen ones, by folds, are in the [report](benchmarks.md). What each column means is in
[the protocol](accuracy.md#the-protocol). Figures are percent.

![Mean error of step time by table](pictures/charts/accuracy-figures.svg)

Two measurements of one plan differ by a few percent themselves, and by 16 % in the median on the
tiny models of Megatron's tests, where starting kernels is all that takes time.

## Errors

| table | rows | quantity | n | mean | median | p90 | largest | bias |
| --- | --: | --- | --: | --: | --: | --: | --: | --: |"""
_RANKING = """
## Ranking, and what users feel

*Tau* is Kendall's, inside jobs with at least three layouts. *Regret* is how much slower the layout
predicted fastest was than the fastest. A *false fit* needs 5 % more memory than predicted. The
*range* is the one that shall hold nine of ten steps; over all tables it holds {coverage} %.

| table | tau | regret, mean | regret, largest | false fits | in the range | its width |
| --- | --: | --: | --: | --: | --: | --: |"""


def accuracy_page(found: ValidationResult) -> str:
    """Markdown: the tables of `validate` with their sources."""
    rows = sum(dataset.rows for dataset in found.datasets)
    modelled = sum(dataset.modelled for dataset in found.datasets)
    lines = [_INTRODUCTION.format(tables=len(found.datasets), rows=rows, modelled=modelled)]
    for dataset in found.datasets:
        lines += _error_rows(dataset)
    lines += [
        _RANKING.format(coverage=_percent(found.pooled_interval_coverage)),
        *map(_ranking_row, found.datasets),
        "",
        "## Tables",
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
            note=f"{errors.n} configurations, largest {100 * errors.max_ape:.0f} %",
        )
        for name, errors in sorted(scored, key=lambda each: each[1].mape)
    ]
    return bars_chart("Error of predicted step time, by table", bars, x=Axis(label="percent"))


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
    return f"| {dataset.name} | {tau} | " + " | ".join(map(_percent, figures)) + " |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value + 0.0:.1f}"
