"""``csekit check``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import one_line_errors, quiet_transformers, table

_SHOWN = 3


def check(
    corpus: Annotated[Path, typer.Argument(help="What --train_file takes: .txt, .csv, .tsv, .json, .parquet.")],
    model: Annotated[str, typer.Option("--model", help="The encoder that shall be trained: Hub id or folder.")],
    columns: Annotated[list[str] | None, typer.Option("--columns", help="As --columns of the training.")] = None,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length", help="Tokens; longer texts are cut.")] = 32,
    sample: Annotated[int, typer.Option("--sample", help="Rows that are tokenised, evenly spaced.")] = 10_000,
) -> None:
    """Look at a corpus before training: what is in it, and whether the encoder's tokenizer knows its language."""
    with one_line_errors():
        if sample < 1:
            raise ValueError(f"--sample must be at least 1, got {sample}")
        quiet_transformers()
        from transformers import AutoTokenizer

        from csekit.trainers import load_corpus

        tokenizer = AutoTokenizer.from_pretrained(model)
        found = load_corpus(corpus, columns=columns)
        report = found.tokenizer_report(tokenizer, max_seq_length, sample)
        typer.echo(f"{found.name}: {found.report.summary()}\n")
        rows = [
            ["tokens a text", f"{report.mean_tokens:.1f}"],
            ["characters a token", f"{report.characters_per_token:.2f}"],
            ["unknown tokens", f"{report.unknown_share:.2%}"],
            [f"texts over {max_seq_length} tokens, cut", f"{report.truncated_share:.1%}"],
            ["texts that lose accents", f"{report.accents_dropped:.1%}"],
        ]
        typer.echo(table([f"on {report.texts:,} texts", ""], rows) + "\n")
        for texts in found.sample(_SHOWN):
            typer.echo(f"{texts[0][:80]}\n    {' '.join(tokenizer.tokenize(texts[0])[:24])}")
        if report.warning:
            typer.echo(f"\nwarning: {report.warning}", err=True)
