"""``csekit figures``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import check_output, one_line_errors


def figures(
    names: Annotated[
        list[str] | None, typer.Argument(help="Pictures to draw; default: all that have results.")
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of results files.")] = Path("results"),
    output: Annotated[Path, typer.Option("--output", help="Folder for the pictures.")] = Path("docs/pictures"),
) -> None:
    """Draw the pictures of embedding spaces from results files of csekit geometry."""
    with one_line_errors():
        from csekit.evaluation.pictures import draw

        check_output(output, folder=True)
        written, missing = draw(results, output, names or ())
        for path in written:
            typer.echo(f"written: {path} ({path.stat().st_size / 1000:.0f} kB)")
        for name, reason in missing.items():
            typer.echo(f"not drawn: {name}: {' '.join(reason.split())}")
