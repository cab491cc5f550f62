"""Transfer: the protocol against a plain loop, what must not change a score, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from csekit.evaluation import transfer
from csekit.evaluation.baselines import TfidfEncoder
from csekit.evaluation.transfer import GRID, TransferScores, TransferTaskScores, evaluate_transfer, pair_features
from csekit.evaluation.transfer_data import TRANSFER_TASKS, Split, TransferTask, load_transfer


def points(n: int, classes: int = 2, seed: int = 0) -> Split:
    """n texts that ``read`` turns into noisy points around a centre for each class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    centres = rng.normal(size=(classes, 4))
    values = centres[labels] * 0.7 + rng.normal(size=(n, 4))
    return Split((tuple(" ".join(f"{v:.6f}" for v in row) for row in values),), labels.astype(np.int64))


def read(texts: list[str]) -> np.ndarray:
    return np.array([[float(word) for word in text.split()] for text in texts])


def pairs(n: int, seed: int = 0) -> Split:
    first, second = points(n, seed=seed), points(n, seed=seed + 1)
    return Split((*first.columns, *second.columns), first.labels)


ONE = TransferTask("one", {"all": points(90)})
TWO = TransferTask("two", {"train": points(80, 3, 1), "test": points(40, 3, 1)})
PAIRS = TransferTask("pairs", {"train": pairs(80, 2), "test": pairs(30, 5)})
THREE = TransferTask("three", {"train": points(60, 2, 3), "dev": points(40, 2, 4), "test": points(40, 2, 5)})


def naive_accuracy(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray, value: float) -> float:
    """float64, a fresh L-BFGS fit to the optimum, features standardised one at a time."""
    columns, test_columns = [], []
    for j in range(x.shape[1]):
        mean = sum(x[:, j]) / len(x)
        deviation = (sum((v - mean) ** 2 for v in x[:, j]) / len(x)) ** 0.5
        columns.append((x[:, j] - mean) / deviation)
        test_columns.append((x_test[:, j] - mean) / deviation)
    classifier = LogisticRegression(C=value / x.shape[1], tol=1e-8, max_iter=5000)
    predicted = classifier.fit(np.array(columns).T, y).predict(np.array(test_columns).T)
    return sum(p == t for p, t in zip(predicted, y_test, strict=True)) / len(y_test)


def naive_folds(x: np.ndarray, y: np.ndarray, folds: int) -> list[float]:
    splitter = StratifiedKFold(folds, shuffle=True, random_state=1111)
    split = list(splitter.split(x, y))
    return [sum(naive_accuracy(x[a], y[a], x[b], y[b], value) for a, b in split) / folds for value in GRID]


def best(values: list[float]) -> int:
    return max(range(len(values)), key=lambda i: (round(values[i], 12), -i))


@pytest.fixture
def few_folds(monkeypatch: Any) -> None:
    monkeypatch.setattr(transfer, "FOLDS", 3)


@pytest.mark.usefixtures("few_folds")
def test_one_set_is_nested_cross_validation() -> None:
    (split,) = ONE.splits.values()
    x, y = read(list(split.columns[0])), split.labels
    tested, chosen = [], []
    for a, b in StratifiedKFold(3, shuffle=True, random_state=1111).split(x, y):
        c = best(naive_folds(x[a], y[a], 3))
        chosen.append(GRID[c])
        tested.append(naive_accuracy(x[a], y[a], x[b], y[b], GRID[c]))
    found = evaluate_transfer(read, [ONE]).tasks["one"]
    assert found.accuracy == pytest.approx(100 * np.mean(tested))
    assert found.chosen == tuple(chosen)
    assert found.std == pytest.approx(100 * np.std(tested, ddof=1))
    assert (found.n, found.features) == (90, 4)
    assert 60 < found.accuracy < 95, "must not be chance"
    assert len(set(chosen)) > 1, "must be a task with a choice"


@pytest.mark.usefixtures("few_folds")
@pytest.mark.parametrize("task", [TWO, PAIRS])
def test_train_and_test_by_folds_of_the_training_side(task: TransferTask) -> None:
    sides = []
    for split in task.splits.values():
        u, *v = (read(list(column)) for column in split.columns)
        sides.append((np.hstack([abs(u - v[0]), u * v[0]]) if v else u, split.labels))
    dev = naive_folds(*sides[0], 3)
    found = evaluate_transfer(read, [task]).tasks[task.name]
    assert found.chosen == (GRID[best(dev)],)
    assert found.dev == pytest.approx(100 * max(dev))
    assert found.accuracy == pytest.approx(100 * naive_accuracy(*sides[0], *sides[1], GRID[best(dev)]))
    assert found.std is None
    assert found.n == len(task.splits["test"])


