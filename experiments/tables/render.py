"""Markdown tables written from results files, never by hand.

``python -m experiments.tables README.md --results results`` renews what stands between the markers
``<!-- table:NAME -->`` and ``<!-- end table -->``; with ``--check`` it changes nothing and fails if a table is
stale.

NAME is a plan (``equal-terms``: one row an experiment, test sets in columns), a plan's ``margins``
(``infocse-diffcse/margins``: differences of Avg), ``grid`` or ``gaps`` (see ``experiments.tables.grids``), a plan and
one of its ablation tables
(``informin-ablations/lambda``), ``selection``, ``dev-precision`` and ``half-states`` (see
``experiments.tables.selection``), ``plans`` (see ``experiments.tables.plans``), ``targets`` (see
``experiments.tables.targets``), ``FOLDER/FILE`` for the file of a
benchmark (``parameters``, ``costs``, ``peers``, ``roofline``, ``memory``, ``corpus``, ``collator``, ``gradients``,
``encode-memory``, ``decoder-memory``, ``dimensions``, ``students``, ``safety``, ``torture``, ``costs/gaps-…``,
``benchmarks/encode-…``, ``benchmarks/scaling-…``, ``benchmarks/selection-…``, ``gpu/peers-…`` and its like from
``benchmarks/gpu.sh``: see ``experiments.tables.costs`` and ``experiments.tables.students``; a ``costs`` table includes
the backbone's ``parameters`` if measured; ``speed``: see ``experiments.tables.retrieval``),
``quickstart/STEP`` and ``quickstart/times`` (see ``experiments.quickstart``),
``frontdoor/beside``, ``frontdoor/methods``, ``frontdoor/equal``, ``frontdoor/field`` and ``frontdoor/averages`` for
the front pages (see ``experiments.tables.frontdoor``), ``guide`` (see ``experiments.tables.guide``),
``audit/gradients`` (see ``experiments.tables.audit``), ``auxiliary-networks/alone``, ``auxiliary-networks/warm-up``
and ``teachers/steps`` (see ``experiments.tables.auxiliaries``),
``searches/NAME`` and ``searches/NAME/choices`` (see ``experiments.tables.searches``), ``backbone/starts``,
``backbone-gpu/starts`` (see ``experiments.tables.backbone``), ``evaluation/retrieval``,
``evaluation/geometry`` and ``evaluation/clustering`` for all files of that folder, ``uses`` (see
``experiments.score_uses``), ``domains/NAME`` (see ``experiments.run_domain``), or ``evaluation/TABLE`` for those that
``csekit eval`` wrote (see ``experiments.tables.scores``). An ablation table stands in the plan's ``tables``::

    lambda:
      title: Weight of the reconstruction term
      column: λ
      source: InforMin-CL, Table 5              # where the paper's numbers come from
      paper_column: BERT-base, Avg. of seven STS test sets
      rows:
        - {label: "0.04", trial: weight/lambda-0.04, paper: 76.09}

A row's ``trial`` is a single run, of which STS-B dev is shown, or an experiment, of which Avg of the test sets is
shown, and STS-B dev before it where that is what the paper's column holds. A second column of the paper, its average
of the transfer tasks, stands in ``second``::

      second:
        column: Avg. transfer
        scores: transfer                        # the experiment that scored the rows' encoders, if there is one
        ours: accuracy × 100, mean of the seven tasks, dev folds
      rows:
        - {label: "0.04", trial: weight/lambda-0.04, paper: 76.09, second: 85.20}

With ``curves`` instead of ``rows``, a list of ``label`` and ``trial``, it is a table over the steps of
pre-training runs (see ``experiments.tables.curves``). Without ``source`` there is no column for the paper.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from csekit.evaluation.results import read_results
from csekit.evaluation.sts_data import STS_TASKS
from experiments.tables.audit import gradients_before_and_after
from experiments.tables.auxiliaries import auxiliaries_table, steps_table, warmup_table
from experiments.tables.backbone import starts_table
from experiments.tables.cells import number, spread
from experiments.tables.costs import (
    collator_table,
    corpus_table,
    costs_table,
    encode_memory_table,
    encoding_table,
    end_to_end_table,
    filled_rows_table,
    gaps_table,
    memory_table,
    parameters_table,
    peers_table,
    roofline_table,
    scaling_table,
    selection_cost_table,
    term_gradients_table,
)
from experiments.tables.curves import curves_table
from experiments.tables.decoders import decoder_memory_table
from experiments.tables.domains import domain_table
from experiments.tables.frontdoor import FRONTDOOR_TABLES
from experiments.tables.geometry import clustering_table, geometry_table
from experiments.tables.grids import gaps_table as grid_gaps_table
from experiments.tables.grids import grid_table
from experiments.tables.guide import guide_table
from experiments.tables.plans import plans_table
from experiments.tables.quickstart import quickstart_table
from experiments.tables.retrieval import retrieval_table, speed_table
from experiments.tables.safety import safety_table, torture_table
from experiments.tables.scores import evaluation_table
from experiments.tables.searches import searched
from experiments.tables.selection import dev_precision_table, half_states_table, selection_table
from experiments.tables.shares import shares_table
from experiments.tables.students import dimensions_table, students_table
from experiments.tables.targets import targets_table
from experiments.tables.uses import uses_table

_BLOCK = re.compile(
    r"(?P<head><!-- table:(?P<name>[^\s>]+) -->\n)(?P<body>.*?)(?P<tail><!-- end table -->)", re.DOTALL
)
_HEAD = re.compile(r"<!-- table:")
_BENCHMARKS = {
    "parameters": ("parameters.py", parameters_table),
    "costs": ("train_step.py", costs_table),
    "costs/gaps": ("train_step.py --rows benchmarks/gaps.yaml", gaps_table),
    "peers": ("train_step.py --rows benchmarks/peers.yaml", peers_table),
    "roofline": ("roofline.py", roofline_table),
    "speed": ("evaluation.py", speed_table),
    "benchmarks/encode": ("encode.py", encoding_table),
    "benchmarks/kernels": ("filled_rows.py", filled_rows_table),
    "benchmarks/runs": ("end_to_end.py", end_to_end_table),
    "benchmarks/scaling": ("scaling.py", scaling_table),
    "benchmarks/selection": ("selection.py", selection_cost_table),
    "encode-memory": ("encode_memory.py", encode_memory_table),
    "memory": ("memory.py", memory_table),
    "decoder-memory": ("../experiments/decoder_memory.py", decoder_memory_table),
    "dimensions": ("../experiments/dimensions.py", dimensions_table),
    "students": ("../experiments/students.py", students_table),
    "corpus": ("corpus.py", corpus_table),
    "collator": ("collator.py", collator_table),
    "gradients": ("term_gradients.py", term_gradients_table),
    "safety": ("safety.py", safety_table),
    "torture": ("../tests/torture", torture_table),
    "gpu/peers": ("gpu.sh", peers_table),
    "gpu/costs": ("gpu.sh", costs_table),
    "gpu/compile": ("gpu.sh", peers_table),
    "gpu/roofline": ("gpu.sh", roofline_table),
    "gpu/selection": ("gpu.sh", selection_cost_table),
    "gpu/encode": ("gpu.sh", encoding_table),
    "gpu/memory": ("gpu.sh", memory_table),
    "gpu/runs": ("gpu.sh", end_to_end_table),
    "gpu/scaling": ("gpu.sh", scaling_table),
    "gpu/speed": ("gpu.sh", speed_table),
}
_FOLDERS: Mapping[str, Callable[[Path], tuple[str, list[str], list[list[str]]]]] = {
    "audit/gradients": gradients_before_and_after,
    "auxiliary-networks/alone": auxiliaries_table,
    "auxiliary-networks/warm-up": warmup_table,
    "backbone/starts": starts_table,
    "backbone-gpu/starts": partial(starts_table, plan="backbone-gpu"),
    "dev-precision": dev_precision_table,
    "equal-terms-minilm/shares": shares_table,
    "half-states": half_states_table,
    "targets": targets_table,
    "teachers/steps": steps_table,
    "evaluation/retrieval": retrieval_table,
    "evaluation/geometry": geometry_table,
    "evaluation/clustering": clustering_table,
    "uses": uses_table,
}
_GRIDS = {"grid": grid_table, "gaps": grid_gaps_table}
_WORDS = {**FRONTDOOR_TABLES, "guide": (guide_table, True)}


class TableError(ValueError):
    """Raised for a marker or a results file from which no table can be made."""


def main_table(summary: Mapping[str, Any]) -> str:
    """Return one row for each experiment: every test set, Avg, dev, and p against the baseline if it was computed."""
    rows = {name: row for name, row in summary["experiments"].items() if row.get("test")}
    if not rows:
        raise TableError(f"plan {summary['plan']}: no experiment has test scores yet")
    found = list(dict.fromkeys(task for row in rows.values() for task in row["test"] if task != "Avg"))
    tasks = [task for task in STS_TASKS if task in found] + [task for task in found if task not in STS_TASKS]
    counts = {len(row["finished_seeds"]) for row in rows.values()}
    with_p = any(row.get("p_value") is not None for row in rows.values())
    head = ["", *tasks, "Avg", "STS-B dev", *(["p"] if with_p else []), *(["seeds"] if len(counts) > 1 else [])]
    body = []
    for row in rows.values():
        cells = [row["title"], *(spread(row["test"].get(task)) for task in [*tasks, "Avg"]), spread(row.get("dev"))]
        cells += [_p_value(row.get("p_value"))] if with_p else []
        cells += [str(len(row["finished_seeds"]))] if len(counts) > 1 else []
        body.append(cells)
    return "\n".join([_main_caption(summary, rows.values(), counts, with_p), "", *markdown(head, body)])


def margin_table(summary: Mapping[str, Any]) -> str:
    """Return one row for each experiment: Avg, its difference to each base with p, and the paper's difference."""
    spec = summary.get("margins")
    if not spec or not spec["rows"]:
        raise TableError(
            f"plan {summary['plan']} has no margins, or no experiment beside its baselines has scores yet"
        )
    titles = {name: experiment["title"] for name, experiment in summary["experiments"].items()}
    paper = spec.get("paper") or {}
    bases = list(dict.fromkeys(base for row in spec["rows"].values() for base in row))
    own = len(bases) > 1 and all(len(row) == 1 for row in spec["rows"].values())  # named in a column
    head = ["", "Avg", *(["less", "difference", "p"] if own else [])]
    for base in [] if own else bases:
        head += [f"less {titles[base]}", "p"]
    body = []
    for name, row in spec["rows"].items():
        cells = [titles[name], spread(summary["experiments"][name]["test"].get("Avg"))]
        for base in row if own else bases:
            margin = row.get(base) or {}
            cells += [titles[base]] if own else []
            cells += [spread(margin, sign=True), _p_value(margin.get("p_value"))]
        body.append([*cells, *([number(paper.get(name), sign=True)] if paper else [])])
    head += ["paper"] if paper else []
    seeds = sorted({margin["n"] for row in spec["rows"].values() for margin in row.values()})
    over = "one seed" if seeds == [1] else f"mean ± standard deviation over {' or '.join(map(str, seeds))} seeds"
    caption = (
        f"Avg of the seven STS test sets, less that of the baseline with the same seed; {over}; p: one-sided paired "
        "bootstrap over the test pairs"
    )
    caption += f". Paper: {spec['source']}." if paper else "."
    return "\n".join([caption, "", *markdown(head, body)])


