import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation import clustering, read_results, sts_data, suites, transfer_data
from csekit.evaluation.results import read_similarities, write_results
from csekit.modeling import SimCSEModel


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"CSEKIT_DATA": None})


@pytest.fixture
def small_data(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setattr(sts_data, "COUNTS", {"STS15": {"belief": 4, "images": 4}})
    year = tmp_path / "data/STS/STS15-en-test"
    year.mkdir(parents=True)
    (year / "STS.input.belief.txt").write_text("a dog\ta cat\na man\ta woman\nred\tred\nthe tree\tthe house\n")
    (year / "STS.gs.belief.txt").write_text("1\n2\n5\n0\n")
    (year / "STS.input.images.txt").write_text("sings\tplays\nblue\tred\nfast .\tslow .\ta\na ball\tball\n")
    (year / "STS.gs.images.txt").write_text("1\n2\n3\n4\n")
    monkeypatch.setattr(transfer_data, "COUNTS", {"CR": {"CR/custrev.pos": 12, "CR/custrev.neg": 12}})
    (tmp_path / "data/CR").mkdir()
    (tmp_path / "data/CR/custrev.pos").write_text("".join(f"a dog runs {'in ' * i}\n" for i in range(12)))
    (tmp_path / "data/CR/custrev.neg").write_text("".join(f"the cat was {'on ' * i}\n" for i in range(12)))
    return tmp_path / "data"


def test_eval_prints_a_table_and_writes_results(tmp_path: Path, tiny_folder: Path, small_data: Path) -> None:
    output = tmp_path / "tiny.json"
    common = ("--tasks", "STS15", "--data_dir", small_data, "--output", output, "--device", "cpu", "--no_progress")
    found = run("eval", tiny_folder, "--pooling", "mean", *common)
    assert found.exit_code == 0, found.output
    for words in ("mean weighted by pairs", "  belief", "14 distinct sentences, 0 cut"):
        assert words in found.output
    content = read_results(output)
    encoder = content["run"]["encoder"]
    assert (encoder["name"], encoder["pooling"]) == ("tiny-bert", "mean")
    assert content["test"]["tasks"]["STS15"]["n"] == 8
    assert str(tmp_path) not in output.read_text()
    assert run("eval", tiny_folder, "--pooling", "mean", *common).exit_code == 0  # the same run again
    other = run("eval", tiny_folder, "--pooling", "cls", *common)
    assert other.exit_code == 2
    assert "another run" in other.output
    assert run("eval", tiny_folder, "--pooling", "cls", "--overwrite", *common).exit_code == 0
    compared = run("compare", output, output, "--resamples", "20")
    assert compared.exit_code == 0
    assert "+0.00" in compared.output
    assert "1.0000" in compared.output
    assert f"A: {output}; B: {output}" in compared.output.splitlines()


def test_sets_of_the_hub_are_recorded_as_raw_text(tmp_path: Path, tiny_folder: Path, monkeypatch: Any) -> None:
    """The suite's settings said "tokenized", the option's default."""
    rows = [{"sentence1": text, "sentence2": "a dog", "score": i} for i, text in enumerate(("a cat", "red", "a dog"))]
    monkeypatch.setattr(sts_data, "HUB_DATASETS", {"STS15": ("mteb/sts15-sts", "test", 3)})
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: rows)
    output, other = tmp_path / "hub.json", tmp_path / "tokenized.json"
    common = ("eval", tiny_folder, "--pooling", "mean", "--tasks", "STS15", "--device", "cpu", "--no_progress")
    found = run(*common, "--data_dir", "hub", "--output", output)
    assert found.exit_code == 0 and "raw text, 3 distinct sentences" in found.output, found.output
    content = read_results(output)
    assert content["suites"]["test"]["settings"] == {"tasks": ["STS15"], "text_form": "raw"}
    assert content["test"]["text_form"] == "raw"
    assert run(*common, "--data_dir", "hub", "--output", output).exit_code == 0  # the same run again
    write_results(other, {**content, "test": {**content["test"], "text_form": "tokenized"}}, read_similarities(output))
    mixed = run("compare", output, other)
    assert mixed.exit_code == 2
    assert "the same text form of STS15, got 'raw' in hub.json and 'tokenized' in tokenized.json" in " ".join(
        mixed.output.split()
    )


