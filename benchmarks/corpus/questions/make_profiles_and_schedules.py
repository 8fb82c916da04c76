"""Write the questions of the regression corpus about profiles, placements, chips and schedules.

    python benchmarks/corpus/questions/make_profiles_and_schedules.py [FOLDER]

One file of JSON lines per subject. Every question states all options that could change its answer,
so that a changed default changes none; where an option has no way to say its default (a flag such
as `--compare`), it is absent. Everything random comes from a seed that is the question's own name:
adding a question moves no other.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Question = dict[str, Any]
Options = dict[str, Any]

BLOCK: Final = "ParallelTransformerLayer"  # what the equal split deals out by default
RECOMPUTED: Final = "activation recomp"  # Piper's id of an option that recomputes
GIB: Final = 2.0**30


# Questions.


def question(
    name: str,
    argv: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    after: Sequence[Sequence[str]] = (),
    shared: bool = False,
) -> Question:
    """One line of the corpus; `shared` marks what needs the reference data."""
    made: Question = {"id": name, "argv": list(argv)}
    if files:
        made["files"] = dict(files)
    if shared:
        made["shared"] = True
    if after:
        made["after"] = [list(command) for command in after]
    return made


def spelled(options: Mapping[str, Any]) -> list[str]:
    """Options as arguments: `True` is a flag, a list repeats its option, `None` leaves it out."""
    found: list[str] = []
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    return found


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def rounded(value: float, digits: int = 4) -> float:
    """Few digits, so that files stay short and mean the same on every machine."""
    return float(f"{value:.{digits}g}")


# Graphs of layers.


def edges_of(shape: str, count: int, rng: Random) -> list[tuple[int, int]]:
    """Edges between layers 0 … count - 1, all from a smaller to a larger one."""
    chain = [(i, i + 1) for i in range(count - 1)]
    if shape == "chain":
        return chain
    if shape == "skip":  # every third layer also feeds the one three further on
        return chain + [(i, i + 3) for i in range(0, count - 3, 3)]
    if shape == "branches":  # two chains between a source and a sink
        left = [0, *range(1, count - 1, 2), count - 1]
        right = [0, *range(2, count - 1, 2), count - 1]
        return sorted({*pairwise(left), *pairwise(right)})
    if shape == "mask":  # one small layer that every other reads, as an attention mask
        return sorted({*chain[1:], *((0, i) for i in range(1, count))})
    assert shape == "dag", shape
    near = {(max(0, i - 1 - int(3 * rng.random())), i) for i in range(1, count)}
    far = {(int(i * rng.random()), i) for i in range(2, count) if rng.random() < 0.4}
    return sorted(near | far)


def piper(
    name: str,
    shape: str,
    count: int,
    *,
    degrees: Sequence[int] = (1,),
    recompute: str = "some",
    names: bool = True,
    scale: float = 1.0,
    uniform: bool = False,
) -> dict[str, Any]:
    """A profile in Piper's format.

    `recompute` says which layers offer it: all, some (every other) or none; `uniform` gives all
    layers the costs of the first.
    """
    rng = Random(name)
    joins = edges_of(shape, count, rng)
    costs = [(0.5 + rng.random(), 0.5 + rng.random(), 0.5 + rng.random()) for _ in range(count)]
    nodes = []
    for i in range(count):
        time, weight, kept = costs[0] if uniform else costs[i]
        before = [u for u, v in joins if v == i]
        behind = [v for u, v in joins if u == i]
        configs = {}
        for t in degrees:
            share = (1 + 0.1 * (t - 1)) / t
            exchanged = 0.0 if t == 1 else rounded(2e6 * (t - 1) / t)
            plain = {
                "id": "vanilla",
                "timePerSample": rounded(scale * 0.01 * time * share),
                "parameterSize": rounded(2e8 * weight / t),
                "memoryUsageA": rounded(3e8 * kept / t),
                "memoryUsageB": rounded(12e8 * weight / t),
                "syncTimeFw": {str(u): exchanged for u in before},
                "syncTimeBw": {str(v): exchanged for v in behind},
            }
            again = plain | {
                "id": RECOMPUTED,
                "timePerSample": rounded(scale * 0.0133 * time * share),
                "memoryUsageA": rounded(4e7 * kept / t),
            }
            offers = recompute == "all" or (recompute == "some" and i % 2 == 1)
            configs[str(t)] = [plain, again] if offers else [plain]
        label = "embedding" if i == 0 else "head" if i == count - 1 else BLOCK
        nodes.append({"id": i, **({"name": label} if names else {}), "TMPCs": configs})
    sent = [
        {"sourceId": u, "destId": v, "communicationCost": rounded(1.6e7 * (0.5 + rng.random()))}
        for u, v in joins
    ]
    setting = {"maxMemoryPerDevice": 16e9, "maxDevices": 8, "bandwidth": 25e9, "mbsInBatch": 32}
    return {**setting, "nodes": nodes, "edges": sent}


def own_profile(
    name: str,
    blocks: int,
    *,
    degrees: Sequence[int] = (1, 2),
    experts: bool = False,
    tied: bool = False,
    phases: bool = False,
    points: int = 1,
    setting: bool = True,
) -> dict[str, Any]:
    """A profile in our own format: an embedding, equal blocks and a head, by class."""
    rng = Random(name)
    layers = [
        {"id": 0, "name": "embedding", "layer_class": 0},
        *({"id": i, "name": BLOCK, "layer_class": 1} for i in range(1, blocks + 1)),
        {"id": blocks + 1, "name": "head", "layer_class": 2},
    ]
    edges = [{"source": i, "target": i + 1, "bytes": 8388608} for i in range(blocks + 1)]

    def option(base_s: float, weight: float, t: int, *, again: bool, ends: int) -> dict[str, Any]:
        forward_s = rounded(base_s * (1 + 0.08 * (t - 1)) / t)
        extra_s = forward_s if again else 0.0
        made: dict[str, Any] = {
            "id": "recompute" if again else "plain",
            "tensor_parallel": t,
            "duration_s": forward_s + extra_s + 2 * forward_s,
            "saved_until_input_grad_bytes": rounded((5e7 if again else 6e8) / t),
            "saved_until_weight_grad_bytes": rounded((0.0 if again else 2e8) / t),
            "static_bytes": {
                "dense": {
                    "weight": rounded(weight / t),
                    "gradient": rounded(2 * weight / t),
                    "optimizer": rounded(6 * weight / t),
                }
            },
            "gradient_sync_bytes": {"dense": rounded(weight / t)},
        }
        if again:
            made["recompute"] = "full"
        if t > 1:
            made["boundary_bytes"] = [4194304.0] * ends
        if experts and ends == 2:
            share = rounded(3 * weight / t)
            state = {"weight": share, "gradient": share, "optimizer": rounded(3 * share)}
            made["static_bytes"]["expert"] = state
            made["gradient_sync_bytes"]["expert"] = share
        if phases:
            made["phases"] = {
                "forward_s": forward_s,
                "input_grad_s": forward_s,
                "weight_grad_s": forward_s,
                "recompute_s": extra_s,
            }
        return made

    made_points = []
    for point in range(points):
        classes = []
        for base_s, weight, ends in ((0.001, 4e8, 1), (0.004, 2e8, 2), (0.002, 4e8, 1)):
            stretch = (1 + point) * (0.75 + 0.5 * rng.random())
            kinds = (False, True) if ends == 2 else (False,)
            classes.append(
                {
                    "options": [
                        option(base_s * stretch, weight, t, again=again, ends=ends)
                        for t in degrees
                        for again in kinds
                    ]
                }
            )
        here: dict[str, Any] = {
            "point": {"microbatch_size": 1 + point, "tensor_parallel": list(degrees)},
            "provenance": {"origin": "measured", "source": "made for a test"},
            "layers": layers,
            "edges": edges,
            "classes": classes,
        }
        if tied:
            here["shared_parameters"] = [{"layers": [0, blocks + 1], "bytes": 4e8}]
        made_points.append(here)
    stated = {
        "num_devices": 4,
        "memory_bytes": 16e9,
        "bandwidth_bytes_per_s": 25e9,
        "num_microbatches": 8,
    }
    made = {"kind": "profile", "format_version": 1, "points": made_points}
    return {**made, "setting": stated} if setting else made


# Plans of profiles.

PROFILE: Final[Options] = {
    "devices": 8,
    "memory": "16GiB",
    "bandwidth": "25GiB/s",
    "microbatches": 32,
    "planner": "exact",
}
PIPER: Final[Options] = {**PROFILE, "time-unit": "s"}
OWN: Final[Options] = {**PROFILE, "point": 0}


def plan_of(name: str, options: Options, text: str, **more: Any) -> Question:
    """A question about p.json."""
    argv = ["plan", "p.json", *spelled(options), "--json"]
    return question(name, argv, files={"p.json": text}, **more)


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
    price = ["estimate", "p.json", "--plan", "d.json", *spelled(_without(PIPER, "planner"))]
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


def _without(options: Options, *names: str) -> Options:
    return {name: value for name, value in options.items() if name not in names}


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
            options = {**_without(PIPER, "planner"), "memory": memory}
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
        "endless-times": compact(piper("endless", "chain", 6, scale=1e310 / 1e1)),
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


# Placements.

PLACEMENT: Final[Options] = {
    "devices": 8,
    "memory": "16GB",
    "bandwidth": "25GB/s",
    "microbatches": 32,
    "cost-model": "native",
    "planner": "exact",
}


def phaze(
    name: str,
    shape: str,
    count: int,
    *,
    widths: Sequence[int] = (1,),
    optimizer: str = "Adam",
    recompute: bool = True,
    split: str = "all",
    fixed: tuple[int, int, int] | None = None,
) -> dict[str, Any]:
    """A placement problem; `split` says which layers a width splits: all, some or none."""
    rng = Random(name)
    joins = edges_of(shape, count, rng)
    costs = [(0.5 + rng.random(), 0.5 + rng.random(), 0.5 + rng.random()) for _ in range(count)]
    sent = [rounded(1.6e7 * (0.5 + rng.random())) for _ in joins]
    nodes, edges = {}, {}
    for t in widths:
        rows = []
        for i, (time, weight, kept) in enumerate(costs):
            is_split = t > 1 and (split == "all" or (split == "some" and i % 2 == 0))
            share = (1 + 0.1 * (t - 1)) / t if is_split else 1.0
            part = t if is_split else 1
            rows.append(
                {
                    "id": i,
                    "parameterSize": rounded(2e8 * weight / part),
                    "activationSize": rounded(2e8 * kept / part),
                    "optimalLatencyFw": rounded(0.004 * time * share),
                    "optimalLatencyBw": rounded(0.008 * time * share),
                    "isTensorParallelized": is_split,
                }
            )
        nodes[str(t)] = rows
        edges[str(t)] = [
            {"sourceId": u, "destId": v, "communicationCost": size}
            for (u, v), size in zip(joins, sent, strict=True)
        ]
    made: dict[str, Any] = {
        "maxMemoryPerDevice": 16e9,
        "maxDevices": 8,
        "bandwidth": 25e9,
        "mbsInBatch": 32,
        "nodes": nodes,
        "edges": edges,
        "activationRecomputation": recompute,
        "optimizerAlgorithm": optimizer,
    }
    if fixed is not None:
        names = ("fixedPP", "fixedTMPC", "fixedDP")
        made |= dict(zip(names, fixed, strict=True)) | {"numTransformerLayers": count - 2}
    return made


def placement_questions() -> Iterator[Question]:
    chains: list[tuple[str, int, dict[str, Any], Options]] = [
        ("adam-5", 5, {"fixed": (1, 1, 8)}, {}),
        ("sgd-8", 8, {"optimizer": "SGD", "recompute": False}, {}),
        ("widths-10", 10, {"widths": (1, 2, 4), "fixed": (2, 2, 4)}, {"devices": 16}),
        ("some-split-9", 9, {"widths": (1, 2), "split": "some", "fixed": (4, 2, 1)}, {}),
        ("none-split-8", 8, {"split": "none", "recompute": False}, {"devices": 12}),
    ]
    for name, count, more, change in chains:
        text = compact(phaze(name, "chain", count, **more))
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            limits = ("4GB",) if cost_model == "phaze-general-dag" else ("64GB", "4GB", "100MB")
            for memory in limits:
                options = {**PLACEMENT, **change, "cost-model": cost_model, "memory": memory}
                yield plan_of(f"placement/{name}/{cost_model}-{memory}", options, text)
    for shape, count in (("skip", 7), ("branches", 7), ("dag", 7)):
        text = compact(phaze(f"graph {shape}", shape, count, widths=(1, 2), fixed=(2, 1, 2)))
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            options = {**PLACEMENT, "cost-model": cost_model, "memory": "5GB"}
            yield plan_of(f"placement/{shape}-{count}/{cost_model}", options, text)
    yield from _narrowed_placements()
    yield from _refused_placements()
    yield from _shared_placements()


def _narrowed_placements() -> Iterator[Question]:
    text = compact(phaze("narrowed", "chain", 10, widths=(1, 2, 4), fixed=(2, 4, 2)))
    changes: dict[str, Options] = {
        "no-data-parallel": {"no-data-parallel": True},
        "no-tensor-parallel": {"no-tensor-parallel": True},
        "no-recompute": {"no-recompute": True, "memory": "4GB"},
        "profile-planner": {
            "no-recompute": True,
            "no-tensor-parallel": True,
            "planner": "profile",
            "cost-model": "phaze-compat",
        },
        "13-devices": {"devices": 13},
        "256-devices": {"devices": 256, "microbatches": 512},
        "5-microbatches": {"microbatches": 5},
        "slow-network": {"bandwidth": "200MB/s"},
    }
    for name, change in changes.items():
        yield plan_of(f"placement/narrowed/{name}", {**PLACEMENT, **change}, text)
    inside = compact({"input": phaze("inside", "chain", 5), "note": "kept by another program"})
    yield plan_of("placement/file/inside-a-larger-object", PLACEMENT, inside)
    yield question(
        "placement/chained/explain-and-diff",
        ["plan", "p.json", *spelled(PLACEMENT), "-o", "d.json", "--json"],
        files={"p.json": text},
        after=[
            ["explain", "d.json", "--json"],
            ["explain", "d.json"],
            ["plan", "p.json", *spelled({**PLACEMENT, "memory": "3GB"}), "-o", "tight.json"],
            ["diff", "d.json", "tight.json", "--json"],
            ["report", "d.json", "-o", "page.html", "--title", "A placement", "--json"],
        ],
    )


def _refused_placements() -> Iterator[Question]:
    good = phaze("refused", "chain", 3, widths=(1, 2))
    back = {"sourceId": 2, "destId": 0, "communicationCost": 1.0}
    files = {
        "cycle": good | {"edges": {t: [*good["edges"][t], back] for t in good["edges"]}},
        "widths-differ": good | {"nodes": good["nodes"] | {"2": good["nodes"]["2"][:2]}},
        "no-width": good | {"nodes": {}, "edges": {}},
        "half-a-strategy": good | {"fixedPP": 2},
        "optimizer": good | {"optimizerAlgorithm": "Adagrad"},
    }
    for name, value in files.items():
        yield plan_of(f"placement/refused/file-{name}", PLACEMENT, compact(value))
    text = compact(good)
    wrong: dict[str, Options] = {
        "cost-model": {"cost-model": "phaze"},
        "planner": {"planner": "equal"},
        "compare": {"compare": True, "block-layer": "all"},
        "profile-planner-recomputes": {"planner": "profile"},
        "microbatches": {"microbatches": 0},
    }
    for name, change in wrong.items():
        yield plan_of(f"placement/refused/option-{name}", {**PLACEMENT, **change}, text)


def _shared_placements() -> Iterator[Question]:
    """Problems that the published program answered, each in its own setting."""
    cases = (
        *("01_uniform4_nocomm", "02_uniform4_resync", "03_uniform4_comm"),
        *("04_memory_forces_pipeline", "06_memory_adam", "07_infeasible_oom"),
        *("09_diamond_unsupported", "10_skip_edges_ok", "11_nondivisible"),
        *("12_rand_n8_D8_w1_st_SGD", "14_rand_n12_D16_w4_st_Adam", "15_rand_n12_D32_w8_rc_Adam"),
        *("17_rand_n24_D64_w8_rc_SGD", "18_rand_n32_D64_w8_st_Adam", "22_bertlarge_D1024"),
        *("24_gpt3_D1024", "27_two_branches_D4"),
    )
    for case in cases:
        for cost_model in ("native", "phaze-compat", "phaze-general-dag"):
            if cost_model == "phaze-general-dag" and case[:2] not in ("09", "10", "27"):
                continue
            path = f"{{shared}}/data/codesign/placement/{case}.json"
            rest = {"cost-model": cost_model, "planner": "exact"}
            argv = ["plan", path, *spelled(rest), "--json"]
            yield question(f"placement/shared-{case}/{cost_model}", argv, shared=True)


# Searches for a chip.

CODESIGN: Final[Options] = {
    "devices": 16,
    "global-batch": 64,
    "sequence": 512,
    "micro-batch": "1",
    "tp": "1,2,4",
    "recompute": "none,full",
    "schedule": "1f1b",
    "precision": "bf16",
    "memory": "80GiB",
    "memory-bandwidth": "1.2TB/s",
    "link-bandwidth": "300GB/s",
    "node-devices": 1,
    "node-bandwidth": "300GB/s",
    "tensor-overlap": 0,
    "gradient-overlap": 0,
    "clock": "1.05e9",
    "objective": "geometric",
    "weights": "1",
    "max-area": 8,
    "search": "exact",
    "seed": 0,
    "no-pareto": True,
}
FRONT: Final[Options] = {"no-pareto": None, "epsilon": 0.02, "max-area": 4}
STACKS: Final[Options] = {
    "memory": None,
    "memory-bandwidth": None,
    "stack-memory": "16GiB",
    "stack-bandwidth": "460.8GB/s",
    "stack-area": 0,
}
CHIP: Final[Options] = {
    "devices": 8,
    "global-batch": 64,
    "sequence": 1024,
    "micro-batch": "1",
    "tp": "1,2",
    "recompute": "none,full",
    "schedule": "1f1b",
}
NETWORK: Final[Options] = {
    "link-bandwidth": "50GB/s",
    "node-devices": 8,
    "node-bandwidth": "450GB/s",
}


def design_of(name: str, models: str, options: Options, **more: Any) -> Question:
    argv = ["codesign", *models.split(), *spelled(options), "--json"]
    return question(f"codesign/{name}", argv, **more)


def codesign_questions() -> Iterator[Question]:
    yield from _designs_by_model()
    yield from _designs_by_space()
    yield from _designs_of_several_models()
    yield from _fronts()
    yield from _designs_in_stages()
    yield from _plans_on_chips()
    yield from _refused_designs()


def _designs_by_model() -> Iterator[Question]:
    cases: list[tuple[str, Options]] = [
        ("gpt2", {"sequence": 1024}),
        ("gpt2-xl", {"sequence": 1024, "tp": "1"}),
        ("gpt2", {"sequence": 1024, "tp": "1,2", "max-area": 20, "micro-batch": "1,2"}),
        ("bert-base", {}),
        ("bert-large", {}),
        ("bert-large", {"devices": 64, "max-area": 40}),
        ("megatron-gpt-1.7b", {"sequence": 2048, "devices": 32}),
        ("gpt-neo-2.7b", {"sequence": 2048, "devices": 32}),
        ("llama2-7b", {"sequence": 4096, "tp": "2,4,8", "devices": 32}),
        ("llama3-8b", {"sequence": 4096, "tp": "2,4,8", "devices": 64}),
        ("gpt3-175b", {"sequence": 2048, "tp": "4,8", "devices": 256, "max-area": 20}),
        ("gpt3-175b", {"sequence": 2048, "tp": "4,8", "devices": 1024, "max-area": 278.8}),
    ]
    for model, change in cases:
        options = {**CODESIGN, **change}
        label = f"{model}/{options['devices']}-devices-{options['max-area']}mm2"
        yield design_of(label, model, options)


def _designs_by_space() -> Iterator[Question]:
    changes: dict[str, Options] = {
        "micro-batch-2": {"micro-batch": "2"},
        "micro-batch-1-4": {"micro-batch": "1,4"},
        "tp-1": {"tp": "1"},
        "tp-4": {"tp": "4"},
        "recompute-full": {"recompute": "full"},
        "recompute-none": {"recompute": "none"},
        "zb-h1": {"schedule": "1f1b,zb-h1", "memory": "4GiB"},
        "v-half": {"schedule": "1f1b,v-half", "memory": "4GiB"},
        "all-schedules": {"schedule": "1f1b,zb-h1,v-half,v-min", "memory": "3GiB"},
        "memory-2GiB": {"memory": "2GiB"},
        "memory-1-8GiB": {"memory": "1GiB,8GiB"},
        "memory-infeasible": {"memory": "64MiB"},
        "memory-bandwidths": {"memory-bandwidth": "400GB/s,2TB/s"},
        "slow-links": {"link-bandwidth": "10GB/s"},
        "links": {"link-bandwidth": "100GB/s,600GB/s"},
        "clocks": {"clock": "1.05e9,1.4e9"},
        "nodes-of-4": {"node-devices": 4, "node-bandwidth": "900GB/s", "link-bandwidth": "50GB/s"},
        "overlaps": {"tensor-overlap": 0.5, "gradient-overlap": 0.9},
        "fp32": {"precision": "fp32"},
        "fp8-bf16": {"precision": "bf16,fp8"},
        "stacks": {**STACKS, "stacks": "1,2"},
        "stacks-with-area": {**STACKS, "stacks": "1,2,4", "stack-area": 1.5},
        "max-power": {"max-power": 40},
        "max-power-infeasible": {"max-power": 0.01},
        "tdp": {"tdp": 40},
        "no-area": {"max-area": 0.5},
        "hardly-an-area": {"max-area": 3.6},
        "die": {"defect-density": 0.001},
        "descending-area": {"search": "descending-area"},
        "sample": {"sample": 20, "seed": 3},
    }
    for name, change in changes.items():
        model = "bert-base" if name not in ("zb-h1", "v-half", "all-schedules") else "bert-large"
        yield design_of(f"space/{name}", model, {**CODESIGN, **change})


def _designs_of_several_models() -> Iterator[Question]:
    both = {**CODESIGN, "weights": "1,1", "max-area": 6}
    for objective in ("geometric", "mean", "worst", "regret", "arithmetic"):
        options = {**both, "objective": objective}
        yield design_of(f"several/{objective}", "bert-base gpt2", options)
    weighted = {**both, "weights": "3,1", "objective": "mean"}
    yield design_of("several/weights", "bert-base gpt2", weighted)
    unfit = {**both, "memory": "2GiB", "devices": 4, "tp": "1"}
    yield design_of("several/one-does-not-fit", "bert-base gpt2-xl", unfit)


def _fronts() -> Iterator[Question]:
    fronts: dict[str, Options] = {
        "epsilon-0.02": {},
        "epsilon-0": {"epsilon": 0, "max-area": 3.6},
        "epsilon-0.2": {"epsilon": 0.2},
        "all-schedules": {"schedule": "1f1b,zb-h1,v-half,v-min", "max-area": 3.6, "devices": 4},
        "tdp": {"tdp": 24},
        "die": {"defect-density": 0.002},
    }
    for name, change in fronts.items():
        yield design_of(f"front/{name}", "bert-base", {**CODESIGN, **FRONT, **change})
    yield design_of(
        "front/several-models",
        "bert-base gpt2",
        {**CODESIGN, **FRONT, "weights": "1,1", "max-area": 3.6},
    )


def _designs_in_stages() -> Iterator[Question]:
    asked = _without({**CODESIGN, "max-area": 4}, "search", "seed", "no-pareto")
    solved = {"search": "exact", "seed": 0, "no-pareto": True}
    folder = ["--artifacts", "stages", "--json"]
    yield question(
        "codesign/stages/graph-estimate-solve",
        ["codesign", "bert-base", *spelled(asked), "--stage", "graph", *folder],
        after=[
            ["codesign", "--stage", "estimate", *folder],
            ["codesign", "--stage", "solve", *folder, *spelled(solved)],
        ],
    )
    yield question(
        "codesign/stages/no-estimates",
        ["codesign", "bert-base", *spelled(asked), "--stage", "graph", *folder],
        after=[["codesign", "--stage", "solve", *folder, *spelled(solved)]],
    )
    yield question(
        "codesign/stages/no-graph",
        ["codesign", "--stage", "estimate", *folder],
    )
    small = {**CODESIGN, "max-area": 4}
    chip = spelled({**CHIP, "devices": 16, "sequence": 512})
    yield question(
        "codesign/document/recheck-report-and-plan",
        ["codesign", "bert-base", *spelled(small), "-o", "d.json", "--csv", "all.csv", "--json"],
        after=[
            ["codesign", "--recheck", "d.json", "--sample", "20", "--seed", "3", "--json"],
            ["report", "d.json", "-o", "page.html", "--title", "A chip", "--json"],
            ["codesign", "bert-base", "--chip", "d.json", *chip, "--json"],
            ["explain", "d.json", "--json"],
        ],
    )
    yield question(
        "codesign/document/journal",
        ["codesign", "bert-base", *spelled(small), "--journal", "j.jsonl", "--json"],
        after=[["codesign", "bert-base", *spelled(small), "--journal", "j.jsonl", "--json"]],
    )


def _plans_on_chips() -> Iterator[Question]:
    cases: list[tuple[str, str, Options]] = [
        ("gpt2", "A100-80GB-SXM", {**CHIP, **NETWORK}),
        ("gpt2", "dgx-h100", CHIP),
        ("gpt2", "tpu-v4", {**CHIP, "devices": 64}),
        ("bert-large", "V100-SXM2-16GB", {**CHIP, **NETWORK, "sequence": 512}),
        ("llama3-8b", "dgx-h100", {**CHIP, "devices": 16, "sequence": 4096, "tp": "1,2,4,8"}),
        ("llama2-7b", "mi300x", {**CHIP, "sequence": 4096, "micro-batch": "1,2"}),
        ("llama2-7b", "dgx1-v100", {**CHIP, "sequence": 4096}),
        ("llama2-70b", "dgx-a100", {**CHIP, "devices": 64, "sequence": 4096, "tp": "4,8"}),
        ("gpt2", "H100-80GB-SXM", {**CHIP, **NETWORK, "schedule": "1f1b,zb-h1"}),
    ]
    for model, chip, options in cases:
        label = f"chip/{model}-on-{chip}-{options['devices']}"
        yield design_of(label, model, {**options, "chip": chip})


def _refused_designs() -> Iterator[Question]:
    wrong: dict[str, Options] = {
        "objective": {"objective": "best"},
        "weights": {"weights": "1,2"},
        "recompute": {"recompute": "selective"},
        "schedule": {"schedule": "1f1b,gpipe"},
        "only-zb-h1": {"schedule": "zb-h1"},
        "precision": {"precision": "int4"},
        "stacks-and-memory": {"stacks": "1"},
        "stacks-0": {**STACKS, "stacks": "0"},
        "overlap": {"tensor-overlap": 1.5},
        "area": {"max-area": -1},
        "search": {"search": "random"},
        "tp": {"tp": "5"},
        "clock": {"clock": "fast"},
        "devices": {"devices": 0},
        "stage-alone": {"stage": "graph"},
        "stage": {"stage": "draw", "artifacts": "stages"},
        "epsilon": {"no-pareto": None, "epsilon": -1},
    }
    for name, change in wrong.items():
        yield design_of(f"refused/{name}", "bert-base", {**CODESIGN, **change})
    yield design_of("refused/model", "no-such-model", CODESIGN)
    yield design_of("refused/no-model", "", CODESIGN)
    yield design_of("refused/chip", "gpt2", {**CHIP, "chip": "abacus"})
    area = {**CHIP, **NETWORK, "chip": "A100-80GB-SXM", "max-area": 10}
    yield design_of("refused/area-of-a-chip", "gpt2", area)
    yield design_of("refused/two-models-on-a-chip", "gpt2 gpt2-xl", {**CHIP, "chip": "dgx-h100"})
    yield design_of("refused/network-of-a-cluster", "gpt2", {**CHIP, **NETWORK, "chip": "dgx-h100"})


# Schedules.

TIMES: Final[Options] = {"forward": 1, "input-grad": 1, "weight-grad": 1, "comm": 0}
UNEQUAL: Final[Options] = {"forward": 3, "input-grad": 4, "weight-grad": 2, "comm": 0.5}
SECONDS: Final[Options] = {
    "forward": "3.5ms",
    "input-grad": "3.9ms",
    "weight-grad": "2.8ms",
    "comm": "400us",
}
ONE_CHUNK: Final = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-1p", "zb-2p")
TWO_CHUNKS: Final = ("zb-v", "zb-v-handmade", "v-half", "v-min", "adaptive-v", "1f1b-v")
CHOSEN_CHUNKS: Final = ("interleaved", "breadth-first", "wave")
GROUPED: Final = ("depth-first", "gis", "gis-h")


def schedule_of(name: str, options: Options, **more: Any) -> Question:
    return question(f"schedule/{name}", ["schedule", *spelled(options), "--json"], **more)


def family(name: str, ranks: int, microbatches: int, costs: Options, **more: Any) -> Options:
    """A named family with all it may be told."""
    made = {"family": name, "ranks": ranks, "microbatches": microbatches, **costs}
    made |= {"objective": "makespan"}
    return made | {key.replace("_", "-"): value for key, value in more.items()}


def schedule_questions() -> Iterator[Question]:
    yield from _families()
    yield from _limited_families()
    yield from _searches()
    yield from _schedule_fronts()
    yield from _simulated()
    yield from _specs()
    yield from _files_of_schedules()
    yield from _refused_schedules()


def _families() -> Iterator[Question]:
    sizes = [(2, 4, TIMES), (4, 8, UNEQUAL), (5, 12, SECONDS), (8, 16, TIMES)]
    for name in (*ONE_CHUNK, *TWO_CHUNKS, "dualpipe-v"):
        for p, m, costs in sizes:
            yield schedule_of(f"family/{name}/{p}x{m}", family(name, p, m, costs))
    for name in (*CHOSEN_CHUNKS, *GROUPED):
        for p, m, v, costs in (
            (2, 4, 2, TIMES),
            (4, 8, 3, UNEQUAL),
            (4, 12, 2, SECONDS),
            (3, 9, 4, TIMES),
        ):
            more = {"virtual_stages": v} | ({"group": p} if name in GROUPED else {})
            yield schedule_of(f"family/{name}/{p}x{m}x{v}", family(name, p, m, costs, **more))
    for name in GROUPED:
        for g in (2, 6):
            options = family(name, 4, 12, TIMES, virtual_stages=2, group=g)
            yield schedule_of(f"family/{name}/4x12x2-groups-of-{g}", options)
    for name in ("1f1b", "zb-v", "interleaved"):
        more = {"virtual_stages": 2} if name == "interleaved" else {}
        options = {**family(name, 4, 8, UNEQUAL, **more), "objective": "span"}
        yield schedule_of(f"family/{name}/span", options)
    for name in ("gpipe", "zb-1p", "v-min"):
        yield schedule_of(f"family/{name}/one-rank", family(name, 1, 3, TIMES))
        yield schedule_of(f"family/{name}/one-microbatch", family(name, 3, 1, UNEQUAL))
    yield schedule_of("family/zb-v/32x128", family("zb-v", 32, 128, UNEQUAL))
    yield schedule_of("family/1f1b/slow-transfers", family("1f1b", 4, 8, {**TIMES, "comm": 3}))


def _limited_families() -> Iterator[Question]:
    for name in ("zb-1p", "zb-2p", "v-min", "v-half", "zb-v", "adaptive-v", "1f1b", "gpipe"):
        for limit in (1, 4, 6) if name != "1f1b" else (0, 1, 4):
            options = {**family(name, 4, 8, UNEQUAL), "memory-limit": limit}
            yield schedule_of(f"limit/{name}/{limit}", options)
    for limit in (2, 5, 12):
        options = family("wave", 3, 9, TIMES, virtual_stages=4)
        yield schedule_of(f"limit/wave/{limit}", {**options, "max-activations": limit})


def _search(p: int, m: int, costs: Options, **more: Any) -> Options:
    made = {"search": True, "ranks": p, "microbatches": m, **costs, "objective": "makespan"}
    made |= {"placement": "v", "seed": 0, "evaluations": 2000}
    return made | {key.replace("_", "-"): value for key, value in more.items()}


def _searches() -> Iterator[Question]:
    for limit in (2, 3, 4, 6, 8, 0):
        options = _search(4, 8, UNEQUAL, memory_limit=limit)
        yield schedule_of(f"search/v-4x8/limit-{limit}", options)
    changes: dict[str, Options] = {
        "seed-1": _search(4, 8, UNEQUAL, memory_limit=4, seed=1),
        "100-evaluations": _search(4, 8, UNEQUAL, memory_limit=4, evaluations=100),
        "span": _search(4, 8, UNEQUAL, memory_limit=4, objective="span"),
        "no-limit": _search(4, 8, UNEQUAL),
        "uniform": _search(4, 8, TIMES, memory_limit=5),
        "seconds": _search(3, 6, SECONDS, memory_limit=4),
        "loop": _search(4, 8, UNEQUAL, placement="loop", virtual_stages=2, memory_limit=8),
        "loop-1": _search(4, 8, UNEQUAL, placement="loop", virtual_stages=1, memory_limit=4),
        "loop-3": _search(3, 6, TIMES, placement="loop", virtual_stages=3, memory_limit=9),
        "wave-3": _search(3, 6, TIMES, placement="wave", virtual_stages=3, memory_limit=6),
        "wave-4": _search(2, 6, UNEQUAL, placement="wave", virtual_stages=4, memory_limit=5),
        "any": _search(3, 6, UNEQUAL, placement="any", memory_limit=3, evaluations=1000),
        "any-tight": _search(3, 6, TIMES, placement="any", memory_limit=1, evaluations=1000),
        "any-span": _search(2, 4, UNEQUAL, placement="any", memory_limit=2, objective="span"),
        "one-rank": _search(1, 3, UNEQUAL, placement="loop", virtual_stages=1),
        "one-microbatch": _search(4, 1, UNEQUAL, memory_limit=2),
        "larger": _search(8, 16, UNEQUAL, memory_limit=8, evaluations=800),
    }
    for name, options in changes.items():
        yield schedule_of(f"search/{name}", options)


def _schedule_fronts() -> Iterator[Question]:
    base = {"pareto": True, "objective": "makespan", "placement": "v"}
    for p, m, costs in ((2, 4, TIMES), (4, 8, UNEQUAL), (5, 10, SECONDS)):
        options = {**base, "ranks": p, "microbatches": m, **costs}
        yield schedule_of(f"front/named-v-{p}x{m}", options)
    size = {"ranks": 4, "microbatches": 8, **UNEQUAL}
    for place, chunks in (("loop", 1), ("loop", 2), ("wave", 3)):
        options = {**base, **size, "placement": place, "virtual-stages": chunks}
        yield schedule_of(f"front/named-{place}-{chunks}", options)
    for limit in (4, 1):
        options = {**base, **size, "memory-limit": limit}
        yield schedule_of(f"front/named-limit-{limit}", options)
    yield schedule_of("front/named-span", {**base, **size, "objective": "span"})
    searched = {"search": True, **base, "seed": 0, "evaluations": 500}
    yield schedule_of("front/searched-v", {**searched, **size})
    yield schedule_of("front/searched-v-limit-5", {**searched, **size, "memory-limit": 5})
    loop = {**searched, **size, "placement": "loop", "virtual-stages": 1}
    yield schedule_of("front/searched-loop-1", loop)


def orders_1f1b(p: int, m: int, *, split: bool = False) -> list[list[str]]:
    """1F1B on one chunk per rank, written out by hand."""
    rows = []
    for rank in range(p):
        warm = min(m, p - 1 - rank)
        row = [f"{rank}F{j}" for j in range(warm)]
        for j in range(m):
            if warm + j < m:
                row.append(f"{rank}F{warm + j}")
            row += [f"{rank}I{j}", f"{rank}W{j}"] if split else [f"{rank}B{j}"]
        rows.append(row)
    return rows


def orders_gpipe(p: int, m: int) -> list[list[str]]:
    """All forwards, then all backwards in reverse."""
    return [
        [f"{r}F{j}" for j in range(m)] + [f"{r}B{j}" for j in reversed(range(m))] for r in range(p)
    ]


def as_json(rows: Sequence[Sequence[str]], m: int, ranks: Sequence[int] | None = None) -> str:
    return compact(
        {
            "kind": "orders",
            "format_version": 1,
            "num_microbatches": m,
            "rank_of_stage": list(ranks) if ranks is not None else list(range(len(rows))),
            "orders": [list(row) for row in rows],
        }
    )


def as_csv(rows: Iterable[Sequence[str]]) -> str:
    return "".join(",".join(row) + "\n" for row in rows)


def _simulated() -> Iterator[Question]:
    v_orders = [
        ["0F0", "0F1", "3F0", "3B0", "3F1", "3B1", "0B0", "0B1"],
        ["1F0", "2F0", "1F1", "2F1", "2B0", "1B0", "2B1", "1B1"],
    ]
    recomputing = [
        ["0F0", "0F1", "0R0", "0B0", "0R1", "0B1"],
        ["1F0", "1B0", "1F1", "1B1"],
    ]
    lowered = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1RECV_F1", "1F0", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"],
    ]
    deadlock = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]
    late = [["0F0", "0F1", "0B1", "0B0"], ["1F1", "1F0", "1B1", "1B0"]]
    unmet = [["0F0", "0B0", "0F1"], ["1F0", "1B0", "1F1", "1B1"]]
    twice = [["0F0", "0F0", "0B0"], ["1F0", "1B0"]]
    files: dict[str, tuple[str, str]] = {
        "1f1b-json": ("o.json", as_json(orders_1f1b(3, 6), 6)),
        "1f1b-csv": ("o.csv", as_csv(orders_1f1b(3, 6))),
        "1f1b-split": ("o.json", as_json(orders_1f1b(3, 6, split=True), 6)),
        "gpipe-csv": ("o.csv", as_csv(orders_gpipe(2, 4))),
        "v": ("o.json", as_json(v_orders, 2, (0, 1, 1, 0))),
        "recomputing": ("o.json", as_json(recomputing, 2)),
        "lowered": ("o.csv", as_csv(lowered)),
        "last-stage-out-of-order": ("o.csv", as_csv(late)),
        "deadlock": ("o.csv", as_csv(deadlock)),
        "a-backward-is-missing": ("o.csv", as_csv(unmet)),
        "an-action-twice": ("o.json", as_json(twice, 1)),
        "no-such-action": ("o.csv", "0F0,0F1zzz\n1F0,1B0\n"),
        "empty": ("o.csv", ""),
    }
    for name, (path, text) in files.items():
        options = {"simulate": path, **UNEQUAL, "objective": "makespan"}
        yield schedule_of(f"simulate/{name}", options, files={path: text})
    limited = {"simulate": "o.csv", **UNEQUAL, "objective": "span", "memory-limit": 2}
    yield schedule_of("simulate/over-the-limit", limited, files={"o.csv": files["1f1b-csv"][1]})
    wrong = {"simulate": "o.csv", "ranks": 4, **UNEQUAL, "objective": "makespan"}
    yield schedule_of("simulate/other-ranks", wrong, files={"o.csv": files["1f1b-csv"][1]})
    for name in ("interleaved_v2_p4_m8", "vhalf_p4_m8", "zb1p_p4_m8", "zbv_p4_m8", "v1f1b_p2_m8"):
        path = f"{{shared}}/data/schedules/csv/{name}.csv"
        options = {"simulate": path, **UNEQUAL, "objective": "span"}
        yield schedule_of(f"simulate/shared-{name}", options, shared=True)


def spec(**fields: Any) -> str:
    """A spec file; fused backwards, transfers and limits are as its fields say."""
    made: dict[str, Any] = {
        "kind": "schedule_spec",
        "format_version": 1,
        "forward_s": [0.013, 0.011, 0.012, 0.015],
        "input_grad_s": [0.014, 0.012, 0.012, 0.016],
        "weight_grad_s": [0.009],
        "transfer_s": [0.0007],
        "transfer_model": "free",
    }
    return compact({**made, **fields})


# Exact in binary, so that whether a transfer waited for its link does not rest on rounding.
EXACT: Final = {
    "forward_s": [1.0, 1.0, 0.75, 1.25],
    "input_grad_s": [1.0, 1.25, 1.0, 0.5],
    "weight_grad_s": [0.75],
    "transfer_s": [1.5, 0.25, 2.0],
}


def _specs() -> Iterator[Question]:
    in_bytes = {
        "forward_bytes": [3e9],
        "input_grad_bytes": [-1e9],
        "static_bytes": [22e9, 20e9, 20e9, 20e9],
        "limit_bytes": [31e9],
    }
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "fused": {"backward_s": [0.021]},
        "overhead": {"overhead_s": [0.0005]},
        "link": EXACT | {"transfer_model": "link"},
        "blocking": {"transfer_model": "blocking", "blocking_fraction": 0.5, "transfer_s": [0.002]},
        "backward-transfers": {"backward_transfer_s": [0.003]},
        "bytes": in_bytes,
        "bytes-peak": in_bytes | {"forward_transient_bytes": [2e9], "limit_bytes": [40e9]},
        "bytes-too-few": in_bytes | {"limit_bytes": [22.5e9]},
        "recompute": in_bytes | {"recompute_s": [0.012], "recompute_saved_bytes": [2.5e9]},
        "activations": {"limit_bytes": [4, 3, 2, 2]},
        "unequal-limits": in_bytes | {"limit_bytes": [40e9, 31e9, 28e9, 25e9]},
    }
    size = {"ranks": 4, "microbatches": 8, "objective": "makespan", "spec": "s.json"}
    for name, fields in kinds.items():
        text = {"s.json": spec(**fields)}
        yield schedule_of(f"spec/{name}/1f1b", {"family": "1f1b", **size}, files=text)
        yield schedule_of(f"spec/{name}/zb-1p", {"family": "zb-1p", **size}, files=text)
        search = {"search": True, "placement": "loop", "seed": 0, "evaluations": 1000}
        options = {**search, **size, "virtual-stages": 1}
        yield schedule_of(f"spec/{name}/search", options, files=text)
    text = {"s.json": spec(**in_bytes)}
    for limit in ("40GB", "28GB", "1GB"):
        options = {"family": "zb-1p", **size, "memory-limit": limit}
        yield schedule_of(f"spec/limit-beside-it/{limit}", options, files=text)
    eight = spec(
        forward_s=[0.014, 0.012, 0.012, 0.012, 0.012, 0.012, 0.012, 0.015],
        input_grad_s=[0.013],
        num_microbatches=8,
        rank_of_stage=[0, 1, 2, 3, 3, 2, 1, 0],
        **in_bytes,
    )
    seeded = {"seed": 0, "evaluations": 1000, "objective": "makespan", "spec": "s.json"}
    yield schedule_of(
        "spec/its-own-placement/search", {"search": True, **seeded}, files={"s.json": eight}
    )
    named = {"family": "v-half", "objective": "makespan", "spec": "s.json"}
    yield schedule_of("spec/its-own-placement/v-half", named, files={"s.json": eight})
    other = {"family": "1f1b", "objective": "makespan", "spec": "s.json"}
    yield schedule_of("spec/its-own-placement/1f1b", other, files={"s.json": eight})
    priced = {"simulate": "o.csv", "objective": "makespan", "spec": "s.json"}
    orders = as_csv(orders_1f1b(4, 8))
    yield schedule_of("spec/simulate", priced, files={"s.json": spec(**in_bytes), "o.csv": orders})


def _files_of_schedules() -> Iterator[Question]:
    """Documents, orders and pictures, and what other commands make of them."""
    forms = (("json", "o.json"), ("compute_only", "o.csv"), ("compute_comms", "o.csv"))
    for name, more in (("1f1b", {}), ("zb-v", {}), ("interleaved", {"virtual_stages": 2})):
        for form, path in forms:
            options = family(name, 4, 8, UNEQUAL, **more)
            again = {"simulate": path, **UNEQUAL, "objective": "makespan"}
            yield schedule_of(
                f"orders/{name}-{form}",
                {**options, "orders": path, "orders-form": form},
                after=[["schedule", *spelled(again), "--json"]],
            )
    options = family("v-half", 4, 8, UNEQUAL)
    other = family("zb-v", 4, 8, UNEQUAL)
    yield question(
        "schedule/document/explain-diff-report",
        ["schedule", *spelled(options), "-o", "a.json", "--json"],
        after=[
            ["explain", "a.json", "--json"],
            ["explain", "a.json"],
            ["schedule", *spelled(other), "-o", "b.json"],
            ["diff", "a.json", "b.json", "--json"],
            ["schedule", "--simulate", "a.json", "--objective", "makespan", "--json"],
            ["report", "a.json", "b.json", "-o", "page.html", "--title", "Orders", "--json"],
        ],
    )
    searched = _search(3, 6, UNEQUAL, memory_limit=3)
    yield question(
        "schedule/document/searched",
        ["schedule", *spelled(searched), "-o", "a.json", "--json"],
        after=[["explain", "a.json", "--json"]],
    )
    for path in ("g.svg", "g.html", "g.json"):
        yield schedule_of(f"gantt/{path[2:]}", {**family("1f1b", 3, 6, TIMES), "gantt": path})


def _refused_schedules() -> Iterator[Question]:
    good = family("1f1b", 4, 8, TIMES)
    wrong: dict[str, Options] = {
        "family": {**good, "family": "2f2b"},
        "no-method": _without(good, "family"),
        "two-methods": {**good, "simulate": "o.csv"},
        "ranks": {**good, "ranks": 0},
        "no-ranks": _without(good, "ranks"),
        "microbatches": {**good, "microbatches": 0},
        "too-many-actions": {**good, "ranks": 1000, "microbatches": 100_000},
        "units-mixed": {**good, "forward": "3ms"},
        "negative-time": {**good, "forward": -1},
        "objective": {**good, "objective": "speed"},
        "half-an-activation": {**good, "memory-limit": 2.5},
        "bytes-without-a-spec": {**good, "memory-limit": "40GiB"},
        "two-limits": {**good, "memory-limit": 4, "max-activations": 4},
        "orders-form": {**good, "orders": "o.csv", "orders-form": "xml"},
        "suffix-of-gantt": {**good, "gantt": "g.bmp"},
        "interleaved-remainder": family("interleaved", 4, 9, TIMES, virtual_stages=2),
        "dualpipe-v-too-short": family("dualpipe-v", 4, 6, TIMES),
        "placement": _search(4, 8, TIMES, placement="spiral"),
        "v-of-3": _search(4, 8, TIMES, virtual_stages=3),
        "evaluations": _search(4, 8, TIMES, evaluations=0),
        "front-of-any": {**_search(4, 8, TIMES, placement="any"), "pareto": True},
        "no-such-file": {"simulate": "nowhere.csv", **TIMES, "objective": "makespan"},
    }
    for name, options in wrong.items():
        yield schedule_of(f"refused/{name}", options)
    unused: dict[str, Options] = {
        "placement": {**good, "placement": "v"},
        "seed": {**good, "seed": 1},
        "group": {**good, "group": 2},
        "virtual-stages": {**good, "virtual-stages": 3},
        "orders-form": {**good, "orders-form": "json"},
    }
    for name, options in unused.items():
        yield schedule_of(f"unused/{name}", options)
    size = {"family": "1f1b", "ranks": 4, "microbatches": 8, "objective": "makespan"}
    files = {
        "unknown-field": spec(colour="red"),
        "no-forward": spec().replace("forward_s", "onward_s"),
        "wrong-length": spec(forward_s=[0.1, 0.2]),
        "negative": spec(forward_s=[-0.1]),
        "transfer-model": spec(transfer_model="telegraph"),
        "not-json": "forward_s = 1",
    }
    for name, text in files.items():
        yield schedule_of(
            f"refused/spec-{name}", {**size, "spec": "s.json"}, files={"s.json": text}
        )


def write(folder: Path) -> None:
    """All files of this generator, each question on a line; names are unique."""
    subjects = {
        "profile": profile_questions(),
        "placement": placement_questions(),
        "codesign": codesign_questions(),
        "schedule": schedule_questions(),
    }
    seen: set[str] = set()
    for subject, questions in subjects.items():
        lines = []
        for made in questions:
            assert made["id"] not in seen, made["id"]
            seen.add(made["id"])
            lines.append(compact(made) + "\n")
        (folder / f"{subject}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent)
