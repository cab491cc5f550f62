"""Write rows of texts to a file that training reads, whole or not at all, in bounded memory."""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from csekit.encoding.encoder import PROBES, weights_digest
from csekit.encoding.provenance import write_json
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


def writer_digests(model: Any, tokenizer: Any) -> dict[str, str]:
    """Return the digests of a network that writes texts: of its ``weights``, as they were loaded (a GPU has them in
    bf16), and of the ``tokenizer``, its vocabulary and the ids that it gives to ``PROBES``."""
    content = json.dumps([sorted(tokenizer.get_vocab().items()), tokenizer(list(PROBES))["input_ids"]])
    return {"weights": weights_digest(model), "tokenizer": sha256(content.encode()).hexdigest()}


def settle_writers(parts: Path, digests: Mapping[str, str]) -> None:
    """Record digests of the networks that write the parts in ``settings.json``, which is there. Parts of an earlier
    version lack them.

    Raises:
        ValueError: other networks wrote the parts.
    """
    path = parts / "settings.json"
    old = json.loads(path.read_text(encoding="utf-8"))
    for name, digest in digests.items():
        if old.get(name, digest) != digest:
            raise ValueError(
                f"{parts} holds parts of another run ({name}: {old[name]:.12} there, {digest:.12} now): delete it to "
                "start again"
            )
    if not digests.items() <= old.items():
        write_json(path, {**old, **digests})


def settled_writers(parts: Path) -> dict[str, str]:
    """Return the digests that ``settle_writers`` recorded, by name."""
    old = json.loads((parts / "settings.json").read_text(encoding="utf-8"))
    return {name: value for name, value in old.items() if name.endswith(("weights", "tokenizer"))}
