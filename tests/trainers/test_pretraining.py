"""The trainer of stage 1: log, held-out text, resume, the small-budget start."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, PreTrainedTokenizerFast, TrainerCallback

from csekit.modeling import (
    EncoderForPreTraining,
    InfoCSEForPreTraining,
    InfoCSEPretrainingConfig,
    RTDForPreTraining,
    RTDPretrainingConfig,
)
from csekit.trainers import (
    NonFiniteLossError,
    PretrainingArguments,
    PretrainingCollator,
    PretrainingTrainer,
    pack,
    train_tokenizer,
)
from csekit.trainers.pretraining import HELDOUT_SEED, small_budget_init_

SUBJECTS = ["the cat", "the dog", "a bird", "the old man", "our neighbour", "a Child"]
VERBS = ["sees", "follows", "calls", "feeds", "likes"]
SENTENCES = [f"{a.capitalize()} {v} {b}." for a in SUBJECTS for v in VERBS for b in SUBJECTS if a != b]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(SENTENCES, 150)


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int = 3, **fields: Any) -> InfoCSEForPreTraining:
    encoder = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    torch.manual_seed(seed)
    return InfoCSEForPreTraining(InfoCSEPretrainingConfig(encoder_config=encoder, **fields))


def new_discriminator(tokenizer: PreTrainedTokenizerFast, seed: int = 3) -> RTDForPreTraining:
    """A discriminator of the same size with a trained generator, both new."""
    encoder = new_model(tokenizer).config.encoder_config
    torch.manual_seed(seed)
    return RTDForPreTraining(RTDPretrainingConfig(encoder_config=encoder))


def model_of(objective: str, tokenizer: PreTrainedTokenizerFast, seed: int = 3) -> EncoderForPreTraining:
    return (
        new_discriminator(tokenizer, seed) if objective == "rtd" else new_model(tokenizer, seed, objective=objective)
    )


def trainer_of(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    model: EncoderForPreTraining | None = None,
    heldout: bool = True,
    callbacks: list[TrainerCallback] | None = None,
    **arguments: Any,
) -> PretrainingTrainer:
    given = {
        "per_device_train_batch_size": 4,
        "learning_rate": 3e-3,
        "block_length": 16,
        "max_steps": 6,
        "eval_steps": 2,
        "logging_steps": 1,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
    }
    args = PretrainingArguments(output_dir=str(folder), **(given | arguments))
    blocks = pack(SENTENCES[30:], tokenizer, args.block_length, args.whole_word_masking)
    unseen = pack(SENTENCES[:30], tokenizer, args.block_length) if heldout else None
    return PretrainingTrainer(
        model or new_model(tokenizer), args, blocks, tokenizer, unseen, callbacks=callbacks or []
    )


def test_every_term_is_in_the_log_and_their_sum_is_the_loss(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, tokenizer)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    for entry in entries:
        assert entry["loss"] == pytest.approx(entry["loss/mlm"] + entry["loss/aux_mlm"], abs=1e-4)
        assert 0 <= entry["metrics/mlm_accuracy"] <= 1
        assert 0 <= entry["metrics/aux_mlm_accuracy"] <= 1
    scored = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [entry["step"] for entry in scored] == [2, 4, 6]
    assert scored[0].keys() >= {"eval_mlm", "eval_aux_mlm", "eval_mlm_accuracy", "eval_aux_mlm_accuracy"}


def test_heldout_scores_are_exact_means_over_all_masked_tokens(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Whatever the batch size: batches hold different numbers of masked tokens."""
    trainer = trainer_of(tmp_path, tokenizer, per_device_eval_batch_size=5)
    trainer.model.train()
    state = torch.get_rng_state()
    scores = trainer.heldout_scores()
    assert scores == trainer.heldout_scores()
    assert trainer.model.training
    assert torch.equal(state, torch.get_rng_state())
    heldout = trainer.heldout
    assert heldout is not None
    batch = PretrainingCollator(tokenizer, 0.15, HELDOUT_SEED)([heldout[i] for i in range(len(heldout))])
    del batch["index"]
    with torch.no_grad():
        whole = trainer.model.eval()(**batch)
    assert scores["loss"] == pytest.approx(float(whole.loss), rel=1e-5)
    for name, value in {**whole.loss_dict, **whole.metrics}.items():
        assert scores[name] == pytest.approx(float(value), rel=1e-5), name
    assert trainer_of(tmp_path, tokenizer, heldout=False).heldout_scores() == {}


