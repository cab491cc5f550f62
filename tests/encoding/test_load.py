import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding.load import load_encoder
from csekit.modeling.pooling import POOLINGS

TEXTS = ["the man plays guitar .", "a dog runs", "cat"]


def sentence_transformer(folder: Path, pooling: dict[str, Any], extra: list[str] | None = None) -> None:
    kinds = ["Transformer", "Pooling", *(extra or [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))


@pytest.mark.parametrize("pooling", [None, "max", "pooler"])
def test_plain_folder_needs_a_pooler_and_never_guesses(tiny_folder: Path, pooling: str | None) -> None:
    with pytest.raises(ValueError, match=f"pooling must be one of 'cls', 'mean', .* 'tiny-bert', got {pooling!r}"):
        load_encoder(tiny_folder, pooling=pooling)


@pytest.mark.parametrize("pooling", [name for name in POOLINGS if name != "mask"])
def test_plain_folder_with_each_pooler(tiny_folder: Path, tiny_bert: Any, tiny_tokenizer: Any, pooling: str) -> None:
    found = load_encoder(tiny_folder, pooling=pooling, device="cpu").encode(TEXTS)
    batch = tiny_tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = tiny_bert.eval()(**batch, output_hidden_states=True).hidden_states
    mask = batch["attention_mask"][..., None]
    layers = {
        "mean": states[-1],
        "first_last_mean": (states[1] + states[-1]) / 2,
        "top2_mean": (states[-2] + states[-1]) / 2,
    }
    places = {"cls": torch.zeros(3, dtype=torch.int64), "last": batch["attention_mask"].sum(1) - 1}
    if pooling in places:
        wanted = states[-1][torch.arange(3), places[pooling]]
    else:
        wanted = (layers[pooling] * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-6)


def test_mask_pooling_and_template_go_together(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match="go together"):
        load_encoder(tiny_folder, pooling="mask")
    with pytest.raises(ValueError, match="go together"):
        load_encoder(tiny_folder, pooling="cls", prompt_template="{sentence} is {mask} .")
    encoder = load_encoder(tiny_folder, pooling="mask", prompt_template="{sentence} is {mask} .", device="cpu")
    assert encoder.encode(TEXTS).shape == (3, 32)


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
    ],
)
def test_sentence_transformer_pooler_is_read(tiny_folder: Path, pooling: dict[str, Any], name: str) -> None:
    sentence_transformer(tiny_folder, pooling)
    encoder = load_encoder(tiny_folder, device="cpu")
    assert encoder.pooling == name
    st = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tiny_folder), device="cpu")
    np.testing.assert_allclose(encoder.encode(TEXTS), st.encode(TEXTS), atol=1e-6)


def test_sentence_transformer_with_dense_and_normalize(tiny_folder: Path) -> None:
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True}, ["Dense", "Normalize"])
    dense = tiny_folder / "2_Dense"
    dense.mkdir()
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(16, 32, generator=generator), torch.randn(16, generator=generator)
    save_file({"linear.weight": weight, "linear.bias": bias}, dense / "model.safetensors")
    config = {"in_features": 32, "out_features": 16, "bias": True}
    (dense / "config.json").write_text(
        json.dumps({**config, "activation_function": "torch.nn.modules.activation.Tanh"})
    )
    found = load_encoder(tiny_folder, device="cpu").encode(TEXTS)
    plain = load_encoder(_plain_copy(tiny_folder), pooling="mean", device="cpu").encode(TEXTS)
    wanted = np.tanh(plain @ weight.numpy().T + bias.numpy())
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("further", [{"use_residual": True}, {"module_output_name": "another"}])
def test_a_dense_layer_of_another_kind_goes_through_sentence_transformers(
    tiny_folder: Path, further: dict[str, Any]
) -> None:
    """The residual, and the name of the output, were left out without a word."""
    st = pytest.importorskip("sentence_transformers")
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    plain = st.SentenceTransformer(str(tiny_folder), device="cpu")
    dense = st.models.Dense(32, 32, **further)
    st.SentenceTransformer(modules=[*plain, dense], device="cpu").save(str(tiny_folder))
    wanted = st.SentenceTransformer(str(tiny_folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tiny_folder, device="cpu").encode(TEXTS), wanted, atol=1e-5)


