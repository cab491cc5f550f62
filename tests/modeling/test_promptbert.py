"""PromptBERT: a template for each view, and the template's own vector subtracted, against loops over float64."""

import copy

import pytest
import torch
from torch import Tensor

from csekit.modeling import CSEModel, SimCSEModel
from csekit.modeling.fast_packing import run_encoder
from csekit.modeling.templates import blanked
from csekit.modeling.tokenization import sentence_frame
from csekit.trainers.batches.collator import CSECollator
from tests.modeling.gradients import same_gradients

FIRST, SECOND = 'w50 w51 " {sentence} " means {mask} .', 'w60 " {sentence} means {mask} w61 w62'
FIELDS = {"pooling": "mask", "prompt_template": FIRST, "second_prompt_template": SECOND, "subtract_template": True}
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w11 [MASK] w12", "w13 w14 w15"]


def build(checkpoint, family="bert", **fields) -> SimCSEModel:
    return SimCSEModel.from_backbone(checkpoint(family, 0.0), **{**FIELDS, "temperature": 0.2, **fields})


def released_template(model, tokenizer, template: str, n: int) -> Tensor:
    """The mask token's state in the template alone, its tokens behind the sentence moved by n positions (H,)."""
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in template.replace("{mask}", "[MASK]").split("{sentence}")
    )
    before, after = [tokenizer.cls_token_id, *before], [*after, tokenizer.sep_token_id]
    ids = torch.tensor([before + after])
    positions = torch.arange(len(before + after))
    positions[len(before) :] += n
    states = model.backbone(input_ids=ids, position_ids=positions[None]).last_hidden_state
    return states[0, (before + after).index(tokenizer.mask_token_id)]


