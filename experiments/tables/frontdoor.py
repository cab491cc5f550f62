"""Tables of the README: csekit beside sentence-transformers' SimCSE recipe, the methods, and what they scored.

The words stand in this file; every number comes from a results file.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results

Table = tuple[str, list[str], list[list[str]]]

_STEPS = "peers/mini-wiki-cpu.json"
_ENCODING = "benchmarks/encode-mini-wiki-cpu.json"
_COSTS = "costs/mini-wiki-cpu-bf16.json"
_GPU = "gpu/peers-minilm-wiki.json"
_PRESETS = "examples/configs"
_FIELD, _FIELD_COSTS = "field", "costs/field-minilm-wiki-cpu-bf16.json"
_EQUAL, _EQUAL_COSTS = "equal-terms-minilm", "costs/equal-terms-minilm-cpu-bf16.json"

#: Rows of the plan ``field`` that need no training and stand in the table of ``equal-terms-minilm`` as well.
UNTRAINED = ("all-minilm", "tfidf")
_SPACE = "\N{NO-BREAK SPACE}"  # keeps a number and its sign on one line

#: Rows of a plan whose step is that of another row: the same networks, with another sum over dimensions, another start
#: or another weight.
SAME_STEP = {"msse-released": "msse", "simcse-stage1": "simcse-batchnorm", "searched-3": "searched-1"}

#: Row of the costs file, then method, paper, what it adds, class and preset.
METHODS = {
    "simcse-tanh": (
        "[SimCSE](https://arxiv.org/abs/2104.08821)",
        "nothing: dropout makes the two views of a sentence",
        "SimCSEModel",
        "simcse-bert-base",
    ),
    "informin": (
        "[InforMin-CL](https://arxiv.org/abs/2209.10951)",
        "rebuilds one view from the other",
        "InforMinModel",
        "informin-bert-base",
    ),
    "infocse": (
        "[InfoCSE](https://arxiv.org/abs/2210.06432)",
        "predicts masked words from the embedding",
        "InfoCSEModel",
        "infocse-bert-base",
    ),
    "diffcse": (
        "[DiffCSE](https://arxiv.org/abs/2204.10298)",
        "finds replaced words, given the embedding",
        "DiffCSEModel",
        "diffcse-bert-base",
    ),
    "msse": (
        "MSSE (anonymous submission)",
        "contrasts dimensions; decodes the sentence from its embedding",
        "MSSEModel",
        "msse-bert-base",
    ),
    "joint": ("any of them together", "here InfoCSE's and DiffCSE's objectives", "CSEModel", ""),
}

#: (plan, experiment, the experiment of that plan that the margin is taken over)
AVERAGES = (
    ("equal-terms", "untrained-cls", None),
    ("equal-terms", "simcse-tanh", None),
    ("equal-terms", "simcse-batchnorm", "simcse-tanh"),
    ("equal-terms", "informin", "simcse-tanh"),
    ("infocse-diffcse", "diffcse", "simcse-tanh"),
    ("infocse-diffcse", "simcse-stage1", "simcse-tanh"),
    ("infocse-diffcse", "infocse", "simcse-stage1"),
    ("infocse-diffcse", "joint", "simcse-stage1"),
)


def beside_table(results_dir: Path) -> Table:
    """Return caption, head and rows: csekit beside sentence-transformers' SimCSE recipe.

    Raises:
        ValueError: a results file lacks one of the rows.
    """
    steps, encoding = read_results(results_dir / _STEPS), read_results(results_dir / _ENCODING)
    rows = [
        [
            "methods without labels",
            "SimCSE, InforMin-CL, InfoCSE, DiffCSE, MSSE, RankCSE, DCLR, ESimCSE, ArcCSE, PromptBERT, PCL, "
            "WhitenedCSE, DistillCSE, CompCSE, IS-CSE, miCSE, RankEncoder, ConSERT, Mirror-BERT, CT, IS-BERT, "
            "TSDAE, a masked LM beside any of them",
            "SimCSE; TSDAE and Contrastive Tension as recipes of their own",
        ],
        ["combinations", "any set of objectives on one encoder", "one loss for each data set"],
        *(_step_row(steps, precision) for precision in ("fp32", "bf16")),
        *(_encoding_row(encoding, precision) for precision in ("fp32", "bf16")),
        ["batches beyond memory", "cached gradients for every objective", "cached ranking losses"],
        ["resume", "bitwise, tested", "Transformers' Trainer; not compared here"],
        [
            "the encoder loads in",
            "`AutoModel`, `SentenceTransformer`, mteb, ONNX",
            "`AutoModel`, `SentenceTransformer`, mteb, ONNX, OpenVINO",
        ],
    ]
    run = steps["run"]
    caption = (
        "csekit beside sentence-transformers' documented SimCSE recipe. "
        f"Speed: CPU with {run['threads']} threads, backbone {run['backbone']}, corpus {run['corpus']}; steps over "
        f"{run['batch_size']} sentences of at most {run['max_seq_length']} tokens, median of {run['repetitions']} in "
        f"turn; encoding with [CLS] pooling, median of {encoding['run']['repetitions']} runs in turn. "
        "“× as fast” is the median of the ratios of each turn, not the ratio of the medians."
        f"{_on_gpu(results_dir)}"
    )
    return caption, ["", "csekit", "sentence-transformers' SimCSE recipe"], rows


def _on_gpu(results_dir: Path) -> str:
    """Return what the caption says of a GPU, nothing without its results."""
    path = results_dir / _GPU
    if not path.is_file():
        return ""
    results = read_results(path)
    rows, device = {row["name"]: row for row in results["methods"]}, results["environment"]["device"]
    ratio = row_of(rows, "st-bf16", _GPU)["time_ratio"]
    return (
        f" On one {device} a step in bf16 of minilm-wiki is {ratio:.2f} × as fast; encoding and one whole run, "
        "measured before that, were not faster: see the page on speed."
    )


def _step_row(steps: Mapping[str, Any], precision: str) -> list[str]:
    rows = {row["name"]: row for row in steps["methods"]}
    own, peer = (row_of(rows, f"{side}-{precision}", _STEPS) for side in ("simcse", "st"))
    ratio = f"{peer['time_ratio']:.2f} × as fast"
    return [
        f"training step, {precision}",
        f"{1000 * own['seconds']:.0f} ms ({ratio})",
        f"{1000 * peer['seconds']:.0f} ms",
    ]


def _encoding_row(encoding: Mapping[str, Any], precision: str) -> list[str]:
    corpus = encoding["rows"][0]["texts"]
    rows = {
        row["side"]: row
        for row in encoding["rows"]
        if (row["texts"], row["pooling"], row["precision"]) == (corpus, "cls", precision)
    }
    own, peer = (row_of(rows, side, _ENCODING) for side in ("csekit", "sentence-transformers"))
    return [
        f"encoding, {precision}",
        f"{own['sentences_per_second']:,.0f} sentences/s ({own['speedup']:.2f} × as fast)",
        f"{peer['sentences_per_second']:,.0f} sentences/s",
    ]


def methods_table(results_dir: Path) -> Table:
    """Return caption, head and rows: each method's paper, class, preset, and step time relative to SimCSE's.

    Raises:
        ValueError: the file of costs lacks a method.
    """
    results = read_results(results_dir / _COSTS)
    costs = {row["name"]: row for row in results["methods"]}
    body = []
    for name, (method, adds, model, preset) in METHODS.items():
        link = f"[`{preset}`]({_PRESETS}/{preset}.yaml)" if preset else "`--method joint --objectives aux_mlm rtd`"
        body.append([method, adds, f"`{model}`", link, f"{row_of(costs, name, _COSTS)['time_ratio']:.2f}{_SPACE}×"])
    run = results["run"]
    caption = (
        f"Step: time of an optimiser step relative to SimCSE's, backbone {run['backbone']}, {run['precision']}, CPU "
        f"with {run['threads']} threads."
    )
    return caption, ["method", "what it adds to SimCSE", "class", "preset", "step"], body


def averages_table(results_dir: Path) -> Table:
    """Return caption, head and rows: Avg of every method, and its margin over SimCSE with equal start and batch.

    Raises:
        ValueError: a plan lacks one of the experiments.
    """
    summaries = {plan: summary_of(results_dir, plan) for plan in dict.fromkeys(plan for plan, _, _ in AVERAGES)}
    body = []
    for plan, name, base in AVERAGES:
        experiments = summaries[plan]["experiments"]
        row = row_of(experiments, name, plan)
        cells = [row["title"], spread_of(row["test"]["Avg"])]
        if base is None:
            cells += ["", "", ""]
        else:
            under = row_of(experiments, base, plan)
            margin = row["test"]["Avg"]["mean"] - under["test"]["Avg"]["mean"]
            cells += [f"{margin:+.2f}", under["title"], p_value_of(summaries[plan], name, base)]
        body.append([*cells, str(len(row["finished_seeds"]))])
    caption = (
        "Avg of the seven STS test sets, Spearman × 100: mean ± standard deviation over the seeds; margin: over "
        "SimCSE from the same start, and for SimCSE itself over its tanh projector; p: one-sided paired bootstrap."
    )
    return caption, ["", "Avg", "margin", "over", "p", "seeds"], body


def field_table(results_dir: Path) -> Table:
    """Return caption, head and rows of the plan ``field``, all of whose rows have one setting; see ``_ranked``."""
    summary = summary_of(results_dir, _FIELD)
    how = "checkpoint chosen on STS-B dev, the test sets scored once"
    return _ranked(summary, {}, how, results_dir / _FIELD_COSTS)


def equal_table(results_dir: Path) -> Table:
    """Return caption, head and rows of the plan ``equal-terms-minilm``, with what needs no training from the plan
    ``field``; see ``_ranked``."""
    summary = summary_of(results_dir, _EQUAL)
    field = summary_of(results_dir, _FIELD)["experiments"] if (results_dir / _FIELD / "summary.json").is_file() else {}
    steps = f"{_long_steps(results_dir / _EQUAL)} steps"
    how = f"learning rate, dropout and weights of each row and its checkpoint chosen on STS-B dev; {steps}"
    more = {name: field[name] for name in UNTRAINED if name in field}
    return _ranked(summary, more, how, results_dir / _EQUAL_COSTS)


def _ranked(summary: Mapping[str, Any], more: Mapping[str, Any], how: str, costs_file: Path) -> Table:
    """Return caption, head and rows: Avg of every row of a plan, the best first, its margin over the baseline beside
    the paper's, and the time of a step relative to SimCSE's where it was measured.

    Arguments:
        more: further rows, by name.
        how: how rows were trained and chosen, for the caption.
        costs_file: results of ``benchmarks/train_step.py``; without it there is no column of steps.

    Raises:
        ValueError: the plan's baseline has no scores.
    """
    experiments = {name: row for name, row in {**summary["experiments"], **more}.items() if row.get("test")}
    base = row_of(experiments, summary["baseline"], summary["plan"])
    margins = summary["margins"]
    costs = {row["name"]: row for row in read_results(costs_file)["methods"]} if costs_file.is_file() else {}
    trained = {name: row["finished_seeds"] for name, row in experiments.items() if row["kind"] == "selected"}
    seeds = sorted({seed for of_row in trained.values() for seed in of_row})
    uneven = any(of_row != seeds for of_row in trained.values())
    body = []
    for name, row in sorted(experiments.items(), key=lambda item: -item[1]["test"]["Avg"]["mean"]):
        margin = margins["rows"].get(name, {}).get(summary["baseline"])
        paper = (margins.get("paper") or {}).get(name)
        cells = [row["title"], spread_of(row["test"]["Avg"])]
        cells += [spread_of(margin, "+"), p_value_of(summary, name, summary["baseline"])] if margin else ["", ""]
        cells.append("" if paper is None else f"{paper:+.2f}")
        cells += [str(len(trained[name])) if name in trained else ""] if uneven else []
        step = costs.get(SAME_STEP.get(name, name), {}).get("time_ratio")
        cells += [f"{step:.1f}{_SPACE}×" if step else ""] if costs else []
        body.append(cells)
    of_rows = "mean ± standard deviation over the seeds" + (" of a row, of" if uneven else "")
    caption = (
        f"Avg of the seven STS test sets, Spearman × 100; backbone {' and '.join(base['backbone'])}, stand-in "
        f"Wikipedia corpus; {of_rows if len(seeds) > 1 else 'one seed,'} "
        f"{', '.join(map(str, seeds))}; {how}. Margin: over "
        f"{base['title']} with the same seed{'s' if len(seeds) > 1 else ''}; p: one-sided paired bootstrap over the "
        f"test pairs, which says nothing of other seeds. Paper: {margins['source']}."
    )
    if costs:
        run = read_results(costs_file)["run"]
        caption += (
            f" Step: its time relative to SimCSE's, median of {run['repetitions']}, on CPU in {run['precision']}."
        )
    head = ["", "Avg", "margin", "p", "paper", *(["seeds"] if uneven else []), *(["step"] if costs else [])]
    return caption, head, body


def summary_of(results_dir: Path, plan: str) -> dict[str, Any]:
    """Return a plan's summary.json, with the plan's name."""
    found: dict[str, Any] = json.loads((results_dir / plan / "summary.json").read_text(encoding="utf-8"))
    return {"plan": plan, **found}


def _long_steps(folder: Path) -> str:
    """Return the numbers of steps of a plan's runs with test scores."""
    runs = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/seed=*.json")))
    return " or ".join(map(str, sorted({int(run["trial"]["arguments"]["max_steps"]) for run in runs})))