def test_the_default_tasks_on_the_hub_are_those_that_it_has(tiny_folder: Path, monkeypatch: Any) -> None:
    """SICK-R, which the Hub has with other pairs alone, was refused as an unknown name."""
    rows = [{"sentence1": text, "sentence2": "a dog", "score": i} for i, text in enumerate(("a cat", "red", "a dog"))]
    six = {name: ("mteb", "test", 3) for name in sts_data.HUB_DATASETS if name.startswith("STS") and "dev" not in name}
    monkeypatch.setattr(sts_data, "HUB_DATASETS", six)
    monkeypatch.setattr("csekit.evaluation.suites.HUB_DATASETS", six)
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: rows)
    found = run("eval", tiny_folder, "--pooling", "mean", "--data_dir", "hub", "--device", "cpu", "--no_progress")
    assert found.exit_code == 0, found.output
    assert found.output.startswith("not scored, since the Hub does not have it in the papers' form: SICK-R\n")
    assert all(f"\n{name} " in found.output for name in six)


def test_suites_share_one_file_and_a_broken_one_is_found_before_encoding(
    tmp_path: Path, tiny_folder: Path, small_data: Path, request: pytest.FixtureRequest
) -> None:
    output = tmp_path / "tiny.json"
    common = ("--data_dir", small_data, "--output", output, "--device", "cpu", "--no_progress")
    model = ("eval", tiny_folder, "--pooling", "mean")
    assert run(*model, "--tasks", "STS15", "--title", "tiny, mean", *common).exit_code == 0
    found = run(*model, "--tasks", "CR", *common)
    assert found.exit_code == 0, found.output
    assert "accuracy of the chosen C" in found.output
    content = read_results(output)
    assert content["test"]["tasks"]["STS15"]["n"] == 8
    assert content["transfer"]["tasks"]["CR"]["n"] == 24
    assert content["title"] == "tiny, mean"
    assert content["similarities"]["file"] == "tiny.similarities.npz"
    other = run(*model, "--tasks", "CR", "--seed", "7", *common)
    assert other.exit_code == 2
    assert "'seed': 1111" in other.output
    (small_data / "CR/custrev.neg").write_text("the cat\n")
    request.getfixturevalue("no_encoder")
    broken = run(*model, "--tasks", "STS15,CR", *common)
    assert broken.exit_code == 2
    assert "custrev.neg: expected 12 examples, found 1" in broken.output


@pytest.mark.parametrize(
    ("options", "described"),
    [
        (["--pooling", "static"], {"pooling": "static", "class": "StaticTokens"}),
        (["--pooling", "mean", "--whiten", "task", "--whiten_dim", "3"], {"pooling": "mean"}),
        (["--pooling", "cls", "--whiten", "CORPUS"], {"pooling": "cls"}),
    ],
)
def test_baselines(
    tmp_path: Path, tiny_folder: Path, small_data: Path, options: list[str], described: dict[str, str]
) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a dog\nthe cat runs\nblue house\n")
    words = [str(corpus) if word == "CORPUS" else word for word in options]
    output = tmp_path / "b.json"
    common = ("--tasks", "STS15,CR", "--mode", "dev", "--data_dir", small_data, "--device", "cpu", "--no_progress")
    found = run("eval", tiny_folder, *words, *common, "--output", output)
    assert found.exit_code == 0, found.output
    encoder = read_results(output)["run"]["encoder"]
    assert encoder.items() >= described.items()
    fitted = {"static": None, "mean": "the task's own sentences", "cls": "corpus.txt"}[encoder["pooling"]]
    assert encoder.get("whitening", {}).get("fitted_on") == fitted
    assert read_results(output)["transfer"]["mode"] == "dev"


