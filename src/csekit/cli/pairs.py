"""``csekit pairs``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import check_output, one_line_errors, refuse_given


def pairs(
    ctx: typer.Context,
    documents: Annotated[Path, typer.Argument(help="Documents: .jsonl, an object a line (also .gz, .xz).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The pairs: NAME.jsonl or NAME.csv.")],
    kind: Annotated[
        str,
        typer.Option("--kind", help="neighbors (a passage and the next), title (and the first passage), or spans."),
    ] = "neighbors",
    unit: Annotated[str, typer.Option("--unit", help="A passage: line, paragraph or sentence.")] = "line",
    text_field: Annotated[str, typer.Option("--text_field", help="The field of the text.")] = "text",
    title_field: Annotated[str, typer.Option("--title_field", help="The field of the title.")] = "title",
    min_words: Annotated[int, typer.Option("--min_words", help="Shorter passages and titles make no pair.")] = 3,
    span_words: Annotated[int, typer.Option("--span_words", help="Words of a span.")] = 32,
    spans: Annotated[int, typer.Option("--spans", help="Pairs of spans of a document.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the spans.")] = 42,
) -> None:
    """Make pairs from the structure of documents; no pair crosses the end of one."""
    with one_line_errors():
        check_output(output)
        from csekit.trainers.data.document_pairs import DocumentPairs, write_document_pairs

        settings = DocumentPairs(kind, unit, text_field, title_field, min_words, span_words, spans, seed)
        if kind == "spans":
            refuse_given(ctx, ["unit", "min_words"], "is for passages, got --kind spans")
        else:
            refuse_given(ctx, ["span_words", "spans", "seed"], "is for --kind spans")
        if kind != "title":
            refuse_given(ctx, ["title_field"], "is for --kind title")
        counts = write_document_pairs(documents, output, settings)
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
        typer.echo(f"written: {output}: {told}")
