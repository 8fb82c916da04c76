"""Reads clusters and accelerators from TOML: every fault at once, each with its path and the fix.

```toml
device_kind = "H100-80GB-SXM"     # of the catalog, or an [accelerator."…"] of the same file
num_devices = 16                  # optional; the levels must multiply to it

[[level]]                         # innermost first
name = "nvlink"
size = 8                          # children per unit
bandwidth_bytes_per_s = 450e9     # per device, one direction
latency_s = 3e-6
```

Several device kinds: one `[[pool]]` each with its own `device_kind` and `[[pool.level]]`, and a
`[joint]` level between them; pools that are alike are one, with `[joint]` around them. `sources`
beside any figure says where it comes from. In place of bandwidth and latency a level may name a
file of nccl-tests output, `nccl_tests = "all_reduce.txt"`.

Files of others are held to the schema of `cluster_schema` first. Those of the catalog follow it, as
a test says, and are made into nouns at once: most commands read no other file, and the schema is a
fifth of a short command's time.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from trainwright.cluster import (
    Accelerator,
    ChipTemplate,
    Cluster,
    Efficiency,
    Host,
    LevelKind,
    NetworkLevel,
    Pool,
    Saturating,
    Surroundings,
    template_device,
)
from trainwright.errors import Fault, InvalidInput, one_of
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.records import array_schema, titled
from trainwright.provenance import Origin, Provenance
from trainwright.units import GIB, MIB, parse_memory

MAX_FILE_BYTES: Final = 2**22

Table: TypeAlias = Mapping[str, Any]


def load_cluster(path: Path, *, accelerators: Mapping[str, Accelerator]) -> Cluster:
    """Read a cluster file; raises `InvalidInput` where it is missing, not TOML or breaks a rule."""
    return parse_cluster(read_bytes(path, name="cluster"), path, accelerators=accelerators)


def parse_cluster(data: bytes, path: Path, *, accelerators: Mapping[str, Accelerator]) -> Cluster:
    """Like `load_cluster`, of a file that was read; files it names lie beside `path`."""
    document = _with_measured_levels(_parse_toml(data, path), path)
    return read_cluster(document, name=path.stem, accelerators=accelerators, source=str(path))


def read_cluster(
    document: Mapping[str, Any],
    *,
    name: str,
    accelerators: Mapping[str, Accelerator],
    source: str | None = None,
) -> Cluster:
    """Turn the content of a cluster file into a cluster.

    `accelerators` are those the file may name besides its own. Raises `InvalidInput` with all
    faults.
    """
    from trainwright.formats.cluster_schema import ClusterFile, faults_of

    faults = list(faults_of(ClusterFile, document))
    faults += _size_faults(document)
    faults += _kind_faults(document, accelerators)
    if faults:
        raise InvalidInput(faults, source=source)
    return make_cluster(document, name=name, accelerators=accelerators)


def make_cluster(document: Table, *, name: str, accelerators: Mapping[str, Accelerator]) -> Cluster:
    """The cluster of a file that breaks no rule; like pools are one."""
    known = dict(accelerators) | make_accelerators(document)
    pools = document.get("pool") or (document,)
    joint = document.get("joint")
    found = Cluster(
        name=document.get("name") or name,
        pools=tuple(
            Pool(
                accelerator=known[pool["device_kind"]],
                levels=tuple(_level(level, size=level["size"]) for level in pool["level"]),
            )
            for pool in pools
        ),
        joint=None if joint is None else _level(joint, size=len(pools)),
    )
    return found.with_like_pools_joined


def make_accelerators(document: Table) -> dict[str, Accelerator]:
    """The accelerators of a file that breaks no rule."""
    tables = document.get("accelerator", {})
    return {name: _accelerator(name, table) for name, table in tables.items()}


def _parse_toml(data: bytes, path: Path) -> dict[str, Any]:
    if len(data) > MAX_FILE_BYTES:
        most = f"{MAX_FILE_BYTES / MIB:g} MiB"
        raise InvalidInput.of("cluster", f'must be at most {most}, got more in "{path}"')
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        wanted = "must be TOML, or the JSON document of a co-design"
        raise InvalidInput.of("cluster", f"{wanted}: {error}", source=str(path)) from None


def _with_measured_levels(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Levels that name a file of nccl-tests output get its bandwidth and latency."""
    found = dict(document)
    pools = document.get("pool")
    if isinstance(document.get("level"), list):
        found["level"] = [_measured(level, path) for level in document["level"]]
    if isinstance(document.get("joint"), dict):
        found["joint"] = _measured(document["joint"], path)
    if isinstance(pools, list):
        found["pool"] = [
            {**pool, "level": [_measured(level, path) for level in pool["level"]]}
            if isinstance(pool, dict) and isinstance(pool.get("level"), list)
            else pool
            for pool in pools
        ]
    return found