def ablation_table(summary: Mapping[str, Any], name: str) -> str:
    """Return our score beside the paper's number, row by row: of each trial STS-B dev, of an experiment Avg of the
    test sets, behind STS-B dev where the paper's number is that. With ``second`` the paper's second column follows,
    and our own where it was measured.

    Raises:
        TableError: no such table, or one that mixes rows of trials and of experiments.
    """
    spec = summary["tables"].get(name)
    if spec is None:
        raise TableError(f"plan {summary['plan']} has the tables {sorted(summary['tables'])}, got {name!r}")
    whole = {"/" not in row["trial"] for row in spec["rows"]}
    if len(whole) > 1:
        raise TableError(f"tables.{name}: every row must name a trial, or every row an experiment, got both")
    ours = "Avg of the test sets" if whole == {True} else "STS-B dev"
    second = spec.get("second")
    dev = whole == {True} and "STS-B dev" in spec.get("paper_column", "")
    head = [spec["column"], *(["ours, STS-B dev"] if dev else []), f"ours, {ours}"]
    head += [f"paper, {spec['paper_column']}"] if "source" in spec else []
    head += [f"ours, {second['column']}", f"paper, {second['column']}"] if second else []
    body = []
    for row in spec["rows"]:
        cells = [str(row["label"])]
        cells += [spread(summary["experiments"][row["trial"]]["dev"])] if dev else []
        cells += [spread(_row_score(summary, row["trial"]))]
        cells += [number(row.get("paper"))] if "source" in spec else []
        if second:
            cells += [number(_second_score(summary, second, row["trial"])), number(row.get("second"))]
        body.append(cells)
    ours = f"STS-B dev and {ours}" if dev else ours
    return "\n".join([_ablation_caption(summary, spec, ours), "", *markdown(head, body)])


