"""The generator: frozen, outside the state dict, the right one after a reload, of the right vocabulary."""

import pytest
import torch
from huggingface_hub import constants
from safetensors import safe_open
from transformers import AutoModel, AutoModelForMaskedLM

from csekit.modeling import DiffCSEModel
from csekit.modeling import generator as module
from csekit.modeling.generator import draw

H = 16


def test_sampling_follows_the_generator(checkpoint):
    model = DiffCSEModel.from_backbone(checkpoint("bert"))
    generator, draws = model.objectives["rtd"].generator, 4000
    ids = torch.tensor([[2, 20, 4, 30, 3]])
    mask = torch.ones_like(ids)
    wanted = generator.logits(ids, mask, torch.tensor([2])).softmax(-1)[0]
    drawn = generator.fill(ids.repeat(draws, 1), mask.repeat(draws, 1), 5 * torch.arange(draws) + 2, "sample")[:, 2]
    shares = torch.bincount(drawn, minlength=97) / draws
    assert (shares - wanted).abs().max() < 4 * (0.25 / draws) ** 0.5
    assert generator.fill(ids, mask, torch.tensor([2]), "argmax")[0, 2] == wanted.argmax()
    for sampling in ("sample", "argmax"):
        assert torch.equal(generator.fill(ids, mask, torch.tensor([], dtype=torch.int64), sampling), ids)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-24])
def test_nothing_impossible_is_drawn(number, monkeypatch):
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, number))
    logits = torch.full((7, 1000), -torch.inf).scatter_(1, torch.tensor([[3, 500, 997]] * 7), torch.randn(7, 3))
    assert set(draw(logits).tolist()) <= {3, 500, 997}


@pytest.mark.parametrize("vocabulary", [1, 127, 128, 129, 1000])
def test_draws_of_any_vocabulary_follow_its_distribution(vocabulary, monkeypatch):
    """Inversion by hand: the token at which the running sum exceeds the number."""
    logits, number = torch.randn(200, vocabulary, dtype=torch.float64), 0.0
    monkeypatch.setattr(torch, "rand_like", lambda like: torch.full_like(like, number))
    for number in (0.0, 0.2, 0.7, 0.99):
        sums = logits.softmax(-1).cumsum(-1)
        wanted = (sums <= number).sum(-1)
        near = (sums - number).abs().amin(-1) < 1e-5  # between two tokens by rounding
        drawn = draw(logits.float())
        assert torch.equal(drawn[~near], wanted[~near])
        assert near.sum() < 20


def test_parts_are_filled_as_the_whole(checkpoint, monkeypatch):
    generator = DiffCSEModel.from_backbone(checkpoint("bert")).objectives["rtd"].generator
    ids = torch.randint(5, 97, (9, 20))
    arguments = ids, torch.ones_like(ids), torch.arange(0, 180, 3), "argmax"
    whole = generator.fill(*arguments)
    monkeypatch.setattr(module, "_STATES", 7)
    assert torch.equal(generator.fill(*arguments), whole)


def test_its_linear_maps_have_autocasts_precision(checkpoint):
    """The logits are bit for bit those that autocast computes from the exact weights, and exact ones without it."""
    generator, exact = (DiffCSEModel.from_backbone(checkpoint("bert")).objectives["rtd"].generator for _ in range(2))
    arguments = torch.tensor([[2, 20, 4, 30, 3]]), torch.ones(1, 5, dtype=torch.long), torch.arange(5)

    def precisions(each):
        return {module.weight.dtype for module in each.networks.modules() if type(module) is torch.nn.Linear}

    plain = generator.logits(*arguments)
    assert plain.dtype == torch.float32 and precisions(generator) == {torch.float32}
    exact._precision = torch.bfloat16  # nothing to convert, so that autocast does
    with torch.autocast("cpu", torch.bfloat16):
        logits = generator.logits(*arguments)
        assert logits.dtype == torch.bfloat16 and torch.equal(logits, exact.logits(*arguments))
        assert precisions(generator) == {torch.bfloat16} and precisions(exact) == {torch.float32}
        assert generator.backbone.get_input_embeddings().weight.dtype == torch.float32
    assert torch.equal(generator.logits(*arguments), plain) and precisions(generator) == {torch.float32}


