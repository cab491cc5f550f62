import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from csekit.evaluation import ReportRun, SearchData, build_report, read_run, write_report, write_results
from csekit.evaluation.report.charts import line_chart, nice_ticks, style, tick_labels
from csekit.evaluation.report.page import find_figures, quantise

RESULTS: dict[str, Any] = {
    "method": "informin",
    "backbone": "mini",
    "seed": 7,
    "corpus": {"name": "texts.txt", "used": 1000, "checksum": "a" * 64},
    "config": {"temperature": 0.05, "objectives": [{"name": "reconstruction", "weight": 0.4}]},
    "arguments": {"learning_rate": 3e-5},
    "environment": {"python": "3.11.0", "versions": {"torch": "2.13.0"}},
    "log": [
        {"step": s, "epoch": s / 9, "loss": 3.0 / s, "loss/contrastive": 2.0 / s, "loss/reconstruction": 1.0 / s}
        for s in (1, 2, 3)
    ],
    "dev": {
        "metric": "stsb_spearman",
        "best": 71.5,
        "step": 2,
        "before": {"stsb_spearman": 60.0},
        "history": [{"step": 2, "stsb_spearman": 71.5, "value": 71.5}, {"step": 3, "stsb_spearman": 70, "value": 70}],
    },
    "test": {"tasks": {"STS12": {"all": 51.234}, "STS-B": {"all": 61.5}}, "avg": None, "text_form": "tokenized"},
    "seconds": {"train": 12.0},
}


def folder_of(path: Path, results: dict[str, Any] | None = None, **more: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "modules.json").write_text("[]")
    if results is not None:
        write_results(path / "results.json", results)
    for name, content in more.items():
        write_results(path / f"{name}.json", content)
    return path


class _Texts(HTMLParser):
    """Elements by name, and the cells of each table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.rows: list[list[str]] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False


def test_a_run_with_everything(tmp_path: Path) -> None:
    metrics = {"recall@10": 30.0, "recall@5": 20.0, "ndcg@10": 12.5}
    retrieval = {"scifact": {"metrics": metrics, "queries": 300, "documents": 5183}}
    transfer = {"tasks": {"MR": {"accuracy": 70.25}, "CR": {"accuracy": 80.0}}, "avg": 75.125, "mode": "test"}
    path = folder_of(
        tmp_path / "a",
        RESULTS,
        other={"transfer": transfer, "retrieval": retrieval, "test": {"tasks": {"no": {"all": 1.0}}}},
    )
    run = read_run(path, "ours")
    assert set(run.losses) == {"loss", "loss/contrastive", "loss/reconstruction"}
    assert run.missing == ("the test scores of other.json are left out: those of results.json are shown",)
    assert run.losses["loss/contrastive"] == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3, abs=1e-6))]
    assert run.dev == {"stsb_spearman": [(0, 60), (2, 71.5), (3, 70)]}
    page = build_report([run])
    rows = {row[0]: row[1:] for row in _Texts(page).rows if row and row[0] not in ("run", "ours")}
    ours = [row[1:] for row in _Texts(page).rows if row and row[0] == "ours"]
    assert ours == [["51.23", "61.50", "71.50"], ["70.25", "80.00", "75.12"], ["12.50", "20.00", "30.00"]]
    assert "frozen embeddings, test mode." in page
    assert ["run", "STS12", "STS-B", "STS-B dev"] in _Texts(page).rows
    assert rows["InforMin-CL-BERT-baseInforMin-CL, Table 2"] == ["70.22", "79.27", "–"]
    assert rows["InfoCSE baseInfoCSE, Table 3"] == ["32.69", "–", "–"]
    assert ["run", "ndcg@10", "recall@5", "recall@10"] in _Texts(page).rows
    assert rows["corpus.checksum"] == ["aaaaaaaaaaaa…"]
    assert rows["objectives"] == ["name reconstruction, weight 0.4"] and rows["versions.torch"] == ["2.13.0"]
    for title in ("Loss, all terms", "Loss: contrastive", "Loss: reconstruction", "STS-B dev"):
        assert f"<figcaption>{title}</figcaption>" in page
    assert page.count('class="mark"') == 1 and "ours: kept, step 2: 71.5" in page
    assert str(tmp_path) not in page


def test_dev_and_test_accuracies_have_a_table_each(tmp_path: Path) -> None:
    """They shared one, whose best number was bold, beside the papers' test accuracies."""
    runs = []
    for mode, accuracy in (("dev", 90.25), ("test", 70.25), ("test", 70.5)):
        scores = {"transfer": {"tasks": {"MR": {"accuracy": accuracy}}, "avg": None, "mode": mode}}
        path = write_results(tmp_path / f"{accuracy}.json", RESULTS | scores)
        runs.append(read_run(path, str(accuracy)))
    page = build_report(runs)
    test, dev = page.split('id="table-transfer-test"')[1].split('id="table-transfer-dev"')
    assert "90.25" not in _Texts(test).rows[1]
    assert [row[:2] for row in _Texts(test).rows[:3]] == [["run", "MR"], ["70.25", "70.25"], ["70.5", "70.50"]]
    assert re.findall(r'class="[^"]*best[^"]*"[^>]*>([^<]*)<', test)[:1] == ["70.50"]
    rows = _Texts(dev.split("</table>")[0]).rows
    assert rows == [["run", "MR"], ["90.25", "90.25"]]


