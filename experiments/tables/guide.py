"""The table of docs/methods.md: what each method adds, what it needs, and what it brought over its control.

The words stand in this file; every number comes from a results file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from csekit.evaluation.results import read_results
from experiments.tables.frontdoor import SAME_STEP, Table, p_value_of, row_of, spread_of, summary_of

_PRESETS = "../examples/configs"
_FIELD, _COSTS = "field", "costs/field-minilm-wiki-cpu-bf16.json"
_EQUAL, _IN_EQUAL = "equal-terms-minilm", {"msse-released": "msse"}  # rows of another name there
_TEACHER = "a teacher: any encoder"


class Method(NamedTuple):
    name: str
    adds: str
    preset: str
    over: str = "simcse"  # the nearest row of the field without what the method adds
    needs: str = "text"


#: By the row of the plan ``field``.
METHODS = {
    "simcse": Method("SimCSE", "nothing: dropout makes the two views of a sentence", "simcse-bert-base", ""),
    "compcse": Method("[CompCSE](#compcse)", "the mean of a sentence's halves is its positive", "compcse-bert-base"),
    "arccse": Method("[ArcCSE](#arccse)", "an angular margin; triplets of ever shorter sentences", "arccse-bert-base"),
    "whitenedcse": Method(
        "[WhitenedCSE](#whitenedcse)", "vectors whitened in shuffled groups", "whitenedcse-bert-base"
    ),
    "pcl": Method("[PCL](#pcl)", "several augmentations as positives; a second network", "pcl-bert-base"),
    "consert": Method(
        "[ConSERT](#consert)", "embeddings cut and shuffled in place of dropout", "consert-bert-base", "simcse-mean"
    ),
    "esimcse": Method(
        "[ESimCSE](#dclr-gistembed-and-esimcse)", "repeated words; a queue of a momentum copy", "esimcse-bert-base"
    ),
    "diffcse": Method(
        "DiffCSE",
        "a discriminator finds replaced words, given the embedding",
        "diffcse-bert-base",
        "simcse-batchnorm",
        "text, a masked LM of the same vocabulary",
    ),
    "infocse": Method(
        "InfoCSE",
        "a weak masked LM that needs the embedding",
        "infocse-bert-base",
        "simcse-batchnorm",
        "text, and [stage 1](pretraining.md)",
    ),
    "distillcse": Method(
        "[DistillCSE](#distillcse)",
        "a teacher's similarities, shuffled in groups",
        "distillcse-bert-base",
        needs=_TEACHER,
    ),
    "rankcse": Method(
        "RankCSE", "a teacher's ranking; agreement of the views' similarities", "rankcse-bert-base", needs=_TEACHER
    ),
    "rankencoder": Method(
        "[RankEncoder](#rankencoder)", "a teacher's ranking of a corpus", "rankencoder-bert-base", needs=_TEACHER
    ),
    "dclr": Method(
        "[DCLR](#dclr-gistembed-and-esimcse)",
        "weights of false negatives; noise as negatives",
        "dclr-bert-base",
        needs="a guide: any encoder",
    ),
    "micse": Method("[miCSE](#micse)", "mutual information of the views' attention", "micse-bert-base"),
    "iscse": Method("[IS-CSE](#is-cse)", "positives smoothed over a memory", "iscse-bert-base"),
    "promptbert": Method(
        "[PromptBERT](#promptbert)",
        "a prompt for each view, less the prompt's own vector",
        "promptbert-bert-base",
        "prompt",
    ),
    "informin": Method("InforMin-CL", "one view is rebuilt from the other", "informin-bert-base"),
    "msse-released": Method(
        "[MSSE](#msse-the-paper-and-its-repository)",
        "contrast between dimensions; a decoder writes the sentence from its embedding; a prompt",
        "msse-bert-base",
        "prompt",
        "pairs, or text",
    ),
    "mirror-bert": Method(
        "[Mirror-BERT](#mirror-bert)", "a masked span of characters", "mirror-bert-base", "simcse-mean"
    ),
    "ct": Method("[CT](#ct)", "two encoders in place of the contrast", "ct-bert-base", "simcse-mean"),
    "isbert": Method(
        "[IS-BERT](#is-bert)",
        "information of a sentence's tokens in place of the contrast",
        "isbert-bert-base",
        "simcse-mean",
    ),
    "tsdae": Method("[TSDAE](#tsdae)", "a decoder writes the sentence, in place of the contrast", "tsdae-bert-base"),
}


def guide_table(results_dir: Path) -> Table:
    """Return caption, head and rows: the methods, by their margin over their control in the plan ``field``; beside it
    that of long runs with a grid for each row, where the plan ``equal-terms-minilm`` has the method.

    Raises:
        ValueError: the plan or the file of costs lacks a row.
    """
    summary = summary_of(results_dir, _FIELD)
    costs = {row["name"]: row for row in read_results(results_dir / _COSTS)["methods"]}
    experiments, margins = summary["experiments"], summary["margins"]
    equal = summary_of(results_dir, _EQUAL) if (results_dir / _EQUAL / "summary.json").is_file() else {}
    found = []
    for name, method in METHODS.items():
        margin = row_of(row_of(margins["rows"], name, _FIELD), method.over, name) if method.over else None
        ratio = row_of(costs, SAME_STEP.get(name, name), _COSTS)["time_ratio"]
        cells = [method.name, method.adds, method.needs, f"{ratio:.1f} ×"]
        if margin is None:
            cells += ["", "", "", "", ""]
        else:
            over = row_of(experiments, method.over, _FIELD)["title"]
            cells += [spread_of(margin, "+"), over, p_value_of(summary, name, method.over), str(margin["n"])]
            cells.append(_long_margin(equal, _IN_EQUAL.get(name, name), over))
        paper = (margins.get("paper") or {}).get(name)
        cells += ["" if paper is None else f"{paper:+.2f}", f"[preset]({_PRESETS}/{method.preset}.yaml)"]
        found.append((margin["mean"] if margin else 0.0, cells))
    caption = (
        "Margin: mean ± standard deviation of the Avg of the seven STS test sets over the control, seed by seed, on "
        "minilm-wiki with the stand-in Wikipedia corpus, in short runs with one setting for all; p: one-sided paired "
        "bootstrap over the test pairs. Control: the nearest row without what the method adds. Own rate: the margin "
        "of long runs with learning rate, dropout and weight chosen for each row. Step: its time "
        f"relative to SimCSE's, on CPU. Paper: over SimCSE; {margins['source']}."
    )
    head = ["method", "what it adds", "needs", "step", "margin", "over", "p", "seeds", "own rate", "paper", ""]
    return caption, head, [cells for _, cells in sorted(found, key=lambda item: -item[0])]


def _long_margin(equal: Mapping[str, Any], name: str, over: str) -> str:
    """Return the margin over the first base that a row has in the plan on equal terms; the base is named if it is
    another one than ``over``."""
    found = ((equal.get("margins") or {}).get("rows") or {}).get(name)
    if not found:
        return ""
    base, margin = next(iter(found.items()))
    title = equal["experiments"][base]["title"]
    return spread_of(margin, "+") + ("" if title == over else f" over {title}")
