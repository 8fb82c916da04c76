"""`trainwright fit`: what of a model trains on the devices at hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainwright.cluster import Cluster
from trainwright.commands.output import check_output, emit, finish
from trainwright.documents.fit import FitResult, fit_model
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput, one_of
from trainwright.formats.calibration_toml import framework_memory
from trainwright.options.clusters import (
    accelerators_of_clusters,
    cluster_of_accelerator,
    expected,
    software_named_by,
)
from trainwright.options.inputs import naming_options, resolve_model
from trainwright.options.run import as_trained
from trainwright.options.table import read, verb
from trainwright.plans.capability import capability_of, known_target
from trainwright.plans.capability_table import Feature
from trainwright.plans.configuration import SURE_FIT_PROBABILITY

# A number before or behind the name: "2xRTX4090", "RTX 4090 x 2", "H200x8", "H100:8".
_GPU: Final = re.compile(
    r"\s*(?:(?P<before>\d+)\s*[xX*×]\s*)?(?P<name>\S.*?)"
    r"(?:\s*(?<![rg]t)[x*×:]\s*(?P<behind>\d+))?\s*",
    re.IGNORECASE,  # the x of "RTX 8000" counts nothing
)
_MOST: Final = 100_000  # devices of a cluster
SEQUENCE: Final = 4096
RANK: Final = 16
SOFTWARE: Final = "trl"


@verb
def fit(model: str | Path, *, gpu: str, **options: Any) -> Report[FitResult]:
    """What trains on `gpu`, such as "2xRTX4090": all parameters, or adapters; how long, how many.

    The devices are a number and the name of an accelerator of the catalog, without which it is one;
    case, dashes and what follows the name do not matter. Times are those expected under `software`;
    memory is judged by its account, and fits with `probability`, 0.9 unless told: the longest
    sequence that fits is one that just fits. Raises `InvalidInput` for a device that is not known.

        fit("llama3-8b", gpu="2xRTX4090").document.rows
    """
    options = read("fit", options, own=("gpu",))
    count, cluster = devices_named(gpu)
    software = software_named_by(options) or SOFTWARE
    given = resolve_model(model)
    learned = given.config.max_positions
    length = options.get("sequence") or (min(SEQUENCE, learned) if learned else SEQUENCE)
    own, further = given.config.num_mtp_layers, options.get("mtp_layers")
    warnings: tuple[str, ...] = ()
    if own and further is None and not _predicts_further(software):
        further = 0
        said = f"{software} builds no layers that predict further tokens: {own} left out"
        warnings = (said, *given.warnings)
    given = as_trained(given, {**options, "sequence": length, "mtp_layers": further})
    given = replace(given, warnings=warnings or given.warnings)
    with naming_options({"sequence_length": "sequence"}):
        found = fit_model(
            given,
            expected(cluster, software),
            num_devices=count,
            sequence_length=length,
            images=options.get("images") or 0,
            image_size=options.get("image_size"),
            mtp_layers=further,
            software=software,
            lora_rank=options.get("lora_rank") or RANK,
            probability=_probability(options.get("fit_probability")),
        )
    return Report(found)


def _predicts_further(software: str) -> bool:
    """Whether a program builds layers that predict further tokens, as its models' code does."""
    target = known_target(software)
    if target is None:
        return framework_memory(software) != framework_memory(SOFTWARE)
    return capability_of(target).can(Feature.MTP)


def _probability(given: float | None) -> float:
    if given is None:
        return SURE_FIT_PROBABILITY
    if not 0 < given < 1:
        raise InvalidInput.of("fit-probability", f"must be above 0 and below 1, got {given!r}")
    return float(given)


def devices_named(text: str) -> tuple[int, Cluster]:
    """How many of which devices, in a cluster of the catalog that has as many.

    Raises `InvalidInput` naming the accelerators that there are.
    """
    found = _GPU.fullmatch(text)
    if found is None:
        raise InvalidInput.of("gpu", f'must be such as 2xRTX4090, got "{text}"')
    told = [each for each in found.group("before", "behind") if each is not None]
    if len(told) > 1:
        raise InvalidInput.of("gpu", f'must say once how many devices there are, got "{text}"')
    count = int(told[0]) if told else 1
    if not 1 <= count <= _MOST:
        raise InvalidInput.of("gpu", f"must be from 1 to {_MOST} devices, got {count}")
    name = found.group("name")
    cluster = cluster_of_accelerator(name)
    if cluster is None:
        raise InvalidInput.of("gpu", one_of(accelerators_of_clusters(), name))
    return count, cluster.with_nodes(cluster.pool_of().nodes_for(count))


# `trainwright fit`
# -----------------


def command(
    model: str, *, gpu: str, output: Path | None = None, as_json: bool = False, **options: Any
) -> None:
    """Print the table; the exit code is 3 where nothing fits."""
    check_output(output, model)
    report = fit(model, gpu=gpu, **options)
    emit(report, as_json=as_json, output=output)
    finish(0 if report.document.fits else 3, interrupted=False)