def test_missing_parts_say_so(tmp_path: Path) -> None:
    encoder = read_run(folder_of(tmp_path / "encoder"), "encoder")
    assert encoder.missing == (
        "no results.json: not a run of csekit", "no training log, so no curves", "no scores")  # fmt: skip
    write_results(tmp_path / "alone.json", RESULTS)
    alone = read_run(tmp_path / "alone.json", "alone")
    assert alone.missing == ("no encoder, so no nearest neighbours",)
    page = build_report([encoder, alone])
    assert "Without such scores: encoder." in page
    (left_out,) = re.findall(r"Not on this page: (.*)\.</p>", page)
    assert [part.split(" (")[0] for part in left_out.split("; ")] == [
        "pairs scores",
        "transfer scores",
        "classification scores",
        "retrieval scores",
        "mteb scores",
        "geometry scores",
        "nearest neighbours",
        "figures",
    ]
    assert "<script>" not in page
    assert re.findall('<section id="([a-z]+)">', page) == ["runs", "scores", "curves", "settings"]
    page = build_report([encoder])
    assert re.findall('<section id="([a-z]+)">', page) == ["runs"]
    assert "a training log" in page
    with pytest.raises(FileNotFoundError, match=r"neither results\.json, nor"):
        (tmp_path / "empty").mkdir()
        read_run(tmp_path / "empty", "x")
    with pytest.raises(FileNotFoundError, match="no such run folder"):
        read_run(tmp_path / "nowhere", "x")
    with pytest.raises(ValueError, match="different labels"):
        build_report([alone, alone])


