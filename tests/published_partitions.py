"""Reference results of profiled partitioning and of placement, and our answers to them."""

from __future__ import annotations

import json
from functools import cache

from instances import setting_of
from reference import reference
from trainwright.execution import Budget
from trainwright.formats.piper_json import read_piper
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.partitioning.placement import placement_rules
from trainwright.partitioning.placement_planner import plan_placement

SOLVER_MODES = {
    "full": Restrictions(),
    "nodp": Restrictions(data_parallel=False),
    "notp": Restrictions(tensor_parallel=False),
    "noar": Restrictions(recompute=False),
}
BASELINES = {
    "equi_tp": {},
    "equi_notp": {"restrictions": Restrictions(tensor_parallel=False)},
    "equi_all_layers_notp": {
        "restrictions": Restrictions(tensor_parallel=False),
        "block_layer": None,
    },
}


def published_modes(modes, *, having="feasible"):
    """Every (instance, mode) of the reference results."""
    for family in sorted((reference() / "partitioning").glob("*.json")):
        for instance in json.loads(family.read_text())["instances"]:
            for mode, result in instance["modes"].items():
                if mode in modes and having in result:
                    yield instance, mode


@cache
def published_profile(name):
    piper = json.loads((reference() / "profiles" / name).read_text())
    return piper, read_piper(piper).profiles[0]


def load(instance):
    """The instance as a Piper object, and its nouns."""
    piper, profile = published_profile(instance["profile"])
    fields = ("maxMemoryPerDevice", "maxDevices", "mbsInBatch", "bandwidth")
    piper = piper | {field: instance[field] for field in fields}
    return piper, profile, setting_of(piper)


def placements():
    """The placement cases."""
    folder = reference() / "codesign" / "placement"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def placed(case, cost_model):
    """Our answer to one, without limits."""
    return plan_placement(
        case,
        rules=placement_rules(cost_model),
        restrictions=Restrictions(),
        budget=Budget(),
    )
