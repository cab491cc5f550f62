"""Retrieval: STS-B's own sentences (InfoCSE, Table 11; DiffCSE, Table 10), and collections in BEIR's format.

Shape suffixes: Q queries, N documents, n documents of a block, k neighbours, H embedding size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from csekit.encoding.encoder import Encoder, TextEncoder, vectors
from csekit.evaluation.pairs import Pairs, digest
from csekit.evaluation.retrieval_data import Collection, CollectionGroup, load_beir
from csekit.evaluation.search import search_blocks
from csekit.evaluation.sts_data import has_stsb, load_sts

#: The cut-offs k of recall@k.
STSB_CUTOFFS = (1, 5, 10)
BEIR_CUTOFFS = (1, 5, 10, 100)
#: Documents that are encoded, searched and freed together.
CHUNK = 50_000
#: ``first``: the first sentence of each pair is a query (97 queries); ``both``: each of the two is (194).
DIRECTIONS = ("first", "both")
#: Collections that ``retrieval_suite`` looks for in the data folder.
SUITE_COLLECTIONS = ("scifact",)


@dataclass(frozen=True)
class RetrievalScores:
    """The scores of one collection.

    Arguments:
        name: name of the collection.
        metrics: such as ``ndcg@10``, ``recall@100``, ``mrr@10``: means over queries, ×100.
        queries, documents: their counts; a group has the sums.
        truncated: number of texts cut at the encoder's limit, None if the encoder does not report it.
        checksum: sha256 of the data.
        parts: scores of a group's collections; the group's metrics are their means.
    """

    name: str
    metrics: dict[str, float]
    queries: int
    documents: int
    truncated: int | None
    checksum: str
    parts: dict[str, "RetrievalScores"] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file."""
        content: dict[str, Any] = {
            "metrics": self.metrics,
            "queries": self.queries,
            "documents": self.documents,
            "truncated": self.truncated,
            "checksum": self.checksum,
        }
        return content | ({"parts": {name: part.to_dict() for name, part in self.parts.items()}} if self.parts else {})


class _Counting:
    """Encode texts in a role and add up how many were cut."""

    def __init__(self, encoder: Encoder, progress: bool) -> None:
        self.encoders = {role: in_role(encoder, role) for role in (None, "query", "document")}
        self.progress = progress
        self.truncated: int | None = None

    def __call__(self, texts: Sequence[str], role: str | None = None) -> Any:
        embeddings = vectors(self.encoders[role], texts, self.progress)
        cut = getattr(self.encoders[role], "truncated", None)
        if cut is not None:
            self.truncated = (self.truncated or 0) + cut
        return embeddings


def in_role(encoder: Encoder, role: str | None) -> Encoder:
    """Return the encoder for ``query`` or ``document`` texts, with the model's own prompts (E5, BGE): a
    ``TextEncoder`` by ``for_role``, a SentenceTransformer by ``encode_query`` or ``encode_document``. An encoder
    without roles, or no role, gives the encoder itself."""
    if role is None:
        return encoder
    if isinstance(encoder, TextEncoder):
        return encoder.for_role(role)
    return getattr(encoder, f"encode_{role}", encoder)


def own_similarity(encoder: Encoder) -> str:
    """Return the similarity that the encoder was trained for (``similarity_fn_name``), cosine if it names none."""
    return getattr(encoder, "similarity_fn_name", None) or "cosine"


def stsb_retrieval(
    encoder: Encoder,
    data_dir: str | Path,
    directions: str = "both",
    *,
    text_form: str = "tokenized",
    progress: bool = False,
) -> RetrievalScores:
    """Search the other sentence of a pair among all 2,758 sentences of STS-B test, by cosine: recall@1, 5, 10.

    The queries come from the 97 pairs with gold score 5.0. The query's own row is excluded by index; any sentence with
    the text of the target counts as found.

    Arguments:
        data_dir, text_form: as for ``load_sts``.
        directions: ``first``: the first sentences are the queries, 97 (InfoCSE, Table 11); ``both``: first and second
            sentences are, 194 (DiffCSE, Table 10).

    Raises:
        ValueError: unknown ``directions``, or what ``load_sts`` and ``embed`` raise.
        FileNotFoundError: no STS-B below ``data_dir``.
    """
    _check_directions(directions)
    pairs = load_sts(data_dir, "STS-B", text_form)[0].subsets[0]
    return score_pair_retrieval(encoder, pairs, (directions,), progress)[directions]


def _check_directions(directions: str) -> None:
    if directions not in DIRECTIONS:
        raise ValueError(f"directions must be 'first' or 'both', got {directions!r}")


