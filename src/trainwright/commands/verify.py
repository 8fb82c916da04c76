"""`trainwright verify`: does the schedule of a plan train the same model?

Three levels: the document and its orders by their laws (0), the whole schedule replayed on this
machine (1), its files run by PyTorch's own runtime (2). A level that fails ends the rest: files
whose orders are wrong are not run.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.commands.output import check_output, emit, finish
from trainwright.documents.explanation import run_meant
from trainwright.documents.fit import FitResult
from trainwright.documents.jobs import job_of, timelines_of, with_orders
from trainwright.documents.model_estimate import ModelEstimateResult
from trainwright.documents.model_plan import ModelPlanResult
from trainwright.documents.open import read_document
from trainwright.documents.printing import Report
from trainwright.documents.registry import VERIFIED
from trainwright.documents.verification import (
    Check,
    Control,
    GradientCheck,
    KeptBytes,
    Outcome,
    VerificationResult,
    VerifiedDocument,
)
from trainwright.errors import InvalidInput, MissingExtra
from trainwright.formats.document_json import content_hash, encode
from trainwright.frameworks.dry_run import case_of, has_own_order
from trainwright.lab import verify_orders, verify_runs
from trainwright.plans.lowered import LoweredSchedule
from trainwright.provenance import __version__
from trainwright.step.fsdp2 import fsdp2_peaks, peaks_under
from trainwright.step.memory import accounts_for

MOST_LEVEL = 2
_OUT_OF_SCOPE = (
    "tensor, context and expert parallelism: no rank is split",
    "networks between machines, and the order of messages on accelerators",
    "predicted seconds: this machine runs another, much smaller model",
)
_BESIDE_TENSORS = (
    "what an allocator holds beside tensors, and what the device shows",
    "gradients: no tensor had contents",
)
_FAILED = "not done: an earlier level failed"


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Report[VerificationResult]):
    """What was checked; `passed` is the verdict."""

    @property
    def passed(self) -> bool:
        """Whether all that was checked holds, and everything broken on purpose was caught."""
        return self.document.passed

    def require_installed(self) -> None:
        """Raise MissingExtra where a level was left out for want of an extra."""
        extra = self.document.missing_extra
        if extra is not None:
            raise MissingExtra(
                f"level {MOST_LEVEL}, the schedule's files on a real runtime", extra=extra
            )


def verify(
    document: str | Path | Report[Any] | verify_orders.Verifiable,
    *,
    level: int = MOST_LEVEL,
    self_test: bool = False,
    exported: str | Path | None = None,
    dry_run: bool = False,
) -> VerifyReport:
    """Check a plan, an estimate or a schedule up to `level`.

    A what-if, a sweep, an explanation or an improvement stands for the plan that `export` takes.

    `self_test` also runs copies that are broken on purpose and must fail. `exported` is a folder of
    `export --to pytorch`, whose schedule files are then checked, too. With `dry_run` the ranks of
    a model's plan or estimate are run by PyTorch on tensors without data instead, and what they
    hold is compared with the document. What does not hold is in the
    report, with its place, and raises nothing; a file that cannot be read, or a kind of document
    that nothing can be run of, raises `InvalidInput`. Without PyTorch levels 0 and 1 are still
    checked, and the report's `missing_extra` says what level 2 needs.

    Costs seconds: level 2 starts at most four processes on this machine, which end with this one.
    """
    if level not in range(MOST_LEVEL + 1):
        raise InvalidInput.of("level", f"must be 0, 1 or 2, got {level}")
    opened, name = _opened(document)
    asked = _Asked(
        level=level, self_test=self_test, exported=None if exported is None else Path(exported)
    )
    found = _Findings()
    subject: verify_orders.Pipeline | verify_orders.Replicas | None = None
    try:
        if dry_run:
            _dry_run(opened, found)
        else:
            subject = _level_0(opened, asked, found)
    except KeyboardInterrupt:
        subject, found.interrupted = None, True
    return VerifyReport(_result(opened, name, subject, found, level))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How far to go, and what to look at beside the document."""

    level: int
    self_test: bool
    exported: Path | None


@dataclass(slots=True)
class _Findings:
    """What is known so far."""

    checks: list[Check] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    runs: tuple[GradientCheck, ...] = ()
    kept: tuple[KeptBytes, ...] = ()
    missing_extra: str | None = None
    interrupted: bool = False
    out_of_scope: tuple[str, ...] | None = None

    @property
    def failed(self) -> bool:
        return any(check.outcome is Outcome.FAIL for check in self.checks)


