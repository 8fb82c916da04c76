"""Colours of bars and tones on the page, beside those of schedules.

Neighbours in a bar differ in lightness, and every part is named in words, so that nothing is said
by hue alone. Hues follow Okabe and Ito as in `gantt_palette`.
"""

from __future__ import annotations

from typing import Final

from trainwright.reporting.gantt_palette import DARK, LIGHT, label_ink

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
    "unused": ("#d3d8de", "#39414b"),
    "data": ("#009e73", "#0fa67c"),
    "overhead": ("#8d99a6", "#6b7682"),
    "optimizer": ("#4a5562", "#b3bfcc"),
    "weights": ("#0072b2", "#1681c4"),
    "gradient": ("#8cc8ea", "#8cc8ea"),
    "state": ("#00466e", "#0a5a8c"),
    "opaque": ("#4a5562", "#8d99a6"),
    "activations": ("#e69f00", "#e8a51c"),
    "logits": ("#d55e00", "#dd6a17"),
    "transient": ("#d3a3c2", "#d9aecb"),
    "buffers": ("#009e73", "#0fa67c"),
    "workspace": ("#8d99a6", "#6b7682"),
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
    """Custom properties for both themes, as `gantt_figure.theme_css` has them."""
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
