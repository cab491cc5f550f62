"""The scores of a model card: a table per suite, and the entries of the card's metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import EvalResult

from csekit.evaluation.report.runs import DEV_MODE, compared_by
from csekit.evaluation.report.tables import PAIR_SCORES
from csekit.evaluation.retrieval_data import kind_and_cutoff
from csekit.evaluation.sts_data import HUB_DATASETS, STS_TASKS
from csekit.evaluation.transfer_data import TRANSFER_TASKS

#: Hub ids of mteb's sets, where the scored pairs are those of the set. The metadata name other sets without an id.
HUB_SETS = {
    **{name: dataset for name, (dataset, split, _) in HUB_DATASETS.items() if split == "test"},
    "scifact": "mteb/scifact",
    "banking77": "mteb/banking77",
}


#: Criteria of a run that read training sentences, never the dev set.
LABEL_FREE = ("alignment", "uniformity", "effective_rank")


@dataclass(frozen=True)
class SuiteTable:
    """A table of the card.

    Arguments:
        says: the sentence above the table.
        head, rows: its cells.
        entries: its scores for the metadata.
    """

    says: str
    head: list[str]
    rows: list[list[str]]
    entries: list[EvalResult]


def suite_tables(results: Mapping[str, Any]) -> list[SuiteTable]:
    """Return the tables of the suites in the results, in the order of the card.

    Arguments:
        results: contents of a results file of a run or of ``csekit eval``.
    """
    return [make(results) for key, make in SUITES.items() if results.get(key)]


def _ordered(scores: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return the scores in the papers' order; a results file sorts its keys."""
    return {name: scores[name] for name in sorted(scores, key=lambda name: (*known, name).index(name))}


def _known(scores: Mapping[str, float | None]) -> dict[str, float]:
    """Return the scores that are numbers; a results file has null for one that is not finite."""
    return {name: value for name, value in scores.items() if value is not None}


def _entry(task: str, name: str, metric: str, value: float, kind: str | None = None) -> EvalResult:
    known, _, variant = name.partition(", ")
    return EvalResult(
        task_type=task,
        dataset_type=kind or HUB_SETS.get(known, known.lower()),
        dataset_name=name,
        dataset_config=variant or None,
        metric_type=metric,
        metric_value=round(value, 2),
    )


def _senteval_entry(task: str, name: str, metric: str, value: float) -> EvalResult:
    """Return the entry of a set that mteb has not, or with other pairs: its SICK-R is all of SICK."""
    return _entry(task, f"SentEval {name}", metric, value, f"senteval-{name.lower()}")


def _sts(results: Mapping[str, Any]) -> SuiteTable:
    test, dev = results["test"], results.get("dev") or {}
    scores = _known({name: task.get("all") for name, task in _ordered(test["tasks"], STS_TASKS).items()})
    chosen_on = _known({n: value for n, value in (dev.get("after") or {}).items() if n.endswith("_spearman")})
    rows = [[f"dev: {name}", f"{value:.2f}"] for name, value in chosen_on.items()]
    rows += [[name, f"{value:.2f}"] for name, value in scores.items()]
    if test.get("avg") is not None:
        rows.append(["Avg of the seven", f"{test['avg']:.2f}"])
    says = (
        f"Semantic textual similarity: Spearman × 100, cosine similarity, {test.get('text_form') or 'unknown'} texts."
    )
    entries = [
        (_entry if name in HUB_SETS else _senteval_entry)("sts", name, "cosine_spearman", value)
        for name, value in scores.items()
        if name in (*HUB_SETS, *STS_TASKS)
    ]
    return SuiteTable(says, ["set", "score"], rows, entries)


def _dev(results: Mapping[str, Any]) -> SuiteTable:
    dev, after = results["dev"], _known(results["dev"]["after"])
    scored = [name for name in after if name not in LABEL_FREE]
    rows = [[f"{'dev' if name in scored else 'training sentences'}: {name}", f"{after[name]:.2f}"] for name in after]
    says = "Without a dev set: criteria that need no labels, on training sentences."
    if scored:
        says = "On the dev set, which chose the checkpoint where there was a choice."
    elif dev.get("metric") in LABEL_FREE:
        says = f"{says[:-1]}; {dev['metric'].replace('_', ' ')} chose the checkpoint."
    return SuiteTable(says, ["what", "score"], rows, [])


