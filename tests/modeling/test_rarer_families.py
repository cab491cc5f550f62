"""Families beside those of the other tests: what an objective needs of them is there, or is refused by its name when
the model is built, before a training starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from typer.testing import CliRunner

from csekit.cli import main
from csekit.modeling import CSEModel
from csekit.modeling.generator import Generator

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
         "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "eurobert": {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2},
    "rembert": {**SIZES, "input_embedding_size": 8, "output_embedding_size": 12},
    "mobilebert": {**SIZES, "embedding_size": 8, "intra_bottleneck_size": 16, "num_feedforward_networks": 1},
    "longformer": {**SIZES, "attention_window": [4, 4]},
    "big_bird": {**SIZES, "attention_type": "block_sparse", "block_size": 2, "num_random_blocks": 1},
    "luke": {**SIZES, "entity_vocab_size": 7, "entity_emb_size": 8},
    "convbert": {**SIZES, "embedding_size": 8, "head_ratio": 1, "conv_kernel_size": 3},
    "megatron-bert": SIZES,
    "nystromformer": {**SIZES, "num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 3},
    "fnet": {**SIZES, "tpu_short_seq_length": 32},
    "ibert": SIZES,
    "funnel": {"vocab_size": 97, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1],
               "num_decoder_layers": 1},
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 97,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 97, "n_positions": 64},
}  # fmt: skip

ATTENTION = {"attention_weight": 1.0, "attention_first_layer": 0, "attention_last_layer": -1}
AUX = {"aux_mlm_weight": 1.0, "aux_mlm_head_init": "random"}


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory, disturb: Any, tokenizer_of: Any) -> Any:
    """``rare(family)``: a folder with a masked LM of the family, a causal one of a decoder, and a tokenizer."""

    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        kind = AutoModelForCausalLM if family == "gpt2" else AutoModelForMaskedLM
        config = AutoConfig.for_model(family, **FAMILIES[family])
        for name in [name for name, value in vars(config).items() if "drop" in name and isinstance(value, float)]:
            setattr(config, name, 0.0)
        torch.manual_seed(1)
        disturb(kind.from_config(config)).save_pretrained(folder)
        tokenizer_of("bert").save_pretrained(folder)
        return folder

    return make


def test_a_masked_lm_of_eurobert_is_the_family_s_own(rare: Any, make_batch: Any, add_copies: Any) -> None:
    """Its output matrix was looked for behind a backbone that had been taken out, and was not found."""
    folder = rare("eurobert")
    model = CSEModel.from_backbone(folder, mlm_weight=1.0, mlm_tied=False, pooling="mean")
    batch = add_copies(make_batch(4, 1, 9))
    found = model(**batch).loss_dict["mlm"]
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    mask = batch["attention_mask"].squeeze(1).repeat(2, 1)
    logits = plain(input_ids=batch["mlm_input_ids"], attention_mask=mask).logits
    rows = logits.flatten(0, 1)[batch["mlm_positions"]]
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(rows, batch["mlm_labels"]))
    with pytest.raises(
        ValueError, match="is not tied to the word embeddings; with the objective 'mlm', mlm_tied=False"
    ):
        CSEModel.from_backbone(folder, mlm_weight=1.0, pooling="mean")


@pytest.mark.parametrize("kind", ["longformer", "luke", "bart"])
def test_a_generator_of_a_family_with_outputs_of_its_own(rare: Any, make_batch: Any, kind: str) -> None:
    """Training stopped in its first step: the head looked for fields of the output that the family alone has."""
    folder, batch = rare(kind), make_batch(4, 0, 9, pad=int(kind == "bart"))
    generator, plain = Generator(str(folder), 97), AutoModelForMaskedLM.from_pretrained(folder).eval()
    places = batch["attention_mask"].flatten().nonzero().squeeze(1)[::3]
    expected = plain(**batch).logits.flatten(0, 1)[places]
    torch.testing.assert_close(generator.logits(*batch.values(), places), expected)


def test_a_masked_lm_of_longformer_is_the_family_s_own(rare: Any, make_batch: Any, add_copies: Any) -> None:
    """It was refused: its head looks for a field of the output that the family alone has."""
    folder = rare("longformer")
    batch = add_copies(make_batch(4, 1, 9))
    found = CSEModel.from_backbone(folder, mlm_weight=1.0, pooling="mean")(**batch).loss_dict["mlm"]
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    mask = batch["attention_mask"].squeeze(1).repeat(2, 1)
    rows = plain(input_ids=batch["mlm_input_ids"], attention_mask=mask).logits.flatten(0, 1)[batch["mlm_positions"]]
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(rows, batch["mlm_labels"]))


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("mobilebert", {"mlm_weight": 1.0}, "the family 'mobilebert' has no masked-LM head that works without its"),
        ("gpt2", {"mlm_weight": 1.0}, "the family 'gpt2' has no masked LM"),
        ("gpt2", {"tsdae_weight": 1.0}, "tsdae_decoder must be 'small' for the family 'gpt2', whose masked-LM"),
        ("gpt2", {"edited_weight": 1.0}, "generator '.*gpt2.*' cannot be loaded as a masked LM: Unrecognized"),
        ("gpt2", {"rtd_weight": 1.0}, "GPT2Model has no embedding layer around its word embeddings, which 'rtd'"),
        ("gpt2", {"perturb_first": "shuffle+dropout"}, "GPT2Model has no embedding layer .* and perturbations change"),
        ("convbert", {"tsdae_weight": 1.0}, "'small' for the family 'convbert', whose decoder does not run"),
        ("megatron-bert", {"tsdae_weight": 1.0}, "'small' for the family 'megatron-bert', whose decoder does not run"),
        ("fnet", ATTENTION, "the family 'fnet' hands out no attention of each token to each, which the objective 'at"),
        ("bart", ATTENTION | {"attention_groups": 1}, "the family 'bart' hands out no attention"),
        ("longformer", ATTENTION, "the family 'longformer' hands out no attention of each token to each"),
        ("funnel", ATTENTION, "the family 'funnel' hands out no attention of each token to each"),
        ("funnel", AUX, "the family 'funnel' has no layers that read hidden states .* Please set `block_sizes`"),
        ("longformer", AUX, "the family 'longformer' has no layers that read hidden states instead of token ids"),
        ("ibert", AUX, "the family 'ibert' has no layers that read hidden states instead of token ids, which 'aux_ml"),
        ("ibert", {"rtd_weight": 1.0}, "the family 'ibert' has word embeddings of its own kind, QuantEmbedding, whic"),
    ],
)
def test_what_a_family_lacks_is_told_before_anything_is_trained(
    rare: Any, kind: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        _ = CSEModel.from_backbone(rare(kind), pooling="mean", **fields).batch_specs


def test_mask_pooling_without_a_mask_token_is_told(tmp_path: Path, rare: Any) -> None:
    """The message asked for from_backbone, which was what was called."""
    tokenizer = AutoTokenizer.from_pretrained(rare("gpt2"), mask_token=None)
    with pytest.raises(ValueError, match="pooling must not be 'mask' with a tokenizer without a mask token"):
        CSEModel.from_backbone(rare("gpt2"), tokenizer=tokenizer, pooling="mask", prompt_template="w1 {sentence} w2")


@pytest.mark.parametrize("fields", [{"icm_weight": 1.0}, {"tsdae_weight": 1.0, "tsdae_decoder": "small"}])
def test_a_small_decoder_of_narrow_word_embeddings(rare: Any, batch_of: Any, fields: dict[str, Any]) -> None:
    """RemBERT has no ``embedding_size``: its word embeddings are ``input_embedding_size`` wide."""
    model = CSEModel.from_backbone(rare("rembert"), pooling="mean", **fields).train()
    assert AutoModel.from_pretrained(rare("rembert")).get_input_embeddings().embedding_dim == 8
    output = model(**batch_of(model))
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.objectives.parameters())


@pytest.mark.parametrize("name", ["peer", "towers", "queue"])
def test_a_second_encoder_whose_weights_are_tied_reloads(rare: Any, name: str, tmp_path: Path) -> None:
    """A file holds BART's word embeddings once; the second encoder's other two were left as memory held them."""
    model = CSEModel.from_backbone(rare("bart"), pooling="mean", objectives=[name])
    model.save_pretrained(tmp_path)
    again = CSEModel.from_pretrained(tmp_path)
    found, expected = again.state_dict(), model.state_dict()
    assert [key for key in expected if not torch.equal(found[key], expected[key])] == []
    second = again.objectives[name].encoder
    assert second.encoder.embed_tokens.weight is second.shared.weight
    assert second.shared.weight is not again.backbone.shared.weight


@pytest.mark.parametrize("pooling", ["cls", "last"])
@pytest.mark.parametrize("kind", ["longformer", "big_bird"])
def test_a_family_that_lengthens_its_rows_is_pooled_at_its_own_places(
    rare: Any, make_batch: Any, kind: str, pooling: str
) -> None:
    """The last layer was cut down to places of the batch as it came in, while the family's own has longer rows: rows
    got the states of others, or training ended in its first step."""
    folder = rare(kind)
    model, plain = CSEModel.from_backbone(folder, pooling=pooling), AutoModel.from_pretrained(folder).eval()
    model.returns_states = False
    batch = make_batch(4, 0, 17)
    states, last = plain(**batch).last_hidden_state, batch["attention_mask"].sum(1) - 1
    expected = states[torch.arange(4), last if pooling == "last" else 0]
    torch.testing.assert_close(model(**batch).sentence_embedding, expected)
    loss = model.train()(**make_batch(4, 1, 17)).loss
    loss.backward()
    assert loss.isfinite()


def test_a_large_batch_of_luke_keeps_its_rows(rare: Any, make_batch: Any) -> None:
    """A batch with more rows than a row has tokens lost the rows behind them: training ended in its first step."""
    folder = rare("luke")
    model, plain = CSEModel.from_backbone(folder), AutoModel.from_pretrained(folder).eval()
    model.returns_states = False
    batch = make_batch(12, 0, 6)
    torch.testing.assert_close(model(**batch).sentence_embedding, plain(**batch).last_hidden_state[:, 0])
    assert model.train()(**make_batch(8, 1, 6)).loss.isfinite()


def test_nystromformer_is_told_the_setting_with_which_it_reads_any_length(
    rare: Any, batch_of: Any, tmp_path: Path
) -> None:
    """Training and encoding stopped in the first batch that was not exactly as long as its segments."""
    folder = rare("nystromformer")
    (tmp_path / "texts.txt").write_text("w1 w2 w3\nw4 w5\n")
    words = ["encode", tmp_path / "texts.txt", "--model", folder, "--pooling", "mean", "-o", tmp_path / "texts.npy"]
    told = "a 'nystromformer' with num_landmarks 4 reads rows of exactly 16 tokens: set num_landmarks to 16"
    with pytest.raises(ValueError, match=told):
        CSEModel.from_backbone(folder, pooling="mean")
    refused = CliRunner().invoke(main, [str(word) for word in words])
    assert refused.exit_code == 2 and told in refused.output
    weights = AutoModel.from_pretrained(folder).state_dict()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_landmarks": 16}))
    model = CSEModel.from_backbone(folder, pooling="mean").train()
    assert all(torch.equal(weights[name], value) for name, value in model.backbone.state_dict().items())
    output = model(**batch_of(model))
    output.loss.backward()
    assert output.loss.isfinite()
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("init", ["random", "new_layers", "top_layers"])
def test_an_auxiliary_head_of_rembert_reads_states_of_the_hidden_size(rare: Any, batch_of: Any, init: str) -> None:
    """Training stopped in its first step: the head kept the map from the narrower word embeddings."""
    folder = rare("rembert")
    model = CSEModel.from_backbone(folder, aux_mlm_weight=1.0, aux_mlm_head_init=init).train()
    head = model.objectives["aux_mlm"].head
    assert {name.split(".")[1] for name in head.model.state_dict()} == {"layer"}
    last = AutoModel.from_pretrained(folder).encoder.layer[-1].state_dict()
    copied = all(torch.equal(last[name], value) for name, value in head.layers[-1].state_dict().items())
    assert copied == (init == "top_layers")
    model(**batch_of(model)).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


def test_small_decoders_of_families_whose_own_is_refused(rare: Any, batch_of: Any) -> None:
    for kind in ("convbert", "megatron-bert"):
        model = CSEModel.from_backbone(rare(kind), pooling="mean", tsdae_weight=1.0, tsdae_decoder="small").train()
        assert model(**batch_of(model)).loss.isfinite()
