from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from csekit.evaluation.compare import _Ranks, bootstrap, bootstrap_averages, compare_runs, p_value, resampled_spearman
from csekit.evaluation.results import write_results
from csekit.evaluation.sts_data import STS_TASKS


def noisy(gold: np.ndarray, noise: float, seed: int) -> np.ndarray:
    return gold + noise * np.random.default_rng(seed).normal(size=len(gold))


def write(path: Path, noise: float, seed: int, tasks: tuple[str, ...] = STS_TASKS, n: int = 120) -> Path:
    similarities = {}
    for i, task in enumerate(tasks):
        gold = np.random.default_rng(i).integers(0, 26, n) / 5
        similarities[task] = (noisy(gold, noise, 100 * seed + i), gold)
    return write_results(path, {"run": {"noise": noise, "seed": seed}}, similarities)


def test_a_resample_scores_as_scipy_scores_the_drawn_pairs() -> None:
    rng = np.random.default_rng(0)
    gold, similarity = rng.integers(0, 5, 30).astype(float), rng.normal(size=30).round(1)
    drawn = rng.integers(30, size=(8, 30))
    counts = np.stack([np.bincount(row, minlength=30) for row in drawn]).astype(float)
    found = resampled_spearman(_Ranks(gold), [_Ranks(similarity)], counts)
    wanted = [spearmanr(gold[row], similarity[row]).statistic for row in drawn]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_better_equal_and_worse(tmp_path: Path) -> None:
    good, poor = write(tmp_path / "good.json", 1, 0), write(tmp_path / "poor.json", 4, 1)
    better, worse, same = compare_runs(good, poor), compare_runs(poor, good), compare_runs(good, good)
    assert list(better) == [*STS_TASKS, "Avg"]
    assert better["Avg"].p == pytest.approx(1 / 1001) and better["Avg"].low > 0
    assert worse["Avg"].p == 1 and worse["Avg"].high < 0
    assert same["Avg"].p == 1 and same["Avg"].low == same["Avg"].high == same["Avg"].difference == 0
    avg = better["Avg"]
    assert avg.a - avg.b == pytest.approx(avg.difference) and avg.low < avg.difference < avg.high


def test_the_same_arguments_give_the_same_numbers(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json", 2.0, 0), write(tmp_path / "b.json", 2.2, 1)
    assert compare_runs(a, b, 200, seed=3) == compare_runs(a, b, 200, seed=3)
    assert compare_runs(a, b, 200, seed=3)["STS12"].low != compare_runs(a, b, 200, seed=4)["STS12"].low


def test_p_is_uniform_enough_when_neither_is_better() -> None:
    rng = np.random.default_rng(0)
    values = []
    for trial in range(60):
        gold = rng.uniform(0, 5, 80)
        values.append(
            p_value(*bootstrap(gold, [noisy(gold, 2, 2 * trial)], [noisy(gold, 2, 2 * trial + 1)], resamples=200))
        )
    assert 0.35 < np.mean(values) < 0.65 and np.mean(np.array(values) < 0.05) < 0.15


def test_seeds_are_averaged_on_each_side(tmp_path: Path) -> None:
    a = [write(tmp_path / f"a{seed}.json", 2, seed) for seed in range(3)]
    b = write(tmp_path / "b.json", 3, 9)
    together = compare_runs(a, b, 50)
    alone = [compare_runs(path, b, 50)["STS12"].a for path in a]
    assert together["STS12"].a == pytest.approx(np.mean(alone))


def test_many_runs_at_once_are_compared_as_two_are(tmp_path: Path) -> None:
    runs = {
        name: [write(tmp_path / f"{name}{seed}.json", noise, 10 * place + seed) for seed in range(2)]
        for place, (name, noise) in enumerate({"a": 2.0, "b": 2.1, "c": 2.05}.items())
    }
    draws = bootstrap_averages(runs | {"few": [write(tmp_path / "few.json", 2, 9, tasks=("STS12",))]}, resamples=100)
    assert list(draws) == ["a", "b", "c"]
    for one, other in [("a", "b"), ("b", "a"), ("c", "b")]:
        pair = compare_runs(runs[one], runs[other], resamples=100)["Avg"]
        assert p_value(draws[one], draws[other]) == pair.p
        np.testing.assert_allclose(100 * np.percentile(draws[one] - draws[other], 2.5), pair.low, atol=1e-9)
    assert 0 < p_value(draws["a"], draws["b"]) < 1 and bootstrap_averages({}) == {}


def test_avg_needs_the_seven(tmp_path: Path) -> None:
    a, b = (write(tmp_path / f"{i}.json", 2, i, tasks=("STS12", "STS-B")) for i in range(2))
    assert list(compare_runs(a, b, 20)) == ["STS12", "STS-B"]


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = write(tmp_path / "a.json", 2, 0, tasks=("STS12",))
    with pytest.raises(ValueError, match="must share a task"):
        compare_runs(a, write(tmp_path / "b.json", 2, 0, tasks=("STS13",)))
    with pytest.raises(ValueError, match="the gold scores of STS12 differ"):
        compare_runs(a, write(tmp_path / "c.json", 2, 0, tasks=("STS12",), n=50))
    with pytest.raises(ValueError, match="holds no similarities"):
        compare_runs(a, write_results(tmp_path / "d.json", {}))
