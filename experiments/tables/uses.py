"""The table of what encoders are good for, of the files of ``experiments/score_uses.py``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.evaluation.results import read_results

_COSTS = "costs/field-minilm-wiki-cpu-bf16.json"
#: Names of files that are no row of the plan ``field``, and their titles.
_STARTS = {"untrained": "untrained, [CLS]", "untrained-mean": "untrained, mean pooling"}
_STARTS |= {"all-minilm": "all-MiniLM-L6-v2, supervised"}
_HEAD = ["", "STS Avg", "shortest third", "longest third", "most unequal third", "transfer Avg", "SciFact, nDCG@10"]
_HEAD += ["Banking77", "alignment", "uniformity", "step"]


def uses_table(results_dir: Path) -> tuple[str, list[str], list[list[str]]]:
    """Return caption, head and rows: an encoder's scores on the STS sets, by length, and elsewhere.

    Raises:
        FileNotFoundError: the plan ``field`` or its costs have not been measured.
    """
    found = {file.stem: read_results(file) for file in sorted((results_dir / "uses").glob("*.json"))}
    summary = read_json(results_dir / "field/summary.json")
    titles = {name: row["title"] for name, row in summary["experiments"].items()}
    costs = {row["name"]: row["time_ratio"] for row in read_results(results_dir / _COSTS)["methods"]}
    rows = sorted(found.items(), key=lambda item: -float(item[1]["scores"]["sts"]["avg"]))
    body = [[_STARTS.get(name) or titles[name], *_cells(each["scores"], costs.get(name))] for name, each in rows]
    seeds = sorted({each["run"]["run"]["seed"] for each in found.values() if each["run"]["run"]})
    precisions = sorted({each["run"]["encoder"]["precision"] for each in found.values()})
    caption = (
        "Encoders of the plan field (minilm-wiki, stand-in Wikipedia corpus, 150 steps), seed "
        f"{' or '.join(map(str, seeds))}, encoded in {' or '.join(precisions)}. STS: Spearman × 100, averaged over "
        "the seven sets; thirds: of each set's pairs by their mean number of words, and by the difference between "
        "their two numbers. Transfer: accuracy of the seven tasks. Banking77: accuracy by mteb's protocol. Alignment "
        "and uniformity on STS-B test, lower is better. Step: its time beside SimCSE's, on CPU."
    )
    return caption, _HEAD, body


def _cells(scores: Mapping[str, Any], cost: float | None) -> list[str]:
    lengths, geometry = scores["lengths"], scores["geometry"]
    values = [scores["sts"]["avg"], lengths["length"][0], lengths["length"][-1], lengths["difference"][-1]]
    values += [scores["transfer"]["avg"], scores["scifact"]["metrics"]["ndcg@10"]]
    values += [scores["banking77"]["accuracy"]]
    cells = [f"{value:.2f}" for value in values]
    cells += [f"{geometry[name]:.2f}" for name in ("alignment", "uniformity")]
    return [*cells, "" if cost is None else f"{cost:.1f} ×"]
