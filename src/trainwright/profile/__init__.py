"""The narrow waist: what one layer costs at one point, whoever measured or estimated it."""

from trainwright.profile.profile import (
    USUAL_MODES,
    Collective,
    CostTable,
    Edge,
    Layer,
    PhaseTimes,
    Profile,
    ProfileFile,
    ProfilePoint,
    ProfileSource,
    Recompute,
    Setting,
    SharedParameters,
    StaticKind,
    Structure,
    TimeKind,
)
from trainwright.provenance import Origin, Provenance

__all__ = [
    "USUAL_MODES",
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