@pytest.mark.parametrize("scope", ["masked", "all"])
def test_only_wanted_rows_meet_the_vocabulary(checkpoint, batch_of, scope):
    model = DiffCSEModel.from_backbone(checkpoint("bert"), edit_scope=scope)
    batch, rows = batch_of(model), []
    decoder = model.objectives["rtd"].generator.head.get_output_embeddings()
    decoder.register_forward_hook(lambda _, given, __: rows.append(given[0].shape[:-1].numel()))
    model(**batch)
    wanted = len(batch["rtd_positions" if scope == "masked" else "rtd_own"])
    assert rows == [1 << (wanted - 1).bit_length()]  # filled up to a power of two


def test_generator_is_neither_saved_nor_trained_nor_random(checkpoint, batch_of, tmp_path):
    model = DiffCSEModel.from_backbone(checkpoint("bert")).train()
    generator = model.objectives["rtd"].generator
    assert not generator.networks.training and not any(p.requires_grad for p in generator.networks.parameters())
    source = AutoModelForMaskedLM.from_pretrained(checkpoint("bert"))
    ids = torch.tensor([[2, 20, 4, 30, 3]])
    everything = torch.arange(5)

    def same(generator):
        with torch.no_grad():
            expected = source.eval()(input_ids=ids).logits[0]
        torch.testing.assert_close(generator.logits(ids, torch.ones_like(ids), everything), expected)

    same(generator)
    kept = {name: value.clone() for name, value in generator.networks.state_dict().items()}
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert not {id(p) for p in generator.networks.parameters()} & {id(p) for p in model.parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = batch_of(model)
    for _ in range(3):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [name for name, value in model.named_parameters() if torch.equal(value, before[name])] == []
    assert all(torch.equal(value, kept[name]) for name, value in generator.networks.state_dict().items())

    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = set(file.keys())
    sizes = {prefix: len([n for n in saved if n.startswith(prefix)]) for prefix in ("backbone", "objectives")}
    assert sizes["objectives"] == sizes["backbone"] + 2  # one discriminator and its head, nothing else
    again = DiffCSEModel.from_pretrained(tmp_path, training=True)
    assert again.config.rtd_generator == str(checkpoint("bert"))
    same(again.objectives["rtd"].generator)
    assert again(**batch).loss.isfinite()

    bare = DiffCSEModel.from_pretrained(tmp_path)
    assert bare(input_ids=ids).sentence_embedding.shape == (1, H)  # inference needs none
    with pytest.raises(RuntimeError, match=r"objective 'rtd' has no generator yet: call load_frozen\(\)"):
        bare(**batch)
    with pytest.raises(ValueError, match="generator '/nowhere' cannot be loaded"):
        DiffCSEModel.from_pretrained(tmp_path, training=True, rtd_generator="/nowhere")
    moved = DiffCSEModel.from_pretrained(tmp_path, training=True, rtd_generator=str(checkpoint("distilbert")))
    assert type(moved.objectives["rtd"].generator.backbone).__name__ == "DistilBertModel"


def test_generator_of_another_family_and_size(checkpoint, batch_of):
    model = DiffCSEModel.from_backbone(checkpoint("bert"), generator=str(checkpoint("distilbert")))
    assert type(model.objectives["rtd"].generator.backbone).__name__ == "DistilBertModel"
    assert model.config.generator == str(checkpoint("distilbert"))
    assert model(**batch_of(model)).loss.isfinite()


def test_another_vocabulary_is_refused(checkpoint):
    """DistilRoBERTa's special tokens stand elsewhere."""
    message = r"rtd_generator must have the vocabulary of the encoder.*: 2 tokens differ, e.g. '\[PAD\]' with id 0"
    with pytest.raises(ValueError, match=message):
        DiffCSEModel.from_backbone(checkpoint("bert"), generator=str(checkpoint("roberta")))
    with pytest.raises(ValueError, match="rtd_discriminator must have the vocabulary"):
        DiffCSEModel.from_backbone(checkpoint("bert"), discriminator=str(checkpoint("roberta")))


def test_a_checkpoint_without_head_is_no_generator(encoder_config, tokenizer_of, tmp_path):
    AutoModel.from_config(encoder_config("bert")).save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is no masked LM: it lacks \d+ weights, e.g. 'cls.predictions"):
        DiffCSEModel.from_backbone(tmp_path)


def test_offline_the_generator_that_is_not_in_the_cache_is_named(checkpoint, monkeypatch):
    """The command blamed the encoder, which was there."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="'no-owner/no-name' is no folder here and not in the cache"):
        DiffCSEModel.from_backbone(checkpoint("bert"), generator="no-owner/no-name")
    assert constants.HF_HUB_OFFLINE
