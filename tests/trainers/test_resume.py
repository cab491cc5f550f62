"""A training that is killed or told to stop ends, once resumed, with the weights and the log of one that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertTokenizer, EarlyStoppingCallback

from csekit.modeling import METHODS
from csekit.trainers import CSETrainer, CSETrainingArguments, load_corpus
from csekit.trainers.checkpoints import MANIFEST, finish_checkpoint
from csekit.trainers.run_settings import SettingsChangedError

SCRIPT = Path(__file__).with_name("small_runs.py")
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run_jobs(folder: Path, jobs: list[dict[str, Any]]) -> list[int]:
    """Exit codes of the jobs, -9 for a killed one."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs), encoding="utf-8")
    done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, env=ONE_THREAD)
    assert done.returncode == 0, done.stderr[-3000:]
    statuses = json.loads(path.with_suffix(".statuses").read_text(encoding="utf-8"))
    if 1 in statuses:
        pytest.fail(done.stderr[-3000:])
    return statuses


def report(job: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(job["output_dir"]) / "report-0.json").read_text(encoding="utf-8"))


def entries(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The log without what a clock measured."""
    return [entry for entry in report(job)["log"] if "train_runtime" not in entry]


def tensors(job: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights that the run kept (those of its best checkpoint) and the whole state after its last step."""
    step = report(job)["step"]
    last = Path(job["output_dir"]) / "training" / f"checkpoint-{step}"
    optimizer = torch.load(last / "optimizer.pt")["state"]
    moments = {f"optimizer.{i}.{k}": v for i, entry in optimizer.items() for k, v in entry.items()}
    return {
        **{f"kept.{name}": value for name, value in torch.load(Path(job["output_dir"]) / "final-0.pt").items()},
        **load_file(last / "model.safetensors"),
        **moments,
    }


def assert_same(job: dict[str, Any], straight: dict[str, Any]) -> None:
    assert (report(job)["step"], report(job)["best_step"]) == (report(straight)["step"], report(straight)["best_step"])
    found, expected = tensors(job), tensors(straight)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    assert entries(job) == entries(straight)


@pytest.fixture
def base(small: ModuleType, small_backbone: Path, tmp_path: Path) -> dict[str, Any]:
    """16 steps an epoch and 40 in all: step 20 lies in the middle of the second epoch. With the masked LM."""
    return {
        "backbone": str(small_backbone),
        "texts": str(small.write_texts(tmp_path / "texts.txt", 123)),
        "dev": str(small.write_pairs(tmp_path / "dev.tsv")),
        "fields": {"mlm_weight": 0.1},
        "max_steps": 40,
        "eval_steps": 10,
        "logging_steps": 5,
    }


GAPS = {"method": "infocse", "fields": {"aux_mlm_head_init": "top_layers"}}  # measured in some of the steps


@pytest.mark.parametrize("method", [{}, GAPS], ids=["simcse", "gaps"])
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_was_stopped_between_two_log_entries_logs_like_one_that_was_not(
    small: ModuleType, small_run: Callable[..., Any], tmp_path: Path, strategy: str, method: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"max_steps": 9, "logging_steps": 4, "gradient_accumulation_steps": 2, **method}
    options |= {"eval_strategy": strategy, "save_strategy": strategy, "eval_steps": 8}
    straight = small_run(tmp_path / "straight", 80, **options)  # five steps an epoch
    straight.train()
    stopped = small_run(tmp_path / "stopped", 80, **options)
    stopped.add_callback(small.SignalAt(7, signal.SIGTERM))
    stopped.train()
    assert stopped.stop_on_terminate.interrupted and stopped.state.global_step == 7
    resumed = small_run(tmp_path / "stopped", 80, **options)
    resumed.train(resume_from_checkpoint=True)
    logs = [[e for e in each.state.log_history if "train_runtime" not in e] for each in (straight, resumed)]
    assert logs[0] == logs[1]
    assert [e["step"] for e in logs[0] if "loss" in e] == ([4, 5, 8, 9] if strategy == "epoch" else [4, 8, 9])
    assert all("metrics/aux_mlm_gap" in entry for entry in logs[0] if "loss" in entry) == bool(method)


def test_an_open_window_of_an_earlier_version_is_read(
    small: ModuleType, small_run: Callable[..., Any], tmp_path: Path
) -> None:
    """It held the names of the values once, not for each micro-batch."""
    options: dict[str, Any] = {"max_steps": 6, "logging_steps": 4, "eval_steps": 8}
    straight = small_run(tmp_path / "straight", 80, **options)
    straight.train()
    stopped = small_run(tmp_path / "stopped", 80, **options)
    stopped.add_callback(small.SignalAt(3, signal.SIGTERM))
    stopped.train()
    window = Path(stopped.training_dir) / "checkpoint-3" / "log_window_0.pt"
    (window.parent / MANIFEST).unlink()
    written = torch.load(window)
    assert len(written["names"]) == 3
    torch.save({**written, "names": written["names"][0]}, window)
    finish_checkpoint(window.parent, stopped._settings.run, None, None)  # a new checksum
    resumed = small_run(tmp_path / "stopped", 80, **options)
    resumed.train(resume_from_checkpoint=True)
    assert scores_and_losses(resumed) == scores_and_losses(straight)


class Falling(CSETrainer):
    """Dev scores that become worse."""

    def dev_scores(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return {"dev_spearman": 50.0 - self.state.global_step}


def scores_and_losses(trainer: Any) -> list[dict[str, Any]]:
    """The log without what a clock measured."""
    return [entry for entry in trainer.state.log_history if "train_runtime" not in entry]


@pytest.mark.parametrize("step", [5, 10])
@pytest.mark.parametrize("strategies", ["epoch epoch", "epoch steps"])
def test_a_run_that_was_stopped_at_the_end_of_an_epoch_has_the_scores_of_this_epoch(
    small: ModuleType, small_run: Callable[..., Any], tmp_path: Path, step: int, strategies: str
) -> None:
    """Regression: the epoch's evaluation was left out for good, and its weights could not be the best."""
    evaluating, saving = strategies.split()
    options: dict[str, Any] = {"num_train_epochs": 2, "eval_strategy": evaluating, "save_strategy": saving}
    options |= {"eval_steps": 100, "load_best_model_at_end": saving == "epoch"}
    if saving == "epoch":
        options |= {"metric_for_best_model": "effective_rank"}
    straight = small_run(tmp_path / "straight", **options)  # five steps an epoch
    straight.train()
    stopped = small_run(tmp_path / "stopped", **options)
    stopped.add_callback(small.SignalAt(step, signal.SIGTERM))
    stopped.train()
    assert stopped.stop_on_terminate.interrupted and stopped.state.global_step == step
    resumed = small_run(tmp_path / "stopped", **options)
    resumed.train(resume_from_checkpoint=True)
    assert scores_and_losses(resumed) == scores_and_losses(straight)
    assert resumed.state.best_global_step == straight.state.best_global_step


def test_a_stopped_run_writes_a_checkpoint_with_any_strategy_and_goes_on_in_the_same_process(
    small: ModuleType, small_run: Callable[..., Any], tmp_path: Path
) -> None:
    """Regressions: with save_strategy best there was none if the score was no new best; a second ``train`` stopped
    after a step, as the first."""
    options = {"dev": True, "max_steps": 6, "eval_steps": 1, "save_strategy": "best", "logging_steps": 1}
    trainer = small_run(tmp_path / "run", **options, kind=Falling)
    signals = small.SignalAt(4, signal.SIGTERM)
    trainer.add_callback(signals)
    trainer.train()
    assert (trainer.stop_on_terminate.interrupted, trainer.state.global_step) == (True, 4)
    assert {path.name for path in Path(trainer.training_dir).glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-4"}
    trainer.remove_callback(signals)
    trainer.train(resume_from_checkpoint=True)
    assert (trainer.stop_on_terminate.interrupted, trainer.state.global_step) == (False, 6)
    straight = small_run(tmp_path / "straight", **options, kind=Falling)
    straight.train()
    assert scores_and_losses(trainer) == scores_and_losses(straight)


def test_a_finished_run_whose_folder_was_moved_keeps_its_best_step(
    small_run: Callable[..., Any], tmp_path: Path
) -> None:
    """Regression: it ended with the last weights, under the best step's number and score."""
    options = {"dev": True, "max_steps": 6, "eval_steps": 2, "kind": Falling}
    small_run(tmp_path / "run", **options).train()
    (tmp_path / "run").rename(tmp_path / "moved")
    trainer = small_run(tmp_path / "moved", **options)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.best_global_step == 2
    best = load_file(tmp_path / "moved" / "training" / "checkpoint-2" / "model.safetensors")
    state = trainer.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in best.items())


def test_a_named_checkpoint_needs_the_best_one_that_it_names(small_run: Callable[..., Any], tmp_path: Path) -> None:
    """Regression: the score of the best step stayed on record, and the weights of the last step were kept."""
    options = {"dev": True, "max_steps": 6, "eval_steps": 2, "save_total_limit": None, "kind": Falling}
    small_run(tmp_path / "run", **options).train()
    training = tmp_path / "run" / "training"
    shutil.rmtree(training / "checkpoint-2")
    with pytest.raises(ValueError, match="checkpoint-4 cannot be continued: the best checkpoint so far, checkpoint-2"):
        small_run(tmp_path / "run", **options).check_resume(str(training / "checkpoint-4"))


def test_a_finished_run_is_not_evaluated_again(small_run: Callable[..., Any], tmp_path: Path) -> None:
    """Regression: where the last step was inside an epoch, its scores came twice into the log."""
    options = {"max_steps": 7, "eval_strategy": "epoch", "save_strategy": "epoch"}  # five steps an epoch
    straight = small_run(tmp_path / "run", **options | {"metric_for_best_model": "effective_rank"})
    straight.train()
    again = small_run(tmp_path / "run", **options | {"metric_for_best_model": "effective_rank"})
    again.train(resume_from_checkpoint=True)
    assert scores_and_losses(again) == scores_and_losses(straight)


def test_early_stopping_goes_on_counting(small: ModuleType, small_run: Callable[..., Any], tmp_path: Path) -> None:
    """Regression: a resumed run counted from 0 and trained longer than one that was not stopped."""
    options = {
        "dev": True,
        "max_steps": 20,
        "eval_steps": 1,
        "logging_steps": 1,
        "num_train_epochs": 4,
        "kind": Falling,
    }

    def run(name: str, **train: Any) -> Any:
        trainer = small_run(tmp_path / name, **options)
        trainer.add_callback(EarlyStoppingCallback(4))
        if not train and name == "stopped":
            trainer.add_callback(small.SignalAt(3, signal.SIGTERM))
        trainer.train(**train)
        return trainer

    straight = run("straight")
    assert straight.state.global_step == 5
    assert run("stopped").state.global_step == 3
    assert scores_and_losses(run("stopped", resume_from_checkpoint=True)) == scores_and_losses(straight)


@pytest.mark.parametrize("wanted", [True, "training/checkpoint-4"])
def test_a_checkpoint_of_the_model_alone_is_not_resumed(
    small_run: Callable[..., Any], tmp_path: Path, wanted: bool | str
) -> None:
    """Regression: the learning rate and the optimiser's moments began anew in the middle of the run."""
    options = {"max_steps": 8, "eval_steps": 4, "save_only_model": True}
    small_run(tmp_path / "run", **options).train()
    trainer = small_run(tmp_path / "run", **options)
    words = "checkpoint-[48] cannot be continued: it holds the model alone, without the optimiser .save_only_model."
    with pytest.raises(ValueError, match=words):
        trainer.check_resume(wanted if wanted is True else str(tmp_path / "run" / wanted))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"lr_scheduler_kwargs": {"num_cycles": 3}}, "num_cycles was None and is 3 now"),
        ({"lr_scheduler_kwargs": {"num_cycles": 3}}, {}, "num_cycles was 3 and is None now"),
        ({"lr_scheduler_kwargs": {"num_cycles": 3}}, {"lr_scheduler_kwargs": {}}, "num_cycles was 3 and is None now"),
        ({"fields": {"lora": {"r": 2}}}, {}, "lora.r was 2 and is None now"),
        (
            {"fields": {"lora": {"r": 2}}},
            {"fields": {"lora": {"r": 2, "use_rslora": True}}},
            "use_rslora was None and",
        ),
    ],
)
def test_a_mapping_that_is_given_left_out_or_has_other_fields_is_a_changed_setting(
    small: ModuleType,
    small_run: Callable[..., Any],
    tmp_path: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    told: str,
) -> None:
    """Regression: only fields that both runs named were compared, so the learning rate went another way unseen."""
    options: dict[str, Any] = {"max_steps": 4, "lr_scheduler_type": "cosine_with_restarts"}
    stopped = small_run(tmp_path / "run", **options | before)
    stopped.add_callback(small.SignalAt(2, signal.SIGTERM))
    stopped.train()
    resumed = small_run(tmp_path / "run", **options | after)
    with pytest.raises(SettingsChangedError, match=told):
        resumed.train(resume_from_checkpoint=True)
    again = small_run(tmp_path / "run", **options | before)
    assert again.train(resume_from_checkpoint=True).global_step == 4