def test_a_run_that_goes_on_shows_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (4, 8):
        checkpoint = tmp_path / f"run/training/checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        history = [{"step": s, "loss": 1 / s, "loss/contrastive": 1 / s, "epoch": 0.1} for s in range(2, step + 1, 2)]
        history += [{"step": s, "eval_dev_spearman": 60.0 + s, "eval_runtime": 1, "epoch": 0.1} for s in (4, step)]
        state = {"global_step": step, "log_history": history, "best_model_checkpoint": str(tmp_path)}
        (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    run = read_run(tmp_path / "run", "going")
    assert run.losses["loss"][-1] == (8, 0.125) and run.dev == {"dev_spearman": [(4, 64), (8, 68)]}
    assert run.missing[0] == "no results.json: the run is not finished"
    page = build_report([run])
    assert "Loss: contrastive" in page
    assert "Loss, all terms" not in page
    assert str(tmp_path) not in page


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror=hack()>&amp;\u2028"


def test_nothing_from_outside_becomes_markup(tmp_path: Path) -> None:
    results = {**RESULTS, "method": HOSTILE, "backbone": HOSTILE, "config": {HOSTILE: HOSTILE}}
    results["log"] = [{"step": s, "loss": 1.0, f"loss/{HOSTILE}": 1.0, HOSTILE: 2.0} for s in (1, 2)]
    write_results(tmp_path / "r.json", results)
    picture = tmp_path / "<b> figure.svg"
    picture.write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>window.hacked = 1</script></svg>")
    run = read_run(tmp_path / "r.json", HOSTILE)
    search = SearchData(HOSTILE, [HOSTILE, "<b>", "c"], {HOSTILE: np.eye(3)}, 9)
    page = build_report([run], title=HOSTILE, search=search, figures=[picture])
    found = _Texts(page)
    assert found.count["script"] == 2
    assert found.count["img"] == 1
    assert "b" not in found.count
    assert "window.hacked = 1</script>" not in page and "<b>" not in page
    assert not [name for name, _ in found.attributes if name.startswith("on") or name == "style"]
    outside = [value for name, value in found.attributes if name in ("src", "href") and value]
    assert all(value.startswith(("#", "data:")) for value in outside)
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["sentences"] == [HOSTILE, "<b>", "c"] and "\u2028" not in data


def test_embeddings_are_rounded_to_bytes() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 64)) * 10.0 ** rng.integers(-6, 6, size=(200, 1))
    x[7] = 0
    q = quantise(x).astype(float)
    assert np.abs(q).max(axis=1)[[6, 7]].tolist() == [127, 0]
    unit = lambda a: a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-300)  # noqa: E731
    assert np.abs(unit(q) @ unit(q).T - unit(x) @ unit(x).T).max() < 0.01
    with pytest.raises(ValueError, match="finite"):
        quantise(np.array([[np.nan]]))
    run = ReportRun("a", None)
    with pytest.raises(ValueError, match=r"embeddings of 'a' must be \(2, H\), got shape \(3, 4\)"):
        build_report([run], search=SearchData("c", ["x", "y"], {"a": np.ones((3, 4))}, 2))


def test_the_page_is_no_larger_than_allowed(tmp_path: Path) -> None:
    page = build_report([ReportRun("a", None)], search=SearchData("c", ["x", "y"], {"a": np.ones((2, 60_000))}, 2))
    assert 160_000 < len(page) < 190_000
    with pytest.raises(ValueError, match=r"would take 0.2 MB, more than --max_megabytes 0.1"):
        write_report(tmp_path / "r.html", page, 0.1)
    assert not list(tmp_path.iterdir())
    assert write_report(tmp_path / "r.html", page).read_text(encoding="utf-8") == page
    with pytest.raises(ValueError, match=r"must end in \.html"):
        write_report(tmp_path / "r.htm", page)


