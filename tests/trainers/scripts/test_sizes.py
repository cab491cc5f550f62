"""Settings that depend on the encoder's size are checked against the encoder that is named, of whatever size."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer
from typer.testing import CliRunner

from csekit.cli import main
from csekit.modeling import CSEModel


@pytest.fixture
def wide(backbone: Path, tmp_path: Path) -> Path:
    """An encoder of 776 dimensions, more than BERT-base has; 5 does not divide 768, 8 and 97 divide 776."""
    folder = tmp_path / "wide"
    config = AutoConfig.from_pretrained(backbone, hidden_size=776, num_hidden_layers=1, intermediate_size=8)
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(backbone).save_pretrained(folder)
    return folder


def train(folder: Path, backbone: Path, output_dir: Path, *words: str) -> Any:
    texts = shutil.copy(backbone.parent / "texts.txt", output_dir.parent)
    given = ("--model_name_or_path", folder, "--train_file", texts, "--output_dir", output_dir)
    few = ("--use_cpu", "--report_to", "none", "--max_steps", "1", "--per_device_train_batch_size", "8")
    return CliRunner().invoke(main, ["train", *map(str, given), *few, "--label_free_samples", "0", *words])


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("--whitening_groups", "97"), "whitening_groups", 97),
        (("--matryoshka_dims", "8", "776"), "matryoshka_dims", [8, 776]),
        (("--contrast_dims", "770"), "contrast_dims", 770),
        (("--truncate_dim", "776"), "truncate_dim", 776),
    ],
)
def test_an_encoder_larger_than_bert_base(
    wide: Path, backbone: Path, tmp_path: Path, words: tuple[str, ...], field: str, value: Any
) -> None:
    found = train(wide, backbone, tmp_path / "run", *words)
    assert found.exit_code == 0, found.output
    assert getattr(CSEModel.from_pretrained(tmp_path / "run" / "training").config, field) == value


def test_a_wrong_size_names_the_encoder_s(backbone: Path, tmp_path: Path) -> None:
    found = train(backbone, backbone, tmp_path / "run", "--whitening_groups", "5")
    assert found.exit_code == 2
    assert "whitening_groups must divide the hidden size, 32, got 5" in found.output