def test_a_discriminator_is_logged_and_scored_as_its_terms_say(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Each share is a mean over its own tokens: replaced, kept, masked; the draws are the same in every call."""
    trainer = trainer_of(tmp_path, tokenizer, new_discriminator(tokenizer), per_device_eval_batch_size=100)
    trainer.train()
    for entry in (entry for entry in trainer.state.log_history if "loss" in entry):
        assert entry["loss"] == pytest.approx(entry["loss/mlm"] + entry["loss/rtd"], abs=1e-3)
    heldout = trainer.heldout
    assert heldout is not None
    state = torch.get_rng_state()
    scores = trainer.heldout_scores()
    assert scores == trainer.heldout_scores()
    assert torch.equal(state, torch.get_rng_state())
    batch = PretrainingCollator(tokenizer, 0.15, HELDOUT_SEED, scored=True)([heldout[i] for i in range(len(heldout))])
    del batch["index"]
    torch.manual_seed(HELDOUT_SEED)
    with torch.no_grad():
        whole = trainer.model.eval()(**batch)
    expected = {"loss": whole.loss, **whole.loss_dict, **whole.metrics}
    assert scores == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
    trainer.args.per_device_eval_batch_size = 5
    parts = trainer.heldout_scores()
    outputs = []
    torch.manual_seed(HELDOUT_SEED)
    with torch.no_grad():
        for start in range(0, len(heldout), 5):
            rows = [heldout[i] for i in range(start, min(start + 5, len(heldout)))]
            batch = PretrainingCollator(tokenizer, 0.15, HELDOUT_SEED, scored=True)(rows)
            del batch["index"]
            outputs.append(trainer.model(**batch))
    for name in ("rtd_accuracy_replaced", "rtd_accuracy_kept", "replaced"):
        hits = sum(float(output.metrics[name]) * int(output.counts[name]) for output in outputs)
        assert parts[name] == pytest.approx(hits / sum(int(output.counts[name]) for output in outputs))


@pytest.mark.parametrize("objective", ["condenser", "rtd"])
def test_every_weight_moves(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, objective: str) -> None:
    model = model_of(objective, tokenizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer_of(tmp_path, tokenizer, model, weight_decay=0.0).train()
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert not still


class Stop(TrainerCallback):
    """The power goes in the middle of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step + 1 == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("objective", ["condenser", "rtd", pytest.param("mlm", marks=pytest.mark.slow)])
def test_a_resumed_run_is_bitwise_the_same(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, objective: str) -> None:
    """Epochs of several steps, stopped within the second: order, masks and dropout go on where they were."""
    settings: dict[str, Any] = {
        "max_steps": 28,
        "eval_steps": 5,
        "logging_steps": 5,
        "per_device_train_batch_size": 16,
    }
    straight = trainer_of(tmp_path / "straight", tokenizer, model_of(objective, tokenizer), **settings)
    straight.train()
    broken = model_of(objective, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        trainer_of(tmp_path / "broken", tokenizer, broken, callbacks=[Stop(11)], **settings).train()
    again = trainer_of(tmp_path / "broken", tokenizer, model_of(objective, tokenizer, seed=9), **settings)
    again.train(resume_from_checkpoint=True)
    left, right = straight.model.state_dict(), again.model.state_dict()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []
    logs = [[entry for entry in each.state.log_history if "train_runtime" not in entry] for each in (straight, again)]
    clocks = {"eval_runtime", "eval_samples_per_second", "eval_steps_per_second"}
    assert logs[0] == logs[1]
    assert not clocks & {name for entry in logs[0] for name in entry}
    assert straight.state.epoch is not None
    assert 8 / 12 * straight.state.epoch > 1


def test_the_run_folder_is_a_checkpoint_that_goes_on(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, tokenizer)
    trainer.train()
    assert trainer.save_run() == tmp_path
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "auxiliary_head", "training"} <= names
    again = InfoCSEForPreTraining.from_backbone(tmp_path)
    state = trainer.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
    training = InfoCSEForPreTraining.from_pretrained(tmp_path / "training")
    assert all(torch.equal(value, state[name]) for name, value in training.state_dict().items())


def test_both_terms_learn_what_the_context_tells(tmp_path: Path) -> None:
    """A sentence repeats one word of eight: by frequencies alone one mask in eight is guessed, at a loss of ln 8."""
    words = ["ant", "bee", "cow", "dog", "elk", "fox", "gnu", "hen"]
    texts = [" ".join([words[i * i % 7 + i % 2]] * 6) for i in range(160)]
    tokenizer = train_tokenizer(texts, 60)
    blocks, unseen = pack(texts, tokenizer, 8), pack([" ".join([word] * 6) for word in words], tokenizer, 8)
    options: dict[str, Any] = {"max_steps": 40, "learning_rate": 2e-2, "per_device_train_batch_size": 16}
    args = PretrainingArguments(str(tmp_path), save_strategy="no", disable_tqdm=True, use_cpu=True, **options)
    model = new_model(tokenizer, head_layers=1)
    trainer = PretrainingTrainer(model, args, blocks, tokenizer, unseen)
    small_budget_init_(model, blocks, tokenizer)
    trainer.train()
    scores = trainer.heldout_scores()
    assert scores["mlm"] < 1 and scores["aux_mlm"] < 1, math.log(8)
    assert scores["mlm_accuracy"] > 0.7
    assert scores["aux_mlm_accuracy"] > 0.7


def test_a_discriminator_learns_what_the_context_tells(tmp_path: Path) -> None:
    """A sentence repeats one word of eight: another word among them was replaced. The share of replaced tokens alone
    gives a loss of 0.43 nats, 21 with the weight."""
    words = ["ant", "bee", "cow", "dog", "elk", "fox", "gnu", "hen"]
    texts = [" ".join([words[i * i % 7 + i % 2]] * 6) for i in range(160)]
    tokenizer = train_tokenizer(texts, 60)
    blocks, unseen = pack(texts, tokenizer, 8), pack([" ".join([word] * 6) for word in words] * 8, tokenizer, 8)
    options: dict[str, Any] = {"max_steps": 240, "learning_rate": 3e-3, "mlm_probability": 0.3, "warmup_steps": 0}
    args = PretrainingArguments(str(tmp_path), save_strategy="no", disable_tqdm=True, use_cpu=True, **options)
    trainer = PretrainingTrainer(new_discriminator(tokenizer), args, blocks, tokenizer, unseen)
    trainer.train()
    scores = trainer.heldout_scores()
    assert scores["rtd"] < 14
    assert scores["rtd_accuracy_replaced"] > 0.6
    assert scores["rtd_accuracy_kept"] > 0.9


def test_small_budget_start(tokenizer: PreTrainedTokenizerFast) -> None:
    """Word vectors of counts but for special tokens; identities on values, projections, transform, in the head too."""
    plain, changed = new_model(tokenizer), new_model(tokenizer)
    small_budget_init_(changed, pack(SENTENCES, tokenizer, 16), tokenizer)
    old, new = plain.state_dict(), changed.state_dict()
    eye = torch.eye(16)
    for name, value in new.items():
        factor = 1.0 if "self.value.weight" in name or "transform.dense.weight" in name else 0.0
        factor = 0.7 if "attention.output.dense.weight" in name else factor
        if name != "backbone.embeddings.word_embeddings.weight":
            torch.testing.assert_close(value, old[name] + factor * eye if factor else old[name], msg=name)
    words = "backbone.embeddings.word_embeddings.weight"
    assert torch.equal(new[words][:5], old[words][:5])
    cat, dog, sees = (new[words][tokenizer.convert_tokens_to_ids(word)] for word in ("cat", "dog", "sees"))
    assert torch.cosine_similarity(cat, dog, dim=0) > torch.cosine_similarity(cat, sees, dim=0)


def test_a_loss_that_is_not_finite_stops_the_run(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model = new_model(tokenizer)
    model.mlm_head.bias.data[7] = math.nan
    with pytest.raises(NonFiniteLossError, match="step 1: loss term 'mlm' is nan"):
        trainer_of(tmp_path, tokenizer, model, heldout=False).train()


@pytest.mark.parametrize(
    ("metric", "greater"), [(None, False), ("mlm", False), ("eval_aux_mlm", False), ("mlm_accuracy", True)]
)
def test_a_held_out_score_selects_in_its_own_direction(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, metric: str | None, greater: bool
) -> None:
    """Regression: of the terms, which are losses, the greatest was the best."""
    trainer = trainer_of(tmp_path, tokenizer, load_best_model_at_end=True, metric_for_best_model=metric)
    trainer.train()
    name = f"eval_{(metric or 'loss').removeprefix('eval_')}"
    scores = [entry[name] for entry in trainer.state.log_history if name in entry]
    assert len(scores) == 3 and max(scores) > min(scores)
    assert trainer.state.best_metric == (max if greater else min)(scores)


def test_an_unknown_held_out_score_is_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    """Regression: it ended the run with a KeyError at the first evaluation."""
    words = r"metric_for_best_model must be one of \['aux_mlm', .*'loss', 'mlm', 'mlm_accuracy'\], got 'rtd'"
    with pytest.raises(ValueError, match=words):
        trainer_of(tmp_path, tokenizer, load_best_model_at_end=True, metric_for_best_model="rtd")


def test_settings_that_cannot_work_are_refused(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="block_length must be at most 32, the encoder's limit, got 64"):
        trainer_of(tmp_path, tokenizer, block_length=64)
    with pytest.raises(ValueError, match="load_best_model_at_end must be False without held-out text"):
        trainer_of(tmp_path, tokenizer, heldout=False, load_best_model_at_end=True)
    with pytest.raises(ValueError, match="lr_scheduler_type must not be 'reduce_lr_on_plateau' without held-out text"):
        trainer_of(tmp_path, tokenizer, heldout=False, lr_scheduler_type="reduce_lr_on_plateau")
    with pytest.raises(ValueError, match=r"dataloader_drop_last must be False with fewer rows, \d+, than a batch has"):
        trainer_of(tmp_path, tokenizer, per_device_train_batch_size=1000, dataloader_drop_last=True)
    with pytest.raises(ValueError, match="push_to_hub must be False"):
        trainer_of(tmp_path, tokenizer, push_to_hub=True)
    larger = train_tokenizer(SENTENCES, 60)
    with pytest.raises(ValueError, match=r"vocab_size must be at least \d+ \(the tokenizer\), got \d+"):
        trainer_of(tmp_path, tokenizer, new_model(larger))
    with pytest.raises(ValueError, match=r"mlm_probability must lie between 0 and 1, got 1\.5"):
        PretrainingArguments(output_dir=str(tmp_path), mlm_probability=1.5)
    with pytest.raises(ValueError, match="block_length must be at least 3, got 2"):
        PretrainingArguments(output_dir=str(tmp_path), block_length=2)
