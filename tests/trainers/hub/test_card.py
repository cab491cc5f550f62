"""The model card: metadata that the Hub reads, scores, and the pooling."""

import hashlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation.results import write_results
from csekit.modeling.pooling import pool
from csekit.trainers.hub.card import (
    check_unedited,
    listed_cards,
    render_card,
    resealed,
    with_code_section,
    write_model_card,
)

CARDS = Path(__file__).parents[3] / "model_cards"


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
    pooled = "embeddings = model(**batch).last_hidden_state[:, 0]"
    for line in ("- `learning_rate`: 3e-05", "- `seed`: 42", pooled, "tokenized texts", "(1,000 rows)"):
        assert line in card.text
    assert "prompt_template" not in card.text


def test_a_card_without_test_sets_and_with_another_pooling(results: dict[str, Any], tmp_path: Path) -> None:
    results |= {"test": None, "config": {"pooling": "mean"}}
    card = ModelCard.load(write_model_card(tmp_path, results, str(tmp_path)))
    assert card.data.base_model is None
    assert card.data.eval_results is None
    assert "**Pooling: mean.**" in card.text
    assert "dev: stsb_spearman" in card.text


@pytest.mark.parametrize("dev_set", [True, False])
def test_criteria_without_labels_are_no_scores_of_a_dev_set(
    results: dict[str, Any], tmp_path: Path, dev_set: bool
) -> None:
    """Regression: the card of a run without a dev set gave them as its scores."""
    after = {"alignment": 0.2, "uniformity": -3.0, **({"stsb_spearman": 80.0} if dev_set else {})}
    results |= {"test": None, "dev": {"after": after, "metric": None if dev_set else "alignment"}}
    text = ModelCard.load(write_model_card(tmp_path, results, "bert-base-uncased")).text
    assert "| training sentences: alignment | 0.20 |" in text and "dev: alignment" not in text
    assert ("On the dev set" in text) == ("| dev: stsb_spearman | 80.00 |" in text) == dev_set
    assert ("Without a dev set: criteria that need no labels" in text) == ("; alignment chose" in text) != dev_set


def test_dev_accuracies_are_not_published_as_test_accuracies(results: dict[str, Any], tmp_path: Path) -> None:
    """Those of ``csekit eval --mode dev``, folds of the training side, had the metadata of SentEval's test sides."""
    transfer = {"tasks": {"MR": {"accuracy": 81.5}}, "avg": None}
    for mode, named in (("test", True), ("dev", False)):
        card = ModelCard.load(write_model_card(tmp_path, results | {"transfer": transfer | {"mode": mode}}, ""))
        assert "| MR | 81.50 |" in card.text
        assert ("senteval-mr" in {entry.dataset_type for entry in card.data.eval_results}) == named
        assert ("by SentEval's protocol" in card.text) == named
        assert ("training sides alone" in card.text) != named


@pytest.mark.parametrize("pooling", ["cls", "mean", "mask"])
def test_the_snippet_for_transformers_pools_as_csekit_does(results: dict[str, Any], pooling: str) -> None:
    template = '"{sentence}" means {mask}.' if pooling == "mask" else None
    offset = -3 if pooling == "mask" else None
    results["config"] |= {"pooling": pooling, "prompt_template": template, "prompt_mask_offset": offset}
    last = render_card(results, "m").split('return_tensors="pt")\n')[1].split("```")[0]
    states, mask = torch.randn(2, 6, 4), torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    space = {"model": lambda **batch: SimpleNamespace(last_hidden_state=states), "batch": {"attention_mask": mask}}
    exec(last, space)
    torch.testing.assert_close(space["embeddings"], pool(pooling, (states,), mask, offset))


@pytest.mark.parametrize(
    ("template", "offset", "place"),
    [
        ('"{sentence}" means {mask}.', -3, 'states[range(len(states)), batch["attention_mask"].sum(1) - 3]'),
        ('"{sentence}" means {mask}', -1, 'states[range(len(states)), batch["attention_mask"].sum(1) - 1]'),
        ('{mask} is "{sentence}"', 1, "model(**batch).last_hidden_state[:, 1]"),
    ],
)
def test_a_card_says_where_the_mask_token_is(
    results: dict[str, Any], tmp_path: Path, template: str, offset: int, place: str
) -> None:
    results["config"] |= {"pooling": "mask", "prompt_template": template, "prompt_mask_offset": offset}
    text = ModelCard.load(write_model_card(tmp_path / "m", results, "bert-base-uncased")).text
    assert f"prompt template `{template}`" in text
    assert f"embeddings = {place}" in text
    asks = 'SentenceTransformer("m", trust_remote_code=True)'
    assert (asks in text) == ("template_pooling.py" in text) == (offset != -1)


