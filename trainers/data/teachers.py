"""Vectors of frozen teachers for every row of a corpus: computed once, before training, and read from disk."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from tqdm.auto import tqdm

from csekit.encoding.encoder import TextEncoder, first_not_finite, layers_of, tokenizer_digest, weights_digest
from csekit.encoding.load import load_encoder
from csekit.encoding.provenance import checksum
from csekit.encoding.sentence_transformer import SentenceTransformerEncoder
from csekit.encoding.stores import open_sink, read_record, write_record
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.cross_encoders import CrossEncoder

#: The folder of the vectors in a run's folder, and the texts that are encoded and written at a time.
TEACHERS_FOLDER, CHUNK = "teachers", 10_000


class Teachers:
    """The teachers of a corpus, loaded and checked.

    Arguments:
        corpus: not a stream.
        names: ``NAME`` or ``NAME:POOLING``, an encoder that :func:`csekit.load_encoder` reads, or a ``.npy`` file with
            one row for each row of the corpus, (rows, D), or (rows, columns, D) for several columns.
        folder: keeps what is computed. The next call takes it, and continues after a kill.
        columns: how many of the corpus's columns get vectors, from the first one.
        margins: the teachers are cross-encoders (:class:`CrossEncoder`), or files with their margins, (rows, 1).

    Raises:
        ValueError: the corpus is a stream; an encoder needs a pooling; a file lacks a vector for a sentence, has
            another number of rows, or values that are not finite.
        FileNotFoundError: there is no such encoder or file.
    """

    def __init__(
        self, corpus: Corpus, names: Sequence[str], folder: Path, columns: int = 1, margins: bool = False
    ) -> None:
        if names and corpus.streaming:
            raise ValueError("teachers must be left out with streaming: their vectors are computed before training")
        self.corpus, self.names, self.folder, self.columns = corpus, list(names), folder, columns
        self.found: list[Any] = [
            read_vectors(Path(name), corpus.rows, columns)
            if name.endswith(".npy")
            else (CrossEncoder(name) if margins else load_teacher(name))
            for name in names
        ]
        for name, found in zip(names, self.found, strict=True):
            if margins and isinstance(found, np.ndarray) and found.shape[1:] != (1,):
                raise ValueError(f"{name}: must hold one margin for each row, (rows, 1), got {found.shape}")

    def check_tokens(self) -> None:
        """Raise CorpusError for a text of which a teacher's tokenizer makes no token."""
        for name, found in zip(self.names, self.found, strict=True):
            if isinstance(found, TextEncoder) and not isinstance(found, SentenceTransformerEncoder):
                whose = f"the tokenizer of the teacher {name}"
                self.corpus.check_tokens(found.tokenizer, found.prompt_template, self.columns, whose)

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each file of vectors by its place among the teachers. Those of encoders are checked against
        the folder's record."""
        files = {str(place): Path(name) for place, name in enumerate(self.names) if name.endswith(".npy")}
        return {place: checksum(path) for place, path in files.items()}

    def sizes(self) -> list[int]:
        """Return the number of dimensions of each teacher's vectors."""
        return [
            found.shape[-1] if isinstance(found, np.ndarray) else int(found.encode(["a"]).shape[1])
            for found in self.found
        ]

    def vectors(self, progress: bool = True) -> list[np.ndarray]:
        """Return the vectors of the corpus's first column, (rows, D), or first columns, (rows, columns, D),
        memory-mapped, for each teacher.

        Raises:
            ValueError: the folder holds the vectors of another corpus or encoder.
        """
        for place, (name, found) in enumerate(zip(self.names, self.found, strict=True)):
            if isinstance(found, CrossEncoder):
                target, title = self.folder / f"{place}.npy", name if progress else None
                self.found[place] = margins_of(self.corpus, found, target, title)
            if isinstance(found, TextEncoder):
                target = self.folder / f"{place}.npy"
                title = name if progress else None
                self.found[place] = encoded_vectors(self.corpus, found, target, title, self.columns)
        return [found for found in self.found if isinstance(found, np.ndarray)]


def references_of(vectors: np.ndarray, count: int) -> np.ndarray:
    """Return a teacher's vectors of ``count`` rows at equal distances, (count, D), of the first column."""
    rows = np.arange(count) * len(vectors) // count
    return np.asarray(vectors[rows] if vectors.ndim == 2 else vectors[rows, 0])


def open_vectors(path: Path) -> np.ndarray:
    """Return the array of a file, memory-mapped. Raises ValueError: it holds none, or a single number."""
    try:
        vectors: np.ndarray = np.load(path, mmap_mode="r")
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: not an array of numpy: {error}") from None
    if not vectors.shape:
        raise ValueError(f"{path}: must hold one vector for each row of the corpus, got a single number")
    return vectors


def read_vectors(path: Path, rows: int, columns: int = 1) -> np.ndarray:
    """Read the vectors of ``rows`` rows, (rows, D), or (rows, columns, D) of several columns, memory-mapped.

    Errors are those of :class:`Teachers`."""
    vectors = open_vectors(path)
    shape = (rows,) if columns == 1 else (rows, columns)
    if vectors.shape[:-1] != shape or vectors.dtype.kind != "f":
        each = "" if columns == 1 else f" and {columns} columns"
        raise ValueError(
            f"{path}: must hold one vector of floating-point numbers for each of the corpus's {rows} rows{each}, "
            f"got an array of shape {vectors.shape} and type {vectors.dtype}"
        )
    for start in range(0, rows, CHUNK):
        if (row := first_not_finite(vectors[start : start + CHUNK])) is not None:
            raise ValueError(f"{path}: row {start + row} has values that are not finite")
    return vectors


