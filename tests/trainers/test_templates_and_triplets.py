"""Training with a template for each view, and with masked triplets: log, folder, card, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from csekit.encoding import load_encoder
from csekit.modeling import SimCSEModel

FIELDS = {
    "pooling": "mask",
    "prompt_template": "a {sentence} is {mask} .",
    "second_prompt_template": "the {sentence} is {mask}",
    "subtract_template": True,
}


def test_a_run_logs_and_leaves_what_reloads(small_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer = small_run(tmp_path / "run", fields=FIELDS, max_seq_length=16, max_steps=4, cache_chunk_size=5)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"], abs=1e-4)
    after = trainer.model.state_dict()
    assert [name for name in before if torch.equal(after[name], before[name])] == []
    folder = trainer.save_run()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "the {sentence} is {mask}" in card
    assert "prompt_frames" not in card
    assert json.loads((folder / "results.json").read_text(encoding="utf-8"))["config"]["subtract_template"] is True
    again = SimCSEModel.from_pretrained(folder / "training")
    assert again.config.prompt_frames == trainer.model.config.prompt_frames
    texts = ["the dog sings .", "a man"]
    torch.testing.assert_close(
        torch.from_numpy(load_encoder(folder, device="cpu").encode(texts)), torch.from_numpy(trainer.embed(texts))
    )


def test_a_run_with_triplets_logs_its_terms(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"angular_margin": 0.17, "objectives": ["triplet"], "triplet_margin": 0.1}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, max_steps=2)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"] + entry["loss/triplet"], abs=1e-4)
    assert 0 <= entry["metrics/triplet_violations"] <= 1
    assert entry["loss/triplet"] > 0


def test_a_run_with_further_positives_and_a_peer_logs_its_terms(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"further_positives": "shuffle+column", "objectives": ["group", "peer"]}
    options = {"columns": 2, "max_steps": 2, "cache_chunk_size": 5}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, **options)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    terms = [entry[f"loss/{name}"] for name in ("contrastive", "group", "peer")]
    assert entry["loss"] == pytest.approx(sum(terms), abs=1e-4)
    assert min(terms) > 0
    assert 0 < entry["metrics/group_positives"] <= 1
    folder = trainer.save_run()
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["positives"] == "dropout"  # the last column is no view of the contrast
    assert results["config"]["further_positives"] == "shuffle+column"
    assert "shuffle+column" in (folder / "README.md").read_text(encoding="utf-8")
    assert load_encoder(folder, device="cpu").encode(["the dog sings ."]).shape == (
        1,
        trainer.model.config.hidden_size,
    )


def test_a_run_with_perturbed_views_needs_no_dropout(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"perturb_first": "feature_cutoff", "perturb_second": "shuffle+token_cutoff:0.3", "dropout": 0.0}
    contrast = {"same_view_negatives": True, "symmetric": True}
    trainer = small_run(tmp_path / "run", fields=fields | contrast, max_steps=2, cache_chunk_size=5)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"], abs=1e-4)
    assert entry["metrics/positive_cosine"] < 0.9999
    results = json.loads((trainer.save_run() / "results.json").read_text(encoding="utf-8"))
    assert results["positives"] == "perturbation"
    assert results["config"]["perturb_first"] == "feature_cutoff"


def test_a_run_with_two_towers_logs_its_term(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"objectives": ["towers"], "towers_dropout": False, "contrastive_weight": 0.0, "pooling": "mean"}
    options = {"max_steps": 2, "cache_chunk_size": 5, "optim": "rmsprop", "weight_decay": 0.0}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, **options)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/towers"], abs=1e-4)
    assert 0 <= entry["metrics/towers_same"] <= 1
    moved = {name for name, value in trainer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in moved} == {"backbone", "objectives"}
    folder = trainer.save_run()
    assert load_encoder(folder, device="cpu").encode(["the dog sings ."]).shape == (1, 32)


def test_a_run_with_token_information_logs_its_term(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"objectives": ["token_information"], "contrastive_weight": 0.0, "token_information_channels": 6}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, max_steps=2, cache_chunk_size=5)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/token_information"], abs=1e-4)
    assert 0 < entry["metrics/token_information_accuracy"] <= 1
    assert load_encoder(trainer.save_run(), device="cpu").encode(["the dog sings ."]).shape == (1, 32)


def test_views_of_two_templates_need_no_dropout(small_run: Callable[..., Any], tmp_path: Path) -> None:
    options = {"max_seq_length": 16, "max_steps": 2}
    small_run(tmp_path / "two", fields=FIELDS | {"dropout": 0.0}, **options).train()
    alone = {name: value for name, value in FIELDS.items() if name != "second_prompt_template"}
    with pytest.raises(ValueError, match="the two views of a sentence differ by dropout alone"):
        small_run(tmp_path / "one", fields=alone | {"dropout": 0.0}, **options)


def test_other_objectives_train_beside_two_templates(small_run: Callable[..., Any], tmp_path: Path) -> None:
    names = ["mlm", "rtd", "edited", "icm", "dcm"]
    trainer = small_run(
        tmp_path / "run",
        method="joint",
        fields=FIELDS | {"objectives": [*names, "noise", "queue"], "rtd_edit_operation": "all"},
        max_seq_length=16,
        max_steps=2,
    )
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["metrics/queue_cosine"] != 0
    terms = [entry[f"loss/{name}"] for name in ("contrastive", *names)]
    assert entry["loss"] == pytest.approx(sum(terms), abs=1e-3)


def test_a_run_with_composed_positives_contrasts_them_alone(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"objectives": [], "further_positives": "parts+halves", "second_view_weight": 0.0, "contrast_dims": 7}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, columns=3, max_steps=2)
    trainer.train()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["loss/contrastive"], abs=1e-4)
    assert json.loads((trainer.save_run() / "results.json").read_text(encoding="utf-8"))["positives"] == "dropout"
    with pytest.raises(ValueError, match=r"need two more columns after the sentence's, texts\.tsv has only"):
        small_run(tmp_path / "two", method="joint", fields=fields, columns=2)


def test_a_run_with_smoothing_and_attention_logs_its_terms(small_run: Callable[..., Any], tmp_path: Path) -> None:
    fields = {"objectives": ["smoothing", "attention"], "smoothing_size": 12, "smoothing_neighbors": 3}
    fields |= {"attention_first_layer": 0, "attention_last_layer": 1, "attention_weight": 0.1}
    trainer = small_run(tmp_path / "run", method="joint", fields=fields, max_steps=4, cache_chunk_size=5)
    trainer.train()
    entry = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    terms = [entry[f"loss/{name}"] for name in ("contrastive", "smoothing", "attention")]
    assert entry["loss"] == pytest.approx(sum(terms), abs=1e-4)
    assert terms[1] > 0
    assert terms[2] < 0
    assert entry["metrics/attention_information"] > 0