def _measured(level: Any, path: Path) -> Any:
    """One level table; anything that is no table with `nccl_tests` stays as it is."""
    if not isinstance(level, dict) or "nccl_tests" not in level:
        return level

    stated = {key: value for key, value in level.items() if key not in _MEASURED_KEYS}
    if clash := _FITTED_KEYS & stated.keys():
        taken = ", ".join(sorted(clash))
        raise InvalidInput.of("nccl_tests", f"measures {taken}; give only one", source=str(path))
    collective, sources = level.get("collective"), stated.get("sources", {})
    if not isinstance(collective, str | None) or not isinstance(sources, dict):
        name = "sources" if isinstance(collective, str | None) else "collective"
        wanted = "must be a table" if name == "sources" else "must be text, such as all_reduce"
        raise InvalidInput.of(name, f"{wanted}, got {level[name]!r}", source=str(path))
    output = path.parent / str(level["nccl_tests"])
    try:
        text = output.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        problem = f'"{output}" cannot be read: {error.strerror}'
        raise InvalidInput.of("nccl_tests", problem, source=str(path)) from None
    run = read_nccl_tests(text, collective=collective, source=str(output))
    link = fit_link(run, source=str(output))
    measured = f"measured: {run.collective} over {run.num_ranks} ranks, {output.name}"
    return {
        **stated,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
        "efficiency": 1.0,
        "sources": {
            **sources,
            "bandwidth_bytes_per_s": measured,
            "latency_s": measured,
        },
    }


_MEASURED_KEYS: Final = frozenset({"nccl_tests", "collective"})
_FITTED_KEYS: Final = frozenset({"bandwidth_bytes_per_s", "latency_s", "efficiency"})