def test_encoders_whose_weights_lie_in_training_do_not_mix(tmp_path: Path, tiny_folder: Path) -> None:
    """A run whose pooling has no plain form has no weights in its root. Its results were those of any such encoder."""
    pairs, output, folder = tmp_path / "pairs.tsv", tmp_path / "scores.json", tmp_path / "run"
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(f"the man {i}\ta dog {i}\t{i}\n" for i in range(5)))
    words = ("eval", folder, "--pairs", pairs, "--output", output, "--device", "cpu", "--no_progress")
    for seed, status in ((0, 0), (0, 0), (1, 2)):
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(seed)
        model = SimCSEModel.from_backbone(tiny_folder, pooling="first_last_mean", projector="tanh")
        for parameter in model.backbone.parameters():
            parameter.data.add_(0.01 * torch.randn(parameter.shape))
        model.save_pretrained(folder / "training")
        shutil.copy(tiny_folder / "tokenizer.json", folder / "training")
        shutil.copy(tiny_folder / "tokenizer_config.json", folder / "training")
        found = run(*words)
        assert found.exit_code == status, found.output
    assert "holds the results of another run" in " ".join(found.output.split())
    assert list(read_results(output)["run"]["weights"]) == ["training/model.safetensors"]


@pytest.mark.parametrize("more", [(), ("--whiten", "task"), ("--truncate_dim", "8")])
def test_another_tokenizer_beside_the_same_weights_is_another_run(
    tmp_path: Path, tiny_folder: Path, more: tuple[str, ...]
) -> None:
    """Regression: scores of a folder whose tokenizer was changed were added to those of the earlier one."""
    output, file = tmp_path / "a.json", tiny_folder / "tokenizer.json"
    written = tmp_path / ("a-8.json" if "8" in more else "a.json")
    for name in ("one", "two"):
        (tmp_path / f"{name}.tsv").write_text(
            "sentence1\tsentence2\tscore\na dog\ta cat\t1\nthe man\ta cat\t2\nred\ta dog\t3\n"
        )
    words = ("eval", tiny_folder, "--pooling", "mean", "--output", output, "--device", "cpu", "--no_progress", *more)
    assert run(*words, "--pairs", tmp_path / "one.tsv").exit_code == 0
    content = json.loads(written.read_text())
    vocabulary = json.loads(file.read_text())
    words_of = vocabulary["model"]["vocab"]
    words_of["dog"], words_of["cat"] = words_of["cat"], words_of["dog"]
    file.write_text(json.dumps(vocabulary))
    refused = run(*words, "--pairs", tmp_path / "two.tsv")
    assert refused.exit_code == 2 and "holds the results of another run" in refused.output
    del content["run"]["tokenizer"]  # an earlier version wrote none
    written.write_text(json.dumps(content))
    assert run(*words, "--pairs", tmp_path / "two.tsv").exit_code == 0
    assert "tokenizer" in read_results(written)["run"]


