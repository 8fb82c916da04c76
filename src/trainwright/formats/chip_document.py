"""The best design of a co-design document as a cluster: so many of that chip on its network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.cluster import ChipTemplate, networked, template_device
from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.document_json import decode_document
from trainwright.formats.json_text import parse_json
from trainwright.plan.results.codesign import CodesignResult

if TYPE_CHECKING:
    from trainwright.cluster import Cluster
    from trainwright.plan.results.codesign import DesignRecord


def load_chip(path: Path) -> Cluster:
    """Read a document of `codesign`; raises `InvalidInput` where it is none or has no design."""
    value = parse_json(read_bytes(path, name="cluster"), source=str(path))
    document = decode_document(value, {"codesign": CodesignResult}, source=str(path))
    if document.best is None:
        raise InvalidInput.of("best", "must be there: the search found no design", source=str(path))
    return cluster_of_design(document.best, num_devices=document.request.num_devices)


def cluster_of_design(design: DesignRecord, *, num_devices: int) -> Cluster:
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
