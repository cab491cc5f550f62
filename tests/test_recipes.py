"""The Python blocks of the pages on deployment and recipes, run as they stand against a tiny encoder."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from csekit.cli import main

ROOT = Path(__file__).parents[1]
PAGES = ("deploy.md", "recipes.md")
TEXTS = ["A man plays a guitar.", "A dog runs."]
#: Libraries that a checkout may lack; what else cannot be imported is a failure.
OPTIONAL = ("onnxruntime", "onnxscript", "sentence_transformers", "langchain_huggingface", "llama_index", "faiss")
EXPORT = "csekit export runs/my-encoder -o runs/my-encoder-onnx --pooled --int8"

# One process for all blocks: their imports take seconds. Each has names of its own.
DRIVER = """
import json, sys, traceback
import numpy as np
report = {}
for number, block in enumerate(json.load(open("blocks.json"))):
    names = {}
    try:
        exec(compile(block, f"block {number}", "exec"), names)
        report[number] = {"vectors": np.asarray(names["vectors"], dtype=float).tolist()}
    except ImportError as error:
        report[number] = {"missing": error.name or "", "error": traceback.format_exc()}
    except Exception:
        report[number] = {"error": traceback.format_exc()}
json.dump(report, open("report.json", "w"))
"""


def blocks() -> list[tuple[str, str]]:
    """(page and heading, code) of every block of Python that needs no network."""
    found = []
    for page in PAGES:
        heading = ""
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for match in re.finditer(r"^## ([^\n]+)$|^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            heading = match[1] or heading
            if match[2] is not None:
                found.append((f"{page}: {heading}", match[2]))
    return found


BLOCKS = blocks()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs/my-encoder``, and its ONNX export made by the page's own command where that can be."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    from csekit.modeling import SimCSEModel

    folder = tmp_path_factory.mktemp("recipes")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "plays", "guitar", ".", "dog", "runs"]
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=64)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(vocab_size=len(words), max_position_embeddings=512, initializer_range=0.3, **sizes)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder / "backbone")
        tokenizer.save_pretrained(folder / "backbone")
        SimCSEModel.from_backbone(folder / "backbone").export(folder / "runs/my-encoder", tokenizer)
    environment = {name: value for name, value in os.environ.items() if name != "CSEKIT_DATA"} | {
        "HF_HUB_OFFLINE": "1"
    }
    with contextlib.chdir(folder):
        done = CliRunner().invoke(main, EXPORT.split()[1:], env={"CSEKIT_DATA": None})
    assert done.exit_code == 0 or "pip install 'csekit[onnx]'" in done.output, done.output
    (folder / "blocks.json").write_text(json.dumps([code for _, code in BLOCKS]), encoding="utf-8")
    environment |= {"TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", DRIVER]
    driven = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert driven.returncode == 0, driven.stderr[-2000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=[name for name, _ in BLOCKS])
def test_the_blocks_run_and_give_the_encoder_s_embeddings(workplace: Path, number: int) -> None:
    from csekit import load_encoder

    found: dict[str, Any] = json.loads((workplace / "report.json").read_text(encoding="utf-8"))[str(number)]
    if found.get("missing", "").split(".")[0] in OPTIONAL:
        pytest.skip(f"needs {found['missing']}")
    if "onnx" in BLOCKS[number][1] and not (workplace / "runs/my-encoder-onnx").is_dir():
        pytest.skip("needs the extra 'onnx'")
    assert "error" not in found, found["error"]
    wanted = load_encoder(workplace / "runs/my-encoder", device="cpu").encode(TEXTS)
    rows = np.array(found["vectors"])
    assert repr(TEXTS).replace("'", '"') in BLOCKS[number][1] and rows.shape == wanted.shape
    cosines = (rows * wanted).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(wanted, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-5)


def test_every_tool_of_the_pages_has_its_block() -> None:
    names = [name.partition(": ")[2] for name, _ in BLOCKS]
    assert names == ["ONNX", "ONNX", "sentence-transformers", "LangChain", "LlamaIndex", "faiss"]
    assert EXPORT in (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-encoder", "my-encoder-onnx"])
def test_what_text_embeddings_inference_reads(workplace: Path, name: str) -> None:
    """The fields without which its router or its ONNX backend does not start (router/src/lib.rs, backends/ort)."""
    folder = workplace / "runs" / name
    if not folder.is_dir():
        pytest.skip("needs the extra 'onnx'")
    config, pooling, limit, modules = (
        json.loads((folder / file).read_text(encoding="utf-8"))
        for file in ("config.json", "1_Pooling/config.json", "sentence_bert_config.json", "modules.json")
    )
    assert config["architectures"] == ["BertModel"] and config["model_type"] == "bert"
    sizes = ("max_position_embeddings", "pad_token_id", "hidden_size", "num_hidden_layers")
    assert all(isinstance(config[field], int) for field in sizes)
    flags = [name for name, value in pooling.items() if value is True]
    assert flags == ["pooling_mode_cls_token"]
    assert limit["max_seq_length"] == 64
    assert len(modules) == 2
    others = ("mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    assert all(pooling[f"pooling_mode_{other}"] is False for other in others)
    assert (folder / "tokenizer.json").is_file()
    weights = "model.safetensors" if name == "my-encoder" else "onnx/model.onnx"
    assert (folder / weights).is_file()


def test_commands_of_the_pages_have_only_options_that_exist() -> None:
    from typer.main import get_command

    commands = get_command(main).commands  # type: ignore[attr-defined]
    seen = 0
    for page in PAGES:
        for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines():
            if line.startswith("csekit "):
                _, name, *words = line.split()
                options = {option for parameter in commands[name].params for option in parameter.opts}
                assert {word for word in words if word.startswith("-")} <= options, line
                seen += 1
    assert seen >= 7
