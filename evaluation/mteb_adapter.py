"""Connect to mteb: any encoder as a model for ``mteb.evaluate``, and local files as its tasks, without a network.

mteb is in the extra ``mteb`` and is imported on first use.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from csekit.encoding.encoder import Encoder, TextEncoder, embed
from csekit.encoding.files import encoder_settings
from csekit.evaluation.pairs import read_lines
from csekit.evaluation.retrieval import in_role, own_similarity
from csekit.evaluation.retrieval_data import Collection, load_beir
from csekit.evaluation.sts_data import STSTask

#: Our sets to mteb's tasks with the same protocol.
_STS_TASKS = {"STS-B": "STSBenchmark", "STS-B-dev": "STSBenchmark", "SICK-R-trial": "SICK-R", "SICK-R-all": "SICK-R"}
_OFFICIAL_NAMES = {**_STS_TASKS, "scifact": "SciFact"}
#: The last part of the names that tasks with local data have.
_LOCAL_FORMS = ("tokenized", "raw", "local")
BANKING77_COUNTS = {"train": 10_003, "test": 3_080}


def _mteb() -> Any:
    try:
        import mteb
    except ImportError as error:
        raise ImportError("mteb is not installed: pip install 'csekit[mteb]'") from error
    return mteb


class MTEBEncoder:
    """Wrap an encoder for mteb: ``mteb.evaluate(MTEBEncoder(encoder), tasks)``.

    The model's own prompts and similarity are used: the prompt that mteb chooses for the task, else the model's for
    queries or documents. The encoder keeps its template and its batch size.

    Arguments:
        encoder: a ``TextEncoder`` (``load_encoder``), a SentenceTransformer, or any function ``texts -> (N, H)``.
        name: ``organisation/model`` in mteb's results. None: ``csekit/`` and the encoder's own name.
        revision: mteb keeps results by name and revision. None: the sha256 of weights and settings of a
            ``TextEncoder``, else a unique id, so that mteb never returns another encoder's scores.

    Raises:
        ValueError: a name without ``/``, or an encoder that is fitted on the texts it gets: mteb encodes the texts of
            a task in several calls.
    """

    def __init__(self, encoder: Encoder, name: str | None = None, revision: str | None = None) -> None:
        if getattr(encoder, "fits_texts", False):
            raise ValueError("encoder must not be fitted on the texts it gets, since mteb splits the texts of a task")
        self.encoder = encoder
        if name is None:
            own = getattr(encoder, "name", None) or getattr(encoder, "__name__", None) or type(encoder).__name__
            name = own if own.count("/") == 1 else f"csekit/{own.replace('/', '--')}"
        if "/" not in name:
            raise ValueError(f"name must be 'organisation/model', got {name!r}")
        self.name = name
        self.revision = revision or (fingerprint(encoder) if isinstance(encoder, TextEncoder) else uuid.uuid4().hex)
        self.similarity_fn_name = own_similarity(encoder)
        self._meta: Any = None

    def encode(
        self, inputs: Iterable[dict[str, Any]], *, task_metadata: Any = None, prompt_type: Any = None, **kwargs: Any
    ) -> np.ndarray:
        """Return (N, H) float32 of mteb's batches, dicts with a list ``text``.

        Arguments:
            task_metadata, prompt_type: choose the prompt, by mteb's own order: task and role, task, type of task and
                role, type of task, role.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        role = getattr(prompt_type, "value", prompt_type)
        encoder = in_role(self.encoder, role)
        prompts = getattr(self.encoder, "prompts", None)
        if prompts and task_metadata is not None:
            from mteb.models.abs_encoder import get_prompt_name

            name = get_prompt_name(dict(prompts), _official(task_metadata), prompt_type)
            if name is not None and isinstance(self.encoder, TextEncoder):
                encoder = self.encoder.for_role(role, prompts[name])
            elif name is not None:
                function: Any = getattr(encoder, "encode", encoder)
                encoder = partial(function, prompt=prompts[name])
        return embed(encoder, texts, progress=bool(kwargs.get("show_progress_bar", False)))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the (N, M) similarities that the encoder was trained for, cosine by default."""
        x_NH, y_MH = (self._rows(rows) for rows in (embeddings1, embeddings2))
        if self.similarity_fn_name in ("cosine", "dot"):
            return x_NH @ y_MH.T
        return -torch.cdist(x_NH, y_MH, p=self._norm, compute_mode="donot_use_mm_for_euclid_dist")

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Return the (N,) similarities of equal rows."""
        x_NH, y_NH = (self._rows(rows) for rows in (embeddings1, embeddings2))
        if self.similarity_fn_name in ("cosine", "dot"):
            return (x_NH * y_NH).sum(dim=-1)
        return -torch.linalg.vector_norm(x_NH - y_NH, ord=self._norm, dim=-1)

    @property
    def _norm(self) -> float:
        return 1.0 if self.similarity_fn_name == "manhattan" else 2.0

    def _rows(self, embeddings: Any) -> torch.Tensor:
        """Convert to (N, H) float32, with rows of length 1 for cosine."""
        rows = torch.atleast_2d(torch.as_tensor(embeddings, dtype=torch.float32))
        return torch.nn.functional.normalize(rows, dim=-1) if self.similarity_fn_name == "cosine" else rows

    @property
    def mteb_model_meta(self) -> Any:
        """Return mteb's ``ModelMeta``: name, revision, similarity, length limit."""
        if self._meta is None:
            _mteb()
            from mteb.models.model_meta import ModelMeta, ScoringFunction

            own = {"name": self.name, "revision": self.revision}
            own["similarity_fn_name"] = ScoringFunction(self.similarity_fn_name)
            own |= {"max_tokens": getattr(self.encoder, "max_length", None), "framework": ["PyTorch"]}
            self._meta = ModelMeta.create_empty(overwrites=own)
        return self._meta


