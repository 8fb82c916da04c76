"""Schedules of any size as one HTML file that needs nothing else: no network, no library, no font.

The page is `gantt_page.html.j2`; its behaviour is in plain scripts, inlined as they are:
`gantt_data.js` unpacks, `gantt_draw.js` and `gantt_pixels.js` draw on a canvas with a level of
detail that follows the zoom, `gantt_input.js` listens, `gantt_page.js` holds what is in view. A
content security policy admits exactly these and nothing from outside. Several panels share one time
scale, which is how two schedules are compared.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from trainwright.errors import InvalidInput
from trainwright.plan.schedule import ActionKind
from trainwright.reporting.gantt_pack import pack_panel
from trainwright.reporting.gantt_palette import TEXTURES, THEMES, Theme, label_ink
from trainwright.reporting.gantt_panel import KIND_NAMES, GanttPanel
from trainwright.reporting.gantt_scale import UNITS_OF, memory_top
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCRIPTS: Final = (
    "gantt_data.js",
    "gantt_pixels.js",
    "gantt_draw.js",
    "gantt_input.js",
    "gantt_page.js",
)
_CSS_NAMES: Final = ("page", "row", "ink", "faint_ink", "line", "limit", "outline")


def gantt_html(*panels: GanttPanel, title: str | None = None) -> str:
    """One page with a panel per schedule, all on one time scale.

    Raises InvalidInput without panels. 100,000 actions take about 0.3 MB.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not panels:
        raise InvalidInput.of("panels", "must have at least 1 schedule to draw, got none")
    environment = Environment(
        loader=PackageLoader("trainwright.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = "\n".join((*_theme_css(), _asset("gantt_page.css")))
    scripts = [_asset(name) for name in _SCRIPTS]
    return environment.get_template("gantt_page.html.j2").render(
        title=title or " and ".join(panel.title for panel in panels),
        style=style,
        scripts=scripts,
        policy=_policy(style, scripts),
        data=_script_safe(_page_data(panels)),
        panels=[_panel_facts(panel) for panel in panels],
        legend=_legend(panels),
        num_chunks=max(panel.num_chunks for panel in panels),
        has_critical=any(panel.critical for panel in panels),
    )


def _asset(name: str) -> str:
    return resources.files("trainwright.reporting").joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, scripts: Sequence[str]) -> str:
    """Only the style and the scripts of this page, by their hashes."""
    hashes = " ".join(map(_hash, scripts))
    return f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _page_data(panels: Sequence[GanttPanel]) -> dict[str, Any]:
    num_chunks = max(panel.num_chunks for panel in panels)
    return {
        "panels": [pack_panel(panel) for panel in panels],
        "numChunks": num_chunks,
        "memoryTop": memory_top(panels),
        "timeUnits": UNITS_OF[_time_unit(panels)],
        "kindNames": [KIND_NAMES[kind] for kind in ActionKind],
        "textures": [TEXTURES[kind] for kind in ActionKind],
        "themes": {name: _theme_data(theme, num_chunks) for name, theme in THEMES.items()},
    }


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


def _theme_css() -> tuple[str, ...]:
    """The same colours as custom properties: by system setting, unless the reader chose."""
    light, dark = (_custom_properties(THEMES[name]) for name in ("light", "dark"))
    return (
        f":root {{ color-scheme: light; {light} }}",
        "@media (prefers-color-scheme: dark) {",
        f"  :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }}",
        "}",
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}",
        f"@media print {{ :root:root:root {{ color-scheme: light; {light} }} }}",
    )


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


def _script_safe(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
