"""Texts to token ids, a prompt template spliced in at token level: the sentence is truncated, the template never."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
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
    """The ids around a sentence.

    Arguments:
        template: holds ``{sentence}`` and ``{mask}``, e.g. ``"{sentence}" means {mask}.`` Its parts are tokenised on
            their own, so that sentence and template never share a token. One that ends in ``{mask}`` is the end of
            the text: no special token follows, and the mask token is the last of all. None: the tokenizer's own, see
            :func:`own_template`.

    Raises:
        ValueError: the template lacks a placeholder, the tokenizer has no mask token or holds another template.
    """
    lead, tail = _special_frame(tokenizer)
    if template in (None, own_template(tokenizer)):
        offset = None if template is None else _mask_offset(lead, tail, tokenizer.mask_token_id)
        return Frame(lead, tail, offset)
    if template.count("{sentence}") != 1 or template.count("{mask}") != 1:
        raise ValueError(f"prompt_template must hold '{{sentence}}' once and '{{mask}}' once, got {template!r}")
    if tokenizer.mask_token is None:
        raise ValueError("prompt_template needs a tokenizer with a mask token, this one has none")
    if tokenizer.mask_token_id in lead + tail:
        held = own_template(tokenizer)
        raise ValueError(f"prompt_template must be {held!r}, which the tokenizer itself holds, got {template!r}")
    prefix, suffix = template.replace("{mask}", tokenizer.mask_token).split("{sentence}")
    prefix_ids, suffix_ids = (
        tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (prefix, suffix)
    )
    before, after = lead + prefix_ids, suffix_ids + (() if template.endswith("{mask}") else tail)
    if (before + after).count(tokenizer.mask_token_id) != 1:
        raise ValueError(f"prompt_template must hold one mask token, as '{{mask}}', got {template!r}")
    return Frame(before, after, _mask_offset(before, after, tokenizer.mask_token_id))


def _mask_offset(before: tuple[int, ...], after: tuple[int, ...], mask_id: int | None) -> int | None:
    if mask_id in after:
        return after.index(mask_id) - len(after)
    return before.index(mask_id) if mask_id in before else None


def own_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The template that a tokenizer puts around every text by itself (see :func:`with_template`), or None."""
    return tokenizer.init_kwargs.get("prompt_template")


def with_template(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer whose post-processor puts the template around every text, as :func:`tokenize` does: its
    own truncation then cuts the sentence and never the template. ``own_template`` names it, also after a reload.

    Raises:
        ValueError: the tokenizer has no Rust backend, and so no post-processor; what :func:`sentence_frame` refuses.
    """
    frame = sentence_frame(tokenizer, template)
    if not tokenizer.is_fast:
        raise ValueError(f"prompt_template needs a fast tokenizer, got {type(tokenizer).__name__}")
    baked = copy.deepcopy(tokenizer)
    if own_template(tokenizer) == template:
        return baked
    around = {"Before": list(frame.before), "After": list(frame.after)}
    pieces = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in around.items() if ids
    ]
    single = " ".join(name for name in ("Before", "$A", "After") if around.get(name, True))
    pair = single.replace("$A", "$A $B")
    baked.backend_tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=pieces)
    baked.init_kwargs["prompt_template"] = template
    return baked


def _special_frame(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer itself puts in front of and behind a sentence, seen on the first text that has a token at all
    (not every vocabulary knows the letter a) and that does not stand in the frame as well."""
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for text in _probes(tokenizer):
        probe = tokenizer(text, add_special_tokens=False)["input_ids"]
        if probe and not set(probe) & special:
            framed = tokenizer(text, add_special_tokens=True)["input_ids"]
            starts = [i for i in range(len(framed)) if framed[i : i + len(probe)] == probe]
            if len(starts) == 1:
                return tuple(framed[: starts[0]]), tuple(framed[starts[0] + len(probe) :])
    raise ValueError("the tokenizer makes no token of any piece of its own vocabulary")


def _probes(tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Texts to look for the frame with; the vocabulary, which can take seconds to list, only where "a" will not do."""
    yield "a"
    yield from tokenizer.get_vocab()


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, template: str | None = None
) -> TokenizedTexts:
    """Tokenise texts once, cut the end of each sentence so that special tokens and template still fit into
    ``max_length``.

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
    ids = _sentence_ids(tokenizer, list(texts))
    rows = [[*frame.before, *row[:room], *frame.after] for row in ids]
    first = [len(frame.before)] * len(rows)
    last = [len(row) - len(frame.after) for row in rows]
    return TokenizedTexts(rows, first, last, [len(row) > room for row in ids])


def _sentence_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """Token ids without special tokens, of any length. The Rust tokenizer is asked for ids alone, which takes a fifth
    less time than the full call: no offsets, no masks."""
    if not tokenizer.is_fast:
        return tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def pad(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], pad_to_multiple_of: int | None = None
) -> dict[str, Any]:
    """Pad on the right to the longest row. Returns ``input_ids`` and ``attention_mask`` (N, L), int64 tensors."""
    length = max(map(len, rows))
    if pad_to_multiple_of:
        length = -(-length // pad_to_multiple_of) * pad_to_multiple_of
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    input_ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(length) < lengths[:, None]).to(torch.int64)}
