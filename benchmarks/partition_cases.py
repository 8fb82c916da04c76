"""The instances of the partitioner's speed table: published profiles, and a star.

Profiles and recorded runtimes come from the folder named by TRAINWRIGHT_SHARED. The runtimes are
those of the code published with Piper (Tarnawski et al., NeurIPS 2021), on another machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from wide_graphs import GIB, WideSpec, star_profile, wide_setting

from trainwright.formats.piper_json import read_piper_bytes
from trainwright.profile import Profile, Setting

DATA = (
    Path(os.environ["TRAINWRIGHT_SHARED"], "data") if "TRAINWRIGHT_SHARED" in os.environ else None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a profile, its setting, and the CPU seconds the search may take."""

    profile: str
    memory_gib: float
    num_devices: int
    num_microbatches: int
    target_s: float
    status: str = "optimal"

    @property
    def name(self) -> str:
        memory = f" {self.memory_gib:g} GiB" if self.memory_gib else ""
        return f"{self.profile}{memory} K={self.num_devices}"

    def load(self) -> tuple[Profile, Setting]:
        if self.profile == "star":
            profile = star_profile(WideSpec(seed=1), width=16)
            drawn = wide_setting(profile, num_devices=self.num_devices, tightness=0.5)
            return profile, replace(drawn, num_microbatches=self.num_microbatches)
        return _read(self.profile), Setting(
            num_devices=self.num_devices,
            memory_bytes=self.memory_gib * GIB,
            bandwidth_bytes_per_s=25 * GIB,
            num_microbatches=self.num_microbatches,
        )

    @property
    def original_s(self) -> float | None:
        """CPU seconds the published code took, where they are recorded."""
        key = (self.profile, self.memory_gib, self.num_devices, self.num_microbatches)
        return _recorded_s().get(key)


def _case(profile: str, gib: float, k: int, n: int, target_s: float, *rest: str) -> Case:
    return Case(
        profile=profile,
        memory_gib=gib,
        num_devices=k,
        num_microbatches=n,
        target_s=target_s,
        status=rest[0] if rest else "optimal",
    )


BERT_AND_GNMT = (
    _case("bert32a100", 8, 128, 1920, 0.006),
    _case("bert32a100", 8, 512, 1920, 0.008),
    _case("bert32a100", 8, 1024, 1920, 0.010),
    _case("bert32a100", 8, 2048, 1920, 0.020),
    _case("bert48", 8, 512, 1920, 0.03),
    _case("bert64", 8, 512, 1920, 0.10),
    _case("bert64", 8, 1024, 1920, 0.12),
    _case("bert96", 8, 512, 1920, 0.25),
    _case("bert32a100", 8, 100_000, 110_880, 0.05),
    _case("bert96", 8, 100_000, 110_880, 1.0),
    _case("gnmt", 1.2, 8, 256, 0.10),
    _case("gnmt", 0.3, 64, 256, 0.15, "infeasible"),
)
RESNET_INFEASIBLE = {(1, 8), (1, 16), (1, 32), (1, 64), (1.5, 8), (1.5, 16), (2, 8)}
RESNET = tuple(
    _case("resnet", gib, k, 7680, 0.030, *(["infeasible"] * ((gib, k) in RESNET_INFEASIBLE)))
    for gib in (1, 1.5, 2, 4, 8, 16)
    for k in (8, 16, 32, 64, 128)
)
STAR = _case("star", 0, 8, 64, 2.0)  # memory is drawn
CASES = (*BERT_AND_GNMT, *RESNET, STAR)


@cache
def _read(name: str) -> Profile:
    assert DATA is not None, "set TRAINWRIGHT_SHARED"
    path = DATA / "profiles" / f"{name}.json"
    return read_piper_bytes(path.read_bytes(), source=path.name).profiles[0]


@cache
def _recorded_s() -> dict[tuple[str, float, int, int], float]:
    assert DATA is not None, "set TRAINWRIGHT_SHARED"
    recorded = {}
    for path in sorted((DATA / "partitioning").glob("*.json")):
        for instance in json.loads(path.read_text())["instances"]:
            original = instance["modes"].get("full", {}).get("original")
            if original is None:
                continue
            key = (
                instance["profile"].removesuffix(".json"),
                instance["maxMemoryPerDevice"] / GIB,
                instance["maxDevices"],
                instance["mbsInBatch"],
            )
            recorded[key] = original["cpu_s"]
    return recorded