def _transfer(results: Mapping[str, Any]) -> SuiteTable:
    transfer = results["transfer"]
    scores = _known({n: task["accuracy"] for n, task in _ordered(transfer["tasks"], TRANSFER_TASKS).items()})
    rows = [[name, f"{value:.2f}"] for name, value in scores.items()]
    if transfer.get("avg") is not None:
        rows.append(["Avg", f"{transfer['avg']:.2f}"])
    says = "Transfer: accuracy × 100 of a logistic regression on the frozen embeddings, by SentEval's protocol."
    if transfer.get("mode") == "dev":
        says = "Transfer, training sides alone: accuracy × 100 of a logistic regression on the frozen embeddings."
        return SuiteTable(says, ["task", "dev accuracy"], rows, [])
    entries = [_senteval_entry("text-classification", name, "accuracy", value) for name, value in scores.items()]
    return SuiteTable(says, ["task", "accuracy"], rows, entries)


def _retrieval(results: Mapping[str, Any]) -> SuiteTable:
    rows, entries = [], []
    for name, scores in results["retrieval"].items():
        for metric, value in sorted(_known(scores["metrics"]).items(), key=lambda item: kind_and_cutoff(item[0])):
            rows.append([name, metric, f"{value:.2f}"])
            entries.append(_entry("retrieval", name, metric.replace("@", "_at_"), value))
    return SuiteTable("Retrieval: means over queries × 100.", ["collection", "metric", "score"], rows, entries)


def _classification(results: Mapping[str, Any]) -> SuiteTable:
    scores = _known({name: task["accuracy"] for name, task in results["classification"].items()})
    rows = [[name, f"{value:.2f}"] for name, value in scores.items()]
    entries = [_entry("text-classification", name, "accuracy", value) for name, value in scores.items()]
    return SuiteTable("Classification by mteb's protocol: accuracy × 100.", ["set", "accuracy"], rows, entries)


def _own_pairs(results: Mapping[str, Any]) -> SuiteTable:
    rows, entries = [], []
    for name, scores in results["pairs"].items():
        for metric, value in _known({metric: scores.get(metric) for metric in PAIR_SCORES}).items():
            rows.append([name, f"{scores['n']:,}", PAIR_SCORES[metric], f"{value:.2f}"])
            entries.append(_entry("sts", name, f"cosine_{metric}", value))
    return SuiteTable("Pairs of own files, cosine × 100.", ["file", "pairs", "metric", "score"], rows, entries)


def _own_classification(results: Mapping[str, Any]) -> SuiteTable:
    scores = _known({name: task["accuracy"] for name, task in results["own classification"].items()})
    rows = [[name, f"{value:.2f}"] for name, value in scores.items()]
    entries = [
        _entry("text-classification", name, "accuracy", value)
        for name, value in scores.items()
        if not name.endswith(DEV_MODE)
    ]
    says = "Classification of own files: accuracy × 100 of a logistic regression on the frozen embeddings."
    return SuiteTable(says, ["set", "accuracy"], rows, entries)


def _mteb(results: Mapping[str, Any]) -> SuiteTable:
    scores = _known({name: task["main_score"] for name, task in results["mteb"].items()})
    rows = [[name, results["mteb"][name]["metric"], f"{value:.2f}"] for name, value in scores.items()]
    return SuiteTable("Tasks of mteb: main score × 100.", ["task", "metric", "score"], rows, [])


def _clustering(results: Mapping[str, Any]) -> SuiteTable:
    found = results["clustering"]
    scores = {"v_measure": found["v_measure"], "accuracy": found["accuracy"]}
    rows = [[found["set"], metric, f"{value:.2f}"] for metric, value in scores.items()]
    entries = [_entry("clustering", found["set"], metric, value) for metric, value in scores.items()]
    says = f"Clustering of {found['titles']:,} titles into {found['clusters']} clusters by K-Means, × 100."
    return SuiteTable(says, ["set", "metric", "score"], rows, entries)


#: The function that makes a table, by the suite's key in a results file.
SUITES: dict[str, Any] = {
    "test": _sts,
    "transfer": _transfer,
    "retrieval": _retrieval,
    "classification": _classification,
    "pairs": _own_pairs,
    "own classification": _own_classification,
    "mteb": _mteb,
    "clustering": _clustering,
}


def worse_than_untrained(results: Mapping[str, Any]) -> str:
    """Return a sentence if training made the score that chooses checkpoints worse, or an empty text."""
    dev = results.get("dev") or {}
    if not dev.get("worse_than_untrained"):
        return ""
    told, metric = "Training made this encoder worse on the dev set", compared_by(dev)
    if metric is None:
        return f"{told} than the untrained encoder."
    return (
        f"{told}: {metric} is {dev['before'][metric]:.2f} for the untrained encoder and {dev['after'][metric]:.2f} "
        "for this one."
    )


def dev_table(results: Mapping[str, Any]) -> list[SuiteTable]:
    """Return a table of the dev scores if no test set was scored, else no table."""
    return [_dev(results)] if not results.get("test") and (results.get("dev") or {}).get("after") else []
