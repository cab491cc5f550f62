"""Texts to token ids, a prompt template spliced in at token level: the sentence is truncated, the template never."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Frame:
    """What surrounds a sentence: special tokens and template, as ids.

    Arguments:
        before, after: ids in front of and behind the sentence.
        mask_offset: where the template's mask token stands: counted from the first token (≥ 0) or from the last (< 0).
            None without a template.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask_offset: int | None


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of N texts, not yet padded.

    Arguments:
        input_ids: per text, with special tokens and template.
        first, last: per text, the slice of ``input_ids`` that is the sentence itself (what may be masked).
        truncated: per text, whether tokens were cut off.
    """

    input_ids: list[list[int]]
    first: list[int]
    last: list[int]
    truncated: list[bool]


@lru_cache(maxsize=32)
def sentence_frame(tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> Frame:
    """The ids around a sentence. ``template`` holds ``{sentence}`` and ``{mask}``, e.g. ``"{sentence}" means {mask}.``

    Raises:
        ValueError: the template lacks a placeholder, or the tokenizer has no mask token.
    """
    probe = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a", add_special_tokens=True)["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(probe)] == probe)
    lead, tail = tuple(framed[:start]), tuple(framed[start + len(probe) :])
    if template is None:
        return Frame(lead, tail, None)
    if template.count("{sentence}") != 1 or template.count("{mask}") != 1:
        raise ValueError(f"prompt_template must hold '{{sentence}}' once and '{{mask}}' once, got {template!r}")
    if tokenizer.mask_token is None:
        raise ValueError("prompt_template needs a tokenizer with a mask token, this one has none")
    prefix, suffix = template.replace("{mask}", tokenizer.mask_token).split("{sentence}")
    prefix_ids, suffix_ids = (
        tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (prefix, suffix)
    )
    before, after = lead + prefix_ids, suffix_ids + tail
    if tokenizer.mask_token_id in after:
        return Frame(before, after, after.index(tokenizer.mask_token_id) - len(after))
    return Frame(before, after, before.index(tokenizer.mask_token_id))


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, template: str | None = None
) -> TokenizedTexts:
    """Tokenise texts once, cut each sentence so that special tokens and template still fit into ``max_length``.

    Raises:
        ValueError: ``max_length`` leaves no room for a token of the sentence.
    """
    frame = sentence_frame(tokenizer, template)
    room = max_length - len(frame.before) - len(frame.after)
    if room < 1:
        surround = len(frame.before) + len(frame.after)
        raise ValueError(
            f"max_length must exceed the {surround} tokens of special tokens and template, got {max_length}"
        )
    ids = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    rows = [[*frame.before, *row[:room], *frame.after] for row in ids]
    first = [len(frame.before)] * len(rows)
    last = [len(row) - len(frame.after) for row in rows]
    return TokenizedTexts(rows, first, last, [len(row) > room for row in ids])


def pad(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], pad_to_multiple_of: int | None = None
) -> dict[str, Any]:
    """Pad on the right to the longest row. Returns ``input_ids`` and ``attention_mask`` (N, L), int64 tensors."""
    import torch

    length = max(map(len, rows))
    if pad_to_multiple_of:
        length = -(-length // pad_to_multiple_of) * pad_to_multiple_of
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    input_ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(length) < lengths[:, None]).to(torch.int64)}
