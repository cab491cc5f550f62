"""Read the papers' printed scores from ``papers.yaml``, which a report shows beside ours."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

#: The paper that a method comes from; SimCSE's rows are printed by all of them.
_HOME = {"diffcse": "DiffCSE", "infocse": "InfoCSE", "informin": "InforMin-CL", "msse": "MSSE"}


@dataclass(frozen=True)
class PaperRow:
    """A row of a paper's table.

    Arguments:
        source: paper and table.
        backbone: such as ``BERT-base``.
        method: a csekit method, or ``untrained``.
        label: the row's name in the paper.
        scores: column to score, as printed; ×100 for correlations, accuracies and retrieval.
    """

    source: str
    backbone: str
    method: str
    label: str
    scores: dict[str, float]


@cache
def paper_table(name: str) -> tuple[PaperRow, ...]:
    """Return all rows of ``sts``, ``transfer``, ``stsb_retrieval``, ``beir`` or ``geometry``.

    Raises:
        ValueError: another name.
    """
    tables = yaml.safe_load((Path(__file__).parent / "papers.yaml").read_text(encoding="utf-8"))
    if name not in tables:
        raise ValueError(f"name must be one of {sorted(tables)}, got {name!r}")
    columns = tables[name]["columns"]
    return tuple(
        PaperRow(**{**row, "scores": dict(zip(columns, row["scores"], strict=True))}) for row in tables[name]["rows"]
    )


def rows_beside(name: str, methods: Iterable[str | None], backbones: Iterable[str | None]) -> list[PaperRow]:
    """Choose the papers' rows to show beside runs of these methods on these backbones.

    A method gets the rows of its own paper, with that paper's SimCSE; SimCSE alone gets the first paper's row. An
    unknown method (joint objectives, a plain encoder) gets every paper's. The rows are those on the runs' backbones,
    or on BERT-base if the papers have none of them.
    """
    rows = paper_table(name)
    printed = {row.backbone.lower() for row in rows}
    wanted = {known for backbone in backbones if (known := _backbone(backbone)) in printed} or {"bert-base"}
    methods = {method or "" for method in methods}
    sources = [paper for method, paper in _HOME.items() if method in methods]
    everything = not methods <= {*_HOME, "simcse"}
    found: list[PaperRow] = []
    for row in rows:
        paper = row.source.partition(",")[0]
        own = _HOME.get(row.method) == paper
        if everything:
            fits = own or row.method in ("simcse", "untrained")
        elif sources:
            fits = paper in sources and (row.method in methods or row.method == "simcse")
        else:
            fits = row.method in ("simcse", "untrained")
        same = any(
            (other.method, other.backbone, other.scores) == (row.method, row.backbone, row.scores) for other in found
        )
        if fits and row.backbone.lower() in wanted and not same:
            found.append(row)
    return found


def _backbone(name: str | None) -> str:
    """Shorten a name: bert-base-uncased to ``bert-base``, FacebookAI/roberta-large to ``roberta-large``."""
    words = (name or "").lower().rpartition("/")[2].split("-")
    return "-".join(words[:2])
