"""``csekit geometry --labelled``: any labelled file as clusters and as a picture."""

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation import read_results, write_results

LABELS = ("neg", "pos")
TEXTS = [f"the {('dog', 'tree')[i % 2]} {'is ' * (i // 2)}" for i in range(40)]


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"CSEKIT_DATA": None})


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / "reviews.tsv"
    rows = [f"{LABELS[i % 2]}\t{text}" for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(["label\ttext", *rows]) + "\n")
    return path


def command(folder: Path, file: Path, *more: Any) -> list[Any]:
    common = ["geometry", folder, "--pooling", "mean", "--labelled", file, "--perplexity", "5", "--device", "cpu"]
    return [*common, *more]


def test_a_labelled_file_gives_scores_and_a_picture(tmp_path: Path, tiny_folder: Path, reviews: Path) -> None:
    output = tmp_path / "results/evaluation/labelled/tiny.json"
    files = ("--output", output, "--picture", tmp_path / "tiny.png", "--points", "30")
    found = run(*command(tiny_folder, reviews, *files))
    assert found.exit_code == 0, found.output
    content = read_results(output)
    scores = content["clustering"]
    assert scores["set"] == "reviews"
    assert (scores["titles"], scores["labels"], scores["map"]["clusters"]) == (40, 2, 2)
    assert scores["map"]["names"] == list(LABELS)
    assert len(scores["map"]["points"]) == 30
    assert -1 <= scores["silhouette"] <= 1
    assert "silhouette of the labels (30 texts)" in found.output
    assert "geometry" not in content
    assert Image.open(tmp_path / "tiny.png").format == "PNG"
    drawn = run("figures", "labelled-labels", "--results", tmp_path / "results", "--output", tmp_path / "pictures")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "pictures/labelled-labels.png").is_file()


def test_two_encoders_of_one_title_do_not_share_a_picture(tmp_path: Path) -> None:
    """The title is the folder's last part: of two runs ``encoder`` a picture showed one, without a word."""
    folder = tmp_path / "results/evaluation/geometry"
    scores = {"alignment": 0.2, "uniformity": -2.0, "mean_cosine": 0.5, "effective_rank": 9.0, "spearman": 70.0}
    for name, title in (("a", "encoder"), ("b", "encoder")):
        write_results(folder / f"{name}.json", {"title": title, "geometry": {"set": "STS-B test", **scores}})
    words = ("figures", "alignment-uniformity", "--results", tmp_path / "results", "--output", tmp_path)
    found = run(*words)
    assert found.exit_code == 2, found.output
    assert "b.json: title must not be that of a.json, got 'encoder'" in " ".join(found.output.split())
    write_results(folder / "b.json", {"title": "other", "geometry": {"set": "STS-B test", **scores}}, overwrite=True)
    assert run(*words).exit_code == 0


@pytest.mark.parametrize(("name", "values"), [("threshold", (4.0, 3.0)), ("text_form", ("raw", "tokenized"))])
def test_encoders_in_a_picture_are_measured_alike(tmp_path: Path, name: str, values: tuple[Any, Any]) -> None:
    """Alignment of the pairs above 4 stood beside that of the pairs above 3, though a table refuses them."""
    scores = {"alignment": 0.2, "uniformity": -2.0, "mean_cosine": 0.5, "effective_rank": 9.0, "spearman": 70.0}
    for value in values:
        geometry = {"set": "STS-B test", "threshold": 4.0, "text_form": "raw", **scores, name: value}
        write_results(tmp_path / f"{value}.json", {"title": str(value), "geometry": geometry})
    found = run("figures", "alignment-uniformity", "--results", tmp_path, "--output", tmp_path)
    assert found.exit_code == 2, found.output
    assert f"must be of one {name} to share a picture, got" in " ".join(found.output.split())


