"""Cluster labelled texts: K-Means, V-measure, accuracy after matching, silhouette, and a t-SNE map.

Shape suffixes: N titles, M mapped titles, H embedding size, K clusters, C labels.

scikit-learn's parallel sums depend on the order in which threads finish. Everything here runs on one thread, so that a
seed gives the same digits. The global random state does not change.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.encoder import Encoder, embed
from csekit.evaluation.pairs import normal, read_lines
from csekit.evaluation.sts_data import find_folder

#: Titles of the StackOverflow set (Xu et al. 2017); 1,000 of each label.
TITLES = 20_000
#: Names of the labels 1 to 20.
LABELS = (
    "wordpress",
    "oracle",
    "svn",
    "apache",
    "excel",
    "matlab",
    "visual-studio",
    "cocoa",
    "osx",
    "bash",
    "spring",
    "hibernate",
    "scala",
    "sharepoint",
    "ajax",
    "qt",
    "drupal",
    "linq",
    "haskell",
    "magento",
)


@dataclass(frozen=True)
class ClusteringOptions:
    """Options of the clustering.

    Arguments:
        clusters: K of K-Means. None: the number of labels, for which matched accuracy is meant.
        restarts: number of K-Means runs; the one with the lowest inertia is kept.
        points: number of titles on the t-SNE map, drawn by the seed; 0: no map.
        point_clusters: K of K-Means over the map's titles, which gives their colours (MSSE, Fig. 4: 30).
        perplexity: perplexity of t-SNE.
        seed: seed of K-Means, t-SNE and the draw of titles.
    """

    clusters: int | None = None
    restarts: int = 5
    points: int = 1000
    point_clusters: int = 30
    perplexity: float = 30.0
    seed: int = 42

    def __post_init__(self) -> None:
        for name, least in (("clusters", 2), ("restarts", 1), ("point_clusters", 2), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.points and not 0 < self.perplexity < self.points:
            raise ValueError(f"perplexity must lie between 0 and points ({self.points}), got {self.perplexity:g}")
        if self.points and self.points < self.point_clusters:
            raise ValueError(f"points must be 0 or at least point_clusters ({self.point_clusters}), got {self.points}")


@dataclass(frozen=True)
class TopicMap:
    """Titles in two dimensions.

    Arguments:
        points: (M, 2).
        labels: (M,) places in ``names``.
        clusters: (M,) from 0.
        names: names of the labels.
    """

    points: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values with one string per point, ``x y label cluster``."""
        rows = zip(self.points, self.labels, self.clusters, strict=True)
        return {"names": list(self.names), "points": [f"{x:.2f} {y:.2f} {label} {c}" for (x, y), label, c in rows]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "TopicMap":
        """Read the result of ``to_dict``. Raises ValueError for anything else."""
        try:
            table = np.array([[float(word) for word in row.split()] for row in content["points"]]).reshape(-1, 4)
            whole = table[:, 2:].astype(int)
            return cls(table[:, :2], whole[:, 0], whole[:, 1], tuple(content["names"]))
        except (KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"map must hold names and points 'x y label cluster': {error}") from error


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with labels.

    Arguments:
        name: name of the set.
        texts: N texts.
        labels: (N,) places in ``names``.
        names: names of the labels.
    """

    name: str
    texts: tuple[str, ...]
    labels: np.ndarray
    names: tuple[str, ...]

    def checksum(self) -> str:
        """Return the sha256 of texts and labels."""
        state = hashlib.sha256()
        for text, label in zip(self.texts, self.labels, strict=True):
            state.update(f"{text}\t{label}\n".encode())
        return state.hexdigest()


@dataclass(frozen=True)
class ClusteringScores:
    """The scores of :func:`clustering_suite`, in percent.

    Arguments:
        titles, labels, clusters: their numbers.
        v_measure: harmonic mean of homogeneity and completeness (Rosenberg & Hirschberg 2007).
        accuracy: share of titles in a cluster that is matched with their label, see :func:`matched_accuracy`.
        silhouette: mean silhouette of the labels over the map's rows by cosine distance, from −1 to 1 and not in
            percent; None without a map, or if it is not defined there.
        map: the t-SNE map, None if ``points`` is 0.
        truncated: number of titles that were cut, None if the encoder does not report it.
        checksum: sha256 of titles and labels.
        name: name of the set.
    """

    options: ClusteringOptions
    titles: int
    labels: int
    clusters: int
    v_measure: float
    homogeneity: float
    completeness: float
    accuracy: float
    silhouette: float | None
    map: TopicMap | None
    truncated: int | None
    checksum: str
    name: str = "StackOverflow"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file."""
        options = self.options
        found = {
            "set": self.name,
            "titles": self.titles,
            "labels": self.labels,
            "clusters": self.clusters,
            "restarts": options.restarts,
            "seed": options.seed,
            "v_measure": self.v_measure,
            "homogeneity": self.homogeneity,
            "completeness": self.completeness,
            "accuracy": self.accuracy,
            "silhouette": self.silhouette,
            "truncated": self.truncated,
            "checksum": self.checksum,
        }
        if self.map is None:
            return found
        drawn = {"clusters": options.point_clusters, "perplexity": options.perplexity, **self.map.to_dict()}
        return {**found, "map": drawn}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal: score, value."""
        rows = [
            [f"V-measure (K = {self.clusters})", f"{self.v_measure:.2f}"],
            ["  homogeneity", f"{self.homogeneity:.2f}"],
            ["  completeness", f"{self.completeness:.2f}"],
            [f"accuracy, clusters matched (K = {self.clusters})", f"{self.accuracy:.2f}"],
        ]
        if self.map is not None and self.silhouette is not None:
            rows.append([f"silhouette of the labels ({len(self.map.points)} texts)", f"{self.silhouette:.3f}"])
        return [f"{self.name}, {self.titles} texts", "value"], rows


def load_stackoverflow(data_dir: str | Path) -> tuple[list[str], np.ndarray]:
    """Load the 20,000 titles and their labels.

    Arguments:
        data_dir: the folder with ``title_StackOverflow.txt`` and ``label_StackOverflow.txt``, or one that holds it as
            ``stackoverflow/``, or a sibling of it.

    Returns:
        titles, and labels (N,) as places in ``LABELS``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a wrong count (names file, expected, found), an empty title, a label outside 1 to 20.
    """
    root = find_folder(data_dir, "title_StackOverflow.txt", ("stackoverflow", "", "../stackoverflow"))
    if root is None:
        where = Path(data_dir) / "stackoverflow" / "title_StackOverflow.txt"
        raise FileNotFoundError(f"{where}: no such file, needed for clustering")
    files = {name: root / f"{name}_StackOverflow.txt" for name in ("title", "label")}
    lines = {name: read_lines(path) for name, path in files.items()}
    for name, path in files.items():
        if len(lines[name]) != TITLES:
            raise ValueError(f"{path}: expected {TITLES} lines, found {len(lines[name])}")
    allowed = {str(number): number - 1 for number in range(1, len(LABELS) + 1)}
    for i, (title, label) in enumerate(zip(lines["title"], lines["label"], strict=True), 1):
        if not title.strip():
            raise ValueError(f"{files['title']}, line {i}: must hold a title, the line is blank")
        if label.strip() not in allowed:
            raise ValueError(f"{files['label']}, line {i}: must be a label from 1 to {len(LABELS)}, got {label!r}")
    return [normal(title) for title in lines["title"]], np.array([allowed[label.strip()] for label in lines["label"]])


def clustering_suite(
    encoder: Encoder, data_dir: str | Path, options: ClusteringOptions | None = None, progress: bool = False
) -> ClusteringScores:
    """Cluster the StackOverflow titles by their embeddings, rows normalised.

    Arguments:
        encoder: as for ``evaluate_sts``.
        data_dir: as for ``load_stackoverflow``.

    Raises:
        ValueError, FileNotFoundError: what ``load_stackoverflow`` and ``embed`` raise.
    """
    return cluster_titles(encoder, *load_stackoverflow(data_dir), options, progress)


def cluster_titles(
    encoder: Encoder,
    titles: list[str],
    labels: np.ndarray,
    options: ClusteringOptions | None = None,
    progress: bool = False,
) -> ClusteringScores:
    """Score titles and labels of ``load_stackoverflow`` as :func:`clustering_suite` does."""
    return cluster_texts(encoder, LabelledTexts("StackOverflow", tuple(titles), labels, LABELS), options, progress)


def cluster_texts(
    encoder: Encoder, texts: LabelledTexts, options: ClusteringOptions | None = None, progress: bool = False
) -> ClusteringScores:
    """Cluster labelled texts by their embeddings, rows normalised.

    Raises:
        ValueError: what ``embed`` and :func:`score_clusters` raise.
    """
    return score_clusters(
        embed(encoder, list(texts.texts), progress),
        texts.labels,
        options or ClusteringOptions(),
        names=texts.names,
        truncated=getattr(encoder, "truncated", None),
        checksum=texts.checksum(),
        name=texts.name,
    )


def score_clusters(
    embeddings: np.ndarray,
    labels: np.ndarray,
    options: ClusteringOptions,
    names: tuple[str, ...] = LABELS,
    truncated: int | None = None,
    checksum: str = "",
    name: str = "StackOverflow",
) -> ClusteringScores:
    """Cluster any embeddings with labels and score the clusters.

    Arguments:
        embeddings: (N, H).
        labels: (N,) places in ``names``.

    Raises:
        ValueError: more clusters than rows.
    """
    from sklearn.metrics import homogeneity_completeness_v_measure

    unit_NH = unit_rows(embeddings)
    count = len(np.unique(labels))
    clusters = options.clusters or count
    found_N = kmeans(unit_NH, clusters, options.restarts, options.seed)
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure(labels, found_N)
    return ClusteringScores(
        options=options,
        titles=len(labels),
        labels=count,
        clusters=clusters,
        v_measure=100 * float(v_measure),
        homogeneity=100 * float(homogeneity),
        completeness=100 * float(completeness),
        accuracy=100 * matched_accuracy(labels, found_N),
        silhouette=_silhouette(unit_NH, labels, options) if options.points else None,
        map=topic_map(unit_NH, labels, options, names) if options.points else None,
        truncated=truncated,
        checksum=checksum,
        name=name,
    )


def topic_map(
    embeddings: np.ndarray, labels: np.ndarray, options: ClusteringOptions, names: tuple[str, ...] = LABELS
) -> TopicMap:
    """Map drawn rows by t-SNE and cluster them by K-Means.

    Arguments:
        embeddings: (N, H), rows of length 1.
        labels: (N,) places in ``names``.
    """
    drawn = _drawn(len(labels), options)
    clusters = kmeans(embeddings[drawn], options.point_clusters, options.restarts, options.seed)
    points = tsne(embeddings[drawn], options.perplexity, options.seed)
    return TopicMap(points, labels[drawn], clusters, tuple(names))


def _drawn(rows: int, options: ClusteringOptions) -> np.ndarray:
    """Draw the rows of the map, ascending."""
    return np.sort(np.random.default_rng(options.seed).permutation(rows)[: options.points])


def _silhouette(unit: np.ndarray, labels: np.ndarray, options: ClusteringOptions) -> float | None:
    """Return the mean silhouette (Rousseeuw 1987) of the labels over the map's rows, None for one label or as many as
    rows."""
    from sklearn.metrics import silhouette_score
    from threadpoolctl import threadpool_limits

    drawn = _drawn(len(labels), options)
    if not 2 <= len(np.unique(labels[drawn])) < len(drawn):
        return None
    with threadpool_limits(1):
        return float(silhouette_score(unit[drawn], labels[drawn], metric="cosine"))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Scale rows to length 1, float32; a zero row stays zero."""
    x = np.asarray(x, dtype=np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def kmeans(x: np.ndarray, clusters: int, restarts: int = 5, seed: int = 42) -> np.ndarray:
    """Return the cluster of each row, (N,), numbered from 0.

    Raises:
        ValueError: more clusters than rows.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if clusters > len(x):
        raise ValueError(f"clusters must be at most the {len(x)} rows, got {clusters}")
    with threadpool_limits(1):
        return np.asarray(KMeans(clusters, n_init=restarts, random_state=seed).fit_predict(x))


def matched_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Return the share of rows whose cluster is matched with their label, under the best one-to-one matching of
    clusters and labels (Hungarian algorithm). Clusters beyond the number of labels have no match.

    Arguments:
        labels, clusters: (N,) whole numbers.
    """
    from scipy.optimize import linear_sum_assignment

    labels, clusters = np.asarray(labels), np.asarray(clusters)
    if labels.shape != clusters.shape or labels.ndim != 1 or not len(labels):
        raise ValueError(f"labels and clusters must be (N,) both, got {labels.shape} and {clusters.shape}")
    label_names, rows = np.unique(labels, return_inverse=True)
    cluster_names, columns = np.unique(clusters, return_inverse=True)
    table_CK = np.zeros((len(label_names), len(cluster_names)), dtype=np.int64)
    np.add.at(table_CK, (rows, columns), 1)
    return float(table_CK[linear_sum_assignment(table_CK, maximize=True)].sum() / len(labels))


def tsne(x: np.ndarray, perplexity: float = 30.0, seed: int = 42) -> np.ndarray:
    """Map rows to (M, 2) by t-SNE (van der Maaten & Hinton 2008), starting from their principal components.

    Equal rows, which have no components, stay in one point."""
    if not np.ptp(x, axis=0).any():
        return np.zeros((len(x), 2))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return np.asarray(TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(x))
