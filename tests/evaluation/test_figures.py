"""Figures of embedding spaces hold what they are given; their files are small and the same again."""

import builtins
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from csekit.evaluation import figures
from csekit.evaluation.clustering import LABELS, TopicMap
from csekit.evaluation.plotting import save_figure

RNG = np.random.default_rng(0)
GOLD = np.linspace(0, 5, 60)
COSINES = np.clip(GOLD / 6 + RNG.normal(0, 0.1, 60), -1, 1)


def topic_map(seed: int = 0) -> TopicMap:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(20), 6)
    middles = np.array([(40 * (i % 4), 20 * (i // 4)) for i in range(20)], dtype=float)
    return TopicMap(middles[labels] + rng.normal(size=(120, 2)), labels, labels // 2, LABELS)


def boxes(figure: Figure) -> list[Any]:
    """The places of all annotations, in pixels."""
    figure.draw_without_rendering()
    return [Text.get_window_extent(text) for axis in figure.axes for text in axis.texts]  # without lines to points


def overlaps(figure: Figure) -> int:
    found = boxes(figure)
    return sum(a.overlaps(b) for i, a in enumerate(found) for b in found[i + 1 :])


def test_violins_stand_at_the_medians_of_their_groups() -> None:
    figure = figures.cosine_violins({"one": (COSINES, GOLD), "two": (COSINES / 2, GOLD)})
    for axis, scale in zip(figure.axes, (1, 0.5), strict=True):
        dots = [line.get_xydata()[0] for line in axis.lines if line.get_marker() == "o"]
        for place, (low, high) in enumerate([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5.1)]):
            group = scale * COSINES[(low <= GOLD) & (high > GOLD)]
            assert dots[place] == pytest.approx([np.median(group), place])
        assert len(axis.collections) == 5
    assert figure.axes[0].get_yticklabels()[0].get_text() == "0–1\nn = 12"
    assert figures.cosine_violins({"flat": (np.ones(60), GOLD)}).axes  # no spread, no violin, no error


def test_points_have_their_score_as_colour_and_names_that_do_not_overlap() -> None:
    points = {f"encoder {i}": (0.2 + 0.001 * i, -2.0 - 0.01 * (i % 3), 50.0 + i) for i in range(6)}
    figure = figures.alignment_uniformity(points)
    drawn = figure.axes[0].collections[0]
    np.testing.assert_allclose(drawn.get_offsets(), [(u, a) for a, u, _ in points.values()])
    np.testing.assert_allclose(drawn.get_array(), [50, 51, 52, 53, 54, 55])
    assert {text.get_text() for text in figure.axes[0].texts} == {f"encoder {i}: {50 + i}.0" for i in range(6)}
    assert overlaps(figure) == 0


def test_one_far_score_does_not_take_the_colours_from_the_others() -> None:
    scores = [55.0, 57.0, 58.0, 59.0, 60.0, 82.0]
    points = {f"encoder {i}": (0.2 + 0.01 * i, -2.0, score) for i, score in enumerate(scores)}
    figure = figures.alignment_uniformity(points)
    drawn = figure.axes[0].collections[0]
    assert (drawn.norm.vmin, drawn.norm.vmax) == (55, 60)
    assert drawn.colorbar.extend == "max"
    even = figures.alignment_uniformity({name: (a, u, 50.0 + i) for i, (name, (a, u, _)) in enumerate(points.items())})
    assert even.axes[0].collections[0].colorbar.extend == "neither"


def test_each_name_stands_in_a_column_of_its_own_with_a_line_to_its_point() -> None:
    points = {f"encoder {i}": (0.26 + 1e-5 * i, -2.7 - 1e-4 * i, 58.0 + i / 10) for i in range(10)}
    figure = figures.alignment_uniformity(points)
    assert overlaps(figure) == 0
    axis = figure.axes[0]
    right = axis.get_window_extent().x1
    for text in axis.texts:
        alignment, uniformity, _ = points[text.get_text().rpartition(":")[0]]
        assert text.xy == (uniformity, alignment)
        assert text.arrow_patch is not None
        assert Text.get_window_extent(text).x0 > right


@pytest.mark.parametrize("count", [1, 2, 4, 5, 7, 13, 16])
def test_no_panel_is_alone_in_the_last_row(count: int) -> None:
    figure = figures.cosine_violins({str(i): (COSINES[::6], GOLD[::6]) for i in range(count)})
    panels = [axis for axis in figure.axes if axis.axison]
    rows = [axis.get_subplotspec().rowspan.start for axis in panels]
    assert len(panels) == count
    assert count == 1 or rows.count(max(rows)) > 1 or [axis for axis in figure.axes if not axis.axison]


def test_the_legend_takes_the_free_cells_of_the_last_row() -> None:
    figure = figures.topic_maps({str(i): topic_map(i) for i in range(5)}, "labels", legend=True)
    *maps, free = figure.axes
    assert len(maps) == 5
    assert tuple(text.get_text() for text in free.get_legend().get_texts()) == LABELS
    figure.draw_without_rendering()
    box = free.get_legend().get_window_extent()
    assert not any(box.overlaps(axis.get_window_extent()) for axis in maps)


def test_maps_by_cluster_and_by_label() -> None:
    maps = {"one": topic_map(), "two": topic_map(1)}
    by_cluster = figures.topic_maps(maps)
    for axis in by_cluster.axes:
        looks = {(to_hex(c.get_facecolor()[0]), len(c.get_paths()[0].vertices)) for c in axis.collections}
        assert len(axis.collections) == 10
        assert len(looks) == 10  # no two clusters look alike
        assert sum(len(c.get_offsets()) for c in axis.collections) == 120
        assert not axis.texts
    by_label = figures.topic_maps(maps, "labels")
    assert overlaps(by_label) == 0
    first, second = ([to_hex(c.get_facecolor()[0]) for c in axis.collections] for axis in by_label.axes)
    assert first == second
    assert len(first) == 20
    for axis in by_label.axes:
        assert {text.get_text() for text in axis.texts} == set(LABELS)
    one_place = TopicMap(RNG.normal(size=(120, 2)), topic_map().labels, topic_map().clusters, LABELS)
    crowded = figures.topic_maps({"all in one place": one_place}, "labels")
    assert overlaps(crowded) == 0 and 5 < len(crowded.axes[0].texts) <= 20
    with pytest.raises(ValueError, match="by must be 'clusters' or 'labels', got 'colour'"):
        figures.topic_maps(maps, "colour")


def test_a_legend_explains_the_labels_in_place_of_names() -> None:
    figure = figures.topic_maps({"one": topic_map()}, "labels", legend=True)
    (legend,) = figure.legends
    assert tuple(text.get_text() for text in legend.get_texts()) == LABELS
    assert not figure.axes[0].texts
    colours = [to_hex(c.get_facecolor()[0]) for c in figure.axes[0].collections]
    assert [to_hex(handle.get_facecolor()[0]) for handle in legend.legend_handles] == colours
    many = TopicMap(np.zeros((50, 2)), np.arange(50), np.zeros(50, dtype=int), tuple(map(str, range(50))))
    with pytest.raises(ValueError, match="labels must be at most 49 to have a colour and a marker each, got 50"):
        figures.topic_maps({"one": many}, "labels")


def test_files_are_small_and_the_same_again(tmp_path: Path) -> None:
    first = save_figure(figures.topic_maps({"one": topic_map()}), tmp_path / "a.png").read_bytes()
    second = save_figure(figures.topic_maps({"one": topic_map()}), tmp_path / "b.png").read_bytes()
    assert first == second
    assert len(first) < 300_000
    image = Image.open(BytesIO(first)).convert("RGB")
    seen = {f"#{r:02X}{g:02X}{b:02X}" for _, (r, g, b) in image.getcolors(1 << 24)}
    assert image.width > 400
    assert "#FFFFFF" in seen
    assert len(seen) > 20
    figure = figures.topic_maps({"one": topic_map()})
    with pytest.raises(ValueError, match=r"path must end in .png, got 'a.svg'"):
        save_figure(figure, tmp_path / "a.svg")
    with pytest.raises(ValueError, match=r"b.png must have at most 10 bytes, got"):
        save_figure(figure, tmp_path / "b.png", max_bytes=10)
    assert (tmp_path / "b.png").read_bytes() == second
    assert "matplotlib.pyplot" not in sys.modules  # no display, no global figure


def test_drawing_leaves_the_callers_style(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    save_figure(figures.cosine_violins({"one": (COSINES, GOLD)}), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"figures need matplotlib: pip install 'csekit\[plots\]'"):
        figures.cosine_violins({"one": (COSINES, GOLD)})


def test_labels_and_titles_are_written_as_they_are() -> None:
    """Labels that begin with "_" were not in the legend; text between two dollar signs was set as mathematics."""
    from csekit.evaluation.clustering import TopicMap

    points, groups = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2] * 2)
    map_ = TopicMap(points, groups, groups, ("_private", "a", "b"))
    figure = figures.topic_maps({"from $1 to $2": map_}, "labels", legend=True)
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend() is not None)]
    assert [text.get_text() for text in legends[0].get_texts()] == ["_private", "a", "b"]
    assert not figure.axes[0].title.get_parse_math()