def test_figures_are_given_or_found(tmp_path: Path) -> None:
    run = read_run(folder_of(tmp_path / "run", RESULTS), "run")
    for name in ("run/figures/a.png", "more/b.svg", "more/c.txt", "d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = find_figures([run], [tmp_path / "d.png", tmp_path / "more", tmp_path / "d.png"])
    assert [path.name for path in found] == ["d.png", "b.svg", "a.png"]
    with pytest.raises(ValueError, match=r"must be .png or .svg"):
        find_figures([], [tmp_path / "more/c.txt"])
    with pytest.raises(FileNotFoundError, match="no such figure"):
        find_figures([], [tmp_path / "e.png"])


def test_figures_may_be_names_of_files(tmp_path: Path) -> None:
    """A name, as the runs and the page take one, ended in AttributeError, and a JPEG in KeyError."""
    picture = tmp_path / "a.png"
    picture.write_bytes(b"pixels")
    assert "data:image/png;base64,cGl4ZWxz" in build_report([ReportRun("a", None)], figures=[str(picture)])
    with pytest.raises(ValueError, match=r"figures must end in .png or .svg, got 'a.jpg'"):
        build_report([ReportRun("a", None)], figures=[tmp_path / "a.jpg"])


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(svg).findall("polyline")
    return [[tuple(map(float, p.split(","))) for p in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def test_charts_place_their_points() -> None:
    looks = {"a": style(0), "b": style(1)}
    svg = line_chart({"a": [(0, 0.0), (50, 5.0), (100, 10.0)]}, looks, "T")
    ((first, middle, last),) = points(svg)
    assert middle == ((first[0] + last[0]) / 2, (first[1] + last[1]) / 2) and first[1] > last[1]
    svg = line_chart({"a": [(0, 1.0), (1, 10.0), (2, 100.0)], "b": [(1, 10.0)]}, looks, "T", "y", may_be_log=True)
    ((first, middle, last),) = points(svg)
    assert "y (log scale)" in svg and middle[1] == pytest.approx((first[1] + last[1]) / 2, abs=0.11)
    assert "log scale" not in line_chart({"a": [(0, 0.0), (2, 100.0)]}, looks, "T", "y", may_be_log=True)
    broken = points(line_chart({"a": [(0, 1), (1, 2), (2, math.nan), (3, 2), (4, 1)]}, looks, "T"))
    assert [len(line) for line in broken] == [2, 2]
    assert line_chart({"a": [(0, math.nan)]}, looks, "T") == line_chart({}, looks, "T") == ""
    for value in (0.0, -3.0, 1e-7, 1e9):
        ElementTree.fromstring(line_chart({"a": [(5, value)]}, looks, "<T>&", marks={"a": 5}))
    assert len({style(i) for i in range(32)}) == 32


def test_a_run_without_sts_begins_with_its_dev_scores_before_and_after(tmp_path: Path) -> None:
    dev = {"metric": "dev_spearman", "best": 64.36, "step": 4, "history": [{"step": 4, "dev_spearman": 64.36}]}
    dev |= {
        "before": {"dev_spearman": 43.13, "uniformity": -0.001},
        "after": {"dev_spearman": 64.36, "uniformity": -2.66},
    }
    write_results(tmp_path / "own.json", {**RESULTS, "test": None, "before": None, "retrieval": None, "dev": dev})
    run = read_run(tmp_path / "own.json", "own")
    assert run.missing == ("no encoder, so no nearest neighbours",)
    page = build_report([run])
    assert _Texts(page).rows[:3] == [
        ["run", "dev set", "uniformity"],
        ["own, before", "43.13", "0.00"],
        ["own", "64.36", "−2.66"],
    ]
    scores = page[page.index('<section id="scores">') : page.index('<section id="curves">')]
    assert 'class="missing"' not in scores


def test_ticks_of_an_axis_have_the_same_decimals_and_all_differ() -> None:
    assert tick_labels([-2.95, -2.9, -2.85]) == (["−2.95", "−2.90", "−2.85"], "")
    assert tick_labels([-4.502e-5, -4.5e-5, -4.498e-5]) == (["−4.502", "−4.500", "−4.498"], "× 10⁻⁵")
    assert tick_labels([0, 0.5, 1]) == (["0", "0.5", "1.0"], "")
    assert tick_labels([0, 250000, 500000]) == (["0", "2.5", "5.0"], "× 10⁵")


def test_no_chart_is_alone_in_the_last_row(tmp_path: Path) -> None:
    write_results(tmp_path / "run.json", RESULTS)
    page = build_report([read_run(tmp_path / "run.json", "run")])
    grids = re.findall(r'<div class="charts (one|two|three)">(.*?)</div>', page, re.DOTALL)
    assert grids
    for columns, charts in grids:
        count = charts.count("<figure>")
        assert count == 1 or count % {"two": 2, "three": 3}[columns] != 1


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.07, -2.9), (59.2, 73.4), (1e-5, 3e-4), (5, 5), (0, 0), (0, 1563)]
)
def test_ticks_are_round_and_reach_over_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    widths = np.diff(ticks)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert 2 <= len(ticks) <= 8
    assert widths == pytest.approx(widths[0]) and float(f"{widths[0]:.1e}") == pytest.approx(widths[0])
