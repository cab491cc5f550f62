"""A loss that is not finite stops the run, says where, and spares what was saved before."""

import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from csekit.trainers import CSETrainer, NonFiniteLossError

SmallRun = Callable[..., CSETrainer]


def checkpoints(trainer: CSETrainer) -> set[str]:
    return {path.name for path in Path(trainer.training_dir).glob("checkpoint-*")}


def breaks_at(step: int, term: str = "reconstruction") -> type[CSETrainer]:
    """A trainer whose objective gives nan at a step."""

    class Breaking(CSETrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            objective = self.model.objectives[term]
            if self.state.global_step + 1 == step and not hasattr(self, "rows"):
                self.rows = inputs["index"].tolist()
            weight = objective.config.weight
            objective.config.weight = math.nan if self.state.global_step + 1 == step else weight
            try:
                return super().compute_loss(model, inputs, *args, **kwargs)
            finally:
                objective.config.weight = weight

    return Breaking


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (3, {"logging_steps": 100}),  # found when the checkpoint of step 4 is due
        pytest.param(4, {"logging_steps": 100}, marks=pytest.mark.slow),  # right before it
        (6, {"logging_steps": 5, "gradient_accumulation_steps": 2, "num_train_epochs": 2}),
        (5, {"logging_steps": 100, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}),
    ],
    ids=["between", "before-save", "accumulation", "last-step"],
)
def test_a_loss_that_is_not_finite_stops_the_run_and_spares_the_last_checkpoint(
    small_run: SmallRun, tmp_path: Path, step: int, options: dict[str, Any]
) -> None:
    eval_steps = 2 if step == 3 else 4 if step != 4 else 3
    options = {"eval_steps": eval_steps} | options
    trainer = small_run(tmp_path / "run", 80 if step == 6 else 40, method="informin", kind=breaks_at(step), **options)
    with pytest.raises(NonFiniteLossError) as error:
        trainer.train()
    message = str(error.value)
    assert f"step {step}: loss term 'reconstruction' is nan" in message
    assert str(trainer.rows) in message
    good = {int(name.split("-")[1]) for name in checkpoints(trainer)}
    assert all(saved < step for saved in good)
    if options.get("save_strategy") != "no":
        assert good
        folder = Path(trainer.training_dir) / f"checkpoint-{max(good)}"
        model = type(trainer.model).from_pretrained(folder)
        assert all(value.isfinite().all() for value in model.state_dict().values())
        again = small_run(tmp_path / "run", 80 if step == 6 else 40, method="informin", **options)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == again.state.max_steps


def test_an_infinite_gradient_of_a_finite_loss_is_not_saved(small_run: SmallRun, tmp_path: Path) -> None:
    class Poisoned(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
            if state.global_step + 1 == 4:
                next(iter(model.parameters())).grad.fill_(math.nan)

    trainer = small_run(tmp_path / "run", label_free_samples=0, eval_strategy="no", save_steps=2,
                        load_best_model_at_end=False)  # fmt: skip
    trainer.add_callback(Poisoned())
    with pytest.raises(NonFiniteLossError, match="step 4: weights are not finite, so no checkpoint was written"):
        trainer.train()
    assert checkpoints(trainer) == {"checkpoint-2"}


def test_the_signal_goes_back_to_its_owner_after_an_error(small_run: SmallRun, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    trainer = small_run(tmp_path / "run", method="informin", kind=breaks_at(2))
    with pytest.raises(NonFiniteLossError):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) == before