def test_a_stream_with_other_max_samples_is_a_changed_setting(
    small: ModuleType, small_backbone: Path, tmp_path: Path
) -> None:
    """Regression: the resumed run went on with other rows, and nothing said so."""

    def run(samples: int, **train: Any) -> Any:
        corpus = load_corpus(texts, streaming=True, max_samples=samples)
        options = {"per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
        args = CSETrainingArguments(output_dir=str(tmp_path / "run"), max_steps=6, label_free_samples=0, **options)
        model = METHODS["simcse"].from_backbone(small_backbone)
        trainer = CSETrainer(model, args, corpus, BertTokenizer.from_pretrained(small_backbone))
        if not train:
            trainer.add_callback(small.SignalAt(2, signal.SIGTERM))
        return trainer.train(**train)

    texts = small.write_texts(tmp_path / "texts.txt", 10_100)
    run(10_050)
    with pytest.raises(SettingsChangedError, match=r"corpus\.max_samples was 10050 and is 10060 now"):
        run(10_060, resume_from_checkpoint=True)
    assert run(10_050, resume_from_checkpoint=True).global_step == 6


def test_a_new_checkpoint_stays_whatever_the_folder_holds(small_run: Callable[..., Any], tmp_path: Path) -> None:
    """Regression: Transformers orders checkpoints by step where their times are within a second, as on file systems
    without times, and deleted the new one in favour of that of an earlier training in the folder."""
    options = {"eval_steps": 2, "save_total_limit": 1}
    small_run(tmp_path / "run", max_steps=4, **options).train()
    training = tmp_path / "run" / "training"
    old = training / "checkpoint-4"

    class Saving(CSETrainer):
        def _save_checkpoint(self, *args: Any) -> None:
            now = time.time()
            os.utime(old, (now, now))
            super()._save_checkpoint(*args)

    small_run(tmp_path / "run", max_steps=2, kind=Saving, **options).train()
    assert [path.name for path in training.glob("checkpoint-*")] == ["checkpoint-2"]


@pytest.mark.slow
def test_a_run_that_was_killed_or_stopped_ends_bitwise_like_one_that_was_not(
    base: dict[str, Any], tmp_path: Path
) -> None:
    def job(name: str, **options: Any) -> dict[str, Any]:
        return base | {"output_dir": str(tmp_path / name)} | options

    workers = {"dataloader_num_workers": 2}
    kill, terminate = int(signal.SIGKILL), int(signal.SIGTERM)
    straight = job("straight", resume=True)  # nothing to resume: as without
    killed = job("killed")
    stopped = job("stopped")
    cut = job("cut")
    jobs = [
        straight,
        killed | {"signal": [23, kill]},
        killed | {"resume": True} | workers,
        stopped | {"signal": [19, terminate]} | workers,
        stopped | {"resume": True},
        cut | {"killed_while_saving": True},
        cut | {"resume": True},
        cut | {"resume": True},  # finished: takes no step
    ]
    assert run_jobs(tmp_path, jobs) == [0, -kill, 0, 143, 0, -kill, 0, 0]
    assert report(straight)["step"] == 40
    assert_same(killed, straight)
    assert_same(cut, straight)
    assert_same(stopped, straight)


@pytest.mark.slow
def test_sampled_edits_and_augmented_positives_are_resumed(base: dict[str, Any], tmp_path: Path) -> None:
    """The generator's draws and the noise come from torch's own random state, which a checkpoint holds; the positives
    from none. The queue and the momentum copy are in the checkpoint."""
    fields = {"noise_weight": 1.0, "queue_weight": 1.0, "queue_size": 20}
    options = {"method": "diffcse", "fields": fields, "max_steps": 10, "eval_steps": 4, "augmentation": "shuffle"}
    straight, killed = (base | {"output_dir": str(tmp_path / name)} | options for name in ("straight", "killed"))
    resumed = killed | {"resume": True, "dataloader_num_workers": 2}
    assert run_jobs(tmp_path, [straight, killed | {"signal": [6, int(signal.SIGKILL)]}, resumed]) == [0, -9, 0]
    assert_same(killed, straight)
    assert {"loss/rtd", "metrics/rtd_accuracy_replaced", "metrics/rtd_accuracy_kept"} <= entries(straight)[0].keys()
    assert {"objectives.queue.keys_MH", "objectives.queue.count"} <= tensors(straight).keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {
            "fields": {
                "pooling": "mask",
                "prompt_template": "a {sentence} is {mask} .",
                "second_prompt_template": "the {sentence} is {mask}",
                "subtract_template": True,
                "queue_weight": 1.0,
                "queue_size": 20,
            },
            "max_seq_length": 16,
        },
        {"fields": {"angular_margin": 0.17, "triplet_weight": 0.1}},
        {"fields": {"triplet_weight": 0.1, "triplet_dropout": True}, "cache_chunk_size": 5},
        {"fields": {"further_positives": "shuffle+dropout", "group_weight": 1.0, "peer_weight": 1.0}},
        {"fields": {"further_positives": "dropout", "whitening_groups": 8}, "cache_chunk_size": 5},
        {"fields": {"further_positives": "halves", "second_view_weight": 0.0, "contrast_dims": 9}},
        {"fields": {"smoothing_weight": 0.5, "smoothing_size": 20, "smoothing_ramp_steps": 9}},
        {"fields": {"attention_weight": 0.1, "attention_first_layer": 0, "attention_last_layer": 1}},
        {"method": "joint", "fields": {"objectives": ["tsdae"], "contrastive_weight": 0.0}, "cache_chunk_size": 5},
        {"fields": {"same_view_negatives": True}, "augmentation": "mask", "augmentation_span": 3},
        {"fields": {"perturb_first": "feature_cutoff", "perturb_second": "shuffle", "dropout": 0.0}},
        {"method": "joint", "fields": {"objectives": ["towers"], "contrastive_weight": 0.0}, "optim": "rmsprop"},
        {"fields": {"token_information_weight": 1.0, "token_information_channels": 6}, "cache_chunk_size": 5},
    ],
    ids=[
        "templates",
        "triplet",
        "triplet_dropout",
        "peer",
        "whitening",
        "halves",
        "smoothing",
        "attention",
        "tsdae",
        "masked_span",
        "perturbed",
        "towers",
        "token_information",
    ],
)
def test_templates_and_other_copies_are_resumed(base: dict[str, Any], tmp_path: Path, options: dict[str, Any]) -> None:
    options = options | {"max_steps": 10, "eval_steps": 4}
    straight, killed = (base | {"output_dir": str(tmp_path / name)} | options for name in ("straight", "killed"))
    resumed = killed | {"resume": True, "dataloader_num_workers": 2}
    assert run_jobs(tmp_path, [straight, killed | {"signal": [6, int(signal.SIGKILL)]}, resumed]) == [0, -9, 0]
    assert_same(killed, straight)


