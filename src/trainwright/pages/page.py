"""Results as one HTML file that needs nothing else: figures, charts, schedules, reasons, sources.

Each document has its sections; several share a comparison and one time scale of schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any, Final

from trainwright.cluster import Cluster
from trainwright.documents.difference import Difference, difference_tables
from trainwright.documents.explanation import ModelExplanation
from trainwright.documents.improvement import ImprovementResult
from trainwright.documents.jobs import timelines_of
from trainwright.documents.model_estimate import ModelEstimateResult, with_changes
from trainwright.documents.model_plan import ModelPlanResult, planned
from trainwright.documents.model_search import planned_on_pools, priced_parts
from trainwright.documents.printing import NEGLIGIBLE
from trainwright.documents.profile_plan import count_recomputed
from trainwright.documents.registry import kind_of, part
from trainwright.documents.runs import trained_and_cluster
from trainwright.documents.schedule import ScheduleResult, timeline_of
from trainwright.documents.sweep import ModelSweepResult
from trainwright.documents.view import Cell, Column, Table
from trainwright.errors import InvalidInput, UnsupportedFeature
from trainwright.formats.document_json import content_hash, decode, encode
from trainwright.pages.blocks import Bar, BarChart, Gantt, Part, Section, Verdict
from trainwright.pages.command import command_of
from trainwright.pages.gantt import (
    DARK,
    LIGHT,
    SCRIPTS,
    GanttPanel,
    asset,
    environment,
    figure_data,
    figure_words,
    label_ink,
    policy,
    script_safe,
    theme_css,
)
from trainwright.pages.subject import Content, Figure, PricedStep, Subject
from trainwright.plans import Plan, StepPrediction
from trainwright.plans.configuration import StepSettings
from trainwright.plans.lowered import Timeline
from trainwright.plans.plan import Embedded
from trainwright.plans.prediction import MEMORY_CLASSES
from trainwright.profile import Profile
from trainwright.scheduling.simulate import critical_path
from trainwright.step.account import network_use, ranks_by_part_s, step_timeline
from trainwright.step.predict import plan_of, predict_step, price_configuration, profile_of_run
from trainwright.step.stages import Placement
from trainwright.units import format_count

# A document with everything that its page shows, computed again from its request and plan
# ----------------------------------------------------------------------------------------


MOST_DRAWN_ACTIONS: Final = 1_000_000  # a page of about 3 MB; more would not open quickly


def subject_of(document: Any, *, name: str, file: str = "") -> Subject[Any]:
    """The document with its timeline, network use and constants, as far as it has them.

    `name` is what it is called on the page, `file` the name of its own file, if it has one. What
    lies inside another document is called after that: "whatif.json: before".
    """
    of, _, part = ("", "", "") if file else name.rpartition(": ")
    command = command_of(document, file=file, part=part if of else "", of=of)
    parts = _following(document, name)
    return Subject(
        name=name,
        sha256=content_hash(encode(document)),
        command=command.text,
        command_note=command.note,
        **{"document": document, **parts},
    )


@singledispatch
def _following(document: object, name: str) -> dict[str, Any]:
    """What follows from a document beside its own figures; of a profile's plan nothing does."""
    return {}


@_following.register
def _(document: ModelPlanResult, name: str) -> dict[str, Any]:
    if document.on_pools:
        return _following_on_pools(document, name)
    if not document.stages:
        return {"cluster": _cluster(document.request.cluster)}
    question, plan, profile = planned(document)
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    return _step_parts(name, plan, profile, question.cluster, step, question.step_settings)


def _following_on_pools(document: ModelPlanResult, name: str) -> dict[str, Any]:
    parts: dict[str, Any] = {"cluster": _cluster(document.request.cluster)}
    if document.ends is None:
        return parts
    parts["parts_of_rank_s"] = priced_parts(document)
    own = [rank for rank in document.ranks if rank.chain == document.ends[0]]
    if too_many := _undrawn(2 * len(document.stages) * own[0].num_microbatches):
        return parts | too_many
    timeline = timelines_of(document)[document.ends[0]]
    return parts | {"panel": _panel(name, planned_on_pools(document)[1], timeline)}


@_following.register
def _(document: ImprovementResult, name: str) -> dict[str, Any]:
    return {"cluster": _cluster(document.request.cluster)}


@_following.register
def _(document: ModelExplanation, name: str) -> dict[str, Any]:
    return _following(document.plan, name)


@_following.register
def _(document: ModelSweepResult, name: str) -> dict[str, Any]:
    if document.best_plan is None:
        return {"cluster": _cluster(document.request.cluster)}
    return _following(document.best_plan, name)


