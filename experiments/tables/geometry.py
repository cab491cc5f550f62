"""Tables of the results of ``csekit geometry``: geometry of the embeddings, and clustering."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.evaluation.pictures import GEOMETRY, NoResults, geometry_files

Table = tuple[str, list[str], list[list[str]]]


def geometry_table(results_dir: Path) -> Table:
    """Return caption, head and rows: one row for each encoder, the lowest Spearman first.

    Raises:
        NoResults: nothing was measured.
        ValueError: results of several sets or thresholds.
    """
    rows = list(geometry_files(results_dir).values())
    first = _common(rows, "geometry", ("set", "threshold", "text_form", "positives", "sentences"))
    head = ["", "alignment", "uniformity", "mean cosine", "effective rank", "Spearman × 100"]
    body = []
    for content in rows:
        scores = content["geometry"]
        cells = [f"{scores[name]:.3f}" for name in ("alignment", "uniformity", "mean_cosine")]
        spearman = "–" if scores["spearman"] is None else f"{scores['spearman']:.2f}"
        body.append([content["title"], *cells, f"{scores['effective_rank']:.1f}", spearman])
    caption = (
        f"{first['set']}, {first['text_form']} text. Alignment: the {first['positives']} pairs with a gold score "
        f"above {first['threshold']:g}; the next three columns: its {first['sentences']:,} distinct sentences."
    )
    return caption, head, body


def clustering_table(results_dir: Path) -> Table:
    """Return caption, head and rows: one row for each encoder, in the order of :func:`geometry_table`.

    Raises:
        NoResults: nothing was measured.
        ValueError: results of several settings.
    """
    rows = [content for content in geometry_files(results_dir).values() if "clustering" in content]
    if not rows:
        raise NoResults(f"{results_dir / GEOMETRY}: no results with clusters (run csekit geometry with --clustering)")
    first = _common(rows, "clustering", ("set", "titles", "labels", "clusters", "restarts", "seed", "checksum"))
    head = ["", "V-measure", "homogeneity", "completeness", "accuracy"]
    body = [
        [content["title"], *(f"{content['clustering'][name.lower().replace('-', '_')]:.2f}" for name in head[1:])]
        for content in rows
    ]
    caption = (
        f"{first['titles']:,} titles of {first['set']}, {first['labels']} labels; K-Means with K = "
        f"{first['clusters']}, the best of {first['restarts']} starts, seed {first['seed']}; percentages. Accuracy: "
        "clusters and labels matched one to one."
    )
    return caption, head, body


def _common(rows: Iterable[Mapping[str, Any]], section: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the settings that all rows share. Raise ValueError where one differs."""
    found = [{name: row[section][name] for name in names} for row in rows]
    for name in names:
        values = sorted({repr(settings[name]) for settings in found})
        if len(values) > 1:
            raise ValueError(f"{section} results must share one {name}, got {' and '.join(values)}")
    return found[0]
