"""Random chains for the V peel (`native/chain/peel.hpp`), and what one of their ranks can do."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from trainwright._native import _core

OF_UNLIKE = tuple(f"{of}_{way}_s" for of in ("outer", "inner") for way in ("forward", "input_grad"))
BY_KIND = (
    "forward_s",
    "input_grad_s",
    "weight_grad_s",
    "tail_s",
    "optimizer_s",
    "static_bytes",
    "weight_bytes",
    "largest_weight_bytes",
    "freed_bytes",
)


def problem(rng, *, size: int, num_ranks: int, num_kinds: int = 6, tight: float = 1.0):
    """A chain whose stages' kinds are drawn at random, each with a front of one to three ways."""
    points = rng.integers(1, 4, num_kinds)
    times, kept = [], []
    for count in points.tolist():
        times += sorted(rng.uniform(1, 5, count).tolist(), reverse=True)
        kept += sorted(rng.uniform(1, 9, count).tolist())
    kind_of = np.full((size, size + 1), -1, dtype=np.int64)
    for first in range(size):
        for after in range(first + 1, size + 1):
            kind_of[first, after] = rng.integers(num_kinds)

    def each():
        return rng.uniform(0, 2, num_kinds)

    return {
        "num_ranks": num_ranks,
        "num_microbatches": int(rng.integers(1, 9)),
        "max_activations": 2**40,  # no waits but for the head
        "usable_bytes": 60.0 * tight,
        "gathered_share": 0.5,
        "floor_s": 0.0,
        "limit_s": math.inf,
        "weighs_ends": False,
        "kind_offset": np.zeros(0, np.int64),
        **dict.fromkeys(OF_UNLIKE, np.zeros((0, 0))),
        "kind_of": kind_of,
        "forward_s": each(),
        "input_grad_s": np.zeros(num_kinds),
        "weight_grad_s": np.full(num_kinds, 1e3),  # work enough to do at the end of a step
        "tail_s": each(),
        "optimizer_s": each(),
        "static_bytes": each(),
        "weight_bytes": each(),
        "largest_weight_bytes": each(),
        "freed_bytes": np.full(num_kinds, 1e9),  # all that any way keeps
        "level_offset": np.arange(num_kinds + 1),
        "transient_bytes": each(),
        "beside_bytes": each(),
        "front_offset": np.concatenate(([0], np.cumsum(points))),
        "front_bytes": np.array(kept),
        "front_time_s": np.array(times),
        "forward_before_s": np.concatenate(([0.0], np.cumsum(rng.uniform(0, 1, size)))),
        "input_grad_before_s": np.zeros(size + 1),
        "transfer_s": rng.uniform(0, 1, num_ranks - 1),
        "rank_time_s": np.zeros(1),
        "rank_forward_s": np.full(1, np.inf),  # of a rank, whatever it takes
        "near_in_flight": rng.uniform(0, 4, (2 * num_ranks, size + 1)),
        "far_in_flight": rng.uniform(0, 4, (2 * num_ranks, size + 1)),
    }


def asked(x) -> _core.PeelProblem:
    """The chain as the peel wants it."""
    kinds = {name: x[name] for name in BY_KIND}
    of_level = np.repeat(np.arange(len(x["level_offset"]) - 1), np.diff(x["level_offset"]))
    fronts = {
        "level_offset": x["level_offset"],
        "transient_bytes": x["transient_bytes"],
        "beside_bytes": x["beside_bytes"],
        "point_offset": x["front_offset"],
        "kept_bytes": x["front_bytes"],
        "time_s": x["front_time_s"],
        "tail_s": x["tail_s"][np.repeat(of_level, np.diff(x["front_offset"]))],
    }
    named = ("front_offset", "front_bytes", "front_time_s")
    rest = {name: x[name] for name in x if name not in (*kinds, *fronts, *named)}
    return _core.PeelProblem(
        **rest, kinds=_core.PeelKinds(**kinds), fronts=_core.PeelFronts(**fronts)
    )


