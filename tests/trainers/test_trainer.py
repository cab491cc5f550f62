"""The trainer: what it logs, keeps, refuses, moves and leaves alone."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from csekit.encoding import chunks
from csekit.evaluation.sts import EmbeddedPairs
from csekit.evaluation.transfer_data import Split, TransferTask
from csekit.modeling import OBJECTIVES, Reconstruction, SimCSEModel, fast_embedding, fast_memory
from csekit.modeling.fast_half import computes_bf16
from csekit.trainers import CSETrainer, CSETrainingArguments
from csekit.trainers.export_check import ExportMismatchError
from csekit.trainers.run_record import kept_step

WORDS = ("the", "red", "fast", "guitar", "house", "tree", "ball")
SmallRun = Callable[..., CSETrainer]


class Recording(CSETrainer):
    """Keeps what every micro-batch gave: (step, loss, terms, metrics)."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen: list[Any] = []
            self.batches: list[dict[str, Any]] = []
        self.batches.append({name: value.clone() for name, value in inputs.items() if torch.is_tensor(value)})
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        values = [{k: float(v) for k, v in part.items()} for part in (outputs.loss_dict, outputs.metrics)]
        self.seen.append((self.state.global_step + 1, float(loss), *values))
        return loss


class OnMeta(CSETrainer):
    """Moves its model to a device that every machine has besides the CPU."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        model.to("meta")


def training_log(trainer: CSETrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def evaluations(trainer: CSETrainer) -> list[dict[str, float]]:
    return [entry for entry in trainer.state.log_history if "eval_uniformity" in entry or "eval_dev_spearman" in entry]


def checkpoints(trainer: CSETrainer) -> set[str]:
    return {path.name for path in Path(trainer.training_dir).glob("checkpoint-*")}


def saved_weights(trainer: CSETrainer, step: int) -> dict[str, torch.Tensor]:
    return load_file(Path(trainer.training_dir) / f"checkpoint-{step}" / "model.safetensors")


def assert_weights(trainer: CSETrainer, expected: dict[str, torch.Tensor]) -> None:
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())


# The log


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (40, {"method": "informin", "fields": {"mlm_weight": 0.1}}),
        (41, {"gradient_accumulation_steps": 4, "num_train_epochs": 2}),  # 6 batches: steps of 4 and of 2
        (41, {"logging_steps": 100}),  # the end of a run is logged whatever the interval
        (41, {"bf16": True}),
    ],
    ids=["terms", "accumulation", "short", "bf16"],
)
def test_the_log_holds_the_mean_of_every_term(
    small_run: SmallRun, tmp_path: Path, rows: int, options: dict[str, Any]
) -> None:
    trainer = small_run(tmp_path / "run", rows, kind=Recording, **options)
    trainer.train()
    log = training_log(trainer)
    assert log[-1]["step"] == trainer.state.max_steps == trainer.seen[-1][0]
    by_step: dict[int, list[dict[str, float]]] = defaultdict(list)
    for step, loss, terms, metrics in trainer.seen:
        assert loss == pytest.approx(sum(terms.values()), rel=1e-6)
        row = {f"loss/{k}": v for k, v in terms.items()} | {f"metrics/{k}": v for k, v in metrics.items()}
        by_step[step].append(row | {"loss": loss})
    start = 0
    for entry in log:
        steps = [by_step[step] for step in range(start + 1, int(entry["step"]) + 1)]
        for name in steps[0][0]:
            expected = np.mean([np.mean([row[name] for row in step]) for step in steps])
            assert entry[name] == pytest.approx(expected, rel=1e-5, abs=1e-6), name
        assert entry["loss"] == pytest.approx(sum(v for k, v in entry.items() if k.startswith("loss/")), rel=1e-5)
        start = int(entry["step"])
    if options.get("method") == "informin":
        assert {"loss/contrastive", "loss/reconstruction", "loss/mlm", "metrics/mlm_accuracy"} <= log[0].keys()


@pytest.mark.parametrize(
    ("options", "measuring"),
    [
        ({"logging_steps": 1}, [*range(1, 17)]),
        ({"logging_steps": 3}, [1, 4, 5, 7, 9, 10, 13, 16]),
        ({"logging_steps": 16}, [1, 5, 9, 13]),
        ({"logging_steps": 16, "eval_steps": 16}, [1, 6, 11, 16]),
        ({"logging_steps": 16, "eval_steps": 16, "gradient_accumulation_steps": 2}, [1, 6]),
        ({"logging_strategy": "epoch", "eval_steps": 16}, [1, 6, 11, 16]),
    ],
    ids=str,
)
def test_gaps_are_measured_every_fifth_step_and_for_every_entry(  # an evaluation, every fourth, writes one, too
    small_run: SmallRun, tmp_path: Path, options: dict[str, Any], measuring: list[int]
) -> None:
    method = {"method": "infocse", "fields": {"aux_mlm_head_init": "top_layers"}}
    trainer = small_run(tmp_path / "run", 64, kind=Recording, per_device_train_batch_size=4, **method, **options)
    trainer.train()
    found: dict[int, list[float]] = defaultdict(list)
    for step, _, _, metrics in trainer.seen:
        if "aux_mlm_gap" in metrics:
            found[step].append(metrics["aux_mlm_gap"])
    assert list(found) == measuring
    assert all(len(values) == 1 for values in found.values())
    start = 0
    for entry in training_log(trainer):
        steps = [np.mean(found[step]) for step in range(start + 1, int(entry["step"]) + 1) if step in found]
        assert entry["metrics/aux_mlm_gap"] == pytest.approx(np.mean(steps), rel=1e-5, abs=1e-7)
        start = int(entry["step"])
    assert all(objective.measures_gap for objective in trainer.model.auxiliaries())  # as it was before


@pytest.mark.parametrize("more", [{}, {"aux_mlm_weight": 1e-5, "head_init": "top_layers"}], ids=["mlm", "aux_mlm"])
def test_no_step_waits_for_the_device(
    small_run: SmallRun, tmp_path: Path, more: dict[str, Any], host_waits: Any
) -> None:
    """Transformers' own mask code may (it asks whether anything is padded); ours may not."""
    found = []

    class Guarded(CSETrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            with host_waits() as waits:
                loss = super().compute_loss(*args, **kwargs)
            found.extend(waits.ours)
            return loss

    trainer = small_run(tmp_path / "run", kind=Guarded, method="informin", fields={"mlm_weight": 0.1, **more})
    trainer.train()
    assert trainer.state.global_step == 5
    assert found == []


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"optim": "adafactor"}], ids=str)
@pytest.mark.parametrize("method", ["simcse", "infocse"])
def test_training_is_the_same_with_sparse_gradients_of_the_embeddings(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, options: dict[str, Any]
) -> None:
    """One clipping norm, and one a group; sparse gradients are those of AdamW's runs only, and end with the run."""
    fields = {"aux_mlm_weight": 0.5, "head_init": "top_layers", "projector": "tanh"} if method == "infocse" else {}
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", 1)
    sparse: list[int] = []

    class Counting(CSETrainer):
        def clip(self, parameters: Any) -> torch.Tensor:
            sparse.append(sum(p.grad is not None and p.grad.is_sparse for p in parameters))
            return super().clip(parameters)

    def train(name: str) -> CSETrainer:
        trainer = small_run(tmp_path / name, kind=Counting, method=method, fields=fields, max_grad_norm=0.1, **options)
        trainer.train()
        return trainer

    fast = train("sparse")
    assert sum(sparse) == 0 if "optim" in options else sum(sparse) >= fast.state.global_step
    assert not [m for m in fast.model.modules() if type(m) is fast_embedding.RowEmbedding]
    monkeypatch.setattr(fast_embedding, "_ELEMENTS", 1 << 40)
    plain, state = train("plain"), fast.model.state_dict()
    for name, value in plain.model.state_dict().items():
        if not name.endswith("key.bias"):  # attention does without: its gradient is rounding alone
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7, msg=name)
    for ours, theirs in zip(training_log(fast), training_log(plain), strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)


