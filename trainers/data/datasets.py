"""Rows of checked texts as torch datasets, map-style and streaming."""

import ctypes
import mmap
import os
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from csekit.encoding.text_files import Scan
from csekit.trainers.data.sources import Source


class EpochMixin:
    """An epoch number in shared memory: DataLoader workers see a change, persistent ones too."""

    def __init__(self) -> None:
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Call this before the epoch's iterator is made: workers fetch ahead."""
        self._epoch[0] = epoch


class SentenceDataset(EpochMixin, torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of texts, memory-mapped. An item is ``{"texts": [s0, …], "index": int, "epoch": int}``.

    Arguments:
        rows: a table of ``datasets``.
        columns: names of its columns with the texts.
    """

    KEPT = 1 << 8  # rows between two releases of pages; reading a row can map 2 MiB of its file

    def __init__(self, rows: datasets.Dataset, columns: Sequence[str]) -> None:
        super().__init__()
        self.rows, self.columns, self._read = rows, tuple(columns), 0
        self._files = {os.path.realpath(file["filename"]) for file in rows.cache_files}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"index {index} of a corpus of {size} rows")
        return self.__getitems__([index % size])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return a batch of items at once, for the DataLoader."""
        indices, epoch = [int(i) for i in indices], self.epoch
        columns = self.rows[indices]
        self._read += len(indices)
        if self._read >= self.KEPT:
            give_back(self._files)
            self._read = 0
        texts = zip(*(columns[column] for column in self.columns), strict=True)
        return [{"texts": list(t), "index": i, "epoch": epoch} for t, i in zip(texts, indices, strict=True)]


def give_back(files: Collection[str]) -> None:
    """Release the pages of memory-mapped files, which otherwise count as memory of the process, in the end the whole
    file. The system reads them again when they are needed. Does nothing except on Linux."""
    try:
        mappings = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    names = tuple(files)
    for mapping in mappings:
        if not mapping.endswith(names):
            continue
        fields = mapping.split(maxsplit=5)
        if fields[5] in files and fields[1].startswith("r-"):  # only read-only mappings are the file's
            start, end = (int(address, 16) for address in fields[0].split("-"))
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


class ShuffledRows(torch.utils.data.Sampler[int]):
    """Shuffle the rows anew in each epoch: in the order of accelerate's ``SeedableRandomSampler``, with a fifth of its
    memory, 8 bytes per row.

    Arguments:
        rows: number of rows.
        seed: fixes the order together with the epoch.
    """

    BLOCK = 1 << 16  # indices that are converted to Python integers at once

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def __len__(self) -> int:
        return self.rows

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.rows, generator=torch.Generator().manual_seed(self.seed + self.epoch))
        for block in order.split(self.BLOCK):
            yield from block.tolist()
        self.set_epoch(self.epoch + 1)


class StreamingSentenceDataset(EpochMixin, torch.utils.data.IterableDataset[dict[str, Any]]):
    """Rows of texts in the order of their source, read while training and not shuffled.

    Items are those of :class:`SentenceDataset`. ``index`` is the running number of the usable row, independent of
    workers and processes: each of them reads the whole stream and skips the rows of the others. Several workers give
    the same batches as none if ``block_size`` is the number of rows that one batch takes from the stream: the batch
    size of a device times the number of processes. With several processes the loader must not dispatch batches
    (``accelerator_config={"dispatch_batches": False}``).

    To resume, the Trainer skips the batches of the steps that were taken. It treats a dataset without length as one
    epoch of ``max_steps``, so only ``repeat=True`` resumes exactly over several passes: the stream then repeats
    without end, and an item's ``epoch`` counts the passes.
    """

    def __init__(self, source: Source, max_samples: int | None = None) -> None:
        super().__init__()
        self.source, self.max_samples = source, max_samples
        self.block_size, self.repeat = 1, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        for running, item in enumerate(self._items()):
            if running // self.block_size % count == number:
                yield item

    def _items(self) -> Iterator[dict[str, Any]]:
        epoch = self.epoch
        while True:
            rows = chain.from_iterable(zip(*texts, strict=True) for texts in self._texts())
            for index, row in enumerate(islice(rows, self.max_samples)):
                yield {"texts": list(row), "index": index, "epoch": epoch}
            if not self.repeat:
                return
            epoch += 1

    def _texts(self) -> Iterator[list[list[str]]]:
        return (texts for _, texts in self.source.checked(Scan(self.source.columns, hashing=False)))


class SetEpochCallback(TrainerCallback):
    """Set the epoch of the training dataset. accelerate does this only in epochs that begin at their start, with one
    process."""

    def __init__(self, dataset: EpochMixin) -> None:
        self.dataset = dataset

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.dataset.set_epoch(int((state.epoch or 0) + 1e-6))
