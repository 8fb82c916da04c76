"""`trainwright validate`: the cost model against measured runs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainwright.commands.output import check_output, emit, finish
from trainwright.documents.printing import Report, to_text
from trainwright.documents.validation import ValidationResult, plot_validation, rows_table
from trainwright.documents.view import to_terminal
from trainwright.errors import InvalidInput, one_of
from trainwright.formats import catalog, measured_csv
from trainwright.formats.calibration_toml import built_in_calibrations, built_in_efficiencies
from trainwright.lab.run_shapes import Known
from trainwright.plans.plan import CommandLine

if TYPE_CHECKING:
    from trainwright.lab.validate import Outcome

SCORED: Final = ("time", "memory", "static_memory", "memory_apart", "static_memory_apart")
SOURCE: Final = "source"
SHARED_VARIABLE: Final = "TRAINWRIGHT_SHARED"


def validate(
    *folders: str | Path,
    profiles: str | Path | None = None,
    files: tuple[str, ...] = (),
    leave_out: str | None = None,
    predictions: str | Path | None = None,
) -> Report[ValidationResult]:
    """Predict every run of the CSV files in `folders`, or of single files, and score that.

    `profiles` holds tables of layer times and defaults to the folder beside the first of `folders`,
    then to that under the environment variable TRAINWRIGHT_SHARED. `files` restricts to those
    stems. With `leave_out="source"` each file is predicted with efficiencies that are fitted to the
    others. `predictions` is a table of another tool's: its rows are scored in place of ours, and a
    run that it has no row of counts as skipped.

    Raises `InvalidInput` where a file cannot be read, breaks a rule or is no table of runs.
    """
    from trainwright.lab.pooling import without_each
    from trainwright.lab.validate import (
        coverage,
        outcomes,
        pooled_regret,
        predictor,
        score,
        stated_predictor,
    )

    if not folders:
        raise InvalidInput.of("folder", "must be given")
    if leave_out not in (None, SOURCE):
        raise InvalidInput.of("leave-out", f'must be {SOURCE}, got "{leave_out}"')
    if leave_out is not None and predictions is not None:
        problem = "must not be given with predictions, which are scored as they are"
        raise InvalidInput.of("leave-out", problem)
    stated = None if predictions is None else measured_csv.read_predictions(Path(predictions))
    places = [Path(folder) for folder in folders]
    paths = _chosen(
        [path for place in places for path in measured_csv.measured_files(place)], files
    )
    first = places[0].parent if places[0].is_file() else places[0]
    profile_folder = find_profiles(first, profiles)
    layers = None if profile_folder is None else measured_csv.read_layer_tables(profile_folder)
    catalog, warnings = known(), []
    tables = []
    for path in paths:
        table = measured_csv.read_measured_table(path)
        beside = measured_csv.read_beside(path, table.runs)
        warnings += [f"{path.name}: {line}" for line in beside.unread]
        near = replace(catalog, models=beside.models, beside=beside.clusters)
        tables.append((path, table, near))
        if not (table.runs or table.incomplete):
            warnings.append(f"{path.name} has a header and no rows: nothing to predict")
        if table.missing_columns:
            absent = ", ".join(table.missing_columns)
            warnings.append(f"{path.name} has no column {absent}: taken as not stated")
        if unread := sorted(
            {key for run in table.runs for key in run.options} - measured_csv.OPTION_KEYS
        ):
            known_keys = ", ".join(sorted(measured_csv.OPTION_KEYS))
            said = f"{path.name}: options {', '.join(unread)} are not read, of {known_keys}"
            warnings.append(said)
    kept = {}
    if leave_out == SOURCE:
        kept = without_each([(str(path), table.runs, near) for path, table, near in tables])
    datasets = []
    pooled: list[Outcome] = []
    for path, table, near in tables:
        if leave_out == SOURCE:
            others = kept.get(str(path), catalog.efficiencies)
            near = replace(near, efficiencies=others, calibrations=(), unpublished=True)
        how = predictor(near, layers) if stated is None else stated_predictor(stated)
        found = outcomes(table.runs, how)
        datasets.append(score(path.stem, found, incomplete=table.incomplete))
        pooled += found
    if stated is not None:
        strange = sorted(set(stated) - {run.row_id for _, table, _ in tables for run in table.runs})
        if strange:
            unscored = f"{len(strange)} predictions are of no run here, such as {strange[0]}"
            warnings.append(f"{Path(str(predictions)).name}: {unscored}")
    document = ValidationResult(
        datasets=tuple(datasets),
        pooled_interval_coverage=coverage(pooled),
        pooled_top1_regret=pooled_regret([(d.ranked_groups, d.top1_regret) for d in datasets]),
        folder=", ".join(map(str, places)),
        profiles=None if profile_folder is None else str(profile_folder),
        predictions=None if predictions is None else str(predictions),
        warnings=tuple(warnings),
        command_line=_command_line(
            places, profiles=profiles, files=files, leave_out=leave_out, predictions=predictions
        ),
    )
    return Report(document)


def _command_line(
    places: Sequence[Path], *, files: Sequence[str], leave_out: str | None, **beside: Any
) -> CommandLine | None:
    """The words that ask this again beside its files, from below one folder where names meet."""
    named = {flag: Path(path) for flag, path in beside.items() if path is not None}
    known = {path.resolve() for path in (*places, *named.values())}
    names = {path: path.name for path in known}
    if len(set(names.values())) < len(known):
        try:
            root = os.path.commonpath([path.parent for path in known])
        except ValueError:  # on several drives
            return None
        names = {path: path.relative_to(root).as_posix() for path in known}
    words = ["validate", *(names[path.resolve()] for path in places)]
    for flag, path in named.items():
        words += [f"--{flag}", names[path.resolve()]]
    words += ["--files", ",".join(files)] if files else []
    words += ["--leave-out", leave_out] if leave_out is not None else []
    return CommandLine(words=tuple(words), files=tuple(names[path] for path in sorted(known)))


def _chosen(paths: Sequence[Path], files: Sequence[str]) -> list[Path]:
    """The files of those names, with or without their ending; all where none is named."""
    known = {path.stem: path for path in paths}
    wanted = [name.removesuffix(".csv") for name in files]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidInput.of("files", f'must be of {", ".join(known)}, got "{unknown[0]}"')
    return [path for path in paths if not files or path.stem in wanted]


def find_profiles(folder: Path, given: str | Path | None) -> Path | None:
    """Where layer profiles lie: as given, beside the folder, or in the shared data.

    Raises `InvalidInput` where what is given is no folder.
    """
    if given is not None:
        place = Path(given)
        if not place.is_dir():
            wanted = "must be a folder with tables of layer times"
            raise InvalidInput.of("profiles", f'{wanted}, got "{given}"')
        return place
    candidates = [folder.resolve().parent / "profiles"]
    shared = os.environ.get(SHARED_VARIABLE)
    if shared:
        candidates.append(Path(shared) / "data" / "profiles")
    return next((place for place in candidates if place.is_dir()), None)


def known() -> Known:
    """The catalog, as the validation needs it."""
    return Known(
        accelerators=catalog.accelerators(),
        clusters=tuple(catalog.cluster(name) for name in catalog.cluster_names()),
        architectures=tuple(catalog.model(name).config for name in catalog.model_names()),
        calibrations=tuple(c for c in built_in_calibrations() if not c.replaced),
        efficiencies=built_in_efficiencies(),
    )


def read_targets(text: str) -> dict[tuple[str, str], float]:
    """`vtrain_multi.time=0.08,…` as (file, quantity) to the largest mean error allowed."""
    targets = {}
    for part in text.split(","):
        name, _, limit = part.partition("=")
        file, _, quantity = name.strip().partition(".")
        try:
            largest = float(limit)
        except ValueError:
            largest = math.nan
        if not 0 <= largest < math.inf:
            raise InvalidInput.of("fail-on", f'must be FILE.QUANTITY=SHARE, got "{part}"')
        targets[file, quantity] = largest
        if quantity not in SCORED:
            raise InvalidInput.of("fail-on", one_of(SCORED, quantity))
    return targets


def missed_targets(
    found: ValidationResult, targets: Mapping[tuple[str, str], float]
) -> tuple[str, ...]:
    """A line for every target that is missed, or whose file or quantity was not scored."""
    missed = []
    by_name = {dataset.name: dataset for dataset in found.datasets}
    for (file, quantity), limit in targets.items():
        dataset = by_name.get(file)
        record = None if dataset is None else getattr(dataset, quantity)
        if record is None:
            missed.append(f"{file}.{quantity}: not scored")
        elif record.mape > limit:
            missed.append(f"{file}.{quantity}: mean error {record.mape:.1%}, target {limit:.1%}")
    return tuple(missed)


# `trainwright validate`
# ----------------------


def command(
    folders: tuple[str, ...],
    *,
    rows: bool = False,
    plot: Path | None = None,
    fail_on: str | None = None,
    output: Path | None = None,
    as_json: bool = False,
    **options: Any,
) -> None:
    """Print scores, and end with 4 where a target is missed."""
    check_output(output)
    check_output(plot, document=False)
    targets = read_targets(fail_on) if fail_on else {}
    report = validate(*folders, **options)
    if plot is not None:
        plot_validation(report.document, plot)
    if rows and not as_json:
        print(to_text(to_terminal([rows_table(report.document)])))
    emit(report, as_json=as_json, output=output)
    missed = missed_targets(report.document, targets)
    for line in missed:
        print(line, file=sys.stderr)
    finish(4 if missed else 0, interrupted=False)
