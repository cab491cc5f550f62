"""Hard negatives: for each pair, texts that an encoder finds close to the first text and that are not its positives.

All vectors are encoded once and lie on disk; blocks of queries are searched one after the other. Each finished block
is a file of its own, so that a killed run goes on where it stopped.

Shape suffixes: Q queries of a block, k candidates, P texts to search, D size of a vector.
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from csekit.encoding.encoder import TextEncoder
from csekit.encoding.provenance import write_atomically, write_json
from csekit.encoding.text_files import row_hashes
from csekit.evaluation.search import search_blocks
from csekit.modeling.settings import check_number
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.row_files import check_rows_file, make_parts, write_rows
from csekit.trainers.data.teachers import stored_vectors

#: Queries that are searched together, texts that are read together, and queries that a guide judges together.
BLOCK, READ, GUIDED = 2_048, 8_192, 64
#: Why a candidate is no negative, in the order in which the rules are applied.
RULES = ("positive", "same_text", "margin", "relative_margin", "max_score", "min_score", "guide")


@dataclass(frozen=True)
class Mining:
    """Settings of the search for hard negatives. Scores are cosines.

    Arguments:
        num_negatives: negatives of a pair, each a row of the output.
        range_min: number of the closest candidates that are skipped, counted behind all other rules.
        range_max: candidates behind this rank, counted before the other rules, are not taken; None: ten for each
            negative behind ``range_min`` if a score decides, else as many as negatives.
        margin: a negative's score is at most the positive's less this.
        relative_margin: the same, as a share of the positive's score.
        max_score, min_score: bounds of a negative's score.
        guide_margin: with a guide, its score of a negative is at most that of the positive less this.

    Raises:
        ValueError: a value that is not allowed.
    """

    num_negatives: int = 1
    range_min: int = 0
    range_max: int | None = None
    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    guide_margin: float = 0.0

    def __post_init__(self) -> None:
        check_number("num_negatives", self.num_negatives, 1)
        check_number("range_min", self.range_min, 0)
        for name, low, high in (("margin", -2, 2), ("relative_margin", -1, 1), ("max_score", -1, 1)):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low, high)
        if self.min_score is not None:
            check_number("min_score", self.min_score, -1, 1)
        check_number("guide_margin", self.guide_margin, -2, 2)
        if self.range_max is not None and self.range_max < self.range_min + self.num_negatives:
            raise ValueError(
                f"range_max must be at least range_min + num_negatives, {self.range_min + self.num_negatives}, "
                f"got {self.range_max}"
            )
        if None not in (self.min_score, self.max_score) and self.min_score > self.max_score:  # type: ignore[operator]
            raise ValueError(f"min_score must be at most max_score, {self.max_score}, got {self.min_score}")

    def candidates(self, most_positives: int, guided: bool) -> int:
        """Return the rank behind which no candidate is taken."""
        if self.range_max is not None:
            return self.range_max
        decides = guided or any(each is not None for each in (self.margin, self.relative_margin, self.max_score))
        return self.range_min + (10 if decides else 1) * self.num_negatives + most_positives


class Texts:
    """The texts of the pairs and of further files, as places in them; no text is kept in memory.

    Arguments:
        pairs: the corpus of pairs.
        further: a corpus of one column, or None.

    Attributes:
        queries: (U,) first row of each distinct first text.
        query_of: (N,) the query of each pair, an index into ``queries``.
        pool: (P,) places of the distinct texts that are searched: the second column, then the further corpus.
        positive_of: (N,) the positive of each pair, an index into ``pool``.
        own: (U,) the query's own text in the pool, −1 if it is not there.
    """

    def __init__(self, pairs: Corpus, further: Corpus | None) -> None:
        self.pairs, self.further = pairs, further
        anchors, positives = (self._hashes(pairs, column) for column in (0, 1))
        others = self._hashes(further, 0) if further is not None else np.zeros(0, dtype=np.uint64)
        found, self.queries, self.query_of = _in_order(anchors)
        self.rows = len(positives)
        pooled, self.pool, places = _in_order(np.concatenate([positives, others]))
        self.positive_of = places[: self.rows]
        order = np.argsort(pooled)
        spot = order[np.searchsorted(pooled, found, sorter=order).clip(max=len(pooled) - 1)]
        self.own = np.where(pooled[spot] == found, spot, -1)

    @staticmethod
    def _hashes(corpus: Corpus, column: int) -> np.ndarray:
        dataset: Any = corpus.dataset
        parts = [np.zeros(0, dtype=np.uint64)]
        for start in range(0, corpus.rows, READ):
            items = dataset.__getitems__(range(start, min(start + READ, corpus.rows)))
            parts.append(row_hashes([[item["texts"][column] for item in items]]).astype(np.uint64))
        return np.concatenate(parts)

    def anchors_at(self, rows: np.ndarray) -> list[str]:
        """Return the first texts of some pairs."""
        dataset: Any = self.pairs.dataset
        return [item["texts"][0] for item in dataset.__getitems__(rows.tolist())]

    def pool_at(self, indices: np.ndarray) -> list[str]:
        """Return the texts of some indices into ``pool``."""
        places = self.pool[indices]
        found: dict[int, str] = {}
        for corpus, first, column in ((self.pairs, 0, 1), (self.further, self.rows, 0)):
            inside = (places < self.rows) if first == 0 else (places >= self.rows)
            own = np.unique(places[inside])
            if corpus is not None and len(own):
                dataset: Any = corpus.dataset
                items = dataset.__getitems__((own - first).tolist())
                found |= {int(place): item["texts"][column] for place, item in zip(own, items, strict=True)}
        return [found[int(place)] for place in places]

    def chunks(self, which: str, start: int) -> Iterator[list[str]]:
        """Yield the queries or the pool from ``start`` on."""
        count = len(self.queries if which == "queries" else self.pool)
        for first in range(start, count, READ):
            places = np.arange(first, min(first + READ, count))
            yield self.anchors_at(self.queries[places]) if which == "queries" else self.pool_at(places)

    def digest(self, which: str) -> str:
        """Return the SHA-256 of the queries or of the pool."""
        state = hashlib.sha256()
        for texts in self.chunks(which, 0):
            for text in texts:
                state.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return state.hexdigest()


def _in_order(hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct values in the order of their first places, these places, and each value's index."""
    values, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return values[order], first[order], rank[inverse]