def _ablation_caption(summary: Mapping[str, Any], spec: Mapping[str, Any], ours: str) -> str:
    """Say what the columns are. Our second column is explained where one of its numbers was measured."""
    used = {row["trial"].partition("/")[0]: None for row in spec["rows"]}
    experiments = [summary["experiments"][experiment] for experiment in used]
    dev = ours == "STS-B dev"
    finished = [each["seeds"][:1] if dev else each.get("finished_seeds", each["seeds"]) for each in experiments]
    seeds = sorted({seed for found in finished for seed in found})
    named = ", ".join(map(str, seeds))
    count = f"one seed ({named}), so small differences say nothing"
    if len(seeds) > 1:
        of_row = " that a row has, of" if any(len(found) < len(seeds) for found in finished) else ""
        count = f"mean ± standard deviation over the seeds{of_row} {named}"
    caption = f"{spec['title']}. Ours: {ours}, Spearman × 100, {_origin(experiments)}; {count}."
    second = spec.get("second")
    if second:
        measured = any(_second_score(summary, second, row["trial"]) is not None for row in spec["rows"])
        caption += f" {second['column']}: {second['ours'] if measured else 'ours was not measured'}."
    if "source" in spec:
        same = any(score in ours and score in spec["paper_column"] for score in ("STS-B dev", "test sets"))
        differ = "models and corpora" if same else "models, corpora and test sets"
        sides = "Ours and the paper's are" if second else "The two columns are"
        caption += (
            f" Paper: {spec['source']}; {spec['paper_column']}. {sides} different {differ}: compare their order."
        )
    return caption


