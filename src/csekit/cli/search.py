"""``csekit search``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import Imports, one_line_errors, quiet_transformers, read_query_lines, terminal_width, wrapped_neighbor

if TYPE_CHECKING:
    from csekit.encoding.stored import StoredEmbeddings

FORMATS = ("text", "json")


def search(
    embeddings: Annotated[Path, typer.Argument(help="What csekit encode wrote: OUT.npy, or the folder OUT.parquet.")],
    query: Annotated[list[str] | None, typer.Option("--query", "-q", help="A query; may be repeated.")] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A text file with one query on each line.")] = None,
    top_k: Annotated[int, typer.Option("--top_k", "-k", help="Number of rows for each query.")] = 5,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="The encoder, if it is no longer where it was.")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option("--texts", help="The file that was encoded, if it is no longer where it was.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="text, or json: a line for each answer.")] = "text",
    index: Annotated[
        str, typer.Option("--index", help="exact: in bounded memory; faiss: all vectors in memory, for many queries.")
    ] = "exact",
    batch_size: Annotated[int, typer.Option("--batch_size", help="Largest number of queries in a batch.")] = 64,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda; the GPU where there is one.")] = None,
    progress: Annotated[bool, typer.Option("--progress/--no_progress", help="Show a progress bar.")] = True,
    imports: Imports = None,
) -> None:
    """Search the rows of csekit encode. Encoder and settings come from the record beside the vectors."""
    with one_line_errors():
        if form not in FORMATS:
            raise ValueError(f"--format must be text or json, got {form!r}")
        if top_k < 1:
            raise ValueError(f"--top_k must be at least 1, got {top_k}")
        quiet_transformers()
        from csekit.encoding import open_embeddings
        from csekit.evaluation import search_embeddings
        from csekit.evaluation.stored_search import check_index

        check_index(index)
        store = open_embeddings(embeddings)
        asked = read_query_lines(file, query, "--file")
        encoder = store.encoder(model, device, batch_size)
        if encoder.role == "document":
            encoder = encoder.for_role("query")
        scores, rows = search_embeddings(
            store,
            encoder.encode([text for _, text in asked]),
            top_k,
            similarity=encoder.similarity_fn_name,
            index=index,
            device=device,
            progress=progress,
        )
        found = _texts(store, sorted({int(row) for row in rows.flat}), texts)
        answers: list[dict[str, Any]] = [
            {"query": text}
            | ({"line": line} if line else {})
            | {"rank": rank, "row": int(row), "score": float(score)}
            | ({"text": found[int(row)]} if found else {})
            for (line, text), *both in zip(asked, scores, rows, strict=True)
            for rank, (score, row) in enumerate(zip(*both, strict=True), 1)
        ]
        if form == "json":
            escaped = (sys.stdout.encoding or "utf-8").lower() != "utf-8"  # by JSON's own escapes
            lines = [json.dumps(answer, ensure_ascii=escaped) for answer in answers]
        else:
            lines = _as_text(answers, terminal_width())
        typer.echo("\n".join(lines))


def _texts(store: "StoredEmbeddings", rows: list[int], file: Path | None) -> dict[int, str]:
    """Return the texts of the rows. Without ``--texts``, a file that moved or changed is only a warning."""
    try:
        return store.texts(rows, file)
    except (OSError, ValueError) as error:
        if file is not None:
            raise
        typer.echo(f"warning: rows without texts, name the file with --texts: {error}", err=True)
        return {}


def _as_text(answers: list[dict[str, Any]], width: int) -> list[str]:
    lines: list[str] = []
    for answer in answers:
        if answer["rank"] == 1:
            lines += [*([""] if lines else []), f"Query: {answer['query']}"]
        text = f"{answer['text']} " if "text" in answer else ""
        lines += wrapped_neighbor(answer["rank"], answer["score"], "", f"{text}[row {answer['row']}]", width)
    return lines
