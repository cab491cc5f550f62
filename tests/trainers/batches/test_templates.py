"""Prompt templates: what stands around a sentence, in training and in an exported tokenizer alike."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, CanineTokenizer

from csekit.modeling.export import save_tokenizer
from csekit.modeling.tokenization import Frame, own_template, sentence_frame, tokenize, with_template

TEMPLATES = [
    '"{sentence}" means {mask}.',
    '"{sentence}" means {mask}',
    'a sentence: "{sentence}" means {mask}.',  # the letter that the frame is looked for with
    '{mask} is meant by "{sentence}"',
    "{sentence}{mask}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_tokenizer_with_the_template_does_what_training_does(
    tokenizer: Any, sentences: list[str], template: str, tmp_path: Path
) -> None:
    """The same ids at any length, also after a reload; the sentence is cut, the template never."""
    before = tokenizer.backend_tokenizer.to_str()
    save_tokenizer(tokenizer, tmp_path, 128, template)
    for baked in (with_template(tokenizer, template), AutoTokenizer.from_pretrained(tmp_path)):
        assert own_template(baked) == template
        frame = sentence_frame(tokenizer, template)
        for length in (len(frame.before) + len(frame.after) + room for room in (1, 6, 60)):
            texts = [*sentences, f"I am {tokenizer.mask_token} here", sentences[0] * 5]
            expected = tokenize(tokenizer, texts, length, template)
            assert baked(texts, truncation=True, max_length=length)["input_ids"] == expected.input_ids
            assert tokenize(baked, texts, length).input_ids == expected.input_ids  # not put around it twice
            assert tokenize(baked, texts, length, template) == expected
        assert sentence_frame(baked, template) == sentence_frame(tokenizer, template)
        assert baked.model_input_names == tokenizer.model_input_names
    assert own_template(tokenizer) is None
    tokenizer.backend_tokenizer.no_truncation()
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_mask_token_of_the_template_is_found(tokenizer: Any, template: str) -> None:
    frame = sentence_frame(tokenizer, template)
    (ids,) = tokenize(tokenizer, [f"{tokenizer.mask_token} {tokenizer.mask_token}"], 40, template).input_ids
    plain = tokenizer("x")["input_ids"]
    assert frame.mask_offset is not None
    assert ids[frame.mask_offset] == tokenizer.mask_token_id
    assert ids[0] == plain[0]
    if template.endswith("{mask}"):
        assert frame.mask_offset == -1  # the last of all: no [SEP]
    else:
        assert ids[-1] == plain[-1]


def test_sentence_and_template_share_no_token(tokenizers: Any) -> None:
    """Byte-level BPE would join the full stop with the quotation mark behind it."""
    tokenizer = tokenizers["bytelevel"]
    frame = sentence_frame(tokenizer, TEMPLATES[0])
    (spliced,) = tokenize(tokenizer, ["It rains."], 64, TEMPLATES[0]).input_ids
    own = tokenizer("It rains.", add_special_tokens=False)["input_ids"]
    assert tuple(spliced) == (*frame.before, *own, *frame.after)


def test_another_template_than_the_tokenizer_s_is_refused(tokenizer: Any) -> None:
    baked = with_template(tokenizer, TEMPLATES[0])
    with pytest.raises(ValueError, match=r"prompt_template must be .* .*, which the tokenizer itself holds"):
        sentence_frame(baked, TEMPLATES[1])
    with pytest.raises(ValueError, match="which the tokenizer itself holds"):
        with_template(baked, TEMPLATES[3])
    assert sentence_frame(with_template(baked, TEMPLATES[0])) == sentence_frame(baked)


def test_a_template_that_makes_no_sense_is_refused(tokenizer: Any) -> None:
    for template in ("means {mask}", "{sentence} means", "{sentence} {sentence} {mask}", "{sentence} {mask} {mask}"):
        with pytest.raises(ValueError, match=r"must hold '\{sentence\}' once and '\{mask\}' once, got"):
            sentence_frame(tokenizer, template)
    with pytest.raises(ValueError, match=r"must hold one mask token, as '\{mask\}'"):
        sentence_frame(tokenizer, "{sentence} " + tokenizer.mask_token + " means {mask}.")


def test_a_slow_tokenizer_splices_but_cannot_hold_a_template() -> None:
    tokenizer = CanineTokenizer()
    frame = sentence_frame(tokenizer, "{sentence}={mask}.")
    assert frame == Frame(
        (tokenizer.cls_token_id,), (ord("="), tokenizer.mask_token_id, ord("."), frame.after[-1]), -3
    )
    with pytest.raises(ValueError, match="prompt_template needs a fast tokenizer, got CanineTokenizer"):
        with_template(tokenizer, "{sentence}={mask}.")