def _row_score(summary: Mapping[str, Any], label: str) -> Mapping[str, Any] | None:
    """Return the score of a table's row as ``_spread`` takes it; a single run has no deviation."""
    experiment, _, trial = label.partition("/")
    measured = summary["experiments"][experiment]
    if not trial:
        average: Mapping[str, Any] | None = (measured.get("test") or {}).get("Avg")
        return average
    dev = (measured.get("trials") or measured.get("grid") or {}).get(trial)
    return None if dev is None else {"mean": dev}


def _second_score(summary: Mapping[str, Any], second: Mapping[str, Any], label: str) -> float | None:
    """Return the transfer average of a row's trial, or the mean over those of its experiment."""
    if "scores" not in second:
        return None
    known = summary["experiments"][second["scores"]]["transfer"]
    found = [value for trial, value in known.items() if trial == label or trial.startswith(f"{label}/")]
    return None if not found or None in found else statistics.fmean(found)


def _quickstart(results_dir: Path, table: str) -> str:
    path = results_dir / "quickstart" / "quickstart.json"
    if not path.is_file():
        raise TableError(f"table:quickstart/{table} needs {path} (run python -m experiments.quickstart)")
    return quickstart_table(json.loads(path.read_text(encoding="utf-8")), table)


def _named(plan: str, table: str, results_dir: Path) -> str:
    hint = f" (run csekit eval --output {results_dir / plan}/NAME.json)" if plan == "evaluation" else ""
    try:
        if plan == "domains":
            return _assembled(*domain_table(results_dir, table))
        if plan == "searches":
            return _assembled(*searched(results_dir, table))
        return _assembled(*evaluation_table(results_dir / plan, table))
    except (ValueError, OSError) as error:
        raise TableError(f"table:{plan}/{table}: {error}{hint}") from None


def _grid(name: str, folder: Path, summary: Mapping[str, Any], table: str) -> str:
    try:
        return _assembled(*_GRIDS[table](folder, summary))
    except ValueError as error:
        raise TableError(f"table:{name}: {error}") from None


def render(name: str, results_dir: Path) -> str:
    """Return the table that a marker names."""
    if name in ("plans", "selection"):
        return _assembled(*plans_table(results_dir)) if name == "plans" else selection_table(results_dir)
    if name in _FOLDERS:
        try:
            return _assembled(*_FOLDERS[name](results_dir))
        except (ValueError, OSError) as error:
            raise TableError(f"table:{name}: {error}") from None
    if name in _WORDS:
        make_table, words = _WORDS[name]
        try:
            return _assembled(*make_table(results_dir), words=words)
        except (ValueError, OSError) as error:
            raise TableError(f"table:{name}: {error}") from None
    plan, _, table = name.partition("/")
    if plan == "quickstart":
        return _quickstart(results_dir, table)
    if plan in ("domains", "evaluation", "searches"):
        return _named(plan, table, results_dir)
    kind = f"{plan}/{table.partition('-')[0]}"
    kind = kind if kind in _BENCHMARKS else plan
    if kind in _BENCHMARKS:
        script, make = _BENCHMARKS[kind]
        path = results_dir / plan / f"{table}.json"
        if not path.is_file():
            raise TableError(f"table:{name} needs {path}, which does not exist (run benchmarks/{script} first)")
        results = read_results(path)
        parameters = results_dir / "parameters" / f"{results['run']['backbone']}.json" if kind == "costs" else None
        if parameters is not None and parameters.is_file():
            return _assembled(*costs_table(results, read_results(parameters)))
        return _assembled(*make(results))
    path = results_dir / plan / "summary.json"
    if not path.is_file():
        raise TableError(f"table:{name} needs {path}, which does not exist (run experiments/run_seeds.py first)")
    summary = json.loads(path.read_text(encoding="utf-8"))
    if table == "margins":
        return margin_table(summary)
    if table in _GRIDS:
        return _grid(name, path.parent, summary, table)
    if "curves" in summary["tables"].get(table, {}):
        return _assembled(*curves_table(summary["tables"][table], path.parent))
    return ablation_table(summary, table) if table else main_table(summary)