def chain_of_stages(
    rng, *, num_ranks: int, num_microbatches: int, max_activations: int | None = None
):
    """A peel of 2p layers, each of which is a stage, with so many places and plenty of memory.

    Where no number is given there are places for all microbatches.

    Chunks near the end take longer than those near the beginning, so that they are worth waiting
    for.
    """
    size, none = 2 * num_ranks, np.zeros(2 * num_ranks)
    heavier = np.where(np.arange(size) < num_ranks, 1.0, rng.uniform(1, 4))
    forward_s = rng.uniform(0.2, 1, size) * heavier
    input_grad_s, weight_grad_s = (forward_s * rng.uniform(0.3, 1.5, size) for _ in range(2))
    total_s = forward_s + input_grad_s + weight_grad_s
    kind_of = np.full((size, size + 1), size)
    kind_of[np.arange(size), np.arange(size) + 1] = np.arange(size)
    far = np.arange(size)[: num_ranks - 1 : -1]
    ranks = np.stack((total_s[:num_ranks] + total_s[far], forward_s[:num_ranks] + forward_s[far]))
    ranks = ranks[:, 1:][:, np.argsort(ranks[0, 1:])]
    one = np.ones((num_ranks, size + 1))
    return {
        "num_ranks": num_ranks,
        "num_microbatches": num_microbatches,
        "max_activations": max_activations or 2 * num_microbatches + 1,
        "usable_bytes": 1e9,
        "gathered_share": 0.0,
        "floor_s": 0.0,
        "limit_s": math.inf,
        "weighs_ends": False,
        "kind_offset": np.zeros(0, np.int64),
        **dict.fromkeys(OF_UNLIKE, np.zeros((0, 0))),
        "kind_of": kind_of,
        "forward_s": forward_s,
        "input_grad_s": input_grad_s,
        "weight_grad_s": weight_grad_s,
        **dict.fromkeys(("tail_s", "optimizer_s", "static_bytes"), none),
        **dict.fromkeys(("weight_bytes", "largest_weight_bytes", "freed_bytes"), none),
        "level_offset": np.minimum(np.arange(size + 2), size),
        "transient_bytes": none,
        "beside_bytes": none,
        "front_offset": np.arange(size + 1),
        "front_bytes": none,
        "front_time_s": total_s,
        "forward_before_s": np.concatenate(([0.0], np.cumsum(forward_s))),
        "input_grad_before_s": np.concatenate(([0.0], np.cumsum(input_grad_s))),
        "transfer_s": rng.uniform(0, 0.3, num_ranks - 1),
        "rank_time_s": ranks[0],
        "rank_forward_s": np.maximum.accumulate(ranks[1]),
        "near_in_flight": one,
        "far_in_flight": one,
    }


def with_times(x, forward_s, input_grad_s, weight_grad_s):
    """The chain of stages with other times of its own."""
    p, total_s = x["num_ranks"], forward_s + input_grad_s + weight_grad_s
    far = np.arange(2 * p)[: p - 1 : -1]
    ranks = np.stack((total_s[:p] + total_s[far], forward_s[:p] + forward_s[far]))[:, 1:]
    ranks = ranks[:, np.argsort(ranks[0])]
    return x | {
        "forward_s": forward_s,
        "input_grad_s": input_grad_s,
        "weight_grad_s": weight_grad_s,
        "front_time_s": total_s,
        "forward_before_s": np.append(0.0, np.cumsum(forward_s)),
        "input_grad_before_s": np.append(0.0, np.cumsum(input_grad_s)),
        "rank_time_s": ranks[0],
        "rank_forward_s": np.maximum.accumulate(ranks[1]),
    }


def with_bytes(x, rng, *, microbatches: float):
    """The chain of stages with room for so many microbatches on each rank, and for one at least.

    Of what an activation keeps, its input gradient frees a part.
    """
    kept = rng.uniform(0.2, 3, 2 * x["num_ranks"])
    both = kept + kept[::-1]
    return x | {
        "front_bytes": kept,
        "freed_bytes": kept * rng.uniform(0, 1, len(kept)),
        "usable_bytes": float(both.max() + (microbatches - 1) * both.mean()),
    }


