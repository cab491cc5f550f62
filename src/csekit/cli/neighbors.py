"""``csekit neighbors``."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import (
    Imports,
    check_output,
    model_labels,
    one_line_errors,
    quiet_transformers,
    read_queries,
    refuse_given,
    terminal_width,
    wrapped_neighbor,
)

if TYPE_CHECKING:
    from csekit.evaluation.neighbors import Neighbor, QueryNeighbors


def neighbors(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(help="A model folder, or a name on the Hub.")],
    b: Annotated[str, typer.Argument(help="The model to compare it with.")],
    corpus: Annotated[Path, typer.Option("--corpus", help="A text file with one sentence on each line.")],
    queries: Annotated[Path | None, typer.Option("--queries", help="A text file with one query on each line.")] = None,
    query: Annotated[list[str] | None, typer.Option("--query", help="A query; may be repeated.")] = None,
    sample: Annotated[
        int, typer.Option("--sample", help="Number of queries drawn from the corpus if none are given.")
    ] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Seed of that draw.")] = 0,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours of each query.")] = 5,
    keep_equal: Annotated[
        bool,
        typer.Option("--keep_equal/--leave_out_equal", help="Count a sentence equal to the query as a neighbour."),
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file NAME.json or NAME.tsv.")] = None,
    pooling_a: Annotated[str | None, typer.Option("--pooling_a", help="Pooling of A, for a plain encoder.")] = None,
    pooling_b: Annotated[str | None, typer.Option("--pooling_b", help="Pooling of B, for a plain encoder.")] = None,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Tokens; the model's limit if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Largest number of rows in a batch.")] = 64,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda; the GPU where there is one.")] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Show the nearest neighbours of queries under two encoders, side by side."""
    with one_line_errors():
        quiet_transformers()
        from csekit.encoding import checksum, load_encoder
        from csekit.evaluation import draw_sentences, nearest_neighbors, read_sentences
        from csekit.evaluation.neighbors import check_ending, check_replaceable, shared_fraction, write_neighbors

        if output is not None:
            check_ending(output)
            check_output(output)
            check_replaceable(output)
        if queries is not None or query:
            refuse_given(ctx, ["sample", "seed"], "is for drawn queries: leave it out with --query and --queries")
        sentences = read_sentences(corpus, least=2)
        drawn = queries is None and not query
        asked = draw_sentences(sentences, sample, seed) if drawn else read_queries(queries, query, "--queries")
        encoders = [
            load_encoder(path, pooling=pooling, max_length=max_length, device=device, batch_size=batch_size)
            for path, pooling in ((a, pooling_a), (b, pooling_b))
        ]
        answers = nearest_neighbors(encoders, sentences, asked, k, keep_equal=keep_equal, progress=progress)
        names = model_labels([a, b])
        typer.echo("\n\n".join(side_by_side(answer, names, terminal_width()) for answer in answers))
        typer.echo(
            f"\n{len(asked)} queries, {len(sentences)} sentences; * found by both: "
            f"{100 * shared_fraction(answers):.0f} % of the nearest {len(answers[0].found[0])}"
        )
        if output is not None:
            about = {
                "corpus": {"name": corpus.name, "checksum": checksum(corpus), "sentences": len(sentences)},
                "encoders": [encoder.describe() for encoder in encoders],
                "k": k,
                "keep_equal": keep_equal,
            }
            typer.echo(f"written: {write_neighbors(output, answers, names, about)}")


def side_by_side(answer: "QueryNeighbors", names: Sequence[str], width: int) -> str:
    """Lay out a query and below it one column for each encoder: cosine and sentence, a star where all found it."""
    shared = answer.shared()
    column = (width - 3 * (len(names) - 1)) // len(names)
    lines = textwrap.wrap(f"Query: {answer.query}", width)

    def cells(neighbor: "Neighbor", rank: int) -> list[str]:
        star = "*" if neighbor.sentence in shared else " "
        return wrapped_neighbor(rank, neighbor.cosine, star, neighbor.sentence, column)

    def add(columns: Sequence[Sequence[str]]) -> None:
        for row in zip_longest(*columns, fillvalue=""):
            lines.append(" | ".join(f"{cell:<{column}}" for cell in row).rstrip())

    add([textwrap.wrap(name, column) for name in names])
    add([["-" * column] for _ in names])
    for rank, row in enumerate(zip(*answer.found, strict=True), 1):
        add([cells(neighbor, rank) for neighbor in row])
    return "\n".join(lines)
