"""`codesign --chip`: no search for a chip, the plan on one that exists.

The chip is an accelerator of the catalog in the network that the options of `codesign` describe, or
a whole cluster: of the catalog, of a file, or of the design that an earlier search found. Each is
planned by the planner of `trainwright plan`, so the answer is its own.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, Unpack

from trainwright.api.codesign_request import DEFAULT_GLOBAL_BATCH, CodesignOptions
from trainwright.api.inputs import naming_options
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    from trainwright.api.result import Result
    from trainwright.cluster import Cluster
    from trainwright.execution import Budget

_TAKEN: Final = (
    "global_batch",
    "sequence",
    "micro_batch",
    "tensor_parallel",
    "recompute",
    "schedule",
)
_OPTION_OF: Final = {
    "clock_hz": "clock",
    "max_area_mm2": "max-area",
    "max_mean_watts": "tdp",
    "max_power_watts": "max-power",
    "memory_stacks": "stacks",
    "stack_area_mm2": "stack-area",
}
_OF_NETWORK: Final = ("link_bandwidth", "node_devices", "node_bandwidth")


def plan_on_chip(
    model: str | Path,
    *,
    chip: str,
    devices: int,
    budget: Budget | None = None,
    **options: Unpack[CodesignOptions],
) -> Result:
    """The best plan of `model` on `devices` chips of a kind: what `trainwright plan` gives.

    `chip` names an accelerator of the catalog, or a cluster (a name, a file or the document of a
    search) with its own network. Raises `InvalidInput` for an option that only a search for a chip
    has.
    """
    from trainwright.api.plan import plan

    for name, value in options.items():
        if name not in (*_TAKEN, *_OF_NETWORK) and value not in (None, (), (1,), "geometric"):
            named = _OPTION_OF.get(name, name.replace("_", "-"))
            raise InvalidInput.of(named, "must not be given: the chip is fixed")
    sizes = tuple(options.get("micro_batch") or (1,))
    degrees = tuple(options.get("tensor_parallel") or ())
    with naming_options({"cluster": "chip"}):
        return plan(
            model,
            devices=devices,
            cluster=cluster_of(chip, devices=devices, options=options),
            global_batch=options.get("global_batch") or DEFAULT_GLOBAL_BATCH,
            sequence=options.get("sequence"),
            micro_batch=_span("micro-batch", sizes),
            tp=_span("tp", degrees) if degrees else None,
            recompute=",".join(options.get("recompute") or ("none", "full")),
            schedule=",".join(options.get("schedule") or ()) or None,
            budget=budget,
        )


def cluster_of(chip: str, *, devices: int, options: CodesignOptions) -> str | Cluster:
    """The cluster of a chip: its nodes of `node_devices`, links between them; a name as it is."""
    from trainwright.api.codesign_surroundings import surroundings_records
    from trainwright.cluster import networked
    from trainwright.formats.catalog import accelerators

    known = accelerators()
    if chip not in known:
        _require_cluster(chip)
        if given := [name for name in _OF_NETWORK if options.get(name) is not None]:
            problem = f"must not be given: {chip} has a network of its own"
            raise InvalidInput.of(given[0].replace("_", "-"), problem)
        return chip
    (around, *more) = surroundings_records(
        {
            "link_bandwidth": options.get("link_bandwidth"),
            "node_devices": options.get("node_devices"),
            "node_bandwidth": options.get("node_bandwidth"),
        }
    )
    if more:
        raise InvalidInput.of("link-bandwidth", "must be a single value: the chip is fixed")
    return networked(known[chip], around.surroundings(), num_devices=devices)


def _require_cluster(chip: str) -> None:
    """Raise `InvalidInput` where `chip` is neither a cluster nor a file."""
    from trainwright.formats.atomic_file import exists
    from trainwright.formats.catalog import accelerator_names, cluster_names

    if chip in cluster_names() or exists(chip):
        return
    known = (*accelerator_names(), *cluster_names())
    near = difflib.get_close_matches(chip, known, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise InvalidInput.of(
        "chip", f'must be a file or one of {", ".join(known)}, got "{chip}"{hint}'
    )


def _span(name: str, values: tuple[int, ...]) -> str:
    """A list of sizes as the planner takes it: from the least to the most of them."""
    least, most = min(values), max(values)
    doubling = tuple(least * 2**k for k in range((most // least).bit_length()))
    if tuple(sorted(set(values))) != doubling:
        raise InvalidInput.of(name, f"must double from value to value, got {list(values)}")
    return str(least) if least == most else f"{least}..{most}"