def score_pair_retrieval(
    encoder: Encoder, pairs: Pairs, directions: Sequence[str] = DIRECTIONS, progress: bool = False
) -> dict[str, RetrievalScores]:
    """Score ``stsb_retrieval`` on any pairs, in each direction; the pairs with gold score 5.0 give the queries.

    Raises:
        ValueError: no pair has gold score 5.0.
    """
    equal = np.flatnonzero(pairs.scores == 5.0)
    if not len(equal):
        raise ValueError(f"{pairs.path or pairs.name}: must hold pairs with gold score 5.0, got none")
    texts = [*pairs.sentences1, *pairs.sentences2]
    counting = _Counting(encoder, progress)
    embeddings_NH = counting(texts)
    scores = {}
    for direction in directions:
        own = np.concatenate([equal, equal + len(pairs)]) if direction == "both" else equal
        sought = (own + len(pairs)) % len(texts)
        _, rows_Qk = search_blocks(embeddings_NH[own], [embeddings_NH], max(STSB_CUTOFFS) + 1)
        ranks = [_rank(rows, i, texts[j], texts) for rows, i, j in zip(rows_Qk, own, sought, strict=True)]
        recall = {f"recall@{k}": 100 * float(np.mean([rank < k for rank in ranks])) for k in STSB_CUTOFFS}
        scores[direction] = RetrievalScores("STS-B", recall, len(own), len(texts), counting.truncated, digest([pairs]))
    return scores


def _rank(rows_k: np.ndarray, own: int, sought: str, texts: Sequence[str]) -> float:
    """Rank of the first sentence with the target's text, without the query itself; infinity if it is not there."""
    found = [texts[row] == sought for row in rows_k if row != own]
    return found.index(True) if True in found else float("inf")


def evaluate_retrieval(
    encoder: Encoder,
    collection: Collection | CollectionGroup,
    *,
    recall_at: Sequence[int] = BEIR_CUTOFFS,
    similarity: str | None = None,
    ignore_identical_ids: bool = False,
    chunk: int = CHUNK,
    device: str | torch.device | None = None,
    progress: bool = False,
) -> RetrievalScores:
    """Search a collection exactly and score nDCG@10, MRR@10 and recall@k by pytrec_eval.

    Queries and documents get the prompts that the encoder has for them (``in_role``). Documents are encoded ``chunk``
    at a time, searched and freed: memory grows with the chunk, not with the corpus (``search_blocks``). Equal scores
    are ranked as trec_eval ranks them, greater document id first. MRR@10 is trec_eval's recip_rank of the first ten.

    Arguments:
        encoder: a ``TextEncoder``, a SentenceTransformer, or any function ``texts -> (N, H)``. It cuts texts at its
            own limit. An encoder that is fitted on texts (``fits_texts``) is fitted on the documents.
        collection: from ``load_beir``.
        similarity: as for ``search_blocks``. None: the encoder's own (``own_similarity``).
        ignore_identical_ids: exclude the document with the query's id (ArguAna, Quora).
        device: as for ``search_blocks``.

    Raises:
        ImportError: pytrec_eval is missing; raised before anything is encoded.
        ValueError: ``recall_at`` or ``chunk`` below 1, or what ``vectors`` and ``search_blocks`` raise.
    """
    trec = require_pytrec_eval()
    for name, value in (("recall_at", min(recall_at, default=0)), ("chunk", chunk)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if isinstance(collection, Collection):
        if getattr(encoder, "fits_texts", False):
            encoder = encoder.fitted(collection.documents)
        counting = _Counting(encoder, progress)
        top_k = max(10, *recall_at)
        used = similarity or own_similarity(encoder)
        run = _run(counting, collection, top_k, used, ignore_identical_ids, chunk, device)
        return RetrievalScores(
            collection.name,
            _metrics(trec, collection.qrels, run, recall_at),
            len(collection.queries),
            len(collection.documents),
            counting.truncated,
            collection.checksum(),
        )
    parts = {
        part.name: evaluate_retrieval(
            encoder,
            part,
            recall_at=recall_at,
            similarity=similarity,
            ignore_identical_ids=ignore_identical_ids,
            chunk=chunk,
            device=device,
            progress=progress,
        )
        for part in collection.parts
    }
    return _mean_of_parts(collection, parts)


def _mean_of_parts(group: CollectionGroup, parts: dict[str, RetrievalScores]) -> RetrievalScores:
    scores = list(parts.values())
    cut = [part.truncated for part in scores if part.truncated is not None]
    return RetrievalScores(
        group.name,
        {name: float(np.mean([part.metrics[name] for part in scores])) for name in scores[0].metrics},
        sum(part.queries for part in scores),
        sum(part.documents for part in scores),
        sum(cut) if cut else None,
        group.checksum(),
        parts,
    )


def require_pytrec_eval() -> Any:
    """Return the module pytrec_eval. Raises ImportError with the extra to install."""
    try:
        import pytrec_eval
    except ImportError as error:
        raise ImportError("retrieval metrics need pytrec_eval: pip install 'csekit[retrieval]'") from error
    return pytrec_eval


def _run(
    counting: _Counting,
    collection: Collection,
    top_k: int,
    similarity: str,
    ignore_identical_ids: bool,
    chunk: int,
    device: str | torch.device | None,
) -> dict[str, dict[str, float]]:
    """Map query id to document id to score, ``top_k`` documents each."""
    order = sorted(range(len(collection.documents)), key=lambda i: collection.document_ids[i], reverse=True)
    queries_QH = counting(collection.queries, "query")

    def blocks() -> Iterator[Any]:
        for start in range(0, len(order), chunk):
            yield counting([collection.documents[i] for i in order[start : start + chunk]], "document")

    wanted = top_k + ignore_identical_ids
    scores_Qk, rows_Qk = search_blocks(queries_QH, blocks(), wanted, similarity=similarity, device=device)
    run = {}
    for query, scores_k, rows_k in zip(collection.query_ids, scores_Qk.tolist(), rows_Qk.tolist(), strict=True):
        found = {collection.document_ids[order[row]]: score for row, score in zip(rows_k, scores_k, strict=True)}
        if ignore_identical_ids:
            found.pop(query, None)
        run[query] = dict(list(found.items())[:top_k])
    return run


def _metrics(
    trec: Any, qrels: dict[str, dict[str, int]], run: dict[str, dict[str, float]], recall_at: Sequence[int]
) -> dict[str, float]:
    """Average the metrics over the queries, ×100."""
    cuts = ",".join(str(k) for k in recall_at)
    rows = trec.RelevanceEvaluator(qrels, {"ndcg_cut.10", f"recall.{cuts}"}).evaluate(run)
    first_ten = {query: dict(list(found.items())[:10]) for query, found in run.items()}
    ranks = trec.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten)

    def mean(name: str, per_query: Mapping[str, Mapping[str, float]]) -> float:
        return 100 * float(np.mean([scores[name] for scores in per_query.values()]))

    return {
        "ndcg@10": mean("ndcg_cut_10", rows),
        **{f"recall@{k}": mean(f"recall_{k}", rows) for k in recall_at},
        "mrr@10": mean("recip_rank", ranks),
    }


