"""The shortest schedule of a layer, by trying everything; shares no code with the package.

Every topological order, every choice of one core or all, and where cores come in pairs every core.
Each operator starts as early as it can behind those placed before it. Five operators are its limit.
"""

from __future__ import annotations

from itertools import permutations, product
from math import inf


def shortest_s(operators, edges, tensor_cores, vector_cores, *, exclusive, paired) -> float:
    """`operators` are (unit name, single_s, spread_s or None)."""
    count, best = len(operators), inf
    modes = [(False, True) if spread is not None else (False,) for _, _, spread in operators]
    before = [[u for u, w in edges if w == v] for v in range(count)]
    for order in permutations(range(count)):
        place = {v: k for k, v in enumerate(order)}
        if any(place[u] > place[v] for u, v in edges):
            continue
        for spread in product(*modes):
            best = min(
                best,
                _least(
                    operators, before, order, spread, tensor_cores, vector_cores, exclusive, paired
                ),
            )
    return best


def _least(
    operators, before, order, spread, tensor_cores, vector_cores, exclusive, paired
) -> float:
    def step(k, ends, tensor, vector, link):
        if k == len(order):
            return max(ends.values())
        v = order[k]
        unit, single_s, spread_s = operators[v]
        ready = max((ends[u] for u in before[v]), default=0.0)
        duration = spread_s if spread[v] else single_s
        best = inf
        for t_cores, v_cores, on_link in _cores(unit, spread[v], duration):
            start = max([ready, *(tensor[c] for c in t_cores), *(vector[c] for c in v_cores)])
            start = max(start, link if on_link else 0.0)
            end = start + duration
            new_tensor = [end if c in t_cores else x for c, x in enumerate(tensor)]
            new_vector = [end if c in v_cores else x for c, x in enumerate(vector)]
            new_link = end if on_link else link
            best = min(best, step(k + 1, ends | {v: end}, new_tensor, new_vector, new_link))
        return best

    def _cores(unit, is_spread, duration):
        if duration == 0 or unit in ("NONE", "LINK"):
            return [((), (), unit == "LINK" and duration > 0)]
        every_t, every_v = tuple(range(tensor_cores)), tuple(range(vector_cores))
        if is_spread:
            takes_t = every_t if exclusive or unit != "VECTOR" else ()
            takes_v = every_v if exclusive or unit != "TENSOR" else ()
            return [(takes_t, takes_v, False)]
        if unit == "TENSOR":
            return [((c,), (), False) for c in every_t]
        if unit == "VECTOR":
            return [((), (c,), False) for c in every_v]
        pairs = [(c, d) for c in every_t for d in every_v if c == d or not paired]
        return [((c,), (d,), False) for c, d in pairs]

    return step(0, {}, [0.0] * tensor_cores, [0.0] * vector_cores, 0.0)
