"""Training decoder language models: the command from a checkpoint to the export, and adapters after a kill."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast, TrainerCallback, trainer_utils
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.modeling import CSEModel


@pytest.fixture
def decoder(small: Any, tmp_path: Path) -> Path:
    words = ["<unk>", "</s>", "means", ":", *small.WORDS]
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"head_dim": 4, "num_key_value_heads": 2, "vocab_size": len(words), "max_position_embeddings": 48}
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None}
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model("qwen3", **sizes, **more, **ids)).save_pretrained(tmp_path / "decoder")
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"unk_token": "<unk>", "bos_token": "</s>", "eos_token": "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.save_pretrained(tmp_path / "decoder")
    return tmp_path / "decoder"


class StopAt(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= 2


def test_the_command_trains_adapters_of_a_decoder(
    small: Any, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning of the trainer said "the tokenizer has new PAD/BOS/EOS tokens"; csekit itself sets the padding."""
    warnings: list[str] = []
    monkeypatch.setattr(trainer_utils.logger, "warning", lambda text, *_, **__: warnings.append(text))
    texts = small.write_texts(tmp_path / "texts.txt", 30)
    output = tmp_path / "run"
    words = [
        "train",
        "--model_name_or_path",
        decoder,
        "--train_file",
        texts,
        "--output_dir",
        output,
        "--pooling",
        "last",
    ]
    words += ["--prompt_template", "{sentence} means :", "--bidirectional", "--lora", '{"r": 4, "lora_dropout": 0.1}']
    words += ["--max_steps", 2, "--per_device_train_batch_size", 8, "--learning_rate", "0.01", "--report_to", "none"]
    words += ["--disable_tqdm", "True", "--use_cpu", "True", "--label_free_samples", 0]
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    assert not warnings
    config = json.loads((output / "config.json").read_text())
    assert config["is_causal"] is False
    assert (output / "training" / "adapter" / "adapter_model.safetensors").is_file()
    model = CSEModel.from_pretrained(output / "training")
    assert model.config.lora["r"] == 4
    trained = load_encoder(output / "training", device="cpu").encode(["the dog", "a red house"])
    exported = load_encoder(output, device="cpu").encode(["the dog", "a red house"])
    torch.testing.assert_close(torch.tensor(exported), torch.tensor(trained), rtol=1e-4, atol=1e-5)
    assert "the last token" in (output / "README.md").read_text()


@pytest.mark.parametrize("way", ["train", "train --streaming", "encode"])
def test_a_text_without_tokens_is_named_with_its_row(small: Any, decoder: Path, tmp_path: Path, way: str) -> None:
    """A tokenizer without special tokens makes none of such a text. Training noticed it at the end, or never; with
    ``last`` pooling a batch ended in an IndexError. ``csekit encode`` did not say which row it is."""
    tokenizer = AutoTokenizer.from_pretrained(decoder)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    tokenizer.save_pretrained(decoder)
    lines = small.write_texts(tmp_path / "texts.txt", 30).read_text().splitlines()
    lines[2], lines[9] = "", "\u200b"
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["train", "--model_name_or_path", decoder, "--train_file", texts, "--output_dir", tmp_path / "run"]
    words += ["--pooling", "last", "--dropout", 0.1, "--max_steps", 4, "--per_device_train_batch_size", 8, "--use_cpu"]
    words += ["--label_free_samples", 0, *way.split()[1:]]
    told = f"{texts}, line 10: column 'text' holds '\\u200b', of which the tokenizer makes no token: leave the row out"
    if way == "encode":
        words = ["encode", texts, "--model", decoder, "--pooling", "last", "-o", tmp_path / "out.npy", "--no_progress"]
        told = f"{texts}, row 3: a text without tokens cannot be encoded, got ''"
    elif way != "train":
        told = f"{texts}, line 10: the tokenizer makes no token of '\\u200b': leave the row out"
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 2, found.output
    assert told in " ".join(found.stderr.split())
    assert not list((tmp_path / "run").glob("training/checkpoint-*"))


def test_adapters_are_resumed(small_run: Callable[..., Any], tmp_path: Path) -> None:
    options = {"fields": {"lora": 2, "pooling": "last"}, "eval_steps": 2, "max_steps": 4}
    whole = small_run(tmp_path / "whole", **options)
    whole.train()
    killed = small_run(tmp_path / "part", **options)
    killed.add_callback(StopAt())
    killed.train()
    resumed = small_run(tmp_path / "part", **options)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name]), name