def test_a_run_without_clipping_logs_the_norm_of_sparse_gradients(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers' own norm, which it takes where nothing is clipped, knows no sparse gradient."""
    found = {}
    for name, elements in (("sparse", 1), ("plain", 1 << 40)):
        monkeypatch.setattr(fast_embedding, "_ELEMENTS", elements)
        found[name] = small_run(tmp_path / name, max_grad_norm=0.0)
        found[name].train()
    for ours, theirs in zip(training_log(found["sparse"]), training_log(found["plain"]), strict=True):
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_freed_memory_is_kept_while_a_run_trains(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """malloc's limits are raised before the first step, and lowered when the last one is done."""
    told: list[str] = []

    class Libc:
        @staticmethod
        def mallopt(option: int, value: int) -> None:
            told.append(f"mallopt({option}, {value})")

        @staticmethod
        def malloc_trim(_: int) -> None:
            told.append("trim")

    class Telling(CSETrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            told.append("step")
            return super().training_step(*args, **kwargs)

    monkeypatch.setattr(fast_memory, "_libc", lambda: Libc)
    small_run(tmp_path / "run", kind=Telling).train()
    raised, lowered = [f"mallopt(-3, {32 << 20})", f"mallopt(-1, {2**31 - 1})"], [f"mallopt(-1, {64 << 20})", "trim"]
    assert (told[:2], told[-2:]) == (raised, lowered)
    assert set(told[2:-2]) == {"step", "trim"}  # an evaluation gives memory back


# Selection


class Scripted(CSETrainer):
    """Dev scores by step."""

    script: dict[int, float]

    def dev_scores(self) -> dict[str, float]:
        return {
            "dev_spearman": self.script[self.state.global_step],
            "uniformity": -self.script[self.state.global_step],
        }

    def _check_saved(self, folder: Path) -> None:
        """No encoder has these scores."""


def test_the_best_checkpoint_is_kept_and_restored_and_the_last_one_too(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", 80, dev=True, kind=Scripted, eval_steps=2)
    trainer.script = {2: 10.0, 4: 30.0, 6: 20.0, 8: 30.0, 10: 25.0}
    trainer.train()
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (4, 30.0)  # a later equal one is not better
    assert checkpoints(trainer) == {"checkpoint-4", "checkpoint-10"}
    assert_weights(trainer, saved_weights(trainer, 4))
    last = saved_weights(trainer, 10)
    assert any(not torch.equal(last[name], value) for name, value in trainer.model.state_dict().items())
    folder = trainer.save_run()
    assert folder == tmp_path / "run"
    assert (folder / "modules.json").is_file()
    assert_weights(trainer, load_file(tmp_path / "run" / "training" / "model.safetensors"))
    assert checkpoints(trainer) == {"checkpoint-4", "checkpoint-10"}


def test_a_best_step_without_a_checkpoint_of_its_own_is_kept(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: with fewer checkpoints than evaluations the run ended with other weights than those it named."""
    trainer = small_run(tmp_path / "run", 80, dev=True, kind=Scripted, eval_steps=2, save_steps=4)
    trainer.script = {2: 10.0, 4: 20.0, 6: 40.0, 8: 30.0, 10: 25.0}
    trainer.train()
    assert (trainer.state.best_global_step, kept_step(trainer)) == (6, 6)
    assert checkpoints(trainer) == {"checkpoint-6", "checkpoint-10"}
    assert_weights(trainer, saved_weights(trainer, 6))


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [({"eval_steps": 2}, [2, 4, 5]), ({"eval_strategy": "epoch", "save_strategy": "epoch"}, [5])],
    ids=["steps", "epoch"],
)
def test_the_state_after_the_last_step_is_evaluated_once_and_can_be_the_best(
    small_run: SmallRun, tmp_path: Path, strategy: dict[str, Any], steps: list[int]
) -> None:
    trainer = small_run(tmp_path / "run", dev=True, kind=Scripted, **strategy)
    trainer.script = {2: 1.0, 4: 2.0, 5: 3.0}
    trainer.train()
    assert [entry["step"] for entry in evaluations(trainer)] == steps
    assert trainer.state.best_global_step == 5


def test_without_dev_set_the_last_state_is_kept_and_criteria_without_labels_are_logged(
    small_run: SmallRun, tmp_path: Path
) -> None:
    trainer = small_run(tmp_path / "run")
    trainer.train()
    assert trainer.args.metric_for_best_model is None
    assert trainer.state.best_metric is None
    assert_weights(trainer, saved_weights(trainer, 5))
    for entry in evaluations(trainer):
        assert {"eval_alignment", "eval_uniformity", "eval_effective_rank"} <= entry.keys()
        assert all(math.isfinite(value) for value in entry.values())
    assert [entry["step"] for entry in evaluations(trainer)] == [4, 5]


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"bf16_full_eval": True}], ids=["fp32", "bf16", "full_eval"])
def test_the_model_is_on_the_device_before_training(
    small_run: SmallRun, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Regression: Transformers leaves it on the CPU with ``bf16_full_eval``, which bf16 sets: on a GPU the scores
    before training ended in an error of two devices."""
    trainer = small_run(tmp_path / "run", kind=OnMeta, **options)
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"meta"}


@pytest.mark.parametrize("metric", ["dev_spearman", "uniformity"])
def test_a_rate_that_follows_the_score_falls_when_the_score_becomes_worse(
    small_run: SmallRun, tmp_path: Path, metric: str
) -> None:
    """Regression: a score of which the greater is the better one counted as a loss."""
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 0}}
    options |= {"metric_for_best_model": metric, "eval_steps": 1, "logging_steps": 1, "max_steps": 4}
    trainer = small_run(tmp_path / "run", dev=True, kind=Scripted, **options)
    trainer.script = {1: 1.0, 2: 0.5, 3: 0.25, 4: 0.125}
    trainer.train()
    assert [entry["learning_rate"] for entry in training_log(trainer)] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-5])


