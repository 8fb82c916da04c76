"""`trainwright calibrate`: a few fitted constants, from measured runs or from training logs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainwright.cluster import CONSTANTS, Circumstance, Cluster
from trainwright.cluster.calibration import pooled_for, software_named
from trainwright.commands.output import check_output, emit
from trainwright.commands.validate import known
from trainwright.documents.calibration import CalibrationResult, FitRecord
from trainwright.documents.printing import Report
from trainwright.errors import InvalidInput
from trainwright.formats.atomic_file import read_bytes
from trainwright.formats.calibration_toml import write_calibrations
from trainwright.formats.measured_csv import MeasuredRun, measured_files, read_measured
from trainwright.lab.fitting import LineFit, Prior, fit_line, fit_questions, mean_error, prior_of
from trainwright.lab.predict import Question, price
from trainwright.lab.run_shapes import SoftwareLine, cluster_of, line_of
from trainwright.step.account import circumstances

OWN_LINE: Final = "own"
DEFAULT_CONSTANTS: Final = ("gemm_max", "memory_max")
_OF_HOSTS: Final = ("host_pass_s", "step_overhead_s")  # fitted too where hosts set the pace
_FAR_OFF: Final = math.log(1.25)  # from a log under constants that were fitted to it
_UNLIKE: Final = math.log(2.5)  # from its estimate before: beyond what efficiencies explain
# Where a fit starts for what a cluster's description leaves at zero.
_STARTS: Final = {"host_pass_s": 3e-3, "step_overhead_s": 2e-2, "attention_half_flops": 5e10}


def calibrate(
    sources: Sequence[str | Path],
    *,
    logs: Sequence[str] = (),
    line: str | None = None,
    constants: Sequence[str] | None = None,
) -> Report[CalibrationResult]:
    """Fit `constants` (at most 10) by accelerator and software line, with 90% intervals.

    By default the shares of peak and bandwidth, and of logs whose runs hosts bind what these take.

    `sources` are CSV files or folders of measured runs; or documents of `estimate` or `plan`, one
    per text of `logs`, which holds pasted lines of Megatron-LM, torchtitan or DeepSpeed. `line`
    names the software of logs, or picks one line of measured runs. Raises `InvalidInput` where a
    source cannot be read, or nothing in it was timed.
    """
    if constants is not None:
        _check_constants(constants)
    warnings: tuple[str, ...] = ()
    if logs:
        found, before_s = _from_logs(sources, logs, line or OWN_LINE, constants)
        fits, warnings = [found], tuple(_far_off(found, before_s))
    else:
        fits = _from_rows(sources, line, constants or DEFAULT_CONSTANTS)
    return Report(
        CalibrationResult(
            calibrations=tuple(found.calibration for found in fits),
            fits=tuple(map(_record, fits)),
            warnings=warnings,
        )
    )


def _check_constants(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in CONSTANTS]
    if unknown:
        wanted = f"must be of {', '.join(CONSTANTS)}"
        raise InvalidInput.of("constants", f'{wanted}, got "{unknown[0]}"')
    if not 1 <= len(names) <= 10:
        raise InvalidInput.of("constants", f"must be 1 to 10 names, got {len(names)}")


def _priors(cluster: Cluster, names: Sequence[str]) -> list[Prior]:
    """Priors around what the cluster's description says."""
    device = cluster.accelerator
    shares = device.efficiency
    said = {
        "gemm_max": shares.gemm.max,
        "gemm_half_flops": shares.gemm.half,
        "memory_max": shares.memory.max,
        "attention_forward": shares.attention_forward,
        "attention_backward": shares.attention_backward,
        "attention_half_flops": shares.attention_half_flops,
        "fp8_ratio": shares.fp8_ratio,
        "launch_overhead_s": device.launch_overhead_s,
        "host_pass_s": device.host_pass_s,
        "step_overhead_s": device.step_overhead_s,
        "scale_up_efficiency": cluster.levels[0].efficiency,
        "scale_up_latency_s": cluster.levels[0].latency_s,
        "scale_out_efficiency": cluster.levels[-1].efficiency,
        "scale_out_latency_s": cluster.levels[-1].latency_s,
    }
    return [prior_of(name, said.get(name) or _STARTS.get(name, 1.0)) for name in names]


