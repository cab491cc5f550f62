"""mteb on both sides: any encoder as a model of ``mteb.evaluate``, and local files as its tasks, without a network.

mteb is imported when something is used, not before: it is in the extra ``mteb``.
"""

import csv
import hashlib
import json
import random
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from csekit.encoding.encoder import Encoder, TextEncoder, embed, weights_digest
from csekit.evaluation.pairs import read_lines
from csekit.evaluation.retrieval_data import Collection
from csekit.evaluation.sts_data import STSTask

#: Our sets to mteb's tasks, whose protocol they follow.
_STS_TASKS = {"STS-B": "STSBenchmark", "STS-B-dev": "STSBenchmark", "SICK-R-trial": "SICK-R", "SICK-R-all": "SICK-R"}
BANKING77_COUNTS = {"train": 10_003, "test": 3_080}


def _mteb() -> Any:
    try:
        import mteb
    except ImportError as error:
        raise ImportError("mteb is not installed: pip install 'csekit[mteb]'") from error
    return mteb


class MTEBEncoder:
    """An encoder as ``mteb.evaluate`` takes it: ``mteb.evaluate(MTEBEncoder(encoder), tasks)``.

    It follows mteb's encoder protocol: cosine similarity, no prompts (an encoder's own template stays), the encoder's
    own batch size.

    Arguments:
        encoder: a ``TextEncoder`` (``load_encoder``), a SentenceTransformer, or any function ``texts -> (N, H)``.
        name: ``organisation/model`` in mteb's results; ``csekit/`` and the encoder's own name by default.
        revision: with the name, what mteb keeps results under. By default the sha256 of weights and settings of a
            ``TextEncoder``, else an id that no other object has: one encoder never gets another's kept scores.

    Raises:
        ValueError: a name without ``/``.
    """

    def __init__(self, encoder: Encoder, name: str | None = None, revision: str | None = None) -> None:
        self.encoder = encoder
        if name is None:
            own = getattr(encoder, "name", None) or getattr(encoder, "__name__", None) or type(encoder).__name__
            name = own if own.count("/") == 1 else f"csekit/{own.replace('/', '--')}"
        if "/" not in name:
            raise ValueError(f"name must be 'organisation/model', got {name!r}")
        self.name = name
        self.revision = revision or (fingerprint(encoder) if isinstance(encoder, TextEncoder) else uuid.uuid4().hex)
        self._meta: Any = None

    def encode(self, inputs: Iterable[dict[str, Any]], **kwargs: Any) -> np.ndarray:
        """(N, H) float32 of mteb's batches, dicts with a list ``text``. What else mteb says changes nothing."""
        texts = [text for batch in inputs for text in batch["text"]]
        return embed(self.encoder, texts, progress=bool(kwargs.get("show_progress_bar", False)))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(N, M) cosine similarities."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(N,) cosine similarities of equal rows."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(dim=-1)

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's ``ModelMeta``: name, revision, length limit."""
        if self._meta is None:
            _mteb()
            from mteb.models.model_meta import ModelMeta, ScoringFunction

            own = {"name": self.name, "revision": self.revision, "similarity_fn_name": ScoringFunction.COSINE}
            own |= {"max_tokens": getattr(self.encoder, "max_length", None), "framework": ["PyTorch"]}
            self._meta = ModelMeta.create_empty(overwrites=own)
        return self._meta


def _unit(embeddings: Any) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.atleast_2d(torch.as_tensor(embeddings, dtype=torch.float32)), dim=-1)


def fingerprint(encoder: TextEncoder) -> str:
    """sha256 over an encoder's weights and what else changes its embeddings."""
    settings = {**encoder.describe(), "lowercase": encoder.lowercase}
    content = json.dumps({**settings, "weights": weights_digest(encoder.model)}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@contextmanager
def _own_random_state() -> Iterator[None]:
    """mteb seeds Python, NumPy and torch when it makes a task; afterwards they go on as if it had not."""
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])


def _task(official: str, name: str, dataset: Any) -> Any:
    """An mteb task with local data, under a name of its own: mteb keeps scores by name."""
    with _own_random_state():
        task = _mteb().get_task(official)
    task.metadata = task.metadata.model_copy(update={"name": name, "superseded_by": None})
    task.dataset, task.data_loaded = dataset, True
    return task


def mteb_sts_tasks(tasks: Sequence[STSTask]) -> list[Any]:
    """STS sets of ``load_sts`` as tasks of mteb, named such as ``STS12-tokenized``. mteb's ``cosine_spearman`` of one
    is our ``all`` / 100.

    Raises:
        ImportError: mteb is missing.
    """
    from datasets import Dataset, DatasetDict

    made = []
    for task in tasks:
        columns: dict[str, list[Any]] = {"sentence1": [], "sentence2": [], "score": []}
        for pairs in task.subsets:
            columns["sentence1"] += pairs.sentences1
            columns["sentence2"] += pairs.sentences2
            columns["score"] += pairs.scores.tolist()
        data = DatasetDict({"test": Dataset.from_dict(columns)})
        made.append(_task(_STS_TASKS.get(task.name, task.name), f"{task.name}-{task.text_form}", data))
    return made


