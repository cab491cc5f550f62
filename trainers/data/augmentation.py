"""Positives made of a sentence's own words: some deleted, some repeated, or their order shuffled.

A word is what white space separates, so these need a language that writes it. Every draw is a hash of (seed, epoch,
sample index), as masking's are: a sentence gets the same positive in any batch, worker or process and after any
resume, and another one in every epoch.

Shape suffixes: N sentences, W words.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from csekit.modeling.tokenization import tokenize
from csekit.trainers.batches.masking import uniform
from csekit.trainers.data.corpora import Corpus

logger = logging.getLogger(__name__)

#: Kind to the share of the words by default: all for a shuffle; for the others that of PCL's released code.
RATES = {"shuffle": 1.0, "delete": 0.2, "repeat": 0.2}
KINDS = ("none", *RATES)
ONE_WORD_LIMIT = 0.05


@dataclass(frozen=True)
class Augmentation:
    """How the positive of a sentence is made (MSSE, Fig. 8, which takes the kinds from PCL, Wu et al. 2022).

    Of n ≥ 2 words, ``round(rate·n)`` are drawn without replacement:

    - ``shuffle`` (SS): at least two, which change places among themselves;
    - ``delete`` (WD): at least one, never all;
    - ``repeat`` (WR): at least one, each then stands twice in a row (ESimCSE, Wu et al. 2022).

    A sentence of one word stays as it is: dropout alone tells its views apart.

    Arguments:
        kind: ``shuffle``, ``delete`` or ``repeat``.
        rate: share of the words, in (0, 1].
    """

    kind: str
    rate: float

    def __call__(
        self, texts: Sequence[str], *, seed: int, epoch: Sequence[int], index: Sequence[int], words: Sequence[int]
    ) -> list[str]:
        """The positives of N sentences, words joined by single blanks.

        Arguments:
            epoch, index: (N,) each: of the pass over the data and of the sample.
            words: (N,) how many of its first words take part; the positive has no others (see :func:`fitting_words`).
        """
        words_N = [text.split(maxsplit=count)[:count] for text, count in zip(texts, words, strict=True)]
        W = max(map(len, words_N), default=0)
        draws_N2W = uniform(seed, epoch, index, f"augmentation/{self.kind}", (2, W))
        return [" ".join(self._of_words(words, *draws)) for words, draws in zip(words_N, draws_N2W, strict=True)]

    def _of_words(self, words: list[str], choice_W: np.ndarray, order_W: np.ndarray) -> list[str]:
        n = len(words)
        if n < 2:
            return words
        low, high = {"shuffle": (2, n), "delete": (1, n - 1), "repeat": (1, n)}[self.kind]
        drawn = np.argsort(choice_W[:n], kind="stable")[: min(max(round(self.rate * n), low), high)]
        if self.kind == "shuffle":
            places = np.sort(drawn)
            shuffled = list(words)
            for place, source in zip(places, places[np.argsort(order_W[places], kind="stable")], strict=True):
                shuffled[place] = words[source]
            return shuffled
        copies = np.ones(n, dtype=int)
        copies[drawn] = 0 if self.kind == "delete" else 2
        return [word for word, times in zip(words, copies, strict=True) for _ in range(times)]


def fitting_words(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, template: str | None = None
) -> list[int]:
    """How many of its first words the encoder reads of each text: all of them, or those in front of the cut.

    What stands behind the cut must not come forward in a positive. Words are counted in tokens one by one, which for
    byte-level tokenizers can be off by a token.
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


def make_augmentation(kind: str, rate: float | None = None) -> Augmentation | None:
    """The augmentation of a setting; None for ``none``.

    Raises:
        ValueError: an unknown kind, a rate outside (0, 1], a rate without a kind.
    """
    if kind not in KINDS:
        raise ValueError(f"augmentation must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"augmentation_rate must lie in (0, 1], got {rate}")
    if kind == "none":
        if rate is not None:
            raise ValueError(f"augmentation_rate {rate} needs an augmentation, got augmentation 'none'")
        return None
    return Augmentation(kind, RATES[kind] if rate is None else rate)


def check_augmentation(
    augmentation: Augmentation | None, corpus: Corpus, further: int = 0, sample: int = 1000
) -> None:
    """Refuse a corpus that has positives already or no words; warn where many texts are a single word.

    Arguments:
        further: columns behind the contrastive ones, which objectives read.
        sample: rows that words are counted in.

    Raises:
        ValueError: there is nothing to augment.
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
            f"{share:.0%} of the texts of {corpus.name} (of {len(texts):,} looked at) are a single word, words being "
            f"what white space separates: nothing to {augmentation.kind}"
        )
        if share == 1:
            raise ValueError(f"{told}. A language without spaces has to be cut into words first")
        logger.warning("%s, dropout alone makes their positive", told)
