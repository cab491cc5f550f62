"""Build the tables of a report: scores of the runs and of the papers, settings, environment."""

from collections.abc import Mapping, Sequence
from typing import Any

from csekit.evaluation.report.papers import PaperRow, paper_table, rows_beside
from csekit.evaluation.report.runs import ReportRun
from csekit.evaluation.retrieval_data import kind_and_cutoff
from csekit.evaluation.sts_data import STS_TASKS

_TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
_NOT_COMPARABLE = "The papers' rows are of other backbones, corpora and budgets: compare margins, not numbers."

#: Columns in which the lowest number is the best.
_LOWER = ("alignment", "uniformity")

Scores = Mapping[str, float | None]

#: Scores of pairs of one's own, and their columns.
PAIR_SCORES = {"spearman": "Spearman", "pearson": "Pearson", "ap": "average precision", "accuracy": "accuracy"}

#: Columns of the dev table, in this order; others follow.
_DEV = {
    "stsb_spearman": "STS-B dev",
    "dev_spearman": "dev set",
    "transfer_accuracy": "transfer dev",
    "mlm_accuracy": "held-out tokens",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "effective_rank": "effective rank",
}


def score_tables(runs: Sequence[ReportRun]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return tables for the template, the dev scores before and after training first, and the kinds of scores that no
    run has."""
    tables, absent = _dev(runs), []
    kinds = {
        "STS": _sts,
        "pairs": _pairs,
        "transfer": _transfer,
        "classification": _classification,
        "retrieval": _retrieval,
        "mteb": _mteb,
        "geometry": _geometry,
    }
    for kind, make in kinds.items():
        found = make(runs)
        tables += found
        if not found:
            absent.append(kind)
    for table in tables:
        without = [run.label for run in runs if run.label not in {row["label"] for row in table["rows"]}]
        if without:
            table["caption"] += f" Without such scores: {', '.join(without)}."
    return tables, absent


def _papers(name: str, runs: Sequence[ReportRun]) -> list[PaperRow]:
    return rows_beside(
        name, [run.content.get("method") for run in runs], [run.content.get("backbone") for run in runs]
    )


def _table(
    name: str,
    title: str,
    caption: str,
    head: Sequence[str],
    ours: Sequence[tuple[str, str, Scores]],
    papers: Sequence[PaperRow],
    decimals: int = 2,
) -> dict[str, Any]:
    """Build a table with the columns ``head`` from our (label, kind, scores) and the papers' rows; the best of several
    runs is bold."""
    trained = [scores for _, kind, scores in ours if kind == "ours"]
    best = {}
    for column in head if len(trained) > 1 and decimals == 2 else ():
        values = [value for scores in trained if (value := scores.get(column)) is not None]
        best[column] = (min if column in _LOWER else max)(values) if len(values) > 1 else None

    def cells(scores: Scores, kind: str) -> list[dict[str, Any]]:
        shown = []
        for column in head:
            value = scores.get(column)
            text = "–" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")
            shown.append({"text": text, "best": kind == "ours" and value is not None and value == best.get(column)})
        return shown

    rows = [{"label": label, "kind": kind, "source": "", "cells": cells(s, kind)} for label, kind, s in ours]
    rows += [
        {"label": p.label, "kind": "paper", "source": p.source, "cells": cells(p.scores, "paper")} for p in papers
    ]
    caption += f" {_NOT_COMPARABLE}" if papers else ""
    return {"id": name, "title": title, "caption": caption, "head": list(head), "rows": rows}


def _dev(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    rows: list[tuple[str, str, Scores]] = []
    for run in runs:
        held = run.content.get("dev") or run.content.get("heldout") or {}
        sides = ((f"{run.label}, before", "before", "before"), (run.label, "ours", "after"))
        rows += [(label, kind, held[side]) for label, kind, side in sides if held.get(side)]
    if not rows:
        return []
    names = dict.fromkeys(name for _, _, scores in rows for name, value in scores.items() if value is not None)
    order = [name for name in _DEV if name in names] + [name for name in names if name not in _DEV]
    titles = {name: _DEV.get(name, name.replace("_", " ")) for name in order}
    shown = [(label, kind, {titles[name]: scores.get(name) for name in order}) for label, kind, scores in rows]
    caption = "Scores on the dev set, × 100."
    if {*_LOWER, "effective_rank"} & set(order):
        caption += " Alignment and uniformity (lower is better) and effective rank are of a sample of the corpus."
    return [_table("table-dev", "Dev set, before and after training", caption, list(titles.values()), shown, [])]


def _sts(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    rows: list[tuple[str, str, Scores]] = []
    for run in runs:
        for label, kind, section in ((f"{run.label}, before", "before", "before"), (run.label, "ours", "test")):
            scores = run.content.get(section)
            if not scores:
                continue
            found: dict[str, float | None] = {name: task.get("all") for name, task in scores["tasks"].items()}
            dev = run.content.get("dev") or {}
            at_end = (dev.get("after") or {}).get("stsb_spearman")
            if kind == "ours" and (at_end is not None or dev.get("metric") == "stsb_spearman"):
                found["STS-B dev"] = dev.get("best") if at_end is None else at_end
            rows.append((label, kind, {**found, "Avg": scores.get("avg")}))
    if not rows:
        return []
    names = list(dict.fromkeys(name for _, _, scores in rows for name, value in scores.items() if value is not None))
    head = [name for name in (*STS_TASKS, "Avg") if name in names]
    papers = _papers("sts", runs) if head else []
    head += [name for name in names if name not in head]
    forms = sorted({run.content["test"].get("text_form") or "unknown" for run in runs if run.content.get("test")})
    caption = f"Spearman × 100, one correlation over all pairs of a set; text: {', '.join(forms) or 'unknown'}."
    return [_table("table-sts", "Semantic textual similarity", caption, head, rows, papers)]


def _transfer(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Build a table for each mode: dev accuracies are of training rows, and no paper's table has them."""
    modes: dict[str, list[tuple[str, str, Scores]]] = {}
    for run in runs:
        scores = run.content.get("transfer")
        if scores:
            tasks = {name: _number(value) for name, value in (scores.get("tasks") or scores).items()}
            tasks.setdefault("Avg", _number(scores.get("avg")))
            row = {name: value for name, value in tasks.items() if value is not None}
            modes.setdefault(str(scores.get("mode") or "test"), []).append((run.label, "ours", row))
    tables = []
    for mode, rows in sorted(modes.items(), reverse=True):
        names = dict.fromkeys(name for _, _, scores in rows for name in scores)
        head = [name for name in (*_TRANSFER, "Avg") if name in names]
        caption = f"Accuracy × 100 of a logistic regression on the frozen embeddings, {mode} mode."
        title, papers = ("Transfer", _papers("transfer", runs)) if mode == "test" else (f"Transfer, {mode} mode", [])
        tables.append(_table(f"table-transfer-{mode}", title, caption, head, rows, papers))
    return tables


def _number(value: Any) -> float | None:
    """Return a number, or the score in a task's mapping."""
    if isinstance(value, Mapping):
        return next((_number(value[name]) for name in ("accuracy", "test", "all") if name in value), None)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _pairs(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Build a table for each file of pairs of one's own."""
    tables = []
    for i, (name, entries) in enumerate(_by_data(runs, "pairs")):
        columns = [column for column in PAIR_SCORES if any(entry.get(column) is not None for _, entry in entries)]
        rows: list[tuple[str, str, Scores]] = [
            (label, "ours", {PAIR_SCORES[column]: entry.get(column) for column in columns}) for label, entry in entries
        ]
        caption = f"Scores of the cosine × 100; {entries[0][1].get('n', '?')} pairs."
        head = [PAIR_SCORES[column] for column in columns]
        tables.append(_table(f"table-pairs-{i}", f"Pairs: {name}", caption, head, rows, []))
    return tables


def _classification(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Build a table for each task of one's own labelled texts."""
    tables = []
    for i, (name, entries) in enumerate(_by_data(runs, "own classification")):
        rows: list[tuple[str, str, Scores]] = [
            (label, "ours", {"accuracy": entry.get("accuracy")}) for label, entry in entries
        ]
        caption = (
            f"Accuracy × 100 of a logistic regression on the frozen embeddings; {entries[0][1].get('n', '?')} rows."
        )
        tables.append(_table(f"table-classification-{i}", f"Classification: {name}", caption, ["accuracy"], rows, []))
    return tables


def _mteb(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Build a table of the main scores of mteb's tasks."""
    found = {run.label: run.content["mteb"] for run in runs if run.content.get("mteb")}
    rows: list[tuple[str, str, Scores]] = [
        (label, "ours", {f"{name}, {entry.get('metric')}": entry.get("main_score") for name, entry in tasks.items()})
        for label, tasks in found.items()
    ]
    head = list(dict.fromkeys(name for _, _, scores in rows for name in scores))
    return [_table("table-mteb", "mteb", "Main score of each task × 100.", head, rows, [])] if rows else []


def _by_data(runs: Sequence[ReportRun], section: str) -> list[tuple[str, list[tuple[str, Mapping[str, Any]]]]]:
    """Group (label, scores) by the name and the checksum of the data: two files of one name may differ."""
    found: dict[tuple[str, Any], list[tuple[str, Mapping[str, Any]]]] = {}
    for run in runs:
        for name, entry in (run.content.get(section) or {}).items():
            found.setdefault((name, entry.get("checksum")), []).append((run.label, entry))
    return [(name, entries) for (name, _), entries in found.items()]


def _retrieval(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    tables = []
    for i, (name, entries) in enumerate(_by_data(runs, "retrieval")):
        rows: list[tuple[str, str, Scores]] = [(label, "ours", entry["metrics"]) for label, entry in entries]
        head = sorted({metric for _, _, scores in rows for metric in scores}, key=kind_and_cutoff)
        one = entries[0][1]
        caption = f"Scores × 100; {one.get('queries', '?')} queries, {one.get('documents', '?')} documents."
        papers = _retrieval_papers(name, runs)
        tables.append(_table(f"table-retrieval-{i}", f"Retrieval: {name}", caption, head, rows, papers))
    return tables


def _retrieval_papers(name: str, runs: Sequence[ReportRun]) -> list[PaperRow]:
    """Choose the papers' rows: InfoCSE has 97 queries, DiffCSE 194; only InfoCSE has BEIR's collections."""
    asked_by = {"STS-B, 97 queries": "InfoCSE", "STS-B, 194 queries": "DiffCSE"}
    if name in asked_by:
        return [row for row in paper_table("stsb_retrieval") if row.source.startswith(asked_by[name])]
    column = name.lower()
    base = [row for row in paper_table("beir") if column in row.scores and row.backbone == "BERT-base"]
    return [PaperRow(row.source, row.backbone, row.method, row.label, {"ndcg@10": row.scores[column]}) for row in base]


def _geometry(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    columns = {name: name.replace("_", " ") for name in ("alignment", "uniformity", "mean_cosine", "effective_rank")}
    rows: list[tuple[str, str, Scores]] = [
        (run.label, "ours", {title: entry.get(name) for name, title in columns.items()})
        for run in runs
        if (entry := run.content.get("geometry"))
    ]
    if not rows:
        return []
    sets = sorted({str(run.content["geometry"].get("set")) for run in runs if run.content.get("geometry")})
    caption = f"On {', '.join(sets)}. Alignment and uniformity: lower is better."
    return [
        _table(
            "table-geometry", "Geometry", caption, list(columns.values()), rows, _papers("geometry", runs), decimals=3
        )
    ]


def settings_tables(runs: Sequence[ReportRun]) -> list[dict[str, Any]]:
    """Build the tables of settings, one row per field; rows in which the runs differ are marked."""
    tables = []
    for title, sections in (
        (
            "Model and training",
            ("method", "backbone", "seed", "corpus", "positives", "config", "arguments", "seconds"),
        ),
        ("Environment", ("environment",)),
    ):
        flat = [_flat({name: run.content.get(name) for name in sections}) for run in runs]
        names = dict.fromkeys(name for fields in flat for name, value in fields.items() if value is not None)
        rows = []
        for name in names:
            values = [_shown(fields.get(name)) for fields in flat]
            rows.append({"name": name, "values": values, "differs": len(set(values)) > 1})
        if rows:
            tables.append({"title": title, "rows": rows})
    return tables


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names, without the prefixes ``config.``, ``arguments.``, ``environment.``."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, item in value.items():
        hidden = prefix in ("config", "arguments", "environment", "")
        found |= _flat(item, str(name) if hidden else f"{prefix}.{name}")
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "; ".join(_shown(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())
    if isinstance(value, str) and len(value) >= 40 and all(sign in "0123456789abcdef" for sign in value):
        return value[:12] + "…"  # a checksum or a commit
    return str(value)
