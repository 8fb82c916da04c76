"""`trainwright calibrate`: a few fitted constants, from measured runs or from training logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwright.api.printed import Report
from trainwright.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.cluster import Cluster
    from trainwright.plan.measured_run import MeasuredRun
    from trainwright.plan.results.calibration import CalibrationResult, FitRecord
    from trainwright.pricing.calibration import Prior
    from trainwright.validation.fitting import LineFit
    from trainwright.validation.question import Question

OWN_LINE: Final = "own"
DEFAULT_CONSTANTS: Final = ("gemm_max", "memory_max")
# Where a fit starts for what a cluster's description leaves at zero.
_STARTS: Final = {"host_pass_s": 3e-3, "step_overhead_s": 2e-2, "attention_half_flops": 5e10}


def calibrate(
    sources: Sequence[str | Path],
    *,
    logs: Sequence[str] = (),
    line: str | None = None,
    constants: Sequence[str] = DEFAULT_CONSTANTS,
) -> Report[CalibrationResult]:
    """Fit `constants` (at most 10) by accelerator and software line, with 90 % intervals.

    `sources` are CSV files or folders of measured runs; or documents of `estimate`, one per text of
    `logs`, which holds pasted lines of Megatron-LM, torchtitan or DeepSpeed. `line` names the
    software of logs, or picks one line of measured runs. Raises `InvalidInput` where a source
    cannot be read, or nothing in it was timed.
    """
    from trainwright.plan.results.calibration import CalibrationResult

    _check_constants(constants)
    if logs:
        fits = [_from_logs(sources, logs, line or OWN_LINE, constants)]
    else:
        fits = _from_rows(sources, line, constants)
    return Report(
        CalibrationResult(
            calibrations=tuple(found.calibration for found in fits),
            fits=tuple(map(_record, fits)),
        )
    )


def calibrated(cluster: Cluster, calibration: str | Path) -> Cluster:
    """The cluster with the constants of a file, or of a built-in line for its accelerator."""
    from trainwright.formats.calibration_toml import built_in_calibrations, load_calibrations

    path = Path(calibration)
    device = cluster.accelerator.name
    known = load_calibrations(path) if path.is_file() else built_in_calibrations()
    fitting = [c for c in known if c.accelerator == device]
    if not path.is_file():
        fitting = [c for c in fitting if c.line == str(calibration)]
    if not fitting:
        offered = sorted({f"{c.line} ({c.accelerator})" for c in known})
        raise InvalidInput.of(
            "calibration", f"must hold constants of {device}; it has {', '.join(offered) or 'none'}"
        )
    return fitting[0].applied(cluster)


def _check_constants(names: Sequence[str]) -> None:
    from trainwright.cluster import CONSTANTS

    unknown = [name for name in names if name not in CONSTANTS]
    if unknown:
        wanted = f"must be of {', '.join(CONSTANTS)}"
        raise InvalidInput.of("constants", f'{wanted}, got "{unknown[0]}"')
    if not 1 <= len(names) <= 10:
        raise InvalidInput.of("constants", f"must be 1 to 10 names, got {len(names)}")


def _priors(cluster: Cluster, names: Sequence[str]) -> list[Prior]:
    """Priors around what the cluster's description says."""
    from trainwright.pricing.calibration import prior_of

    device = cluster.accelerator
    shares = device.efficiency
    said = {
        "gemm_max": shares.gemm.max,
        "gemm_half_flops": shares.gemm.half,
        "memory_max": shares.memory.max,
        "attention_forward": shares.attention_forward,
        "attention_backward": shares.attention_backward,
        "fp8_ratio": shares.fp8_ratio,
        "launch_overhead_s": device.launch_overhead_s,
        "scale_up_efficiency": cluster.levels[0].efficiency,
        "scale_up_latency_s": cluster.levels[0].latency_s,
        "scale_out_efficiency": cluster.levels[-1].efficiency,
        "scale_out_latency_s": cluster.levels[-1].latency_s,
    }
    return [prior_of(name, said.get(name) or _STARTS.get(name, 1.0)) for name in names]