def dense_with(folder: Path, activation: str, pickled: bool = False) -> None:
    """Add a Dense module with an activation, its weights in ``pytorch_model.bin`` if ``pickled``."""
    sentence_transformer(folder, {"pooling_mode_mean_tokens": True}, ["Dense"])
    dense = folder / "2_Dense"
    dense.mkdir()
    weight = {"linear.weight": torch.randn(16, 32, generator=torch.Generator().manual_seed(0))}
    if pickled:
        torch.save(weight, dense / "pytorch_model.bin")
    else:
        save_file(weight, dense / "model.safetensors")
    config = {"in_features": 32, "out_features": 16, "bias": False, "activation_function": activation}
    (dense / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("activation", "pickled"), [("activation.SiLU", False), ("linear.Identity", True)])
def test_a_dense_layer_that_csekit_cannot_read_goes_through_sentence_transformers(
    tiny_folder: Path, activation: str, pickled: bool
) -> None:
    """Such folders, among them older copies of sentence-t5, were refused."""
    st = pytest.importorskip("sentence_transformers")
    dense_with(tiny_folder, f"torch.nn.modules.{activation}", pickled)
    wanted = st.SentenceTransformer(str(tiny_folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tiny_folder, device="cpu").encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"query_length": 4},
        {"processing_kwargs": {"text": {"add_special_tokens": False}}},
        {"modality_config": {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}},
    ],
)
def test_settings_of_sentence_transformers_6_are_followed(
    tiny_folder: Path, tiny_tokenizer: Any, settings: dict[str, Any]
) -> None:
    """They were left out without a word: limits for queries, arguments of the tokenizer, a chat template."""
    st = pytest.importorskip("sentence_transformers", minversion="6")
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    tiny_tokenizer.chat_template = "the dog runs {% for m in messages %}{{ m['content'] }}{% endfor %}"
    tiny_tokenizer.save_pretrained(tiny_folder)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    whole = {"modality_config": {"text": text, **settings.pop("modality_config", {})}, **settings}
    whole["module_output_name"] = "token_embeddings"
    (tiny_folder / "sentence_bert_config.json").write_text(json.dumps(whole))
    model, texts = st.SentenceTransformer(str(tiny_folder), device="cpu"), [*TEXTS, "the red dog is in the blue house"]
    encoder = load_encoder(tiny_folder, device="cpu")
    np.testing.assert_allclose(encoder.encode(texts), model.encode(texts), atol=1e-5)
    np.testing.assert_allclose(encoder.for_role("query").encode(texts), model.encode_query(texts), atol=1e-5)