def _opened(
    document: str | Path | Report[Any] | verify_orders.Verifiable,
) -> tuple[verify_orders.Verifiable, str]:
    """The document as it is: whether its figures hold is what is asked."""
    given: Any = document.document if isinstance(document, Report) else document
    kinds = VERIFIED
    if isinstance(given, (str, Path)):
        return read_document(given, kinds), Path(given).name
    kind = str(getattr(given, "kind", type(given).__name__))
    if kind not in kinds:
        wanted = ", ".join(f'"{each}"' for each in kinds)
        raise InvalidInput.of("kind", f'must be one of {wanted}, got "{kind}"')
    return given, kind


def _level_0(
    document: verify_orders.Verifiable, asked: _Asked, found: _Findings
) -> verify_orders.Pipeline | verify_orders.Replicas | None:
    """Check document and orders, then go on; what was replayed, None where nothing could be."""
    said, document = verify_orders.check_document(document)
    found.checks.append(said)
    if found.failed:
        _leave_out(found, asked.level)
        return None
    if isinstance(document, FitResult):
        found.checks.append(verify_orders.left_out(0, "orders", _NO_ORDERS))
        return None
    document = run_meant(document)
    subject = verify_orders.subject_of(document)
    if not isinstance(subject, verify_orders.Pipeline):
        found.checks.append(verify_orders.check_memory(document, subject))
        if asked.exported is not None:
            problem = "must be left out: a plan with degrees per stage has no schedule files"
            raise InvalidInput.of("exported", problem)
        _go_on(document, subject, (), asked, found)
        return subject
    for chain in subject.chains:
        found.checks.append(verify_orders.named(verify_orders.check_memory(document, chain), chain))
        found.checks.append(verify_orders.named(verify_orders.check_orders(chain), chain))
    if found.failed:
        _leave_out(found, asked.level)
        return subject
    lowered = tuple(chain.lowered() for chain in subject.chains)
    for chain, own in zip(subject.chains, lowered, strict=True):
        found.checks.append(verify_orders.named(verify_orders.check_transfers(own), chain))
        found.checks.append(verify_orders.named(verify_orders.check_last_stage(chain), chain))
    if asked.exported is not None:
        if subject.beside:
            problem = "must be left out: replicas that differ have no schedule files in common"
            raise InvalidInput.of("exported", problem)
        found.checks += verify_orders.exported_checks(asked.exported, subject)
    _go_on(document, subject, lowered, asked, found)
    return subject


_NO_ORDERS = "a fit has no schedule; verify an estimate of one of its runs"


def _dry_run(document: verify_orders.Verifiable, found: _Findings) -> None:
    """Check the document, then what PyTorch's tensors hold on every pipeline rank."""
    document = document if isinstance(document, FitResult) else run_meant(document)
    if not isinstance(document, (ModelPlanResult, ModelEstimateResult)):
        problem = f'must be a plan or an estimate of a model, got "{document.kind}"'
        raise InvalidInput.of("document", f"{problem}, which has no model to run")
    if document.request.model.kind == "profile":
        problem = (
            "must be left out: a profile says what layers cost, not what they are, so there is no "
            "model to run; the orders and their memory are checked without it"
        )
        raise InvalidInput.of("dry-run", problem)
    said, checked = verify_orders.check_document(document)
    found.checks.append(said)
    found.out_of_scope = _BESIDE_TENSORS
    if found.failed:
        return
    assert isinstance(checked, (ModelPlanResult, ModelEstimateResult)), "the same, read again"
    document = checked
    job = job_of(document)
    if has_own_order(job):
        job = with_orders(job, timelines_of(document, job)[0])
    case_of(job)  # refuses what the program does not run
    run = job.configuration()
    if accounts_for(job.model, run):  # the account of what the program runs, tensor by tensor
        peaks = fsdp2_peaks(job.model, run)
        if job.orders is not None:
            peaks = peaks_under(job.model, run, job.orders.schedule)
        predicted = [peak.allocated_bytes for peak in peaks]
    elif isinstance(document, ModelEstimateResult):
        predicted = [rank.total_bytes - rank.beside_bytes for rank in document.memory]
    else:
        predicted = [rank.memory_bytes for rank in document.ranks]
    found.checks.append(verify_runs.dry_run_check(job, predicted))