def test_a_parquet_file_gives_the_same_scores(tmp_path: Path, tiny_folder: Path, reviews: Path) -> None:
    table = pyarrow.table({"review": TEXTS, "stars": [LABELS[i % 2] for i in range(len(TEXTS))]})
    pyarrow.parquet.write_table(table, tmp_path / "reviews.parquet")
    columns = ("--text_column", "review", "--label_column", "stars")
    first = run(*command(tiny_folder, reviews, "--output", tmp_path / "a.json"))
    second = run(*command(tiny_folder, tmp_path / "reviews.parquet", *columns, "--output", tmp_path / "b.json"))
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    assert read_results(tmp_path / "a.json")["clustering"] == read_results(tmp_path / "b.json")["clustering"]


def test_an_encoder_whose_weights_lie_in_another_file_is_another_run(
    tmp_path: Path, tiny_folder: Path, tiny_bert: Any, reviews: Path
) -> None:
    """A results file named the weights of ``*.safetensors`` alone: without them it was replaced by any encoder's."""
    output = tmp_path / "a.json"
    (tiny_folder / "model.safetensors").unlink()
    for shift, status in ((0, 0), (0, 0), (0.1, 2)):
        for parameter in tiny_bert.parameters():
            parameter.data.add_(shift * torch.randn(parameter.shape))
        torch.save(tiny_bert.state_dict(), tiny_folder / "pytorch_model.bin")
        words = [word for word in command(tiny_folder, reviews) if word not in ("--perplexity", "5")]
        found = run(*words, "--points", "0", "--output", output)
        assert found.exit_code == status, found.output
    assert "holds the results of another run" in " ".join(found.output.split())
    assert list(read_results(output)["run"]["weights"]) == ["pytorch_model.bin"]


