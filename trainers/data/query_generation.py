"""Queries for passages, written by a sequence-to-sequence model (GPL: Wang et al., 2022; docTTTTTquery).

Passages are read in blocks. Each finished block is written to a file of its own, atomically, and its sampling has a
seed of its own. A run that was killed continues behind its last block and writes the same pairs.
"""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from csekit.encoding.provenance import write_json
from csekit.evaluation.pairs import normal
from csekit.modeling.hub import from_hub
from csekit.modeling.quiet import quiet_weights
from csekit.modeling.settings import check_number
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.row_files import (
    check_rows_file,
    make_parts,
    settle_writers,
    settled_writers,
    write_rows,
    writer_digests,
)

COLUMNS = ("query", "passage")


@dataclass(frozen=True)
class QueryGeneration:
    """Settings of the generation.

    Arguments:
        model: a sequence-to-sequence model, Hub id or folder.
        prefix: text before each passage, as the model was trained (``"generate query: "``).
        queries: queries of a passage that are drawn; repeats and empty ones are left out.
        top_k, top_p, temperature: sampling; ``top_k`` 0 samples among all tokens.
        max_length: tokens of a passage, at most as many as the model reads; a longer one loses its end.
        max_query_length: tokens of a query, at most as many as the model writes.
        batch_size: passages of a batch; another one draws other queries.
        block_size: passages that are written together.
        seed: fixes the queries, on the same kind of machine.

    Raises:
        ValueError: a value that is not allowed.
    """

    model: str = "BeIR/query-gen-msmarco-t5-base-v1"
    prefix: str = ""
    queries: int = 3
    top_k: int = 25
    top_p: float = 0.95
    temperature: float = 1.0
    max_length: int = 350
    max_query_length: int = 64
    batch_size: int = 32
    block_size: int = 1024
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("queries", "max_length", "max_query_length", "batch_size", "block_size"):
            check_number(name, getattr(self, name), 1)
        check_number("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0, 1, open_ends="low")
        check_number("temperature", self.temperature, 0, open_ends="low")


class QueryWriter:
    """Write queries of passages, in bf16 on a GPU, else in fp32."""

    def __init__(self, settings: QueryGeneration) -> None:
        self.settings = settings
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer: Any = from_hub(AutoTokenizer, settings.model)
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        with quiet_weights():
            model: Any = from_hub(AutoModelForSeq2SeqLM, settings.model, dtype=dtype)
        self.model = model.to(self.device).eval()
        room = getattr(self.model.config, "max_position_embeddings", None) or sys.maxsize
        self.most_tokens = min(settings.max_length, room)
        self.most_of_query = min(settings.max_query_length, room - 1)  # a token comes before the first one

    @torch.inference_mode()
    def __call__(self, passages: list[str], seed: int, progress: Callable[[int], Any]) -> list[list[str]]:
        """Return the different queries of each passage, in the order in which they were drawn."""
        own, found = self.settings, []
        sampling = {"do_sample": True, "top_k": own.top_k, "top_p": own.top_p, "temperature": own.temperature}
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            for start in range(0, len(passages), own.batch_size):
                texts = [own.prefix + passage for passage in passages[start : start + own.batch_size]]
                batch = self.tokenizer(
                    texts, padding=True, truncation=True, max_length=self.most_tokens, return_tensors="pt"
                ).to(self.device)
                inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
                ids = self.model.generate(
                    **inputs, **sampling, num_return_sequences=own.queries, max_new_tokens=self.most_of_query
                )
                written = [normal(text) for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]
                for first in range(0, len(written), own.queries):
                    different = dict.fromkeys(written[first : first + own.queries])
                    found.append([query for query in different if query])
                progress(len(texts))
        return found


def write_queries(corpus: Corpus, target: Path, settings: QueryGeneration, progress: bool = True) -> dict[str, int]:
    """Write pairs of query and passage; the settings, and digests of the model, as ``<target>.json``.

    Until the end the finished blocks are in ``<target>.parts``. Another call with the same corpus, settings and model
    continues from them.

    Arguments:
        corpus: passages, one column.
        target: a ``.jsonl`` or ``.csv`` file that does not exist yet.

    Returns:
        counts: ``passages``, ``pairs``, and ``passages_without`` a query.

    Raises:
        ValueError: a target with another ending, several columns, parts of another corpus, other settings or another
            model, no query.
        FileExistsError: the target exists, or ``<target>.parts`` holds something else.
    """
    check_rows_file(target)
    if len(corpus.columns) != 1:
        raise ValueError(f"{corpus.name} has the columns {', '.join(corpus.columns)}: name one with --column")
    parts = target.with_name(f"{target.name}.parts")
    if target.exists() and not parts.exists():
        raise FileExistsError(f"{target} exists already: move it away, or choose another name")
    make_parts(parts)
    made = _settle(parts, corpus, settings)
    _write_blocks(parts, corpus, settings, progress)
    counts = Counter(passages=corpus.rows, passages_without=0)
    counts["pairs"] = write_rows(target, COLUMNS, _pairs(parts, corpus, settings, counts), parts / target.name)
    if not counts["pairs"]:
        target.unlink()
        raise ValueError(f"{settings.model} wrote no query for any of {corpus.rows:,} passages")
    write_json(target.with_name(f"{target.name}.json"), made | settled_writers(parts) | {"counts": dict(counts)})
    done = parts.with_name(f"{parts.name}.done")  # a kill must not leave some of the parts under their name
    shutil.rmtree(done, ignore_errors=True)
    shutil.rmtree(parts.rename(done))
    return dict(counts)


def _settle(parts: Path, corpus: Corpus, settings: QueryGeneration) -> dict[str, Any]:
    """Record what the parts are made of. Raises ValueError for parts of another run."""
    named = Path(settings.model).name if Path(settings.model).is_dir() else settings.model
    identity = {"checksum": corpus.checksum, "fingerprint": corpus.fingerprint, "passages": corpus.rows}
    identity["column"] = corpus.columns[0]
    made = json.loads(json.dumps({**asdict(settings), "model": named, "corpus": corpus.name, **identity}))
    path = parts / "settings.json"
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        for name in made:
            if old.get(name) != made[name]:
                raise ValueError(
                    f"{parts} holds parts of another run ({name}: {old.get(name)!r} there, {made[name]!r} now): "
                    "delete it to start again"
                )
    else:
        write_json(path, made)
    return dict(made)


def _block_path(parts: Path, start: int) -> Path:
    return parts / f"{start:012d}.json"


def _passages(corpus: Corpus, start: int, settings: QueryGeneration) -> list[str]:
    dataset: Any = corpus.dataset
    items = dataset.__getitems__(range(start, min(start + settings.block_size, corpus.rows)))
    return [item["texts"][0] for item in items]


def _write_blocks(parts: Path, corpus: Corpus, settings: QueryGeneration, progress: bool) -> None:
    """Write the queries of the blocks that are missing."""
    starts = range(0, corpus.rows, settings.block_size)
    missing = [start for start in starts if not _block_path(parts, start).exists()]
    if not missing:
        return
    writer = QueryWriter(settings)
    settle_writers(parts, writer_digests(writer.model, writer.tokenizer))
    left = sum(min(settings.block_size, corpus.rows - start) for start in missing)
    with tqdm(
        total=corpus.rows, initial=corpus.rows - left, desc="queries", unit=" passages", disable=not progress
    ) as bar:
        for start in missing:
            seed = settings.seed + start
            write_json(_block_path(parts, start), writer(_passages(corpus, start, settings), seed, bar.update))


def _pairs(parts: Path, corpus: Corpus, settings: QueryGeneration, counts: Counter[str]) -> Iterator[tuple[str, str]]:
    for start in range(0, corpus.rows, settings.block_size):
        written = json.loads(_block_path(parts, start).read_text(encoding="utf-8"))
        for passage, queries in zip(_passages(corpus, start, settings), written, strict=True):
            counts["passages_without"] += not queries
            for query in queries:
                yield query, passage
