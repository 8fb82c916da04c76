"""The narrow waist: what one layer costs at one point, whoever measured or estimated it."""

from trainwright.profile.cost_table import (
    Collective,
    CostTable,
    PhaseTimes,
    Profile,
    ProfileFile,
    ProfilePoint,
    ProfileSource,
    Recompute,
    StaticKind,
    TimeKind,
)
from trainwright.profile.structure import Edge, Layer, Setting, SharedParameters, Structure
from trainwright.provenance import Origin, Provenance

__all__ = [
    "Collective",
    "CostTable",
    "Edge",
    "Layer",
    "Origin",
    "PhaseTimes",
    "Profile",
    "ProfileFile",
    "ProfilePoint",
    "ProfileSource",
    "Provenance",
    "Recompute",
    "Setting",
    "SharedParameters",
    "StaticKind",
    "Structure",
    "TimeKind",
]
