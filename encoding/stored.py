"""Open the embeddings that ``encode_file`` wrote: vectors in blocks, the texts of rows, and the encoder they are of.

The record beside the vectors says all of it. Its ``source`` holds the way from the record's folder to the model and
to the input, so that a folder with all three can be moved.

Shape suffixes: n rows of a block, H embedding size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csekit.encoding.encoder import TextEncoder
from csekit.encoding.files import TextColumn, encoder_settings
from csekit.encoding.load import load_encoder
from csekit.encoding.stores import comparable, first_difference, load_record, output_kind, record_path, row_files
from csekit.encoding.text_files import sha256

#: Rows of an array that are read at once.
BLOCK_ROWS = 8_192


@dataclass(frozen=True)
class StoredEmbeddings:
    """The output of ``encode_file`` with its record.

    Arguments:
        path: ``OUT.npy``, or the folder ``OUT.parquet``.
        kind: 'npy' or 'parquet'.
        rows, size: N and H.
        record: what ``encode_file`` recorded.
    """

    path: Path
    kind: str
    rows: int
    size: int
    record: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The folder that paths of the record are relative to."""
        return record_path(self.path, (1, 1)).parent

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the vectors (n, H) in the order of the rows; one block is in memory at a time."""
        yield from self._parquet_blocks() if self.kind == "parquet" else self._array_blocks()

    def _array_blocks(self) -> Iterator[np.ndarray]:
        array = np.load(self.path, mmap_mode="r")
        with open(self.path, "rb") as file:  # mapped pages would count as resident memory
            file.seek(array.offset)
            for start in range(0, self.rows, BLOCK_ROWS):
                n = min(BLOCK_ROWS, self.rows - start)
                yield np.fromfile(file, array.dtype, n * self.size).reshape(n, self.size)

    def _parquet_blocks(self) -> Iterator[np.ndarray]:
        import pyarrow.parquet as pq

        for _, path in row_files(self.path):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["embedding"], batch_size=BLOCK_ROWS):
                    values = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                    yield values.reshape(len(batch), self.size)

    def texts(self, rows: Sequence[int], file: str | Path | None = None) -> dict[int, str]:
        """Return the texts of these rows.

        Arguments:
            file: the file that was encoded. None: the one that the record names; a parquet folder holds its texts.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is another one, or was changed.
        """
        wanted = set(rows)
        if self.kind == "parquet" and file is None:
            return self._parquet_texts(wanted)
        given, known = self.record["settings"]["input"], self.record.get("source", {}).get("input")
        if file is None and known is None:
            raise FileNotFoundError(f"{self.path}: its record does not say where {given['name']!r} is")
        path = self.folder / str(known) if file is None else Path(file)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; {self.path.name} was encoded from {given['name']!r}")
        if sha256([path]) != given["sha256"]:
            raise ValueError(f"{path}: not the file that {self.path.name} was encoded from, or changed since")
        found: dict[int, str] = {}
        row = 0
        for batch in TextColumn(path, given["column"]).batches():
            found |= {i: batch[i - row] for i in wanted if row <= i < row + len(batch)}
            row += len(batch)
        return found

    def _parquet_texts(self, wanted: set[int]) -> dict[int, str]:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        found: dict[int, str] = {}
        files = row_files(self.path)
        for (first, path), last in zip(files, [*(first for first, _ in files[1:]), self.rows], strict=True):
            if here := sorted(row for row in wanted if first <= row < last):
                table = pq.read_table(path, columns=["row", "text"])
                table = table.filter(pc.is_in(table["row"], pc.cast(here, table["row"].type)))
                found |= dict(zip(table["row"].to_pylist(), table["text"].to_pylist(), strict=True))
        return found

    def encoder(
        self, model: str | Path | None = None, device: str | torch.device | None = None, batch_size: int = 64
    ) -> TextEncoder:
        """Load the encoder of the vectors, with the settings of the record, its prompt and role among them. For the
        queries of stored documents, call its ``for_role("query")``.

        Arguments:
            model: where it is now. None: where it was.

        Raises:
            FileNotFoundError: it is not there, or the record does not say where it was.
            ValueError: it is another encoder, or has other settings.
        """
        source, recorded = self.record.get("source", {}), self.record["settings"]["encoder"]
        where = model if model is not None else source.get("model")
        if where is None:
            raise FileNotFoundError(f"{self.path}: its record does not say where the encoder is, name the model")
        if model is None and str(where).startswith("."):
            where = self.folder / str(where)
            if not where.exists():
                raise FileNotFoundError(f"{where}: the encoder of {self.path.name} is not there, name the model")
        loading = source.get("loading", {"pooling": recorded.get("pooling")} if "file" not in recorded else {})
        encoder = load_encoder(where, device=device, batch_size=batch_size, **loading)
        if recorded.get("precision") in ("bf16", "int8"):
            encoder.precision = recorded["precision"]
        encoder = encoder.for_role(recorded.get("role"), recorded.get("prompt"))
        if difference := first_difference(recorded, comparable(recorded, encoder_settings(encoder))):
            name, old, new = difference
            raise ValueError(
                f"{self.path}: encoded with another encoder than {where}: {name} is {old!r:.20} in the record and "
                f"{new!r:.20} in the model"
            )
        return encoder


def open_embeddings(path: str | Path) -> StoredEmbeddings:
    """Open what ``encode_file`` wrote.

    Raises:
        FileNotFoundError: there is no such output, or no record beside it.
        ValueError: it is unfinished, one of several shards, or does not fit its record.
    """
    path = Path(path)
    kind, record_file = output_kind(path), record_path(path, (1, 1))
    if not record_file.is_file():
        what = "no record of csekit encode beside it" if path.exists() else "no such embeddings"
        raise FileNotFoundError(f"{path}: {what} ({record_file.name})")
    record = load_record(record_file)
    rows = record["settings"]["input"]["rows"]
    if not record["complete"] or record["settings"]["shard"]["of"] != 1:
        missing = "run the same csekit encode again" if not record["complete"] else "join the shards: csekit merge"
        raise ValueError(f"{path}: {record['done']} of {rows} rows are there, {missing}")
    shape = _array_shape(path) if kind == "npy" else _parquet_shape(path)
    if shape != (rows, record.get("size", shape[-1])):
        raise ValueError(f"{path}: has shape {shape}, its record says {(rows, record.get('size'))}")
    return StoredEmbeddings(path, kind, *shape, record)


def _array_shape(path: Path) -> tuple[int, ...]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        return tuple(np.load(path, mmap_mode="r").shape)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not an array that numpy can read: {error}") from None


def _parquet_shape(folder: Path) -> tuple[int, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, size = 0, 0
    for _, path in row_files(folder):
        try:
            with pq.ParquetFile(path) as file:
                rows += file.metadata.num_rows
                size = file.schema_arrow.field("embedding").type.list_size
        except (pa.ArrowException, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: not a parquet file of csekit encode ({error})") from None
    return rows, size
