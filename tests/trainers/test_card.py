"""The model card: metadata that the Hub reads, scores, and the pooling."""

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from csekit.trainers.card import write_model_card


@pytest.fixture
def results() -> dict[str, Any]:
    return {
        "method": "informin",
        "backbone": "bert-base-uncased",
        "corpus": {"name": "wiki.txt", "used": 1000},
        "config": {"pooling": "cls", "prompt_template": None, "objectives": [], "temperature": 0.05},
        "arguments": {"learning_rate": 3e-5},
        "seed": 42,
        "dev": {"after": {"stsb_spearman": 80.126}},
        "test": {
            "tasks": {"STS12": {"all": 70.126}, "STS-B": {"all": 76.0}, "test": {"all": 50.0}},
            "avg": 73.06,
            "text_form": "tokenized",
        },
        "seconds": {"train": 12.5},
    }


def test_a_card_carries_scores_setting_and_base_model(results: dict[str, Any], tmp_path: Path) -> None:
    card = ModelCard.load(write_model_card(tmp_path / "my-encoder", results, "bert-base-uncased"))
    assert (card.data.base_model, card.data.model_name) == ("bert-base-uncased", "my-encoder")
    assert "informin" in card.data.tags
    scores = {entry.dataset_type: entry.metric_value for entry in card.data.eval_results}
    assert scores == {"mteb/sts12-sts": 70.13, "mteb/stsbenchmark-sts": 76.0}  # an own set has no name on the Hub
    for line in ("| dev: stsb_spearman | 80.13 |", "| test | 50.00 |", "| Avg of the seven | 73.06 |"):
        assert line in card.text
    for line in ("- `learning_rate`: 3e-05", "- `seed`: 42", "embeddings = states[:, 0]", "tokenized texts"):
        assert line in card.text
    assert "prompt_template" not in card.text


def test_a_card_without_test_sets_and_with_another_pooling(results: dict[str, Any], tmp_path: Path) -> None:
    results |= {"test": None, "config": {"pooling": "mean"}}
    card = ModelCard.load(write_model_card(tmp_path, results, str(tmp_path)))
    assert card.data.base_model is None and card.data.eval_results is None
    assert "**Pooling: mean.**" in card.text and "last_hidden_state" not in card.text


@pytest.mark.parametrize(
    ("template", "offset", "place"),
    [
        ('"{sentence}" means {mask}.', -3, 'states[torch.arange(len(states)), batch["attention_mask"].sum(1) - 3]'),
        ('"{sentence}" means {mask}', -1, 'states[torch.arange(len(states)), batch["attention_mask"].sum(1) - 1]'),
        ('{mask} is "{sentence}"', 1, "states[:, 1]"),
    ],
)
def test_a_card_says_where_the_mask_token_is(
    results: dict[str, Any], tmp_path: Path, template: str, offset: int, place: str
) -> None:
    results["config"] |= {"pooling": "mask", "prompt_template": template, "prompt_mask_offset": offset}
    text = ModelCard.load(write_model_card(tmp_path / "m", results, "bert-base-uncased")).text
    assert f"prompt template `{template}`" in text and f"embeddings = {place}" in text
    asks = 'SentenceTransformer("m", trust_remote_code=True)'
    assert (asks in text) == ("template_pooling.py" in text) == (offset != -1)


def test_a_card_does_not_pass_off_the_state_before_a_projector(results: dict[str, Any], tmp_path: Path) -> None:
    results["config"] |= {"projector_at_inference": True}
    text = ModelCard.load(write_model_card(tmp_path, results, "bert-base-uncased")).text
    assert "last_hidden_state" not in text and "in front of the projector" in text


def test_the_card_of_the_current_folder_has_its_name(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    card = ModelCard.load(write_model_card(".", results, "bert-base-uncased"))
    assert card.data.model_name == tmp_path.name and f"# {tmp_path.name}\n" in card.text