def fingerprint(encoder: TextEncoder) -> str:
    """Return the sha256 of an encoder's weights, its tokenizer and the settings that change its embeddings."""
    inner = encoder  # whitened, ranked and cut embeddings are those of another encoder
    while isinstance(wrapped := getattr(inner, "encoder", None), TextEncoder):
        inner = wrapped
    content = json.dumps({**encoder_settings(inner), **encoder.describe()}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch, which mteb seeds when it makes a task."""
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])


def _task(official: str, name: str, dataset: Any) -> Any:
    """Make an mteb task with local data. It has its own name, because mteb keeps scores by name; models' prompts have
    the official one."""
    with _own_random_state():
        task = _mteb().get_task(official)
    task.metadata = task.metadata.model_copy(update={"name": name, "superseded_by": None})
    task.dataset, task.data_loaded = dataset, True
    return task


def _official(task_metadata: Any) -> Any:
    """Return the metadata of a task with local data under mteb's name of the task, which prompts are keyed by."""
    own, _, form = task_metadata.name.rpartition("-")
    if form not in _LOCAL_FORMS:
        return task_metadata
    return task_metadata.model_copy(update={"name": _OFFICIAL_NAMES.get(own, own)})


def mteb_sts_tasks(tasks: Sequence[STSTask]) -> list[Any]:
    """Make mteb tasks from the STS sets of ``load_sts``, named such as ``STS12-tokenized``. mteb's
    ``cosine_spearman`` equals our ``all`` / 100.

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
    """Make an mteb task from a collection of ``load_beir``, named such as ``scifact-local``.

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
    """Read Banking77 as split to (texts, intents): ``train.csv`` and ``test.csv`` in ``banking77/`` or ``data_dir``.

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
    """Make mteb's task ``Banking77Classification`` from local files. Raises the errors of ``read_banking77``."""
    from datasets import Dataset, DatasetDict

    splits = read_banking77(data_dir)
    label = {intent: i for i, intent in enumerate(sorted(set(splits["train"][1])))}
    data = {
        split: Dataset.from_dict({"text": texts, "label": [label[intent] for intent in intents]})
        for split, (texts, intents) in splits.items()
    }
    return _task("Banking77Classification", "Banking77Classification-local", DatasetDict(data))


def load_mteb_task(name: str, data_dir: str | Path | None = None) -> Any:
    """Load a task of mteb with its data.

    Arguments:
        name: mteb's name, such as ``STS12`` or ``TwentyNewsgroupsClustering.v2``. ``NAME/SUBSET`` loads one subset
            and the test split alone, such as ``MassiveIntentClassification/en``.
        data_dir: folder; its ``banking77/`` is used for ``Banking77Classification``, its ``scifact/`` for
            ``SciFact``. Other data come from the Hub.

    Raises:
        ImportError: mteb is missing.
        ValueError: mteb has no such task, or the task no such subset.
        OSError: the Hub cannot be reached, or lacks the data.
    """
    mteb = _mteb()
    folder = None if data_dir is None else Path(data_dir).expanduser()
    if folder is not None and name == "Banking77Classification" and (folder / "banking77").is_dir():
        return mteb_banking77_task(folder)
    if folder is not None and name == "SciFact" and (folder / "scifact").is_dir():
        collection = load_beir(folder / "scifact")
        assert isinstance(collection, Collection)
        return mteb_retrieval_task(collection)
    name, _, subset = name.partition("/")
    with _own_random_state():
        try:
            task = mteb.get_task(name)
        except KeyError:
            raise ValueError(f"mteb has no task {name!r}") from None
        if subset:
            task = _subset(task, subset)
        try:
            task.load_data()
        except Exception as error:  # mteb, datasets and the Hub's client have many
            reason = " ".join(str(error).split())[:200]
            raise OSError(f"mteb cannot load {name}: {reason or type(error).__name__}") from error
    return task


def _subset(task: Any, subset: str) -> Any:
    """Restrict a task to one of its subsets, and to its test split."""
    if subset not in task.hf_subsets:
        name = task.metadata.name
        raise ValueError(f"the subset of mteb's {name} must be one of {list(task.hf_subsets)}, got {subset!r}")
    task.filter_eval_splits(eval_splits=["test"])
    return task.filter_languages(None, None, hf_subsets=[subset])


@dataclass(frozen=True)
class MTEBScores:
    """The scores of one mteb task.

    Arguments:
        name: name of the task.
        metric: name of its main score.
        main_score: mean over its splits and subsets, ×100.
        splits: split to one mapping of metrics per subset, as mteb gives them (fractions).
        source: the data: path and revision on the Hub; mteb's version.
    """

    name: str
    metric: str
    main_score: float
    splits: dict[str, list[dict[str, Any]]]
    source: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file."""
        return {**vars(self)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal."""
        return ["mteb × 100", "metric", "main score"], [[self.name, self.metric, f"{self.main_score:.2f}"]]


def evaluate_mteb(encoder: Encoder, task: Any, progress: bool = False) -> MTEBScores:
    """Score an encoder on a task of ``load_mteb_task`` by mteb's own protocol.

    Raises:
        ImportError: mteb is missing.
        ValueError: what ``embed`` raises.
    """
    mteb = _mteb()
    model = MTEBEncoder(encoder, name="csekit/encoder", revision="unused: mteb keeps nothing")
    with _own_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 100 iterations are mteb's protocol
        (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=progress).task_results
    kept = {
        split: [
            {name: value for name, value in row.items() if isinstance(value, int | float | str)} for row in subsets
        ]
        for split, subsets in result.scores.items()
    }
    main = [float(row["main_score"]) for subsets in kept.values() for row in subsets]
    data = {key: task.metadata.dataset.get(key) for key in ("path", "revision")}
    return MTEBScores(
        task.metadata.name,
        task.metadata.main_score,
        100 * float(np.mean(main)),
        kept,
        {**data, "mteb": mteb.__version__},
    )


@dataclass(frozen=True)
class ClassificationScores:
    """Accuracy and macro F1 ×100, means over ``experiments``; their accuracies; size and checksum of the data."""

    name: str
    accuracy: float
    f1: float
    experiments: list[float]
    n: int
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file."""
        return {name: getattr(self, name) for name in ("accuracy", "f1", "experiments", "n", "checksum")}


def banking77(encoder: Encoder, data_dir: str | Path) -> ClassificationScores:
    """Score Banking77 by mteb's protocol (MSSE, Fig. 5): ten logistic regressions, each on eight examples per intent
    drawn with a fixed seed; accuracy on the 3,080 test questions.

    Raises:
        ImportError: mteb is missing; raised before anything is read or encoded.
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