def test_three_sides_choose_on_dev() -> None:
    train, dev, test = ((read(list(s.columns[0])), s.labels) for s in THREE.splits.values())
    scores = [naive_accuracy(*train, *dev, value) for value in GRID]
    found = evaluate_transfer(read, [THREE]).tasks["three"]
    assert found.chosen == (GRID[best(scores)],)
    assert found.dev == pytest.approx(100 * max(scores))
    assert found.accuracy == pytest.approx(100 * naive_accuracy(*train, *test, GRID[best(scores)]))


def test_dev_mode_scores_folds_of_the_training_side_and_encodes_no_test_side() -> None:
    seen: set[str] = set()

    def spying(texts: list[str]) -> np.ndarray:
        seen.update(texts)
        return read(texts)

    found = evaluate_transfer(spying, [ONE, TWO, THREE], mode="dev")
    for task in (ONE, TWO):
        split = next(iter(task.splits.values()))
        wanted = naive_folds(read(list(split.columns[0])), split.labels, 5)
        assert found.tasks[task.name].accuracy == pytest.approx(100 * max(wanted))
        assert found.tasks[task.name].n == len(split)
    train, dev = ((read(list(THREE.splits[s].columns[0])), THREE.splits[s].labels) for s in ("train", "dev"))
    assert found.tasks["three"].accuracy == pytest.approx(100 * max(naive_accuracy(*train, *dev, c) for c in GRID))
    tested = {text for task in (TWO, THREE) for text in task.splits["test"].columns[0]}
    trained = {text for task in (TWO, THREE) for text in task.splits["train"].columns[0]}
    assert not (tested - trained) & seen
    assert found.mode == "dev"


def test_a_dev_side_needs_no_folds() -> None:
    few = TransferTask("few", {name: points(8, 2, seed) for name, seed in (("train", 3), ("dev", 4), ("test", 5))})
    for mode in ("test", "dev"):
        assert evaluate_transfer(read, [few], mode=mode).tasks["few"].n == 8


@pytest.mark.parametrize("newton", [0, 512])
@pytest.mark.parametrize("classes", [2, 3])
def test_fits_are_at_the_optimum(monkeypatch: Any, newton: int, classes: int) -> None:
    """The gradient of mean log loss + |w|²/(2CN), written as loops over examples, is 0 for every C of the grid."""
    monkeypatch.setattr(transfer, "NEWTON_FEATURES", newton)
    split = points(60, classes)
    x, y = read(list(split.columns[0])).astype(np.float32), split.labels
    fitted: list[Any] = []
    real = LogisticRegression.fit

    def fit(self: Any, a: np.ndarray, b: np.ndarray) -> Any:
        real(self, a, b)
        fitted.append(
            (self.C, a.astype(np.float64), self.coef_.astype(np.float64), self.intercept_.copy(), self.solver)
        )
        return self

    monkeypatch.setattr(LogisticRegression, "fit", fit)
    transfer._path(x, y, x, y, GRID)
    assert [c for c, *_ in fitted] == [value / 4 for value in GRID]
    for c, a, coefficients, intercept, solver in fitted:
        assert solver == ("newton-cholesky" if newton and classes == 2 else "lbfgs")
        assert abs(a.mean(axis=0)).max() < 1e-6
        assert a.std(axis=0) == pytest.approx(1, abs=1e-6)
        rows = np.vstack([coefficients * 0, coefficients]) if classes == 2 else coefficients
        biases = np.array([0, *intercept]) if classes == 2 else intercept
        gradient = rows / (c * len(a))
        for row, label in zip(a, y, strict=True):
            logits = rows @ row + biases
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            for k in range(classes):
                gradient[k] += (shares[k] - (k == label)) * row / len(a)
        assert abs(gradient[1:] if classes == 2 else gradient).max() < 1e-5


@pytest.mark.usefixtures("few_folds")
def test_scale_shift_and_order_of_the_features_change_nothing() -> None:
    wanted = evaluate_transfer(read, [ONE, TWO])
    moved = evaluate_transfer(lambda texts: 1000 * read(texts)[:, ::-1] + 7, [ONE, TWO])
    for name, scores in wanted.tasks.items():
        assert moved.tasks[name].accuracy == scores.accuracy
        assert moved.tasks[name].chosen == scores.chosen


