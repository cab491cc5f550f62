"""Measure how well a tokenizer fits texts: unknown tokens, truncation, lost accents."""

import re
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from csekit.modeling.tokenization import TokenizedTexts, tokenize, training_length

#: A tokenizer with a larger share of unknown tokens is probably the wrong one.
UNKNOWN_LIMIT = 0.05
#: If more texts lose accents, the language uses accents; English text has some in names.
ACCENTS_LIMIT = 0.2
#: With fewer characters per token, words are split into letters; English has 4 to 5 with its own tokenizer.
CHARACTERS_LIMIT = 2.5
#: Scripts in which tokens of one character are common.
_DENSE = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "YI ", "BOPOMOFO")
_ASCII = re.compile(r"[\x00-\x7f]+")


@dataclass(frozen=True)
class TokenizerReport:
    """Fit of a tokenizer to a corpus, measured on a sample of its rows.

    Arguments:
        texts: number of texts in the sample.
        unknown_share: share of unknown tokens.
        truncated_share: share of texts that are longer than the limit.
        mean_tokens: mean tokens per text after truncation, special tokens and template included.
        characters_per_token: mean over texts that were not truncated, or over whole texts where all were; without
            special tokens and template.
        accents_dropped: share of texts that lose an accent (ä becomes a, й becomes и).
        warning: the problems that were found, or None.
    """

    texts: int
    unknown_share: float
    truncated_share: float
    mean_tokens: float
    characters_per_token: float
    accents_dropped: float
    warning: str | None = None

    def summary(self) -> str:
        """Return one line for a log."""
        return (
            f"{self.mean_tokens:.1f} tokens a text, {self.unknown_share:.2%} of them unknown, "
            f"{self.truncated_share:.1%} of the texts truncated (on {self.texts:,} texts)"
        )


def tokenizer_report(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    prompt_template: str | None = None,
    name: str = "the corpus",
) -> TokenizerReport:
    """Tokenise texts and measure the fit.

    Arguments:
        texts: at least one text.
        max_seq_length: tokens of a text, special ones included, a template's not; longer texts are truncated.
        name: name of the corpus, for the warning.

    Raises:
        ValueError: ``max_seq_length`` leaves no room for a token.
    """
    length = training_length(tokenizer, max_seq_length, prompt_template)
    tokens = tokenize(tokenizer, list(texts), length, prompt_template)
    unknown = total = 0
    for ids, first, last in zip(tokens.input_ids, tokens.first, tokens.last, strict=True):
        total += last - first
        unknown += ids[first:last].count(tokenizer.unk_token_id)
    share = unknown / max(total, 1)
    characters = _characters_per_token(texts, tokens)
    if not characters:  # all texts were truncated
        characters = _characters_per_token(texts, tokenize(tokenizer, list(texts), sys.maxsize, prompt_template))
    dropped = accents_dropped(texts, tokenizer)
    warnings = []
    if share > UNKNOWN_LIMIT or total == 0:
        warnings.append(
            f"{share:.1%} of the tokens of {name} are unknown to the tokenizer: it is probably the wrong one for this "
            "language or script"
        )
    elif 0 < characters < CHARACTERS_LIMIT and not _dense(texts):
        warnings.append(
            f"a token of {name} has {characters:.1f} characters on average: words fall apart into single letters, so "
            "the tokenizer is probably that of another language"
        )
    if dropped > ACCENTS_LIMIT:
        warnings.append(
            f"{dropped:.0%} of the texts of {name} lose accents in the tokenizer, so words that differ in nothing "
            "else become one: a cased or multilingual checkpoint keeps them"
        )
    mean = sum(map(len, tokens.input_ids)) / len(texts)
    truncated = sum(tokens.truncated) / len(texts)
    return TokenizerReport(len(texts), share, truncated, mean, characters, dropped, "; ".join(warnings) or None)


def _characters_per_token(texts: Sequence[str], tokens: TokenizedTexts) -> float:
    """Return the mean over texts that were not truncated, blanks left out; 0 if there is none."""
    whole = [i for i, cut in enumerate(tokens.truncated) if not cut]
    characters = sum(len(texts[i]) - texts[i].count(" ") for i in whole)
    return characters / max(sum(tokens.last[i] - tokens.first[i] for i in whole), 1)


def accents_dropped(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the share of texts that lose combining marks (after decomposition) in the tokenizer's normaliser."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or normalizer is None:
        return 0.0
    lost = sum(_marks(normalizer.normalize_str(text)) < _marks(text) for text in texts if not text.isascii())
    return lost / len(texts)


def _marks(text: str) -> int:
    others = _ASCII.sub("", unicodedata.normalize("NFD", text))
    return sum(unicodedata.combining(character) > 0 for character in others)


def _dense(texts: Sequence[str]) -> bool:
    """Return True if most letters belong to a script with few letters per word."""
    letters = [character for text in texts[:200] for character in text if character.isalpha()]
    dense = sum(unicodedata.name(character, "").startswith(_DENSE) for character in letters)
    return 2 * dense > len(letters)
