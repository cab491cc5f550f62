"""Score transfer tasks: logistic regression on frozen sentence embeddings, SentEval's protocol (Conneau & Kiela 2018).

- one set (MR, CR, SUBJ, MPQA): nested cross-validation, 10 stratified folds outside and inside; accuracy is the mean
  of the outer folds
- train and test (TREC, MRPC): 10 folds of the training side choose C, the test side is scored once; a pair's features
  are |u − v| and u ⊙ v
- train, dev and test (SST2): the dev side chooses C

Features are scaled to mean 0 and variance 1 on the rows that a classifier is fitted on, and C is ``GRID`` divided by
the number of features, so that the grid means the same for every embedding size and scale. Sparse features (TF-IDF)
have rows of length 1 and are not scaled.

Shape suffixes: N examples, H features, G values of C.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import hstack, issparse
from tqdm.auto import tqdm

from csekit.encoding.encoder import Encoder, vectors
from csekit.evaluation.transfer_data import TRANSFER_TASKS, Split, TransferTask

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

#: C times the number of features. Ascending: each fit starts from the one before.
GRID = (0.25, 1.0, 4.0, 16.0, 64.0)
FOLDS, DEV_FOLDS = 10, 5
MODES = ("test", "dev")

#: With two classes and at most this many features, Newton's method with the full Hessian reaches the optimum in two or
#: three iterations for each C, so that digits do not depend on the machine. Otherwise L-BFGS: a step costs one pass.
NEWTON_FEATURES = 512
#: Fits stop when no entry of the gradient of the mean loss is larger. scikit-learn's default, 1e-4, stops L-BFGS short
#: of the optimum: accuracies can be off by up to 0.4 points on tasks with many classes. L-BFGS gets float64: float32
#: rounding stalls it at gradients near 1e-4, whatever the tolerance.
TOLERANCE = 1e-6

#: (N, H) array, or sparse matrix.
Features = Any


@dataclass(frozen=True)
class TransferTaskScores:
    """The scores of one task. Accuracies are ×100.

    Arguments:
        accuracy: accuracy on the test rows; in dev mode, on the dev rows for the best C.
        std: standard deviation over the outer folds, None with a single test side.
        dev: accuracy that chose C, mean over the outer folds.
        chosen: chosen entries of ``GRID``, one per outer fold.
        n: number of examples that ``accuracy`` is computed on.
        features: number of features H of the classifier.
        solver: scikit-learn's name of the solver.
        sentences: number of distinct sentences encoded.
        truncated: number of them that were cut, None if the encoder does not report it.
        seconds: wall seconds ``embed`` and ``fit``; CPU seconds of all processors ``embed_cpu`` and ``fit_cpu``.
        checksum: sha256 of the task's examples.
    """

    accuracy: float
    std: float | None
    dev: float
    chosen: tuple[float, ...]
    n: int
    features: int
    solver: str
    sentences: int
    truncated: int | None
    seconds: dict[str, float]
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "chosen": list(self.chosen)}


@dataclass(frozen=True)
class TransferScores:
    """The scores of several tasks.

    Arguments:
        tasks: name to scores.
        avg: mean of the seven accuracies, None unless all seven are there.
        mode: ``test`` or ``dev``.
        seed: seed of the folds.
    """

    tasks: dict[str, TransferTaskScores]
    avg: float | None
    mode: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file, with the protocol."""
        return {
            "tasks": {name: scores.to_dict() for name, scores in self.tasks.items()},
            "avg": self.avg,
            "mode": self.mode,
            "seed": self.seed,
            "protocol": {
                "classifier": "scikit-learn LogisticRegression, L2",
                "tolerance": TOLERANCE,
                "grid": list(GRID),
                "grid_is": "C times the number of features; C itself for sparse features",
                "scaling": "mean 0 and variance 1 on the fitted rows; none for sparse features",
                "folds": FOLDS if self.mode == "test" else DEV_FOLDS,
            },
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows for a terminal."""
        rows = []
        for name, task in self.tasks.items():
            std = "" if task.std is None else f"{task.std:.2f}"
            seconds = (f"{task.seconds[part]:.1f}" for part in ("embed", "fit"))
            rows.append([name, str(task.n), f"{task.accuracy:.2f}", std, f"{task.dev:.2f}", *seconds])
        if self.avg is not None:
            total = (f"{sum(task.seconds[part] for task in self.tasks.values()):.1f}" for part in ("embed", "fit"))
            rows.append(["Avg", "", f"{self.avg:.2f}", "", "", *total])
        head = ["rows", "accuracy", "deviation of folds", "accuracy of the chosen C", "encode, s", "fit, s"]
        return [f"Accuracy × 100, {self.mode}", *head], rows


def evaluate_transfer(
    encoder: Encoder, tasks: Sequence[TransferTask], mode: str = "test", seed: int = 1111, progress: bool = False
) -> TransferScores:
    """Score an encoder on transfer tasks. All sentences of a task are encoded in one call.

    The same seed gives the same digits; the global random state does not change.

    Arguments:
        encoder: a ``TextEncoder``, a SentenceTransformer, any function ``texts -> (N, H)``, or ``TfidfEncoder``.
        tasks: from ``load_transfer``.
        mode: ``test``: the protocol above. ``dev``, to select checkpoints with (DiffCSE, Table 13): no test side is
            encoded; the score is the mean accuracy of 5 folds of the training side for the best C, for SST2 the
            accuracy on its dev side. MR, CR, SUBJ and MPQA are one set each: their dev score uses rows that test mode
            tests on.
        seed: seed of the folds.

    Raises:
        ValueError: no tasks, a task twice, an unknown mode, a class with fewer examples than folds (a task with a dev
            side needs no folds), or what ``vectors`` raises.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tasks must be different transfer tasks, got {names}")
    if mode not in MODES:
        raise ValueError(f"mode must be 'test' or 'dev', got {mode!r}")
    for task in tasks:
        folds = FOLDS if mode == "test" else DEV_FOLDS
        _check_classes(task, 1 if "dev" in task.splits else folds)
    scores = {task.name: _score(encoder, task, mode, seed, progress) for task in tasks}
    complete = set(TRANSFER_TASKS) <= scores.keys()
    avg = float(np.mean([scores[name].accuracy for name in TRANSFER_TASKS])) if complete else None
    return TransferScores(scores, avg, mode, seed)


def _check_classes(task: TransferTask, folds: int) -> None:
    """Raise ValueError unless training has two classes of at least ``folds`` examples and all classes of each side."""
    first = next(iter(task.splits.values()))
    classes, counts = np.unique(first.labels, return_counts=True)
    if len(classes) < 2 or counts.min() < folds:
        names = [task.labels[i] if task.labels else i for i in classes.tolist()]
        found = dict(zip(names, counts.tolist(), strict=True))
        raise ValueError(f"{task.name}: training needs two or more classes of at least {folds} examples, got {found}")
    for name, split in task.splits.items():
        if strange := sorted(set(split.labels.tolist()) - set(classes.tolist())):
            raise ValueError(f"{task.name}: {name} holds classes that training does not, {strange}")


def _score(encoder: Encoder, task: TransferTask, mode: str, seed: int, progress: bool) -> TransferTaskScores:
    used = {name: split for name, split in task.splits.items() if mode == "test" or name != "test"}
    started = time.perf_counter(), time.process_time()
    features, distinct = _features(encoder, used, progress)
    embedded = time.perf_counter(), time.process_time()
    sides = {name: (features[name], split.labels) for name, split in used.items()}
    with tqdm(total=FOLDS, unit="folds", desc=task.name, disable=not progress, leave=False) as bar:
        tested, dev, chosen = _PROTOCOLS[mode, *task.splits](sides, seed, bar)
    last = sides[list(sides)[-1]]
    return TransferTaskScores(
        accuracy=100 * float(np.mean(tested)),
        std=100 * float(np.std(tested, ddof=1)) if len(tested) > 1 else None,
        dev=100 * float(np.mean(dev)),
        chosen=tuple(GRID[index] for index in chosen),
        n=len(last[1]),
        features=last[0].shape[1],
        solver=_classifier(last[0], sides[next(iter(sides))][1]).solver,
        sentences=distinct,
        truncated=getattr(encoder, "truncated", None),
        seconds=_seconds(started, embedded, (time.perf_counter(), time.process_time())),
        checksum=task.checksum(),
    )


def _seconds(*clocks: tuple[float, float]) -> dict[str, float]:
    """Return wall and CPU seconds of encoding and of fitting."""
    found: dict[str, float] = {}
    for part, before, after in zip(("embed", "fit"), clocks, clocks[1:], strict=False):
        found |= {part: round(after[0] - before[0], 2), f"{part}_cpu": round(after[1] - before[1], 2)}
    return found


def _features(encoder: Encoder, splits: dict[str, Split], progress: bool) -> tuple[dict[str, Features], int]:
    """Map split to features (N, H), and count the distinct sentences, which are encoded in one call."""
    columns = [column for split in splits.values() for column in split.columns]
    texts = [text for column in columns for text in column]
    embeddings = vectors(encoder, texts, progress)
    found: dict[str, Features] = {}
    start = 0
    for name, split in splits.items():
        parts = []
        for column in split.columns:
            parts.append(embeddings[start : start + len(column)])
            start += len(column)
        found[name] = parts[0] if len(parts) == 1 else pair_features(*parts)
    return found, len(set(texts))


def pair_features(u: Features, v: Features) -> Features:
    """Concatenate |u − v| and u ⊙ v (Conneau et al. 2017, without the vectors themselves): (N, H) each to (N, 2H)."""
    if issparse(u):
        return hstack([abs(u - v), u.multiply(v)], format="csr")
    return np.hstack([np.abs(u - v), u * v])


# Fitting: the functions below return fractions of 1, one value for each C of the grid


def _classifier(x: Features, y: np.ndarray) -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression  # not at the top: 20 MB, and every training imports this file

    newton = not issparse(x) and x.shape[1] <= NEWTON_FEATURES and len(np.unique(y)) == 2
    solver = "newton-cholesky" if newton else "lbfgs"
    return LogisticRegression(solver=solver, tol=TOLERANCE, max_iter=5000, warm_start=True)


def _standardised(x: Features, other: Features) -> tuple[Features, Features]:
    """Scale both with the mean and deviation of ``x``; features that are constant in ``x`` become 0."""
    if issparse(x):
        return x, other
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 1e-12)
    mean, scale = mean.astype(np.float32), scale.astype(np.float32)
    return (x - mean) * scale, (other - mean) * scale


