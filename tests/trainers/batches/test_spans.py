"""Two nested masked spans of a sentence."""

import numpy as np
import pytest

from csekit.modeling.objectives import SpanSpec
from csekit.modeling.tokenization import sentence_frame
from csekit.trainers.batches.collator import CSECollator

SPANS = {"triplet": SpanSpec(0.2, longer=0.4)}
TEMPLATE = 'This: "{sentence}" means {mask}.'


def rows(sentences, epoch=0):
    return [{"texts": [text], "index": i, "epoch": epoch} for i, text in enumerate(sentences)]


def spans(collator, sentences, epoch=0):
    """Per sentence: its number of tokens, and the places of both spans among them."""
    batch = collator(rows(sentences, epoch))
    frame = sentence_frame(collator.tokenizer, collator.templates[0])
    found = []
    for i in range(len(sentences)):
        ids, copies = batch["input_ids"][i, 0], batch["triplet_input_ids"].unflatten(0, (2, -1))[:, i]
        own = slice(len(frame.before), int(batch["attention_mask"][i, 0].sum()) - len(frame.after))
        changed = (copies != ids).numpy()
        assert not changed[:, : own.start].any()
        assert not changed[:, own.stop :].any()
        assert (copies.numpy()[changed] == collator.tokenizer.mask_token_id).all()
        found.append((own.stop - own.start, *(np.flatnonzero(each[own]) for each in changed)))
    return found


@pytest.mark.parametrize("template", [None, TEMPLATE])
def test_both_are_spans_of_the_sentence_and_one_lies_in_the_other(tokenizer, sentences, template):
    collator = CSECollator(tokenizer, 32, SPANS, prompt_template=template)
    for tokens, short, long in spans(collator, sentences):
        assert (len(short), len(long)) == (int(0.2 * tokens + 0.5), int(0.4 * tokens + 0.5))
        for span in (short, long):
            assert len(span) == 0 or span[-1] - span[0] + 1 == len(span)
        assert set(short) <= set(long)


def test_a_sentence_s_spans_are_its_own_in_any_batch_and_change_with_the_epoch(wordpiece, sentences):
    collator = CSECollator(wordpiece, 32, SPANS)
    longest = max(sentences, key=lambda text: len(wordpiece(text)["input_ids"]))
    place = sentences.index(longest)
    (alone,) = [batch["triplet_input_ids"] for batch in [collator([{"texts": [longest], "index": place, "epoch": 0}])]]
    among = collator(rows(sentences))["triplet_input_ids"].unflatten(0, (2, -1))[:, place]
    assert (alone == among[:, : alone.shape[1]]).all()
    drawn = [spans(collator, [longest] * 200, epoch)[:] for epoch in (0, 1)]
    starts = [[(short[0], long[0]) for _, short, long in each] for each in drawn]
    assert starts[0] != starts[1]
    tokens, short, long = drawn[0][0]
    assert {start for _, start in starts[0]} == set(range(tokens - len(long) + 1))  # each place of the long span
    assert {short - long for short, long in starts[0]} == set(range(len(long) - len(short) + 1))


@pytest.mark.parametrize("rates", [(0.4, 0.4), (0.5, 0.2), (0.2, 1.1)])
def test_spans_that_are_not_nested_are_refused(wordpiece, rates):
    spec = SpanSpec(rates[0], longer=rates[1])
    with pytest.raises(ValueError, match=r"batch_specs\['triplet'\]: longer must exceed probability and be at most 1"):
        CSECollator(wordpiece, 32, {"triplet": spec})
