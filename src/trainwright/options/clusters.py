"""What the cluster of a model means: a catalog entry, a file or a noun, sized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from trainwright.errors import Fault, InvalidInput, UnsupportedFeature, meant, one_of
from trainwright.units import GIB, format_count, format_seconds

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator, Cluster, Pool, Surroundings
    from trainwright.cluster.calibration import Calibration


NO_CALIBRATION: Final = "none"  # what `--calibration` says for a roofline
AUTO_SOFTWARE: Final = "auto"  # what `--software` says for that of the framework
ANY_FRAMEWORK: Final = "any"  # what `--framework` says for plans that nothing may run


def expected(cluster: Cluster, software: str | None) -> Cluster:
    """The cluster with the efficiencies expected of its devices under `software`.

    They are pooled over public runs (`calibration`); software that nobody names is what alone
    drives the device, or typical. A chip design, a device whose description has efficiencies of
    its own and one that carries constants of its own runs keep theirs; of a device that differs
    from the catalog in what the host takes, that stays.
    """
    from trainwright.formats import catalog

    known = catalog.accelerators()
    pools = (_expected(pool, known.get(pool.accelerator.name), software) for pool in cluster.pools)
    return replace(cluster, pools=tuple(pools))


_OF_HOSTS: Final = ("launch_overhead_s", "host_pass_s", "step_overhead_s")


def _expected(pool: Pool, stated: Accelerator | None, software: str | None) -> Pool:
    from trainwright.cluster.calibration import (
        is_calibrated,
        is_pooled,
        only_program_on,
        pooled_for,
        software_named,
        with_fitted,
    )
    from trainwright.formats.calibration_toml import built_in_efficiencies

    device = pool.accelerator
    if is_calibrated(device):
        upon = None if is_pooled(device) else pooled_for(device)
        if upon is None:
            return pool
        return with_fitted(built_in_efficiencies().applied_to(pool, software_named(upon)), pool)
    if stated is None or stated.efficiency != device.efficiency:
        return pool
    program = software_named(software or only_program_on(device.name))
    found = built_in_efficiencies().applied_to(pool, program)
    own = [name for name in _OF_HOSTS if getattr(device, name) != getattr(stated, name)]
    return replace(
        found, accelerator=replace(found.accelerator, **{n: getattr(device, n) for n in own})
    )


def priced_as_run(
    cluster: Cluster,
    options: Mapping[str, Any],
    *,
    framework: str | None = None,
    measured: bool = False,
) -> Cluster:
    """The cluster as the options `calibration` and `software` say that it is priced.

    A calibration goes before; "none" leaves a device as its description says. `framework` is what
    "auto" stands for, which is meant where no software is named: that of the options where absent.
    Layers that were `measured` need no expectation; what was fitted may still price their network.
    """
    modes = options.get("recompute") or ()
    host = options.get("offload") or "offload" in str(modes)
    host = host or _waits_on_host(options.get("schedule"))
    if not host:  # what no figure follows from is in no document
        cluster = without_host(cluster)
    calibration, software = options.get("calibration"), options.get("software")
    if calibration is not None:
        if software not in (None, AUTO_SOFTWARE) and not measured:
            problem = f'must not be given together with --calibration, got "{software}"'
            raise InvalidInput.of("software", problem)
        if str(calibration) == NO_CALIBRATION:
            return cluster
        return _holding(calibrated(cluster, calibration), options, line=str(calibration))
    if measured:
        return cluster
    priced = expected(cluster, software_named_by(options, framework=framework))
    return _holding(priced, options)


def grown(given: Cluster, sized: Cluster, *, nodes: int | None) -> Iterator[str]:
    """The line that says that a caller's own cluster was made larger for more devices.

    Where `nodes` ask for it, or the catalog's one node stands for any number, nothing is said.
    """
    from trainwright.formats import catalog

    if nodes is not None or given.name in catalog.cluster_names():
        return
    for before, after in zip(given.pools, sized.pools, strict=True):
        if after.num_nodes > before.num_nodes:
            yield (
                f"{given.name}: it has {format_count(before.num_nodes, 'node')} of "
                f"{before.devices_per_node} {before.accelerator.name}; as many devices as asked "
                f"for need {after.num_nodes}, which is what the figures are of"
            )


def replaced_figures(given: Cluster, priced: Cluster) -> Iterator[str]:
    """The line that says which figures of a caller's own network `priced` has in their place.

    What the catalog says of a fabric under the name of the cluster is nobody's own.
    """
    from trainwright.cluster.calibration import NETWORK_FIELDS, is_pooled, is_stated, line_of
    from trainwright.formats import catalog

    known = catalog.cluster(given.name).pools if given.name in catalog.cluster_names() else ()
    built_in = {(own.name, own.latency_s, own.efficiency) for pool in known for own in pool.levels}
    found, lines, pooled = [], [], True
    for before, after in zip(given.pools, priced.pools, strict=True):
        for own, put in zip(before.levels, after.levels, strict=True):
            changed = [
                field
                for field in NETWORK_FIELDS
                if is_stated(own, field) and getattr(own, field) != getattr(put, field)
            ]
            if not changed or (own.name, own.latency_s, own.efficiency) in built_in:
                continue
            pooled = pooled and is_pooled(after.accelerator)
            for field in changed:
                spoken = format_seconds if field == "latency_s" else "{:.2g}".format
                told = [spoken(float(f"{getattr(each, field):.3g}")) for each in (own, put)]
                found.append(f"{own.name} {field} {told[0]} by {told[1]}")
                lines.append(line_of((dict(put.sources)[field].source,)))
    if not found:
        return
    program, figures = " and ".join(dict.fromkeys(map(str, lines))), ", ".join(dict.fromkeys(found))
    by = f"figures fitted to public runs ({program})"
    keep = 'a level keeps what it has the source of: sources = { latency_s = "measured: ours" }'
    if not pooled:
        by, keep = f"those of calibration {program}", f"--calibration {NO_CALIBRATION} keeps them"
    yield f"{given.name}: {by} replace {figures}; {keep}"


def _holding(cluster: Cluster, options: Mapping[str, Any], *, line: str | None = None) -> Cluster:
    """A priced cluster whose devices keep no overlap that is asked for where constants hold it.

    A `line` is one that is built in, or a file: own runs say themselves what they hide.
    """
    from trainwright.cluster.calibration import TELLABLE, pooled_for, software_named
    from trainwright.formats.calibration_toml import built_in_calibrations, built_in_efficiencies

    overlap = options.get("overlap") or {}
    asked = [name for name in TELLABLE if (overlap.get(name) or 0) > 0]
    if not asked:
        return cluster
    if line is not None and line not in {each.line for each in built_in_calibrations()}:
        return cluster
    pools = []
    for pool in cluster.pools:
        device = pool.accelerator
        program = pooled_for(device) if line is None else line
        if program is not None:
            held = built_in_efficiencies().held_overlap(software_named(program))
            both = tuple(name for name in asked if name in held)
            pool = replace(pool, accelerator=replace(device, held_overlap=both))
        pools.append(pool)
    return replace(cluster, pools=tuple(pools))


def _waits_on_host(schedules: object) -> bool:
    """Whether a schedule that is named leaves activations on the host; unknown ones do not."""
    from trainwright.scheduling.families import FAMILIES

    names = schedules if isinstance(schedules, (tuple, list)) else str(schedules).split(",")
    named = [FAMILIES.get(str(name).strip()) for name in names]
    return any(family is not None and family.host_of is not None for family in named)


def read_software(given: str, name: str) -> str:
    """A program whose class is known, "typical" or "auto"; raises `InvalidInput` for others."""
    program = str(given).strip().lower()
    if program == AUTO_SOFTWARE:  # the default, read by commands that need no cluster
        return program

    from trainwright.cluster.calibration import OFFERED, TYPICAL, software_named

    if program == TYPICAL.name or software_named(program).kind != TYPICAL.kind:
        return program
    raise InvalidInput.of(name, one_of((*OFFERED, AUTO_SOFTWARE), given))


def software_named_by(options: Mapping[str, Any], *, framework: str | None = None) -> str | None:
    """The program that the options name; `framework`, or that of the options, for "auto"."""
    software = options.get("software")
    if software not in (None, AUTO_SOFTWARE):
        return str(software)
    asked = options.get("framework")
    return framework or (None if asked == ANY_FRAMEWORK else asked)


_OF_HOST: Final = "host."


def without_host(cluster: Cluster) -> Cluster:
    """The cluster of whose hosts nothing is said."""
    pools = []
    for pool in cluster.pools:
        device = pool.accelerator
        told = tuple(each for each in device.sources if not each[0].startswith(_OF_HOST))
        pools.append(replace(pool, accelerator=replace(device, host=None, sources=told)))
    return replace(cluster, pools=tuple(pools))


def with_host(cluster: Cluster) -> Cluster:
    """The cluster with what the catalog says of the hosts of its devices, where it does not."""
    from trainwright.formats import catalog

    known = catalog.accelerators()
    pools = []
    for pool in cluster.pools:
        device, stated = pool.accelerator, known.get(pool.accelerator.name)
        if device.host is None and stated is not None and stated.host is not None:
            told = tuple(each for each in stated.sources if each[0].startswith(_OF_HOST))
            device = replace(device, host=stated.host, sources=(*device.sources, *told))
        pools.append(replace(pool, accelerator=device))
    return replace(cluster, pools=tuple(pools))


def calibrated(cluster: Cluster, calibration: str | Path) -> Cluster:
    """The cluster with the constants of a file, or of built-in lines of a name, for its devices.

    "none" leaves it as its description says: a roofline. Raises `InvalidInput` where there are none
    of some pool's device.
    """
    from trainwright.formats.atomic_file import exists
    from trainwright.formats.calibration_toml import load_calibrations

    if str(calibration) == NO_CALIBRATION:
        return cluster
    path = Path(calibration)
    known = load_calibrations(path) if exists(path) and path.is_file() else None
    pools: list[Pool] = []
    faults: list[Fault] = []
    for at in range(len(cluster.pools)):
        alone = cluster.alone(at)
        try:
            if known is None:
                alone = _line_of(alone.accelerator.name, str(calibration)).applied(alone)
            else:
                alone = _calibrated_by(known, alone)
        except InvalidInput as error:
            faults += error.faults
        pools += alone.pools
    if faults:
        raise InvalidInput([*dict.fromkeys(faults)], source=None if known is None else str(path))
    return replace(cluster, pools=tuple(pools))


def _calibrated_by(known: Sequence[Calibration], cluster: Cluster) -> Cluster:
    """A pool with the constants that a file has of its device."""
    device = cluster.accelerator.name
    own = next((each for each in known if each.accelerator == device), None)
    if own is None:
        offered = ", ".join(sorted({f"{c.line} ({c.accelerator})" for c in known}))
        wanted = f"must hold constants of {device}; it has {offered or 'none'}"
        raise InvalidInput.of("calibration", wanted)
    if own.upon is not None:
        cluster = expected(cluster, read_software(own.upon, "upon"))
    return own.applied(cluster)


def _line_of(device: str, name: str) -> Calibration:
    """The built-in line of a device that is called so."""
    from trainwright.formats.calibration_toml import built_in_calibrations

    lines = [c for c in built_in_calibrations() if c.accelerator == device and c.replaced]
    own = next((each for each in lines if each.line == name), None)
    if own is None:
        offered = ", ".join(sorted(c.line for c in lines))
        built_in = f" or a line of {device} that is built in ({offered})" if lines else ""
        wanted = f"must be a file of `calibrate`{built_in}"
        near = meant(name, [c.line for c in lines])
        raise InvalidInput.of("calibration", f'{wanted}, got "{name}"{near}')
    return own


# What the cluster of a model means: a catalog entry, a file or a noun, sized
# ---------------------------------------------------------------------------

LARGEST_CLUSTER: Final = 10**9  # devices or nodes; far beyond any machine


class OpenedCluster(NamedTuple):
    """A cluster, how many of its devices it stands for, and what is to be said of it."""

    cluster: Cluster
    num_devices: int
    warnings: tuple[str, ...] = ()


GivenCluster: TypeAlias = "str | Path | Cluster | OpenedCluster | None"


def opened(cluster: GivenCluster, *, document: str | None = None) -> OpenedCluster:
    """Read what names a cluster; a document stands for the chips that it planned for.

    Pools that are alike are one, however they are given. Where none is given, what is said names
    the `document` that the model is of.
    """
    from trainwright.cluster import Cluster
    from trainwright.formats.catalog import open_cluster_or_chip

    if cluster is None:
        own = "" if document is None else f", or --cluster {document} for that of the document"
        raise InvalidInput.of(
            "cluster", f"must be given for a model; see: trainwright catalog clusters{own}"
        )
    if isinstance(cluster, OpenedCluster):
        return cluster
    found = cluster if isinstance(cluster, Cluster) else open_cluster_or_chip(str(cluster))
    if isinstance(found, Cluster):
        return OpenedCluster(found.with_like_pools_joined, found.num_devices)
    return OpenedCluster(found.cluster, found.num_devices, tuple(_not_taken(found.surroundings)))


# Words of a name that say who made a device or what is sold with it, not which one it is, and those
# that may be left out: a series, how much memory, how it is mounted or cooled.
_MAKERS: Final = frozenset(
    {"nvidia", "geforce", "quadro", "tesla", "amd", "instinct", "intel", "google", "aws"}
    | {"blackwell", "generation", "workstation", "edition", "gpu", "laptop"}
)
_LEFT_OUT: Final = re.compile(r"rtx|tpu|sxm|nvl|gcd|\d+(?:gb|w)")
_SIZE: Final = re.compile(r"^(\d{1,3})(?:gi?b?)?$")
_SOLD: Final = 1.1  # GB that a card is sold with over the GiB that a process gets, at most (T4)


def cluster_of_accelerator(name: str) -> Cluster | None:
    """The first cluster of the catalog with devices of that name alone; None for no such device.

    A name is that of the catalog, or one as drivers show it ("NVIDIA A100-SXM4-80GB"); case, dashes
    and what tells variants of a device apart do not matter ("h100" is the H100-80GB-SXM, "4090 24G"
    the RTX-4090). Of two devices with like names ("RTX 6000") it is none.
    """
    from trainwright.formats import catalog

    wanted = _words(name)
    if all(_LEFT_OUT.fullmatch(word) for word in wanted):
        return None
    for cluster in map(catalog.cluster, catalog.cluster_names()):
        if not _is_alone(cluster):
            continue
        device = cluster.accelerator.name
        own = _words(device)
        told = {word for word in wanted - own if _is_sold_with(word, cluster)}
        is_named = wanted - told <= own and all(map(_LEFT_OUT.fullmatch, own - wanted))
        if is_named or _plain(device) == _plain(name):
            return cluster
    return None


def _words(name: str) -> set[str]:
    """The words of a name that tell devices apart; a short number is a size ("A100-40")."""
    lower = re.sub(r"(?<=\d)ti(?![a-z])", " ti", re.sub(r"hbm\d\w*", "", name.lower()))
    words = re.findall(r"rtx|[a-z]*\d+[a-z]*|[a-z]+", lower)
    known = (re.sub(r"^sxm\d$", "sxm", _SIZE.sub(r"\1gb", word)) for word in words)
    return {*known} - _MAKERS


def _is_sold_with(word: str, cluster: Cluster) -> bool:
    """Whether a word is the memory of a device of one size, most of which a process gets."""
    size, device = _SIZE.fullmatch(word), cluster.accelerator
    if size is None or any(map(_SIZE.fullmatch, _words(device.name))):
        return False
    return 1 <= float(size[1]) * GIB / device.memory_bytes <= _SOLD


def accelerators_of_clusters() -> tuple[str, ...]:
    """The names that `cluster_of_accelerator` knows, sorted."""
    from trainwright.formats import catalog

    known = map(catalog.cluster, catalog.cluster_names())
    return tuple(sorted({each.accelerator.name for each in known if _is_alone(each)}))


def _is_alone(cluster: Cluster) -> bool:
    return len(cluster.pools) == 1


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _not_taken(around: Surroundings | None) -> Iterator[str]:
    """What the search for a chip was told, or a document priced, and pricing does not take."""
    from trainwright.plans.configuration import DEFAULT_OVERLAP

    if around is None:
        yield "cluster: its devices are priced as the document has them, whatever software is named"
        return
    told = (around.tensor_overlap, around.gradient_overlap)
    taken = (DEFAULT_OVERLAP.tensor, DEFAULT_OVERLAP.gradients)
    if told in ((0.0, 0.0), taken):
        return
    yield (
        f"cluster: the search for this chip hid tensor exchanges under {told[0]:.0%} and gradients "
        f"under {told[1]:.0%} of compute; plans hide them under {taken[0]:.0%} and {taken[1]:.0%}, "
        "estimates as --overlap says"
    )


def resolve_cluster(
    cluster: GivenCluster,
    *,
    nodes: int | None,
    devices: int | None,
    memory_bytes: float | None = None,
) -> tuple[Cluster, int]:
    """A catalog cluster or a file, sized, and how many of its devices to use.

    `memory_bytes` replaces what the driver shows of a device, of which a fraction is usable.
    """
    found, own_devices, _ = opened(cluster)
    if len(found.pools) > 1:
        kinds = ", ".join(pool.accelerator.name for pool in found.pools)
        raise UnsupportedFeature(
            f"cluster: {found.name} has several pools, of {kinds}",
            alternative="give one pool; plan takes several",
        )
    found = _sized(found, nodes, memory_bytes)
    if devices is None:
        return found, own_devices if nodes is None else found.num_devices
    _refuse_too_many("devices", devices)
    if devices > found.num_devices and len(found.levels) == 1:
        known = f"the {found.num_devices} of {found.name}, whose network has a single level"
        raise InvalidInput.of("devices", f"must be at most {known}, got {devices}")
    if nodes is None and devices > found.num_devices:
        found = found.with_nodes(found.pool_of().nodes_for(devices))
    if devices > found.num_devices:
        raise InvalidInput.of(
            "devices", f"must be at most the {found.num_devices} of {nodes} nodes, got {devices}"
        )
    return found, devices


def resolve_pools(
    cluster: GivenCluster,
    *,
    nodes: int | None,
    devices: int | None,
    memory_bytes: float | None = None,
) -> tuple[Cluster, int]:
    """Like `resolve_cluster`, and also a cluster of several pools, which keep their proportion.

    A memory is that of every device of all pools.
    """
    given = opened(cluster)
    found = given.cluster
    if len(found.pools) == 1:
        return resolve_cluster(given, nodes=nodes, devices=devices, memory_bytes=memory_bytes)
    found = _sized(found, nodes, memory_bytes)
    if devices not in (None, found.num_devices):
        _refuse_too_many("devices", devices)
        found = found.with_devices(devices)
    return found, found.num_devices


def _sized(cluster: Cluster, nodes: int | None, memory_bytes: float | None) -> Cluster:
    if memory_bytes is not None:
        cluster = cluster.with_memory(memory_bytes)
    if nodes is None:
        return cluster
    _refuse_too_many("nodes", nodes)
    return cluster.with_nodes(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedChain:
    """Replicas of the pipeline, and the pool of each of its ranks; None is what follows."""

    pools: tuple[int, ...]
    count: int | None = None
    num_microbatches: int | None = None


_CHAIN: Final = re.compile(r"(?:([1-9]\d*)x([1-9]\d*):)?(.+)")


def stated_chains(
    given: Sequence[str], cluster: Cluster, *, pipeline: int
) -> tuple[StatedChain, ...]:
    """Where the ranks of replicas lie, as `0,0,1`, `1` or `2x6:1`; raises `InvalidInput`."""
    found: list[StatedChain] = []
    for text in given:
        counts = _CHAIN.fullmatch(text.strip())
        count, each, names = counts.groups() if counts else (None, None, "")
        pools = tuple(cluster.pool_named(name.strip()) for name in names.split(","))
        if len(pools) not in (1, pipeline):
            wanted = f"must name one pool, or that of each of the {pipeline} pipeline ranks"
            raise InvalidInput.of("pool", f'{wanted}, got "{text}"')
        if count is None and len(given) > 1:
            wanted = "must say how many replicas run how many microbatches where several are given"
            raise InvalidInput.of("pool", f'{wanted}, as 2x6:{names}, got "{text}"')
        found.append(
            StatedChain(
                pools=pools * (pipeline // len(pools)),
                count=None if count is None else int(count),
                num_microbatches=None if each is None else int(each),
            )
        )
    if not found:
        offered = ", ".join(f"{n} ({name})" for n, name in enumerate(cluster.pool_names()))
        wanted = f"must be given, as --pool {','.join(['0'] * (pipeline - 1) + ['1'])}"
        raise InvalidInput.of("pool", f"{wanted}: the pool of each pipeline rank, of {offered}")
    return tuple(found)


def _refuse_too_many(name: str, count: int) -> None:
    if count > LARGEST_CLUSTER:
        raise InvalidInput.of(name, f"must be <= {LARGEST_CLUSTER}, got {count}")


# Several numbers of devices: `64..4096` doubles, `64,96,128` lists, and both may be mixed
# ----------------------------------------------------------------------------------------

Sizes: TypeAlias = "str | int | Iterable[int]"
MOST_SIZES: Final = 64


def parse_sizes(given: Sizes) -> tuple[int, ...]:
    """The numbers in increasing order; raises `InvalidInput` naming the option."""
    if isinstance(given, int):
        return (given,)
    parts = given.split(",") if isinstance(given, str) else given
    sizes = sorted({size for part in parts for size in _part(part)})
    if not sizes:
        raise InvalidInput.of("devices", "must name at least one number, got none")
    if sizes[-1] > LARGEST_CLUSTER:
        raise InvalidInput.of("devices", f"must be <= {LARGEST_CLUSTER}, got {sizes[-1]}")
    if len(sizes) > MOST_SIZES:
        problem = f"must be at most {MOST_SIZES} numbers, got {len(sizes)}"
        raise InvalidInput.of("devices", problem)
    return tuple(sizes)


def _part(part: str | int) -> Iterator[int]:
    if isinstance(part, int) and not isinstance(part, bool) and part >= 1:
        yield part
        return
    low, dots, high = str(part).partition("..")
    first = _count(low, part)
    if not dots:
        yield first
        return
    last = _count(high, part)
    if last < first:
        raise InvalidInput.of("devices", f"must not be empty, got {part}; write {high}..{low}")
    size = first
    while size < last:
        yield size
        size *= 2
    yield last


def _count(text: str, part: object) -> int:
    stripped = text.strip()
    if not stripped.isdecimal() or int(stripped) < 1:
        wanted = "must be a whole number >= 1, a range such as 64..4096 or a list such as 64,96"
        raise InvalidInput.of("devices", f'{wanted}, got "{part}"')
    return int(stripped)