@dataclass(frozen=True)
class Vectors:
    """The vectors of one encoder: of the queries (U, D) and of the pool (P, D), memory-mapped."""

    queries: np.ndarray
    pool: np.ndarray

    def cosines(self, queries_Q: np.ndarray, pool_Qk: np.ndarray) -> np.ndarray:
        """Return the cosine of each query and its texts, (Q, k) float32."""
        parts = []
        for i in range(0, len(queries_Q), GUIDED):
            own_qD = _unit(self.queries[queries_Q[i : i + GUIDED]])
            found_qkD = _unit(self.pool[pool_Qk[i : i + GUIDED].reshape(-1)])
            shape = (*pool_Qk[i : i + GUIDED].shape, -1)
            parts.append(np.einsum("qd,qkd->qk", own_qD, found_qkD.reshape(shape)).astype(np.float32))
        return np.concatenate(parts)

    def positives(self, queries_N: np.ndarray, pool_N: np.ndarray) -> np.ndarray:
        """Return the cosine of each pair of a query and a text, (N,) float32."""
        return self.cosines(queries_N, pool_N[:, None])[:, 0]


def _unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)


def mine_negatives(
    pairs: Corpus,
    encoder: TextEncoder,
    target: Path,
    settings: Mining | None = None,
    *,
    further: Corpus | None = None,
    guide: TextEncoder | None = None,
    device: str | None = None,
    progress: bool = True,
) -> dict[str, int]:
    """Write triplets: each pair with each of its hard negatives, a row each, and settings and counts beside it.

    A query's candidates are the texts closest to it, among all positives and ``further``. Those that are its own text
    or one of its positives are left out, then those that a rule of ``settings`` leaves out; with several positives
    the margin is that of the least similar one. Vectors and finished blocks are in ``<target>.parts`` until the end;
    another call with the same texts, encoders and settings continues from them.

    Arguments:
        pairs: a corpus of two columns.
        target: a ``.jsonl`` or ``.csv`` file that does not exist yet.
        further: a corpus of one column, with further texts to search.
        guide: judges the candidates: one that it finds closer than the positive is taken for a positive.
        device: where vectors are compared; None: the GPU if there is one.

    Returns:
        counts: ``pairs``, ``triplets``, ``pairs_without`` a negative; candidates left out, by rule (``RULES``).

    Raises:
        ValueError: another number of columns, a target with another ending, parts of another run, no negative at all.
        FileExistsError: the target exists, or ``<target>.parts`` holds something else.
    """
    settings = settings or Mining()
    check_mining(pairs, target, further)
    parts = target.with_name(f"{target.name}.parts")
    if target.exists() and not parts.exists():
        raise FileExistsError(f"{target} exists already: move it away, or choose another name")
    make_parts(parts)
    texts = Texts(pairs, further)
    made = _settle(parts, texts, settings, encoder, guide)
    own = _vectors(texts, encoder, parts, "", made, progress)
    guided = None if guide is None else _vectors(texts, guide, parts, "guide-", made, progress)
    _search(parts, texts, settings, own, guided, device, progress)
    counts = _write(parts, target, texts)
    write_json(target.with_name(f"{target.name}.json"), made | {"counts": counts})
    done = parts.with_name(f"{parts.name}.done")  # a kill must not leave some of the parts under their name
    shutil.rmtree(done, ignore_errors=True)
    shutil.rmtree(parts.rename(done))
    return counts


