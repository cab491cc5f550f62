"""Write rows of texts to a file that training reads, whole or not at all, in bounded memory."""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from csekit.modeling.drafts import full_disk_told

SUFFIXES = (".jsonl", ".csv")


def check_rows_file(path: Path) -> None:
    """Raise ValueError unless the file's ending is one that :func:`write_rows` writes."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"the file to write must end in {' or '.join(SUFFIXES)}, got {path.name!r}")


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[str]], draft: Path | None = None) -> int:
    """Write rows of texts with named columns, and return their number.

    Arguments:
        path: a ``.jsonl`` file (an object a line) or a ``.csv`` file with a header. All cells of csv are in quotes:
            the module ``csv`` sets none around a lone carriage return, and texts of many lines are read only so.
        draft: where the file is written first, on the same disk; default: beside it.

    Raises:
        ValueError: another ending.
        DiskFullError: the disk is full; an older file stays.
    """
    check_rows_file(path)
    draft = draft or path.with_name(f".{path.name}.draft")
    count = 0
    try:
        with full_disk_told(path), draft.open("w", encoding="utf-8", newline="") as file:
            quoted = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            if path.suffix == ".csv":
                quoted.writerow(columns)
            for row in rows:
                count += 1
                if path.suffix == ".csv":
                    quoted.writerow(row)
                else:
                    file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return count


def make_parts(parts: Path) -> None:
    """Make the folder of a call's finished parts, or take that of a killed call. Its ``settings.json`` comes first.

    Raises:
        FileExistsError: the folder holds something else, which the end of the call would delete.
    """
    parts.mkdir(parents=True, exist_ok=True)
    others = sorted(path.name for path in parts.iterdir() if not path.name.startswith(".settings.json."))
    if others and "settings.json" not in others:
        raise FileExistsError(
            f"{parts} holds something else than parts of this command, {others[0]}: move it away, or choose another "
            "name"
        )