def test_a_card_does_not_pass_off_the_state_before_a_projector(results: dict[str, Any], tmp_path: Path) -> None:
    results["config"] |= {"projector_at_inference": True}
    text = ModelCard.load(write_model_card(tmp_path, results, "bert-base-uncased")).text
    assert "last_hidden_state" not in text
    assert "in front of the projector" in text


def test_the_card_of_the_current_folder_has_its_name(
    results: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    card = ModelCard.load(write_model_card(".", results, "bert-base-uncased"))
    assert card.data.model_name == tmp_path.name
    assert f"# {tmp_path.name}\n" in card.text


def test_the_committed_cards_are_those_of_the_results_files() -> None:
    cards = listed_cards(CARDS / "cards.yaml")
    assert {f"{name}.md" for name in cards} == {path.name for path in CARDS.glob("*.md")}
    for name, text in cards.items():
        assert (CARDS / f"{name}.md").read_text(encoding="utf-8") == text, "run: csekit card model_cards/cards.yaml"


def test_a_committed_card_names_the_sets_as_the_hub_does() -> None:
    card = ModelCard.load(CARDS / "informin.md")
    assert (card.data.license, card.data.language) == ("apache-2.0", ["en"])
    found = {(entry.task_type, entry.dataset_type, entry.metric_type) for entry in card.data.eval_results}
    assert {
        ("sts", "mteb/stsbenchmark-sts", "cosine_spearman"),
        ("text-classification", "senteval-mr", "accuracy"),
        ("text-classification", "mteb/banking77", "accuracy"),
        ("retrieval", "mteb/stsbenchmark-sts", "recall_at_10"),
        ("clustering", "stackoverflow", "v_measure"),
    } <= found
    entries = [(e.task_type, e.dataset_type, e.dataset_config, e.metric_type) for e in card.data.eval_results]
    assert len(set(entries)) == len(entries)


@pytest.fixture
def run(results: dict[str, Any], tmp_path: Path) -> Path:
    """A run's folder with its results."""
    folder = tmp_path / "my-run"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({**results, "name": "my-run", "format": 1}))
    return folder


def test_a_run_that_is_not_there_is_told(tmp_path: Path) -> None:
    """The command asked for --output instead, as of a results file."""
    found = CliRunner().invoke(main, ["card", str(tmp_path / "rn")])
    assert found.exit_code == 2 and f"{tmp_path / 'rn'}: no such folder or file" in found.output


def test_card_command(run: Path, tmp_path: Path) -> None:
    def call(*arguments: str | Path) -> Any:
        return CliRunner().invoke(main, ["card", *map(str, arguments)])

    scores = tmp_path / "scores.json"
    content: dict[str, Any] = {
        "format": 1,
        "run": {"encoder": {"pooling": "cls"}},
        "transfer": {"tasks": {"MR": {"accuracy": 81.5}}},
    }
    scores.write_text(json.dumps(content))
    more = ("--license", "mit", "--language", "de", "--base_model", "bert-base-uncased", "--dataset", "org/corpus")
    done = call(run, "--scores", scores, *more)
    assert done.exit_code == 0 and str(run / "README.md") in done.output, done.output
    card = ModelCard.load(run / "README.md")
    assert (card.data.license, card.data.language, card.data.datasets) == ("mit", ["de"], ["org/corpus"])
    assert card.data.base_model == "bert-base-uncased"
    assert "| MR | 81.50 |" in card.text
    assert "(de)" in card.text
    named = call(run / "results.json", "-o", tmp_path / "card.md", "--name", "other")
    assert named.exit_code == 0
    assert "# other\n" in (tmp_path / "card.md").read_text()
    assert "--output must name the card" in call(run / "results.json").output
    scores.write_text(json.dumps(content | {"run": {"encoder": {"pooling": "mean"}}}))
    wrong = call(run, "--scores", scores)
    assert wrong.exit_code == 2
    assert "whose pooling is 'cls', got 'mean'" in " ".join(wrong.output.split())
    (run / "model.safetensors").write_bytes(b"the run's")
    ours = {"model.safetensors": hashlib.sha256(b"the run's").hexdigest()}
    for weights, status in ((ours, 0), ({"model.safetensors": "0"}, 2)):
        scores.write_text(json.dumps(content | {"run": content["run"] | {"weights": weights}}))
        assert call(run, "--scores", scores).exit_code == status
    assert "but its weights differ" in " ".join(call(run, "--scores", scores).output.split())
    (run / "training").mkdir(exist_ok=True)
    (run / "model.safetensors").rename(run / "training" / "model.safetensors")  # a pooling without a plain form
    ours = {"training/model.safetensors": ours["model.safetensors"]}
    for weights, status in ((ours, 0), ({"training/model.safetensors": "0"}, 2)):
        scores.write_text(json.dumps(content | {"run": content["run"] | {"weights": weights}}))
        assert call(run, "--scores", scores).exit_code == status
    assert "must be the results of a training run" in " ".join(call(scores, "-o", tmp_path / "x.md").output.split())