def _from_rows(
    sources: Sequence[str | Path], line: str | None, constants: Sequence[str]
) -> list[LineFit]:
    catalog = replace(known(), calibrations=(), efficiencies=None)
    groups: dict[tuple[str, str], list[MeasuredRun]] = {}
    for source in map(Path, sources):
        for path in measured_files(source) if source.is_dir() else (source,):
            if path.suffix.lower() == ".json":
                problem = "must be given for each document; `--log -` reads stdin"
                raise InvalidInput.of("log", problem, source=str(path))
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
            source="measured runs: " + ", ".join(sorted({run.table for run in runs})),
        )
        for _, runs in sorted(groups.items())
    ]


def _from_logs(
    documents: Sequence[str | Path], logs: Sequence[str], line: str, constants: Sequence[str] | None
) -> tuple[LineFit, list[float]]:
    """The fit, and what the estimates expected of each log before it."""
    from trainwright.frameworks.training_logs import read_log

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
    if constants is None:
        held = [circumstances(q.model, q.cluster, q.configuration) for _, q in asked]
        by_host = any(Circumstance.HOST_BOUND in each for each in held)
        constants = DEFAULT_CONSTANTS + (_OF_HOSTS if by_host else ())
    priors = _priors(asked[0][1].cluster, constants)
    plural = "s" if len(logs) > 1 else ""
    found = fit_questions(asked, priors, source=f"{len(logs)} training log{plural}")
    upon = pooled_for(asked[0][1].cluster.accelerator)
    before_s = [price(question).step_time_s for _, question in asked]
    return replace(found, calibration=replace(found.calibration, upon=upon)), before_s


def _question(path: str | Path, line: str) -> Question:
    """What the document of an estimate or a plan asked, as the fit takes it."""
    from trainwright.documents.jobs import run_of_document
    from trainwright.planning.question.question import described

    found = run_of_document(path)
    model, cluster, configuration = described(found.model), found.cluster, found.configuration
    degrees = configuration.parallelism
    run = MeasuredRun(
        row_id=str(path),
        table="log",
        model=found.embedded.name,
        accelerator=cluster.accelerator.name,
        num_devices=degrees.num_devices,
        devices_per_node=cluster.pool_of().devices_per_node,
        tensor=degrees.tensor,
        pipeline=degrees.pipeline,
        data=degrees.data,
    )
    return Question(
        run=run,
        line=SoftwareLine(software=software_named(line)),
        model=model,
        cluster=cluster,
        configuration=configuration,
    )


def _far_off(found: LineFit, before_s: Sequence[float]) -> Iterator[str]:
    """A line for each log whose run is not the one of its estimate, as it seems."""
    for run, residual, expected_s in zip(found.runs, found.seen, before_s, strict=True):
        measured_s = run.step_time_s
        assert measured_s is not None
        unlike = abs(math.log(measured_s / expected_s)) > _UNLIKE
        if unlike or abs(residual) > _FAR_OFF:
            fitted_s = measured_s * math.exp(residual)
            steps = f"{measured_s:.4g} s a step in the log, {expected_s:.4g} s in the estimate"
            yield (
                f"{run.row_id}: {steps} and {fitted_s:.4g} s with the fit: check that the estimate "
                "states the run of the log"
            )


def _record(found: LineFit) -> FitRecord:
    return FitRecord(
        accelerator=found.calibration.accelerator,
        line=found.calibration.line,
        rows=len(found.runs),
        mape=mean_error(found.seen),
        unseen_mape=mean_error(found.unseen) if len(found.runs) > 1 else None,
    )


# `trainwright calibrate`
# -----------------------

_STDIN = "-"


def command(
    sources: tuple[str, ...],
    *,
    log: tuple[str, ...] = (),
    output: Path | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Fit, and write the constants as TOML."""
    check_output(output)
    if log.count(_STDIN) > 1:
        raise InvalidInput.of("log", "must be read from stdin at most once, got - twice")
    report = calibrate(sources, logs=[_read(name) for name in log], **options)
    if output is not None:
        write_calibrations(output, report.document.calibrations)
    emit(report, as_json=as_json, output=None)


def _read(name: str) -> str:
    if name == _STDIN:
        return sys.stdin.read()
    return read_bytes(name, name="log").decode(errors="replace")
