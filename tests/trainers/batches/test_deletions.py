"""Noisy copies of a sentence, and the tokens that a decoder writes from them."""

from typing import Any

import pytest

from csekit.modeling import DeletionSpec
from csekit.modeling.tokenization import sentence_frame
from csekit.trainers.batches.collator import CSECollator

TEMPLATE = 'This: "{sentence}" means {mask}.'


def rows(texts: list[str], epoch: int = 0, columns: int = 1) -> list[dict[str, Any]]:
    return [
        {"texts": [texts[(i + c) % len(texts)] for c in range(columns)], "index": i, "epoch": epoch}
        for i in range(len(texts))
    ]


def noisy(batch: dict[str, Any]) -> list[list[int]]:
    pairs = zip(batch["tsdae_input_ids"], batch["tsdae_attention_mask"], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


def whole(batch: dict[str, Any]) -> list[list[int]]:
    pairs = zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], strict=True)
    return [ids[mask.bool()].tolist() for ids, mask in pairs]


def is_subsequence(part: list[int], full: list[int]) -> bool:
    rest = iter(full)
    return all(token in rest for token in part)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_a_copy_keeps_the_frame_and_some_tokens_in_order(
    tokenizer: Any, sentences: list[str], template: str | None, columns: int
) -> None:
    collator = CSECollator(tokenizer, 24, {"tsdae": DeletionSpec(0.6)}, prompt_template=template)
    batch, frame = collator(rows(sentences, columns=columns)), sentence_frame(tokenizer, template)
    before, after = list(frame.before), list(frame.after)
    left = 0
    for copy, text in zip(noisy(batch), whole(batch), strict=True):
        assert copy[: len(before)] == before
        assert copy[len(copy) - len(after) :] == after
        assert len(copy) > len(before) + len(after)
        assert is_subsequence(copy, text)
        left += len(copy) - len(before) - len(after)
    own = [text[len(before) : len(text) - len(after)] for text in whole(batch)]
    assert left < 0.6 * sum(map(len, own))
    L = batch["input_ids"].shape[2]
    written = [i * L + len(before) + place for i, tokens in enumerate(own) for place in range(len(tokens) + 1)]
    assert batch["tsdae_positions"].tolist() == written
    assert batch["tsdae_labels"].tolist() == batch["input_ids"][:, 0].flatten()[written].tolist()


def test_one_token_stays_and_the_draw_is_the_sample_s(wordpiece: Any, sentences: list[str]) -> None:
    spec = {"tsdae": DeletionSpec(0.999)}
    collator = CSECollator(wordpiece, 32, spec)
    first, again, later = (noisy(collator(rows(sentences, epoch))) for epoch in (0, 0, 1))
    assert first == again != later
    assert {len(copy) for copy in first} == {3}
    (alone,) = noisy(collator(rows(sentences)[4:5]))
    assert alone == first[4]


def test_nothing_is_deleted_at_zero(wordpiece: Any, sentences: list[str]) -> None:
    batch = CSECollator(wordpiece, 32, {"tsdae": DeletionSpec(0.0)}, pad_to_multiple_of=8)(rows(sentences))
    assert noisy(batch) == whole(batch)
    assert batch["tsdae_input_ids"].shape[1] % 8 == 0
