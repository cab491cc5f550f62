"""Training with TSDAE's decoder, alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from csekit.encoding import load_encoder
from csekit.modeling import CSEModel


def test_a_run_without_the_contrast_trains_encoder_and_decoder(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"objectives": ["tsdae"], "contrastive_weight": 0.0}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, max_steps=2)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/tsdae"], abs=1e-4)
    assert "loss/contrastive" not in entry
    assert 0 <= entry["metrics/tsdae_accuracy"] <= 1
    after = trainer.model.state_dict()
    still = {name for name in before if torch.equal(after[name], before[name])}
    # nothing reads the projector; attention to a single vector has the weight 1, whatever its query and key are
    idle = {name for name in before if name.startswith("projector.") or ".self.query." in name or ".self.key." in name}
    assert still - idle == set()
    assert any(name.startswith("projector.") for name in still)
    folder = trainer.save_run()
    again = CSEModel.from_pretrained(folder / "training")
    assert again.state_dict().keys() == after.keys()
    texts = ["the dog sings .", "a man"]
    torch.testing.assert_close(
        torch.from_numpy(load_encoder(folder, device="cpu").encode(texts)), torch.from_numpy(trainer.embed(texts))
    )