def test_the_results_of_another_run_are_told_before_the_work(
    tmp_path: Path, tiny_folder: Path, reviews: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts were encoded, clustered and mapped first, and the scores were lost."""
    output = tmp_path / "a.json"
    assert run(*command(tiny_folder, reviews, "--output", output)).exit_code == 0
    assert run(*command(tiny_folder, reviews, "--output", output)).exit_code == 0  # the same run again
    before = output.read_bytes()
    monkeypatch.setattr("csekit.evaluation.clustering.cluster_texts", None)
    other = tmp_path / "other" / reviews.name
    other.parent.mkdir()
    other.write_text(reviews.read_text() + "pos\ta dog\n")
    for words in ((reviews, "--seed", "7"), (other,)):
        found = run(*command(tiny_folder, *words, "--output", output))
        assert found.exit_code == 2
        assert "holds the results of another run" in " ".join(found.output.split()), found.output
    assert output.read_bytes() == before
    output.write_text("{}")
    found = run(*command(tiny_folder, reviews, "--output", output))
    assert found.exit_code == 2 and "not a results file" in " ".join(found.output.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--text_column", "review"], "text must be one of the columns ['label', 'text'], got 'review'"),
        (["--picture", "a.jpg"], "--picture must end in .png, got 'a.jpg'"),
        (["--picture", "a.png", "--points", "0"], "--picture needs a map, got --points 0"),
        (["--colour", "red"], "--colour must be 'labels' or 'clusters', got 'red'"),
        (["--point_clusters", "41"], "points must be 0 or at least point_clusters (41), got 40"),
    ],
)
def test_errors_are_one_line(tiny_folder: Path, reviews: Path, more: list[str], message: str) -> None:
    found = run(*command(tiny_folder, reviews, *more))
    assert found.exit_code == 2
    assert found.output == f"error: {found.output.strip().removeprefix('error: ')}\n"
    assert message in found.output


@pytest.mark.parametrize("option", ["--output", "--picture"])
def test_an_output_that_cannot_be_written_is_told_first(tiny_folder: Path, reviews: Path, option: str) -> None:
    """It was told once everything was encoded, clustered and mapped, and the scores were lost."""
    name = "a.json" if option == "--output" else "a.png"
    found = run(*command(tiny_folder, reviews, option, reviews / name))
    assert found.exit_code == 2
    assert found.output.startswith("error: ") and f"{reviews} is a file" in " ".join(found.output.split())
    assert "V-measure" not in found.output


def test_a_file_needs_two_labels(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("text\tlabel\na\tx\nb\tx\n")
    found = run(*command(tiny_folder, tmp_path / "one.tsv"))
    assert found.exit_code == 2
    assert "one.tsv, field label ('label'): must hold at least two labels, got 1" in found.output


@pytest.mark.parametrize("broken", ["no column", "empty text", "null label", "label of another type", "no parquet"])
def test_a_broken_parquet_file_is_named(tiny_folder: Path, tmp_path: Path, broken: str) -> None:
    path = tmp_path / "a.parquet"
    rows = {
        "empty text": {"text": ["a", ""], "label": [0, 1]},
        "null label": {"text": ["a", "b"], "label": [0, None]},
        "label of another type": {"text": ["a", "b"], "label": [0.5, 1.5]},
    }
    pyarrow.parquet.write_table(pyarrow.table(rows.get(broken, {"words": ["a"], "label": [0]})), path)
    if broken == "no parquet":
        path.write_text("text")
    found = run(*command(tiny_folder, path))
    messages = {
        "no column": "text must be one of the columns",
        "empty text": "row 2, field text: must not be empty",
        "null label": "row 2, field label: must not be empty, got None",
        "label of another type": "row 1, field label: must be text or a whole number, got 0.5",  # "must not be empty"
    }
    assert found.exit_code == 2
    assert found.output.startswith(f"error: {path}")
    assert messages.get(broken, "not readable as parquet") in found.output


def test_labels_and_titles_may_begin_with_a_slash(tmp_path: Path, tiny_folder: Path, reviews: Path) -> None:
    """They were taken for paths of the machine, and everything that was computed was lost."""
    reviews.write_text(reviews.read_text().replace("neg\t", "/r/python\t"))
    output = tmp_path / "tiny.json"
    found = run(*command(tiny_folder, reviews, "--output", output, "--points", "30", "--title", "/x"))
    assert found.exit_code == 0, found.output
    content = read_results(output)
    assert content["title"] == "/x"
    assert content["clustering"]["map"]["names"] == ["/r/python", "pos"]


def test_too_many_labels_for_a_picture_are_refused_before_the_encoder_is_loaded(tmp_path: Path) -> None:
    """They were refused after encoding and t-SNE."""
    path = tmp_path / "many.tsv"
    path.write_text("label\ttext\n" + "".join(f"l{i % 60}\tthe dog {i}\n" for i in range(120)))
    found = run(*command(tmp_path / "no-model", path, "--picture", tmp_path / "many.png"))
    assert found.exit_code == 2
    assert "labels must be at most 49 to have a colour and a marker each, got 60" in found.output


def labelled_results(folder: Path, title: str, checksum: str, names: list[str]) -> None:
    drawn = {"names": names, "points": [f"{i}.0 1.0 {i % len(names)} 0" for i in range(120)]}
    scores = {"set": "train", "titles": 120, "clusters": 2, "v_measure": 5.0, "accuracy": 5.0, "checksum": checksum}
    write_results(folder / f"{title}.json", {"title": title, "clustering": {**scores, "map": drawn}}, overwrite=True)


@pytest.mark.parametrize(
    ("checksum", "names", "told"),
    [("2", ["neg", "pos"], "other contents in a.json and b.json"), ("1", ["bad", "good"], "several lists of labels")],
)
def test_files_of_one_name_and_other_contents_do_not_share_a_picture(
    tmp_path: Path, checksum: str, names: list[str], told: str
) -> None:
    """Two files ``train.tsv`` counted as one: the labels of one stood at the points of the other."""
    labelled_results(tmp_path, "a", "1", ["neg", "pos"])
    labelled_results(tmp_path, "b", checksum, names)
    found = run("figures", "labelled-labels", "--results", tmp_path, "--output", tmp_path / "pictures")
    assert found.exit_code == 2, found.output
    assert told in " ".join(found.output.split())


def test_a_picture_with_too_many_labels_is_left_out(tmp_path: Path) -> None:
    """It ended the drawing of all pictures."""
    labelled_results(tmp_path, "a", "1", [str(i) for i in range(60)])
    found = run("figures", "--results", tmp_path, "--output", tmp_path / "pictures")
    assert found.exit_code == 0, found.output
    assert "more than 49 labels" in " ".join(found.output.split())
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["labelled-clusters.png"]