def test_a_rate_that_follows_the_score_needs_one(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: an AttributeError at the first evaluation."""
    words = "metric_for_best_model must name a score with lr_scheduler_type 'reduce_lr_on_plateau', got None"
    with pytest.raises(ValueError, match=words):
        small_run(tmp_path / "run", lr_scheduler_type="reduce_lr_on_plateau")


def test_arguments_serve_a_second_trainer(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: a trainer without dev set turned the choice of the best checkpoint off for the next one."""
    with_dev = small_run(tmp_path / "first", dev=True)
    args = CSETrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, report_to="none")
    parts = with_dev.model, args, with_dev.corpus, with_dev.tokenizer
    assert CSETrainer(*parts).args.metric_for_best_model is None
    second = CSETrainer(*parts, with_dev.dev)
    assert (second.args.metric_for_best_model, second.args.load_best_model_at_end) == ("dev_spearman", True)


@pytest.mark.parametrize("name", ["uniformity", "eval_uniformity"])
def test_a_criterion_without_labels_can_select(small_run: SmallRun, tmp_path: Path, name: str) -> None:
    trainer = small_run(tmp_path / "run", kind=Scripted, eval_steps=1, metric_for_best_model=name)
    trainer.script = {1: 1.0, 2: 4.0, 3: 2.0, 4: 3.0, 5: 2.0}
    trainer.train()
    assert (trainer.state.best_global_step, trainer.state.best_metric) == (2, -4.0)
    assert trainer.args.metric_for_best_model == "uniformity"
    assert_weights(trainer, saved_weights(trainer, 2))


class Classifying(CSETrainer):
    """Selects on two small classification tasks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        texts = tuple(f"{'the dog' if i % 2 else 'a cat'} runs {WORDS[i % 7]}" for i in range(20))
        split = Split((texts,), np.arange(20) % 2)
        other = TransferTask("other", {"train": split, "test": Split((("never seen",) * 2,), np.arange(2))})
        super().__init__(*args, transfer=[TransferTask("one", {"all": split}), other], **kwargs)

    def embed(self, texts: list[str]) -> Any:
        assert "never seen" not in texts
        return super().embed(texts)


@pytest.mark.parametrize("named", [None, "one_accuracy", "dev_spearman"])
def test_transfer_tasks_can_select(small_run: SmallRun, tmp_path: Path, named: str | None) -> None:
    trainer = small_run(tmp_path / "run", dev=True, kind=Classifying, metric_for_best_model=named)
    trainer.train()
    assert trainer.args.metric_for_best_model == (named or "transfer_accuracy")
    entries = evaluations(trainer)
    best = max(entry[f"eval_{trainer.args.metric_for_best_model}"] for entry in entries)
    assert trainer.state.best_metric == best
    for entry in entries:
        mean = (entry["eval_one_accuracy"] + entry["eval_other_accuracy"]) / 2
        assert entry["eval_transfer_accuracy"] == pytest.approx(mean)
        assert 0 < mean <= 100


def test_evaluating_leaves_random_state_and_model_alone(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", dev=True)
    trainer.model.train()
    trainer.model.backbone.embeddings.eval()
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    flags = [module.training for module in trainer.model.modules()]
    first, second = trainer.evaluate(), trainer.evaluate()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])
    assert [module.training for module in trainer.model.modules()] == flags
    assert first == second


def test_the_scores_of_a_bf16_run_are_those_of_its_encoder_in_fp32(
    small_run: SmallRun, tmp_path: Path, bf16_computed: None
) -> None:
    """The trainer wraps the model's forward in autocast; the exported encoder is scored without."""
    trainer = small_run(tmp_path / "run", bf16=True)
    trainer.train()
    texts = ["the man plays guitar", "a red ball"]
    seen: list[torch.Size] = []
    last = trainer.model.backbone.encoder.layer[-1].output
    last.register_forward_hook(lambda *call: seen.append(call[2].shape[:2]))
    embeddings = trainer.embed(texts)
    assert sum(shape.numel() for shape in seen) == len(texts)  # the last layer computes [CLS] alone
    assert trainer.model.returns_states
    assert trainer.args.bf16_full_eval  # that is for the dev set
    batch = trainer.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = trainer.model.eval().backbone(batch["input_ids"], batch["attention_mask"]).last_hidden_state[:, 0]
    np.testing.assert_allclose(embeddings, states.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "during"),
    [({"bf16": True}, "bf16"), ({"bf16": True, "bf16_full_eval": False}, "fp32"), ({}, "fp32")],
)
def test_the_dev_set_is_embedded_as_training_computes(
    small_run: SmallRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bf16_computed: None,
    options: dict[str, Any],
    during: str,
) -> None:
    """Evaluations of a bf16 run are in bf16 unless an argument says otherwise; the final score is of float32."""
    trainer = small_run(tmp_path / "run", dev=True, label_free_samples=0, **options)
    embed, seen = trainer._embed, []
    monkeypatch.setattr(
        trainer, "_embed", lambda texts, precision, kept: seen.append(precision) or embed(texts, precision, kept)
    )
    trainer.evaluate()
    trainer.dev_scores("fp32")
    assert seen == [during, "fp32"]


