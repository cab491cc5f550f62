"""Folders that used to give wrong embeddings with exit code 0: the commands refuse each in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding.pretrained import all_finite

TEXTS = ["the man plays guitar .", "a dog runs", "cat"]
KEY = "encoder.layer.1.output.dense.weight"


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def encode(folder: Path, *options: str) -> Any:
    """Run ``csekit encode`` with the folder as the model."""
    file = folder.parent / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    output = folder.parent / "out.npy"
    return run("encode", file, "--model", folder, "-o", output, "--device", "cpu", "--no_progress", *options)


def refused(found: Any) -> str:
    """Return the one line of an error; nothing may be written or printed beside it."""
    assert found.exit_code == 2, found.output
    assert found.output.startswith("error: ")
    assert found.output.count("\n") == 1
    return " ".join(found.output.split())


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def edit_json(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def drop_a_weight(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights.pop(KEY))


def ask_for_more_layers(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)


def ask_for_another_family(folder: Path) -> None:
    config = {"model_type": "distilbert", "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "vocab_size": 27}
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))


def ask_for_another_width(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=48)


def write_nan(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights[KEY][0].fill_(float("nan")))


def write_infinity(folder: Path) -> None:
    edit_weights(folder, lambda weights: weights[KEY][0].fill_(float("inf")))


def drop_the_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def take_a_larger_tokenizer(folder: Path) -> None:
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"word{i}": len(vocabulary) + i for i in range(20)}
    file.write_text(json.dumps(content))


def pad_with_an_unknown_token(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", pad_token="[OTHER]")


def begin_with_an_unknown_token(folder: Path) -> None:
    edit_json(folder / "tokenizer_config.json", cls_token="[OTHER]", tokenizer_class="BertTokenizer")


def name_no_pooling(folder: Path) -> None:
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    (folder / "modules.json").write_text(json.dumps([module]))


def drop_the_post_processor(folder: Path) -> None:
    edit_json(folder / "tokenizer.json", post_processor=None)
    edit_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_a_weight, f"lacks 1 of the weights of BertModel, which would be random: {KEY}"),
        (ask_for_more_layers, "lacks 16 of the weights of BertModel, which would be random: encoder.layer.2."),
        (ask_for_another_family, "of the weights of DistilBertModel, which would be random: "),
        (ask_for_another_width, "weights do not have the shapes that config.json asks for: encoder.layer.0."),
        (write_nan, f"1 weights hold NaN or infinite values: {KEY}"),
        (write_infinity, f"1 weights hold NaN or infinite values: {KEY}"),
        (drop_the_tokenizer, "the tokenizer has 5 tokens and the model 27 word embeddings"),
        (take_a_larger_tokenizer, "the tokenizer has 47 tokens and the model 27 word embeddings"),
        (pad_with_an_unknown_token, "pad_token '[OTHER]' has number 27, and the model 27 word embeddings"),
        (begin_with_an_unknown_token, "the tokenizer puts '[OTHER]' around a sentence, which has number 27, and the"),
        (drop_the_post_processor, "pooling 'cls' reads the first token, and this tokenizer puts none"),
    ],
)
def test_encode_refuses_a_damaged_encoder(tiny_folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(tiny_folder)
    assert message in refused(encode(tiny_folder, "--pooling", "cls"))
    assert not list(tiny_folder.parent.glob("out*"))


def test_encode_refuses_modules_without_a_pooling(tiny_folder: Path) -> None:
    name_no_pooling(tiny_folder)
    assert "the modules that modules.json names make no sentence embedding" in refused(encode(tiny_folder))


@pytest.mark.parametrize("command", ["eval", "eval static", "neighbors", "geometry", "export"])
def test_every_command_that_loads_an_encoder_refuses_missing_weights(tiny_folder: Path, command: str) -> None:
    drop_a_weight(tiny_folder)
    corpus = tiny_folder.parent / "corpus.txt"
    corpus.write_text("\n".join(TEXTS) + "\n")
    folder = tiny_folder.parent / "STS/STSBenchmark"
    folder.mkdir(parents=True)
    for part, rows in (("dev", 1500), ("test", 1379)):
        lines = [f"main\tMSRvid\t2012\t{i}\t{i % 6}\ta man {i}\ta dog\n" for i in range(rows)]
        (folder / f"sts-{part}.csv").write_text("".join(lines))
    score = ("eval", tiny_folder, "--data_dir", tiny_folder.parent, "--tasks", "STS-B-dev")
    found = {
        "eval": (*score, "--pooling", "mean"),
        "eval static": (*score, "--pooling", "static"),
        "neighbors": ("neighbors", tiny_folder, tiny_folder, "--corpus", corpus, "--pooling_a", "mean"),
        "geometry": (
            "geometry",
            tiny_folder,
            "--data_dir",
            tiny_folder.parent,
            "--pooling",
            "mean",
            "--no_clustering",
        ),
        "export": ("export", tiny_folder, "-o", tiny_folder.parent / "out", "--pooling", "mean"),
    }[command]
    assert f"would be random: {KEY}" in refused(run(*found))


def test_a_missing_pooler_is_accepted_since_nothing_reads_it(tiny_folder: Path) -> None:
    """SqueezeBERT always builds a pooler: its class has no switch for it."""
    from transformers import AutoModel, AutoTokenizer, SqueezeBertConfig, SqueezeBertModel

    config = SqueezeBertConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(tiny_folder)),
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    SqueezeBertModel(config).save_pretrained(tiny_folder)
    edit_weights(tiny_folder, lambda weights: [weights.pop(name) for name in list(weights) if "pooler" in name])
    _, info = AutoModel.from_pretrained(tiny_folder, output_loading_info=True)
    assert info["missing_keys"] == {"pooler.dense.weight", "pooler.dense.bias"}
    found = encode(tiny_folder, "--pooling", "mean")
    assert found.exit_code == 0, found.output


@pytest.fixture
def checkpoint(tiny_folder: Path, tiny_tokenizer: Any) -> Path:
    """A training checkpoint of InforMin-CL, whose projector is not kept at inference."""
    from csekit import InforMinModel

    folder = tiny_folder.parent / "run" / "training"
    InforMinModel.from_backbone(str(tiny_folder)).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


def test_a_training_checkpoint_without_an_encoder_weight_is_refused(checkpoint: Path) -> None:
    edit_weights(checkpoint, lambda weights: weights.pop(f"backbone.{KEY}"))
    assert f"would be random: backbone.{KEY}" in refused(encode(checkpoint))


def test_a_training_checkpoint_without_its_objectives_encodes_the_same(checkpoint: Path) -> None:
    output = checkpoint.parent / "out.npy"
    assert encode(checkpoint).exit_code == 0
    whole = np.load(output)
    output.unlink()
    unread = ("objectives.", "projector.")
    edit_weights(checkpoint, lambda weights: [weights.pop(name) for name in list(weights) if name.startswith(unread)])
    found = encode(checkpoint, "--overwrite")
    assert found.exit_code == 0, found.output
    np.testing.assert_array_equal(np.load(output), whole)


def test_a_projector_that_is_kept_at_inference_may_not_be_missing(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", projector_at_inference=True)
    edit_weights(checkpoint, lambda weights: [weights.pop(name) for name in list(weights) if "projector" in name])
    assert "would be random: projector." in refused(encode(checkpoint))


def sentence_transformer(folder: Path, pooling: dict[str, Any]) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    "pooling", [{}, {"word_embedding_dimension": 32}, {"pooling_mode_mean_tokens": False}, {"pooling_mode": []}]
)
def test_a_pooling_folder_that_names_no_pooling_is_refused(tiny_folder: Path, pooling: dict[str, Any]) -> None:
    sentence_transformer(tiny_folder, pooling)
    assert "1_Pooling/config.json: names no pooling" in refused(encode(tiny_folder))


def test_a_module_that_sentence_transformers_runs_is_checked_too(tiny_folder: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra st")
    sentence_transformer(tiny_folder, {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True})
    drop_a_weight(tiny_folder)
    assert f"would be random: {KEY}" in refused(encode(tiny_folder))


def test_an_embedding_that_float16_cannot_hold_is_not_written(tiny_folder: Path) -> None:
    """The last layer's norm scales the states beyond 65,504."""

    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.layer.1.output.LayerNorm.weight"].fill_(1e6)

    edit_weights(tiny_folder, enlarge)
    options = ("--pooling", "mean", "--dtype", "float16")
    message = refused(encode(tiny_folder, *options))
    assert f"texts.txt, row 1: the embedding of {TEXTS[0]!r} holds NaN or infinite values in float16" in message
    assert not (tiny_folder.parent / "out.npy").exists()


def test_an_embedding_that_overflows_is_not_written(tiny_folder: Path) -> None:
    """Finite weights whose product is not: only the embeddings show it."""

    def enlarge(weights: dict[str, torch.Tensor]) -> None:
        weights["encoder.layer.1.output.LayerNorm.weight"].fill_(3e38)

    edit_weights(tiny_folder, enlarge)
    message = refused(encode(tiny_folder, "--pooling", "mean"))
    assert f"row 1: the embedding of {TEXTS[0]!r} holds NaN or infinite values in float32" in message


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), -float("inf")])
def test_all_finite_says_what_isfinite_says(dtype: torch.dtype, value: float) -> None:
    values = torch.randn(3, 5).to(dtype)
    values[1, 2] = value
    assert bool(all_finite(values)) is bool(values.isfinite().all())
    assert bool(all_finite(values[:0])) is True
