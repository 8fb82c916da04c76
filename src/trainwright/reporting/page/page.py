"""Results as one HTML file that needs nothing else: figures, charts, schedules, reasons, sources.

Each document has its sections; several share a comparison and one time scale of schedules.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.reporting.gantt_figure import SCRIPTS, figure_data, figure_words, theme_css
from trainwright.reporting.page.blocks import Gantt, Section
from trainwright.reporting.page.comparison import comparison_section
from trainwright.reporting.page.contents import content_of
from trainwright.reporting.page.palette import palette_css
from trainwright.reporting.self_contained import asset, environment, policy, script_safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.plan.results.difference import Difference
    from trainwright.reporting.gantt_panel import GanttPanel
    from trainwright.reporting.page.subject import Content, Subject

_OWN_SCRIPTS: Final = ("page/report_page.js",)
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
        .get_template("page/report_page.html.j2")
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
        asset("page/report_page.css"),
    )
