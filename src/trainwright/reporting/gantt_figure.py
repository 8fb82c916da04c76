"""What a page needs to show schedules: data and colours for the canvas, words for those who read.

The canvas is drawn by plain scripts: `gantt_data.js` unpacks, `gantt_draw.js` and `gantt_pixels.js`
draw with a level of detail that follows the zoom, `gantt_print.js` cuts the picture for paper,
`gantt_input.js` listens, `gantt_page.js` holds what is in view. Several panels share one time
scale, which is how two schedules are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from trainwright.plan.schedule import ActionKind
from trainwright.reporting.gantt_pack import pack_panel
from trainwright.reporting.gantt_palette import TEXTURES, THEMES, Theme, label_ink
from trainwright.reporting.gantt_panel import KIND_NAMES, GanttPanel
from trainwright.reporting.gantt_scale import UNITS_OF, memory_top
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPTS: Final = (
    "gantt_data.js",
    "gantt_pixels.js",
    "gantt_ranks.js",
    "gantt_draw.js",
    "gantt_print.js",
    "gantt_input.js",
    "gantt_page.js",
)
_CSS_NAMES: Final = ("page", "row", "ink", "faint_ink", "line", "limit", "outline")


def figure_data(panels: Sequence[GanttPanel]) -> dict[str, Any]:
    """What the scripts draw, as JSON values."""
    num_chunks = max(panel.num_chunks for panel in panels)
    return {
        "panels": [pack_panel(panel) for panel in panels],
        "numChunks": num_chunks,
        "memoryTops": _memory_tops(panels),
        "timeUnits": UNITS_OF[_time_unit(panels)],
        "kindNames": [KIND_NAMES[kind] for kind in ActionKind],
        "textures": [TEXTURES[kind] for kind in ActionKind],
        "themes": {name: _theme_data(theme, num_chunks) for name, theme in THEMES.items()},
    }


def _memory_tops(panels: Sequence[GanttPanel]) -> dict[str, float]:
    """The scale of memory of each unit: activations are not compared with bytes."""
    units = {panel.memory_unit for panel in panels}
    return {
        unit.value: memory_top([panel for panel in panels if panel.memory_unit is unit])
        for unit in sorted(units, key=lambda unit: unit.value)
    }


def figure_words(panels: Sequence[GanttPanel]) -> dict[str, Any]:
    """What the templates say about the panels: titles, legend, every rank in numbers."""
    return {
        "panels": [_panel_facts(panel) for panel in panels],
        "legend": _legend(panels),
        "num_chunks": max(panel.num_chunks for panel in panels),
        "has_ranks": any(panel.num_ranks > 1 for panel in panels),
        "has_critical": any(panel.critical for panel in panels),
    }


def theme_css() -> tuple[str, ...]:
    """The colours as custom properties: by system setting, unless the reader chose."""
    light, dark = (_custom_properties(THEMES[name]) for name in ("light", "dark"))
    return (
        f":root {{ color-scheme: light; {light} }}",
        "@media (prefers-color-scheme: dark) {",
        f"  :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }}",
        "}",
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}",
        f"@media print {{ :root:root:root {{ color-scheme: light; {light} }} }}",
    )


def _time_unit(panels: Sequence[GanttPanel]) -> TimeUnit:
    """Of all panels, as they share one axis; slots beside seconds are shown as seconds."""
    slots = all(panel.time_unit is TimeUnit.SLOTS for panel in panels)
    return TimeUnit.SLOTS if slots else TimeUnit.SECONDS


def _theme_data(theme: Theme, num_chunks: int) -> dict[str, Any]:
    """Colours for the canvas; bars and the ink on them by kind and chunk."""
    chunks = range(num_chunks)
    bars = [[theme.bar(kind, chunk, num_chunks) for chunk in chunks] for kind in ActionKind]
    return {
        "page": theme.page,
        "row": theme.row,
        "ink": theme.ink,
        "faintInk": theme.faint_ink,
        "line": theme.line,
        "outline": theme.outline,
        "memory": theme.memory,
        "memoryFill": theme.memory_fill,
        "limit": theme.limit,
        "bars": bars,
        "barInks": [[label_ink(fill) for fill in shades] for shades in bars],
    }


def _custom_properties(theme: Theme) -> str:
    named = [f"--{name.replace('_', '-')}: {getattr(theme, name)};" for name in _CSS_NAMES]
    kinds = [f"--{kind.name}: {theme.kind[kind]};" for kind in ActionKind]
    return " ".join(named + kinds)


def _legend(panels: Sequence[GanttPanel]) -> list[dict[str, str]]:
    kinds = sorted({kind for panel in panels for kind in panel.kinds})
    return [{"letter": kind.name, "name": KIND_NAMES[kind]} for kind in kinds]


def _panel_facts(panel: GanttPanel) -> dict[str, Any]:
    """What the page says in words: a summary, and a row per rank."""
    timeline = panel.timeline
    memory = timeline.costs.memory
    ranks = []
    for rank, stages in enumerate(timeline.schedule.placement.stages_of_rank):
        busy_s = float(timeline.work_by_rank_s[rank])
        limit = float(memory.limit_bytes[rank])
        ranks.append(
            {
                "rank": rank,
                "stages": ", ".join(map(str, stages)) or "none",
                "busy": panel.format_time(busy_s),
                "idle": panel.format_time(timeline.makespan_s - busy_s),
                "peak": panel.memory_unit.describe(float(timeline.peak_bytes[rank])),
                "limit": "none" if limit == float("inf") else panel.memory_unit.describe(limit),
            }
        )
    return {"title": panel.title, "summary": panel.summary(), "ranks": ranks}