def _go_on(
    document: verify_orders.Verifiable,
    subject: verify_orders.Pipeline | verify_orders.Replicas,
    lowered: tuple[LoweredSchedule, ...],
    asked: _Asked,
    found: _Findings,
) -> None:
    """Levels 1 and 2, as far as they are asked for and nothing failed; `lowered` of each chain."""
    chains = subject.chains if isinstance(subject, verify_orders.Pipeline) else ()
    if asked.self_test:
        for chain, own in zip(chains, lowered, strict=True):
            made = verify_orders.controls_of(chain, own)
            found.controls += [control for control in made if control.level <= asked.level]
    if asked.level >= 1 and not found.failed:
        for chain, own in zip(chains, lowered, strict=True):
            checks, kept = verify_runs.pipeline_checks(chain, own)
            found.kept += kept
            found.checks += [verify_orders.named(check, chain) for check in checks]
        if not isinstance(subject, verify_orders.Pipeline):
            found.checks += verify_runs.replica_checks(subject)
    if found.failed:
        _leave_out(found, asked.level)
    elif asked.level == MOST_LEVEL:
        _level_2(document, subject, asked, found)


def _level_2(
    document: verify_orders.Verifiable,
    subject: verify_orders.Pipeline | verify_orders.Replicas,
    asked: _Asked,
    found: _Findings,
) -> None:
    try:
        ran = verify_runs.run_checks(document, subject, self_test=asked.self_test)
    except MissingExtra as error:
        found.missing_extra = error.extra
        found.checks.append(verify_orders.left_out(2, "run", verify_runs.NO_TORCH))
        return
    except KeyboardInterrupt:
        found.interrupted = True
        found.checks.append(verify_orders.left_out(2, "run", "interrupted"))
        return
    found.checks += ran.checks
    found.controls += ran.controls
    found.runs = ran.runs


def _leave_out(found: _Findings, level: int) -> None:
    reached = max(check.level for check in found.checks)
    names = {1: "replay", 2: "run"}
    found.checks += [
        verify_orders.left_out(n, names[n], _FAILED) for n in range(reached + 1, level + 1)
    ]


def _result(
    document: verify_orders.Verifiable,
    name: str,
    subject: verify_orders.Pipeline | verify_orders.Replicas | None,
    found: _Findings,
    level: int,
) -> VerificationResult:
    described = VerifiedDocument(
        kind=document.kind,
        name=name,
        sha256=content_hash(encode(document)),
        num_stages=0,
        num_ranks=0,
        num_microbatches=0,
        schedule="",
    )
    caught = all(control.caught for control in found.controls)
    return VerificationResult(
        trainwright_version=__version__,
        passed=not found.failed and caught and not found.interrupted,
        level=level,
        subject=_described(described, subject),
        checks=tuple(found.checks),
        controls=tuple(found.controls),
        runs=found.runs,
        kept_activations=found.kept,
        out_of_scope=found.out_of_scope or _out_of_scope(subject, found),
        notes=subject.notes if subject is not None else (),
        missing_extra=found.missing_extra,
        interrupted=found.interrupted,
    )


def _described(
    described: VerifiedDocument, subject: verify_orders.Pipeline | verify_orders.Replicas | None
) -> VerifiedDocument:
    if subject is None:
        return described
    if isinstance(subject, verify_orders.Pipeline):
        schedule = subject.timeline.schedule
        most = max(chain.timeline.schedule.num_microbatches for chain in subject.chains)
        sizes = (schedule.placement.num_stages, schedule.num_ranks, most)
    else:
        workers = sum(stage.replicas for stage in subject.replicated)
        sizes = (len(subject.replicated), workers, subject.num_microbatches)
    return replace(
        described,
        num_stages=sizes[0],
        num_ranks=sizes[1],
        num_microbatches=sizes[2],
        schedule=subject.schedule,
    )


def _out_of_scope(
    subject: verify_orders.Pipeline | verify_orders.Replicas | None, found: _Findings
) -> tuple[str, ...]:
    if subject is None or not found.runs:
        return _OUT_OF_SCOPE
    chains = subject.chains if isinstance(subject, verify_orders.Pipeline) else (subject,)
    ran, of = found.runs[0].num_replicas, sum(chain.data_parallel for chain in chains)
    if ran == of:
        return _OUT_OF_SCOPE
    ranks = found.runs[0].num_ranks
    said = f"data parallelism: {ran} of {of} replicas ran beside {ranks} ranks"
    return (said, *_OUT_OF_SCOPE)


# `trainwright verify`
# --------------------

_CHECK_FAILED = 4


def command(
    document: str, *, output: Path | None = None, as_json: bool = False, **options: Any
) -> None:
    """Check, and end with 4 where something does not hold."""
    check_output(output, document)
    report = verify(document, **options)
    emit(report, as_json=as_json, output=output)
    if report.passed:
        report.require_installed()
    code = 0 if report.passed else _CHECK_FAILED
    finish(code, interrupted=report.document.interrupted)
