"""Augmented positives: some of a sentence's words are deleted or repeated, their order is shuffled, or a span of its
characters is masked.

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
KINDS = ("none", *RATES, "mask")
UNCHANGED_LIMIT = 0.05
#: Share of texts of a single word from which on a language counts as one without spaces.
WITHOUT_SPACES = 0.5
#: Default number of masked characters, and the length below which a text stays as it is (Mirror-BERT's released code).
SPAN, SHORTEST = 5, 30


@dataclass(frozen=True)
class Augmentation:
    """Make positives of sentences (MSSE, Fig. 8, which takes the kinds from PCL, Wu et al. 2022).

    ``round(rate·n)`` of a sentence's n ≥ 2 words are drawn without replacement:

    - ``shuffle`` (SS): at least two words, which exchange their places;
    - ``delete`` (WD): at least one word, never all;
    - ``repeat`` (WR): at least one word, each is written twice (ESimCSE, Wu et al. 2022);
    - ``reverse``: at least two words, which exchange their places in reverse order.

    A sentence of one word does not change: its two views differ by dropout alone.

    ``mask`` replaces one span of ``span`` consecutive characters, blanks included, by the mask token as a word of its
    own (Mirror-BERT, Liu et al. 2021). Texts of fewer than 30 characters, or at most ``span``, do not change.

    Arguments:
        kind: ``shuffle``, ``delete``, ``repeat``, ``reverse`` or ``mask``.
        rate: share of the words, in (0, 1]; ``mask`` does not read it.
        span: number of characters, for ``mask``.
    """

    kind: str
    rate: float
    span: int = SPAN

    def __call__(
        self,
        texts: Sequence[str],
        *,
        seed: int,
        epoch: Sequence[int],
        index: Sequence[int],
        words: Sequence[int],
        number: int = 0,
        mask_token: str | None = None,
    ) -> list[str]:
        """Return the positives of N sentences, words joined by single blanks.

        Arguments:
            seed: seed of the draws.
            epoch, index: (N,) each: epoch and sample index.
            words: (N,) number of first words that are used; the positive has no others (see :func:`fitting_words`).
            number: another number makes other positives of the same sentences.
            mask_token: the tokenizer's, for ``mask``.
        """
        words_N = [text.split(maxsplit=count)[:count] for text, count in zip(texts, words, strict=True)]
        stream = f"augmentation/{self.kind}" + (f"/{number}" if number else "")
        if self.kind == "mask":
            draws_N = uniform(seed, epoch, index, stream)
            return [self._masked(" ".join(words), u, mask_token) for words, u in zip(words_N, draws_N, strict=True)]
        W = max(map(len, words_N), default=0)
        draws_N2W = uniform(seed, epoch, index, stream, (2, W))
        return [" ".join(self._of_words(words, *draws)) for words, draws in zip(words_N, draws_N2W, strict=True)]

    def changes(self, text: str) -> bool:
        """Return False for a text that stays as it is."""
        if self.kind == "mask":
            return len(text) >= max(SHORTEST, self.span + 1)
        return len(text.split(maxsplit=1)) > 1

    def _masked(self, text: str, draw: float, mask_token: str | None) -> str:
        if not self.changes(text):
            return text
        start = int(draw * (len(text) - self.span + 1))
        return " ".join([text[:start], str(mask_token), text[start + self.span :]])

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


def make_augmentation(kind: str, rate: float | None = None, span: int | None = None) -> Augmentation | None:
    """Return the augmentation of a setting; None for ``none``.

    Raises:
        ValueError: an unknown kind, a rate outside (0, 1], a span below 1, a rate with ``none`` or ``mask``, or a span
            without ``mask``.
    """
    if kind not in KINDS:
        raise ValueError(f"augmentation must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"augmentation_rate must lie in (0, 1], got {rate}")
    if span is not None and span < 1:
        raise ValueError(f"augmentation_span must be at least 1, got {span}")
    if rate is not None and kind in ("none", "mask"):
        raise ValueError(f"augmentation_rate must be left out with augmentation {kind!r}, got {rate}")
    if span is not None and kind != "mask":
        raise ValueError(f"augmentation_span must be left out with augmentation {kind!r}, got {span}")
    if kind == "none":
        return None
    return Augmentation(kind, RATES.get(kind, 1.0) if rate is None else rate, SPAN if span is None else span)


def check_augmentation(
    augmentation: Augmentation | None, corpus: Corpus, further: int = 0, sample: int = 1000
) -> None:
    """Check that a corpus can be augmented; warn if more than 5 % of the texts would stay as they are, and of a masked
    span in texts without spaces.

    Arguments:
        further: columns behind the contrastive ones, which objectives read.
        sample: number of rows that are counted.

    Raises:
        ValueError: the corpus has several contrastive columns, or all texts would stay as they are.
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
    _check_changes(f"augmentation {augmentation.kind!r}", augmentation, corpus.name, texts)


def check_further_positives(kinds: Sequence[str], corpus: Corpus, sample: int = 1000) -> None:
    """Check that further positives differ from the texts; warn if more than 5 % of the texts would stay as they are.

    Arguments:
        kinds: of :data:`csekit.modeling.objectives.POSITIVES`.
        sample: number of rows that are counted.

    Raises:
        ValueError: all texts would stay as they are.
    """
    changed = [kind for kind in dict.fromkeys(kinds) if kind in ("halves", "mask", *RATES)]
    texts = [row[0] for row in corpus.sample(sample)] if changed else []
    for kind in changed:
        change = make_augmentation("delete" if kind == "halves" else kind)  # both need two words
        assert change is not None
        _check_changes(f"the further positive {kind!r}", change, corpus.name, texts)


def _check_changes(what: str, augmentation: Augmentation, name: str, texts: Sequence[str]) -> None:
    """Warn of texts of the corpus ``name`` that stay as they are, or whose words are not told apart. Raises ValueError
    if all texts stay."""
    masks = augmentation.kind == "mask"
    whole = sum(len(text.split(maxsplit=1)) < 2 for text in texts) / len(texts)
    share = sum(not augmentation.changes(text) for text in texts) / len(texts)
    if share > UNCHANGED_LIMIT:
        short = f"shorter than {max(SHORTEST, augmentation.span + 1)} characters"
        told = (
            f"{share:.0%} of {len(texts):,} texts of {name} are "
            f"{short if masks else 'a single word between white space'}, which {what} does not change"
        )
        if share == 1:
            rest = "choose another one" if masks else "segment a language without spaces into words first"
            raise ValueError(f"{told}; {rest}")
        logger.warning("%s: dropout alone makes their positive", told)
    if masks and whole > WITHOUT_SPACES:
        logger.warning(
            "%s of %s texts of %s have no white space between words, by which %s finds the end of what the encoder "
            "reads: in longer texts the span may lie behind max_seq_length; segment them into words first",
            *(f"{whole:.0%}", f"{len(texts):,}", name, what),
        )