def test_a_checkpoint_in_16_bits_is_computed_in_float32(tiny_folder: Path, tiny_bert: Any) -> None:
    """sentence-transformers kept the checkpoint's type, and int8 did nothing."""
    pytest.importorskip("sentence_transformers")
    tiny_bert.bfloat16().save_pretrained(tiny_folder)
    sentence_transformer(tiny_folder, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    encoder = load_encoder(tiny_folder, device="cpu")
    batch = encoder.tokenizer(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        wanted = tiny_bert.float().eval()(**batch).last_hidden_state.amax(1).numpy()
    np.testing.assert_allclose(encoder.encode(TEXTS[:1]), wanted, atol=1e-6)
    assert encoder.describe()["precision"] == "float32"
    encoder.precision = "int8"
    assert np.abs(encoder.encode(TEXTS[:1]) - wanted).max() > 1e-6


def t5_folder(folder: Path, kind: str, model_class: str) -> Path:
    """Write a tiny T5 of a kind with a tokenizer that ends a sentence with ``</s>``."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "</s>", "<unk>", "the", "a", "man", "dog", "cat", "runs", "plays"]
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    marks = {"pad_token": "[PAD]", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **marks).save_pretrained(folder)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(words), **sizes)
    getattr(transformers, model_class)(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_class", ["T5EncoderModel", "T5Model", "MT5EncoderModel", "UMT5EncoderModel"])
def test_t5_is_its_encoder(tmp_path: Path, model_class: str) -> None:
    """sentence-t5 was refused as lacking the decoder's weights; a plain T5 asked for decoder_input_ids."""
    st = pytest.importorskip("sentence_transformers")
    folder = t5_folder(tmp_path / "t5", model_class.split("T5")[0] + "T5", model_class)
    plain = load_encoder(folder, pooling="mean", device="cpu").encode(TEXTS)
    sentence_transformer(folder, {"pooling_mode_mean_tokens": True}, ["Normalize"])
    encoder = load_encoder(folder, device="cpu")
    wanted = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-5)
    np.testing.assert_allclose(plain / np.linalg.norm(plain, axis=1, keepdims=True), wanted, atol=1e-5)
    pooling = folder / "1_Pooling/config.json"
    pooling.write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode": "max"}))
    wanted = st.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(folder, device="cpu").encode(TEXTS), wanted, atol=1e-5)


def test_the_length_limit_of_the_folder_is_enough(tmp_path: Path) -> None:
    """Regression: a T5 whose tokenizer names no limit asked for max_length, although its folder has one."""
    folder = t5_folder(tmp_path / "t5", "T5", "T5EncoderModel")
    sentence_transformer(folder, {"pooling_mode_mean_tokens": True})
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text())
    del content["model_max_length"]
    file.write_text(json.dumps(content))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    encoder = load_encoder(folder, device="cpu")
    assert encoder.max_length == 6
    assert encoder.encode(["the man plays a dog the"]).shape == (1, 32) and encoder.truncated == 1


def test_another_model_that_needs_a_decoder_s_input_is_refused_when_loaded(tmp_path: Path) -> None:
    from transformers import PegasusConfig, PegasusModel

    folder = t5_folder(tmp_path / "t5", "T5", "T5Model")
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in
             {"layers": 1, "attention_heads": 2, "ffn_dim": 32}.items()}  # fmt: skip
    PegasusModel(PegasusConfig(vocab_size=10, d_model=32, max_position_embeddings=40, **sizes)).save_pretrained(folder)
    (tmp_path / "texts.txt").write_text("the man\na dog\n")
    words = ["encode", tmp_path / "texts.txt", "-m", folder, "--pooling", "mean", "-o", tmp_path / "out.npy"]
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 2 and found.output.count("\n") == 1, found.output
    assert "t5: csekit runs the encoder alone only of t5, mt5, umt5, longt5, and pegasus needs inputs" in found.output


@pytest.mark.parametrize("attention", ["local", "transient-global"])
def test_longt5_is_its_encoder(tmp_path: Path, attention: str) -> None:
    """It was refused as a model that needs inputs for its decoder."""
    from transformers import AutoTokenizer, LongT5Config, LongT5EncoderModel, LongT5Model

    folder = t5_folder(tmp_path / "t5", "T5", "T5Model")
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
    blocks = {"encoder_attention_type": attention, "local_radius": 4, "global_block_size": 4}
    LongT5Model(LongT5Config(vocab_size=10, **sizes, **blocks)).save_pretrained(folder)
    texts = [*TEXTS, " ".join(["the man plays a dog"] * 4)]
    model, tokenizer = LongT5EncoderModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        wanted = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    words = ["encode", tmp_path / "texts.txt", "-m", folder, "--pooling", "mean", "-o", tmp_path / "out.npy"]
    found = CliRunner().invoke(main, [str(word) for word in [*words, "--device", "cpu", "--no_progress"]])
    assert found.exit_code == 0, found.output
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), torch.stack(wanted).numpy(), atol=1e-5)


