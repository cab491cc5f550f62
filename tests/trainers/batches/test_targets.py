"""What a decoder shall write: a view's own tokens, its input words dropped by seed, epoch, sample and place."""

from typing import Any

import pytest
import torch

from csekit.modeling import TargetSpec
from csekit.modeling.tokenization import tokenize, training_length
from csekit.trainers.batches.collator import CSECollator

TEMPLATE = 'This: "{sentence}" means {mask}.'


def rows(texts: list[list[str]], epoch: int = 0) -> list[dict[str, Any]]:
    return [{"texts": row, "index": 10 + i, "epoch": epoch} for i, row in enumerate(texts)]


def spec(dropped: float = 0.0, view: int = 0) -> dict[str, TargetSpec]:
    return {"icm": TargetSpec(dropped, mask_share=1.0, random_share=0.0, view=view)}


def by_sample(batch: dict[str, Any]) -> dict[int, list[int]]:
    """The input of each sample."""
    both = zip(batch["icm_input_ids"], batch["icm_attention_mask"], strict=True)
    return {int(i): ids[mask.bool()].tolist() for i, (ids, mask) in zip(batch["index"], both, strict=True)}


@pytest.mark.parametrize("view", [0, 1])
@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_a_target_is_the_text_alone(
    tokenizer: Any, sentences: list[str], template: str | None, columns: int, view: int
) -> None:
    """Cut as the encoder's text is; special tokens in the text itself are read, never written."""
    texts = [f"{tokenizer.mask_token} of {sentences[0]}", *sentences[1:]]
    items = rows([[texts[(i + c) % len(texts)] for c in range(columns)] for i in range(len(texts))])
    batch = CSECollator(tokenizer, 24, spec(view=view), prompt_template=template)(items)
    length = training_length(tokenizer, 24, template)
    tokens = tokenize(tokenizer, [row["texts"][min(view, columns - 1)] for row in items], length, template)
    own = [ids[f:e] for ids, f, e in zip(tokens.input_ids, tokens.first, tokens.last, strict=True)]
    assert list(by_sample(batch).values()) == own
    assert batch["icm_input_ids"].shape == (len(items), max(map(len, own)))
    special = set(tokenizer.all_special_ids)
    written = [(row, place) for row, ids in enumerate(own) for place, i in enumerate(ids) if i not in special]
    K = batch["icm_input_ids"].shape[1]
    assert batch["icm_positions"].tolist() == [row * K + place for row, place in written]
    assert batch["icm_labels"].tolist() == [own[row][place] for row, place in written]
    assert len(written) < sum(map(len, own))
    assert {batch[f"icm_{key}"].dtype for key in ("input_ids", "attention_mask", "positions", "labels")} == {
        torch.int64
    }


def test_dropped_words(wordpiece: Any, sentences: list[str]) -> None:
    """All labels stay; a share of the input becomes the mask token, the same in any batch, another in any epoch."""
    items = rows([[text] for text in sentences])
    plain, dropped = (CSECollator(wordpiece, 32, spec(share))(items) for share in (0.0, 0.5))
    assert torch.equal(plain["icm_labels"], dropped["icm_labels"])
    changed = plain["icm_input_ids"] != dropped["icm_input_ids"]
    assert (dropped["icm_input_ids"][changed] == wordpiece.mask_token_id).all()
    assert 0.3 < changed.sum() / len(plain["icm_labels"]) < 0.7
    whole = by_sample(dropped)
    assert all(
        by_sample(CSECollator(wordpiece, 32, spec(0.5))([item]))[item["index"]] == whole[item["index"]]
        for item in items
    )
    for other in (
        CSECollator(wordpiece, 32, spec(0.5), seed=1)(items),
        CSECollator(wordpiece, 32, spec(0.5))(rows([[text] for text in sentences], epoch=1)),
        CSECollator(wordpiece, 32, spec(0.5, view=1))(items),
    ):
        assert by_sample(other) != whole
    everything = CSECollator(wordpiece, 32, spec(1.0))(items)
    assert (everything["icm_input_ids"].flatten()[everything["icm_positions"]] == wordpiece.mask_token_id).all()


def test_widths(wordpiece: Any, sentences: list[str]) -> None:
    batch = CSECollator(wordpiece, 32, spec(), pad_to_multiple_of=8)(rows([[text] for text in sentences]))
    assert batch["icm_input_ids"].shape[1] % 8 == 0
    assert (batch["icm_input_ids"][batch["icm_attention_mask"] == 0] == wordpiece.pad_token_id).all()
    empty = CSECollator(wordpiece, 32, spec())(rows([[""], [" "]]))
    assert empty["icm_input_ids"].shape == (2, 1)
    assert not empty["icm_attention_mask"].any()
    assert empty["icm_positions"].shape == empty["icm_labels"].shape == (0,)


def test_refusals(wordpiece: Any) -> None:
    with pytest.raises(ValueError, match=r"batch_specs\['icm'\]: view must be 0 or 1, got 2"):
        CSECollator(wordpiece, 32, spec(view=2))