@pytest.mark.slow
def test_a_killed_warm_up_of_the_objectives_goes_on_and_a_later_run_starts_from_it(
    base: dict[str, Any], tmp_path: Path
) -> None:
    fields = {"icm_weight": 1.0, "projector": "batchnorm", "pooling": "cls"}
    run = base | {"method": "msse", "fields": fields, "max_steps": 4, "eval_steps": 4, "logging_steps": 1}

    def job(name: str, **options: Any) -> dict[str, Any]:
        return run | {"output_dir": str(tmp_path / name)} | options

    warm = {"objective_warmup_steps": 9, "eval_steps": 3, "save_total_limit": None}
    straight = job("straight", **warm)
    killed, later = job("killed", **warm), job("later", objectives_from=str(tmp_path / "straight"))
    cold = job("cold")
    jobs = [
        straight,
        killed | {"killed_at": "objectives/training/checkpoint-6/trainer_state.json"},
        killed | {"resume": True},
        later | {"eval_steps": 3},
        cold,
    ]
    assert run_jobs(tmp_path, jobs) == [0, -int(signal.SIGKILL), 0, 0, 0]
    expected = tensors(straight)
    for each in (killed, later):
        found = tensors(each)
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    # the same batch, the same dropout: the first contrast is that of a run without warm-up, the first ICM is not
    first, without = report(straight)["log"][0], report(cold)["log"][0]
    assert first["loss/contrastive"] == without["loss/contrastive"]
    assert first["metrics/icm_cross_entropy"] < without["metrics/icm_cross_entropy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"max_steps": 48, "eval_steps": 16},  # the last checkpoint stands at the end of an epoch
        {"gradient_accumulation_steps": 3, "max_steps": 14, "eval_steps": 4, "logging_steps": 2},
        {"streaming": True},
        {"streaming": True, "dataloader_num_workers": 2},
        {"streaming": True, "dataloader_num_workers": 2, "augmentation": "delete"},
        {"bf16": True, "dataloader_num_workers": 2},
        {"fields": {"projector": "batchnorm"}, "method": "informin"},
        {"fields": {"edit_operation": "all", "generator_dropout": True}, "method": "diffcse", "bf16": True},
        {"method": "diffcse", "fields": {"mlm_weight": 0.1}, "cache_chunk_size": 3, "max_steps": 14, "eval_steps": 4},
    ],
    ids=["epoch", "accumulation", "stream", "stream-workers", "augmented", "bf16", "batchnorm", "edits", "cached"],
)
def test_settings_that_resume(base: dict[str, Any], tmp_path: Path, options: dict[str, Any]) -> None:
    straight, killed = (base | {"output_dir": str(tmp_path / name)} | options for name in ("straight", "killed"))
    at = options.get("eval_steps", 10) + 1
    jobs = [straight, killed | {"signal": [at, int(signal.SIGKILL)]}, killed | {"resume": True}]
    assert run_jobs(tmp_path, jobs) == [0, -9, 0]
    assert_same(killed, straight)
