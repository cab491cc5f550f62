"""``csekit report``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import Imports, check_output, model_labels, one_line_errors, quiet_transformers, refuse_given

if TYPE_CHECKING:
    from csekit.evaluation.report.page import SearchData
    from csekit.evaluation.report.runs import ReportRun


def report(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(help="Run folders, or results files NAME.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write, NAME.html.")] = Path("report.html"),
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="Text file with one sentence per line, for nearest neighbours.")
    ] = None,
    sentences: Annotated[int, typer.Option("--sentences", help="Number of sentences drawn from the corpus.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of that draw.")] = 0,
    figures: Annotated[
        list[Path] | None, typer.Option("--figures", help="PNG or SVG file, or a folder of them; repeatable.")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="Name of a run, in their order; repeatable.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the page.")] = "csekit report",
    pooling: Annotated[str | None, typer.Option("--pooling", help="Pooling of plain encoders.")] = None,
    max_megabytes: Annotated[float, typer.Option("--max_megabytes", help="Refuse to write a larger page.")] = 20.0,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Maximum rows in a batch.")] = 64,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda; default: the GPU if there is one.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Write one self-contained HTML page about one or several runs."""
    with one_line_errors():
        from csekit.evaluation.report.page import build_report, check_page_name, find_figures, write_report
        from csekit.evaluation.report.runs import read_run

        if corpus is None:
            refuse_given(ctx, ["sentences", "seed", "pooling"], "needs --corpus, whose sentences are searched")
        check_page_name(output)
        check_output(output)
        labels = label or model_labels(runs)
        if len(labels) != len(runs) or len(set(labels)) < len(labels):
            raise ValueError(f"--label must name each of the {len(runs)} runs, differently, got {labels}")
        found = [read_run(path, name) for path, name in zip(runs, labels, strict=True)]
        pictures = find_figures(found, figures or [])
        search = None
        if corpus is not None:
            quiet_transformers()
            search = _search(found, corpus, sentences, seed, pooling, batch_size, device, progress)
        page = build_report(found, title=title, search=search, figures=pictures)
        write_report(output, page, max_megabytes)
        for run in found:
            for text in run.missing:
                typer.echo(f"{run.label}: {text}")
        typer.echo(f"written: {output} ({output.stat().st_size / 1e6:.2f} MB)")


def _search(
    runs: "list[ReportRun]",
    corpus: Path,
    n: int,
    seed: int,
    pooling: str | None,
    batch_size: int,
    device: str | None,
    progress: bool,
) -> "SearchData":
    """Draw sentences and encode them under each run that has an encoder."""
    from csekit.encoding import load_encoder
    from csekit.encoding.encoder import embed
    from csekit.evaluation import draw_sentences, read_sentences
    from csekit.evaluation.report.page import SearchData

    every = read_sentences(corpus, least=2)
    drawn = draw_sentences(every, n, seed)
    if len(drawn) < 2:
        raise ValueError(f"--sentences must be at least 2, got {n}")
    embeddings = {}
    for run in runs:
        if run.folder is not None:
            given = None if _names_pooling(run.folder) else pooling
            encoder = load_encoder(run.folder, pooling=given, device=device, batch_size=batch_size)
            embeddings[run.label] = embed(encoder, drawn, progress)
    return SearchData(corpus.name, drawn, embeddings, len(every))


def _names_pooling(folder: Path) -> bool:
    """Tell whether an encoder's folder names its pooling: a SentenceTransformer, or a run of csekit."""
    from csekit.encoding.folders import read_settings

    files = ("modules.json", "training/config.json")
    return any((folder / name).is_file() for name in files) or "encoder_config" in read_settings(folder, "config.json")
