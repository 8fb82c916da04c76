"""Questions about plans of profiles: made-up graphs, the published ones, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from profile_files import BLOCK, RECOMPUTED, own_profile, piper
from question_lines import compact, plan_of, question, spelled, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from question_lines import Options, Question

PROFILE: Final[Options] = {
    "devices": 8,
    "memory": "16GiB",
    "bandwidth": "25GiB/s",
    "microbatches": 32,
    "planner": "exact",
}
PIPER: Final[Options] = {**PROFILE, "time-unit": "s"}
OWN: Final[Options] = {**PROFILE, "point": 0}


def profile_questions() -> Iterator[Question]:
    yield from _piper_plans()
    yield from _own_plans()
    yield from _chained_plans()
    yield from _estimates_by_hand()
    yield from _refused_profiles()
    yield from _shared_profiles()


def _piper_plans() -> Iterator[Question]:
    """Graphs by memory, then by what is forbidden, then equal splits and comparisons."""
    graphs: list[tuple[str, int, tuple[int, ...], int]] = [
        ("chain", 3, (1,), 4),
        ("chain", 8, (1, 2), 8),
        ("chain", 9, (1, 2, 4), 16),
        ("skip", 8, (1, 2), 8),
        ("branches", 7, (1,), 6),
        ("branches", 9, (1, 2), 8),
        ("mask", 6, (1, 2), 8),
        ("dag", 7, (1, 2), 8),
        ("dag", 9, (1, 4), 12),
        ("dag", 12, (1,), 10),
    ]
    for shape, count, degrees, devices in graphs:
        graph = f"{shape}-{count}"
        text = compact(piper(graph, shape, count, degrees=degrees))
        for memory in ("64GiB", "4GiB", "2GiB", "600MiB"):
            options = {**PIPER, "devices": devices, "memory": memory}
            yield plan_of(f"profile/{graph}/{devices}-devices-{memory}", options, text)
    restrictions: dict[str, Options] = {
        "no-data-parallel": {"no-data-parallel": True},
        "no-tensor-parallel": {"no-tensor-parallel": True},
        "no-recompute": {"no-recompute": True},
        "only-pipeline": {
            "no-data-parallel": True,
            "no-tensor-parallel": True,
            "no-recompute": True,
        },
        "exclude-recomputed": {"exclude-option": [RECOMPUTED]},
        "exclude-unknown": {"exclude-option": [RECOMPUTED, "no-such-option"]},
        "equal": {"planner": "equal", "block-layer": BLOCK},
        "equal-all": {"planner": "equal", "block-layer": "all"},
        "compare": {"compare": True, "block-layer": BLOCK},
        "compare-all": {"compare": True, "block-layer": "all"},
    }
    for shape, count, memory in (
        ("chain", 7, "2200MiB"),
        ("branches", 7, "2GiB"),
        ("dag", 8, "3GiB"),
    ):
        graph = f"{shape}-{count}"
        text = compact(piper(f"restricted {graph}", shape, count, degrees=(1, 2)))
        for mode, restriction in restrictions.items():
            options = {**PIPER, "memory": memory, **restriction}
            yield plan_of(f"profile/{graph}/{mode}", options, text)
    text = compact(piper("settings", "chain", 6, degrees=(1, 2), recompute="all"))
    changes: dict[str, Options] = {
        "1-device": {"devices": 1, "memory": "64GiB"},
        "7-devices": {"devices": 7, "memory": "4GiB"},
        "1-microbatch": {"microbatches": 1},
        "3-microbatches": {"microbatches": 3, "memory": "4GiB"},
        "1024-microbatches": {"microbatches": 1024, "memory": "4GiB"},
        "slow-network": {"bandwidth": "100MB/s"},
        "fast-network": {"bandwidth": "10TB/s"},
        "64-devices": {"devices": 64, "memory": "2GiB"},
        "milliseconds": {"time-unit": "ms"},
        "microseconds": {"time-unit": "us", "bandwidth": "1GB/s"},
        "unused-block-layer": {"block-layer": BLOCK},
    }
    for change, options in changes.items():
        yield plan_of(f"profile/settings/{change}", {**PIPER, **options}, text)
    text = compact(piper("uniform", "chain", 8, uniform=True, names=False))
    for planner in ("exact", "equal"):
        options = {**PIPER, "planner": planner}
        if planner == "equal":
            options["block-layer"] = "all"
        yield plan_of(f"profile/uniform/{planner}", options, text)
    slow = compact(piper("slow", "chain", 5, scale=1e4))
    yield plan_of("profile/warns/times-are-not-seconds", PIPER, slow)
    without = compact(piper("plain", "chain", 6, recompute="none"))
    yield plan_of(
        "profile/no-option-recomputes/forbidden", {**PIPER, "no-recompute": True}, without
    )
    yield plan_of("profile/no-option-recomputes/2GiB", {**PIPER, "memory": "2GiB"}, without)
    twice = compact(piper("batch", "chain", 4) | {"maxBatchSize": 32})
    yield plan_of("profile/maxBatchSize/agrees", PIPER, twice)


def _own_plans() -> Iterator[Question]:
    kinds: dict[str, dict[str, Any]] = {
        "dense": {},
        "experts": {"experts": True},
        "tied": {"tied": True},
        "phases": {"phases": True},
        "degrees-1-2-4": {"degrees": (1, 2, 4)},
    }
    for kind, more in kinds.items():
        text = compact(own_profile(kind, 6, **more))
        for memory in ("80GiB", "12GiB", "6GiB", "1GiB"):
            yield plan_of(f"profile/own-{kind}/{memory}", {**OWN, "memory": memory}, text)
    text = compact(own_profile("larger", 24))
    for devices in (4, 16, 48):
        options = {**OWN, "devices": devices, "memory": "10GiB", "microbatches": 128}
        yield plan_of(f"profile/own-24-blocks/{devices}-devices", options, text)
    yield plan_of(
        "profile/own-24-blocks/compare",
        {**OWN, "devices": 16, "memory": "10GiB", "compare": True, "block-layer": BLOCK},
        text,
    )
    several = compact(own_profile("points", 4, points=3, setting=False))
    for point in (0, 1, 2):
        yield plan_of(f"profile/own-points/{point}", {**OWN, "point": point}, several)


def _chained_plans() -> Iterator[Question]:
    """A document, and what other commands make of it."""
    price = ["estimate", "p.json", "--plan", "d.json", *spelled(without(PIPER, "planner"))]
    for shape, count in (("chain", 6), ("branches", 7), ("dag", 7)):
        graph = f"{shape}-{count}"
        text = compact(piper(f"chained {graph}", shape, count, degrees=(1, 2)))
        tight = spelled({**PIPER, "memory": "3GiB"})
        yield question(
            f"profile/{graph}/explain-price-and-compare",
            ["plan", "p.json", *spelled(PIPER), "-o", "d.json", "--json"],
            files={"p.json": text},
            after=[
                ["explain", "d.json", "--json"],
                ["explain", "d.json"],
                [*price, "--json"],
                ["plan", "p.json", *tight, "-o", "tight.json"],
                ["diff", "d.json", "tight.json", "--json"],
                ["diff", "d.json", "tight.json"],
            ],
        )
    text = compact(own_profile("chained", 5))
    yield question(
        "profile/own/explain-and-report",
        ["plan", "p.json", *spelled(OWN), "-o", "d.json"],
        files={"p.json": text},
        after=[
            ["explain", "d.json", "--json"],
            ["report", "d.json", "-o", "page.html", "--title", "A plan", "--json"],
        ],
    )
    text = compact(piper("short of memory", "chain", 5))
    yield question(
        "profile/infeasible/explained",
        ["plan", "p.json", *spelled({**PIPER, "memory": "200MiB"}), "-o", "d.json"],
        files={"p.json": text},
        after=[["explain", "d.json", "--json"], ["diff", "d.json", "d.json", "--json"]],
    )


def _estimates_by_hand() -> Iterator[Question]:
    """Plans written by hand: that fit, that overflow, and that break a rule."""
    profile = compact(piper("by hand", "chain", 4, degrees=(1, 2), recompute="all"))
    ids = ("vanilla", RECOMPUTED)

    def stage(layers: Sequence[int], d: int, t: int, option: str) -> dict[str, Any]:
        options = {str(layer): option for layer in layers}
        return {
            "layers": list(layers),
            "data_parallel": d,
            "tensor_parallel": t,
            "options": options,
        }

    plans: dict[str, list[dict[str, Any]]] = {
        "one-stage": [stage((0, 1, 2, 3), 1, 1, ids[0])],
        "two-stages": [stage((0, 1), 2, 1, ids[0]), stage((2, 3), 2, 1, ids[1])],
        "mixed-degrees": [stage((0, 1), 1, 2, ids[0]), stage((2, 3), 4, 1, ids[1])],
        "four-stages": [stage((i,), 1, 2, ids[i % 2]) for i in range(4)],
        "too-many-devices": [stage((0, 1), 8, 2, ids[0]), stage((2, 3), 8, 2, ids[0])],
        "a-layer-is-missing": [stage((0, 1), 1, 1, ids[0]), stage((3,), 1, 1, ids[0])],
        "a-layer-is-there-twice": [stage((0, 1, 2), 1, 1, ids[0]), stage((2, 3), 1, 1, ids[0])],
        "backwards": [stage((2, 3), 1, 1, ids[0]), stage((0, 1), 1, 1, ids[0])],
        "no-such-option": [stage((0, 1, 2, 3), 1, 1, "fused")],
        "no-such-degree": [stage((0, 1, 2, 3), 1, 4, ids[0])],
        "no-stage": [],
    }
    for name, stages in plans.items():
        for memory in ("16GiB", "2GiB") if name in ("two-stages", "four-stages") else ("16GiB",):
            options = {**without(PIPER, "planner"), "memory": memory}
            yield question(
                f"profile/estimate/{name}-{memory}",
                ["estimate", "p.json", "--plan", "plan.json", *spelled(options), "--json"],
                files={"p.json": profile, "plan.json": compact({"stages": stages})},
            )


def _refused_profiles() -> Iterator[Question]:
    good = piper("refused", "chain", 3)
    loop = good | {
        "nodes": piper("refused", "chain", 3)["nodes"],
        "edges": [*good["edges"], {"sourceId": 2, "destId": 0, "communicationCost": 1.0}],
    }
    one = good["nodes"][0]
    endless = piper("refused", "chain", 3)
    for node in endless["nodes"]:
        node["TMPCs"]["1"][0]["timePerSample"] = 1e308  # each is a float, their sum is none
    files: dict[str, str] = {
        "cycle": compact(loop),
        "no-layers": compact(good | {"nodes": []}),
        "same-id-twice": compact(good | {"nodes": [*good["nodes"], one]}),
        "unknown-end-of-an-edge": compact(
            good | {"edges": [{"sourceId": 0, "destId": 9, "communicationCost": 1.0}]}
        ),
        "not-a-number": compact(good).replace('"mbsInBatch":32', '"mbsInBatch":NaN'),
        "same-key-twice": compact(good).replace('"maxDevices":8', '"maxDevices":8,"maxDevices":4'),
        "no-option": compact(good | {"nodes": [one | {"TMPCs": {"1": []}}], "edges": []}),
        "cut-short": compact(good)[:200],
        "empty": "",
        "batches-disagree": compact(good | {"maxBatchSize": 7}),
        "endless-times": compact(endless),
    }
    for name, text in files.items():
        yield plan_of(f"profile/refused/file-{name}", PIPER, text)
    own = own_profile("refused", 2, points=2)
    own_files = {
        "unknown-field": compact(own | {"colour": "red"}),
        "newer-format": compact(own | {"format_version": 99}),
        "no-points": compact(own | {"points": []}),
    }
    for name, text in own_files.items():
        yield plan_of(f"profile/refused/own-{name}", OWN, text)
    text = compact(good)
    wrong: dict[str, Options] = {
        "planner": {"planner": "greedy"},
        "devices": {"devices": 0},
        "memory": {"memory": "-1GiB"},
        "unit-of-memory": {"memory": "16 parsecs"},
        "bandwidth": {"bandwidth": "0"},
        "microbatches": {"microbatches": 0},
        "time-unit": {"time-unit": "weeks"},
        "block-layer": {"planner": "equal", "block-layer": "conv"},
        "option-of-models": {"global-batch": 8, "cluster": "dgx-h100"},
        "cost-model": {"cost-model": "native"},
    }
    for name, options in wrong.items():
        yield plan_of(f"profile/refused/option-{name}", {**PIPER, **options}, text)
    text = compact(own)
    yield plan_of("profile/refused/no-such-point", {**OWN, "point": 5}, text)
    yield plan_of("profile/refused/which-point", PROFILE, text)
    bare = compact(own_profile("bare", 2, setting=False))
    yield plan_of("profile/refused/no-setting", {"planner": "exact", "point": 0}, bare)


def _shared_profiles() -> Iterator[Question]:
    """The published profiles, at sizes that plan within a second or two."""
    cases: list[tuple[str, Options]] = [
        ("bert32a100", {"memory": "8GiB", "devices": 64, "microbatches": 512}),
        ("bert32a100", {"memory": "2GiB", "devices": 32, "microbatches": 512}),
        ("bert32a100", {"memory": "1GiB", "devices": 8, "microbatches": 512}),
        ("bert32a100", {"memory": "80GiB", "devices": 128, "microbatches": 1920}),
        ("bert32a100", {"memory": "8GiB", "devices": 32, "microbatches": 512, "planner": "equal"}),
        ("bert32a100", {"memory": "8GiB", "devices": 32, "microbatches": 512, "compare": True}),
        ("bert48", {"memory": "8GiB", "devices": 64, "microbatches": 512}),
        ("bert64", {"memory": "8GiB", "devices": 256, "microbatches": 1920}),
        ("bert96", {"memory": "8GiB", "devices": 128, "microbatches": 512}),
        ("resnet", {"memory": "4GiB", "devices": 16, "microbatches": 7680}),
        ("resnet", {"memory": "1GiB", "devices": 8, "microbatches": 7680}),
        ("gnmt", {"memory": "1.2GiB", "devices": 8, "microbatches": 256}),
        ("gnmt", {"memory": "4GiB", "devices": 4, "microbatches": 256, "no-recompute": True}),
    ]
    for profile, change in cases:
        options = {**PIPER, **change}
        if options["planner"] == "equal" or "compare" in options:
            options["block-layer"] = BLOCK
        flags = [name for name, value in change.items() if value in (True, "equal")]
        label = "-".join([str(options["devices"]), options["memory"], *flags])
        argv = ["plan", f"{{shared}}/data/profiles/{profile}.json", *spelled(options), "--json"]
        yield question(f"profile/shared-{profile}/{label}", argv, shared=True)