def check_mining(pairs: Corpus, target: Path, further: Corpus | None = None) -> None:
    """Raise ValueError for a corpus or a target that :func:`mine_negatives` refuses."""
    check_rows_file(target)
    if len(pairs.columns) != 2:
        raise ValueError(
            f"{pairs.name} must have two columns, the query and its positive, got {', '.join(pairs.columns)}: name "
            "them with --columns"
        )
    if "negative" in pairs.columns:
        raise ValueError(f"{pairs.name}: the column 'negative' is the one that is written, got it among the pairs")
    if further is not None and len(further.columns) != 1:
        raise ValueError(f"{further.name} must have one column, got {', '.join(further.columns)}")


def _settle(
    parts: Path, texts: Texts, settings: Mining, encoder: TextEncoder, guide: TextEncoder | None
) -> dict[str, Any]:
    """Record what the parts are made of. Raises ValueError for parts of another run."""
    made: dict[str, Any] = {
        **asdict(settings),
        "pairs": texts.pairs.name,
        "further": None if texts.further is None else texts.further.name,
        "queries": {"rows": len(texts.queries), "sha256": texts.digest("queries")},
        "pool": {"rows": len(texts.pool), "sha256": texts.digest("pool")},
        "encoder": encoder.describe(),
        "guide": None if guide is None else guide.describe(),
    }
    made = json.loads(json.dumps(made))
    path = parts / "settings.json"
    if path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in made if old.get(name) != made[name]]
        if changed:
            name = changed[0]
            raise ValueError(
                f"{parts} holds parts of another run ({name}: {old.get(name)!r:.80} there, {made[name]!r:.80} now): "
                "delete it to start again"
            )
    else:
        write_json(path, made)
    return made


def _vectors(
    texts: Texts, encoder: TextEncoder, parts: Path, prefix: str, made: dict[str, Any], progress: bool
) -> Vectors:
    """Encode queries and pool, each in its role, or take what is there."""
    found = []
    for which, role in (("queries", "query"), ("pool", "document")):
        read = {"name": made["pairs"], "column": which, **made[which]}
        title = f"{prefix}{which}" if progress else None
        target = parts / f"{prefix}{which}.npy"

        def texts_from(start: int, which: str = which) -> Iterator[list[str]]:
            return texts.chunks(which, start)

        found.append(stored_vectors(encoder.for_role(role), target, read, texts_from, title))
    return Vectors(*found)


def _block_path(parts: Path, start: int) -> Path:
    return parts / f"negatives-{start:012d}.npz"


def _search(
    parts: Path,
    texts: Texts,
    settings: Mining,
    own: Vectors,
    guide: Vectors | None,
    device: str | None,
    progress: bool,
) -> None:
    """Find the negatives of the blocks of queries that are missing."""
    order = np.argsort(texts.query_of, kind="stable")  # the pairs of each query lie together
    counts = np.bincount(texts.query_of, minlength=len(texts.queries))
    ends = np.cumsum(counts)
    with tqdm(total=len(texts.queries), desc="search", unit=" queries", disable=not progress) as bar:
        for start in range(0, len(texts.queries), BLOCK):
            stop = min(start + BLOCK, len(texts.queries))
            path = _block_path(parts, start)
            if not path.exists():
                own_pairs = order[ends[start] - counts[start] : ends[stop - 1]]
                known = np.stack([texts.query_of[own_pairs], texts.positive_of[own_pairs]])
                found = _negatives(
                    np.arange(start, stop), known, texts.own, settings, own, guide, device, int(counts.max())
                )
                drawn = BytesIO()
                np.savez(drawn, negatives=found["negatives"], left_out=found["left_out"])
                write_atomically(path, drawn.getvalue())
            bar.update(stop - start)


