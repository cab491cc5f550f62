"""Load training texts, from files or the Hub, into a checked dataset of sentences, pairs or triplets.

Errors in a corpus are reported with file and line, before a model is loaded.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from csekit.encoding.provenance import array_bytes
from csekit.encoding.text_files import CorpusError, Scan, file_kind, sha256
from csekit.modeling.drafts import full_disk_told
from csekit.modeling.hub import hub_or_cache
from csekit.modeling.tokenization import sentence_frame, tokenize
from csekit.trainers.data.datasets import SentenceDataset, StreamingSentenceDataset
from csekit.trainers.data.sources import Source, file_source, hub_name, table_source
from csekit.trainers.data.tokenizer_report import TokenizerReport, tokenizer_report

logger = logging.getLogger(__name__)

STORE_VERSION = 2  # format of the files in the cache
HEAD = 10_000  # rows of a stream that are checked at the start
#: The texts of a row, by their column.
ROLES = ("sentence", "positive", "hard negative")


@dataclass(frozen=True)
class CorpusReport:
    """Counts of a corpus: numbers of rows, except ``overlong`` (cells).

    Arguments:
        rows: rows that were read.
        used: rows left without the blank ones, those behind ``max_samples`` and dropped duplicates; of a stream those
            among the checked rows.
        blank: rows dropped because a text was empty or white space.
        duplicates: rows that repeat an earlier row exactly; they are used unless ``deduplicated``.
        deduplicated: True if the duplicates were dropped.
        overlong: texts over 100,000 characters; ``first_overlong`` is the place of the first one.
        complete: False if only the first rows of a stream were checked.
        fraction: share of the usable rows that was drawn, or None for all.
        filtered: rows left out because they hold a sentence of an evaluation set.
        multiline: texts with a line break, as an unbalanced quote makes them in csv; ``first_multiline`` is the place
            of the first one.
    """

    rows: int
    used: int
    blank: int = 0
    duplicates: int = 0
    deduplicated: bool = False
    overlong: int = 0
    first_overlong: str | None = None
    complete: bool = True
    fraction: float | None = None
    filtered: int = 0
    multiline: int = 0
    first_multiline: str | None = None

    def summary(self) -> str:
        """Return one line for a log."""
        parts = [f"{self.used:,} of {self.rows:,} rows used"]
        if not self.complete:
            parts = [f"the first {self.rows:,} rows of the stream checked, {self.used:,} used"]
        if self.fraction is not None:
            parts.append(f"a share of {self.fraction:g} drawn")
        if self.filtered:
            parts.append(f"{self.filtered:,} with a sentence of an evaluation set left out")
        if self.blank:
            parts.append(f"{self.blank:,} blank ones dropped")
        if self.duplicates:
            parts.append(f"{self.duplicates:,} exact duplicates {'dropped' if self.deduplicated else 'kept'}")
        if self.overlong:
            parts.append(f"{self.overlong:,} texts over 100,000 characters, the first in {self.first_overlong}")
        if self.multiline:
            parts.append(f"{self.multiline:,} texts of several lines, the first in {self.first_multiline}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Corpus:
    """A checked corpus.

    Arguments:
        dataset: :class:`SentenceDataset` or :class:`StreamingSentenceDataset`.
        columns: names of the one, two or three columns.
        name: base name of the file(s), without folders, or name of the dataset on the Hub.
        checksum: SHA-256 of the concatenated raw files, hexadecimal; None for the Hub and for streams.
        fingerprint: fingerprint of a dataset from the Hub, else None.
        report: counts of its rows.
        source: the files or the table that the rows come from.
    """

    dataset: SentenceDataset | StreamingSentenceDataset
    columns: tuple[str, ...]
    name: str
    checksum: str | None
    fingerprint: str | None
    report: CorpusReport
    source: Source

    @property
    def streaming(self) -> bool:
        return isinstance(self.dataset, StreamingSentenceDataset)

    @property
    def rows(self) -> int:
        """The number of rows that training reads. Raises TypeError: the corpus is a stream."""
        if isinstance(self.dataset, StreamingSentenceDataset):
            raise TypeError(f"{self.name} is a stream, whose rows are not counted")
        return len(self.dataset)

    def describe(self) -> dict[str, Any]:
        """Return plain values for a results file."""
        identity = {"name": self.name, "columns": list(self.columns), "streaming": self.streaming}
        return {**identity, "checksum": self.checksum, "fingerprint": self.fingerprint, **asdict(self.report)}

    def told_columns(self, further: int = 0, role: str = "text of the objectives") -> str:
        """Return which column training takes for what, for a log; an empty text for a single column.

        Arguments:
            further: columns behind the contrastive ones, which objectives or further positives read.
            role: what these are.
        """
        if len(self.columns) == 1:
            return ""
        contrastive = max(1, len(self.columns) - further)
        roles = [*ROLES[:contrastive], *[role] * (len(self.columns) - contrastive)]
        parts = [f"{name!r} is the {role}" for name, role in zip(self.columns, roles, strict=True)]
        return f"column {', '.join(parts)} (--columns names others)"

    def sample(self, size: int) -> list[list[str]]:
        """Return ``size`` rows of texts: evenly spaced, or the first rows of a stream."""
        if isinstance(self.dataset, StreamingSentenceDataset):
            return [row["texts"] for _, row in zip(range(size), self.dataset, strict=False)]
        places = np.unique(np.linspace(0, len(self.dataset) - 1, min(size, len(self.dataset))).astype(int))
        return [row["texts"] for row in self.dataset.__getitems__(places.tolist())]

    def check_tokens(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_template: str | None = None,
        columns: int | None = None,
        whose: str = "the tokenizer",
    ) -> None:
        """Check that every text has a token. Only a tokenizer without special tokens can make none of a text that is
        not blank, so for others nothing is read. The rows of a stream are checked batch by batch in training.

        Arguments:
            columns: check the first columns, this many; None: all.
            whose: names the tokenizer in the message.

        Raises:
            CorpusError: a text has no tokens; the message names file and line.
        """
        frame = sentence_frame(tokenizer, prompt_template)
        if frame.before or frame.after or isinstance(self.dataset, StreamingSentenceDataset):
            return
        for start in range(0, len(self.dataset), HEAD):
            rows = self.dataset.__getitems__(range(start, min(start + HEAD, len(self.dataset))))
            for column, name in enumerate(self.columns[:columns]):
                ids = tokenize(tokenizer, [row["texts"][column] for row in rows], 1).input_ids
                if [] in ids:
                    texts = rows[ids.index([])]["texts"]
                    raise CorpusError(
                        f"{self.source.place(texts)}: column {name!r} holds {texts[column]!r:.100}, of which {whose} "
                        "makes no token: leave the row out"
                    )

    def tokenizer_report(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int,
        sample: int = 10_000,
        prompt_template: str | None = None,
    ) -> TokenizerReport:
        """Measure on ``sample`` rows how well the tokenizer fits the corpus.

        Raises:
            ValueError: ``max_seq_length`` leaves no room for a token.
        """
        texts = [text for row in self.sample(sample) for text in row]
        return tokenizer_report(texts, tokenizer, max_seq_length, prompt_template, self.name)


def load_corpus(
    train_file: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    dataset_name: str | None = None,
    *,
    split: str = "train",
    columns: str | Sequence[str] | None = None,
    streaming: bool = False,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    deduplicate: bool = False,
    dataset_config: str | None = None,
    tell: bool = True,
) -> Corpus:
    """Read and check a corpus of sentences (one column), pairs (two) or triplets (three: anchor, positive, negative).

    A text file holds one sentence per line. A csv or tsv file begins with a header; a tsv has no quoting. A json file
    holds one object per line, or one array of objects. Byte order marks and all kinds of line ends are accepted; texts
    are not changed otherwise. The checked rows are cached as Arrow: the next call reads the files only for their
    checksum.

    Arguments:
        train_file: ``.txt``, ``.csv``, ``.tsv``, ``.json``, ``.jsonl`` (each also ``.gz``, ``.xz``) or ``.parquet``;
            several files of one kind are concatenated.
        dataset_name: a dataset of the Hub (or a folder that ``datasets`` can load), instead of files.
        split, dataset_config: split and configuration of that dataset.
        columns: names of one to three columns. Default: the columns that hold text, if there are at most three.
        streaming: read the rows while training. Only the first 10,000 rows are checked at the start.
        max_samples: use only this many usable rows, the first ones.
        cache_dir: folder of the cache; default: the cache of ``datasets``.
        deduplicate: drop rows that repeat an earlier row exactly (by 64-bit hashes). Not for streams.
        tell: log the report; as a warning if there are repeats or very long texts.

    Raises:
        FileNotFoundError: no such file; the Hub cannot be reached, and the data set is not in the cache.
        CorpusError: the texts are not valid; the message names file and line.
        ValueError: the arguments contradict each other.
    """
    if max_samples is not None and max_samples < 2:
        raise ValueError(f"max_samples must be at least 2, got {max_samples}")
    if streaming and deduplicate:
        raise ValueError("deduplicate must be False with streaming=True, got True")
    if (train_file is None) == (dataset_name is None):
        raise ValueError("give either train_file or dataset_name, got both or neither")
    elif train_file is not None:
        paths = [train_file] if isinstance(train_file, (str, os.PathLike)) else list(train_file)
        source = file_source([Path(path) for path in paths], columns, streaming, cache_dir)
    else:
        cache = None if cache_dir is None else str(cache_dir)
        name = str(dataset_name)
        with hub_or_cache(name):
            table = datasets.load_dataset(name, dataset_config, split=split, streaming=streaming, cache_dir=cache)
        source = table_source(table, columns, hub_name(name))
    if streaming:
        corpus = _streamed(source, max_samples)
    elif source.table is not None:
        corpus = _from_table(source, max_samples, deduplicate)
    else:
        corpus = _from_files(source, max_samples, deduplicate, cache_dir)
    if tell:
        _tell(corpus)
    return corpus


def _report(scan: Scan, used: int, duplicates: int, deduplicated: bool = False, complete: bool = True) -> CorpusReport:
    return CorpusReport(
        scan.rows,
        used,
        scan.blank,
        duplicates,
        deduplicated,
        scan.overlong,
        scan.first_overlong,
        complete,
        multiline=scan.multiline,
        first_multiline=scan.first_multiline,
    )


def _at_least_two(rows: int, name: str) -> None:
    """Raise CorpusError for fewer than two rows: a contrast needs a second sentence."""
    if rows < 2:
        found = "no usable row" if rows == 0 else "one usable row"
        raise CorpusError(f"{name}: {found}; contrastive training needs at least 2")


def _streamed(source: Source, max_samples: int | None) -> Corpus:
    scan = Scan(source.columns)
    for _ in source.checked(scan):
        if scan.rows >= HEAD or (max_samples is not None and scan.used >= max_samples):
            break
    used = scan.used if max_samples is None else min(scan.used, max_samples)
    _at_least_two(used, source.name)
    report = _report(scan, used, used - int((scan.first_occurrences() < used).sum()), complete=False)
    dataset = StreamingSentenceDataset(source, max_samples)
    return Corpus(dataset, source.columns, source.name, None, None, report, source)


def _from_table(source: Source, max_samples: int | None, deduplicate: bool) -> Corpus:
    """Check a memory-mapped table; if rows are dropped, an index selects the others."""
    scan = Scan(source.columns)
    keep: list[np.ndarray] = []
    for places, _ in source.checked(scan):
        keep.append(np.asarray(places, dtype=np.int64))
        if not deduplicate and max_samples is not None and scan.used >= max_samples:
            break
    used = np.concatenate(keep) if keep else np.zeros(0, dtype=np.int64)
    first = scan.first_occurrences()
    duplicates = len(used) - len(first)
    used = (used[first] if deduplicate else used)[:max_samples]
    if not deduplicate:
        duplicates = len(used) - int((first < len(used)).sum())
    _at_least_two(len(used), source.name)
    rows = source.table if len(used) == len(source.table) else source.table.select(used)
    fingerprint = None if source.paths else source.table._fingerprint
    report = _report(scan, len(used), duplicates, deduplicate)
    dataset = SentenceDataset(rows, source.columns)
    return Corpus(dataset, source.columns, source.name, source.checksum, fingerprint, report, source)


def _from_files(
    source: Source, max_samples: int | None, deduplicate: bool, cache_dir: str | os.PathLike[str] | None
) -> Corpus:
    """Check files once and store them as Arrow under their names and checksum; later calls map the store."""
    checksum = sha256(source.paths)
    kinds = [file_kind(path) + "".join(path.suffixes[-1:]) for path in source.paths]
    names = [path.name for path in source.paths]  # the stored report has them
    ends = [path.stat().st_size for path in source.paths[:-1]]  # the checksum does not tell where a file ends
    key = json.dumps([STORE_VERSION, checksum, names, kinds, source.columns, max_samples, deduplicate, *ends])
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / "csekit"
    store = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.arrow"
    summary = store.with_suffix(".json")
    if not (store.exists() and summary.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        _write_store(source, max_samples, deduplicate, store)
    report = CorpusReport(**json.loads(summary.read_text(encoding="utf-8")))
    rows = datasets.Dataset.from_file(str(store))
    if deduplicate:
        first = np.load(store.with_suffix(".npy"))
        rows = rows if len(first) == len(rows) else rows.select(first)
    dataset = SentenceDataset(rows, source.columns)
    return Corpus(dataset, source.columns, source.name, checksum, None, report, source)


def _write_store(source: Source, max_samples: int | None, deduplicate: bool, store: Path) -> None:
    """Write rows to ``.arrow``, report to ``.json`` and distinct rows to ``.npy``, each atomically, so that several
    processes can do this at once. Raises DiskFullError: the disk is full."""
    scan = Scan(source.columns, numbers_are_text=not {file_kind(path) for path in source.paths} & {"csv", "tsv"})
    schema = pa.schema([(column, pa.large_string()) for column in source.columns])
    limit = None if deduplicate else max_samples
    with full_disk_told(store.parent), tempfile.TemporaryDirectory(dir=store.parent) as folder:
        draft = Path(folder) / store.name
        written = 0
        with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for _, texts in source.checked(scan):
                if limit is not None:
                    texts = [column[: limit - written] for column in texts]
                written += len(texts[0])
                writer.write_table(pa.table([pa.array(column, pa.large_string()) for column in texts], schema=schema))
                if written == limit:
                    break
        first = scan.first_occurrences()
        duplicates = scan.used - len(first) if deduplicate else written - int((first < written).sum())
        if deduplicate:
            first = first[:max_samples]
            written = len(first)
            draft.with_suffix(".npy").write_bytes(array_bytes(first))
        _at_least_two(written, source.name)
        report = _report(scan, written, duplicates, deduplicate)
        draft.with_suffix(".json").write_text(json.dumps(asdict(report)), encoding="utf-8")
        for suffix in (".npy", ".arrow", ".json"):
            if draft.with_suffix(suffix).exists():
                os.replace(draft.with_suffix(suffix), store.with_suffix(suffix))


def _tell(corpus: Corpus) -> None:
    report = corpus.report
    level = logging.WARNING if report.overlong or report.duplicates else logging.INFO
    logger.log(level, "%s: %s", corpus.name, report.summary())
