"""The script reads everything, prints a row a collection, and writes a file that makes the table."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from csekit.evaluation import sts_data
from csekit.evaluation.results import read_results
from experiments.tables.render import update

ROOT = Path(__file__).parents[2]


@pytest.fixture
def main() -> Callable[[list[str]], None]:
    spec = importlib.util.spec_from_file_location("score_retrieval", ROOT / "experiments" / "score_retrieval.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sts_data, "COUNTS", {**sts_data.COUNTS, "STS-B": {"test": 3}})
    rows = [("the dog runs", "a dog runs", 5.0), ("a red ball", "the red ball", 5.0), ("a tree", "a guitar", 1.0)]
    (tmp_path / "STS/STSBenchmark").mkdir(parents=True)
    lines = [f"g\tf\ty\t{i}\t{score}\t{a}\t{b}\n" for i, (a, b, score) in enumerate(rows)]
    (tmp_path / "STS/STSBenchmark/sts-test.csv").write_text("".join(lines))
    (tmp_path / "tiny").mkdir()
    for name, texts in (("corpus", ["the dog", "a cat", "the red house"]), ("queries", ["a red house", "dog"])):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": text}) + "\n" for i, text in enumerate(texts)]
        (tmp_path / "tiny" / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "tiny" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc2\t1\nq1\tc0\t1\n")
    return tmp_path


def test_it_writes_what_the_table_needs(
    main: Callable[[list[str]], None], data: Path, tiny_folder: Path, capsys: Any
) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    output = data / "results" / "evaluation" / "retrieval" / "tiny.json"
    argv = [str(tiny_folder), "--data_dir", str(data), "--collections", "tiny", "--output", str(output)]
    main([*argv, "--pooling", "mean", "--title", "tiny, mean", "--device", "cpu"])
    results = read_results(output)
    assert list(results["retrieval"]) == sorted(["STS-B, 2 queries", "STS-B, 4 queries", "tiny"])
    assert results["run"]["encoder"]["pooling"] == "mean" and results["run"]["weights"].keys() == {"model.safetensors"}
    assert "ndcg@10" in capsys.readouterr().out
    page = update("<!-- table:evaluation/retrieval -->\n<!-- end table -->\n", data / "results")
    assert "| tiny, mean |" in page and "tiny: nDCG@10" in page
    with pytest.raises(SystemExit, match="error: folder must be a folder in BEIR's format"):
        main([*argv, "--pooling", "mean", "--collections", "nowhere"])
    with pytest.raises(SystemExit, match="error: pooling must be one of"):
        main(argv)
