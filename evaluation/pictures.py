"""Draw pictures of embedding spaces from the results files of ``csekit geometry``."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from csekit.encoding.schema import check_schema
from csekit.evaluation import figures
from csekit.evaluation.clustering import TopicMap
from csekit.evaluation.plotting import save_figure
from csekit.evaluation.results import read_results, read_similarities
from csekit.evaluation.results_schema import GeometryResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawings = Mapping[str, "Callable[[Path], Figure]"]


#: Folders of ``csekit geometry``'s files below the results folder: of STS-B and the titles, of a labelled file.
GEOMETRY = Path("evaluation", "geometry")
LABELLED = Path("evaluation", "labelled")


class NoResults(FileNotFoundError):
    """The results files of a picture are missing."""


def geometry_files(results_dir: Path) -> dict[Path, dict[str, Any]]:
    """Read the files of ``csekit geometry``, sorted by Spearman on their pairs: encoders without a correlation, which
    give every text one vector, then the lowest.

    Arguments:
        results_dir: the folder of results, or the one that holds these files themselves.

    Raises:
        NoResults: there are none.
        ValueError: a file that cannot be read, or two of one title.
    """
    read = {path: read_results(path) for path in _files(results_dir, GEOMETRY)}
    found = {path: content for path, content in read.items() if "geometry" in content}
    if not found:
        raise NoResults(f"{Path(results_dir) / GEOMETRY}: holds no results (run csekit geometry first)")
    for path, content in found.items():
        check_schema(GeometryResults, content, path)
    _check_titles(found)
    scores = {path: content["geometry"]["spearman"] for path, content in found.items()}
    return dict(sorted(found.items(), key=lambda item: -math.inf if (s := scores[item[0]]) is None else s))


def _files(results_dir: Path, room: Path) -> list[Path]:
    """Return the results files in a room of the results folder; without that room, in the folder itself."""
    folder = Path(results_dir) / room
    found = sorted((folder if folder.is_dir() else Path(results_dir)).glob("*.json"))
    return [path for path in found if path.name != "summary.json"]


def draw_all(
    known: Drawings, results_dir: str | Path, output_dir: str | Path, names: Sequence[str] = ()
) -> tuple[list[Path], dict[str, str]]:
    """Draw pictures from results files and write ``NAME.png``.

    Arguments:
        known: picture name to the function that draws it from the folder of results.
        results_dir: folder of results files.
        names: names in ``known``. Empty: all pictures that have results files.

    Returns:
        the written files, and the reason for each picture that was left out.

    Raises:
        ValueError: an unknown name.
        NoResults: a named picture has no results files.
    """
    results_dir, output_dir = Path(results_dir), Path(output_dir)
    if not results_dir.is_dir():
        raise NoResults(f"results must be a folder, got {str(results_dir)!r}")
    for name in names:
        if name not in known:
            raise ValueError(f"pictures must be among {', '.join(known)}, got {name!r}")
    written, missing = [], {}
    for name in names or known:
        try:
            written.append(save_figure(known[name](results_dir), output_dir / f"{name}.png"))
        except NoResults as error:
            if names:
                raise
            missing[name] = str(error)
    return written, missing


def draw(
    results_dir: str | Path, output_dir: str | Path, names: Sequence[str] = ()
) -> tuple[list[Path], dict[str, str]]:
    """Draw the pictures of ``GEOMETRY_PICTURES``; see :func:`draw_all`."""
    return draw_all(GEOMETRY_PICTURES, results_dir, output_dir, names)


def _of_one_set(contents: Iterable[Mapping[str, Any]]) -> str:
    """Return the set that all were measured on. Raises ValueError for several sets, thresholds or text forms."""
    found = [content["geometry"] for content in contents]
    for name in ("set", "threshold", "text_form"):
        values = sorted({str(geometry.get(name)) for geometry in found})
        if len(values) > 1:
            raise ValueError(f"geometry results must be of one {name} to share a picture, got {' and '.join(values)}")
    return str(found[0]["set"])


def _check_titles(files: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise ValueError for two files of one title: a picture names encoders by it and would show one of them."""
    known: dict[str, Path] = {}
    for path, content in files.items():
        if (other := known.setdefault(content["title"], path)) != path:
            raise ValueError(
                f"{path}: title must not be that of {other.name}, got {content['title']!r} (csekit geometry --title)"
            )


