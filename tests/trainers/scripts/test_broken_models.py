"""Broken models that training used to answer with a traceback, or to train: one line each, before the corpus."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

LAYER = "bert.encoder.layer.1.output.dense.weight"


def config(**fields: Any) -> Callable[[Path], None]:
    """Change fields of ``config.json``; None takes one out."""

    def edit(folder: Path) -> None:
        path = folder / "config.json"
        held = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({name: value for name, value in held.items() if value is not None}))

    return edit


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return edit


def remove(*names: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for name in names:
            (folder / name).unlink(missing_ok=True)

    return edit


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def shards(folder: Path) -> None:
    """An index that names a file which is not there."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    places = {name: f"model-0000{1 + (name == LAYER)}-of-00002.safetensors" for name in state}
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def adapter_alone(folder: Path) -> None:
    remove("config.json", "model.safetensors")(folder)
    write("adapter_config.json", '{"peft_type": "LORA", "base_model_name_or_path": "bert-base-uncased"}')(folder)


def quantised(state: dict[str, torch.Tensor]) -> None:
    state[LAYER] = state[LAYER].mul(100).to(torch.int8)


AUTO_MAP = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}

BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (remove("config.json"), "cannot load it"),
    "empty config": (write("config.json", "{}"), "cannot load it"),
    "config is a list": (write("config.json", "[]"), "cannot"),
    "config is no JSON": (write("config.json", "{"), "cannot load it"),
    "deep config": (write("config.json", '{"a": ' + "[" * 9000 + "]" * 9000 + "}"), "cannot"),
    "unknown family": (config(model_type="nobody"), "nobody"),
    "other family": (config(model_type="roberta"), "lacks"),
    "family without text": (config(model_type="vit"), ""),
    "own code": (config(**AUTO_MAP), "auto_map"),
    "adapter alone": (adapter_alone, "cannot"),
    "no weights": (remove("model.safetensors"), ""),
    "truncated weights": (truncate, "model.safetensors"),
    "empty weights": (write("model.safetensors", b""), "model.safetensors"),
    "weights are text": (write("model.safetensors", b"not weights at all, " * 9), "model.safetensors"),
    "missing shard": (shards, "00002-of-00002"),
    "missing weight": (weights(lambda state: state.pop(LAYER)), "lacks 1 weights"),
    "other shape": (weights(lambda state: state.update({LAYER: torch.zeros(3, 3)})), ""),
    "NaN": (weights(lambda state: state[LAYER].fill_(float("nan"))), "NaN or infinite"),
    "quantised": (weights(quantised), "I8"),
    "quantisation in config": (config(quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True}), ""),
    "unknown dtype": (config(dtype="float99"), "float99"),
    "more layers": (config(num_hidden_layers=3), "lacks"),
    "fewer layers": (config(num_hidden_layers=1), "more layers than config.json"),
    "no layers": (config(num_hidden_layers=0), ""),
    "negative layers": (config(num_hidden_layers=-1), ""),
    "layers are text": (config(num_hidden_layers="two"), "two"),
    "heads do not divide": (config(num_attention_heads=5), ""),
    "no heads": (config(num_attention_heads=0), ""),
    "no positions": (config(max_position_embeddings=0), ""),
    "negative width": (config(hidden_size=-32), ""),
    "padding outside": (config(pad_token_id=999), ""),
    "unknown activation": (config(hidden_act="jump"), "jump"),
    "dropout of 2": (config(hidden_dropout_prob=2), ""),
    "no segment types": (config(type_vocab_size=0), ""),
    "no tokenizer": (remove("tokenizer.json", "tokenizer_config.json", "vocab.txt"), ""),
    "tokenizer is no JSON": (write("tokenizer.json", "{"), "cannot load it"),
    "tokenizer is empty": (write("tokenizer.json", "{}"), "cannot load it"),
    "vocabulary of another model": (config(vocab_size=5), ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_one_line(started: Callable[..., str], backbone: Path, tmp_path: Path, name: str) -> None:
    edit, words = BROKEN[name]
    folder = tmp_path / "broken-model"
    shutil.copytree(backbone, folder)
    edit(folder)
    line = started("run_unsup.py", folder)
    assert "broken-model" in line
    assert words in line


@pytest.mark.parametrize("name", ["unknown family", "truncated weights", "NaN", "no tokenizer", "quantised"])
def test_pre_training_from_a_broken_model(
    started: Callable[..., str], backbone: Path, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "broken-model"
    shutil.copytree(backbone, folder)
    BROKEN[name][0](folder)
    assert "broken-model" in started("run_pretrain.py", folder, "--objective", "mlm")