def merged(x, num_ranks: int):
    """The chain of 2p' stages cut for fewer ranks: each interval of them is a stage."""
    size = len(x["kind_of"])
    intervals = [(a, b) for a in range(size) for b in range(a + 1, size + 1)]
    kind_of = np.full((size, size + 1), len(intervals))
    for kind, interval in enumerate(intervals):
        kind_of[interval] = kind
    summed = {name: np.array([x[name][a:b].sum() for a, b in intervals]) for name in BY_KIND}
    count, one = len(intervals), np.ones((num_ranks, size + 1))
    return (
        x
        | summed
        | {
            "num_ranks": num_ranks,
            "kind_offset": np.zeros(0, np.int64),
            **dict.fromkeys(OF_UNLIKE, np.zeros((0, 0))),
            "kind_of": kind_of,
            "level_offset": np.minimum(np.arange(count + 2), count),
            **dict.fromkeys(("transient_bytes", "beside_bytes", "front_bytes"), np.zeros(count)),
            "front_offset": np.arange(count + 1),
            "front_time_s": sum(
                summed[f"{name}_s"] for name in ("forward", "input_grad", "weight_grad")
            ),
            "transfer_s": x["transfer_s"][: num_ranks - 1],
            "rank_time_s": np.zeros(1),
            "rank_forward_s": np.full(1, np.inf),
            "near_in_flight": one,
            "far_in_flight": one,
        }
    )


def stages_of(x, cuts):
    """The merged chain with these cuts, as `drawn_order_s` takes it."""
    kinds = [x["kind_of"][a, b] for a, b in pairwise(cuts)]
    return x | {name: x[name][kinds] for name in (*BY_KIND, "front_bytes")}


def drawn_order_s(x, rng) -> float:
    """The step in an order that is drawn: a rank's streams in a random order of urgency.

    The rank that can start first goes on. Of its places some are for the near chunk alone; beside
    the bytes of near chunks there is room for a far one. After its last action a rank exchanges
    what its stages leave exposed.
    """
    p, m, k = x["num_ranks"], x["num_microbatches"], x["max_activations"]
    last, free, done = 2 * p - 1, [0.0] * p, {}
    near, urgent = rng.integers(1, k, p), [rng.permutation(6) for _ in range(p)]
    streams = [
        [(kind, stage) for stage in (r, last - r) for kind in ("F", "I", "W")] for r in range(p)
    ]
    next_of = dict.fromkeys((stream for own in streams for stream in own), 0)
    held = dict.fromkeys(range(last + 1), 0)
    kept, freed = x["front_bytes"], np.minimum(x["front_bytes"], x["freed_bytes"])
    left = [x["usable_bytes"]] * p

    def ready_s(r: int, kind: str, stage: int) -> float:
        j = next_of[kind, stage]
        if j == m:
            return math.inf
        if kind == "F":
            both = held[r] + held[last - r]
            if both == k or (stage == r and held[r] == near[r]):
                return math.inf
            if kept[stage] + (kept[last - r] if stage == r else 0.0) > left[r] * (1 + 1e-12):
                return math.inf
            source = ("F", stage - 1) if stage else None
        else:
            source = (("I" if stage < last else "F"), min(stage + 1, last))
            source = ("I", stage) if kind == "W" else source
        if source is None:
            return 0.0
        if (*source, j) not in done:
            return math.inf
        ranks = sorted((r, min(source[1], last - source[1])))
        crosses = kind != "W" and ranks[0] != ranks[1]
        return done[(*source, j)] + (x["transfer_s"][ranks[0]] if crosses else 0.0)

    seconds = {"F": x["forward_s"], "I": x["input_grad_s"], "W": x["weight_grad_s"]}
    for _ in range(6 * p * m):
        each = []
        for r in range(p):
            starts = [max(free[r], ready_s(r, *stream)) for stream in streams[r]]
            first_s = min(starts)
            ready = [i for i in urgent[r].tolist() if starts[i] <= first_s]
            each.append((first_s, r, streams[r][ready[0]]))
        start_s, r, (kind, stage) = min(each)
        assert math.isfinite(start_s), "places for the far chunk are kept free"
        free[r] = start_s + seconds[kind][stage]
        done[kind, stage, next_of[kind, stage]] = free[r]
        next_of[kind, stage] += 1
        held[stage] += (kind == "F") - (kind == "W")
        left[r] -= {"F": kept[stage], "I": -freed[stage], "W": freed[stage] - kept[stage]}[kind]
    return max(free[r] + x["tail_s"][r] + x["tail_s"][last - r] for r in range(p))