def _from_rows(
    sources: Sequence[str | Path], line: str | None, constants: Sequence[str]
) -> list[LineFit]:
    from trainwright.api.validate import known
    from trainwright.formats.measured_csv import measured_files, read_measured
    from trainwright.validation.fitting import fit_line
    from trainwright.validation.lines import line_of
    from trainwright.validation.machines import cluster_of

    catalog = replace(known(), calibrations=())
    groups: dict[tuple[str, str], list[MeasuredRun]] = {}
    for source in map(Path, sources):
        for path in measured_files(source) if source.is_dir() else (source,):
            for run in read_measured(path):
                software = line_of(run).name
                priced = run.accelerator in catalog.accelerators and run.step_time_s is not None
                if priced and line in (None, software):
                    groups.setdefault((run.accelerator, software), []).append(run)
    if not groups:
        raise InvalidInput.of("sources", "must hold at least 1 timed run of a known accelerator")
    return [
        fit_line(
            runs,
            catalog,
            _priors(cluster_of(runs[0], line_of(runs[0]), catalog), constants),
            source="measured runs: " + ", ".join(sorted({run.schema for run in runs})),
        )
        for _, runs in sorted(groups.items())
    ]


def _from_logs(
    documents: Sequence[str | Path], logs: Sequence[str], line: str, constants: Sequence[str]
) -> LineFit:
    from trainwright.formats.training_logs import read_log
    from trainwright.validation.fitting import fit_questions

    if len(documents) != len(logs):
        wanted = f"must be one log for each of the {len(documents)} estimates"
        raise InvalidInput.of("log", f"{wanted}, got {len(logs)}")
    asked = []
    for path, text in zip(documents, logs, strict=True):
        question = _question(path, line)
        asked_for = question.configuration
        measured_s = read_log(text).step_time_s(
            global_batch=asked_for.global_batch,
            sequence_length=asked_for.sequence_length,
            num_devices=asked_for.parallelism.num_devices,
        )
        asked.append((replace(question.run, step_time_s=measured_s), question))
    priors = _priors(asked[0][1].cluster, constants)
    return fit_questions(asked, priors, source=f"{len(logs)} training logs")


def _question(path: str | Path, line: str) -> Question:
    """What an estimate's document asked, as the fit takes it."""
    from trainwright.api.documents import load_any_document
    from trainwright.cluster import Cluster
    from trainwright.formats.document_json import decode
    from trainwright.model import TransformerConfig
    from trainwright.plan.measured_run import MeasuredRun
    from trainwright.plan.results.model_estimate import ModelEstimateResult
    from trainwright.validation.lines import SoftwareLine
    from trainwright.validation.question import Question

    document = load_any_document(path)
    if not isinstance(document, ModelEstimateResult):
        raise InvalidInput.of("sources", "must be the estimate of a model", source=str(path))
    request = document.request
    model = decode(TransformerConfig, request.model.content, path="request.model.content")
    cluster = decode(Cluster, request.cluster.content, path="request.cluster.content")
    degrees = request.configuration.parallelism
    run = MeasuredRun(
        row_id=str(path),
        schema="log",
        model=request.model.name,
        accelerator=cluster.accelerator.name,
        num_devices=degrees.num_devices,
        devices_per_node=cluster.pool_of().devices_per_node,
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        data=degrees.data,
    )
    return Question(
        run=run,
        line=SoftwareLine(name=line),
        model=model,
        cluster=cluster,
        configuration=request.configuration,
    )


def _record(found: LineFit) -> FitRecord:
    from trainwright.plan.results.calibration import FitRecord
    from trainwright.validation.fitting import mean_error

    return FitRecord(
        accelerator=found.calibration.accelerator,
        line=found.calibration.line,
        rows=len(found.runs),
        mape=mean_error(found.seen),
        unseen_mape=mean_error(found.unseen) if len(found.runs) > 1 else None,
    )