def test_a_card_that_was_edited_is_replaced_by_overwrite_alone(run: Path, tmp_path: Path) -> None:
    """The command replaced a card with its user's own words, and nothing said so."""

    def call(*arguments: str | Path) -> Any:
        return CliRunner().invoke(main, ["card", *map(str, arguments)])

    readme = run / "README.md"
    assert call(run).exit_code == 0
    assert call(run, "--license", "mit").exit_code == 0
    written = readme.read_bytes()
    readme.write_bytes(written.replace(b"\n", b"\r\n"))  # a checkout of git on Windows
    assert call(run, "--license", "mit").exit_code == 0
    assert readme.read_bytes() == written
    for mine in (written.replace(b"mit", b"own"), b"# By hand\n", written + b"More.\n"):
        readme.write_bytes(mine)
        found = call(run)
        assert found.exit_code == 2
        assert f"{readme}: edited since csekit wrote it" in found.output and "--overwrite" in found.output
        assert readme.read_bytes() == mine
    (tmp_path / "notes.md").write_text("mine")
    assert call(run / "results.json", "-o", tmp_path / "notes.md").exit_code == 2
    assert call(run, "--overwrite", "--license", "mit").exit_code == 0
    assert readme.read_bytes() == written


def test_a_card_that_csekit_changed_for_a_repository_is_not_edited(run: Path) -> None:
    assert CliRunner().invoke(main, ["card", str(run)]).exit_code == 0
    readme = run / "README.md"
    card = readme.read_text(encoding="utf-8")
    changed = with_code_section(card, "org/model")
    readme.write_text(changed, encoding="utf-8")
    with pytest.raises(FileExistsError, match="edited since"):
        check_unedited(readme)
    readme.write_text(resealed(card, changed), encoding="utf-8")
    check_unedited(readme)
    assert resealed("by hand", changed) == changed


def test_mteb_s_sickr_is_named_only_for_scores_on_all_of_its_pairs(run: Path, results: dict[str, Any]) -> None:
    """The metadata named ``mteb/sickr-sts``, all 9,927 pairs of SICK, for scores on SentEval's 4,927 test pairs."""
    results["test"]["tasks"] = {"SICK-R": {"all": 56.0, "n": 4927}, "SICK-R-all": {"all": 58.0, "n": 9927}}
    write_results(run / "results.json", results, overwrite=True)
    done = CliRunner().invoke(main, ["card", str(run)])
    assert done.exit_code == 0, done.output
    entries = ModelCard.load(run / "README.md").data.eval_results
    assert {entry.dataset_type: entry.metric_value for entry in entries} == {
        "senteval-sick-r": 56.0,
        "mteb/sickr-sts": 58.0,
    }
    assert [entry.dataset_name for entry in entries] == ["SentEval SICK-R", "SICK-R-all"]


