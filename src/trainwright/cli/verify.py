"""`trainwright verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit, finish, parse_count

_CHECK_FAILED = 4


def verify(
    document: Annotated[
        Path, typer.Argument(help="A plan, an estimate or a schedule, as a document.")
    ],
    level: Annotated[
        str,
        typer.Option(
            help="0: the document and its orders; 1: replayed here; 2: run on PyTorch.",
            metavar="N",
        ),
    ] = "2",
    self_test: Annotated[
        bool,
        typer.Option("--self-test", help="Also run copies broken on purpose, which must fail."),
    ] = False,
    exported: Annotated[
        Path | None,
        typer.Option(help="Check the files that `export --to pytorch` wrote here.", metavar="DIR"),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Prove on this machine that a plan's schedule trains the same model."""
    from trainwright.api.verify import verify as check

    check_output(output, document)
    wanted = parse_count(level, "level", least=0)
    assert wanted is not None, "there is a default"
    report = check(document, level=wanted, self_test=self_test, exported=exported)
    emit(report, as_json=as_json, output=output)
    if report.passed:
        report.require_installed()
    code = 0 if report.passed else _CHECK_FAILED
    finish(code, interrupted=report.document.interrupted)