def test_two_evaluations_at_once_keep_each_other_s_scores(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the one that finished last wrote the file without the other's scores."""
    output, score = tmp_path / "a.json", suites.score_pair_file
    for name in ("one", "two"):
        (tmp_path / f"{name}.tsv").write_text(
            "sentence1\tsentence2\tscore\na dog\ta cat\t1\nthe man\ta cat\t2\nred\ta dog\t3\n"
        )
    words = ("eval", tiny_folder, "--pooling", "mean", "--output", output, "--device", "cpu", "--pairs")

    def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(suites, "score_pair_file", score)
        assert run(*words, tmp_path / "two.tsv").exit_code == 0
        return score(*given)

    monkeypatch.setattr(suites, "score_pair_file", meanwhile)
    assert run(*words, tmp_path / "one.tsv").exit_code == 0
    assert {"pairs:one", "pairs:two"} <= read_results(output).keys()
    assert set(read_similarities(output)) == {"one", "two"}


def _modules_of(folder: Path, modes: dict[str, Any], further: list[str]) -> None:
    """Write the modules of a SentenceTransformer: an encoder, a pooling and further ones without weights."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", **{f"{i}_{kind}": kind for i, kind in enumerate(further, 2)}}
    for path in kinds:
        (folder / path).mkdir(exist_ok=True)
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    config = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": False, **modes}
    (folder / "1_Pooling/config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("changed", ["layers", "lower case", "another's pooling"])
def test_other_modules_beside_the_same_weights_are_another_run(
    tmp_path: Path, tiny_folder: Path, changed: str
) -> None:
    """Regression: scores of a folder whose modules were changed were added to those of the earlier ones."""
    output, pairs = tmp_path / "a.json", tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\nthe man\ta cat\t2\nred\ta dog\t3\n")
    foreign = changed == "another's pooling"
    if foreign:
        pytest.importorskip("sentence_transformers")
    _modules_of(tiny_folder, {f"pooling_mode_{'max' if foreign else 'mean'}_tokens": True}, [])
    words = ("eval", tiny_folder, "--pairs", pairs, "--output", output, "--device", "cpu", "--no_progress")
    for _ in range(2):
        found = run(*words)
        assert found.exit_code == 0, found.output
    content = json.loads(output.read_text())
    if changed == "layers":
        _modules_of(tiny_folder, {"pooling_mode_mean_tokens": True}, ["Normalize"])
    elif changed == "lower case":
        (tiny_folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    else:
        _modules_of(tiny_folder, {"pooling_mode_weightedmean_tokens": True}, [])
    refused = run(*words)
    assert refused.exit_code == 2 and "holds the results of another run" in refused.output
    del content["run"]["further"]  # an earlier version wrote none
    output.write_text(json.dumps(content))
    assert run(*words).exit_code == 0
    assert "further" in read_results(output)["run"]


def test_other_weights_of_the_hub_are_another_run(
    tmp_path: Path, tiny_folder: Path, tiny_bert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: scores of a model that was changed on the Hub were added to those of the earlier one."""
    snapshot, output = tmp_path / "hub" / "models--me--small" / "snapshots" / "0", tmp_path / "a.json"
    shutil.copytree(tiny_folder, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.tsv").write_text(
            "sentence1\tsentence2\tscore\na dog\ta cat\t1\nthe man\ta cat\t2\nred\ta dog\t3\n"
        )
    words = ("eval", "me/small", "--pooling", "mean", "--output", output, "--device", "cpu", "--no_progress")
    for name in ("one", "two"):
        found = run(*words, "--pairs", tmp_path / f"{name}.tsv")
        assert found.exit_code == 0, found.output
    next(tiny_bert.parameters()).data += 1
    tiny_bert.save_pretrained(snapshot)
    refused = run(*words, "--pairs", tmp_path / "three.tsv")
    assert refused.exit_code == 2 and "holds the results of another run" in refused.output
    content = json.loads(output.read_text())
    del content["run"]["tensors"]  # an earlier version wrote none
    output.write_text(json.dumps(content))
    assert run(*words, "--pairs", tmp_path / "three.tsv").exit_code == 0


def test_ranks_over_a_corpus(tmp_path: Path, tiny_folder: Path, small_data: Path) -> None:
    corpus, output = tmp_path / "corpus.txt", tmp_path / "ranks.json"
    corpus.write_text("a dog\nthe cat runs\nblue house\na red ball\nthe man\n")
    common = ("eval", tiny_folder, "--pooling", "mean", "--rank_corpus", corpus, "--device", "cpu", "--no_progress")
    options = ("--tasks", "STS15,CR", "--mode", "dev", "--data_dir", small_data, "--output", output)
    found = run(*common, "--rank_references", "4", "--rank_share", "0.5", *options)
    assert found.exit_code == 0, found.output
    encoder = read_results(output)["run"]["encoder"]
    assert encoder["ranks"].items() >= {"corpus": "corpus.txt", "references": 4, "share": 0.5}.items()
    for _ in range(2):  # a file holds six digits: the second call took itself for another run's
        thirds = run(*common, "--rank_share", str(1 / 3), *options[:-1], tmp_path / "thirds.json")
        assert thirds.exit_code == 0, thirds.output
    cut = run(*common, "--truncate_dim", "4", *options)
    assert cut.exit_code == 2
    assert "--truncate_dim must be left out with --rank_corpus" in cut.output


@pytest.mark.parametrize("option", ["--whiten", "--rank_corpus"])
def test_another_corpus_of_the_same_name_is_another_run(
    tmp_path: Path, tiny_folder: Path, small_data: Path, option: str
) -> None:
    """Results files named the corpus, not its content: those of two corpora were mixed in one file."""
    common = ("--tasks", "STS15", "--data_dir", small_data, "--output", tmp_path / "a.json", "--no_progress")
    for folder, content, status in (("a", "a dog", 0), ("again", "a dog", 0), ("b", "the cat", 2)):
        (tmp_path / folder).mkdir()
        corpus = tmp_path / folder / "corpus.txt"
        corpus.write_text(f"{content}\nthe cat runs\nblue house\na red ball\n")
        found = run("eval", tiny_folder, "--pooling", "mean", "--device", "cpu", option, corpus, *common)
        assert found.exit_code == status, found.output
    assert "holds the results of another run" in " ".join(found.output.split())


def test_own_files_need_no_data_dir(tmp_path: Path, tiny_folder: Path) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    pairs, train, test = (tmp_path / name for name in ("dev.tsv", "train.tsv", "test.tsv"))
    pairs.write_text("sentence1\tsentence2\tscore\na dog\ta dog runs\t1\na man\tred house\t0\nblue\tblue ball\t1\n")
    rows = [f"the {'dog runs' if i % 2 else 'blue house'} {'is ' * (i // 2)}\t{i % 2}\n" for i in range(24)]
    train.write_text("text\tlabel\n" + "".join(rows))
    test.write_text("text\tlabel\n" + "".join(rows[:6]))
    beir = tmp_path / "tiny"
    beir.mkdir()
    documents = ["a dog runs", "red house", "blue ball"]
    (beir / "corpus.jsonl").write_text(
        "".join(f'{{"_id": "d{i}", "text": "{text}"}}\n' for i, text in enumerate(documents))
    )
    (beir / "queries.jsonl").write_text('{"_id": "q", "text": "the dog"}\n')
    (beir / "qrels.tsv").write_text("q\td0\t1\n")
    output = tmp_path / "own.json"
    common = ("--output", output, "--device", "cpu", "--no_progress")
    model = ("eval", tiny_folder, "--pooling", "mean")
    found = run(*model, "--pairs", pairs, "--retrieval", beir, "--classification", train, test, *common)
    assert found.exit_code == 0, found.output
    content = read_results(output)
    names = ["pairs:dev", "retrieval:tiny", f"classification:{tmp_path.name}"]
    assert content["suites"].keys() == set(names)
    assert content["pairs:dev"]["tasks"]["dev"].keys() >= {"spearman", "ap", "accuracy"}
    assert content["retrieval:tiny"]["tiny"]["queries"] == 1
    assert content[names[2]]["tasks"][tmp_path.name]["n"] == 6
    assert str(tmp_path.parent) not in output.read_text()
    compared = run("compare", output, output, "--resamples", "20")
    assert compared.exit_code == 0, compared.output
    words = run("eval", "tfidf", "--pairs", pairs, "--retrieval", beir, "--classification", train, test)
    assert words.exit_code == 0, words.output
    train.write_text("text\tlabel\na dog\t0\nred\t1\n")
    few = run("eval", "tfidf", "--classification", train, test)
    assert few.exit_code == 2
    assert "classes of at least 10 examples" in few.output
    assert run("eval", "tfidf", "--classification", train, test, "--classification_dev", test).exit_code == 0


def test_a_template_and_prompts_may_begin_with_a_slash(tmp_path: Path, tiny_folder: Path) -> None:
    """They were taken for a path of the machine once all was scored, and the scores were lost."""
    pairs, output = tmp_path / "dev.tsv", tmp_path / "own.json"
    pairs.write_text("sentence1\tsentence2\tscore\na dog\ta dog runs\t1\na man\tred house\t0\nblue\tblue ball\t1\n")
    template = "/{sentence}/{mask}"
    common = ("--pairs", pairs, "--output", output, "--device", "cpu", "--no_progress")
    for _ in range(2):  # the second call adds to the file
        found = run("eval", tiny_folder, "--pooling", "mask", "--prompt_template", template, *common)
        assert found.exit_code == 0, found.output
        assert read_results(output)["run"]["encoder"]["prompt_template"] == template
    described = {"encoder": {"prompts": {"query": "/query:"}}}
    assert read_results(write_results(tmp_path / "prompts.json", {"run": described}))["run"] == described


@pytest.mark.parametrize("kind", ["pairs", "retrieval", "classification", "STS15"])
def test_other_data_of_the_same_name_never_replace_scores(
    tmp_path: Path, tiny_folder: Path, small_data: Path, kind: str
) -> None:
    """A second ``dev.tsv``, or a second folder ``tiny``, took the place of the first one's scores without a word."""
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    output = tmp_path / "own.json"
    words: dict[str, tuple[str | Path, ...]] = {
        "pairs": ("--pairs", "NEXT/dev.tsv"),
        "retrieval": ("--retrieval", "NEXT/tiny"),
        "classification": ("--classification", "NEXT/t/train.tsv", "NEXT/t/train.tsv"),
        "STS15": ("--tasks", "STS15", "--data_dir", small_data),
    }
    for name, animal, status in (("en", "dog", 0), ("same", "dog", 0), ("de", "cat", 2)):
        folder = tmp_path / name
        for place in (folder / "tiny", folder / "t"):
            place.mkdir(parents=True)
        rows = "".join(f"a {animal}\tthe house {'is ' * i}\t{i}\n" for i in range(4))
        (folder / "dev.tsv").write_text(f"sentence1\tsentence2\tscore\n{rows}")
        (folder / "tiny/corpus.jsonl").write_text(f'{{"_id": "d", "text": "the {animal}"}}\n')
        (folder / "tiny/queries.jsonl").write_text('{"_id": "q", "text": "red"}\n')
        (folder / "tiny/qrels.tsv").write_text("q\td\t1\n")
        rows = "".join(f"the {animal} {'is ' * i}\t{i % 2}\n" for i in range(20))
        (folder / "t/train.tsv").write_text(f"text\tlabel\n{rows}")
        (small_data / "STS/STS15-en-test/STS.gs.belief.txt").write_text(f"1\n2\n5\n{int(animal == 'cat')}\n")
        chosen = (str(word).replace("NEXT", str(folder)) for word in words[kind])
        before = output.read_bytes() if status else b""
        found = run("eval", "tfidf", *chosen, "--output", output, "--no_progress")
        assert found.exit_code == status, found.output
    assert re.search(r"holds \S+ of other data, whose checksum differs", found.output)
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("model", "words", "told"),
    [
        ("tfidf", ("--prompt_template", "A {sentence}"), "--max_length must be left out for 'tfidf'"),
        ("tfidf", ("--max_length", "3"), "--max_length must be left out for 'tfidf'"),
        (
            "MODEL",
            ("--pooling", "static", "--prompt_template", "A {sentence}"),
            "must be left out with --pooling static",
        ),
    ],
)
def test_options_that_a_baseline_does_not_read_are_refused(
    small_data: Path, tiny_folder: Path, model: str, words: tuple[str, ...], told: str
) -> None:
    path = tiny_folder if model == "MODEL" else model
    found = run("eval", path, "--tasks", "STS15", "--data_dir", small_data, "--no_progress", *words)
    assert found.exit_code == 2 and told in " ".join(found.output.split()), found.output


