"""The table of suites and the results file that grows by them."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csekit.evaluation.pairs import Pairs
from csekit.evaluation.results import read_results, read_similarities, write_results
from csekit.evaluation.sts import evaluate_sts
from csekit.evaluation.sts_data import DEV_TASKS, STS_TASKS, STSTask
from csekit.evaluation.suite_results import SuiteResults
from csekit.evaluation.suites import (
    SUITES,
    Suite,
    SuiteOptions,
    check_encoder,
    own_data,
    resolve_suites,
    score_suites,
    suite_key,
    suite_settings,
)
from csekit.evaluation.transfer_data import TRANSFER_TASKS


def test_names_of_suites_and_tasks() -> None:
    assert resolve_suites("sts") == {"sts": STS_TASKS}
    assert resolve_suites("dev,STS12") == {"dev": DEV_TASKS, "sts": ("STS12",)}
    assert resolve_suites(["TREC", "STS-B", "MR"]) == {"transfer": ("TREC", "MR"), "sts": ("STS-B",)}
    assert resolve_suites("SICK-R-all") == {"sts": ("SICK-R-all",)}
    everything = resolve_suites("all")
    assert list(everything) == list(SUITES)
    assert everything["transfer"] == TRANSFER_TASKS
    assert resolve_suites("mteb:STS12,STS12,mteb:X.v2") == {
        "mteb:STS12": ("STS12",),
        "sts": ("STS12",),
        "mteb:X.v2": ("X.v2",),
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("STS1", "got 'STS1'"),
        ("sts,STS12", "each set once"),
        ("MR,MR", "each set once"),
        ("mteb:A,mteb:A", "each set once"),
        ("mteb:", "got 'mteb:'"),
        ("pairs", "got 'pairs'"),
    ],
)
def test_names_that_are_refused(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_suites(words)


def test_own_files_are_suites_with_their_names() -> None:
    chosen = own_data(["a/dev.tsv", "b.csv"], ["data/nfcorpus"], ["clinc/train.tsv", "clinc/test.tsv"])
    assert chosen == {
        "pairs:dev": ("a/dev.tsv",),
        "pairs:b": ("b.csv",),
        "retrieval:nfcorpus": ("data/nfcorpus",),
        "classification:clinc": ("clinc/train.tsv", "clinc/test.tsv"),
    }
    assert [suite_key(name) for name in chosen] == list(chosen)
    settings = suite_settings("classification:clinc", chosen["classification:clinc"], SuiteOptions(seed=3))
    assert settings == {"tasks": ["train.tsv", "test.tsv"], "mode": "test", "seed": 3}
    with pytest.raises(ValueError, match=r"must have different names, got \['pairs:dev', 'pairs:dev'\]"):
        own_data(["a/dev.tsv", "b/dev.tsv"])


def test_pairs_are_not_named_as_an_sts_set() -> None:
    """Their similarities took the place of the set's, and ``csekit compare`` tested them under its name."""
    for name in ("STS12", "STS-B-dev", "STS-B test"):
        with pytest.raises(ValueError, match=f"own/{name}.tsv: pairs must not be named as one of the sets"):
            own_data([f"own/{name}.tsv"])


def test_every_suite_has_its_own_key_and_options_that_exist() -> None:
    assert len({suite.key for suite in SUITES.values()}) == len(SUITES)
    assert not {"run", "name", "title", "suites", "seconds", "environment"} & {suite.key for suite in SUITES.values()}
    for name in SUITES:
        suite_settings(name, (), SuiteOptions())