def cosine_by_rating(results_dir: Path) -> "Figure":
    """Draw the violins of all encoders."""
    files = geometry_files(results_dir)
    source = _of_one_set(files.values())
    models = {content["title"]: _similarities(path, source) for path, content in files.items()}
    return figures.cosine_violins(models, source=source)


def _similarities(path: Path, source: str) -> tuple[Any, Any]:
    found = read_similarities(path)
    if source not in found:
        raise ValueError(f"{path}: similarities must hold {source!r}, got {sorted(found)}")
    return found[source]


def alignment_uniformity(results_dir: Path) -> "Figure":
    """Plot all encoders by alignment and uniformity."""
    files = geometry_files(results_dir)
    source = _of_one_set(files.values())
    rows = {content["title"]: content["geometry"] for content in files.values()}
    points = {title: (row["alignment"], row["uniformity"], row["spearman"]) for title, row in rows.items()}
    return figures.alignment_uniformity(points, f"{source}, Spearman × 100", source)


def labelled_maps(results_dir: Path, by: str) -> "Figure":
    """Draw the maps of the files of ``csekit geometry --labelled``, lowest V-measure first.

    Raises:
        NoResults: there are none.
        ValueError: they are of several labelled files, or two have one title.
    """
    folder = Path(results_dir) / LABELLED
    read = {path: read_results(path) for path in _files(results_dir, LABELLED)}
    found = {path: each for path, each in read.items() if "clustering" in each and "geometry" not in each}
    contents = list(found.values())
    if not contents:
        raise NoResults(f"{folder}: holds no results (run csekit geometry --labelled FILE first)")
    sets = sorted({content["clustering"]["set"] for content in contents})
    if len(sets) > 1:
        raise ValueError(f"{folder} must hold results of one labelled file, got {' and '.join(sets)}")
    files = {content["clustering"].get("checksum"): path.name for path, content in found.items()}
    if len(files) > 1:  # the checksum is of texts and of the labels' places
        first, second, *_ = files.values()
        raise ValueError(
            f"{folder} must hold results of one labelled file, got other contents in {first} and {second}"
        )
    _check_titles(found)
    maps = _titled_maps(sorted(contents, key=lambda content: float(content["clustering"]["v_measure"])))
    if not maps:
        raise NoResults(f"{folder}: no results with a map (run csekit geometry --labelled FILE with --points above 0)")
    if len({map_.names for map_ in maps.values()}) > 1:
        raise ValueError(f"{folder} must hold results of one labelled file, got several lists of labels")
    if by == "labels" and max(len(map_.names) for map_ in maps.values()) > figures.MOST_LABELS:
        raise NoResults(f"{folder}: more than {figures.MOST_LABELS} labels, which no picture can tell apart")
    return figures.topic_maps(maps, by, legend=True)


def _titled_maps(contents: Iterable[Mapping[str, Any]]) -> dict[str, TopicMap]:
    """Return the map of each results file that has one, by title and V-measure."""
    maps = {}
    for content in contents:
        clustering = content.get("clustering") or {}
        if "map" in clustering:
            title = f"{content['title']}\nV-measure {clustering['v_measure']:.1f}"
            maps[title] = TopicMap.from_dict(clustering["map"])
    return maps


def _maps(results_dir: Path) -> dict[str, TopicMap]:
    maps = _titled_maps(geometry_files(results_dir).values())
    if not maps:
        raise NoResults(f"{results_dir / GEOMETRY}: no results with a map (run csekit geometry with --clustering)")
    return maps


#: Picture name to the function that draws it.
GEOMETRY_PICTURES: Drawings = {
    "cosine-by-rating": cosine_by_rating,
    "alignment-uniformity": alignment_uniformity,
    "tsne-clusters": lambda folder: figures.topic_maps(_maps(folder), "clusters"),
    "tsne-labels": lambda folder: figures.topic_maps(_maps(folder), "labels", legend=True),
    "labelled-clusters": lambda folder: labelled_maps(folder, "clusters"),
    "labelled-labels": lambda folder: labelled_maps(folder, "labels"),
}
