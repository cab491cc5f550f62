"""Helpers that the commands share."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from csekit.encoding import TextEncoder


class AnyProgress(TyperCommand):
    """A command that takes ``--progress`` and ``--no_progress``, also where it has no bar.

    Where the input comes first, ``--columns`` takes several words, as in ``csekit train``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        bars = {"--progress", "--no_progress"} - known
        end = args.index("--") if "--" in args else len(args)
        words = [word for word in args[:end] if word not in bars]
        return super().parse_args(ctx, (_each_column(words) if "--columns" in known else words) + args[end:])


def _each_column(words: list[str]) -> list[str]:
    """Repeat ``--columns`` before each of its words: click's options take one."""
    if not words or words[0].startswith("-"):
        return words
    found: list[str] = []
    taken = False  # the last word was one of the columns
    for word in words:
        own = bool(found) and found[-1] == "--columns"
        if taken and not own and not word.startswith("-"):
            found.append("--columns")
            own = True
        taken = own
        found.append(word)
    return found


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that the user can correct into one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        _tell(error)
    except MemoryError as error:
        _tell(f"too little memory: {error}")
    except RuntimeError as error:
        if not isinstance(error.__cause__, BrokenExecutor):  # a worker process died
            raise
        _tell(error)


def _tell(error: object) -> NoReturn:
    typer.echo("error: " + " ".join(str(error).split()), err=True)
    raise typer.Exit(2) from None


def check_output(path: Path, folder: bool = False) -> None:
    """Raise OSError where the output of a command could not be written, before its work."""
    from csekit.encoding.provenance import check_writable

    check_writable(path, folder)


def check_results_output(path: Path) -> None:
    """Raise ValueError or OSError where a results file and the similarities beside it could not be written."""
    from csekit.evaluation.results import similarities_path

    if path.suffix != ".json":
        raise ValueError(f"--output must end in .json, got {path.name!r}")
    for file in (path, similarities_path(path)):
        check_output(file)


def identity(path: str, encoder: "TextEncoder") -> dict[str, Any]:
    """Describe the encoder of a path; two results files whose ``run`` holds the same are of the same encoder."""
    from csekit.encoding import checksum
    from csekit.encoding.encoder import TextEncoder, layers_of, tokenizer_digest, weights_digest
    from csekit.encoding.onnx import graph_files, onnx_file
    from csekit.encoding.provenance import weights_of

    graph = onnx_file(path)
    weights = weights_of(path) if graph is None else {file.name: checksum(file) for file in graph_files(graph)}
    inner = encoder  # whitened, ranked and cut embeddings have the tokenizer of the encoder inside
    while isinstance(wrapped := getattr(inner, "encoder", None), TextEncoder):
        inner = wrapped
    digests = {"tokenizer": tokenizer_digest(inner)}
    if not weights and hasattr(inner, "model"):  # of the Hub, which may give others under the same name tomorrow
        digests["tensors"] = weights_digest(inner.model)
    told: dict[str, Any] = {name: digest for name, digest in digests.items() if digest is not None}
    if hasattr(inner, "model"):
        modules = {} if inner.modules is None else {"modules": inner.modules}
        told["further"] = {"lowercase": inner.lowercase, "layers": layers_of(inner.model), **modules}
    return {"encoder": encoder.describe(), "weights": weights, **told}


def at_least(option: str, value: int | float | None, low: float) -> None:
    """Raise ValueError for the value of an option that is too small, or not a number at all."""
    if value is not None and not value >= low:
        raise ValueError(f"{option} must be at least {low:g}, got {value}")


def refuse_given(ctx: typer.Context, names: Sequence[str], reason: str) -> None:
    """Raise ValueError for an option of the command line that has no effect in the chosen mode.

    Arguments:
        names: the parameters of the command.
        reason: the words after the option's name.
    """
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            value = ctx.params[parameter.name]
            words = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
            got = "" if isinstance(value, bool) else f", got {words}"
            raise ValueError(f"{_spelled(parameter, value)} {reason}{got}")


def _spelled(parameter: Any, value: Any) -> str:
    """Return the long name of an option; of a pair of flags, the one that was given."""
    names = parameter.secondary_opts if value is False and parameter.secondary_opts else parameter.opts
    return max(names, key=len)


def _import(names: list[str] | None) -> list[str]:
    if names:
        with one_line_errors():
            from csekit.encoding.imports import import_modules

            import_modules(names)
    return names or []  # typer 0.16 hands over None and takes the length of what comes back


#: A parameter of commands that load training checkpoints; the modules are imported while the arguments are read.
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", callback=_import, metavar="MODULE", help="It registers objectives of your own; may be given again."
    ),
]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * width for width in widths], *rows]:
        first, *rest = [
            f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def read_queries(path: Path | None, given: Sequence[str] | None, option: str) -> list[str]:
    """Return the queries of ``--query``, or the distinct sentences of the file that ``option`` named.

    Raises:
        FileNotFoundError: no such file.
        ValueError: both or neither are given, a query is empty, or the file holds none.
    """
    from csekit.evaluation import read_sentences

    _check_queries(path, given, option)
    return list(given) if given else read_sentences(str(path))


def read_query_lines(path: Path | None, given: Sequence[str] | None, option: str) -> list[tuple[int | None, str]]:
    """Return (line, query) of each line that is not blank, as it is in the file; of ``--query`` without a line.

    Raises: as ``read_queries``.
    """
    from csekit.evaluation.pairs import read_lines

    _check_queries(path, given, option)
    if given:
        return [(None, text) for text in given]
    found: list[tuple[int | None, str]] = [
        (line, text) for line, text in enumerate(read_lines(str(path)), 1) if text.strip()
    ]
    if not found:
        raise ValueError(f"{path}: must hold at least 1 query, got only blank lines or none")
    return found


def _check_queries(path: Path | None, given: Sequence[str] | None, option: str) -> None:
    if path is not None and given:
        raise ValueError(f"{option} and --query exclude each other, got both")
    if path is None and not given:
        raise ValueError(f"--query or {option} must be given")
    for text in given or []:
        if not text.strip():
            raise ValueError("--query must not be empty")
        if not _is_utf8(text):
            raise ValueError(f"--query must be UTF-8, got {text!r:.80}")


def _is_utf8(text: str) -> bool:
    try:
        return text.encode() is not None
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8, or half a surrogate pair
        return False


def terminal_width() -> int:
    """Return the columns of the terminal, at least 60 and at most 200; 120 where there is none."""
    return max(60, min(shutil.get_terminal_size((120, 24)).columns, 200))


def wrapped_neighbor(rank: int, score: float, mark: str, text: str, width: int) -> list[str]:
    """Return the lines of a neighbour: rank, score, a mark of one character or none, and the text."""
    head = f"{rank:>2} {score:6.3f} {mark} " if mark else f"{rank:>2} {score:6.3f}  "
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head))


def quiet_transformers() -> None:
    """Silence Transformers' advice and progress bars between a command's own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def model_labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of the paths that differ. ``seed=42`` alone does not name a run, so its folder is kept.
    A path that occurs twice gets numbers."""
    parts = [
        [part for part in path.replace("\\", "/").split("/") if part not in ("", ".")] or [path] for path in paths
    ]
    different = len({tuple(part) for part in parts})
    for depth in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(part[-max(depth, 2 if "=" in part[-1] else 1) :]) for part in parts]
        if len(set(labels)) == different:
            break
    return [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
