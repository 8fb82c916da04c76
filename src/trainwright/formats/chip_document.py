"""The best design of a co-design document as a cluster: so many of that chip on its network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainwright.cluster import ChipTemplate, networked, template_device
from trainwright.errors import InvalidInput
from trainwright.formats.document_json import decode_document
from trainwright.formats.json_text import parse_json
from trainwright.plan.results.codesign import CodesignResult

if TYPE_CHECKING:
    from trainwright.cluster import Cluster, Surroundings
    from trainwright.plan.results.codesign import DesignRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundChip:
    """A design as a cluster of whole nodes, and what its search held beside that.

    `num_devices` is the number of chips it planned for, of which the last node may be partly used.
    """

    cluster: Cluster
    num_devices: int
    surroundings: Surroundings


def read_chip(data: bytes, *, source: str) -> FoundChip:
    """Read a document of `codesign`; raises `InvalidInput` where it is none or has no design."""
    value = parse_json(data, source=source)
    document = decode_document(value, {"codesign": CodesignResult}, source=source)
    if document.best is None:
        raise InvalidInput.of("best", "must be there: the search found no design", source=source)
    count = document.request.num_devices
    return FoundChip(
        cluster=_cluster(document.best, num_devices=count),
        num_devices=count,
        surroundings=document.best.architecture.surroundings.surroundings(),
    )


def _cluster(design: DesignRecord, *, num_devices: int) -> Cluster:
    """A design in its surroundings, with its mean power over a step, as a cluster."""
    made = design.architecture
    chip = ChipTemplate(
        num_tc=made.num_tc,
        num_vc=made.num_vc,
        width=made.width,
        depth=made.depth,
        glb_bytes=made.glb_bytes,
    )
    around = made.surroundings.surroundings()
    device = template_device(
        chip,
        around,
        precision=made.precision,
        name=str(chip),
        power_watts=design.power_watts,
    )
    return networked(device, around, num_devices=num_devices)
