"""What the commands share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What the user can put right is one line on stderr and exit code 2, not a traceback."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        typer.echo("error: " + " ".join(str(error).split()), err=True)
        raise typer.Exit(2) from None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, ["-" * width for width in widths], *rows]:
        first, *rest = [
            f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)