@pytest.mark.usefixtures("few_folds")
def test_one_call_a_task_same_digits_and_no_random_state() -> None:
    calls: list[int] = []

    def counting(texts: list[str]) -> np.ndarray:
        calls.append(len(texts))
        return read(texts)

    state = np.random.get_state()[1].copy()
    first = evaluate_transfer(counting, [ONE, PAIRS, THREE])
    assert calls == [90, 220, 140]
    assert np.array_equal(state, np.random.get_state()[1])
    np.random.seed(5)
    second = evaluate_transfer(read, [ONE, PAIRS, THREE])
    for name in first.tasks:
        a, b = ({**scores.tasks[name].to_dict(), "seconds": None} for scores in (first, second))
        assert a == b
        assert set(first.tasks[name].seconds) == {"embed", "fit", "embed_cpu", "fit_cpu"}
    other = evaluate_transfer(read, [ONE], seed=1)
    assert other.tasks["one"].accuracy != first.tasks["one"].accuracy
    assert other.seed == 1


@pytest.mark.usefixtures("few_folds")
def test_labels_without_meaning_score_as_chance() -> None:
    """Nothing of the test rows reaches a classifier: with more features than examples a leak would show."""
    rng = np.random.default_rng(0)
    texts = tuple(" ".join(f"{v:.4f}" for v in rng.normal(size=80)) for _ in range(60))
    task = TransferTask("noise", {"all": Split((texts,), rng.permutation(np.arange(60) % 2).astype(np.int64))})
    assert 30 <= evaluate_transfer(read, [task]).tasks["noise"].accuracy <= 70


def test_constant_features_do_no_harm() -> None:
    found = evaluate_transfer(lambda texts: np.hstack([read(texts), np.full((len(texts), 2), 3.0)]), [THREE])
    assert found.tasks["three"].accuracy > 55


def test_pair_features_dense_and_sparse() -> None:
    u, v = np.array([[1.0, 0, -2]]), np.array([[3.0, 0, 4]])
    assert pair_features(u, v).tolist() == [[2, 0, 6, 3, 0, -8]]
    assert pair_features(csr_matrix(u), csr_matrix(v)).toarray().tolist() == [[2, 0, 6, 3, 0, -8]]


def test_avg_needs_all_seven() -> None:
    scores = TransferTaskScores(80, None, 80, (1.0,), 9, 4, "lbfgs", 9, 0, {"embed": 0.1, "fit": 0.2}, "x")
    whole = TransferScores(dict.fromkeys(TRANSFER_TASKS, scores), 80.0, "test", 1111)
    head, rows = whole.table()
    assert rows[-1][:3] == ["Avg", "", "80.00"]
    assert {len(row) for row in rows} == {len(head)}
    content = whole.to_dict()
    assert content["protocol"]["grid"] == list(GRID)
    assert content["tasks"]["MR"]["chosen"] == [1.0]
    assert evaluate_transfer(read, [THREE]).avg is None


@pytest.mark.parametrize(
    ("tasks", "mode", "message"),
    [
        ([], "test", "different transfer tasks, got \\[\\]"),
        ([ONE, ONE], "test", "different transfer tasks"),
        ([ONE], "train", "mode must be 'test' or 'dev', got 'train'"),
        (
            [TransferTask("few", {"all": points(18)})],
            "test",
            r"few: training needs two or more classes of at least 10 ex.*0: 9",
        ),
        ([TransferTask("same", {"all": points(30, 1)})], "test", "same: training needs two"),
        (
            [TransferTask("new", {"train": points(40), "test": points(9, 3)})],
            "test",
            r"new: test holds classes that training does not, \[2\]",
        ),
    ],
)
def test_what_is_refused_before_encoding(tasks: Any, mode: str, message: str) -> None:
    def never(texts: list[str]) -> Any:
        raise AssertionError("encoded")

    with pytest.raises(ValueError, match=message):
        evaluate_transfer(never, tasks, mode=mode)


@pytest.mark.data
def test_words_alone_on_the_real_cr(data_dir: Path) -> None:
    """A bag of words reaches some 79 here; far off means wrong labels or a leak."""
    found = evaluate_transfer(TfidfEncoder(), load_transfer(data_dir, "CR"), mode="dev")
    assert 77 < found.tasks["CR"].accuracy < 82