@pytest.mark.parametrize(("field", "value"), [("mode", "tests"), ("text_form", "lower")])
def test_options_are_checked_at_once(field: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be .* or .*, got '{value}'"):
        SuiteOptions(**{field: value})


def test_a_suite_that_cannot_take_fitted_encoders_says_so(monkeypatch: Any) -> None:
    class Fitted:
        fits_texts = True

        def encode(self, texts: list[str]) -> Any:
            raise AssertionError("encoded")

    monkeypatch.setitem(SUITES, "other", Suite("other", lambda *_: None, lambda *_: None))  # type: ignore[arg-type]
    check_encoder(Fitted(), ["sts", "transfer"])
    with pytest.raises(ValueError, match="must not hold 'other'"):
        list(score_suites(Fitted(), {"other": None}))
    with pytest.raises(ValueError, match="each set once"):
        resolve_suites("other,other")


def scores(name: str, seed: int = 0) -> Any:
    words = [f"w{i}" for i in range(5)]
    task = STSTask(name, (Pairs(name, tuple(words), tuple(words[::-1]), np.arange(5.0)),))
    rng = np.random.default_rng(seed)
    return evaluate_sts(lambda texts: rng.normal(size=(len(texts), 3)), [task])


class Other:
    def to_dict(self) -> dict[str, Any]:
        return {"tasks": {"CR": {"accuracy": 3}}}


def record(
    path: Path, settings: dict[str, Any], run: str = "a", title: str | None = None, **more: Any
) -> SuiteResults:
    return SuiteResults(path, {"encoder": run}, "name", title, settings, **more)


def test_a_record_grows_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    settings = {"test": {"tasks": ["STS12"]}, "transfer": {"seed": 1}}
    first = scores("STS12")
    record(path, settings, title="A").add("test", first, 1.25)
    assert read_results(path)["title"] == "A"
    assert list(read_results(path)["suites"]) == ["test"]
    record(path, {"transfer": {"seed": 1}}).add("transfer", Other(), 2.0)
    record(path, {"dev": {}}).add("dev", scores("STS-B-dev"), 1)
    content = read_results(path)
    assert content["test"]["tasks"]["STS12"]["n"] == 5
    assert content["transfer"] == {"tasks": {"CR": {"accuracy": 3}}}
    assert content["title"] == "A"
    assert content["seconds"] == {"test": 1.2, "transfer": 2.0, "dev": 1, "total": 4.2}
    assert content["suites"]["test"]["settings"] == settings["test"]
    similarities = read_similarities(path)
    assert list(similarities) == ["STS12", "STS-B-dev"]
    np.testing.assert_allclose(similarities["STS12"][0], first.tasks["STS12"].similarities, atol=1e-4)


def test_a_record_never_replaces_what_it_would_not_give_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    record(path, {"test": {"tasks": ["STS12", "STS13"]}}).add("test", scores("STS12"), 1)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match=r"holds test with \{'tasks': \['STS12', 'STS13'\]\}, now it is"):
        record(path, {"test": {"tasks": ["STS12"]}})
    with pytest.raises(FileExistsError, match="another run"):
        record(path, {}, run="b")
    assert path.read_bytes() == before
    record(path, {"transfer": {}}, run="b", overwrite=True).add("transfer", Other(), 1)
    assert not {"test", "similarities"} & read_results(path).keys()
    with pytest.raises(ValueError, match=r"must end in \.json"):
        record(tmp_path / "a.txt", {})


def test_the_same_suite_again_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for seed in (0, 1):
        second = scores("STS12", seed)
        record(path, {"test": {}}).add("test", second, 1)
    assert read_results(path)["test"]["tasks"]["STS12"]["all"] == pytest.approx(second.tasks["STS12"].all, abs=1e-5)


def test_two_commands_at_once_add_to_one_file(tmp_path: Path) -> None:
    """Regression: the command that finished last wrote the file as it was when that command began, and the scores of
    the other one were gone."""
    path = tmp_path / "a.json"
    first, second = record(path, {"test": {}, "classification:x": {}}), record(path, {"transfer": {}, "dev": {}})
    second.add("transfer", Other(), 2.0)
    first.add("test", scores("STS12"), 1.0)
    second.add("dev", scores("STS-B-dev"), 3.0)
    first.add("classification:x", Other(), 4.0)
    content = read_results(path)
    assert list(content["suites"]) == ["classification:x", "dev", "test", "transfer"]
    assert content["transfer"] == {"tasks": {"CR": {"accuracy": 3}}}
    assert content["seconds"] == {"test": 1.0, "transfer": 2.0, "dev": 3.0, "classification:x": 4.0, "total": 10.0}
    assert set(read_similarities(path)) == {"STS12", "STS-B-dev"}


def test_two_commands_that_end_in_the_same_moment_add_to_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: both read the file before either wrote it, and the scores of one of them were gone."""
    path, both, threads = tmp_path / "new" / "a.json", threading.Barrier(2), []

    def write(*arguments: Any, **more: Any) -> Path:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # the other one may read now what is there before this one writes
        return write_results(*arguments, **more)

    monkeypatch.setattr("csekit.evaluation.suite_results.write_results", write)
    for key in ("test", "transfer"):
        threads.append(threading.Thread(target=record(path, {key: {}}).add, args=(key, Other(), 1.0)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    content = read_results(path)
    assert set(content["suites"]) == {"test", "transfer"}
    assert content["seconds"] == {"test": 1.0, "transfer": 1.0, "total": 2.0}


def test_scores_are_written_where_nothing_can_be_locked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lock that fails, as on some network file systems, must not cost the scores."""
    path = tmp_path / "a.json"
    (tmp_path / ".a.json.lock").mkdir()
    record(path, {"transfer": {}}).add("transfer", Other(), 1.0)
    assert list(read_results(path)["suites"]) == ["transfer"]
    assert "a.json is written without a lock (" in caplog.text


def test_a_file_that_another_run_wrote_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    first, other = record(path, {"test": {}}), record(path, {"test": {}}, run="b")
    other.add("test", scores("STS12"), 1)
    before = path.read_bytes()
    with pytest.raises(FileExistsError, match="another run"):
        first.add("test", scores("STS12"), 1)
    assert path.read_bytes() == before
    anew = record(path, {"test": {}, "transfer": {}}, overwrite=True)
    anew.add("transfer", Other(), 1)
    assert list(read_results(path)["suites"]) == ["transfer"]
    record(path, {"dev": {}}).add("dev", Other(), 1)
    anew.add("test", scores("STS12"), 1)
    assert list(read_results(path)["suites"]) == ["dev", "test", "transfer"]
