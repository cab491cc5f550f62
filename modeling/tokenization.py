"""From texts to token ids. A prompt template is added at token level, so that truncation cuts the sentence only."""

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
    """The ids around a sentence: special tokens and template.

    Arguments:
        before, after: ids in front of and behind the sentence.
        mask_offset: position of the template's mask token, counted from the first token (≥ 0) or from the last (< 0);
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
        first, last: per text, the slice of ``input_ids`` that is the sentence itself, whose tokens may be masked.
        truncated: per text, True if the sentence lost tokens.
    """

    input_ids: list[list[int]]
    first: list[int]
    last: list[int]
    truncated: list[bool]


@lru_cache(maxsize=32)
def sentence_frame(
    tokenizer: PreTrainedTokenizerBase, template: str | None = None, field: str = "prompt_template"
) -> Frame:
    """Return the ids around a sentence.

    Arguments:
        template: contains ``{sentence}`` and ``{mask}``, e.g. ``"{sentence}" means {mask}.`` Its parts are tokenised
            separately, so that sentence and template never share a token. If it ends in ``{mask}``, no special token
            follows, and the mask token is the last one. None means the tokenizer's own, see :func:`own_template`.
            For a tokenizer without a mask token (of a decoder language model) the template has no ``{mask}``, and no
            special token follows it.
        field: name of the template's setting, for the messages.

    Raises:
        ValueError: the template lacks a placeholder, or the tokenizer has no mask token or holds another template.
    """
    lead, tail = _special_frame(tokenizer)
    if template in (None, own_template(tokenizer)):
        offset = None if template is None else _mask_offset(lead, tail, tokenizer.mask_token_id)
        return Frame(lead, tail, offset)
    if tokenizer.mask_token is None and template.count("{sentence}") == 1 and "{mask}" not in template:
        prefix_ids, suffix_ids = _template_ids(tokenizer, template)
        return Frame(lead + prefix_ids, suffix_ids, None)  # pooling reads the template's last token
    if template.count("{sentence}") != 1 or template.count("{mask}") != 1:
        raise ValueError(f"{field} must hold '{{sentence}}' once and '{{mask}}' once, got {template!r}")
    if tokenizer.mask_token is None:
        raise ValueError(f"{field} needs a tokenizer with a mask token, this one has none")
    if tokenizer.mask_token_id in lead + tail:
        held = own_template(tokenizer)
        raise ValueError(f"{field} must be {held!r}, which the tokenizer itself holds, got {template!r}")
    prefix_ids, suffix_ids = _template_ids(tokenizer, template)
    before, after = lead + prefix_ids, suffix_ids + (() if template.endswith("{mask}") else tail)
    if (before + after).count(tokenizer.mask_token_id) != 1:
        raise ValueError(f"{field} must hold one mask token, as '{{mask}}', got {template!r}")
    return Frame(before, after, _mask_offset(before, after, tokenizer.mask_token_id))


def _template_ids(tokenizer: PreTrainedTokenizerBase, template: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the template's own ids in front of and behind the sentence."""
    prefix, suffix = template.replace("{mask}", str(tokenizer.mask_token)).split("{sentence}")
    before, after = (tuple(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (prefix, suffix))
    return before, after


def training_length(tokenizer: PreTrainedTokenizerBase, max_seq_length: int, template: str | None = None) -> int:
    """Return how many tokens a training text has at most, with its template.

    ``max_seq_length`` counts the sentence and the tokenizer's special tokens. The template's tokens come on top, so
    that a sentence is as long with a template as without one.

    Raises:
        ValueError: :func:`sentence_frame` refuses the template.
    """
    frame = sentence_frame(tokenizer, template)
    held = own_template(tokenizer)
    if held is not None:
        return max_seq_length + sum(map(len, _template_ids(tokenizer, held)))
    lead, tail = _special_frame(tokenizer)
    return max_seq_length + len(frame.before) + len(frame.after) - len(lead) - len(tail)


def _mask_offset(before: tuple[int, ...], after: tuple[int, ...], mask_id: int | None) -> int | None:
    if mask_id in after:
        return after.index(mask_id) - len(after)
    return before.index(mask_id) if mask_id in before else None


def own_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the template that a tokenizer itself puts around every text (see :func:`with_template`), or None."""
    return tokenizer.init_kwargs.get("prompt_template")


def with_template(tokenizer: PreTrainedTokenizerBase, template: str) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer that puts the template around every text, as :func:`tokenize` does.

    Its post-processor adds the template, so its own truncation cuts the sentence only. ``own_template`` returns the
    template, also after a reload.

    Raises:
        ValueError: the tokenizer has no Rust backend, hence no post-processor; or :func:`sentence_frame` refuses the
            template.
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
    """Return the special tokens that the tokenizer puts in front of and behind a sentence.

    They are read off the first probe text that has a token (not every vocabulary has the letter a) and whose tokens
    are found once in its own encoding."""
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
    """Yield probe texts: "a" first, then the vocabulary, which can take seconds to list."""
    yield "a"
    yield from tokenizer.get_vocab()


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, template: str | None = None
) -> TokenizedTexts:
    """Tokenise texts once. A sentence loses its end if it does not fit into ``max_length`` with its frame.

    Arguments:
        max_length: tokens per text, special tokens and template included.
        template: see :func:`sentence_frame`.

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
    """Return the token ids of texts without special tokens and without a length limit.

    The Rust tokenizer computes only the ids, no offsets and masks, which takes a fifth less time."""
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
    """Pad rows on the right to the longest one. Return ``input_ids`` and ``attention_mask``, (N, L) int64 tensors."""
    length = max(map(len, rows))
    if pad_to_multiple_of:
        length = -(-length // pad_to_multiple_of) * pad_to_multiple_of
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    input_ids = torch.tensor([[*row, *[pad_id] * (length - len(row))] for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": input_ids, "attention_mask": (torch.arange(length) < lengths[:, None]).to(torch.int64)}
