"""An option that has no effect in the chosen mode is refused before anything is read, not ignored."""

from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"CSEKIT_DATA": "nowhere"})


CARD = ("card", "cards.yaml")
ENCODE = ("encode", "IN.parquet", "-m", "MODEL", "-o", "OUT.parquet", "--engine", "ray")
EXPORT = ("export", "MODEL", "-o", "OUT", "--format", "sentence-transformers")
LABELLED = ("geometry", "MODEL", "--labelled", "a.tsv")
STSB = ("geometry", "MODEL", "--data_dir", "DATA")
MINE = ("mine", "a.tsv", "--model", "MODEL", "-o", "out.jsonl")
NEIGHBORS = ("neighbors", "A", "B", "--corpus", "texts.txt")
PAIRS = ("pairs", "a.jsonl", "-o", "out.jsonl", "--kind")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*CARD, "--license", "mit"), "--license is for the card of a run: write it into the entries of cards.yaml"),
        ((*CARD, "--language", "en"), "--language is for the card of a run"),
        (
            (*CARD, "--scores", "a.json", "--scores", "b.json"),
            "--scores is for the card of a run: write it into the entries of cards.yaml, got a.json b.json\n",
        ),
        (
            (*CARD, "--dataset", "me/x"),
            "--dataset is for the card of a run: write it into the entries of cards.yaml, as datasets, got me/x\n",
        ),
        (
            (*CARD, "-o", "a.md"),
            "--output is for the card of a run: an entry NAME of cards.yaml is the card NAME.md beside it, got a.md\n",
        ),
        ((*ENCODE, "--chunk_rows", "9"), "--chunk_rows is not for --engine ray"),
        ((*ENCODE, "--dtype", "float16"), "--dtype is not for --engine ray"),
        ((*ENCODE, "--shard", "1/2"), "--shard is not for --engine ray"),
        (("merge", "OUT.parquet", "--keep"), "--keep is for the shards of an array"),
        ((*EXPORT, "--opset", "19"), "--opset is for --format onnx, got 19"),
        ((*EXPORT, "--data_dir", "DATA"), "--data_dir is for --format onnx"),
        ((*EXPORT, "--int8"), "--int8 is for --format onnx"),
        ((*LABELLED, "--split", "dev"), "--split must be left out with --labelled"),
        ((*LABELLED, "--threshold", "3"), "--threshold must be left out with --labelled"),
        ((*LABELLED, "--no_clustering"), "--no_clustering must be left out with --labelled"),
        ((*LABELLED, "--text_form", "raw"), "--text_form must be left out with --labelled"),
        ((*LABELLED, "--data_dir", "DATA"), "--data_dir must be left out with --labelled"),
        ((*LABELLED, "--colour", "clusters"), "--colour needs --picture NAME.png, got clusters"),
        ((*LABELLED, "--points", "0", "--perplexity", "5"), "--perplexity is for the map"),
        ((*LABELLED, "--point_clusters", "0"), "--point_clusters must be at least 1, got 0"),
        ((*STSB, "--text_column", "x"), "--text_column needs --labelled"),
        ((*STSB, "--no_clustering", "--seed", "7"), "--seed has no effect with --no_clustering, got 7"),
        ((*STSB, "--title", "mine"), "--title needs --output"),
        ((*STSB, "--overwrite"), "--overwrite needs --output"),
        ((*MINE, "--guide_margin", "0.1"), "--guide_margin needs --guide"),
        ((*MINE, "--guide_pooling", "cls"), "--guide_pooling needs --guide"),
        ((*NEIGHBORS, "--query", "a dog", "--sample", "3"), "--sample is for drawn queries"),
        ((*NEIGHBORS, "--queries", "q.txt", "--seed", "3"), "--seed is for drawn queries"),
        ((*PAIRS, "spans", "--unit", "line"), "--unit is for passages, got --kind spans"),
        ((*PAIRS, "title", "--spans", "3"), "--spans is for --kind spans, got 3"),
        ((*PAIRS, "neighbors", "--title_field", "t"), "--title_field is for --kind title"),
        (("push", "RUN", "me/x", "--custom_code", "--no_training"), "--no_training has no effect with --custom_code"),
        (("report", "RUN", "--sentences", "9"), "--sentences needs --corpus"),
        (("report", "RUN", "--pooling", "cls"), "--pooling needs --corpus"),
    ],
)
def test_an_option_without_effect_is_refused(
    words: tuple[str, ...], told: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("a dog\na cat\n")
    found = run(*words)
    assert found.exit_code == 2
    assert found.output.startswith(f"error: {told}") and found.output.count("\n") == 1


def test_data_of_the_environment_are_no_option(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*LABELLED).output == "error: a.tsv: no such file\n"