def p_value_of(summary: Mapping[str, Any], name: str, base: str) -> str:
    """Return a margin's p-value: from the plan's margins, or from the row if the base is the plan's baseline."""
    margins = (summary.get("margins") or {}).get("rows", {})
    found = margins.get(name, {}).get(base, {}).get("p_value")
    if found is None and summary["baseline"] == base:
        found = summary["experiments"][name].get("p_value")
    return "" if found is None else f"<{_SPACE}0.001" if found < 0.001 else f"{found:.3f}"


def spread_of(value: Mapping[str, Any], sign: str = "") -> str:
    return f"{value['mean']:{sign}.2f}" + (
        f"{_SPACE}±{_SPACE}{value['std']:.2f}" if value.get("std") is not None else ""
    )


def row_of(rows: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in rows:
        raise ValueError(f"{where} must have a row {name!r}, got {sorted(rows)}")
    return rows[name]


#: Marker to function, and whether all columns hold words, which are set to the left.
FRONTDOOR_TABLES: dict[str, tuple[Callable[[Path], Table], bool]] = {
    "frontdoor/beside": (beside_table, True),
    "frontdoor/methods": (methods_table, True),
    "frontdoor/averages": (averages_table, False),
    "frontdoor/field": (field_table, False),
    "frontdoor/equal": (equal_table, False),
}