def _level_tables(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The places that have levels: the file itself, or its pools."""
    pools = document.get("pool")
    if not isinstance(pools, list):
        yield "", document
        return
    for index, pool in enumerate(pools):
        if isinstance(pool, Mapping):
            yield f"pool[{index}].", pool


def _size_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    """Levels that do not multiply to the stated number of devices."""
    for prefix, table in _level_tables(document):
        levels, stated = table.get("level"), table.get("num_devices")
        if not isinstance(levels, list) or not isinstance(stated, int) or stated < 1:
            continue
        sizes = [level.get("size") for level in levels if isinstance(level, Mapping)]
        known = [size for size in sizes if isinstance(size, int) and size >= 1]
        if len(known) < len(levels):
            continue
        product = math.prod(known)
        if product != stated:
            written = " x ".join(map(str, known))
            yield Fault(
                f"{prefix}num_devices",
                f"must be the product of the level sizes, {written} = {product}, got {stated}; "
                f"change a size or write num_devices = {product}",
            )


def _kind_faults(
    document: Mapping[str, Any], accelerators: Mapping[str, Accelerator]
) -> Iterator[Fault]:
    own = document.get("accelerator")
    known = [*accelerators, *(own if isinstance(own, Mapping) else ())]
    for prefix, table in _level_tables(document):
        kind = table.get("device_kind")
        if isinstance(kind, str) and kind not in known:
            yield Fault(f"{prefix}device_kind", one_of(known, kind))


# Shares of the peak where a file states none: assumptions until fitted.
_EFFICIENCY: Final = {"attention_forward": 0.60, "attention_backward": 0.50}
_GEMM: Final = {"max": 0.80, "half_flops": 2.0e9}
_MEMORY: Final = {"max": 0.85, "half_bytes": 2.0e6}


def _accelerator(name: str, table: Table) -> Accelerator:
    return _design(name, table) if "cores" in table else _device(name, table)


def _design(name: str, table: Table) -> Accelerator:
    """A device that its cores describe: all of its memory usable, no host, nothing lost."""
    stated, given = table["cores"], Surroundings()
    chip = ChipTemplate(
        **{field: stated[field] for field in ("num_tc", "num_vc", "width", "depth")},
        glb_bytes=round(stated["glb_mib"] * MIB),
    )
    surroundings = replace(
        given,
        clock_hz=float(stated.get("clock_hz", given.clock_hz)),
        glb_bytes_per_cycle=float(stated.get("glb_bytes_per_cycle", given.glb_bytes_per_cycle)),
        memory_bytes=_memory_bytes(table),
        memory_bandwidth_bytes_per_s=float(table["memory_bandwidth_bytes_per_s"]),
        launch_s=float(table.get("launch_overhead_s", given.launch_s)),
    )
    device = template_device(
        chip,
        surroundings,
        precision=stated.get("precision", "bf16"),
        name=name,
        power_watts=_number(table.get("power_watts")),
    )
    return replace(
        device,
        usable_fraction=float(table.get("usable_fraction", 1.0)),
        price_per_hour=_number(table.get("price_per_hour")),
        sources=(*device.sources, *_sources(table.get("sources", {}))),
    )


def _memory_bytes(table: Table) -> float:
    gib = table.get("memory_gib")
    return parse_memory(str(table["memory"])) if gib is None else float(gib * GIB)


def _device(name: str, table: Table) -> Accelerator:
    efficiency = _EFFICIENCY | table.get("efficiency", {})
    gemm, memory = _GEMM | efficiency.get("gemm", {}), _MEMORY | efficiency.get("memory", {})
    sources = {
        key.replace("memory_gib", "memory_bytes"): text
        for key, text in table.get("sources", {}).items()
    }
    return Accelerator(
        name=name,
        peak_flops_per_s=tuple((k, float(v)) for k, v in table["peak_flops_per_s"].items()),
        memory_bytes=_memory_bytes(table),
        memory_bandwidth_bytes_per_s=float(table["memory_bandwidth_bytes_per_s"]),
        launch_overhead_s=float(table.get("launch_overhead_s", 4e-6)),
        usable_fraction=float(table.get("usable_fraction", 0.97)),
        efficiency=Efficiency(
            gemm=Saturating(max=float(gemm["max"]), half=float(gemm["half_flops"])),
            memory=Saturating(max=float(memory["max"]), half=float(memory["half_bytes"])),
            attention_forward=float(efficiency["attention_forward"]),
            attention_backward=float(efficiency["attention_backward"]),
        ),
        sources=_sources(sources),
        power_watts=_number(table.get("power_watts")),
        price_per_hour=_number(table.get("price_per_hour")),
        host=_host(table["host"]) if "host" in table else None,
        flops_per_exponential=float(table.get("flops_per_exponential", 0.0)),
    )


def _host(table: Table) -> Host:
    return Host(
        link_bytes_per_s=float(table["link_bytes_per_s"]),
        memory_bytes=float(table["memory_gib"] * GIB),
        updates_per_s=float(table["updates_per_s"]),
    )


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _level(table: Table, *, size: int) -> NetworkLevel:
    return NetworkLevel(
        name=table["name"],
        size=size,
        bandwidth_bytes_per_s=float(table["bandwidth_bytes_per_s"]),
        latency_s=float(table["latency_s"]),
        efficiency=float(table.get("efficiency", 0.8)),
        oversubscription=float(table.get("oversubscription", 1.0)),
        kind=LevelKind(table.get("kind", "switch")),
        sources=_sources(table.get("sources", {})),
    )


def _sources(stated: Mapping[str, str]) -> tuple[tuple[str, Provenance], ...]:
    found = []
    for name, text in stated.items():
        origin, _, source = text.partition(":")
        found.append((name, Provenance(origin=Origin(origin.strip()), source=source.strip())))
    return tuple(found)


# Output of nccl-tests (or rccl-tests) as the latency and bandwidth of a link
# ---------------------------------------------------------------------------
# Each row of the table is a payload and a time. A collective over n ranks takes steps · latency +
# share · payload / bandwidth (see `costing.communication`), so two numbers explain the whole
# column:
#
#     collective                       steps       share of the payload
#     all_reduce                       2 (n - 1)   2 (n - 1)/n
#     all_gather, reduce_scatter       n - 1       (n - 1)/n
#     alltoall                         n - 1       (n - 1)/n
#     sendrecv                         1           1
#
# They are fitted to relative errors, since payloads span seven orders of magnitude. Protocols that
# change with size make small payloads faster than the straight line through large ones; the fit is
# a compromise.
#
# Lines may stand behind what a launcher puts before them (`[1,0]<stdout>:`, `0: `), among lines of
# NCCL itself or of other programs; what the columns in place and of errors hold does not matter.


def _ring_passes(passes: int) -> Callable[[int], tuple[float, float]]:
    return lambda ranks: (passes * (ranks - 1), passes * (ranks - 1) / ranks)


# Steps, and share of the payload, over a number of ranks.
_COLLECTIVES: Final[dict[str, Callable[[int], tuple[float, float]]]] = {
    "all_reduce": _ring_passes(2),
    "all_gather": _ring_passes(1),
    "reduce_scatter": _ring_passes(1),
    "alltoall": _ring_passes(1),
    "sendrecv": lambda ranks: (1.0, 1.0),
}
COLLECTIVES: Final = tuple(_COLLECTIVES)
_RANK: Final = re.compile(r"\bRank\s+(\d+)\s.*\bdevice\s+\d+", re.ASCII)
_NAME: Final = re.compile(r"\b([a-z_]+)_perf(?:_mpi)?\b")
# Bytes, elements, type, and then, where printed, operation and root: a root is a whole number.
_ROW: Final = re.compile(
    r"(?:^|[:>\]|]\s*|\s)(\d+)\s+\d+\s+(?:u?int\d+|half|float|double|bfloat16|fp8\w*|f8\w*|bf16)"
    r"(?:\s+[a-z]\w*)?(?:\s+-?\d+(?=\s+\d*\.?\d+\s+\d+\.\d+\s+\d+\.\d+))?"
    r"\s+(\d*\.?\d+)\s+\d+\.\d+\s+\d+\.\d+(?:\s|$)",
    re.ASCII,
)
_US: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRun:
    """One table: payloads in bytes and out-of-place times over `num_ranks` ranks."""

    collective: str
    num_ranks: int
    payload_bytes: tuple[float, ...]
    time_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """A link as the collective saw it."""

    bandwidth_bytes_per_s: float
    latency_s: float


def nccl_tests_schema() -> dict[str, Any]:
    """The JSON Schema of an output, as the array of its lines."""
    lines = [
        {"contains": {"pattern": _RANK.pattern}, "minContains": 2},
        {"contains": {"pattern": _ROW.pattern}, "minContains": 2},
    ]
    about = "The output of a program of nccl-tests, its lines: ranks, then payloads with times."
    return titled("nccl-tests", array_schema({"type": "string"}) | {"allOf": lines}, about=about)


def read_nccl_tests(
    text: str, *, collective: str | None = None, source: str | None = None
) -> CollectiveRun:
    """Read the output of one run.

    `collective` is needed where the output does not name its program. Raises `InvalidInput` where
    the table, the ranks or the name are missing.
    """
    lines = text.splitlines()
    rows = [row for line in lines if (row := _row(line)) is not None]
    listed = [int(match[1]) for line in lines if (match := _RANK.search(line))]
    ranks = set(listed)
    programs = list(dict.fromkeys(_NAME.findall(text)))
    named = [name for name in programs if name in _COLLECTIVES]
    if collective is None and len(named) > 1:
        problem = f"must be one program's in a file, got {', '.join(named)}"
        raise InvalidInput.of("collective", problem, source=source)
    name = collective or next(iter(named or programs), None)
    if name not in _COLLECTIVES:
        wanted = f"must be one of {', '.join(COLLECTIVES)}"
        raise InvalidInput.of("collective", f"{wanted}, got {name or 'none'}", source=source)
    if len(ranks) < len(listed):
        times = listed.count(listed[0])
        problem = f"must be those of one run, got rank {listed[0]} {times} times; keep one run"
        raise InvalidInput.of("ranks", problem, source=source)
    if len(ranks) < 2:
        wanted = 'must list at least 2 ranks in lines such as "#  Rank  0 … device  0"'
        raise InvalidInput.of("ranks", f"{wanted}, got {len(ranks)}", source=source)
    if len(rows) < 2:
        wanted = "must have at least 2 rows of payload and time"
        raise InvalidInput.of("table", f"{wanted}, got {len(rows)}", source=source)
    return CollectiveRun(
        collective=name,
        num_ranks=len(ranks),
        payload_bytes=tuple(size for size, _ in rows),
        time_s=tuple(time_s for _, time_s in rows),
    )


def fit_link(run: CollectiveRun, *, source: str | None = None) -> LinkFit:
    """Latency and bandwidth that explain the run with the least relative error.

    Raises `InvalidInput` where times do not grow with the payload.
    """
    steps, share = _COLLECTIVES[run.collective](run.num_ranks)
    start_s, byte_s = _weighted_line(run.payload_bytes, run.time_s)
    if not byte_s > 0:
        wanted = "must have times that grow with the payload"
        raise InvalidInput.of("table", wanted, source=source)
    return LinkFit(bandwidth_bytes_per_s=share / byte_s, latency_s=start_s / steps)


def _row(line: str) -> tuple[float, float] | None:
    """Payload and out-of-place time of a line of the table, if it is one and moved anything."""
    match = _ROW.search(line)
    if match is None:
        return None
    size, time_us = float(match[1]), float(match[2])
    return (size, time_us * _US) if size > 0 and time_us > 0 else None


def _weighted_line(sizes: Sequence[float], times_s: Sequence[float]) -> tuple[float, float]:
    """Start >= 0 and slope of time over size by least squares of relative errors."""
    weights = [1 / time_s**2 for time_s in times_s]

    def total(values: Iterator[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True))

    w, wx = sum(weights), total(iter(sizes))
    wxx = total(size * size for size in sizes)
    wt = total(iter(times_s))
    wxt = total(size * time_s for size, time_s in zip(sizes, times_s, strict=True))
    determinant = w * wxx - wx * wx
    if determinant <= 0:
        return 0.0, 0.0
    start_s = (wt * wxx - wx * wxt) / determinant
    if start_s < 0:
        return 0.0, wxt / wxx
    return start_s, (w * wxt - wx * wt) / determinant
