import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation.compare import Ranks, bootstrap, bootstrap_averages, compare_runs, p_value, resampled_spearman
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
    found = resampled_spearman(Ranks(gold), [Ranks(similarity)], counts)
    wanted = [spearmanr(gold[row], similarity[row]).statistic for row in drawn]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_better_equal_and_worse(tmp_path: Path) -> None:
    good, poor = write(tmp_path / "good.json", 1, 0), write(tmp_path / "poor.json", 4, 1)
    better, worse, same = compare_runs(good, poor), compare_runs(poor, good), compare_runs(good, good)
    assert list(better) == [*STS_TASKS, "Avg"]
    avg = better["Avg"]
    assert avg.p == pytest.approx(1 / 1001)
    assert 0 < avg.low < avg.difference < avg.high
    assert avg.a - avg.b == pytest.approx(avg.difference)
    assert worse["Avg"].p == 1
    assert worse["Avg"].high < 0
    assert same["Avg"].p == 1
    assert same["Avg"].low == same["Avg"].high == same["Avg"].difference == 0


def test_an_encoder_without_a_correlation_is_not_better(tmp_path: Path) -> None:
    """One vector for every text: it counted as Spearman 0, and beat an encoder below 0 with p = 0.001."""
    gold = np.arange(30.0)
    constant = write_results(tmp_path / "constant.json", {"run": {}}, {"dev": (np.ones(30), gold)})
    inverse = write_results(tmp_path / "inverse.json", {"run": {}}, {"dev": (-gold, gold)})
    for sides in ((constant, inverse), (inverse, constant)):
        found = compare_runs(*sides)["dev"]
        assert np.isnan([found.difference, found.low, found.high, found.p]).all()


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
    assert 0.35 < np.mean(values) < 0.65
    assert np.mean(np.array(values) < 0.05) < 0.15


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
    assert 0 < p_value(draws["a"], draws["b"]) < 1
    assert bootstrap_averages({}) == {}


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


def test_a_file_is_one_seed(tmp_path: Path) -> None:
    """Regression: a file that was named twice counted as two seeds."""
    a, b = write(tmp_path / "a.json", 2, 0), write(tmp_path / "b.json", 2, 1)
    with pytest.raises(ValueError, match=r"of one side must be of different seeds, got a\.json twice"):
        compare_runs([a, b, tmp_path / "." / "a.json"], [b], 20)
    compare_runs([a], [a], 20)


def test_a_copy_of_a_file_is_no_further_seed(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.json", 2, 0), write(tmp_path / "b.json", 2, 1)
    for suffix in (".json", ".similarities.npz"):
        shutil.copy(tmp_path / f"a{suffix}", tmp_path / f"copy{suffix}")
    found = CliRunner().invoke(main, ["compare", f"{a},{tmp_path / 'copy.json'}", str(b)])
    assert found.exit_code == 2, found.output
    assert "of different seeds, got the same similarities in a.json and copy.json" in found.output


def test_words_of_the_command_that_cannot_be(tmp_path: Path) -> None:
    """Regression: ``A,`` was one file, a name that a variable without a value leaves out; a loop was a traceback."""
    a = write(tmp_path / "a.json", 2, 0)
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    for words, message in [
        ([f"{a},", str(a)], "results files must have names, got "),
        (["", str(a)], "results files must have names, got ['']"),
        ([str(loop), str(a)], "loop.json: no such results file"),
        ([str(a), str(a), "--seed", "-1"], "seed must be at least 0, got -1"),
    ]:
        found = CliRunner().invoke(main, ["compare", *words])
        assert found.exit_code == 2, found.output
        assert message in found.output


def described(path: Path, seed: int, text_form: str = "tokenized", checksum: str = "aa", pooling: str = "cls") -> Path:
    """A results file with the fields of ``csekit eval``; the gold scores are always the same."""
    gold = np.random.default_rng(0).integers(0, 26, 60) / 5
    content = {
        "run": {"encoder": {"pooling": pooling}, "seed": seed},
        "test": {"text_form": text_form, "tasks": {"STS12": {"checksum": checksum}, "STS13": {"checksum": str(seed)}}},
        "corpus": {"checksum": str(seed)},
    }
    return write_results(path, content, {"STS12": (noisy(gold, 2, seed), gold)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_form": "raw"}, "the same text form of STS12, got 'tokenized' in a.json and 'raw' in b.json"),
        ({"checksum": "bb"}, "the same checksum of STS12, got 'aa' in a.json and 'bb' in b.json"),
    ],
)
def test_equal_gold_scores_are_not_enough(tmp_path: Path, change: dict[str, str], message: str) -> None:
    a, b = described(tmp_path / "a.json", 0), described(tmp_path / "b.json", 1, **change)
    with pytest.raises(ValueError, match=message):
        compare_runs(a, b, 20)
    same = described(tmp_path / "c.json", 1)
    assert list(compare_runs(a, same, 20)) == ["STS12"], "what the two do not share may differ"


def test_seeds_of_one_side_share_a_pooling(tmp_path: Path) -> None:
    a, b = described(tmp_path / "a.json", 0), described(tmp_path / "b.json", 1, pooling="mean")
    assert list(compare_runs(a, b, 20)) == ["STS12"], "the two sides may pool differently"
    with pytest.raises(ValueError, match=r"one side must have the same pooling, got \['cls', 'mean'\]"):
        compare_runs([a, b], a, 20)