def test_words_alone_need_no_model(small_data: Path) -> None:
    found = run("eval", "tfidf", "--tasks", "STS15,CR", "--data_dir", small_data, "--no_progress")
    assert found.exit_code == 0
    assert "tfidf: transfer" in found.output
    assert "100.00" in found.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS15"], "pooling must be one of 'cls'"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS1"], "got 'STS1'"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS15", "--text_form", "x"], "text_form must be"),
        (["eval", "MODEL", "--data_dir", "MODEL", "--tasks", "STS15"], "holds no STS/"),
        (["eval", "MODEL", "--tasks", "STS15"], "--data_dir (or the environment variable CSEKIT_DATA)"),
        (["eval", "./nowhere", "--data_dir", "DATA", "--tasks", "STS15"], "no such folder"),
        (["eval", "MODEL", "--data_dir", "DATA", "--output", "a.txt"], "must end in .json"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "CR", "--mode", "x"], "mode must be 'test' or 'dev'"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "CR", "--whiten_dim", "3"], "--whiten_dim needs --whiten"),
        (["eval", "MODEL", "--pairs", "a.tsv", "--rank_share", "0.5"], "--rank_share needs --rank_corpus, a file of"),
        (["eval", "tfidf", "--data_dir", "DATA", "--tasks", "CR", "--pooling", "cls"], "left out for 'tfidf'"),
        (["eval", "MODEL", "--data_dir", "hub", "--tasks", "CR"], "data_dir must be a folder"),
        (["eval", "MODEL", "--data_dir", "hub", "--tasks", "all"], "--data_dir must be a folder for transfer"),
        (["eval", "MODEL", "--data_dir", "hub", "--tasks", "SICK-R"], "SICK-R is not on the Hub; SICK-R-all"),
        (
            ["eval", "MODEL", "--data_dir", "hub", "--text_form", "tokenized"],
            "--text_form must be raw with --data_dir",
        ),
        (
            ["eval", "MODEL", "--data_dir", "DATA", "--tasks", "CR", "--text_form", "raw"],
            "--text_form is for sts, dev",
        ),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS15", "--mode", "dev"], "--mode is for transfer"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS15", "--seed", "7"], "--seed is for transfer"),
        (["eval", "MODEL", "--data_dir", "DATA", "--tasks", "STS15", "--title", "mine"], "--title needs --output"),
        (["compare", "a.json", "b.json"], "no such results file"),
        (
            ["encode", "DATA", "--model", "MODEL", "--pooling", "cls", "-o", "out.npy"],
            "data: must be a file, got a folder",
        ),
        (
            ["encode", "/dev/null", "--model", "MODEL", "--pooling", "cls", "-o", "out.npy"],
            "/dev/null: must be a file, got a pipe or a device",
        ),
        (["eval", "MODEL", "--classification_dev", "a.tsv"], "--classification_dev needs --classification"),
        (["eval", "MODEL", "--pairs", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (
            ["eval", "MODEL", "--pairs", "nowhere.tsv", "--data_dir", "DATA"],
            "--data_dir is for --tasks, none of which",
        ),
        (["eval", "MODEL", "--pairs", "nowhere.tsv", "--tasks", "CR"], "--data_dir (or the environment variable"),
    ],
)
def test_errors_are_one_line(tiny_folder: Path, small_data: Path, arguments: list[str], message: str) -> None:
    names = {"MODEL": str(tiny_folder), "DATA": str(small_data)}
    found = run(*(names.get(argument, argument) for argument in arguments))
    assert found.exit_code == 2
    assert message in found.output
    assert found.output.startswith("error: ")
    assert found.output.count("\n") == 1


