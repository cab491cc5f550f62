"""The gradient of each term in the encoder: what a backward pass of that term alone gives."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from csekit.evaluation.results import read_results
from csekit.modeling import DiffCSEModel, InforMinModel
from csekit.trainers import CSECollator, CSETrainer, CSETrainingArguments, load_corpus
from experiments.tables.render import update

TEXTS = [f"the {animal} {verb} in the house" for animal in ("dog", "cat") for verb in ("runs", "sings", "plays")]


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    script("train_step")
    return script("term_gradients")


def batch_of(model: Any, masked_lm: Path) -> dict[str, Any]:
    rows = [{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(TEXTS)]
    batch = CSECollator(AutoTokenizer.from_pretrained(masked_lm), 16, model.batch_specs)(rows)
    return {name: value for name, value in batch.items() if name not in ("index", "return_loss")}


def norm_of(model: Any) -> float:
    gradients = [p.grad.flatten().double() for p in model.backbone.parameters() if p.grad is not None]
    return torch.cat(gradients).norm().item()


def test_norms_are_those_of_a_backward_pass_of_one_term(module: ModuleType, masked_lm: Path) -> None:
    model = DiffCSEModel.from_backbone(masked_lm, rtd_weight=0.3).train()
    torch.manual_seed(3)
    found = module.term_gradients(model, batch_of(model, masked_lm))
    assert list(found) == ["contrastive", "rtd"] and found["contrastive"]["cosine"] == pytest.approx(1)
    assert found["rtd"]["share"] == pytest.approx(found["rtd"]["norm"] / found["contrastive"]["norm"])
    assert all(parameter.grad is None for parameter in model.parameters())
    for term in found:
        torch.manual_seed(3)
        model.zero_grad()
        value = model.terms(**batch_of(model, masked_lm))[1][term]
        value.backward()
        assert found[term]["norm"] == pytest.approx(norm_of(model), rel=1e-4) and norm_of(model) > 0
        assert found[term]["value"] == pytest.approx(value.item())


def test_without_contrast_there_is_no_angle(module: ModuleType, masked_lm: Path) -> None:
    model = InforMinModel.from_backbone(masked_lm, contrastive_weight=0.0).train()
    found = module.term_gradients(model, batch_of(model, masked_lm))
    assert list(found) == ["reconstruction"] and found["reconstruction"]["cosine"] is None
    both = module.median_over_batches([{"a": {"norm": 1.0, "cosine": None}}, {"a": {"norm": 3.0, "cosine": 0.5}}])
    assert both == {"a": {"norm": 2.0, "cosine": 0.5}}


def test_the_script(module: ModuleType, masked_lm: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS) + "\n")
    args = CSETrainingArguments(str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=3, eval_steps=2)
    args.report_to, args.max_seq_length = [], 16
    model = InforMinModel.from_backbone(masked_lm)
    CSETrainer(model, args, load_corpus(texts), AutoTokenizer.from_pretrained(masked_lm)).train()
    saved = next((tmp_path / "run").glob("**/checkpoint-2"))
    argv = ["--train_file", str(texts), "--batch_size", "3", "--max_seq_length", "16", "--repetitions", "2"]
    argv += ["--threads", "1", "--output", str(tmp_path / "gradients" / "tiny.json")]
    module.main([*argv, "--start", f"diffcse={masked_lm}", "--checkpoints", str(saved)])
    found = read_results(tmp_path / "gradients" / "tiny.json")["rows"]
    assert [(row["title"], row["step"]) for row in found] == [("diffcse", 0), ("informin", 2)]
    table = update("<!-- table:gradients/tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| diffcse | 0 | rtd |" in table and "| informin | 2 | reconstruction |" in table and "2 batches" in table
    for wrong, message in (
        (["--start", "best=x"], "METHOD=ENCODER"),
        (["--checkpoints", str(masked_lm)], "must be a training checkpoint"),
        ([], "must name a model"),
    ):
        with pytest.raises(SystemExit, match=message):
            module.main([*argv, *wrong])