def mteb_retrieval_task(collection: Collection) -> Any:
    """A collection of ``load_beir`` as a task of mteb, named such as ``scifact-local``.

    Raises:
        ImportError: mteb is missing.
    """
    from datasets import Dataset

    split = {
        "corpus": Dataset.from_dict({"id": list(collection.document_ids), "text": list(collection.documents)}),
        "queries": Dataset.from_dict({"id": list(collection.query_ids), "text": list(collection.queries)}),
        "relevant_docs": {query: dict(grades) for query, grades in collection.qrels.items()},
        "top_ranked": None,
    }
    return _task("SciFact", f"{collection.name}-local", {"default": {"test": split}})


def read_banking77(data_dir: str | Path) -> dict[str, tuple[list[str], list[str]]]:
    """Split to (texts, intents) of Banking77: ``train.csv`` and ``test.csv`` in ``banking77/``, or in ``data_dir``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: names file and line: not UTF-8, a wrong header, a row that is not two columns, a wrong count, an
            intent of the test split that no training row has.
    """
    root = Path(data_dir).expanduser()
    root = root / "banking77" if (root / "banking77").is_dir() else root
    found = {}
    for split, expected in BANKING77_COUNTS.items():
        path = root / f"{split}.csv"
        reader = csv.reader(line + "\n" for line in read_lines(path))
        rows: list[tuple[str, str]] = []
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if reader.line_num == 1:
                if row != ["text", "category"]:
                    raise ValueError(f"{where}: must be the header text,category, got {','.join(row)!r}")
            elif len(row) != 2 or not row[0].strip() or not row[1].strip():
                raise ValueError(f"{where}: must hold text and category, got {row}")
            else:
                rows.append((row[0], row[1]))
        if len(rows) != expected:
            raise ValueError(f"{path}: expected {expected} rows, found {len(rows)}")
        found[split] = [text for text, _ in rows], [intent for _, intent in rows]
    unknown = sorted(set(found["test"][1]) - set(found["train"][1]))
    if unknown:
        raise ValueError(f"{root / 'test.csv'}, field category: must be an intent of train.csv, got {unknown[0]!r}")
    return found


def mteb_banking77_task(data_dir: str | Path) -> Any:
    """Banking77 as mteb's task ``Banking77Classification``, from local files. Errors as ``read_banking77``."""
    from datasets import Dataset, DatasetDict

    splits = read_banking77(data_dir)
    label = {intent: i for i, intent in enumerate(sorted(set(splits["train"][1])))}
    data = {
        split: Dataset.from_dict({"text": texts, "label": [label[intent] for intent in intents]})
        for split, (texts, intents) in splits.items()
    }
    return _task("Banking77Classification", "Banking77Classification-local", DatasetDict(data))


@dataclass(frozen=True)
class ClassificationScores:
    """Accuracy and macro F1 ×100, means over ``experiments``; the accuracy of each of them; what the data is."""

    name: str
    accuracy: float
    f1: float
    experiments: list[float]
    n: int
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        """For a results file."""
        return {name: getattr(self, name) for name in ("accuracy", "f1", "experiments", "n", "checksum")}


def banking77(encoder: Encoder, data_dir: str | Path) -> ClassificationScores:
    """Banking77 by mteb's protocol (MSSE, Fig. 5): ten logistic regressions on eight examples an intent each, drawn
    with a fixed seed; accuracy on the 3,080 test questions.

    Raises:
        ImportError: mteb is missing; said before anything is read or encoded.
        FileNotFoundError, ValueError: as ``read_banking77``, and what ``embed`` raises.
    """
    mteb = _mteb()
    task = mteb_banking77_task(data_dir)
    model = MTEBEncoder(encoder, name="csekit/banking77", revision="unused: nothing is kept")
    with _own_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 100 iterations are the protocol's
        (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results
    (scores,) = result.scores["test"]
    rows = json.dumps({split: task.dataset[split].to_dict() for split in BANKING77_COUNTS}, sort_keys=True)
    return ClassificationScores(
        "Banking77",
        100 * float(scores["accuracy"]),
        100 * float(scores["f1"]),
        [100 * float(row["accuracy"]) for row in scores["scores_per_experiment"]],
        len(task.dataset["test"]),
        hashlib.sha256(rows.encode()).hexdigest(),
    )