def encoded_vectors(
    corpus: Corpus, encoder: TextEncoder, target: Path, title: str | None, columns: int = 1
) -> np.ndarray:
    """Encode the corpus's first columns into ``target``, row by row, or take what is there; ``title`` is the progress
    bar's, None for no bar."""
    rows = corpus.rows * columns
    read = {
        "name": corpus.name,
        "sha256": texts_digest(corpus, columns),
        "column": ", ".join(corpus.columns[:columns]),
        "rows": rows,
    }
    vectors = stored_vectors(encoder, target, read, lambda start: chunks(corpus, start, columns), title)
    return vectors if columns == 1 else vectors.reshape(corpus.rows, columns, -1)


def margins_of(corpus: Corpus, encoder: CrossEncoder, target: Path, title: str | None) -> np.ndarray:
    """Score the corpus's triplets into ``target``, (rows, 1), or take what is there."""
    dataset: Any = corpus.dataset

    def rows_from(start: int) -> Iterator[list[Any]]:
        for first in range(start, corpus.rows, CHUNK):
            items = dataset.__getitems__(range(first, min(first + CHUNK, corpus.rows)))
            yield [item["texts"][:3] for item in items]

    read = {"name": corpus.name, "sha256": texts_digest(corpus, 3), "column": ", ".join(corpus.columns[:3])}
    return stored_vectors(encoder, target, read | {"rows": corpus.rows}, rows_from, title)


def stored_vectors(
    encoder: TextEncoder | CrossEncoder,
    target: Path,
    read: dict[str, Any],
    texts_from: Callable[[int], Iterator[list[Any]]],
    title: str | None,
) -> np.ndarray:
    """Encode texts into ``target``, or take what is there; a killed call goes on where it stopped.

    Arguments:
        read: describes the texts: ``name``, ``sha256``, ``column`` and their number, ``rows``.
        texts_from: yields the texts from a row on, in chunks.
        title: the progress bar's, None for no bar.

    Returns:
        (rows, D), memory-mapped.

    Raises:
        ValueError: ``target`` holds the vectors of other texts or another encoder.
    """
    rows = read["rows"]
    settings: dict[str, Any] = {
        "input": read,
        "output": {"kind": "npy", "dtype": "float32"},
        "shard": {"index": 0, "of": 1, "start": 0, "stop": rows},
        "encoder": {**encoder.describe(), "weights": weights_digest(encoder.model)},
    }
    del settings["encoder"]["name"]  # the folder may be renamed
    settings["encoder"]["tokenizer"] = tokenizer_digest(cast(Any, encoder))  # a cross-encoder has one as well
    if isinstance(encoder, TextEncoder):
        further = {"lowercase": encoder.lowercase, "layers": layers_of(encoder.model), "modules": encoder.modules}
        settings["encoder"] |= further
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f"{target.name}.json")
    record = read_record(path, settings) or {"settings": settings, "done": 0, "truncated": 0, "complete": False}
    write_record(path, record)
    if record["done"] < rows or not target.exists():
        with (
            open_sink(target, "npy", "float32", rows, 0, record["done"]) as sink,
            tqdm(total=rows, initial=record["done"], unit=" sentences", desc=title, disable=title is None) as bar,
            closing(encoder.encode_chunks(texts_from(record["done"]))) as found,
        ):
            for rows_nD in found:
                sink.write(record["done"], [], rows_nD)
                record["done"] += len(rows_nD)
                write_record(path, record)
                bar.update(len(rows_nD))
            sink.finish(record["done"])
        write_record(path, record | {"complete": True})
    return read_vectors(target, rows)


def load_teacher(teacher: str) -> TextEncoder:
    """Load ``NAME`` or ``NAME:POOLING``."""
    name, _, pooling = teacher.rpartition(":")
    encoder = load_encoder(name, pooling) if name and pooling.isidentifier() else load_encoder(teacher)
    if not isinstance(encoder, TextEncoder):
        raise ValueError(f"teachers must be encoders of torch, got {teacher!r}")
    return encoder


def chunks(corpus: Corpus, start: int = 0, columns: int = 1) -> Iterator[list[str]]:
    """Yield the texts of the first columns, row by row, from text ``start`` on, ``CHUNK`` at a time."""
    dataset: Any = corpus.dataset
    for first in range(start, len(dataset) * columns, CHUNK):
        stop = min(first + CHUNK, len(dataset) * columns)
        items = dataset.__getitems__(range(first // columns, (stop - 1) // columns + 1))
        texts = [text for item in items for text in item["texts"][:columns]]
        skipped = first - first // columns * columns
        yield texts[skipped : skipped + stop - first]


def texts_digest(corpus: Corpus, columns: int = 1) -> str:
    """Return the SHA-256 of the texts of the first columns in their order."""
    digest = hashlib.sha256()
    for texts in chunks(corpus, columns=columns):
        for text in texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()
