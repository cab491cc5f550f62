"""The naive forms compute the losses that csekit does; sentence-transformers' step trains."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from csekit.evaluation.results import write_results
from csekit.modeling import METHODS
from csekit.trainers import CSECollator
from experiments.tables.render import update

TEXTS = ["the man plays guitar", "a woman sings", "the dog runs in the house", "a cat is on the tree"]
ROWS = [{"texts": [text], "index": i, "epoch": 0} for i, text in enumerate(TEXTS)]
RELEASED = {"edit_scope": "all", "edit_sampling": "argmax", "generator_dropout": False}


@pytest.mark.parametrize(
    ("method", "fields"),
    [("infocse", {"aux_mlm_head_init": "random", "aux_mlm_gradient": "plain"}), ("diffcse", RELEASED)],
)
def test_naive_losses(
    script: Callable[[str], ModuleType], masked_lm: Path, method: str, fields: dict[str, Any]
) -> None:
    peers = script("peers")
    term = {"infocse": "aux_mlm", "diffcse": "rtd"}[method]
    fields = {f"{term}_weight": 0.5, f"{term}_probability": 0.5, **fields}
    model = METHODS[method].from_backbone(masked_lm, dropout=0.0, **fields).train()
    collator = CSECollator(AutoTokenizer.from_pretrained(masked_lm), 16, model.batch_specs)
    batch = collator(ROWS)
    expected = model(**{name: value for name, value in batch.items() if name != "index"}).loss
    peers.undo_speed(model)
    if method == "infocse":
        found = peers.naive_infocse_loss(model, batch)
    else:
        generator = AutoModelForMaskedLM.from_pretrained(masked_lm).eval()
        found = peers.naive_diffcse_loss(model, generator, batch)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
@pytest.mark.parametrize("step", ["sentence_transformers_step", "naive_step"])
def test_steps_train(
    script: Callable[[str], ModuleType],
    masked_lm: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    stored: torch.dtype,
) -> None:
    """A checkpoint in 16 bits trains in float32, too."""
    pytest.importorskip("sentence_transformers")
    if stored != torch.float32:
        AutoModelForMaskedLM.from_pretrained(masked_lm, dtype=stored).save_pretrained(tmp_path)
        AutoTokenizer.from_pretrained(masked_lm).save_pretrained(tmp_path)
        masked_lm = tmp_path
    peers, trained = script("peers"), []
    own = torch.optim.AdamW

    def remember(parameters: list[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
        trained.extend(parameters)
        return own(parameters, **options)

    monkeypatch.setattr(torch.optim, "AdamW", remember)
    setting = script("train_step").Setting(str(masked_lm), "cpu", "bf16", 16, 1)
    method = {"method": "diffcse", "fields": {}} if step == "naive_step" else {}
    take = getattr(peers, step)(setting, **method)
    before = [parameter.detach().clone() for parameter in trained]
    take(ROWS)
    take(ROWS)
    moved = sum(not parameter.equal(old) for parameter, old in zip(trained, before, strict=True))
    assert len(trained) > 20 and moved > 0.9 * len(trained)


def test_the_rows_and_the_table(script: Callable[[str], ModuleType], tmp_path: Path) -> None:
    module = script("train_step")
    path = module.METHODS_FILE.with_name("peers.yaml")
    rows = module.read_rows(path, None)
    assert rows["st-fp32"].against == "simcse-fp32" and rows["st-fp32"].precision == "fp32"
    assert all(row.against in (None, *rows) for row in rows.values())

    def ask(given: Any, times: list[float]) -> Any:
        return times.pop(0) if given is not None else 0

    class Fake:
        def __init__(self, title: str, *times: float) -> None:
            self.title, self.times = title, list(times)

        def ask(self, given: Any) -> Any:
            return ask(given, self.times)

    workers = {"a": Fake("A", 1.0, 2.0), "b": Fake("B", 3.0, 4.0), "c": Fake("C", 6.0, 12.0)}
    found = module.measure(workers, [[{}], [{}]], 0, {"c": "b"})
    assert [(row["against"], row["time_ratio"]) for row in found] == [("a", 1), ("a", 2.5), ("b", 2.5)]
    for row in found:
        row["memory"] = 2**20
    run = {"batch_size": 2, "max_seq_length": 16, "corpus": "t", "backbone": "tiny", "precision": "bf16"}
    run |= {"threads": 1, "repetitions": 2, "device": "cpu"}
    results = {"run": run, "methods": found, "environment": {"device": "x"}}
    write_results(tmp_path / "peers" / "tiny.json", results)
    page = update("<!-- table:peers/tiny -->\n<!-- end table -->\n", tmp_path)
    assert "| C | 9000 | 2.50 × B |" in page and "| A | 1500 |  |" in page
