"""``csekit check``."""

from pathlib import Path
from typing import Annotated

import typer

from .common import one_line_errors, quiet_transformers, table

_SHOWN = 3
_MANY = 0.05  # a larger share of truncated texts is told


def check(
    corpus: Annotated[Path, typer.Argument(help="A corpus as for --train_file: .txt, .csv, .tsv, .json, .parquet.")],
    model: Annotated[str, typer.Option("--model", help="The encoder to train: Hub id or folder.")],
    columns: Annotated[list[str] | None, typer.Option("--columns", help="The columns to train on.")] = None,
    max_seq_length: Annotated[int, typer.Option("--max_seq_length", help="Tokens; longer texts are truncated.")] = 32,
    sample: Annotated[int, typer.Option("--sample", help="Rows that are tokenised, evenly spaced.")] = 10_000,
) -> None:
    """Check a corpus before training: its rows, and how well the encoder's tokenizer fits its language."""
    with one_line_errors():
        if sample < 1:
            raise ValueError(f"--sample must be at least 1, got {sample}")
        quiet_transformers()
        from datasets import disable_progress_bars

        from csekit.encoding.pretrained import broken_model_told, load_tokenizer
        from csekit.trainers import load_corpus

        disable_progress_bars()
        with broken_model_told(model):
            tokenizer = load_tokenizer(model, None, None)
        if max_seq_length < 3:
            raise ValueError(
                f"--max_seq_length must be at least 3, two special tokens and one more, got {max_seq_length}"
            )
        found = load_corpus(corpus, columns=columns, tell=False)
        with broken_model_told(model):
            report = found.tokenizer_report(tokenizer, max_seq_length, sample)
        typer.echo(f"{found.name}: {found.report.summary()}")
        typer.echo(f"{found.name}: {told}\n" if (told := found.told_columns()) else "")
        rows = [
            ["tokens a text", f"{report.mean_tokens:.1f}"],
            ["characters a token", f"{report.characters_per_token:.2f}"],
            ["unknown tokens", f"{report.unknown_share:.2%}"],
            [f"texts over {max_seq_length} tokens (--max_seq_length)", f"{report.truncated_share:.1%}"],
            ["texts that lose accents", f"{report.accents_dropped:.1%}"],
        ]
        typer.echo(table([f"on {report.texts:,} texts", ""], rows) + "\n")
        typer.echo("The beginning of some texts, and their tokens:")
        for texts in found.sample(_SHOWN):
            typer.echo(f"{texts[0][:80]}\n    {' '.join(tokenizer.tokenize(texts[0])[:24])}")
        if report.truncated_share > _MANY:
            typer.echo(
                f"\n{report.truncated_share:.1%} of the texts are longer than {max_seq_length} tokens and lose their "
                "ends: raise --max_seq_length, here and in the training, or split them"
            )
        if report.warning:
            typer.echo(f"\nwarning: {report.warning}", err=True)
