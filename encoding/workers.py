"""Encode in several processes that each have the whole model. The order of the texts is kept."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
import torch.multiprocessing  # registers how tensors travel: their memory is shared, not copied


class ChunkEncoder(Protocol):
    """An encoder that a worker process runs: ``TextEncoder``."""

    model: Any

    def embedded(self, chunks: Iterable[Sequence[str]]) -> Iterator[tuple[np.ndarray, int]]:
        """Yield the embeddings (n, H) of each chunk and the number of texts that were cut."""


_encoder: ChunkEncoder | None = None  # of a worker process


def device_of(model: torch.nn.Module) -> torch.device:
    """Return the device of a model's weights; the CPU for a model without weights."""
    parameter = next(model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def check_workers(num_workers: int, device: torch.device) -> None:
    """Raise ValueError for a number of processes below 1, or above the number of GPUs for a model on one of them."""
    if num_workers < 1:
        raise ValueError(f"num_workers must be at least 1, got {num_workers}")
    if device.type == "cuda" and num_workers > torch.cuda.device_count():
        raise ValueError(f"num_workers must be at most {torch.cuda.device_count()}, the GPUs, got {num_workers}")


class WorkerPool:
    """Processes that encode. On CPU they share the cores; with a model on a GPU each has its own GPU.

    They are spawned, so a script that uses them needs ``if __name__ == "__main__":``.

    Arguments:
        encoder: on CPU the processes share the memory of its model.
        num_workers: number of processes.

    Raises:
        ValueError: ``num_workers`` is below 1, or above the number of GPUs.
    """

    def __init__(self, encoder: ChunkEncoder, num_workers: int) -> None:
        self.encoder, self.num_workers = encoder, num_workers
        self.device = device_of(encoder.model)
        check_workers(num_workers, self.device)

    def __enter__(self) -> "WorkerPool":
        context = multiprocessing.get_context("spawn")
        devices: Any = context.Queue()
        for number in range(self.num_workers):
            devices.put(f"cuda:{number}" if self.device.type == "cuda" else str(self.device))
        threads = max(1, torch.get_num_threads() // self.num_workers)
        self.encoder.model.to("cpu")
        self.executor = ProcessPoolExecutor(self.num_workers, context, _start, (self.encoder, devices, threads))
        return self

    def __exit__(self, *error: object) -> None:
        self.executor.shutdown(cancel_futures=True)
        self.encoder.model.to(self.device)

    def encode_chunks(
        self, chunks: Iterable[Sequence[str]], advance: Callable[[int], object] = lambda rows: None
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Yield each chunk's embeddings (n, H) float32 and the number of its truncated texts, in order.

        Each process has at most two chunks at a time.

        Raises:
            RuntimeError: a process died.
        """
        texts = iter(chunks)
        underway: deque[tuple[int, Future[tuple[np.ndarray, int]]]] = deque()
        try:
            while True:
                for chunk in islice(texts, 2 * self.num_workers - len(underway)):
                    underway.append((len(chunk), self.executor.submit(_encode, list(chunk))))
                if not underway:
                    return
                size, coming = underway.popleft()
                yield coming.result()
                advance(size)
        except BrokenProcessPool as error:
            raise RuntimeError("a worker process died (out of memory, or killed); see its message above") from error


def end_with_parent() -> None:
    """End this worker process as soon as the process that started it has ended, however that ended.

    A thread waits for the end of the pipe that ``multiprocessing`` keeps between the two.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)  # not sys.exit: the main thread may wait for the parent forever

    if parent is not None:
        threading.Thread(target=wait, name="end with parent", daemon=True).start()


def _start(encoder: ChunkEncoder, devices: Any, threads: int) -> None:
    global _encoder
    end_with_parent()
    torch.set_num_threads(threads)
    _encoder = encoder
    _encoder.model.to(devices.get())


def _encode(texts: list[str]) -> tuple[np.ndarray, int]:
    assert _encoder is not None
    (found,) = _encoder.embedded([texts])
    return found