def released_view(model, tokenizer, texts: list[str], template: str, subtract: bool = True) -> Tensor:
    """g = MLP(h − ĥ) or MLP(h), one text after the other, (B, H)."""
    vectors = []
    for text in texts:
        words = tokenizer(text, add_special_tokens=False)["input_ids"]
        first, rest = template.replace("{mask}", "[MASK]").split("{sentence}")
        before = [tokenizer.cls_token_id, *tokenizer(first, add_special_tokens=False)["input_ids"]]
        after = [*tokenizer(rest, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
        ids = [*before, *words, *after]
        place = len(before) + len(words) + after.index(tokenizer.mask_token_id)
        h = model.backbone(input_ids=torch.tensor([ids])).last_hidden_state[0, place]
        vectors.append(h - subtract * released_template(model, tokenizer, template, len(words)))
    return model.projector(torch.stack(vectors))


def released(model, tokenizer, texts: list[str], naive) -> Tensor:
    """−(1/B) Σ_i log exp(cos(g_i, g'_i)/τ) / Σ_j exp(cos(g_i, g'_j)/τ)."""
    views = [released_view(model, tokenizer, texts, template) for template in (FIRST, SECOND)]
    return naive.info_nce(views[0], views[1], model.config.temperature)


def batch_of_texts(model, tokenizer, texts=TEXTS, **options) -> dict:
    config = model.config
    collator = CSECollator(tokenizer, 12, {}, 42, config.prompt_template, second_template=SECOND, **options)
    batch = collator([{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(texts)])
    return {name: batch[name] for name in ("input_ids", "attention_mask", "token_counts")}


@pytest.mark.parametrize("fast", ["1", "0"])
def test_the_loss_and_its_gradient_are_those_of_the_released_code(checkpoint, tokenizer_of, naive, monkeypatch, fast):
    monkeypatch.setenv("CSEKIT_FAST", fast)
    model = build(checkpoint).double().train()
    twin = copy.deepcopy(model)
    twin.backbone.set_attn_implementation("sdpa")
    output = model(**batch_of_texts(model, tokenizer_of("bert")))
    expected = released(twin, tokenizer_of("bert"), TEXTS, naive)
    torch.testing.assert_close(output.loss.double(), expected, rtol=1e-5, atol=1e-6)
    same_gradients(model, twin, output.loss, expected)


def test_a_template_alone_has_the_same_vector_packed_and_padded(checkpoint, tokenizer_of, family):
    """Nothing attends to the blanks, and position ids or distances behind them are those behind a sentence."""
    model = build(checkpoint, family).eval()
    frame = sentence_frame(tokenizer_of(family), FIRST)
    ids, mask = blanked(frame, 15, torch.device("cpu"))
    packed, padded = (run_encoder(model.backbone, mask, ids, packed=each).last_hidden_state for each in (True, False))
    torch.testing.assert_close(packed[mask.bool()], padded[mask.bool()], rtol=1e-4, atol=1e-5)
    other = torch.where(mask.bool(), ids, 7)
    found = run_encoder(model.backbone, mask, other, packed=False).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], padded[mask.bool()], rtol=1e-4, atol=1e-5)
    last = padded[torch.arange(len(ids)), mask.shape[1] - 1 - mask.flip(1).argmax(1)]
    assert len(last) == 15 - len(frame.before) - len(frame.after) + 1
    assert (last[1:] - last[:-1]).abs().max(1).values.min() > 1e-3  # the position counts


def test_inference_has_the_first_template_and_subtracts_nothing(checkpoint, tokenizer_of):
    plain = build(checkpoint, second_prompt_template=None, subtract_template=False).eval()
    model = build(checkpoint).eval()
    batch = batch_of_texts(model, tokenizer_of("bert"))
    ids, mask = batch["input_ids"][:, 0], batch["attention_mask"][:, 0]
    assert torch.equal(model(ids, mask).sentence_embedding, plain(ids, mask).sentence_embedding)
    views = model.encode_views(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(views.h[0], plain(ids, mask).sentence_embedding)


def test_a_checkpoint_reloads_with_its_templates(checkpoint, tokenizer_of, tmp_path):
    model = build(checkpoint)
    model.save_pretrained(tmp_path)
    again = SimCSEModel.from_pretrained(tmp_path)
    batch = batch_of_texts(model, tokenizer_of("bert"))
    assert torch.equal(again(**batch).loss, model(**batch).loss)
    assert again.config.second_prompt_template == SECOND


def test_the_views_draw_the_same_dropout_with_and_without_subtraction(checkpoint, tokenizer_of):
    models = [
        SimCSEModel.from_backbone(checkpoint("bert", 0.2), **FIELDS | {"subtract_template": own})
        for own in (False, True)
    ]
    models[1].load_state_dict(models[0].state_dict())
    batch = batch_of_texts(models[0], tokenizer_of("bert"))
    found, after = [], []
    for model in models:
        torch.manual_seed(3)
        found.append(model.train().encode_views(batch["input_ids"], batch["attention_mask"]))
        after.append(torch.rand(1))
    assert torch.equal(found[0].h, found[1].h)
    assert not torch.equal(found[0].z, found[1].z)
    assert torch.equal(after[0], after[1])


def test_a_sentence_is_found_again_under_another_template(checkpoint, tokenizer_of):
    """``mask_identical`` compares the sentences: under two templates no two texts would be equal."""
    texts = [["w1 w2", "w3"], ["w4", "w1 w2"], ["w5", "w6"]]
    model = build(checkpoint, mask_identical=True)
    collator = CSECollator(tokenizer_of("bert"), 12, {}, 42, FIRST, second_template=SECOND)
    batch = collator([{"texts": each, "index": i, "epoch": 0} for i, each in enumerate(texts)])
    output = model(batch["input_ids"], batch["attention_mask"])
    assert output.metrics["identical_texts"] == 1  # the query of row 0 is the positive of row 1


@pytest.mark.parametrize("second", [SECOND, None])
@pytest.mark.parametrize("subtract", [True, False])
def test_a_queue_has_the_first_view_s_vectors_by_the_copy(checkpoint, tokenizer_of, second, subtract):
    """Two steps: the template's own vector is the copy's too, without dropout."""
    own = {"second_prompt_template": second, "subtract_template": subtract}
    fields = {**FIELDS, **own, "queue_weight": 1.0, "queue_size": 10, "queue_momentum": 0.6}
    model = CSEModel.from_backbone(checkpoint("bert", 0.2), **fields).double().train()
    slow = copy.deepcopy(model).eval()
    tokenizer, keys = tokenizer_of("bert"), []
    for step in range(2):
        if step:
            for old, new in zip(slow.backbone.parameters(), model.backbone.parameters(), strict=True):
                old.data = 0.6 * old.data + 0.4 * new.data
            slow.projector.load_state_dict(model.projector.state_dict())
        output = model(**batch_of_texts(model, tokenizer))
        with torch.no_grad():
            keys.append(released_view(slow, tokenizer, TEXTS, FIRST, subtract))
        output.loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.0 if parameter.grad is None else 0.5 * parameter.grad
    assert (keys[1] - keys[0]).abs().max() > 0.1
    torch.testing.assert_close(model.objectives["queue"].keys_MH, torch.cat(keys), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("texts", "left_out"), [(["w4", "w1 w2"], True), (["w1 w2", "w4"], True), (["w4"], False)])
def test_a_sentence_is_found_again_in_the_queue(checkpoint, tokenizer_of, texts, left_out):
    """The queue holds one sentence in the first template; nothing else is a negative of the one row."""
    model = build(checkpoint, mask_identical=True, queue_weight=1.0, queue_size=1).train()
    collator = CSECollator(tokenizer_of("bert"), 12, {}, 42, FIRST, second_template=SECOND)
    first, second = (collator([{"texts": each, "index": 0, "epoch": 0}]) for each in (["w1 w2", "w3"], texts))
    model(first["input_ids"], first["attention_mask"])
    loss = model(second["input_ids"], second["attention_mask"]).loss
    assert (loss == 0) == left_out


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"second_prompt_template": "means {mask}"}, "second_prompt_template must hold '{sentence}' once"),
        ({"second_prompt_template": "{sentence} means"}, "second_prompt_template must hold '{sentence}' once"),
        ({"second_prompt_template": "{sentence} {mask} [MASK]"}, "second_prompt_template must hold one mask token"),
        ({"second_prompt_template": 3}, "second_prompt_template must be text or None, got 3"),
        ({"subtract_template": "yes"}, "subtract_template must be True or False, got 'yes'"),
        ({"projector_at_inference": True}, "projector_at_inference must be False with subtract_template"),
        ({"prompt_template": "means {mask}"}, "prompt_template must hold '{sentence}' once"),
    ],
)
def test_templates_that_are_not_allowed(checkpoint, fields, words):
    with pytest.raises(ValueError, match=words.replace("{", r"\{")):
        build(checkpoint, **fields)


@pytest.mark.parametrize("field", [{"second_prompt_template": SECOND}, {"subtract_template": True}])
def test_both_need_a_first_template_and_its_tokens(checkpoint, encoder_config, field):
    with pytest.raises(ValueError, match=f"{next(iter(field))} needs a prompt_template with .* got None"):
        SimCSEModel.from_backbone(checkpoint("bert"), **field)
    config = CSEModel.config_class(encoder_config=encoder_config("bert"), prompt_template=FIRST, **field)
    with pytest.raises(ValueError, match="need prompt_frames, got None: build the model with from_backbone"):
        CSEModel(config)


def test_two_templates_need_two_columns(checkpoint, make_batch):
    with pytest.raises(ValueError, match=r"a column for each template, \(B, 2, L\), got one column"):
        build(checkpoint)(**make_batch(4, 1, 20))