def _negatives(
    queries_Q: np.ndarray,
    known_2N: np.ndarray,
    own_U: np.ndarray,
    settings: Mining,
    own: Vectors,
    guide: Vectors | None,
    device: str | None,
    most_positives: int,
) -> dict[str, np.ndarray]:
    """Return ``negatives`` (Q, num_negatives), indices into the pool or −1, and how many candidates each rule left
    out.

    Arguments:
        known_2N: query and positive of the pairs, in the order of the queries.
    """
    last = settings.candidates(most_positives, guide is not None)
    pool = own.pool
    blocks = (np.asarray(pool[i : i + READ]) for i in range(0, len(pool), READ))
    top_k = min(last + most_positives + 1, len(pool))  # one may be the query's own text
    scores_Qk, rows_Qk = search_blocks(np.asarray(own.queries[queries_Q]), blocks, top_k, device=device)
    firsts = np.searchsorted(known_2N[0], queries_Q)
    keys = known_2N[0] * len(pool) + known_2N[1]
    out: dict[str, np.ndarray] = {
        "positive": np.isin(queries_Q[:, None] * len(pool) + rows_Qk, keys),
        "same_text": rows_Qk == own_U[queries_Q][:, None],
    }
    positive_Q1 = np.minimum.reduceat(own.positives(*known_2N), firsts)[:, None]
    if settings.margin is not None:
        out["margin"] = scores_Qk > positive_Q1 - settings.margin
    if settings.relative_margin is not None:
        out["relative_margin"] = scores_Qk > positive_Q1 - np.abs(positive_Q1) * settings.relative_margin
    if settings.max_score is not None:
        out["max_score"] = scores_Qk > settings.max_score
    if settings.min_score is not None:
        out["min_score"] = scores_Qk < settings.min_score
    if guide is not None:
        limit_Q1 = np.minimum.reduceat(guide.positives(*known_2N), firsts)[:, None] - settings.guide_margin
        out["guide"] = guide.cosines(queries_Q, rows_Qk) > limit_Q1
    others_Qk = np.cumsum(~out["same_text"], axis=1)  # the query's own text takes no place among the candidates
    kept_Qk, counts = others_Qk <= last + most_positives, []
    for rule in RULES:
        left_out = kept_Qk & out[rule] if rule in out else np.zeros_like(kept_Qk)
        counts.append(int(left_out.sum()))
        kept_Qk &= ~left_out
    rank_Qk = np.cumsum(kept_Qk, axis=1) - 1
    until = min(last, settings.range_min + settings.num_negatives)
    taken_Qk = kept_Qk & (rank_Qk >= settings.range_min) & (rank_Qk < until)
    negatives = np.full((len(queries_Q), settings.num_negatives), -1, dtype=np.int64)
    q, place = np.nonzero(taken_Qk)
    negatives[q, rank_Qk[q, place] - settings.range_min] = rows_Qk[q, place]
    return {"negatives": negatives, "left_out": np.array(counts, dtype=np.int64)}


def _write(parts: Path, target: Path, texts: Texts) -> dict[str, int]:
    """Write the triplets in the order of the pairs, and return the counts."""
    blocks = [np.load(_block_path(parts, start)) for start in range(0, len(texts.queries), BLOCK)]
    negatives = np.concatenate([block["negatives"] for block in blocks])
    left_out = dict(zip(RULES, np.sum([block["left_out"] for block in blocks], axis=0).tolist(), strict=True))
    counts = Counter(pairs=texts.rows)
    if not (negatives >= 0).any():
        told = ", ".join(f"{rule} {count:,}" for rule, count in left_out.items() if count)
        raise ValueError(f"{texts.pairs.name}: no pair has a negative; candidates left out: {told or 'none'}")
    columns = (*texts.pairs.columns, "negative")
    written = write_rows(target, columns, _triplets(texts, negatives, counts), parts / f"rows{target.suffix}")
    return {**counts, "triplets": written, **left_out}


def _triplets(texts: Texts, negatives: np.ndarray, counts: Counter[str]) -> Iterator[tuple[str, str, str]]:
    counts["pairs_without"] = 0
    dataset: Any = texts.pairs.dataset
    for start in range(0, texts.rows, READ):
        rows = np.arange(start, min(start + READ, texts.rows))
        found = negatives[texts.query_of[rows]]
        counts["pairs_without"] += int((found < 0).all(1).sum())
        wanted = np.unique(found[found >= 0])
        named = dict(zip(wanted.tolist(), texts.pool_at(wanted) if len(wanted) else [], strict=True))
        for item, own in zip(dataset.__getitems__(rows.tolist()), found.tolist(), strict=True):
            anchor, positive = item["texts"]
            for index in own:
                if index >= 0:
                    yield anchor, positive, named[index]
