"""``csekit eval``."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import one_line_errors, table

if TYPE_CHECKING:
    from csekit.evaluation.encoding import TextEncoder
    from csekit.evaluation.sts import STSScores
    from csekit.evaluation.sts_data import STSTask


def evaluate(
    path: Annotated[str, typer.Argument(help="A model folder, or a name on the Hub.")],
    data_dir: Annotated[
        str | None,
        typer.Option("--data_dir", envvar="CSEKIT_DATA", help="SentEval's layout; 'hub' for the Hub's sets."),
    ] = None,
    tasks: Annotated[str, typer.Option("--tasks", help="'sts', 'dev', or names with commas: STS12,STS-B.")] = "sts",
    output: Annotated[Path | None, typer.Option("--output", help="A results file NAME.json.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another run's results file.")] = False,
    pooling: Annotated[
        str | None, typer.Option("--pooling", help="cls, mean, first_last_mean, top2_mean, mask; for plain encoders.")
    ] = None,
    prompt_template: Annotated[
        str | None, typer.Option("--prompt_template", help="With {sentence} and {mask}; for --pooling mask.")
    ] = None,
    text_form: Annotated[str, typer.Option("--text_form", help="tokenized (as the papers) or raw.")] = "tokenized",
    max_length: Annotated[
        int | None, typer.Option("--max_length", help="Tokens; the model's limit if left out.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Rows in a batch at most.")] = 64,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1; the GPU where there is one.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
) -> None:
    """Score an encoder on the STS sets."""
    with one_line_errors():
        if output is not None and output.suffix != ".json":
            raise ValueError(f"--output must end in .json, got {output.name!r}")
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        from csekit.evaluation import load_encoder

        sets = _load_tasks(data_dir, tasks, text_form)
        encoder = load_encoder(
            path,
            pooling=pooling,
            max_length=max_length,
            device=device,
            prompt_template=prompt_template,
            batch_size=batch_size,
        )
        _score(path, encoder, sets, output, overwrite, progress)


def _score(
    path: str, encoder: "TextEncoder", sets: "list[STSTask]", output: Path | None, overwrite: bool, progress: bool
) -> None:
    """Print the scores, and write them where ``output`` is given."""
    from csekit.evaluation import environment, evaluate_sts, write_results

    started = time.perf_counter()
    scores = evaluate_sts(encoder, sets, progress=progress)
    seconds = time.perf_counter() - started
    typer.echo(sts_table(scores))
    typer.echo(
        f"{encoder.name}: {scores.text_form} text, {scores.sentences} distinct sentences, "
        f"{scores.truncated} cut at {encoder.max_length} tokens, {seconds:.1f} s"
    )
    if output is not None:
        results: dict[str, Any] = {
            "run": _run(path, encoder, sets),
            "name": encoder.name,
            "backbone": encoder.name,
            "test": scores.to_dict(),
            "environment": environment(),
            "seconds": {"total": round(seconds, 1)},
        }
        write_results(output, results, scores.similarities(), overwrite=overwrite)
        typer.echo(f"written: {output}")


def _load_tasks(data_dir: str | None, tasks: str, text_form: str) -> "list[STSTask]":
    from csekit.evaluation import load_sts, load_sts_hub

    if data_dir is None:
        raise ValueError("--data_dir (or the environment variable CSEKIT_DATA) must name the folder with the STS sets")
    return load_sts_hub(tasks) if data_dir == "hub" else load_sts(data_dir, tasks, text_form)


def _run(path: str, encoder: "TextEncoder", sets: "Sequence[STSTask]") -> dict[str, Any]:
    """What was run: two results files with an equal ``run`` are of one run."""
    from csekit.evaluation import checksum

    weights = sorted(Path(path).glob("*.safetensors")) if Path(path).is_dir() else []
    return {
        "encoder": encoder.describe(),
        "weights": {file.name: checksum(file) for file in weights},
        "data": {task.name: task.checksum() for task in sets},
        "text_form": sets[0].text_form,
    }


def sts_table(scores: "STSScores") -> str:
    """Each task with its three aggregates, its sub-corpora below it, the Avg of the seven at the end."""
    from csekit.evaluation.sts_data import STS_TASKS

    rows = []
    for name, task in scores.tasks.items():
        rows.append([name, str(task.n), *(f"{value:.2f}" for value in (task.all, task.mean, task.wmean))])
        if len(task.subsets) > 1:
            rows += [
                [f"  {sub}", f"{row['n']:.0f}", f"{row['spearman']:.2f}", "", ""] for sub, row in task.subsets.items()
            ]
    if scores.avg is not None:
        rows.append(["Avg", str(sum(scores.tasks[name].n for name in STS_TASKS)), f"{scores.avg:.2f}", "", ""])
    return table(["Spearman x100", "pairs", "all", "mean", "wmean"], rows)
