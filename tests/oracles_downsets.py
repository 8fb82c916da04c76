"""Is some plan of a profile within a time? Slow, plain, and sharing no code with the package.

Every chain of sets closed under successors is built stage by stage from the sinks, with every data
and tensor degree, and each stage is asked whether some choice of options brings it within the time
and the memory. Kept are the ways to a set that no other undercuts in both replicas and devices: the
fewer of both lie behind, the more is left in front. A few hundred sets take seconds.
"""

from __future__ import annotations

from functools import cache
from itertools import product

ROOM = 1 + 1e-9  # for the quick test alone


def some_plan_within(profile, setting, limit_s: float) -> bool:
    """Whether a plan exists of which every stage takes at most `limit_s` per microbatch."""
    stages = _Stages(profile, setting, limit_s)
    sets = closed_sets(profile)
    ways = {chosen: [] for chosen in sets}
    ways[0] = [(0, 0)]  # (sum of data degrees, devices)
    for behind in sets:
        for larger in sets if ways[behind] else ():
            if larger == behind or behind & ~larger:
                continue
            for d, t in product(stages.data_degrees, stages.tensor_degrees):
                if not stages.may_fit(larger & ~behind, t, d):
                    continue
                for replicas, devices in ways[behind]:
                    way = replicas + d, devices + d * t
                    if way[0] > setting.num_microbatches or way[1] > setting.num_devices:
                        continue
                    if any(other[0] <= way[0] and other[1] <= way[1] for other in ways[larger]):
                        continue
                    if stages.fit(larger & ~behind, t, d, -(-way[0] // d)):
                        ways[larger].append(way)
    return bool(ways[sets[-1]])


def closed_sets(profile) -> list[int]:
    """All sets of layers with all their successors, as bits, smaller ones first."""
    after = [0] * len(profile.structure.layers)
    for edge in profile.structure.edges:
        after[edge.source] |= 1 << edge.target
    found, frontier = {0}, [0]
    while frontier:
        chosen = frontier.pop()
        for v, needed in enumerate(after):
            larger = chosen | 1 << v
            if not needed & ~chosen and larger not in found:
                found.add(larger)
                frontier.append(larger)
    return sorted(found, key=lambda chosen: (chosen.bit_count(), chosen))


class _Stages:
    """Answers about stages, given as bits of their layers, for one limit."""

    def __init__(self, profile, setting, limit_s):
        self.setting, self.limit_s = setting, limit_s
        self.edges = profile.structure.edges
        self.options = [list(_options_of(profile, v)) for v in range(len(profile.structure.layers))]
        most = min(setting.num_devices, setting.num_microbatches)
        self.data_degrees = [d for d in range(1, most + 1) if setting.num_microbatches % d == 0]
        self.tensor_degrees = sorted({o["degree"] for own in self.options for o in own})
        self.fastest_s = cache(self._fastest_s)
        self.fit = cache(self._fit)

    def may_fit(self, inside, t, d):
        return self.fastest_s(inside, t) <= self.limit_s * d * ROOM

    def _fastest_s(self, inside, t):
        return sum(
            min((o["time_s"] for o in own if o["degree"] == t), default=float("inf"))
            for v, own in enumerate(self.options)
            if inside >> v & 1
        )

    def _fit(self, inside, t, d, in_flight):
        """Whether some choice of options, one per layer, is within the limit and the memory."""
        layers = [v for v in range(len(self.options)) if inside >> v & 1]
        choices = [self._choices(v, inside, t, d, in_flight) for v in layers]
        if not all(choices):
            return False
        left_s = sum(min(s for s, _ in own) for own in choices)
        left_bytes = sum(min(size for _, size in own) for own in choices)
        sums = [(0.0, 0.0)]
        for own in choices:
            left_s -= min(s for s, _ in own)
            left_bytes -= min(size for _, size in own)
            longer = sorted((s + more_s, b + more) for s, b in sums for more_s, more in own)
            sums, least = [], float("inf")
            for total_s, total in longer:
                within = total_s + left_s <= self.limit_s * d * (1 + 1e-14)
                if within and total < least and total + left_bytes <= self.setting.memory_bytes:
                    sums.append((total_s, total))
                    least = total
        return bool(sums)

    def _choices(self, v, inside, t, d, in_flight):
        """What each option of the layer adds to the stage's seconds, times d, and to its bytes."""
        bandwidth, batch = self.setting.bandwidth_bytes_per_s, self.setting.num_microbatches
        cut = [
            index
            for index, edge in enumerate(self.edges)
            if v in (edge.source, edge.target)
            and not (inside >> edge.source & 1 and inside >> edge.target & 1)
        ]
        return [
            (
                o["time_s"]
                + 2 * sum(self.edges[e].bytes + o["sync"].get(e, 0.0) for e in cut) / bandwidth
                + 4 * (d - 1) * o["gradients"] / (batch * bandwidth),
                in_flight * o["saved"] + o["static"],
            )
            for o in self.options[v]
            if o["degree"] == t
        ]


def _options_of(profile, layer):
    costs, structure = profile.costs, profile.structure
    ends = [e for e, edge in enumerate(structure.edges) if edge.target == layer]
    ends += [e for e, edge in enumerate(structure.edges) if edge.source == layer]
    rows = costs.rows_of(structure.layers[layer].layer_class)
    for row in range(rows.start, rows.stop):
        start, stop = costs.boundary_offsets[row], costs.boundary_offsets[row + 1]
        sync = costs.boundary_bytes[start:stop].tolist()
        yield {
            "degree": int(costs.tensor_parallel[row]),
            "time_s": float(costs.duration_s[row]),
            "gradients": float(costs.gradient_sync_bytes[row].sum()),
            "saved": float(costs.saved_bytes[row]),
            "static": float(costs.total_static_bytes[row]),
            "sync": dict(zip(ends, sync, strict=True)) if sync else {},
        }
