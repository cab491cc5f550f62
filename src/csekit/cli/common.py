"""Helpers that the commands share."""

from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer


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


def at_least(option: str, value: int | float | None, low: float) -> None:
    """Raise ValueError for the value of an option that is too small, or not a number at all."""
    if value is not None and not value >= low:
        raise ValueError(f"{option} must be at least {low:g}, got {value}")


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