def test_scores_on_an_own_collection_are_on_the_card(run: Path, tmp_path: Path) -> None:
    """``csekit eval --retrieval FOLDER`` has a key of its own for each: ``--scores`` left them out without a word."""
    stsb = {"STS-B, 97 queries": {"metrics": {"recall@1": 60.5}, "queries": 97, "documents": 2758}}
    mine = {"mine": {"metrics": {"ndcg@10": 50.72}, "queries": 5, "documents": 20}}
    words = ["card", str(run)]
    for name, content in (("a", {"retrieval:mine": mine}), ("b", {"retrieval": stsb})):
        words += ["--scores", str(write_results(tmp_path / f"{name}.json", content))]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    card = (run / "README.md").read_text()
    assert "| mine | ndcg@10 | 50.72 |" in card and "| STS-B, 97 queries | recall@1 | 60.50 |" in card


def test_scores_on_own_pairs_and_texts_and_mteb_tasks_are_on_the_card(run: Path, tmp_path: Path) -> None:
    """Keys such as ``pairs:mine`` were left out without a word."""
    pairs = {"tasks": {"mine": {"spearman": 61.234, "pearson": 60.0, "n": 1200}}}
    topics = {"tasks": {"topics": {"accuracy": 91.5}}, "mode": "test"}
    mteb = {"name": "News", "metric": "v_measure", "main_score": 33.25, "splits": {}, "source": {}}
    content = {"pairs:mine": pairs, "classification:topics": topics, "mteb:News/en": mteb}
    scores = write_results(tmp_path / "scores.json", content)
    done = CliRunner().invoke(main, ["card", str(run), "--scores", str(scores)])
    assert done.exit_code == 0, done.output
    card = ModelCard.load(run / "README.md")
    for row in ("mine | 1,200 | Spearman | 61.23", "topics | 91.50", "News/en | v_measure | 33.25"):
        assert f"| {row} |" in card.text
    found = {(entry.dataset_name, entry.metric_type) for entry in card.data.eval_results}
    assert {("mine", "cosine_spearman"), ("topics", "accuracy")} <= found


def test_two_files_with_other_scores_of_one_suite_are_refused(run: Path, tmp_path: Path) -> None:
    """The last file won without a word."""
    transfer = {"tasks": {"MR": {"accuracy": 81.5, "seconds": {"fit": 2.0}}}, "mode": "test"}
    again = {"tasks": {"MR": {"accuracy": 81.5, "seconds": {"fit": 3.0}}}, "mode": "test"}
    other = {"tasks": {"MR": {"accuracy": 71.5}}, "mode": "test"}
    mine, others = ({"mine": {"metrics": {"ndcg@10": score}}} for score in (50.72, 40.0))
    contents = [{"transfer": transfer}, {"transfer": again}, {"transfer": other}]
    contents += [{"retrieval:mine": mine}, {"retrieval:mine": others}]
    files = [
        write_results(tmp_path / f"{name}.json", content) for name, content in zip("abcde", contents, strict=True)
    ]

    def call(*given: Path) -> Any:
        words = [word for file in given for word in ("--scores", str(file))]
        return CliRunner().invoke(main, ["card", str(run), *words])

    agreeing = call(files[0], files[1], files[3], files[3])
    assert agreeing.exit_code == 0, agreeing.output
    assert "| MR | 81.50 |" in (run / "README.md").read_text()
    for first, second, suite in ((0, 2, "transfer"), (2, 1, "transfer"), (3, 4, "retrieval of mine")):
        refused = call(files[first], files[second])
        assert refused.exit_code == 2
        told = f"{files[second]}: must not hold other scores of {suite} than {files[first]}: leave one of the two out"
        assert told in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("a: {results: none.json}", "no such results file"),
        ("a: {scores: []}", "a: results is missing"),
        ("a: {results: x, licence: mit}", "'licence' is no field"),
        ("- a", "must be a mapping"),
        ("a: mit", "must be a mapping"),
        ("a: [", "not a YAML file"),
    ],
)
def test_a_listing_that_cannot_be(tmp_path: Path, entry: str, told: str) -> None:
    (tmp_path / "cards.yaml").write_text(entry)
    with pytest.raises((ValueError, FileNotFoundError), match=told):
        listed_cards(tmp_path / "cards.yaml")


def test_the_section_of_a_repository_with_code(results: dict[str, Any]) -> None:
    card = render_card(results, "m")
    changed = with_code_section(card, "m")
    assert 'AutoModel.from_pretrained("m", trust_remote_code=True)' in changed
    assert "SentenceTransformer" not in changed
    assert changed.split("## Scores")[1] == card.split("## Scores")[1]
    assert with_code_section("written by hand", "m") == "written by hand"


