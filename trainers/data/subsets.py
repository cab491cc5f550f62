"""Parts of a corpus: a random share (few-shot training), or the rows without sentences of the evaluation sets."""

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from csekit.encoding.text_files import ROWS
from csekit.evaluation.pairs import Pairs
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.datasets import SentenceDataset
from csekit.trainers.data.draws import uniform

_NO_WORD = re.compile(r"[\W_]+")
#: Combining classes of vowel signs and tones. Python counts them, unlike letters, as no part of a word.
_SIGNS = {0, 7, 8, 9, *range(84, 133)}


def draw_fraction(corpus: Corpus, fraction: float, seed: int) -> Corpus:
    """Draw a share of the rows without replacement; they stay in the order of the corpus.

    Shares of the same seed are nested: a larger fraction contains the rows of a smaller one.

    Arguments:
        fraction: in (0, 1]; ``round(fraction · rows)`` rows are drawn.

    Raises:
        ValueError: a fraction outside (0, 1], fewer than 2 rows drawn, a stream.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"train_fraction must lie in (0, 1], got {fraction}")
    rows = len(_mapped(corpus, "train_fraction").rows)
    count = round(fraction * rows)
    if count < 2:
        raise ValueError(f"train_fraction {fraction} of the {rows:,} rows of {corpus.name} is {count}, 2 are needed")
    order = np.argsort(uniform(seed, 0, np.arange(rows), "train_fraction"), kind="stable")
    return _selected(corpus, np.sort(order[:count]), fraction=fraction)


def without_rows(corpus: Corpus, places: np.ndarray) -> Corpus:
    """Return the corpus without the rows at these places. Raises ValueError if fewer than 2 rows are left."""
    rows = len(_mapped(corpus, "filter_overlap").rows)
    kept = np.setdiff1d(np.arange(rows), places)
    if len(kept) < 2:
        raise ValueError(f"{corpus.name}: filter_overlap must leave at least 2 of {rows:,} rows, got {len(kept)}")
    return _selected(corpus, kept, filtered=rows - len(kept))


def _mapped(corpus: Corpus, what: str) -> SentenceDataset:
    if not isinstance(corpus.dataset, SentenceDataset):
        raise ValueError(f"{what} needs the whole corpus at the start, {corpus.name} is a stream")
    return corpus.dataset


def _selected(corpus: Corpus, places: np.ndarray, **found: Any) -> Corpus:
    dataset = _mapped(corpus, "a part")
    rows = dataset.rows if len(places) == len(dataset) else dataset.rows.select(places)
    report = replace(corpus.report, used=len(places), **found)
    return replace(corpus, dataset=SentenceDataset(rows, dataset.columns), report=report)


@dataclass(frozen=True)
class Overlap:
    """The rows of a corpus that hold a sentence of an evaluation set. The comparison ignores case, Unicode form,
    blanks and punctuation: evaluation texts are often tokenised and lower-cased.

    Arguments:
        rows: (R,) their places, ascending.
        texts: number of cells that are such a sentence.
        sets: by name of the set, the number of its sentences in the corpus and the number of its sentences (two per
            pair).
    """

    rows: np.ndarray
    texts: int
    sets: dict[str, tuple[int, int]]

    def describe(self, filtered: bool) -> dict[str, Any]:
        """Return plain values for a results file."""
        sets = {name: {"sentences": found, "of": size} for name, (found, size) in self.sets.items()}
        return {"rows": len(self.rows), "texts": self.texts, "filtered": filtered, "sets": sets}

    def summary(self, filtered: bool, own: Collection[str] = ()) -> str:
        """Return one line for a log.

        Arguments:
            filtered: the rows were left out.
            own: the sets that are the user's own pairs, on which a training without labels may be selected although
                it has seen their sentences.
        """
        if not len(self.rows):
            return f"no row holds a sentence of {', '.join(self.sets)}"
        held = {name: counts for name, counts in self.sets.items() if counts[0]}
        found = ", ".join(f"{name} {n:,} of {size:,}" for name, (n, size) in held.items())
        if not filtered and set(held) <= set(own):
            return (
                f"{len(self.rows):,} rows hold a sentence of your own pairs; harmless for choosing the checkpoint, "
                "since no score is trained on (--filter_overlap leaves them out)"
            )
        done = "these were left out" if filtered else "these are trained on, --filter_overlap leaves them out"
        return f"{len(self.rows):,} rows hold a sentence of an evaluation set ({found}); {done}"


def comparable(text: str) -> str:
    """Return the letters and digits of a text, case-folded, with the marks that make a letter another one: vowel signs
    and tones, as in Hindi and Thai, but no accents and no points of Arabic and Hebrew, which may be left out."""
    if text.isascii():
        return _NO_WORD.sub("", text.casefold())
    folded = unicodedata.normalize("NFKC", text).casefold()
    return _NO_WORD.sub(lambda found: "".join(takewhile(_is_sign, found[0])), folded)


def _is_sign(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" and unicodedata.combining(character) in _SIGNS


def find_overlap(corpus: Corpus, sets: Sequence[tuple[str, Sequence[Pairs]]]) -> Overlap:
    """Compare every text of a corpus with every sentence of evaluation sets.

    Arguments:
        corpus: a corpus that is no stream.
        sets: name and pairs of each set.
    """
    slots = {
        name: [key for part in pairs for text in (*part.sentences1, *part.sentences2) if (key := comparable(text))]
        for name, pairs in sets
    }
    wanted = {key for keys in slots.values() for key in keys}
    held: set[str] = set()
    rows: list[int] = []
    texts = 0
    for place, row in enumerate(_rows(_mapped(corpus, "find_overlap"))):
        found = [key for text in row if (key := comparable(text)) in wanted]
        if found:
            rows.append(place)
            texts += len(found)
            held.update(found)
    counts = {name: (sum(key in held for key in keys), len(keys)) for name, keys in slots.items()}
    return Overlap(np.array(rows, dtype=np.int64), texts, counts)


def _rows(dataset: SentenceDataset) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(dataset), ROWS):
        batch = dataset.rows[start : start + ROWS]
        yield from zip(*(batch[column] for column in dataset.columns), strict=True)