def test_the_dev_set_is_tokenised_once(small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    tokenize = chunks.tokenize
    monkeypatch.setattr(chunks, "tokenize", lambda *call: calls.append(1) or tokenize(*call))
    trainer = small_run(tmp_path / "run", dev=True, label_free_samples=0, max_steps=4, eval_steps=1, save_steps=1)
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "eval_dev_spearman" in entry]) >= 4
    assert len(calls) == 1


def test_the_score_of_the_encoder_on_disk_is_computed_once(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = small_run(tmp_path / "run", dev=True, label_free_samples=0)
    trainer.train()
    assert trainer.saved_scores == {}
    trainer.save_models()
    expected = trainer.dev_scores("fp32")
    assert trainer.saved_scores == pytest.approx(expected, abs=1e-6)
    monkeypatch.setattr(trainer, "_embed", lambda *call: pytest.fail("the dev set was embedded again"))
    assert trainer.dev_scores("fp32", trainer.saved_scores) == trainer.saved_scores


@pytest.mark.skipif(not computes_bf16("cpu"), reason="this processor has no bfloat16 products")
def test_the_encoder_on_disk_is_compared_in_the_precision_of_the_record(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the vectors of a collapsed encoder are so near that bf16 and float32 rank them differently. The
    check compared the two, and could refuse a sound encoder at the end of its run."""
    trainer = small_run(tmp_path / "run", dev=True, bf16=True, label_free_samples=0)
    trainer.train()
    asked: list[str] = []
    monkeypatch.setattr(
        "csekit.trainers.export_check.EmbeddedPairs",
        lambda encoder, sets: asked.append(encoder.precision) or EmbeddedPairs(encoder, sets),
    )
    trainer.save_models()
    assert asked == ["bf16"]
    assert trainer.saved_scores == {}  # the score after training is float32's


@pytest.mark.skipif(not computes_bf16("cpu"), reason="this processor has no bfloat16 products")
def test_another_encoder_on_disk_is_refused_in_bf16_too(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the weights in memory have the recorded score: those on disk have other embeddings."""
    trainer = small_run(tmp_path / "run", dev=True, bf16=True, label_free_samples=0)
    trainer.train()
    export = type(trainer.model).export

    def spoilt(model: Any, folder: str, *rest: Any) -> Path:
        written = export(model, folder, *rest)
        file = written / "model.safetensors"
        weights = load_file(file)
        name = next(name for name in weights if name.endswith("word_embeddings.weight"))
        save_file({**weights, name: -weights[name]}, file, {"format": "pt"})
        return written

    monkeypatch.setattr(type(trainer.model), "export", spoilt)
    monkeypatch.setattr("csekit.trainers.export_check.same_score", lambda *scores: False)
    with pytest.raises(ExportMismatchError, match="the saved encoder differs from the trained one by"):
        trainer.save_models()


# What is refused before the first step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric_for_best_model": "stsb"}, r"metric_for_best_model must be one of .*'uniformity'.*, got 'stsb'"),
        ({"metric_for_best_model": "dev_spearman"}, "must be one of"),  # there is no dev set
        (
            {"metric_for_best_model": "alignment", "label_free_samples": 0},
            r"must be left out, got 'alignment': there is",
        ),
        ({"fields": {"dropout": 0.0}}, "differ by dropout alone, and the encoder's is 0"),
        ({"per_device_train_batch_size": 1}, "per_device_train_batch_size must be at least 2"),
        ({"label_free_samples": 1}, "label_free_samples must be 0 or at least 2, got 1"),
        ({"max_seq_length": 2}, "max_seq_length must be at least 3, got 2"),
        ({"streaming": True}, "max_steps"),
        (  # with max_steps it "trained" no step and kept the untrained encoder
            {"per_device_train_batch_size": 41, "dataloader_drop_last": True, "max_steps": 9},
            "dataloader_drop_last must be False with fewer rows, 40, than a batch has, 41",
        ),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor must be 0, got 0.1: no loss here is smoothed"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha must be left out, got 5.0"),
        (
            {"lr_scheduler_type": "warmup_stable_decay"},
            "lr_scheduler_type 'warmup_stable_decay': .* 'num_decay_steps'",
        ),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"up": 1}},
            "lr_scheduler_type 'reduce_lr_on_plateau': .* 'up'",
        ),
        ({"lr_scheduler_type": "polynomial", "learning_rate": 1e-8}, "lr_scheduler_type 'polynomial': lr_end"),
        ({"optim": "adamw_torch_fused", "optim_args": "nonsense"}, "optim"),
        ({"objective_warmup_steps": 2}, "objective_warmup_steps must be 0: no objective of .* has weights of its own"),
        (
            {"columns": 2, "fields": {"hard_negative_weight": 1.0}},
            r"hard_negative_weight must be 0 without a third column, the hard negative, got 1\.0 and s0, s1 of texts",
        ),
        ({"fields": {"hard_negative_weight": -1.0}}, r"hard_negative_weight must be 0 without a third column"),
        ({"columns": 3, "fields": {"hard_negative_weight": 1.0, "further_positives": "column"}}, "must be 0 without"),
        (  # tsdae's decoder read the masked tokens, and triplet compared spans with another masking
            {"mask_contrastive_input": True, "fields": {"mlm_weight": 0.1, "tsdae_weight": 1.0}},
            "mask_contrastive_input must be False with the objective 'tsdae', which sets the unmasked sentence",
        ),
        (
            {"mask_contrastive_input": True, "fields": {"mlm_weight": 0.1, "triplet_weight": 1.0}},
            "mask_contrastive_input must be False with the objective 'triplet'",
        ),
        ({"train_sampling_strategy": "group_by_length"}, "must be 'random' or 'sequential', got 'group_by_length'"),
        (
            {"gradient_checkpointing": True, "fields": {"attention_weight": 1.0, "first_layer": 0, "last_layer": 1}},
            "gradient_checkpointing must be False with 'attention', which reads the attention",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(
    small_run: SmallRun, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        small_run(tmp_path / "run", **options)
    assert not (tmp_path / "run" / "training").exists()


def test_a_text_longer_than_the_encoder_s_positions_is_refused(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: only the tokenizer's limit counted, and the first long batch ended the run inside the encoder."""
    trainer = small_run(tmp_path / "first")
    trainer.tokenizer.model_max_length = 10**30
    args = replace(trainer.args, output_dir=str(tmp_path / "run"), max_seq_length=41)
    with pytest.raises(ValueError, match="max_seq_length must be at most 40, the encoder's limit, got 41"):
        CSETrainer(trainer.model, args, trainer.corpus, trainer.tokenizer)


class WithOptions(CSETrainer):
    """Gets further arguments of Transformers' Trainer."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, **self.options)


@pytest.mark.parametrize("name", ["compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics"])
def test_functions_that_nothing_calls_are_refused(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Regression: none was called. With ``compute_loss_func`` the gradients of accumulated batches were added up, not
    averaged."""
    monkeypatch.setattr(WithOptions, "options", {name: print})
    with pytest.raises(ValueError, match=f"{name} must be left out: the model computes its loss"):
        small_run(tmp_path / "run", kind=WithOptions)


def test_the_optimiser_that_is_given_is_used(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was AdamW whatever ``optimizer_cls_and_kwargs`` said."""
    given = (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5})
    monkeypatch.setattr(WithOptions, "options", {"optimizer_cls_and_kwargs": given})
    optimizer: Any = small_run(tmp_path / "run", kind=WithOptions, weight_decay=0.125).create_optimizer()
    assert type(optimizer) is torch.optim.SGD
    assert [(g["lr"], g["momentum"], g["weight_decay"]) for g in optimizer.param_groups] == [
        (0.25, 0.5, 0.125),
        (0.25, 0.5, 0.0),
    ]


def test_another_data_set_is_not_evaluated_in_silence(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: the scores were those of the dev set."""
    trainer = small_run(tmp_path / "run", dev=True)
    with pytest.raises(ValueError, match="eval_dataset must be None: evaluate scores the trainer's dev set"):
        trainer.evaluate(trainer.dev)


# What trains


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (33, {"fields": {"projector": "batchnorm"}}),  # the last batch holds one row
        (33, {"columns": 2}),
        (34, {"columns": 3, "fields": {"hard_negative_weight": 1.0, "symmetric": True}}),
        (33, {"columns": 3, "fields": {"projector": "batchnorm", "mlm_weight": 0.1}, "method": "informin"}),
        (20, {"streaming": True, "max_steps": 5}),
        (33, {"bf16": True, "fields": {"mlm_weight": 0.1}}),
    ],
    ids=["one-row", "pairs", "triplets", "all", "stream", "bf16"],
)
def test_every_trainable_weight_moves_and_frozen_ones_stay(
    small_run: SmallRun, tmp_path: Path, rows: int, options: dict[str, Any]
) -> None:
    trainer = small_run(tmp_path / "run", rows, label_free_samples=0, eval_steps=100, **options)
    frozen = trainer.model.backbone.embeddings.position_embeddings.weight
    frozen.requires_grad_(False)
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.state.global_step == 5
    for name, value in trainer.model.named_parameters():
        still = value is frozen or "key.bias" in name  # softmax is blind to it
        assert value.isfinite().all() and (still or not torch.equal(value, before[name])), name
    assert torch.equal(frozen, before["backbone.embeddings.position_embeddings.weight"])


class GradientsKept(CSETrainer):
    """Names the trainable weights that got no gradient."""

    without: set[str] | frozenset[str] = frozenset()

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        missing = {name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None}
        self.without = self.without | missing
        return loss


@pytest.mark.parametrize("name", ["rtd", "conditional_mlm", "corrective_lm"])
def test_a_projector_that_a_condition_on_h_leaves_out_is_frozen(
    small_run: SmallRun, tmp_path: Path, name: str
) -> None:
    """Regression: DistributedDataParallel ends a run with a weight that gets no gradient."""
    fields = {"objectives": [name], "condition": "h", f"{name}_weight": 1.0, "contrastive_weight": 0.0}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, kind=GradientsKept, max_steps=1)
    trainer.train()
    assert trainer.without == set()
    assert not any(p.requires_grad for p in trainer.model.projector.parameters())


def test_a_stream_passes_over_its_rows_again(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", 20, kind=Recording, streaming=True, max_steps=5)
    trainer.train()
    assert torch.cat([batch["index"] for batch in trainer.batches]).tolist() == [*range(20), *range(20)]


@pytest.mark.slow
def test_workers_change_no_batch(small_run: SmallRun, tmp_path: Path) -> None:
    runs = []
    for workers in (0, 2):
        trainer = small_run(
            tmp_path / f"{workers}",
            30,
            kind=Recording,
            fields={"mlm_weight": 0.1},
            num_train_epochs=2,
            dataloader_num_workers=workers,
        )
        trainer.train()
        runs.append(trainer)
    for first, second in zip(runs[0].batches, runs[1].batches, strict=True):
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(runs[0].batches[0]["index"], runs[0].batches[4]["index"])  # epochs differ
    assert runs[0].seen == runs[1].seen
    assert_weights(runs[1], runs[0].model.state_dict())


# Parameter groups


class Apart(Reconstruction):
    """An objective with a layer that learns ten times as fast and is clipped by itself."""

    asked = 0

    def __init__(self, config: Any, encoder_config: Any) -> None:
        super().__init__(config, encoder_config)
        self.layer = torch.nn.Linear(32, 1)

    def parameter_groups(self) -> list[dict[str, Any]]:
        type(self).asked += 1
        return [{"params": list(self.layer.parameters()), "lr_scale": 10.0, "clip_group": "apart"}]

    def forward(self, views: Any, batch: Any, encode: Any) -> Any:
        terms, metrics = super().forward(views, batch, encode)
        return terms | {"apart": 1e4 * self.layer(views.h).square().mean()}, metrics


def test_groups_have_their_own_rate_and_are_clipped_apart(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, "reconstruction", Apart)
    norms: list[tuple[float, float]] = []

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
            apart = list(model.objectives["reconstruction"].layer.parameters())
            rest = [p for p in model.parameters() if all(p is not q for q in apart) and p.grad is not None]
            norms.append(tuple(float(torch.cat([p.grad.flatten() for p in ps]).norm()) for ps in (rest, apart)))

    trainer = small_run(
        tmp_path / "run", method="informin", weight_decay=0.1, max_grad_norm=0.5, warmup_steps=0, max_steps=3
    )
    trainer.add_callback(Norms())
    monkeypatch.setattr(Apart, "asked", 0)
    trainer.train()
    assert len(norms) == 3
    assert Apart.asked == 2  # by the optimiser and by the clipping, not at every step
    for norm, apart in norms:  # joined, the huge gradients of either would leave nothing of the other's
        assert norm == pytest.approx(0.5, rel=1e-3)
        assert apart == pytest.approx(0.5, rel=1e-3)
    names = {id(p): name for name, p in trainer.model.named_parameters()}
    layer = {id(p) for p in trainer.model.objectives["reconstruction"].layer.parameters()}
    count = 0
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            name, count = names[id(parameter)], count + 1
            assert group["initial_lr"] == pytest.approx(1e-2 if id(parameter) in layer else 1e-3), name
            plain = name.endswith("bias") or "LayerNorm" in name
            assert group["weight_decay"] == (0.0 if plain else 0.1), name
    assert count == len(names)


# Arguments


@pytest.mark.parametrize("given", [None, {}, {"split_batches": True}, '{"split_batches": true}'])
def test_batches_are_never_dispatched(tmp_path: Path, given: Any) -> None:
    """Regressions: any ``accelerator_config`` turned it on for streams, and several processes ended in a TypeError;
    without the seedable sampler a run that was resumed in its second epoch drew other batches."""
    args: Any = CSETrainingArguments(output_dir=str(tmp_path), accelerator_config=given, report_to="none")
    assert args.accelerator_config.dispatch_batches is False
    for name, value in (("dispatch_batches", True), ("even_batches", False), ("use_seedable_sampler", False)):
        with pytest.raises(ValueError, match=f"accelerator_config must have {name} {not value}, got {value}"):
            CSETrainingArguments(output_dir=str(tmp_path), accelerator_config={name: value}, report_to="none")


def test_batches_are_not_split_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: ``per_device_train_batch_size`` was the batch of all processes then, and the steps of a share, of a
    stream and of the last batch were counted as if it were that of each."""
    monkeypatch.setattr(CSETrainingArguments, "world_size", 2)
    given = {"split_batches": True}
    with pytest.raises(ValueError, match="split_batches False with several processes, got True: per_device_train"):
        CSETrainingArguments(output_dir=str(tmp_path), accelerator_config=given, report_to="none")


def test_the_record_names_options_that_are_mappings(small_run: SmallRun, tmp_path: Path) -> None:
    """Regression: results and card of a run named its scheduler without the scheduler's options."""
    options = {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}}
    trainer = small_run(tmp_path / "run", max_steps=2, **options)
    trainer.train()
    folder = trainer.save_run()
    recorded = json.loads((folder / "results.json").read_text(encoding="utf-8"))["arguments"]
    assert {name: recorded.get(name) for name in options} == options
    assert "num_cycles" in (folder / "README.md").read_text(encoding="utf-8")


def test_arguments_follow_each_other(tmp_path: Path) -> None:
    args = CSETrainingArguments(output_dir=str(tmp_path), eval_steps=50)
    assert (args.save_steps, args.save_total_limit, args.learning_rate) == (50, 2, 3e-5)
    assert (args.per_device_train_batch_size, args.max_grad_norm, args.weight_decay, args.seed) == (64, 1.0, 0.0, 42)
    for text, value in (
        ("True", True),
        ("true", True),
        ("False", False),
        ("runs/x/checkpoint-5", "runs/x/checkpoint-5"),
    ):
        assert (
            CSETrainingArguments(output_dir=str(tmp_path), resume_from_checkpoint=text).resume_from_checkpoint == value
        )


@pytest.mark.parametrize(
    ("rows", "options", "steps"),
    [
        (40, {"eval_steps": None, "num_train_epochs": 4}, list(range(2, 21, 2))),  # 20 steps: every 20 // 8 = 2
        (40, {"eval_steps": None, "max_steps": 9}, list(range(1, 10))),
        (40, {"eval_steps": 3, "max_steps": 9}, [3, 6, 9]),
        (40, {"eval_steps": None, "save_steps": 125, "max_steps": 9}, [9]),  # the last step always
    ],
)
def test_a_short_run_is_evaluated_at_least_eight_times(
    small_run: SmallRun, tmp_path: Path, rows: int, options: dict[str, Any], steps: list[int]
) -> None:
    trainer = small_run(tmp_path / "run", rows, dev=True, label_free_samples=0, **options)
    trainer.train()
    scored = [entry["step"] for entry in trainer.state.log_history if "eval_dev_spearman" in entry]
    assert scored == steps


def test_a_long_run_is_evaluated_every_125_steps(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", dev=True, eval_steps=None, max_steps=5000)
    assert (trainer.args.eval_steps, trainer.args.save_steps) == (125, 125)


def test_a_training_checkpoint_reloads_as_its_method(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", num_train_epochs=2)
    trainer.train()
    model = SimCSEModel.from_pretrained(Path(trainer.training_dir) / "checkpoint-10")
    assert model.state_dict().keys() == trainer.model.state_dict().keys()
    state = json.loads((Path(trainer.training_dir) / "checkpoint-10" / "trainer_state.json").read_text())
    assert state["global_step"] == 10


# Combinations


@pytest.mark.parametrize(
    "fields",
    [
        {"further_positives": "dropout", "projector": "batchnorm"},
        {"further_positives": "halves", "projector": "batchnorm"},
        {"projector": "batchnorm", "projector_at_inference": True},
    ],
)
def test_a_last_batch_of_one_row_ends_no_training(small_run: SmallRun, tmp_path: Path, fields: dict[str, Any]) -> None:
    """BatchNorm1d raises an error for one row, at the end of the first epoch."""
    trainer = small_run(tmp_path / "run", rows=9, fields=fields, num_train_epochs=1, max_steps=-1)
    trainer.train()
    assert trainer.state.global_step == 2 and math.isfinite(trainer.state.log_history[-1]["train_loss"])


def test_alignment_is_that_of_the_embedding_with_its_projector(small_run: SmallRun, tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", fields={"projector_at_inference": True, "projector": "tanh"})
    assert trainer.dev_scores()["alignment"] > 0
    with torch.no_grad():
        trainer.model.projector[0].weight.zero_()
        trainer.model.projector[0].bias.fill_(1.0)  # every embedding is the same
    scores = trainer.dev_scores()
    assert scores["alignment"] == pytest.approx(0, abs=1e-6) and scores["uniformity"] == pytest.approx(0, abs=1e-6)


def test_alignment_selects_nothing_without_dropout(small_run: SmallRun, tmp_path: Path) -> None:
    """Both views of a sentence are then equal, and the first checkpoint would be kept."""
    with pytest.raises(ValueError, match="metric_for_best_model must not be 'alignment' without dropout"):
        small_run(tmp_path / "run", columns=2, fields={"dropout": 0.0}, metric_for_best_model="alignment")


CHINESE = [
    "今天天气很好，我们一起去公园散步，看看湖边的花和树，然后回家吃晚饭，一家人都很高兴。",
    "他在弹吉他。",
    "猫",
    "我们走吧",
]


@pytest.mark.parametrize("kind", ["shuffle", "delete", "halves"])
def test_texts_without_spaces_are_refused_where_words_change(
    small: Any, small_backbone: Path, tmp_path: Path, kind: str
) -> None:
    """Regression: every further positive was its sentence."""
    (tmp_path / "zh.txt").write_text("\n".join(CHINESE) + "\n", encoding="utf-8")
    fields = {"further_positives": f"dropout+{kind}"}
    message = f"100% of 4 texts of zh.txt are a single word between white space, which the further positive '{kind}'"
    with pytest.raises(ValueError, match=message):
        small.make_trainer(small_backbone, tmp_path / "zh.txt", tmp_path / "run", fields=fields)


@pytest.mark.parametrize("options", [{"augmentation": "mask"}, {"fields": {"further_positives": "mask"}}])
def test_a_masked_span_in_texts_without_spaces_is_told(
    small: Any, small_backbone: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    """The span of a text that is cut may lie behind the cut, which is found by words."""
    (tmp_path / "zh.txt").write_text("\n".join(CHINESE[:1] * 4 + ["two words"]) + "\n", encoding="utf-8")
    small.make_trainer(small_backbone, tmp_path / "zh.txt", tmp_path / "run", **options)
    assert "80% of 5 texts of zh.txt have no white space between words" in caplog.text
    caplog.clear()
    (tmp_path / "en.txt").write_text("\n".join(["a text of several words, long enough"] * 5) + "\n", encoding="utf-8")
    small.make_trainer(small_backbone, tmp_path / "en.txt", tmp_path / "other", **options)
    assert "white space" not in caplog.text


@pytest.mark.parametrize("kind", ["dropout", "column"])
@pytest.mark.parametrize(
    "unread",
    [
        {"further_positives_weight": 0.0},
        {"contrastive_weight": 0.0, "objectives": ["towers"]},
        {"further_positives_weight": 0.0, "peer_weight": 0.0},
    ],
)
def test_further_positives_that_nothing_reads_are_told(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, unread: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"columns": 2, "fields": {"further_positives": kind, **unread}}
    small_run(tmp_path / "run", **options)
    assert f"further_positives '{kind}' are encoded, and nothing reads them" in caplog.text
    caplog.clear()
    options["fields"] |= {"group_weight": 1.0}
    small_run(tmp_path / "other", **options)
    assert "nothing reads them" not in caplog.text


@pytest.mark.parametrize(("kind", "lacking"), [("column", "one more column"), ("parts", "two more columns")])
def test_further_positives_without_their_column_are_named(
    small_run: SmallRun, tmp_path: Path, kind: str, lacking: str
) -> None:
    """The message spoke of objectives, of which there are none."""
    words = rf"further_positives 'dropout\+{kind}' need {lacking} after the sentence's, texts\.txt has only text"
    with pytest.raises(ValueError, match=words):
        small_run(tmp_path / "run", fields={"further_positives": f"dropout+{kind}"})


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"symmetric": True, "further_positives": "halves", "second_view_weight": 0.0},
            "symmetric: no effect with second_view_weight 0",
        ),
        (
            {"angular_margin": 0.2, "mask_identical": True, "contrastive_weight": 0.0, "mlm_weight": 1.0},
            "angular_margin, mask_identical: no effect with contrastive_weight 0",
        ),
        (
            {"icm_weight": 0.2, "icm_element_dropout": 0.3},
            "icm_element_dropout: no effect with icm_decoder causal",
        ),
        (
            {"noise_weight": 1.0, "noise_steps": 0, "noise_step_size": 0.5},
            "noise_step_size: no effect with noise_steps 0",
        ),
        ({"smoothing_weight": 1.0, "smoothing_start": 0.5}, "smoothing_start: no effect with smoothing_ramp_steps 0"),
        ({"tsdae_weight": 1.0, "tsdae_decoder_layers": 2}, "tsdae_decoder_layers: no effect with tsdae_decoder tied"),
        ({"icm_weight": 0.2, "icm_element_dropout": 0.3, "icm_decoder": "denoising"}, None),
        ({"smoothing_weight": 1.0, "smoothing_start": 0.5, "smoothing_ramp_steps": 9}, None),
        ({"symmetric": True, "angular_margin": 0.2, "further_positives": "halves"}, None),
        ({"angular_margin": 0.2, "further_positives": "halves", "second_view_weight": 0.0}, None),
        ({"contrastive_weight": 0.0, "mlm_weight": 1.0}, None),
    ],
)
def test_settings_that_nothing_reads_are_told(
    small_run: SmallRun, tmp_path: Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], told: str | None
) -> None:
    small_run(tmp_path / "run", fields=fields)
    assert ("no effect" not in caplog.text) if told is None else (told in caplog.text)


