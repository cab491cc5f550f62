"""The order of an epoch is that of Transformers and accelerate, in less memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import SeedableRandomSampler, skip_first_batches

from csekit.trainers.base_trainer import TermsTrainer
from csekit.trainers.data.datasets import ShuffledRows


@pytest.mark.parametrize("rows", [5, 300])
def test_shuffled_rows_are_those_of_accelerate(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(ShuffledRows, "BLOCK", 64)
    ours, theirs = ShuffledRows(rows, 42), SeedableRandomSampler(range(rows), data_seed=42)
    assert len(ours) == rows
    orders = [list(ours) for _ in range(3)]
    assert orders == [list(theirs) for _ in range(3)]
    assert orders[0] != orders[1]
    ours.set_epoch(1)
    assert list(ours) == orders[1]
    assert sorted(orders[1]) == list(range(rows))


@pytest.mark.slow
@pytest.mark.parametrize("data_seed", [None, 3])
def test_the_batches_of_a_trainer(
    small_run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_seed: int | None
) -> None:
    """Over two epochs, a resumed one too; and the weights are bitwise the same."""

    def trained() -> tuple[list[list[int]], dict[str, torch.Tensor], str]:
        trainer = small_run(tmp_path / "run", rows=41, num_train_epochs=2, data_seed=data_seed, seed=5)
        loader = trainer.get_train_dataloader()
        kind = type(loader.batch_sampler.sampler).__name__
        seen = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen += [batch["index"].tolist() for batch in loader]
        again = skip_first_batches(trainer.get_train_dataloader(), 2)
        again.set_epoch(1)
        assert [batch["index"].tolist() for batch in again] == seen[8:]
        trainer.train()
        return seen, {name: value.clone() for name, value in trainer.model.state_dict().items()}, kind

    order, weights, kind = trained()
    monkeypatch.delattr(TermsTrainer, "_get_train_sampler")
    expected, others, other_kind = trained()
    assert (kind, other_kind) == ("ShuffledRows", "SeedableRandomSampler")
    assert order == expected
    assert order[:6] != order[6:]
    assert [name for name in weights if not torch.equal(weights[name], others[name])] == []
