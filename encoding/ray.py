"""Encode on a Ray cluster. Ray Data reads, distributes, retries and writes; this module defines the actor.

Ray gives the batch of an actor that died to another actor, so no row is lost or written twice.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csekit.encoding.fast_cpu import check_precision
from csekit.encoding.files import TextColumn, text_column
from csekit.encoding.load import load_encoder
from csekit.encoding.provenance import write_atomically
from csekit.encoding.stores import check_apart
from csekit.encoding.text_files import CorpusError
from csekit.encoding.workers import check_workers

#: Rows that an actor computes at a time.
BATCH_ROWS = 4096
_DONE = "_encode.json"


class _Actor:
    """A process with the model. It adds the column ``embedding`` to each batch."""

    def __init__(self, model: str, precision: str, column: str, loading: dict[str, Any]) -> None:
        self.encoder = load_encoder(model, **loading)
        self.encoder.precision = precision
        self.column = column

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**batch, "embedding": self.encoder.encode([str(text) for text in batch[self.column]])}


def encode_with_ray(
    model: str,
    input_file: str | Path,
    output: str | Path,
    *,
    column: str | None = None,
    precision: str = "fp32",
    num_workers: int = 1,
    batch_rows: int = BATCH_ROWS,
    num_gpus: float = 0,
    overwrite: bool = False,
    loading: Mapping[str, Any] | None = None,
) -> int:
    """Encode a column of parquet files with a pool of Ray actors. Rows keep all their columns but not their order.

    Ray connects to the cluster of its own settings (``RAY_ADDRESS``), or starts one on this machine.

    Arguments:
        model: a folder that every node sees, or a Hub id.
        input_file: ``IN.parquet``, a file or a folder of them.
        output: ``OUT.parquet``, a folder; its ``_encode.json`` appears last.
        num_workers: number of actors.
        batch_rows: rows that an actor computes at a time; it is given four times as many.
        num_gpus: GPUs of each actor.
        loading: arguments for ``load_encoder``.

    Returns:
        the number of rows.

    Raises:
        ImportError: ray is not installed.
        ValueError: not parquet, a precision or a number of actors that is not allowed, an output that exists or holds
            the input.
        CorpusError: no such column, a column ``embedding``, a cell without text, or rows that are missing afterwards.
    """
    check_precision(precision, torch.device("cuda") if num_gpus else None)
    check_workers(num_workers, torch.device("cpu"))
    try:
        import ray
        from ray.data import SaveMode
    except ImportError as error:
        raise ImportError("--engine ray needs ray: pip install 'csekit[ray]'") from error
    target = Path(output)
    files = _parquet_files(Path(input_file), target)
    check_apart(Path(input_file), target)
    name = text_column(files[0], column).name
    for file in files:
        _check_texts(text_column(file, name))
        _check_free(file)
    if target.exists() and not overwrite:
        raise ValueError(f"{target}: exists; Ray does not go on with a half-done output: remove it or say overwrite")
    rows = _count(files)
    data = ray.data.read_parquet([str(file.resolve()) for file in files])
    # a block is what is done anew when an actor dies; small files would be one block, and so one actor's work
    data.repartition(target_num_rows_per_block=4 * batch_rows).map_batches(
        _Actor,
        fn_constructor_args=(model, precision, name, dict(loading or {})),
        compute=ray.data.ActorPoolStrategy(size=num_workers),
        batch_size=batch_rows,
        num_gpus=num_gpus or None,
    ).write_parquet(str(target.resolve()), mode=SaveMode.OVERWRITE)
    written = _count(target.glob("*.parquet"))
    if written != rows:
        raise CorpusError(f"{target}: {written} rows were written, {rows} were read")
    write_atomically(target / _DONE, json.dumps({"rows": rows, "complete": True}).encode())
    return rows


def _parquet_files(source: Path, target: Path) -> list[Path]:
    for path in (source, target):
        if path.suffix != ".parquet":
            raise ValueError(f"--engine ray reads and writes parquet, got {path.name!r}")
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    if not files:
        raise FileNotFoundError(f"{source}: no parquet file in it")
    return files


def _check_texts(source: TextColumn) -> None:
    """Raise CorpusError for a cell without text. Texts are read only where the file does not count such cells."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(source.path)
    parts = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    columns = [part.column(j) for part in parts for j in range(part.num_columns)]
    counts = [column.statistics for column in columns if column.path_in_schema == source.name]
    if len(counts) == len(parts) and all(count and count.has_null_count and not count.null_count for count in counts):
        return
    for _ in source.batches():
        pass


def _check_free(path: Path) -> None:
    """Raise CorpusError for a column that the embeddings would replace."""
    import pyarrow.parquet as pq

    if "embedding" in pq.read_schema(path).names:
        raise CorpusError(f"{path}: must have no column 'embedding', which would be lost: rename it")


def _count(files: Iterable[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in files)
