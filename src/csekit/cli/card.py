"""``csekit card``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import check_output, one_line_errors, refuse_given


def card(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="A run's folder or results file; or a .yaml that lists cards.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The card; default: README.md in the run's folder.")
    ] = None,
    scores: Annotated[
        list[Path] | None, typer.Option("--scores", help="Results of csekit eval to add; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the model; default: the run's.")] = None,
    base_model: Annotated[str | None, typer.Option("--base_model", help="The backbone's Hub id.")] = None,
    license: Annotated[str | None, typer.Option("--license", help="As the Hub names it: apache-2.0.")] = None,
    language: Annotated[list[str] | None, typer.Option("--language", help="Language code, en; repeatable.")] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", help="Hub id of the corpus; repeatable.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a card that was edited by hand.")] = False,
) -> None:
    """Write the model card of a run from its results."""
    with one_line_errors():
        from csekit.trainers.hub.card import (
            CardOptions,
            check_unedited,
            render_card,
            results_of,
            write_card,
            write_cards,
        )

        if source.suffix in (".yaml", ".yml"):
            single = "is for the card of a run:"
            written = f"{single} write it into the entries of {source.name}"
            refuse_given(
                ctx, ["output", "overwrite"], f"{single} an entry NAME of {source.name} is the card NAME.md beside it"
            )
            refuse_given(ctx, ["scores", "name", "base_model", "license", "language"], written)
            refuse_given(ctx, ["dataset"], f"{written}, as datasets")
            for path in write_cards(source):
                typer.echo(f"written: {path}")
            return
        if not source.exists():
            raise FileNotFoundError(f"{source}: no such folder or file")
        if output is None and not source.is_dir():
            raise ValueError(
                f"--output must name the card to write for a results file, README.md or NAME.md, got none for {source}"
            )
        if output is not None and output.suffix != ".md":
            raise ValueError(f"--output must be a card, README.md or NAME.md, got {output}")
        target = output or source / "README.md"
        check_output(target)
        results = results_of(source, scores or [])
        options = CardOptions(
            name=name,
            base_model=base_model,
            license=license,
            language=tuple(language or ()),
            datasets=tuple(dataset or ()),
        )
        if not overwrite:
            check_unedited(target)
        default = source.resolve().name if source.is_dir() else str(results.get("name") or source.stem)
        write_card(target, render_card(results, default, options))
        typer.echo(f"written: {target}")
