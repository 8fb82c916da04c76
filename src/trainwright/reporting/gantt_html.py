"""Schedules of any size as one HTML file that needs nothing else.

The page is `gantt_page.html.j2` around the figure of `gantt_figure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.errors import InvalidInput
from trainwright.reporting.gantt_figure import SCRIPTS, figure_data, figure_words, theme_css
from trainwright.reporting.self_contained import asset, environment, policy, script_safe

if TYPE_CHECKING:
    from trainwright.reporting.gantt_panel import GanttPanel


def gantt_html(*panels: GanttPanel, title: str | None = None) -> str:
    """One page with a panel per schedule, all on one time scale.

    Raises InvalidInput without panels. 100,000 actions take about 0.3 MB.
    """
    if not panels:
        raise InvalidInput.of("panels", "must have at least 1 schedule to draw, got none")
    style = "\n".join((*theme_css(), asset("gantt.css"), asset("gantt_page.css")))
    scripts = [asset(name) for name in SCRIPTS]
    return (
        environment()
        .get_template("gantt_page.html.j2")
        .render(
            title=title or " and ".join(panel.title for panel in panels),
            style=style,
            scripts=scripts,
            policy=policy(style, scripts),
            data=script_safe(figure_data(panels)),
            figure=figure_words(panels),
        )
    )
