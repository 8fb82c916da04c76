"""Rules 11 to 15 of Megatron: how layers lie on stages, with a layout and without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainwright.plan.nearest_values import nearest_multiples

if TYPE_CHECKING:
    from trainwright.plan.megatron_setup import MegatronSetup


def uneven_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 11: even stages, or outer stages with counts of their own and an even middle."""
    if s.layout is not None:
        return
    if s.first_layers is not None or s.last_layers is not None:
        yield from _middle_faults(s)
        return
    counted = s.layers + s.account_embedding + s.account_loss
    if counted % s.pp:
        nearest = nearest_multiples(counted, s.pp)
        yield f"{counted} layers over pp={s.pp}: use a layout, or {nearest} layers"
    elif counted // s.pp % s.chunks:
        each = counted // s.pp
        yield f"{each} layers of a rank over {s.chunks} virtual stages: use a layout"


def _middle_faults(s: MegatronSetup) -> Iterator[str]:
    ends = [count for count in (s.first_layers, s.last_layers) if count is not None]
    middle, left = s.pp - len(ends), s.layers - sum(ends)
    if min(ends) <= 0:
        yield "the counts of first and last stage must be > 0"
    elif bool(middle) != bool(left) or left < 0:
        yield f"{left} middle layers remain for {middle} middle stages"
    elif middle and left % middle:
        yield f"{left} middle layers over {middle} middle stages: use a layout"


def stage_count_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 12."""
    if s.layout is not None and len(s.layout) % s.pp:
        nearest = nearest_multiples(len(s.layout), s.pp)
        yield f"layout has {len(s.layout)} stages, pp={s.pp}; nearest: {nearest}"


def layout_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 13."""
    if s.layout is None:
        return
    letters = "".join(s.layout)
    if not letters.startswith("E") or letters.count("E") != 1:
        yield "layout must start with E, and hold it once"
    if not letters.endswith("L") or letters.count("L") != 1:
        yield "layout must end with L, and hold it once"
    if letters.count("t") != s.layers:
        yield f"layout holds {letters.count('t')} decoder layers, model has {s.layers}"


def mtp_faults(s: MegatronSetup) -> Iterator[str]:
    """Rule 14."""
    if s.layout is None:
        return
    letters = "".join(s.layout)
    if letters.count("m") != s.mtp_layers:
        yield f"layout holds {letters.count('m')} MTP layers, model has {s.mtp_layers}"
    holders = [number for number, stage in enumerate(s.layout) if "m" in stage]
    if not holders:
        return
    if len(holders) > 1:
        yield f"MTP layers must lie together, got stages {', '.join(map(str, holders))}"
    if "t" in letters[letters.index("m") :]:
        yield "MTP layers must follow every decoder layer"
    first_of_last_chunk = len(s.layout) - s.pp
    if holders[0] < first_of_last_chunk:
        yield "MTP must sit in the last chunk of its rank"


def flag_conflicts(s: MegatronSetup) -> Iterator[str]:
    """Rule 15."""
    if s.layout is None:
        return
    others = {
        "counts of the first or last stage": (s.first_layers, s.last_layers) != (None, None),
        "accounting for embedding or loss": s.account_embedding or s.account_loss,
        "--num-virtual-stages-per-pipeline-rank": s.virtual_stages is not None,
    }
    for what, is_there in others.items():
        if is_there:
            yield f"layout and {what} are exclusive"