def test_geometry_prints_tables_and_writes_results(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sts_data, "COUNTS", {"STS-B": {"test": 4}})
    monkeypatch.setattr(clustering, "TITLES", 60)
    stsb, titles = tmp_path / "data/STS/STSBenchmark", tmp_path / "data/stackoverflow"
    for folder in (stsb, titles):
        folder.mkdir(parents=True)
    pairs = ["a dog\ta cat", "a man\ta woman", "red\tblue red", "the tree\tthe house"]
    lines = [f"a\tb\tc\td\t{score}\t{pair}" for score, pair in zip((1, 2, 5, 4.5), pairs, strict=True)]
    (stsb / "sts-test.csv").write_text("\n".join(lines))
    words = ["dog", "cat", "tree"]
    (titles / "title_StackOverflow.txt").write_text(
        "".join(f"the {words[i % 3]} {'is ' * (i // 3)}\n" for i in range(60))
    )
    (titles / "label_StackOverflow.txt").write_text("".join(f"{i % 3 + 1}\n" for i in range(60)))
    output = tmp_path / "results/evaluation/geometry/tiny.json"
    common = ("geometry", tiny_folder, "--pooling", "mean", "--data_dir", tmp_path / "data", "--device", "cpu")
    found = run(*common, "--no_clustering", "--output", output, "--title", "tiny, mean")
    assert found.exit_code == 0, found.output
    assert "2 pairs" in found.output
    content = read_results(output)
    assert content["title"] == "tiny, mean"
    assert content["geometry"]["positives"] == 2
    assert "clustering" not in content
    assert content["run"]["weights"].keys() == {"model.safetensors"}
    assert str(tmp_path) not in output.read_text()
    drawn = run("figures", "cosine-by-rating", "--results", tmp_path / "results", "--output", tmp_path)
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "cosine-by-rating.png").is_file()
    wrong = run(*common, "--threshold", "5")
    assert wrong.exit_code == 2
    assert wrong.output.startswith("error: threshold must leave pairs above it, got 5")
    missing = run(*common[:4], "--data_dir", tmp_path, "--device", "cpu")
    assert missing.exit_code == 2
    assert missing.output.count("\n") == 1


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from csekit.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'torch', 'transformers', 'datasets', 'scipy', 'numpy', 'matplotlib'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert all(name in found.stdout for name in ("eval", "compare", "geometry", "figures"))


def test_compare_needs_no_torch() -> None:
    code = "import sys, csekit.evaluation.compare\nassert not {'torch', 'transformers'} & sys.modules.keys()"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_version() -> None:
    assert run("--version").output.startswith("csekit ")
