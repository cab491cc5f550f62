"""``csekit mine``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import Imports, check_output, one_line_errors, quiet_transformers, refuse_given


def mine(
    ctx: typer.Context,
    pairs: Annotated[Path, typer.Argument(help="Pairs of query and positive: .csv, .tsv, .json, .jsonl, .parquet.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The encoder: a folder, or a name on the Hub.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The triplets: NAME.jsonl or NAME.csv.")],
    columns: Annotated[
        list[str] | None, typer.Option("--columns", help="The column of the query, then that of the positive.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="Further texts to search, beside the positives.")
    ] = None,
    corpus_column: Annotated[str | None, typer.Option("--corpus_column", help="Their column.")] = None,
    num_negatives: Annotated[int, typer.Option("--num_negatives", help="Negatives of a pair, a row each.")] = 1,
    range_min: Annotated[int, typer.Option("--range_min", help="Skip this many of the closest candidates.")] = 0,
    range_max: Annotated[
        int | None, typer.Option("--range_max", help="Take no candidate behind this rank; default: by the rules.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option("--margin", help="A negative's cosine is below the positive's by at least this.")
    ] = None,
    relative_margin: Annotated[
        float | None, typer.Option("--relative_margin", help="The same, as a share of the positive's cosine.")
    ] = None,
    max_score: Annotated[float | None, typer.Option("--max_score", help="Largest cosine of a negative.")] = None,
    min_score: Annotated[float | None, typer.Option("--min_score", help="Smallest cosine of a negative.")] = None,
    guide: Annotated[
        str | None, typer.Option("--guide", help="An encoder that takes closer texts than the positive for positives.")
    ] = None,
    guide_margin: Annotated[
        float, typer.Option("--guide_margin", help="A negative is below the positive by this in the guide's cosine.")
    ] = 0.0,
    pooling: Annotated[
        str | None, typer.Option("--pooling", help="cls, mean, last, first_last_mean, top2_mean; for a plain encoder.")
    ] = None,
    guide_pooling: Annotated[str | None, typer.Option("--guide_pooling", help="The same, of the guide.")] = None,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Tokens; the model's limit if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Largest number of rows in a batch.")] = 64,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda; the GPU where there is one.")] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show progress bars.")] = True,
    imports: Imports = None,
) -> None:
    """Find hard negatives of pairs. After a kill, the same command continues."""
    with one_line_errors():
        quiet_transformers()
        from datasets import disable_progress_bars

        from csekit.encoding import load_encoder
        from csekit.trainers import load_corpus
        from csekit.trainers.data.mining import Mining, check_mining, mine_negatives

        settings = Mining(
            num_negatives, range_min, range_max, margin, relative_margin, max_score, min_score, guide_margin
        )
        if corpus is None and corpus_column is not None:
            raise ValueError("--corpus_column needs --corpus, the file with further texts")
        if guide is None:
            refuse_given(ctx, ["guide_margin", "guide_pooling"], "needs --guide, an encoder")
        if columns is not None and len(columns) != 2:
            raise ValueError(f"--columns must be two names, of query and positive, got {' '.join(columns)}")
        check_output(output)
        disable_progress_bars()
        found = load_corpus(pairs, columns=columns, deduplicate=True, tell=False)
        further = None
        if corpus is not None:
            further = load_corpus(corpus, columns=corpus_column, deduplicate=True, tell=False)
        check_mining(found, output, further)
        for read in (found, further):
            if read is not None and read.report.blank + read.report.duplicates:
                typer.echo(f"{read.name}: {read.report.summary()}")
        options = {"max_length": max_length, "device": device, "batch_size": batch_size}
        encoder = load_encoder(model, pooling, **options)  # type: ignore[arg-type]
        judge = None if guide is None else load_encoder(guide, guide_pooling, **options)  # type: ignore[arg-type]
        counts = mine_negatives(
            found, encoder, output, settings, further=further, guide=judge, device=device, progress=progress
        )
        told = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
        typer.echo(f"written: {output}: {told}")