def _plain_copy(folder: Path) -> Path:
    import shutil

    copy = folder.parent / "plain"
    shutil.copytree(folder, copy)
    (copy / "modules.json").unlink()
    return copy


def test_sentence_transformer_pooler_cannot_be_contradicted(tiny_folder: Path) -> None:
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    with pytest.raises(ValueError, match=r"pooling must be left out or 'mean'.*got 'cls'"):
        load_encoder(tiny_folder, pooling="cls")


def test_unusual_pooler_goes_through_sentence_transformers(tiny_folder: Path, monkeypatch: Any) -> None:
    sentence_transformer(tiny_folder, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "sentence_transformers", None)
        with pytest.raises(ImportError, match=r"pooling 'max' need sentence-transformers: pip install 'csekit\[st\]'"):
            load_encoder(tiny_folder)
    pytest.importorskip("sentence_transformers")
    encoder = load_encoder(tiny_folder, device="cpu")
    assert encoder.encode([*TEXTS, TEXTS[0]]).shape == (4, 32)
    assert encoder.truncated == 0


@pytest.mark.parametrize(
    ("max_length", "message"),
    [
        (41, "max_length must be at most 40 for this model, got 41"),
        (2, "max_length must exceed the 2 tokens of special tokens and template, got 2"),
        (-3, "max_length must exceed the 2 tokens .*, got -3"),
    ],
)
def test_length_limits_of_sentence_transformers_are_checked(tiny_folder: Path, max_length: int, message: str) -> None:
    """A long text ended in an IndexError of torch, a negative limit in an OverflowError."""
    pytest.importorskip("sentence_transformers")
    sentence_transformer(tiny_folder, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    with pytest.raises(ValueError, match=message):
        load_encoder(tiny_folder, max_length=max_length, device="cpu")
    short = load_encoder(tiny_folder, max_length=5, device="cpu")
    assert np.array_equal(*short.encode(["the man plays guitar", "the man plays red"]))
    assert short.max_length == 5 and short.truncated == 2


def test_a_roberta_in_sentence_transformers_reads_no_more_than_it_has_positions(
    tmp_path: Path, tiny_tokenizer: Any
) -> None:
    """sentence-transformers reads the limit off the config, which counts two positions more: long texts failed."""
    from transformers import RobertaConfig, RobertaModel

    pytest.importorskip("sentence_transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = RobertaConfig(vocab_size=len(tiny_tokenizer), max_position_embeddings=20, pad_token_id=1, **sizes)
    RobertaModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    sentence_transformer(tmp_path, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": False})
    encoder = load_encoder(tmp_path, device="cpu")
    assert encoder.max_length == 18
    assert encoder.encode(["the man plays guitar " * 10]).shape == (1, 32)


def test_a_static_encoder_has_no_length_limit(tmp_path: Path, tiny_folder: Path) -> None:
    from csekit.trainers.static_distillation import StaticDistillation, distill_static

    pytest.importorskip("sentence_transformers")
    teacher = load_encoder(tiny_folder, pooling="mean", device="cpu")
    distill_static(teacher, tmp_path / "static", StaticDistillation(dims=4), progress=False)
    with pytest.raises(ValueError, match="max_length must be left out for StaticEmbedding, got 5"):
        load_encoder(tmp_path / "static", max_length=5)


def test_a_tokenizer_that_cuts_the_start_goes_through_sentence_transformers(tiny_folder: Path) -> None:
    """csekit cut the end, sentence-transformers the start."""
    st = pytest.importorskip("sentence_transformers")
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    file = tiny_folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "truncation_side": "left"}))
    texts = [*TEXTS, "the man plays guitar " * 10 + "red house"]
    wanted = st.SentenceTransformer(str(tiny_folder), device="cpu").encode(texts)
    np.testing.assert_allclose(load_encoder(tiny_folder, device="cpu").encode(texts), wanted, atol=1e-5)


