"""Colours of the pictures: hue by kind, shade by chunk, for a light and a dark page.

Hues are those of Okabe and Ito, "Color Universal Design" (2008), which people with any of the
common colour deficiencies tell apart; kinds differ in lightness too, and in texture where a bar is
large enough. The dark page has the same hues, a little lighter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainwright.plan.schedule import ActionKind

Rgb = tuple[int, int, int]

# One 8 × 8 tile per kind, drawn faintly over its colour; forwards are plain.
TEXTURES: Final = {
    ActionKind.F: "",
    ActionKind.I: "M-2 10L10 -2M-2 2L2 -2M6 10L10 6",
    ActionKind.W: "M0 2H2M4 6H6",
    ActionKind.B: "M-2 -2L10 10M6 -2L10 2M-2 6L2 10",
    ActionKind.R: "M0 2H8M0 6H8",
}
_SHADE_RANGE: Final = 0.46  # how far the last chunk's colour goes towards white


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one page as #rrggbb; `kind` has one per `ActionKind`."""

    kind: tuple[str, ...]
    shade_towards: str
    page: str
    row: str
    ink: str
    faint_ink: str
    line: str
    outline: str
    memory: str
    memory_fill: str
    limit: str

    def bar(self, kind: ActionKind, chunk: int, num_chunks: int) -> str:
        """Fill of a bar."""
        share = _SHADE_RANGE * chunk / max(num_chunks - 1, 1)
        return mix(self.kind[kind], self.shade_towards, share)


LIGHT: Final = Theme(
    kind=("#0072b2", "#e69f00", "#009e73", "#d55e00", "#b5679b"),
    shade_towards="#ffffff",
    page="#ffffff",
    row="#eef0f3",
    ink="#1b1f24",
    faint_ink="#565e68",
    line="#d3d8de",
    outline="#111418",
    memory="#4a5562",
    memory_fill="#c9d1da",
    limit="#b3261e",
)
DARK: Final = Theme(
    kind=("#1681c4", "#e8a51c", "#0fa67c", "#dd6a17", "#c987b4"),
    shade_towards="#f4f6f8",
    page="#14171c",
    row="#1f242b",
    ink="#e8ebef",
    faint_ink="#a3acb8",
    line="#39414b",
    outline="#ffffff",
    memory="#b3bfcc",
    memory_fill="#3b4754",
    limit="#ff8a80",
)
THEMES: Final = {"light": LIGHT, "dark": DARK}


def rgb(color: str) -> Rgb:
    """Read #rrggbb."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def mix(color: str, other: str, share: float) -> str:
    """`color` with a share of `other` in it."""
    mixed = (round(a + (b - a) * share) for a, b in zip(rgb(color), rgb(other), strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def contrast(color: str, other: str) -> float:
    """Contrast ratio from 1 to 21 as WCAG 2 defines it."""
    high, low = sorted((_luminance(color), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def label_ink(fill: str) -> str:
    """Black or white, whichever reads better on `fill`."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, fill))


def _luminance(color: str) -> float:
    red, green, blue = (_linear(channel / 255) for channel in rgb(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
