"""Questions about schedules: families, searches, fronts, given orders, specs of stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from question_lines import question, spelled, without
from schedule_files import as_csv, as_json, orders_1f1b, orders_gpipe, spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from question_lines import Options, Question

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
        "no-method": without(good, "family"),
        "two-methods": {**good, "simulate": "o.csv"},
        "ranks": {**good, "ranks": 0},
        "no-ranks": without(good, "ranks"),
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