def test_a_default_prompt_counts_among_the_tokens(tiny_folder: Path, tmp_path: Path) -> None:
    """Regression: texts that lost their ends to the model's default prompt were counted as whole."""
    pytest.importorskip("sentence_transformers")
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    settings = {"prompts": {"topic": "the man plays guitar "}, "default_prompt_name": "topic"}
    (tiny_folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tiny_folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    (tmp_path / "texts.txt").write_text("a dog runs\na dog\na dog plays\n")
    words = ["encode", tmp_path / "texts.txt", "-m", tiny_folder, "-o", tmp_path / "out.npy", "--no_progress"]
    found = CliRunner().invoke(main, [str(word) for word in [*words, "--device", "cpu"]])
    assert "3 rows, 2 texts truncated" in found.output, found.output
    vectors = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(vectors[0], vectors[2])  # of their first two words
    encoder = load_encoder(tiny_folder, device="cpu").for_role("query")  # an empty prompt
    assert encoder.encode(["a dog runs"]).shape == (1, 32) and encoder.truncated == 0


def test_lower_case_setting_is_followed(tiny_folder: Path) -> None:
    sentence_transformer(tiny_folder, {"pooling_mode_mean_tokens": True})
    (tiny_folder / "sentence_bert_config.json").write_text('{"max_seq_length": 5, "do_lower_case": true}')
    encoder = load_encoder(tiny_folder, device="cpu")
    assert encoder.lowercase
    assert encoder.max_length == 5


def test_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        load_encoder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither config\.json nor modules\.json"):
        load_encoder(tmp_path)


def test_name_the_hub_does_not_give(monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr("csekit.modeling.hub._reachable", lambda endpoint: True)
    with pytest.raises(FileNotFoundError, match="'some/model' is no folder, and the Hub did not give it: offline"):
        load_encoder("some/model")


def test_training_checkpoint(tmp_path: Path, tiny_folder: Path, tiny_tokenizer: Any) -> None:
    """A csekit checkpoint, alone and as ``training/`` of a run: pooling comes from its config."""
    from csekit.modeling import CSEModel

    run = tmp_path / "run"
    CSEModel.from_backbone(str(tiny_folder), pooling="mean").save_pretrained(run / "training")
    tiny_tokenizer.save_pretrained(run / "training")
    wanted = load_encoder(tiny_folder, pooling="mean", device="cpu").encode(TEXTS)
    for folder in (run, run / "training"):
        encoder = load_encoder(folder, device="cpu")
        assert encoder.pooling == "mean"
        assert encoder.name == "run/training"
        np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-6)
    with pytest.raises(ValueError, match="pooling must be left out or 'mean'"):
        load_encoder(run, pooling="cls")


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": "cls"},
        {"pooling": "last", "projector": "tanh", "projector_at_inference": True, "truncate_dim": 8},
        {"pooling": "mask", "prompt_template": "the {sentence} is {mask}"},
    ],
)
def test_a_checkpoint_with_its_code(
    tmp_path: Path, tiny_folder: Path, tiny_tokenizer: Any, fields: dict[str, Any]
) -> None:
    """What ``csekit push --custom_code`` publishes was taken for a plain encoder, and ended with an AttributeError."""
    from csekit.encoding import export_sentence_transformer
    from csekit.modeling import CSEModel
    from csekit.modeling.custom_code import export_with_code

    model = CSEModel.from_backbone(str(tiny_folder), tokenizer=tiny_tokenizer, **fields)
    export_with_code(model, tmp_path / "code", tiny_tokenizer)
    model.export(tmp_path / "plain", tiny_tokenizer)
    export_sentence_transformer(tmp_path / "code", tmp_path / "half", dtype="float16")
    texts = [*TEXTS, "a red house " * 30]
    wanted = load_encoder(tmp_path / "plain", device="cpu").encode(texts)
    found = load_encoder(tmp_path / "code", device="cpu").encode(texts)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_allclose(load_encoder(tmp_path / "half", device="cpu").encode(texts), wanted, atol=1e-2)