def update(text: str, results_dir: Path) -> str:
    """Return ``text`` with every marked table renewed. Text outside the markers does not change."""
    blocks = [match["body"] for match in _BLOCK.finditer(text)]
    if len(_HEAD.findall(text)) != len(blocks) or any(_HEAD.search(body) for body in blocks):
        raise TableError("every <!-- table:NAME --> line needs an <!-- end table --> before the next one")

    def renew(match: re.Match[str]) -> str:
        return f"{match['head']}\n{render(match['name'], results_dir)}\n\n{match['tail']}"

    return _BLOCK.sub(renew, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0 on success, 1 for stale tables (``--check``), 2 for errors."""
    parser = argparse.ArgumentParser(prog="python -m experiments.tables", description="Renew generated tables.")
    parser.add_argument("files", nargs="+", type=Path, help="Markdown files with markers")
    parser.add_argument(
        "--results", type=Path, default=Path("experiments/results"), help="folder of run_seeds.py's records"
    )
    parser.add_argument("--check", action="store_true", help="change nothing, fail where a table is stale")
    args = parser.parse_args(argv)
    stale = []
    try:
        for path in args.files:
            old = path.read_text(encoding="utf-8")
            new = update(old, args.results)
            if new != old:
                stale.append(path)
                if not args.check:
                    path.write_text(new, encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in stale:
        print(f"{path}: {'stale' if args.check else 'renewed'}")
    return 1 if stale and args.check else 0


def _main_caption(summary: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], counts: set[int], p: bool) -> str:
    rows = list(rows)
    seeds = sorted({seed for row in rows if row["kind"] != "command" for seed in row["finished_seeds"]})
    words = [f"Spearman × 100, {_origin(rows)}"]
    if max(counts) > 1:
        words.append(f"mean ± standard deviation over the seeds {', '.join(map(str, seeds))}")
    elif seeds:
        words.append(f"one seed ({', '.join(map(str, seeds))})")
    words.append("each configuration chosen on STS-B dev, the test sets scored once")
    if p:
        base = summary["experiments"][summary["baseline"]]["title"]
        words.append(f"p: against {base}")
    return "; ".join(words) + "."


def _origin(experiments: Iterable[Mapping[str, Any]]) -> str:
    """Return the trained rows' backbone and corpus. A file named wiki… is a stand-in for wiki1m_for_simcse."""
    experiments = list(experiments)
    trained = [row for row in experiments if row["kind"] != "command"] or experiments
    backbones = sorted({name for row in trained for name in row.get("backbone", [])})
    corpora = {(corpus["name"], corpus["rows"]): None for row in experiments for corpus in row.get("corpus", [])}
    names = " and ".join(f"{name} ({rows:,} {_unit(name)})" if rows else name for name, rows in corpora)
    stand_in = "" if corpora and not all(name.startswith("wiki") for name, _ in corpora) else "stand-in Wikipedia "
    return f"backbone {' and '.join(backbones) or 'unknown'}, {stand_in}corpus {names or 'unknown'}"


def _unit(corpus: str) -> str:
    return "sentences" if ".txt" in Path(corpus).suffixes else "rows"


def _assembled(caption: str, head: Sequence[str], body: Sequence[Sequence[str]], words: bool = False) -> str:
    return "\n".join([caption, "", *markdown(head, body, words)])


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], words: bool = False) -> list[str]:
    """Return the table's lines. Columns after the first are aligned to the right, columns of ``words`` to the left."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in [head, *body]]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|---|" + ("---|" if words else "---:|") * (len(head) - 1), *lines[1:]]


def _p_value(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