@pytest.mark.parametrize(
    ("columns", "fields", "told"),
    [
        (3, {"further_positives": "halves", "second_view_weight": 0.0}, "second_view_weight 0"),
        (3, {"contrastive_weight": 0.0, "mlm_weight": 1.0}, "contrastive_weight 0"),
        (3, {"further_positives": "column", "second_view_weight": 0.0}, None),
        (2, {"further_positives": "halves", "second_view_weight": 0.0}, None),
        (3, {"further_positives": "halves"}, None),
    ],
)
def test_a_third_column_that_no_contrast_reads_is_told(
    small_run: SmallRun,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    columns: int,
    fields: dict[str, Any],
    told: str | None,
) -> None:
    """Hard negatives were encoded in every step, read by nothing, and nothing said so."""
    small_run(tmp_path / "run", columns=columns, fields=fields)
    words = f"the column 's2', the hard negative of the contrast: no effect with {told}"
    assert ("no effect" not in caplog.text) if told is None else (words in caplog.text)


@pytest.mark.parametrize(
    "options",
    [
        {"augmentation": "shuffle"},
        {"augmentation": "delete", "fields": {"queue_weight": 1.0, "queue_size": 16}},
        {"mask_contrastive_input": True, "fields": {"mlm_weight": 0.1, "mlm_probability": 0.5}},
        {"mask_contrastive_input": True, "columns": ["s0", "s1"], "fields": {"mlm_weight": 0.1}},
    ],
)
def test_identical_texts_are_those_of_the_corpus_whatever_changes_the_views(
    small: Any, small_backbone: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Regression: the texts were compared as they were after the change, so that ``mask_identical`` did nothing."""
    pairs = "columns" in options
    lines = 2 * [f"the {a} dog runs in the house {b} ." for a in ("red", "blue") for b in ("fast", "slow")]
    texts = tmp_path / ("texts.tsv" if pairs else "texts.txt")
    rows = (
        ["s0\ts1", *(f"{line}\ta man plays {n % 4 * ' guitar'}" for n, line in enumerate(lines))] if pairs else lines
    )
    texts.write_text("\n".join(rows) + "\n", encoding="utf-8")
    kept, left_out = [], []
    for masked, losses in ((False, kept), (True, left_out)):
        fields = options.get("fields", {}) | {"mask_identical": masked}
        more = options | {"fields": fields, "max_steps": 1, "kind": Recording, "max_seq_length": 16}
        trainer = small.make_trainer(small_backbone, texts, tmp_path / f"run-{masked}", **more)
        trainer.train()
        ((_, _, terms, metrics),) = trainer.seen
        assert metrics["identical_texts"] == 8
        losses.append(terms["contrastive"])
    assert left_out[0] < kept[0] - 0.05


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"objectives": ["tsdae"], "contrastive_weight": 0.0}, {}),
        ({"objectives": ["mlm", "towers"], "contrastive_weight": 0.0}, {}),
        ({"objectives": ["token_information"], "contrastive_weight": 0.0}, {}),
        ({"objectives": ["mlm", "reconstruction"], "contrastive_weight": 0.0, "reconstruction_weight": 0.0}, {}),
        ({"objectives": ["mlm"], "mlm_views": 2}, {"mask_contrastive_input": True}),
        ({"objectives": [], "further_positives": "halves", "second_view_weight": 0.0}, {}),
        ({"objectives": [], "further_positives": "dropout", "perturb_first": "shuffle"}, {}),
    ],
)
def test_a_run_that_compares_no_equal_views_needs_no_dropout(
    small_run: SmallRun, tmp_path: Path, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    """Regression: without dropout each of them was refused for its two equal views."""
    more = {"dropout": 0.0, **({"channels": 8} if "token_information" in fields["objectives"] else {})}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields | more, max_steps=2, **options)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] != 0


class OneView(Reconstruction):
    """An objective from outside, which sets ``one_view`` alone."""

    one_view = True

    def forward(self, views: Any, batch: Any, encode: Any) -> Any:
        return {"reconstruction": views.z[0].float().square().mean()}, {}


def test_an_objective_of_one_view_needs_no_dropout(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it was refused for two equal views, and has one."""
    monkeypatch.setitem(OBJECTIVES, "reconstruction", OneView)
    fields = {"objectives": ["reconstruction"], "contrastive_weight": 0.0, "dropout": 0.0}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, max_steps=2)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] > 0


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("own", [{}, {"group_weight": 1.0, "further_positives_weight": 0.0}])
def test_a_further_positive_that_equals_its_sentence_is_refused(
    small_run: SmallRun, tmp_path: Path, columns: int, own: dict[str, Any]
) -> None:
    fields = {"dropout": 0.0, "further_positives": "shuffle+dropout", "perturb_second": "shuffle", **own}
    message = r"further_positives 'dropout' differs .* encoder's is 0 .* got 'shuffle\+dropout'"
    with pytest.raises(ValueError, match=message):
        small_run(tmp_path / "run", columns=columns, fields=fields)
    small_run(tmp_path / "other", columns=columns, fields=fields | {"dropout": 0.1})
