"""Score STS sets by cosine and Spearman (``all``, ``mean``, ``wmean``); each distinct sentence is encoded once.

Shape suffixes: P pairs of a set, D distinct sentences, H embedding size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from csekit.encoding.encoder import Encoder, vectors
from csekit.evaluation.correlation import binary_scores, cosine, pearson, spearman
from csekit.evaluation.pairs import Pairs, check_scores
from csekit.evaluation.sts_data import STS_TASKS, STSTask


@dataclass(frozen=True)
class TaskScores:
    """The scores of one STS set. Correlations are ×100.

    Arguments:
        all: one Spearman over the concatenated sub-corpora, as the papers report it.
        mean, wmean: mean over sub-corpora, plain and weighted by their number of pairs.
        subsets: sub-corpus to ``{"spearman", "n"}``.
        similarities, gold: (P,) cosine and gold score of each pair, sub-corpora in order.
        checksum: sha256 of the pairs.
    """

    name: str
    n: int
    all: float
    mean: float
    wmean: float
    subsets: dict[str, dict[str, float]]
    similarities: np.ndarray
    gold: np.ndarray
    checksum: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "all": self.all,
            "mean": self.mean,
            "wmean": self.wmean,
            "subsets": self.subsets,
            "checksum": self.checksum,
        }


@dataclass(frozen=True)
class STSScores:
    """The scores of several STS sets.

    Arguments:
        tasks: name to scores.
        avg: mean of the seven ``all``, None unless all seven are there.
        sentences: number of distinct sentences encoded.
        truncated: number of them that were cut, None if the encoder does not report it.
        text_form: ``tokenized`` or ``raw``.
    """

    tasks: dict[str, TaskScores]
    avg: float | None
    sentences: int
    truncated: int | None
    text_form: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values for a results file; the similarities go beside it (``write_results``)."""
        return {
            "tasks": {name: scores.to_dict() for name, scores in self.tasks.items()},
            "avg": self.avg,
            "sentences": self.sentences,
            "truncated": self.truncated,
            "text_form": self.text_form,
        }

    def similarities(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Map task to (similarities, gold), as ``write_results`` takes them."""
        return {name: (scores.similarities, scores.gold) for name, scores in self.tasks.items()}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows for a terminal: each task with its three aggregates, its sub-corpora, the Avg."""
        rows = []
        for name, task in self.tasks.items():
            rows.append([name, str(task.n), *(f"{value:.2f}" for value in (task.all, task.mean, task.wmean))])
            if len(task.subsets) > 1:
                rows += [
                    [f"  {sub}", f"{row['n']:.0f}", f"{row['spearman']:.2f}", "", ""]
                    for sub, row in task.subsets.items()
                ]
        if self.avg is not None:
            rows.append(["Avg", str(sum(self.tasks[name].n for name in STS_TASKS)), f"{self.avg:.2f}", "", ""])
        return ["Spearman × 100", "pairs", "all pairs", "mean of sub-corpora", "mean weighted by pairs"], rows


def score_task(task: STSTask, similarities: Sequence[np.ndarray]) -> TaskScores:
    """Score one set from the similarities of its sub-corpora."""
    values = [100 * spearman(sim, pairs.scores) for sim, pairs in zip(similarities, task.subsets, strict=True)]
    counts = [len(pairs) for pairs in task.subsets]
    joined, gold = np.concatenate(similarities), np.concatenate([pairs.scores for pairs in task.subsets])
    return TaskScores(
        name=task.name,
        n=len(task),
        all=100 * spearman(joined, gold),
        mean=float(np.mean(values)),
        wmean=float(np.average(values, weights=counts)),
        subsets={
            pairs.name: {"spearman": value, "n": n}
            for pairs, value, n in zip(task.subsets, values, counts, strict=True)
        },
        similarities=joined,
        gold=gold,
        checksum=task.checksum(),
    )


class EmbeddedPairs:
    """The embeddings of the distinct sentences of many pairs, encoded in one call.

    Attributes:
        rows: sentence to its row.
        embeddings_DH: (D, H) float32.
    """

    def __init__(self, encoder: Encoder, subsets: Sequence[Pairs], progress: bool = False) -> None:
        distinct = dict.fromkeys(text for pairs in subsets for text in (*pairs.sentences1, *pairs.sentences2))
        self.rows = {text: i for i, text in enumerate(distinct)}
        self.embeddings_DH = vectors(encoder, list(distinct), progress)

    def sides(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the embeddings of the first and of the second sentences, (P, H) each."""
        first, second = ([self.rows[text] for text in texts] for texts in (pairs.sentences1, pairs.sentences2))
        return self.embeddings_DH[first], self.embeddings_DH[second]

    def similarities(self, pairs: Pairs) -> np.ndarray:
        """Return the cosine of each pair, (P,)."""
        return cosine(*self.sides(pairs))


def evaluate_sts(encoder: Encoder, tasks: Sequence[STSTask], progress: bool = False) -> STSScores:
    """Score an encoder on STS sets. All distinct sentences are encoded in one call; an encoder that is fitted on the
    texts it gets (``fits_texts``, see ``csekit.evaluation.baselines``) encodes one set at a time.

    Arguments:
        encoder: a ``TextEncoder``, a SentenceTransformer, or any function ``texts -> (N, H)``.
        tasks: from ``load_sts`` or ``load_sts_hub``.

    Raises:
        ValueError: no tasks, a task twice, mixed text forms, or what ``vectors`` raises.
    """
    names = [task.name for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"tasks must be different STS sets, got {names}")
    forms = sorted({task.text_form for task in tasks})
    if len(forms) > 1:
        raise ValueError(f"tasks must share one text form, got {forms}")
    scores: dict[str, TaskScores] = {}
    sentences, cut = 0, list[int | None]()
    for group in [[task] for task in tasks] if getattr(encoder, "fits_texts", False) else [tasks]:
        embedded = EmbeddedPairs(encoder, [pairs for task in group for pairs in task.subsets], progress)
        scores |= {task.name: score_task(task, [embedded.similarities(p) for p in task.subsets]) for task in group}
        sentences += len(embedded.rows)
        cut.append(getattr(encoder, "truncated", None))
    complete = set(STS_TASKS) <= scores.keys()
    return STSScores(
        tasks=scores,
        avg=float(np.mean([scores[name].all for name in STS_TASKS])) if complete else None,
        sentences=sentences,
        truncated=None if None in cut else sum(count for count in cut if count is not None),
        text_form=forms[0],
    )


def evaluate_pairs(encoder: Encoder, pairs: Pairs, progress: bool = False) -> dict[str, float]:
    """Score an encoder on any scored pairs by cosine.

    Returns:
        ``spearman`` and ``pearson`` ×100 and ``n``; for scores of 0 and 1 also ``ap``, ``accuracy`` and ``threshold``
        (``binary_scores``).

    Raises:
        ValueError: fewer than 3 pairs, the same score everywhere, or what ``vectors`` raises.
    """
    check_scores(pairs.scores, pairs.path or pairs.name)
    return score_pairs(EmbeddedPairs(encoder, [pairs], progress), pairs)


def score_pairs(embedded: EmbeddedPairs, pairs: Pairs) -> dict[str, float]:
    """Score pairs as ``evaluate_pairs`` does; they are embedded and checked already."""
    similarities = embedded.similarities(pairs)
    scores = {
        "spearman": 100 * spearman(similarities, pairs.scores),
        "pearson": 100 * pearson(similarities, pairs.scores),
        "n": len(pairs),
    }
    if set(pairs.scores.tolist()) == {0.0, 1.0}:
        scores |= binary_scores(similarities, pairs.scores)
    return scores
