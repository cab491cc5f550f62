"""Augmented positives: some of a sentence's words are deleted or repeated, or their order is shuffled.

Words are separated by white space, so the language must write it. Every draw is a hash of (seed, epoch, sample index),
as in masking: a sentence gets the same positive in any batch, worker or process and after any resume, and another one
in every epoch.

Shape suffixes: N sentences, W words.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from csekit.modeling.tokenization import tokenize
from csekit.trainers.data.corpora import Corpus
from csekit.trainers.data.draws import uniform

logger = logging.getLogger(__name__)

#: Default share of the words by kind: all for a shuffle; for the others the value of PCL's released code.
RATES = {"shuffle": 1.0, "delete": 0.2, "repeat": 0.2, "reverse": 1.0}
KINDS = ("none", *RATES)
ONE_WORD_LIMIT = 0.05


@dataclass(frozen=True)
class Augmentation:
    """Make positives of sentences (MSSE, Fig. 8, which takes the kinds from PCL, Wu et al. 2022).

    ``round(rate·n)`` of a sentence's n ≥ 2 words are drawn without replacement:

    - ``shuffle`` (SS): at least two words, which exchange their places;
    - ``delete`` (WD): at least one word, never all;
    - ``repeat`` (WR): at least one word, each is written twice (ESimCSE, Wu et al. 2022);
    - ``reverse``: at least two words, which exchange their places in reverse order.

    A sentence of one word does not change: its two views differ by dropout alone.

    Arguments:
        kind: ``shuffle``, ``delete``, ``repeat`` or ``reverse``.
        rate: share of the words, in (0, 1].
    """

    kind: str
    rate: float

    def __call__(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        epoch: Sequence[int],
        index: Sequence[int],
        words: Sequence[int],
        number: int = 0,
    ) -> list[str]:
        """Return the positives of N sentences, words joined by single blanks.

        Arguments:
            seed: seed of the draws.
            epoch, index: (N,) each: epoch and sample index.
            words: (N,) number of first words that are used; the positive has no others (see :func:`fitting_words`).
            number: another number makes other positives of the same sentences.
        """
        words_N = [text.split(maxsplit=count)[:count] for text, count in zip(texts, words, strict=True)]
        W = max(map(len, words_N), default=0)
        stream = f"augmentation/{self.kind}" + (f"/{number}" if number else "")
        draws_N2W = uniform(seed, epoch, index, stream, (2, W))
        return [" ".join(self._of_words(words, *draws)) for words, draws in zip(words_N, draws_N2W, strict=True)]

    def _of_words(self, words: list[str], choice_W: np.ndarray, order_W: np.ndarray) -> list[str]:
        n = len(words)
        if n < 2:
            return words
        low, high = {"shuffle": (2, n), "reverse": (2, n), "delete": (1, n - 1), "repeat": (1, n)}[self.kind]
        drawn = np.argsort(choice_W[:n], kind="stable")[: min(max(round(self.rate * n), low), high)]
        if self.kind in ("shuffle", "reverse"):
            places = np.sort(drawn)
            order = np.argsort(order_W[places], kind="stable") if self.kind == "shuffle" else slice(None, None, -1)
            moved = list(words)
            for place, source in zip(places, places[order], strict=True):
                moved[place] = words[source]
            return moved
        copies = np.ones(n, dtype=int)
        copies[drawn] = 0 if self.kind == "delete" else 2
        return [word for word, times in zip(words, copies, strict=True) for _ in range(times)]


def fitting_words(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, template: str | None = None
) -> list[int]:
    """Return for each text the number of first words that the encoder reads: all, or those before the truncation.

    ``max_length`` counts special tokens and template. A positive must not hold words behind the truncation. Each word
    is tokenised alone; with byte-level tokenizers the sum can be off by a token.
    """
    tokens = tokenize(tokenizer, texts, max_length, template)
    cut = {i: text.split(maxsplit=max_length)[:max_length] for i, text in enumerate(texts) if tokens.truncated[i]}
    counts = [len(text.split()) for text in texts]
    if cut:
        pieces = tokenize(tokenizer, [word for words in cut.values() for word in words], max_length, template)
        lengths = np.array(pieces.last) - np.array(pieces.first)
        for (i, words), ends in zip(cut.items(), np.cumsum([len(words) for words in cut.values()]), strict=True):
            room = tokens.last[i] - tokens.first[i]
            counts[i] = max(int((np.cumsum(lengths[ends - len(words) : ends]) <= room).sum()), 1)
    return counts


def halves_of(text: str, words: int) -> tuple[str, str]:
    """Return the two halves of a text's first ``words`` words, the first one a word longer if they are odd in number.

    A single word is both halves."""
    used = text.split(maxsplit=words)[:words]
    middle = (len(used) + 1) // 2
    return " ".join(used[:middle]), " ".join(used[middle:] or used)


def make_augmentation(kind: str, rate: float | None = None) -> Augmentation | None:
    """Return the augmentation of a setting; None for ``none``.

    Raises:
        ValueError: an unknown kind, a rate outside (0, 1], or a rate with ``none``.
    """
    if kind not in KINDS:
        raise ValueError(f"augmentation must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"augmentation_rate must lie in (0, 1], got {rate}")
    if kind == "none":
        if rate is not None:
            raise ValueError(f"augmentation_rate must be left out with augmentation 'none', got {rate}")
        return None
    return Augmentation(kind, RATES[kind] if rate is None else rate)


def check_augmentation(
    augmentation: Augmentation | None, corpus: Corpus, further: int = 0, sample: int = 1000
) -> None:
    """Check that a corpus can be augmented; warn if more than 5 % of the texts are single words.

    Arguments:
        further: columns behind the contrastive ones, which objectives read.
        sample: number of rows that are counted.

    Raises:
        ValueError: the corpus has several contrastive columns, or all texts are single words.
    """
    if augmentation is None:
        return
    columns = corpus.columns[: len(corpus.columns) - further]
    if len(columns) != 1:
        raise ValueError(
            f"augmentation {augmentation.kind!r} makes the positive of a single sentence, {corpus.name} has the "
            f"columns {', '.join(columns)}: name one, e.g. --columns {columns[0]}, or leave the augmentation out"
        )
    texts = [row[0] for row in corpus.sample(sample)]
    share = sum(len(text.split(maxsplit=1)) < 2 for text in texts) / len(texts)
    if share > ONE_WORD_LIMIT:
        told = (
            f"{share:.0%} of {len(texts):,} texts of {corpus.name} are a single word between white space, which "
            f"augmentation {augmentation.kind!r} does not change"
        )
        if share == 1:
            raise ValueError(f"{told}; segment a language without spaces into words first")
        logger.warning("%s: dropout alone makes their positive", told)
