"""Questions about measured profiles that are planned on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from profile_files import own_profile, piper
from question_lines import compact, plan_of, question, spelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from question_lines import Options, Question

ROAD: Final[Options] = {
    "cluster": "dgx-a100-40gb",
    "nodes": 1,
    "memory": "16GiB",
    "global-batch": 32,
    "tp": "1..8",
    "pp": "1..8",
    "dp": "1..1024",
    "virtual-stages": "1..4",
    "zero": "0,1,2,3",
    "mapping": "tp-cp-ep-dp-pp,tp-cp-ep-pp-dp",
    "state-copies": "1",
    "recompute": "none,selective,full",
    "schedule": "1f1b,zb-h1",
    "overlap": ["gradients=0.9", "parameters=0.9", "tensor=0", "experts=0", "pipeline=1"],
    "reserve": "0",
    "workspace": "64MiB",
    "fragmentation": "0.05",
    "fit-probability": "0",
    "top": 3,
    "jobs": 1,
}


def road_questions() -> Iterator[Question]:
    """Files that are chains, files that branch, then what is refused."""
    for blocks, memory in ((6, "4GiB"), (8, "8GiB"), (10, "16GiB"), (10, "2GiB")):
        name = f"road/piper/chain-{blocks}-{memory}"
        made = piper(name, "chain", blocks, degrees=(1, 2), recompute="all")
        yield plan_of(name, {**ROAD, "memory": memory}, compact(made))
    made = piper("road/piper/mask", "mask", 8, recompute="all", uniform=True)
    yield plan_of("road/piper/mask", ROAD, compact(made))
    for family in ("1f1b", "zb-h1", "zb-h2", "interleaved", "zb-v", "v-half"):
        name = f"road/family/{family}"
        made = own_profile(name, 6, phases=True)
        yield plan_of(name, {**ROAD, "schedule": family, "pp": "2..4"}, compact(made))
    for zero in (0, 1, 2, 3):
        name = f"road/zero/{zero}"
        made = own_profile(name, 6, phases=True, tied=zero % 2 == 1)
        yield plan_of(name, {**ROAD, "zero": zero}, compact(made))
    name = "road/two-nodes"
    yield plan_of(name, {**ROAD, "nodes": 2}, compact(own_profile(name, 8, phases=True)))
    name = "road/followed"
    made = piper(name, "chain", 6, recompute="all")
    yield question(
        name,
        ["plan", "p.json", *spelled(ROAD), "-o", "plan.json", "--json"],
        files={"p.json": compact(made)},
        after=(
            ("whatif", "plan.json", "--memory", "8GiB", "--json"),
            ("explain", "plan.json", "--json"),
            ("export", "plan.json", "--to", "pytorch", "-o", "run"),
        ),
    )
    for shape in ("branches", "skip", "dag"):
        made = piper(f"road/refused/{shape}", shape, 8)
        yield plan_of(f"road/branches/{shape}", ROAD, compact(made))
    made = piper("road/refused/zero", "chain", 4)
    yield plan_of("road/refused/zero", {**ROAD, "zero": "1"}, compact(made))
    yield plan_of("road/refused/flat", {**ROAD, "bandwidth": "25GB/s"}, compact(made))