@dataclass(frozen=True)
class RetrievalSuiteScores:
    """The scores of STS-B in both directions and of collections, by name."""

    scores: dict[str, RetrievalScores]

    def to_dict(self) -> dict[str, Any]:
        """Map each name to its ``RetrievalScores.to_dict``."""
        return {name: scores.to_dict() for name, scores in self.scores.items()}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal, one row per collection."""
        columns = list(dict.fromkeys(column for row in self.scores.values() for column in row.metrics))
        rows = [
            [name, str(row.queries), str(row.documents)]
            + [f"{row.metrics[column]:.2f}" if column in row.metrics else "" for column in columns]
            for name, row in self.scores.items()
        ]
        return ["Retrieval × 100", "queries", "documents", *columns], rows


@dataclass(frozen=True)
class RetrievalData:
    """The data of ``retrieval_suite``: STS-B's test pairs (None: without them) and collections."""

    pairs: Pairs | None
    collections: list[Collection | CollectionGroup]


def load_retrieval(
    data_dir: str | Path, text_form: str = "tokenized", collections: Sequence[str] | None = None
) -> RetrievalData:
    """Load STS-B's test pairs and collections in BEIR's format.

    Arguments:
        data_dir: as for ``load_sts``; the collections are folders in it. If it has collections but no STS-B, only the
            collections are loaded.
        text_form: text form of STS-B.
        collections: folders in ``data_dir``. None: those of ``SUITE_COLLECTIONS`` that exist.

    Raises:
        ImportError, FileNotFoundError, ValueError: as ``load_sts`` and ``load_beir``; pytrec_eval is not installed.
    """
    names = collections
    root = Path(data_dir).expanduser()
    if names is None:
        names = [name for name in SUITE_COLLECTIONS if (root / name).is_dir()]
    if names:
        require_pytrec_eval()
    pairs = load_sts(root, "STS-B", text_form)[0].subsets[0] if has_stsb(root) or not names else None
    return RetrievalData(pairs, [load_beir(root / name) for name in names])


def retrieval_suite(encoder: Encoder, data: RetrievalData, progress: bool = False) -> RetrievalSuiteScores:
    """Score STS-B retrieval in both directions, and the collections.

    Raises:
        ImportError, ValueError: as ``stsb_retrieval`` and ``evaluate_retrieval``.
    """
    scores: dict[str, RetrievalScores] = {}
    if data.pairs is not None:
        stsb = score_pair_retrieval(encoder, data.pairs, DIRECTIONS, progress).values()
        scores |= {f"STS-B, {found.queries} queries": found for found in stsb}
    for collection in data.collections:
        scores[collection.name] = evaluate_retrieval(encoder, collection, progress=progress)
    return RetrievalSuiteScores(scores)