def _path(x: Features, y: np.ndarray, x_test: Features, y_test: np.ndarray, grid: Sequence[float]) -> np.ndarray:
    """Return the accuracy on the test rows for each C, (G,); each fit starts from the one before."""
    x, x_test = _standardised(x, x_test)
    classifier = _classifier(x, y)
    if classifier.solver == "lbfgs":
        x, x_test = x.astype(np.float64), x_test.astype(np.float64)
    width = 1 if issparse(x) else x.shape[1]
    found = []
    for value in grid:
        classifier.set_params(C=value / width).fit(x, y)
        found.append(np.mean(classifier.predict(x_test) == y_test))
    return np.array(found)


def _splitter(folds: int, seed: int) -> "StratifiedKFold":
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(folds, shuffle=True, random_state=seed)


def _cross_validated(x: Features, y: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return the mean accuracy of the folds for each C, (G,)."""
    splitter = _splitter(folds, seed)
    return np.mean([_path(x[a], y[a], x[b], y[b], GRID) for a, b in splitter.split(np.zeros(len(y)), y)], axis=0)


_Sides = dict[str, tuple[Features, np.ndarray]]
_Outcome = tuple[list[float], list[float], list[int]]  # test accuracies, the accuracies that chose C, their C's


def _nested(sides: _Sides, seed: int, bar: tqdm) -> _Outcome:
    x, y = sides["all"]
    tested, dev, chosen = [], [], []
    splitter = _splitter(FOLDS, seed)
    for a, b in splitter.split(np.zeros(len(y)), y):
        inner = _cross_validated(x[a], y[a], FOLDS, seed)
        best = int(inner.argmax())
        tested.append(float(_path(x[a], y[a], x[b], y[b], GRID[best : best + 1])[0]))
        dev.append(float(inner[best]))
        chosen.append(best)
        bar.update()
    return tested, dev, chosen


def _train_test(sides: _Sides, seed: int, bar: tqdm) -> _Outcome:
    inner = _cross_validated(*sides["train"], FOLDS, seed)
    best = int(inner.argmax())
    return [float(_path(*sides["train"], *sides["test"], GRID[best : best + 1])[0])], [float(inner[best])], [best]


def _train_dev_test(sides: _Sides, seed: int, bar: tqdm) -> _Outcome:
    dev = _path(*sides["train"], *sides["dev"], GRID)
    best = int(dev.argmax())
    return [float(_path(*sides["train"], *sides["test"], GRID[best : best + 1])[0])], [float(dev[best])], [best]


def _dev_folds(sides: _Sides, seed: int, bar: tqdm) -> _Outcome:
    found = _cross_validated(*next(iter(sides.values())), DEV_FOLDS, seed)
    return [float(found.max())], [float(found.max())], [int(found.argmax())]


def _dev_side(sides: _Sides, seed: int, bar: tqdm) -> _Outcome:
    found = _path(*sides["train"], *sides["dev"], GRID)
    return [float(found.max())], [float(found.max())], [int(found.argmax())]


#: Mode and sides of the task to protocol.
_PROTOCOLS = {
    ("test", "all"): _nested,
    ("test", "train", "test"): _train_test,
    ("test", "train", "dev", "test"): _train_dev_test,
    ("dev", "all"): _dev_folds,
    ("dev", "train", "test"): _dev_folds,
    ("dev", "train", "dev", "test"): _dev_side,
}