@_following.register
def _(document: ModelEstimateResult, name: str) -> dict[str, Any]:
    if document.plan is not None:
        return _following(document.plan, name)
    run = document.request.configuration
    model, cluster = trained_and_cluster(document.request)
    profile = profile_of_run(model, cluster, run)
    plan = plan_of(run, profile)
    step = price_configuration(model, cluster, run, profile)
    parts = _step_parts(name, plan, profile, cluster, step, run.step_settings)
    return parts | {"document": with_changes(document)}


@_following.register
def _(document: ScheduleResult, name: str) -> dict[str, Any]:
    from trainwright.pages.schedule_report import ScheduleReport

    timeline = timeline_of(document)
    if timeline is None:
        return {}
    return {"panel": ScheduleReport(document, timeline).panel()}


def _step_parts(
    name: str,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    step: StepPrediction,
    settings: StepSettings,
) -> dict[str, Any]:
    priced = _priced(plan, profile, cluster, step)
    parts: dict[str, Any] = {"cluster": cluster, "priced": priced}
    if too_many := _undrawn(2 * len(plan.stages) * priced.num_microbatches):
        return parts | too_many
    try:
        timeline = step_timeline(plan, profile, cluster, **settings)
    except UnsupportedFeature as error:
        return parts | {"left_out": (f"the schedule: {error}",)}
    return parts | {"panel": _panel(name, plan, timeline)}


def _undrawn(actions: int) -> dict[str, Any]:
    """What is said in place of a schedule that has too many actions."""
    if actions <= MOST_DRAWN_ACTIONS:
        return {}
    why = f"the schedule: of {actions:,} actions, more than {MOST_DRAWN_ACTIONS:,} are not drawn"
    return {"left_out": (why,)}


def _panel(name: str, plan: Plan, timeline: Timeline) -> GanttPanel:
    ranks, m = timeline.schedule.num_ranks, timeline.schedule.num_microbatches
    return GanttPanel(
        timeline=timeline,
        title=f"{name}: {plan.schedule}, {format_count(ranks, 'rank')}, "
        f"{format_count(m, 'microbatch')}",
        critical=critical_path(timeline),
    )


def _priced(plan: Plan, profile: Profile, cluster: Cluster, step: StepPrediction) -> PricedStep:
    placement = Placement(plan=plan, pool=cluster.pool_of())
    owner = placement.rank_of_stage if placement.is_uniform else tuple(range(len(plan.stages)))
    stages = [
        [stage for stage, rank in zip(plan.stages, owner, strict=True) if rank == own]
        for own in range(len(step.stages))
    ]
    return PricedStep(
        step=step,
        num_microbatches=placement.shape.num_microbatches,
        parts_of_rank_s=ranks_by_part_s(plan, profile, step, rank_of_stage=owner),
        layers_of_rank=tuple(tuple(sorted(i for s in own for i in s.layers)) for own in stages),
        recomputed_of_rank=tuple(sum(count_recomputed(s, profile) for s in own) for own in stages),
        degrees_of_rank=tuple((own[0].data_parallel, own[0].tensor_parallel) for own in stages),
        network=network_use(plan, cluster, step),
    )


def _cluster(embedded: Embedded | None) -> Cluster | None:
    if embedded is None:
        return None
    return decode(Cluster, embedded.content, path="request.cluster.content")


# Colours of bars and tones on the page, beside those of schedules
# ----------------------------------------------------------------
# Neighbours in a bar differ in lightness, and every part is named in words, so that nothing is said
# by hue alone. Hues follow Okabe and Ito as in `pages.gantt`.

# By kind of part, on a light and on a dark page.
PARTS: Final = {
    "compute": ("#0072b2", "#1681c4"),
    "recompute": ("#d3a3c2", "#d9aecb"),
    "tensor": ("#d55e00", "#dd6a17"),
    "context": ("#f0c04a", "#f0c04a"),
    "expert": ("#8a4f7d", "#a86a9a"),
    "traffic": ("#e69f00", "#e8a51c"),
    "sync": ("#009e73", "#0fa67c"),
    "transfers": ("#8cc8ea", "#8cc8ea"),
    "bubble": ("#d3d8de", "#39414b"),
    "imbalance": ("#b9a15a", "#8a7636"),
    "unused": ("#d3d8de", "#39414b"),
    "data": ("#009e73", "#0fa67c"),
    "overhead": ("#8d99a6", "#6b7682"),
    "optimizer": ("#4a5562", "#b3bfcc"),
    **{each.part: each.colors for each in MEMORY_CLASSES},
    "exposed": ("#d55e00", "#dd6a17"),
    "hidden": ("#8cc8ea", "#56a9d6"),
    "arrays": ("#0072b2", "#1681c4"),
    "array-buffers": ("#8cc8ea", "#8cc8ea"),
    "lanes": ("#e69f00", "#e8a51c"),
    "lane-buffers": ("#f6d99a", "#f0d08a"),
    "global": ("#009e73", "#0fa67c"),
    "mac": ("#0072b2", "#1681c4"),
    "vector": ("#e69f00", "#e8a51c"),
    "hbm": ("#d55e00", "#dd6a17"),
    "glb": ("#009e73", "#0fa67c"),
    "launch": ("#8d99a6", "#6b7682"),
    "plain": ("#0072b2", "#1681c4"),
}
TONES: Final = {
    "good": ("#0a6b4f", "#5fd3a8"),
    "warn": ("#8a5300", "#ffc26b"),
    "bad": (LIGHT.limit, DARK.limit),
    "link": ("#00598c", "#6fb7e6"),
}


