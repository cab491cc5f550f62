"""Scores by dimension: every size of every encoder, as a results file, a table and a picture."""

import json
from pathlib import Path
from typing import Any

import pytest

from csekit.encoding import load_encoder
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import load_beir
from csekit.modeling import SimCSEModel
from experiments.dimensions import main


@pytest.fixture
def encoder(tmp_path: Path, tiny_folder: Path) -> Path:
    from transformers import AutoTokenizer

    model = SimCSEModel.from_backbone(tiny_folder, truncate_dim=4)
    return model.export(tmp_path / "nested", AutoTokenizer.from_pretrained(tiny_folder))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, texts in (("corpus", ["the dog", "a cat", "the red house"]), ("queries", ["a red house", "dog"])):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": text}) + "\n" for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\tc2\t1\nq1\tc0\t1\n")
    return tmp_path


def test_it_scores_every_size(encoder: Path, data: Path, capsys: Any) -> None:
    pytest.importorskip("pytrec_eval", reason="needs the extra retrieval")
    output, picture = data / "results" / "sizes.json", data / "sizes.png"
    words = [f"nested={encoder}", "--sizes", "2", "8", "--data_dir", str(data), "--tasks", "none", "--device", "cpu"]
    assert main([*words, "--collections", "tiny", "--output", str(output), "--picture", str(picture)]) == 0
    found = json.loads(output.read_text())["encoders"]["nested"]["scores"]["tiny, nDCG@10"]
    cut = load_encoder(encoder, device="cpu", truncate_dim=2)
    expected = evaluate_retrieval(cut, load_beir(data / "tiny")).metrics["ndcg@10"]
    assert found["2"] == pytest.approx(expected, abs=1e-3)
    assert list(found) == ["2", "8"]
    assert f"| tiny, nDCG@10 | nested | {found['2']:.2f} | {found['8']:.2f} |" in capsys.readouterr().out
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one", "--sizes", "2"], "encoders must be different NAME=PATH, got one"),
        (["a=x", "a=y", "--sizes", "2"], "encoders must be different NAME=PATH, got a=x a=y"),
        (["a=x", "--sizes", "4", "2"], "--sizes must ascend, got 4 2"),
    ],
)
def test_words_that_are_not_allowed(tmp_path: Path, words: list[str], message: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--data_dir", str(tmp_path), "--output", str(tmp_path / "x.json")])
    assert message in capsys.readouterr().err
