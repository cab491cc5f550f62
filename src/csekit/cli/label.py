"""``csekit label``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import Imports, check_output, model_labels, one_line_errors, quiet_transformers

if TYPE_CHECKING:
    from csekit.evaluation.score_file import ScoreFile

_SCALE = """How much do the two sentences mean the same? Decimals are fine.
  5  the same          4  the same but for details      3  roughly the same, something important differs
  2  some details      1  only the topic                0  nothing
Type a score, or: s skip, b back, q quit (scores are saved; the same command continues)."""


def label(
    corpus: Annotated[Path, typer.Argument(help="A text file with a sentence a line.")],
    model: Annotated[str, typer.Option("--model", help="The encoder whose cosines spread the pairs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A file NAME.tsv, for --dev_file.")],
    pairs: Annotated[int, typer.Option("--pairs", help="Pairs to score.")] = 50,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw and of the order.")] = 0,
    pool: Annotated[int, typer.Option("--pool", help="Sentences to draw from the corpus and encode.")] = 5000,
    pooling: Annotated[str | None, typer.Option("--pooling", help="For plain encoders.")] = None,
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Tokens; the model's limit if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Rows in a batch at most.")] = 64,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda; the GPU where there is one.")] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Score sentence pairs of your own corpus at the keyboard: a dev set in half an hour."""
    with one_line_errors():
        if output.suffix != ".tsv":
            raise ValueError(f"--output must end in .tsv, got {output.name!r}")
        check_output(output)
        from csekit.evaluation import ScoreFile, read_sentences
        from csekit.evaluation.score_file import corpus_digest

        sentences = read_sentences(corpus, least=3)
        origin = {
            "corpus": corpus.name,
            "corpus_sha256": corpus_digest(sentences),
            "model": model_labels([model])[0],
            "pairs": pairs,
            "seed": seed,
            "pool": pool,
            "pooling": pooling,
            "max_length": max_length,
        }
        file = ScoreFile.resume(output, origin)
        if file is None:
            quiet_transformers()
            from csekit.encoding import load_encoder
            from csekit.evaluation import draw_pairs

            encoder = load_encoder(model, pooling=pooling, max_length=max_length, device=device, batch_size=batch_size)
            drawn = draw_pairs(encoder, sentences, pairs, seed=seed, pool=pool, progress=progress)
            file = ScoreFile.begin(output, drawn, origin)
        _ask_all(file)
        _farewell(file)


def _ask_all(file: "ScoreFile") -> None:
    """Show the pairs without a score in order, until the last or until the user quits."""
    total = len(file.pairs)
    shown: list[int] = []
    todo = file.open()
    if len(todo) < total:
        typer.echo(f"{file.path}: {total - len(todo)} of {total} pairs are scored already")
    if todo:
        typer.echo(_SCALE)
    i = todo[0] if todo else total
    while i < total:
        answer = _ask(file, i)
        if answer is None:
            return
        if answer == "back":
            if shown or i > 0:
                i = shown.pop() if shown else i - 1
            else:
                typer.echo("this is the first pair")
            continue
        if isinstance(answer, float):
            file.set(i, answer)
        shown.append(i)
        i = next((j for j in file.open() if j > i), total)


def _ask(file: "ScoreFile", i: int) -> float | str | None:
    """Ask for the score of pair i until the answer is valid. Return it, 'skip', 'back', or None for the end."""
    from csekit.evaluation.sts_data import parse_gold

    score = file.scores[i]
    typer.echo(f"\n[{i + 1}/{len(file.pairs)}]" + ("" if score is None else f" (scored {score:g})"))
    for sentence in file.pairs[i]:
        typer.echo(f"  {sentence}")
    while True:
        try:
            text = str(typer.prompt("0-5, s, b, q", default="", show_default=False, prompt_suffix=" > ")).strip()
        except (typer.Abort, EOFError, KeyboardInterrupt):
            typer.echo()
            return None
        word = text.lower()
        if word in ("q", "quit"):
            return None
        if word in ("s", "skip", "b", "back"):
            return "skip" if word.startswith("s") else "back"
        try:
            return parse_gold(text.replace(",", "."), "the score")
        except ValueError:
            typer.echo(f"  a number from 0 to 5, or s, b, q; got {text!r}")


def _farewell(file: "ScoreFile") -> None:
    """Print the number of scored and open pairs, and how to use the file."""
    scores = [score for score in file.scores if score is not None]
    left = len(file.scores) - len(scores)
    typer.echo(f"\n{file.path}: {len(scores)} of {len(file.scores)} pairs scored")
    if left:
        typer.echo(f"{left} are left: run the same command again")
    if len(scores) < 3 or len(set(scores)) < 2:
        typer.echo("a dev set needs at least 3 pairs with different scores")
    else:
        name = shlex.quote(str(file.path))
        typer.echo(f"train with it: --dev_file {name}\nscore a run with it: csekit eval RUN --pairs {name}")