def palette_css() -> tuple[str, ...]:
    """Custom properties for both themes, as `gantt.theme_css` has them."""
    light, dark = (_properties(index) for index in (0, 1))
    rules = [
        f".p-{name} {{ fill: var(--p-{name}); background: var(--p-{name}) }}" for name in PARTS
    ]
    inks = [f".ink-{name} {{ fill: var(--i-{name}) }}" for name in PARTS]
    return (
        f":root {{ {light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}",
        f":root[data-theme=dark] {{ {dark} }}",
        f"@media print {{ :root:root:root {{ {light} }} }}",
        *rules,
        *inks,
    )


def _properties(index: int) -> str:
    parts = (f"--p-{name}: {colors[index]};" for name, colors in PARTS.items())
    inks = (f"--i-{name}: {label_ink(colors[index])};" for name, colors in PARTS.items())
    tones = (f"--{name}: {colors[index]};" for name, colors in TONES.items())
    return " ".join((*parts, *inks, *tones))


# What the page says about a document, by its kind
# ------------------------------------------------


def content_of(subject: Subject[Any]) -> Content:
    """Title, figures and sections; raises TypeError for a document without a page."""
    page = kind_of(subject.document).page
    if page is None:
        raise TypeError(f"no page is known for {subject.document.kind}")
    found: Content = part(page)(subject)
    if subject.verification is None:
        return found
    from trainwright.pages.validation import with_verification

    return with_verification(found, subject.verification)


# Several results beside each other: key figures, the times as bars, what was asked differently
# ---------------------------------------------------------------------------------------------

_DRAWN: Final = ("step_time_s", "tokens_per_s", "time_per_sample_s", "makespan_s")


def comparison_section(
    subjects: Sequence[Subject[Any]],
    contents: Sequence[Content],
    differences: Sequence[Difference | None],
) -> Section:
    """All documents at once; `differences` are from the first to each of the others."""
    blocks: list[Verdict | Table | BarChart] = [*_fastest(subjects, contents)]
    blocks.append(_figures_table(subjects, contents))
    for key in _DRAWN:
        stated = [
            (subject.name, figure)
            for subject, content in zip(subjects, contents, strict=True)
            for figure in content.figures
            if figure.key == key and isinstance(figure.value, float)
        ]
        if len(stated) > 1:
            blocks.append(_bars(stated))
    for subject, difference in zip(subjects[1:], differences, strict=True):
        if difference is not None:
            blocks += difference_tables(
                replace(difference, stage_changes=()), subjects[0].name, subject.name
            )
    return Section(name="comparison", label="Comparison", title="Comparison", blocks=tuple(blocks))


_ALL: Final = ("both", "all")


def _fastest(subjects: Sequence[Subject[Any]], contents: Sequence[Content]) -> Iterator[Verdict]:
    """Which document is fastest, where all are of one model and state one time or speed."""
    requests = [getattr(subject.document, "request", None) for subject in subjects]
    models = {getattr(getattr(each, "model", None), "sha256", None) for each in requests}
    if len(models) > 1:
        return
    for key in _DRAWN:
        stated = [
            (subject.name, figure)
            for subject, content in zip(subjects, contents, strict=True)
            for figure in content.figures
            if figure.key == key and isinstance(figure.value, float) and figure.value > 0
        ]
        if len(stated) < len(subjects):
            continue
        ranked = sorted(stated, key=lambda each: float(each[1].value or 0.0))
        if key == "tokens_per_s":
            ranked.reverse()
        name, best = ranked[0]
        against = [
            (other, figure.text, float(figure.value or 0.0) / float(best.value or 1.0) - 1)
            for other, figure in ranked[1:]
        ]
        others = "; ".join(f"{other}: {text} ({more:+.1%})" for other, text, more in against)
        same = all(abs(more) < NEGLIGIBLE for *_, more in against)
        state, said = f"Fastest is {name}", f"{best.title} {best.text}; {others}."
        if same:
            state, said = "Equally fast", f"{best.title} {best.text} in {_ALL[len(ranked) > 2]}."
        yield Verdict(state=state, said=said, tone="plain")
        return