HOSTILE = "<script>alert(1)</script> [x](javascript:alert(2)) `code` | *cell*\n# title"


def test_a_card_shows_what_it_is_given_and_runs_none_of_it(tmp_path: Path) -> None:
    """The command; a corpus, a backbone and settings with HTML, a link, code, a table's cell and a line break."""
    run = {
        "method": "simcse",
        "backbone": HOSTILE,
        "seed": 1,
        "corpus": {"name": HOSTILE, "used": 30},
        "config": {"pooling": "cls", "prompt_template": HOSTILE},
        "arguments": {HOSTILE: HOSTILE},
        "test": {"tasks": {HOSTILE: {"all": 5.0}}, "text_form": HOSTILE},
    }
    write_results(tmp_path / "run.json", run)
    found = CliRunner().invoke(
        main, ["card", str(tmp_path / "run.json"), "-o", str(tmp_path / "card.md"), "--name", HOSTILE]
    )
    assert found.exit_code == 0, found.output
    card = ModelCard.load(tmp_path / "card.md")
    text = re.sub(r"(?s)```.*?\n```", "", card.text)  # what is in code has no effect
    text = re.sub("`[^`\n]*`", "", text.replace("\\`", ""))
    assert "<script" not in text
    assert "](javascript" not in text
    assert "\n# title" not in card.text
    assert card.data.model_name == HOSTILE
    for line in card.text.splitlines():
        if line.startswith("| &lt;script"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 3, "one cell more than the head has"


def test_imports_of_a_card_are_names(tmp_path: Path) -> None:
    run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "config": {"pooling": "cls"}}
    write_results(tmp_path / "run.json", {**run, "arguments": {}, "imports": ["os\nos.remove('x')"]})
    found = CliRunner().invoke(main, ["card", str(tmp_path / "run.json"), "-o", str(tmp_path / "card.md")])
    assert found.exit_code == 2
    assert "run.json: imports must be names of modules" in found.output


def test_a_pooling_that_csekit_has_not_makes_no_snippet(tmp_path: Path) -> None:
    """Regression: the snippet of an unknown pooling took the first token."""
    run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "arguments": {}}
    for pooling in ("max", ""):
        write_results(tmp_path / "run.json", {**run, "config": {"pooling": pooling}}, overwrite=True)
        found = CliRunner().invoke(main, ["card", str(tmp_path / "run.json"), "-o", str(tmp_path / "card.md")])
        assert found.exit_code == 2, found.output
        assert "run.json: config.pooling must be one of 'cls', 'mean', " in found.output
        assert f"got {pooling!r}" in found.output
        assert not (tmp_path / "card.md").exists()


@pytest.mark.parametrize("command", ["card", "report"])
def test_a_score_that_is_no_number_is_not_compared(command: str, tmp_path: Path) -> None:
    """Regression: a dev score of null ended in a traceback."""
    run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "arguments": {}}
    scores = {"dev_spearman": float("nan")}
    dev = {"worse_than_untrained": True, "metric": "dev_spearman", "before": scores, "after": scores}
    write_results(tmp_path / "run.json", {**run, "config": {"pooling": "cls"}, "dev": dev})
    output = tmp_path / ("card.md" if command == "card" else "page.html")
    found = CliRunner().invoke(main, [command, str(tmp_path / "run.json"), "-o", str(output)])
    assert found.exit_code == 0, found.output
    assert "nan" not in output.read_text(encoding="utf-8").lower().split()


@pytest.mark.parametrize("name", ["run.json", "other.json", "card"])
def test_a_card_replaces_no_results_file(name: str, tmp_path: Path) -> None:
    """Regression: ``csekit card run.json -o run.json`` replaced the results by the card."""
    run = {"method": "simcse", "backbone": "b", "seed": 1, "corpus": {"name": "c"}, "arguments": {}}
    for file in ("run.json", "other.json"):
        write_results(tmp_path / file, {**run, "config": {"pooling": "cls"}})
    before = [(tmp_path / file).read_bytes() for file in ("run.json", "other.json")]
    found = CliRunner().invoke(main, ["card", str(tmp_path / "run.json"), "-o", str(tmp_path / name)])
    assert found.exit_code == 2, found.output
    assert f"--output must be a card, README.md or NAME.md, got {tmp_path / name}" in found.output
    assert [(tmp_path / file).read_bytes() for file in ("run.json", "other.json")] == before
