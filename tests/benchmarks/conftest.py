"""A tiny masked LM on disk, and the benchmark scripts as modules."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

ROOT = Path(__file__).parents[2]
HIDDEN, LAYERS, INTERMEDIATE, POSITIONS = 8, 2, 12, 40


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("backbone") / "tiny"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tiny_tokenizer),
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=2,
            intermediate_size=INTERMEDIATE,
            max_position_embeddings=POSITIONS,
        )
        BertForMaskedLM(config).save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
