"""Random placement inputs, as the JSON objects of files."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SIZES = st.integers(0, 6).map(float)
TIMES = st.integers(1, 6).map(float)


@st.composite
def placement_inputs(
    draw: st.DrawFn, *, most_layers: int = 5, chain: bool = True, recompute: bool | None = None
) -> dict[str, Any]:
    """A chain with skip edges, or any acyclic graph, at one or two widths."""
    count = draw(st.integers(1, most_layers))
    pairs = [(u, v) for v in range(count) for u in range(v)]
    kept = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=6)) if pairs else []
    if chain:
        kept = sorted({*((v, v + 1) for v in range(count - 1)), *kept[:2]})
    widths = draw(st.sampled_from((("1",), ("2",), ("1", "2"), ("1", "3"))))
    split = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    nodes, edges = {}, {}
    for width in widths:
        nodes[width] = [
            {
                "id": 10 + v,
                "parameterSize": draw(SIZES),
                "activationSize": draw(SIZES),
                "optimalLatencyFw": draw(TIMES),
                "optimalLatencyBw": draw(TIMES),
                "isTensorParallelized": split[v] and width != "1",
            }
            for v in range(count)
        ]
        edges[width] = [
            {"sourceId": 10 + u, "destId": 10 + v, "communicationCost": draw(SIZES)}
            for u, v in kept
        ]
    return {
        "maxMemoryPerDevice": draw(st.integers(4, 120).map(float)),
        "maxDevices": draw(st.integers(1, 6)),
        "bandwidth": draw(st.sampled_from((0.5, 1.0, 4.0))),
        "mbsInBatch": draw(st.sampled_from((1, 2, 3, 5, 8))),
        "nodes": nodes,
        "edges": edges,
        "activationRecomputation": draw(st.booleans()) if recompute is None else recompute,
        "optimizerAlgorithm": draw(st.sampled_from(("SGD", "Adam"))),
    }
