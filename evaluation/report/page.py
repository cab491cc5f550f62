"""Build one self-contained HTML page about runs: scores, curves, figures, nearest neighbours, settings.

Shape suffixes: N sentences, H embedding size.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import csekit
from csekit.encoding.provenance import write_atomically
from csekit.evaluation.report.charts import line_chart, style
from csekit.evaluation.report.runs import ReportRun, compared_by
from csekit.evaluation.report.tables import score_tables, settings_tables

_TEMPLATES = Path(__file__).parent / "templates"
_IMAGES = {".png": "image/png", ".svg": "image/svg+xml"}
_DEV_LABELS = {
    "stsb_spearman": ("STS-B dev", "Spearman × 100"),
    "dev_spearman": ("Dev set", "Spearman × 100"),
    "transfer_accuracy": ("Transfer, dev side", "accuracy × 100"),
    "mlm_accuracy": ("Held-out masked tokens", "accuracy"),
}
#: Criteria without labels. They are diagnostics unless a run was selected by one of them.
_CRITERIA = {
    "alignment": ("Alignment of two dropout views", "E‖x − x⁺‖²"),
    "uniformity": ("Uniformity", "log E exp(−2‖x − y‖²)"),
    "effective_rank": ("Effective rank", "dimensions"),
}
_DIAGNOSTIC_LABELS = {
    "grad_norm": ("Gradient norm", "norm before clipping"),
    "learning_rate": ("Learning rate", "rate"),
    "metrics/positive_cosine": ("Batch: cosine of the positives", "mean cosine"),
    "metrics/negative_cosine": ("Batch: cosine of the negatives", "mean cosine"),
    "metrics/alignment": ("Batch: alignment", "E‖x − x⁺‖²"),
    "metrics/uniformity": ("Batch: uniformity", "log E exp(−2‖x − y‖²)"),
    "metrics/identical_texts": ("Batch: rows with a text twice", "rows"),
}
_WITHOUT = {
    "STS": "csekit eval RUN --tasks sts --output RUN/sts.json",
    "pairs": "csekit eval RUN --pairs FILE --output RUN/pairs.json",
    "transfer": "csekit eval RUN --tasks transfer --output RUN/transfer.json",
    "classification": "csekit eval RUN --classification TRAIN TEST --output RUN/classification.json",
    "retrieval": "csekit eval RUN --retrieval FOLDER --output RUN/retrieval.json",
    "mteb": "csekit eval RUN --tasks mteb:NAME --output RUN/mteb.json",
    "geometry": "csekit geometry RUN --output RUN/geometry.json",
}


@dataclass(frozen=True)
class SearchData:
    """The data of the page's nearest-neighbour search.

    Arguments:
        name: name of the corpus.
        sentences: N distinct strings.
        embeddings: label of a run to (N, H), any floating type. Runs that are not in it have no search.
        total: number of sentences in the corpus.
    """

    name: str
    sentences: Sequence[str]
    embeddings: Mapping[str, np.ndarray]
    total: int


def quantise(embeddings_NH: np.ndarray) -> np.ndarray:
    """Quantise to (N, H) int8: each row is scaled so that its largest number is ±127. Cosines change by < 0.01.

    Raises:
        ValueError: a value that is not finite.
    """
    x_NH = np.asarray(embeddings_NH, dtype=np.float64)
    if not np.isfinite(x_NH).all():
        raise ValueError("embeddings must be finite")
    largest = np.abs(x_NH).max(axis=1, keepdims=True)
    return np.rint(x_NH * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)


def find_figures(runs: Sequence[ReportRun], given: Sequence[str | Path] = ()) -> list[Path]:
    """List the given PNG and SVG files, those in given folders, and those in ``figures/`` of the runs.

    Raises:
        FileNotFoundError: no such file or folder.
        ValueError: a file of another kind.
    """
    found: dict[Path, None] = {}
    for path in map(Path, given):
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such figure")
        if path.is_file() and path.suffix not in _IMAGES:
            raise ValueError(f"{path}: a figure must be .png or .svg")
        found |= dict.fromkeys(_pictures(path) if path.is_dir() else [path])
    for run in runs:
        if run.folder is not None:
            found |= dict.fromkeys(_pictures(run.folder / "figures"))
    return list(found)


def _pictures(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in _IMAGES)


def build_report(
    runs: Sequence[ReportRun],
    *,
    title: str = "csekit report",
    search: SearchData | None = None,
    figures: Sequence[str | Path] = (),
    note: str = "nearest neighbours (--corpus sentences.txt)",
) -> str:
    """Build the page as a string. Text from runs, sentences and file names is escaped; a content security policy
    allows the page's own script and no request.

    Size: embeddings take N·H·4/3 bytes per run, figures 4/3 of their files; the rest is some 100 kB.

    Arguments:
        runs: from ``read_run``, with different labels.
        search: sentences with their embeddings.
        figures: PNG or SVG files.
        note: what the page names as left out if it has no search.

    Raises:
        ValueError: no runs, a label twice, embeddings that do not fit the sentences, a figure of another kind.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    labels = [run.label for run in runs]
    if not labels or len(set(labels)) < len(labels):
        raise ValueError(f"runs must be one or more with different labels, got {labels}")
    css, js = ((_TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    templates = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    tables, absent = score_tables(runs)
    charts, diagnostics = _charts(runs)
    without = [label for label in labels if search is not None and label not in search.embeddings]
    left_out = [f"{kind} scores ({_WITHOUT[kind]})" for kind in absent]
    left_out += [] if charts or diagnostics else ["a training log"]
    left_out += [] if search is not None else [note]
    left_out += [] if figures else ["figures (--figures FOLDER)"]
    return templates.get_template("report.html").render(
        title=title,
        policy=f"default-src 'none'; img-src data:; style-src {_hash(css)}; script-src {_hash(js)}",
        css=Markup(css),
        js=Markup(js),
        version=csekit.__version__,
        runs=[_card(run, i) for i, run in enumerate(runs)],
        swatch=lambda run: Markup(_swatch(run["index"])),
        tables=tables,
        left_out=left_out,
        charts=[{**chart, "svg": Markup(chart["svg"])} for chart in charts],
        diagnostics=[{**chart, "svg": Markup(chart["svg"])} for chart in diagnostics],
        columns=_columns,
        search=_search(search, labels, Markup) if search is not None and search.embeddings else None,
        no_search=[f"{label}: no encoder here, so no neighbours." for label in without],
        figures=[_figure(Path(path)) for path in figures],
        settings=settings_tables(runs),
    )


def write_report(path: str | Path, page: str, max_megabytes: float = 20.0) -> Path:
    """Write the page atomically.

    Raises:
        ValueError: the page is larger than ``max_megabytes``, or the file's name does not end in .html.
    """
    path, data = Path(path), page.encode("utf-8")
    check_page_name(path)
    if not len(data) <= max_megabytes * 1e6:  # also for nan
        raise ValueError(
            f"{path.name} would take {len(data) / 1e6:.1f} MB, more than --max_megabytes {max_megabytes:g}: give "
            "fewer --sentences, runs or figures, or raise it"
        )
    write_atomically(path, data)
    return path


def check_page_name(path: Path) -> None:
    """Raise ValueError unless the name ends in .html."""
    if path.suffix != ".html":
        raise ValueError(f"output must end in .html, got {path.name!r}")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"


def _card(run: ReportRun, i: int) -> dict[str, Any]:
    return {"label": run.label, "index": i, "facts": _facts(run), "missing": run.missing}


def _figure(path: Path) -> dict[str, str]:
    if path.suffix not in _IMAGES:
        raise ValueError(f"figures must end in {' or '.join(_IMAGES)}, got {path.name!r}")
    data = base64.b64encode(path.read_bytes()).decode()
    caption = path.stem.replace("_", " ").replace("-", " ")
    return {"uri": f"data:{_IMAGES[path.suffix]};base64,{data}", "caption": caption}


def _swatch(i: int) -> str:
    colour, dash = style(i)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<svg class="swatch" data-run="{i}" viewBox="0 0 30 12" aria-hidden="true">'
        f'<line x1="0" x2="30" y1="6" y2="6" stroke="{colour}" stroke-width="4"{dashes}/></svg>'
    )


def _search(search: SearchData, labels: Sequence[str], markup: Any) -> dict[str, Any]:
    sides = []
    for label, embeddings_NH in search.embeddings.items():
        if embeddings_NH.ndim != 2 or len(embeddings_NH) != len(search.sentences):
            raise ValueError(
                f"embeddings of {label!r} must be ({len(search.sentences)}, H), got shape {embeddings_NH.shape}"
            )
        data = base64.b64encode(quantise(embeddings_NH).tobytes()).decode()
        sides.append(
            {"label": label, "index": labels.index(label), "size": embeddings_NH.shape[1], "embeddings": data}
        )
    content = json.dumps({"sentences": list(search.sentences), "runs": sides}, ensure_ascii=False)
    for sign in "<>&\u2028\u2029":  # so that no sentence ends the script element
        content = content.replace(sign, f"\\u{ord(sign):04x}")
    return {"name": search.name, "sentences": search.sentences, "total": search.total, "json": markup(content)}


def _facts(run: ReportRun) -> list[tuple[str, str]]:
    """Describe the run in a few lines."""
    content, found = run.content, []
    for name in ("method", "backbone", "seed"):
        if content.get(name) is not None:
            found.append((name, str(content[name])))
    corpus = content.get("corpus")
    if corpus:
        rows = f", {corpus['used']:,} rows used" if isinstance(corpus.get("used"), int) else ""
        found.append(("corpus", f"{corpus.get('name')}{rows}"))
    steps = [int(points[-1][0]) for points in (run.losses or run.dev).values() if points]
    if steps:
        found.append(("steps", f"{max(steps):,}"))
    dev = content.get("dev") or {}
    if dev.get("best") is not None:
        found.append(("best dev", f"{dev['best']:.2f} at step {dev.get('step')} ({dev.get('metric')})"))
    if dev.get("worse_than_untrained"):
        metric = compared_by(dev)
        untrained = "" if metric is None else f", whose {metric} is {dev['before'][metric]:.2f}"
        found.append(("warning", f"worse than the untrained encoder{untrained}"))
    test = content.get("test") or {}
    if test.get("avg") is not None:
        found.append(("STS Avg", f"{test['avg']:.2f}"))
    train = (content.get("seconds") or {}).get("train")
    if train is not None:
        found.append(("training", f"{train:,.0f} s"))
    return found


def _charts(runs: Sequence[ReportRun]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw (loss terms and dev scores, diagnostics): one chart per name, one line per run."""
    styles = {run.label: style(i) for i, run in enumerate(runs)}
    kept = {
        run.label: float(dev.get("step") or 0) for run in runs if (dev := run.content.get("dev") or {}).get("metric")
    }

    def chart(kind: str, name: str, title: str, y_label: str, marks: Mapping[str, float] | None) -> dict[str, Any]:
        lines = {run.label: points for run in runs if (points := getattr(run, kind).get(name))}
        log = kind == "losses" or name == "grad_norm"
        return {"title": title, "svg": line_chart(lines, styles, title, y_label, marks, may_be_log=log)}

    def names(kind: str) -> list[str]:
        return sorted({name for run in runs for name in getattr(run, kind)})

    selected = {(run.content.get("dev") or {}).get("metric") for run in runs}
    criteria = [name for name in _CRITERIA if name in names("dev") and name not in selected]
    order = [*_DEV_LABELS, *_CRITERIA]
    main = []
    for name in sorted(names("dev"), key=lambda name: order.index(name) if name in order else len(order)):
        if name not in criteria:
            title, y_label = (_DEV_LABELS | _CRITERIA).get(name, (f"Dev: {name.replace('_', ' ')}", "score"))
            main.append(chart("dev", name, title, y_label, kept))
    several = any(len(run.losses) > 2 for run in runs)  # the sum of one term is that term
    for name in names("losses"):
        if name == "loss" and not several and names("losses") != ["loss"]:
            continue
        title = "Loss, all terms" if name == "loss" else f"Loss: {name.removeprefix('loss/')}"
        main.append(chart("losses", name, title, "weighted loss", None))
    other = [chart("dev", name, *_CRITERIA[name], kept) for name in criteria]
    for name in names("diagnostics"):
        values = {value for run in runs for _, value in run.diagnostics.get(name, ())}
        if values != {0.0}:
            words = name.removeprefix("metrics/").replace("_", " ")
            other.append(
                chart("diagnostics", name, *_DIAGNOSTIC_LABELS.get(name, (f"Batch: {words}", words)), marks=None)
            )
    return [c for c in main if c["svg"]], [c for c in other if c["svg"]]


def _columns(count: int) -> str:
    """Return the class of a grid in whose last row no chart is alone."""
    if count == 1:
        return "one"
    return "two" if count in (2, 4) else "three"
