"""Schedules of any size as one HTML file that needs nothing else.

The page is `gantt_page.html.j2` around the figure of `gantt_figure`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trainwright.documents.view import printable
from trainwright.errors import InvalidInput
from trainwright.pages.gantt import (
    KIND_NAMES,
    TEXTURES,
    THEMES,
    UNITS_OF,
    GanttPanel,
    Theme,
    label_ink,
    memory_top,
)
from trainwright.plans.schedule import ActionKind
from trainwright.units import TimeUnit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jinja2 import Environment
    from markupsafe import Markup
    from numpy.typing import NDArray

    from trainwright.arrays import Floats


# Pages that need nothing else: no network, no library, no font, and a policy that enforces it
# --------------------------------------------------------------------------------------------
# Styles and scripts are inlined as they are; a content security policy admits exactly these, by
# their hashes, and nothing from outside. Templates escape every value.


@cache  # a page is compiled once by a process that writes several
def environment() -> Environment:
    """Templates of this package; they escape, and an unknown name is an error.

    Names come from outside: what would steer the terminal that a page is printed in is spelled out.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("trainwright.pages", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole"] = _whole
    return made


def _whole(text: str) -> Markup:
    """The text, escaped; no line ends within an option or between a number and its unit."""
    from markupsafe import Markup, escape

    kept = _OPTION.sub(r'<span class="whole">\g<0></span>', str(escape(printable(text))))
    return Markup(_BEFORE_UNIT.sub("&nbsp;", kept))


_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[KMGTP]iB|[mµn]?s|[kMGT]B(?:/s)?|[kM]?W|mm²)\b)")


def asset(name: str) -> str:
    """The text of a style or a script of this package."""
    return resources.files("trainwright.pages").joinpath("assets", name).read_text(encoding="utf-8")


def policy(style: str, scripts: Sequence[str]) -> str:
    """Only the style and the scripts of this page, by their hashes."""
    hashes = " ".join(map(_hash, scripts))
    return f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}"


def script_safe(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


# A timeline packed for a page: integer columns, compressed, as base64
# --------------------------------------------------------------------
# Starts are written as the gap after the action before on the same rank, mostly 0, and lengths of
# equal actions are equal, so 100,000 actions take about 0.2 MB. Memory curves are not written: the
# page adds them up from the deltas. The reader is `gantt_data.js`.

_TICKS: Final = 2e9  # of the makespan at least a tenth as many: finer than any screen, below 2^31
_LANE_SHIFT, _CRITICAL_SHIFT = 3, 5  # above three bits of kind


def pack_panel(panel: GanttPanel) -> dict[str, Any]:
    """The panel as JSON values; `columns` is described in `pack_columns`."""
    timeline = panel.timeline
    memory = timeline.costs.memory
    limits = [limit if math.isfinite(limit) else None for limit in memory.limit_bytes.tolist()]
    return {
        "title": panel.title,
        "memoryUnit": panel.memory_unit.value,
        "numMicrobatches": timeline.schedule.num_microbatches,
        "makespan": timeline.makespan_s,
        "tick": tick_s(panel),
        "offsets": timeline.schedule.rank_offsets.tolist(),
        "chunkOfStage": panel.chunk_of_stage,
        "rankOfStage": timeline.schedule.placement.rank_of_stage,
        "delta": memory.delta_bytes.tolist(),
        "transient": memory.transient_bytes.tolist(),
        "static": memory.static_bytes.tolist(),
        "limit": limits,
        "peak": timeline.peak_bytes.tolist(),
        "waitsFor": {str(step.row): step.waits_for.value for step in panel.critical},
        "columns": pack_columns(panel),
    }


def tick_s(panel: GanttPanel) -> float:
    """The unit of time in the columns: a power of ten, so that decimal times stay exact."""
    makespan_s = panel.timeline.makespan_s or 1.0
    return 10.0 ** math.ceil(math.log10(makespan_s / _TICKS))


def pack_columns(panel: GanttPanel) -> str:
    """Columns of n entries, one after the other, little-endian, deflated, in base64.

    gap i32 (ticks from the end of the action before on the rank), length u32 (ticks), stage u32,
    microbatch u32, and a byte of kind, lane and critical bit.
    """
    actions = panel.timeline.schedule.actions
    kinds = actions[:, 0].astype(np.uint8) | panel.lanes << _LANE_SHIFT
    marks = kinds | panel.is_critical.astype(np.uint8) << _CRITICAL_SHIFT
    gaps, lengths = _gaps_and_lengths(panel)
    columns = (
        gaps.astype("<i4"),
        lengths.astype("<u4"),
        actions[:, 1].astype("<u4"),
        actions[:, 2].astype("<u4"),
        marks.astype(np.uint8),
    )
    data = b"".join(column.tobytes() for column in columns)
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _gaps_and_lengths(panel: GanttPanel) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = _ticks(panel.start_s, tick_s(panel))
    lengths = _ticks(panel.end_s - panel.start_s, tick_s(panel))
    before = np.zeros_like(starts)
    before[1:] = (starts + lengths)[:-1]
    offsets = panel.timeline.schedule.rank_offsets
    before[offsets[:-1][np.diff(offsets) > 0]] = 0
    return starts - before, lengths


def _ticks(times_s: Floats, unit_s: float) -> NDArray[np.int64]:
    return np.rint(times_s / unit_s).astype(np.int64)


# What a page needs to show schedules: data and colours for the canvas, words for those who read
# ----------------------------------------------------------------------------------------------
# The canvas is drawn by plain scripts: `gantt_data.js` unpacks, `gantt_draw.js` and
# `gantt_pixels.js` draw with a level of detail that follows the zoom, `gantt_print.js` cuts the
# picture for paper, `gantt_input.js` listens, `gantt_page.js` holds what is in view. Several panels
# share one time scale, which is how two schedules are compared.

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


# Schedules of any size as one HTML file that needs nothing else
# --------------------------------------------------------------


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