def _figures_table(subjects: Sequence[Subject[Any]], contents: Sequence[Content]) -> Table:
    titles = {figure.key: figure.title for content in contents for figure in content.figures}
    numeric = {
        figure.key: not isinstance(figure.value, str)
        for content in contents
        for figure in content.figures
    }
    rows = []
    for subject, content in zip(subjects, contents, strict=True):
        found = {figure.key: figure for figure in content.figures}
        cells = (_cell(found.get(key)) for key in titles)
        rows.append((Cell.of(subject.name), Cell.of(content.title), *cells))
    columns = [
        Column(title="document", key="document", is_number=False),
        Column(title="what", key="what", is_number=False),
    ]
    columns += [Column(title=titles[key], key=key, is_number=numeric[key]) for key in titles]
    return Table(title="Key figures", columns=tuple(columns), rows=tuple(rows))


def _cell(figure: Figure | None) -> Cell:
    if figure is None or figure.value is None:
        return Cell.of("")
    return Cell(text=figure.text, value=figure.value)


def _bars(stated: Sequence[tuple[str, Figure]]) -> BarChart:
    first = float(stated[0][1].value or 0.0)
    bars = []
    for name, figure in stated:
        amount = float(figure.value or 0.0)
        ratio = f", {amount / first:.3g}×" if first else ""
        part = Part(kind="plain", label=figure.title, amount=amount, text=figure.text)
        bars.append(Bar(label=name, parts=(part,), total=figure.text + ratio))
    return BarChart(
        title=stated[0][1].title[:1].upper() + stated[0][1].title[1:],
        bars=tuple(bars),
        label="document",
    )


# Results as one HTML file that needs nothing else: figures, charts, schedules, reasons, sources
# ----------------------------------------------------------------------------------------------

_OWN_SCRIPTS: Final = ("report_page.js",)
_MOST_HEIGHT, _LEAST_HEIGHT = 640, 200  # of the schedule's picture, in pixels


def page_html(
    *subjects: Subject[Any],
    differences: Sequence[Difference | None] | None = None,
    title: str | None = None,
    date: str | None = None,
) -> str:
    """One page about all subjects; `differences` are from the first to each of the others.

    100,000 actions take about 0.3 MB. Raises InvalidInput without subjects.
    """
    if not subjects:
        raise InvalidInput.of("documents", "must be at least 1 document, got none")
    contents = [content_of(subject) for subject in subjects]
    panels = [subject.panel for subject in subjects if subject.panel is not None]
    parts = _parts(subjects, contents, differences or (None,) * (len(subjects) - 1))
    style = "\n".join(_styles(panels))
    names = (*(SCRIPTS if panels else ()), *_OWN_SCRIPTS)
    scripts = [asset(name) for name in names]
    return (
        environment()
        .get_template("report_page.html.j2")
        .render(
            title=title or " and ".join(content.title for content in contents),
            heading=title or (contents[0].title if len(contents) == 1 else "Comparison"),
            subtitle=contents[0].subtitle if len(contents) == 1 else f"{len(contents)} documents",
            date=date,
            style=style,
            scripts=scripts,
            policy=policy(style, scripts),
            data=script_safe(figure_data(panels)) if panels else None,
            figure=figure_words(panels) if panels else None,
            parts=parts,
        )
    )


def _parts(
    subjects: Sequence[Subject[Any]],
    contents: Sequence[Content],
    differences: Sequence[Difference | None],
) -> list[dict[str, Any]]:
    """What stands under the heading: sections, by document where there are several."""
    if len(contents) == 1:
        return [{"title": None, "sections": contents[0].sections}]
    shared = [comparison_section(subjects, contents, differences)]
    if any(subject.panel for subject in subjects):
        gantt = Gantt(note="All schedules on one time scale.")
        title = "Schedules and memory over time"
        shared.append(Section(name="schedule", label="Schedule", title=title, blocks=(gantt,)))
    parts: list[dict[str, Any]] = [{"title": None, "sections": tuple(shared)}]
    for number, (subject, content) in enumerate(zip(subjects, contents, strict=True), 1):
        sections = tuple(
            replace(section, name=f"{section.name}-{number}")
            for section in content.sections
            if not any(isinstance(block, Gantt) for block in section.blocks)
        )
        parts.append(
            {
                "title": f"{subject.name}: {content.title}",
                "subtitle": content.subtitle,
                "label": subject.name,
                "sections": sections,
            }
        )
    return parts


def _styles(panels: Sequence[GanttPanel]) -> tuple[str, ...]:
    rows = sum(panel.num_ranks for panel in panels)
    height = min(max(60 + 26 * len(panels) + 110 * rows, _LEAST_HEIGHT), _MOST_HEIGHT)
    return (
        *theme_css(),
        *palette_css(),
        asset("gantt.css"),
        f"#scroller {{ height: {height}px }}",
        asset("report_page.css"),
    )