def room_bytes(x, kinds: tuple[int, int]) -> float:
    """What the state of two chunks leaves of a device."""
    whole = sum(x["weight_bytes"][k] for k in kinds)
    heaviest = max(x["largest_weight_bytes"][k] for k in kinds)
    held = sum(x["static_bytes"][k] for k in kinds)
    return x["usable_bytes"] - held - min(x["gathered_share"] * heaviest, whole)


def fitting(x, rank: int, near: tuple[int, int], far: tuple[int, int]) -> list[tuple[int, int]]:
    """The points of both chunks of a rank that fit into memory together."""
    p, kinds = x["num_ranks"], (x["kind_of"][near], x["kind_of"][far])
    ways = [range(x["front_offset"][k], x["front_offset"][k + 1]) for k in kinds]
    room = room_bytes(x, kinds)
    beside = max(
        *(x["beside_bytes"][k] for k in kinds), min(x["transient_bytes"][k] for k in kinds)
    )
    found = []
    for i in ways[0]:
        for j in ways[1]:
            own, other = x["front_bytes"][i], x["front_bytes"][j]
            instants = [
                x["near_in_flight"][row * p + rank, near[0]] * own
                + x["far_in_flight"][row * p + rank, far[0]] * other
                + beside
                for row in range(2)
            ]
            instants.append(own + x["transient_bytes"][kinds[0]])
            instants.append(own + other + x["transient_bytes"][kinds[1]])
            if max(instants) <= room:
                found.append((i, j))
    return found


def beside_work_s(x, rank: int, near: tuple[int, int], far: tuple[int, int]) -> float:
    """What a rank without limits on activations waits for, and what follows its work.

    It waits for its first forward, or runs all forwards before its first backward can begin.
    """
    m, kinds = x["num_microbatches"], (x["kind_of"][near], x["kind_of"][far])
    head = x["forward_before_s"][near[0]] + x["transfer_s"][:rank].sum()
    there_and_back = x["forward_before_s"][-1] + 2 * x["transfer_s"].sum()
    to_backward = there_and_back + x["transfer_s"][:rank].sum()
    idle = to_backward - m * sum(x["forward_s"][k] for k in kinds)
    return max(head, idle) + sum(x["tail_s"][k] + x["optimizer_s"][k] for k in kinds)


def until_near_s(
    x, rank: int, near: tuple[int, int], far: tuple[int, int], ways: tuple[int, int]
) -> float:
    """What a rank waits for, and what follows its work, where its bytes let few microbatches pass.

    Until the first input gradient of its near chunk every microbatch keeps that chunk's activation.
    """
    m, kinds = x["num_microbatches"], (x["kind_of"][near], x["kind_of"][far])
    room, (own, other) = room_bytes(x, kinds), x["front_bytes"][list(ways)]
    passed = math.floor((room - other) / own)
    if passed >= m:
        return 0.0
    forward = min(m, math.floor(room / own)) * x["forward_s"][kinds[0]]
    to_near = x["forward_before_s"][-1] + 4 * x["transfer_s"].sum() - x["transfer_s"][:rank].sum()
    ends = sum(x["tail_s"][k] + x["optimizer_s"][k] for k in kinds)
    return to_near - forward - max(passed, 0) * x["front_time_s"][ways[1]] + ends
