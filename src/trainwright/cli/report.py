"""`trainwright report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwright.cli import options
from trainwright.cli.output import check_output, emit, save


def report(
    documents: Annotated[
        list[Path],
        typer.Argument(
            help="Documents of plan, estimate, schedule, codesign, ...", metavar="DOC..."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the page to this file.")],
    title: Annotated[str | None, typer.Option(help="A heading of your own.")] = None,
    date: Annotated[
        str | None, typer.Option(help="Printed under the heading as given; none if absent.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show documents on one HTML page that needs nothing else."""
    from trainwright.api.report import report as make_page

    check_output(output, *documents)
    page = make_page(*documents, title=title, date=date)
    save(page.save_html, output)
    emit(page, as_json=as_json, output=None)
