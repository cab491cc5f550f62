"""``csekit report`` on runs with encoders, and the page in a real browser."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding.provenance import weights_of
from csekit.evaluation import SearchData, build_report, read_results, read_run, write_report, write_results
from csekit.evaluation.report.page import quantise

SENTENCES = ["the man plays guitar", "the dog runs fast", "a red ball", "the house is slow", "a woman sings", "a tree"]


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def results_of(method: str, factor: float) -> dict[str, Any]:
    losses = {"loss/contrastive": factor} | ({} if method == "simcse" else {"loss/reconstruction": 2 * factor})
    return {
        "method": method,
        "log": [{"step": s, "loss": sum(losses.values()) / s, **losses} for s in (1, 2, 3)],
        "test": {"tasks": {"STS12": {"all": 50 * factor}}, "avg": None, "text_form": "raw"},
        "environment": {"python": "3.11.0"},
    }


@pytest.fixture
def runs(tmp_path: Path, tiny_folder: Path) -> list[Path]:
    folders = []
    for name, factor in (("simcse", 1.0), ("informin", 1.25)):
        folders.append(tmp_path / "runs" / name)
        shutil.copytree(tiny_folder, folders[-1])
        write_results(folders[-1] / "results.json", results_of(name, factor))
    return folders


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(SENTENCES) + "\n")
    return path


def test_a_page_about_two_runs(tmp_path: Path, runs: list[Path], corpus: Path) -> None:
    words = (*runs, "--corpus", corpus, "--pooling", "mean", "--sentences", "5", "--device", "cpu", "--no_progress")
    (runs[0] / "figures").mkdir()
    (runs[0] / "figures" / "cosine_by_rating.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    found = run(*words, "-o", tmp_path / "report.html", "--title", "Two runs")
    assert found.exit_code == 0 and re.search(r"written: .*report.html \(0\.\d\d MB\)", found.output), found.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(text)
    assert [side["label"] for side in data["runs"]] == ["simcse", "informin"] and data["runs"][0]["size"] == 32
    assert len(data["sentences"]) == 5
    assert set(data["sentences"]) < set(SENTENCES)
    assert "drawn from 6" in page
    assert "<title>Two runs</title>" in page
    assert 'alt="cosine by rating"' in page
    assert str(tmp_path) not in page
    again = run(*words, "-o", tmp_path / "again.html", "--title", "Two runs")
    assert again.exit_code == 0 and (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_the_pooling_is_for_folders_that_name_none(tmp_path: Path, runs: list[Path], corpus: Path) -> None:
    """It went to every folder, and one that names another pooling refused it."""
    (runs[0] / "1_Pooling").mkdir()
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (runs[0] / "modules.json").write_text(json.dumps(modules))
    (runs[0] / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}')
    words = (*runs, "--corpus", corpus, "--pooling", "cls", "--sentences", "5", "--device", "cpu", "--no_progress")
    found = run(*words, "-o", tmp_path / "report.html")
    assert found.exit_code == 0, found.output


def test_results_files_alone(tmp_path: Path, runs: list[Path], corpus: Path) -> None:
    output = tmp_path / "report.html"
    alone = ("--label", "A", "--label", "B", "-o", output)
    found = run(*(folder / "results.json" for folder in runs), *alone, "--corpus", corpus)
    assert found.exit_code == 0 and "A: no encoder, so no nearest neighbours" in found.output
    assert "B: no encoder here, so no neighbours." in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "r.txt"], "output must end in .html"),
        (["--label", "x", "--label", "x"], "--label must name each of the 2 runs, differently"),
        (["--figures", "nowhere.png"], "nowhere.png: no such figure"),
        (["--corpus", "nowhere.txt"], "nowhere.txt: no such file"),
        (["--corpus", "CORPUS", "--sentences", "1"], "--sentences must be at least 2, got 1"),
        (["--corpus", "CORPUS"], "pooling must be one of"),
        (["--max_megabytes", "0.001"], "more than --max_megabytes 0.001"),
        (["--max_megabytes", "nan"], "more than --max_megabytes nan"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, runs: list[Path], corpus: Path, arguments: list[str], message: str
) -> None:
    words = [str(corpus) if word == "CORPUS" else word for word in arguments]
    found = run(*runs, "-o", tmp_path / "report.html", *words)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


@pytest.fixture
def page_file(tmp_path: Path) -> tuple[Path, list[str], dict[str, np.ndarray]]:
    """A page about two runs and 300 sentences, one of them and one label hostile."""
    runs = []
    for method, factor, label in (("simcse", 1.0, "first"), ("informin", 1.25, HOSTILE)):
        write_results(tmp_path / f"{method}.json", results_of(method, factor))
        runs.append(read_run(tmp_path / f"{method}.json", label))
    sentences = [f"sentence {i} of {['cats', 'dogs', 'trees'][i % 3]}" for i in range(299)] + [HOSTILE]
    rng = np.random.default_rng(0)
    embeddings = {run.label: rng.normal(size=(300, size)) for run, size in zip(runs, (24, 40), strict=True)}
    path = tmp_path / "report.html"
    write_report(path, build_report(runs, search=SearchData("s.txt", sentences, embeddings, 300)))
    return path, sentences, embeddings


@pytest.fixture
def opened(browser: Any, page_file: tuple[Path, Any, Any]) -> Iterator[Any]:
    """The page, opened at 1280 pixels with the network off; at the end nothing was asked for, nothing complained."""
    complaints: list[str] = []
    requests: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(page_file[0].as_uri())
    yield page
    assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0
    assert complaints == [] and requests == [page_file[0].as_uri()]
    context.close()


def shown(page: Any, side: int) -> list[tuple[str, str]]:
    rows = page.locator("#answers > div").nth(side).locator("li")
    return [tuple(row.locator("span").all_text_contents()) for row in rows.all()]


def expected(embeddings: np.ndarray, sentences: list[str], query: int, k: int) -> list[tuple[str, str]]:
    x = quantise(embeddings).astype(float)
    cosines = x @ x[query] / np.linalg.norm(x, axis=1) / np.linalg.norm(x[query])
    order = [i for i in np.argsort(-cosines, kind="stable") if i != query][:k]
    return [(f"{cosines[i]:.3f}", sentences[i]) for i in order]


def test_the_page_in_a_browser(opened: Any, page_file: tuple[Path, list[str], dict[str, np.ndarray]]) -> None:
    _, sentences, embeddings = page_file
    assert opened.locator("#table-sts ~ .scroll").first.locator("tbody tr").count() == 4  # two runs, two papers' rows
    assert opened.locator("#curves svg polyline").count() == 2 + 2 + 1  # sum and contrastive of both, reconstruction
    assert opened.locator("#settings table").count() == 2
    for side, matrix in enumerate(embeddings.values()):
        assert shown(opened, side) == expected(matrix, sentences, 0, 10)
    opened.fill("#filter", "17 OF trees")
    assert opened.locator("#sentences button").all_text_contents() == ["sentence 17 of trees"] + [
        f"sentence {n}17 of trees" for n in (1, 2) if (100 * n + 17) % 3 == 2
    ]
    opened.select_option("#count", "5")
    for side, matrix in enumerate(embeddings.values()):
        assert shown(opened, side) == expected(matrix, sentences, 17, 5)
    opened.fill("#filter", "script")
    opened.locator("#sentences button").click()
    assert opened.text_content("#query") == HOSTILE
    assert opened.locator("#answers h3").nth(1).text_content() == HOSTILE
    opened.fill("#filter", "no such sentence")
    assert opened.locator("#sentences li").count() == 0 and "0 match" in opened.text_content("#matches")
    assert opened.text_content("#query") == HOSTILE
    opened.click("#random")
    chosen = sentences.index(opened.text_content("#query"))
    assert shown(opened, 0) == expected(embeddings["first"], sentences, chosen, 5)


def test_nothing_is_wider_than_the_screen(opened: Any) -> None:
    for width in (1280, 390):
        opened.set_viewport_size({"width": width, "height": 800})
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        for figure in opened.locator("#curves figure").all():
            box = figure.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["width"] >= 300
    overlaps = """() => [...document.querySelectorAll('#curves svg')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
        return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => a.left < b.right && b.left < a.right
            && a.top < b.bottom && b.top < a.bottom).map(b => [a.left, a.top, b.left, b.top])); })"""
    assert opened.evaluate(overlaps) == []


def test_the_dev_scores_fit_on_a_phone(browser: Any, tmp_path: Path) -> None:
    """Two of the four columns were out of sight."""
    scores = {"dev_spearman": 64.36, "alignment": 0.27, "uniformity": -2.66, "effective_rank": 90.34}
    write_results(tmp_path / "demo.json", results_of("simcse", 1.0) | {"dev": {"before": scores, "after": scores}})
    write_report(tmp_path / "report.html", build_report([read_run(tmp_path / "demo.json", "demo")]))
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "report.html").as_uri())
    room = page.locator("#table-dev ~ .scroll").first
    assert room.locator("thead th").all_text_contents() == [
        "run", "dev set", "alignment", "uniformity", "effective rank",
    ]  # fmt: skip
    assert room.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    page.close()


def test_names_with_markup_are_text(tmp_path: Path) -> None:
    """A corpus, a backbone, a task, a term of the loss and settings whose names are HTML."""
    name = "<script>alert(1)</script><a href='javascript:alert(2)'>\"&"
    content = {
        **results_of("simcse", 1.0),
        "backbone": name,
        "corpus": {"name": name},
        "config": {name: name},
        "test": {"tasks": {name: {"all": 5.0}}, "text_form": name},
        "log": [
            {"step": 1, "loss": 1.0, f"loss/{name}": 1.0, name: 2.0},
            {"step": 2, "loss": 1.0, f"loss/{name}": 1.0},
        ],
    }
    write_results(tmp_path / "run.json", content)
    assert run(tmp_path / "run.json", "-o", tmp_path / "a.html", "--title", name, "--label", name).exit_code == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "alert(1)" in page
    assert "<script" not in page
    assert "<a href='java" not in page


def test_scores_of_an_encoder_that_was_replaced_are_left_out(tmp_path: Path, runs: list[Path]) -> None:
    """A run was trained again with ``--overwrite``. Files of ``csekit eval`` beside it are of the encoder before."""
    content = {"transfer": {"tasks": {"MR": {"accuracy": 81.5}}, "avg": None}, "run": {"weights": weights_of(runs[0])}}
    write_results(runs[0] / "transfer.json", content)
    assert "transfer" in read_run(runs[0], "a").content
    (weights,) = runs[0].glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    after = read_run(runs[0], "a")
    assert "transfer" not in after.content
    assert "transfer.json is left out: its scores are those of other weights" in after.missing
    shutil.copytree(runs[1], tmp_path / "other")
    found = run(runs[0], "-o", tmp_path / "report.html")
    assert found.exit_code == 0 and "transfer.json is left out" in " ".join(found.output.split()), found.output


def test_a_file_of_scores_that_cannot_be_read_is_named(tmp_path: Path, runs: list[Path]) -> None:
    """Regression: a cut results file, or one of a later format, beside the run's own was passed over in silence."""
    (runs[0] / "transfer.json").write_text('{"format": 1, "transfer": {"tasks": {"MR"')
    (runs[0] / "later.json").write_text('{"format": 2, "transfer": {}}')
    (runs[0] / "loop.json").symlink_to("loop.json")
    found = run(runs[0], "-o", tmp_path / "report.html")
    assert found.exit_code == 0, found.output
    assert "simcse: transfer.json is left out, which may hold scores: not a JSON file: " in found.output
    assert "simcse: later.json is left out: format must be 1, got 2" in found.output
    assert "simcse: loop.json is left out, which may hold scores: " in found.output


def test_scores_of_a_second_file_are_named_and_test_mode_wins(tmp_path: Path, runs: list[Path]) -> None:
    """transfer-dev.json comes before transfer.json, whose scores were dropped without a word."""

    def transfer(mode: str, accuracy: float) -> dict[str, Any]:
        return {"transfer": {"tasks": {"MR": {"accuracy": accuracy}}, "avg": None, "mode": mode}}

    write_results(runs[0] / "transfer-dev.json", transfer("dev", 70.0))
    write_results(runs[0] / "transfer.json", transfer("test", 81.5))
    write_results(runs[0] / "again.json", {"test": results_of("simcse", 1.0)["test"]})  # scores that are shown
    found = run(runs[0], "-o", tmp_path / "report.html")
    said = " ".join(found.output.split())
    assert "the transfer scores of transfer-dev.json are left out: those of transfer.json are shown" in said
    assert said.count("left out") == 1
    assert "81.5" in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_results(runs[0] / "other.json", {"test": {"tasks": {"STS13": {"all": 5.0}}, "avg": None}})
    told = "the test scores of other.json are left out: those of results.json are shown"
    assert told in read_run(runs[0], "a").missing


@pytest.mark.parametrize(
    ("option", "named"),
    [("--truncate_dim 4", "truncate_dim"), ("--whiten task", "whitening"), ("--rank_corpus CORPUS", "ranks")],
)
def test_scores_with_an_option_of_the_evaluation_are_not_the_encoder_s(
    tmp_path: Path, runs: list[Path], corpus: Path, option: str, named: str
) -> None:
    """Scores of cut, whitened or ranked embeddings stood in the run's row, and on its card."""
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\na man\tred\t2\nthe tree\ta ball\t5\n")
    common = ("--pooling", "mean", "--pairs", pairs, "--device", "cpu", "--no_progress")
    for added, status in (([], 0), (option.replace("CORPUS", str(corpus)).split(), 2)):
        words = ["eval", runs[0], *common, *added, "--output", runs[0] / "more.json"]
        assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
        (written,) = runs[0].glob("more*.json")
        left_out = [text for text in read_run(runs[0], "a").missing if "left out" in text]
        told = f"{written.name} is left out: its scores are those of another {named}"
        assert left_out == ([told] if status else [])
        setting = {"backbone": "b", "seed": 1, "corpus": {"name": "c"}, "config": {"pooling": "mean"}, "arguments": {}}
        write_results(runs[0] / "results.json", results_of("simcse", 1.0) | setting, overwrite=True)
        card = CliRunner().invoke(main, ["card", str(runs[0]), "--scores", str(written)])
        assert card.exit_code == status, card.output
        assert (f"they are of another {named}" in " ".join(card.output.split())) == bool(status)
        written.unlink()


def test_own_pairs_are_shown(tmp_path: Path, runs: list[Path]) -> None:
    """As ``csekit eval RUN --pairs FILE --output RUN/pairs.json`` writes them: the page said "no scores"."""
    rows = {
        "dev": "a dog\ta cat\t1\na man\tred\t2\nthe tree\ta ball\t5\n",
        "labelled": "a dog\ta cat\t1\na man\tred\t0\nthe tree\ta ball\t1\n",
    }
    files = [tmp_path / f"{name}.tsv" for name in rows]
    for file, text in zip(files, rows.values(), strict=True):
        file.write_text(f"sentence1\tsentence2\tscore\n{text}")
    for folder, other in zip(runs, ("5", "4"), strict=True):
        for i, file in enumerate(files):
            file.write_text(file.read_text().replace("\t5\n", f"\t{other}\n"))
            words = ["eval", folder, "--pooling", "mean", "--pairs", file, "--output", folder / f"own-{i}.json"]
            assert CliRunner().invoke(main, [str(word) for word in (*words, "--no_progress")]).exit_code == 0
    assert run(*runs, "-o", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(">Pairs: labelled<") == 1 and page.count(">Pairs: dev<") == 2, "other scores are other data"
    assert "average precision" in page and "Scores of the cosine × 100; 3 pairs." in page
    found = read_results(runs[0] / "own-1.json")["pairs:labelled"]["tasks"]["labelled"]
    assert f"<td>{found['ap']:.2f}</td>" in page.replace(' class="best"', "")
    alone = read_run(runs[0] / "own-0.json", "b")
    assert "no scores" not in alone.missing and list(alone.content["pairs"]) == ["dev"]
    content = {"pairs:dev": {"tasks": {"dev": {"spearman": "high"}}}}
    (tmp_path / "broken.json").write_text(json.dumps({"format": 1, **content}))
    broken = run(tmp_path / "broken.json", "-o", tmp_path / "report.html")
    assert broken.exit_code == 2
    assert "broken.json, pairs:dev: tasks.dev.spearman must be a number" in " ".join(broken.output.split())


def test_retrieval_on_an_own_collection_is_shown(tmp_path: Path, runs: list[Path]) -> None:
    """As ``csekit eval RUN --retrieval FOLDER --output RUN/retrieval.json`` writes it, which the page advises."""
    scores = {"mine": {"metrics": {"ndcg@10": 50.72}, "queries": 5, "documents": 20}}
    write_results(runs[0] / "retrieval.json", {"retrieval:mine": scores, "run": {"weights": weights_of(runs[0])}})
    assert run(runs[0], "-o", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Retrieval: mine" in page and "50.72" in page
    alone = read_run(runs[0] / "retrieval.json", "b")
    assert "no scores" not in alone.missing and alone.content["retrieval"] == scores
    stsb = {"STS-B, 97 queries": {"metrics": {"recall@1": 60.5}, "queries": 97, "documents": 2758}}
    write_results(runs[0] / "a.json", {"retrieval": stsb, "run": {"weights": weights_of(runs[0])}})
    assert read_run(runs[0], "a").content["retrieval"] == stsb | scores, "the second file's were dropped"


def test_scores_of_mteb_are_shown(tmp_path: Path, runs: list[Path]) -> None:
    """As ``csekit eval RUN --tasks mteb:NAME --output RUN/mteb.json`` writes them: the page had no table."""
    scores = {"name": "News", "metric": "v_measure", "main_score": 33.25, "splits": {}, "source": {}}
    write_results(runs[0] / "mteb.json", {"mteb:News": scores, "run": {"weights": weights_of(runs[0])}})
    assert run(runs[0], "-o", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "News, v_measure" in page and "33.25" in page


def test_own_classification_is_shown(tmp_path: Path, runs: list[Path]) -> None:
    """As ``csekit eval RUN --classification TRAIN TEST --output RUN/topics.json`` writes it: the page had no table."""
    rows = [f"{text}\t{label}\n" for label, texts in (("x", SENTENCES[:3]), ("y", SENTENCES[3:])) for text in texts]
    (tmp_path / "topics").mkdir()
    files = [tmp_path / "topics" / f"{side}.tsv" for side in ("train", "test")]
    for file, count in zip(files, (5, 2), strict=True):
        file.write_text("text\tlabel\n" + "".join(rows * count))
    words = ["--pooling", "mean", "--no_progress", "--classification", *files, "--output"]
    for folder, mode in ((runs[0], "test"), (runs[1], "test"), (runs[1], "dev")):
        call = ["eval", folder, "--mode", mode, *words, folder / f"topics-{mode}.json"]
        done = CliRunner().invoke(main, [str(word) for word in call])
        assert done.exit_code == 0, done.output
    assert run(*runs, "-o", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count(">Classification: topics<") == 1 and page.count(">Classification: topics, dev mode<") == 1
    assert "Accuracy × 100 of a logistic regression on the frozen embeddings; 12 rows." in page
    found = read_results(runs[0] / "topics-test.json")["classification:topics"]["tasks"]["topics"]
    assert f"<td>{found['accuracy']:.2f}</td>" in page.replace(' class="best"', "")
    assert "no scores" not in read_run(runs[0] / "topics-test.json", "b").missing
    empty = read_run(write_results(tmp_path / "odd.json", {"pairs": "x", "own classification": "y"}), "c")
    assert "no scores" in empty.missing and not {"pairs", "own classification"} & empty.content.keys()


def test_scores_of_a_tokenizer_that_was_changed_are_left_out(tmp_path: Path, runs: list[Path]) -> None:
    """A folder's tokenizer was changed, and its weights were not: scores of the earlier one stood in the run's row."""
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\na man\tred\t2\nthe tree\ta ball\t5\n")
    words = ["eval", runs[0], "--pooling", "mean", "--pairs", pairs, "--device", "cpu", "--no_progress"]
    words += ["--output", runs[0] / "more.json"]
    assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
    setting = {"backbone": "b", "seed": 1, "corpus": {"name": "c"}, "config": {"pooling": "mean"}, "arguments": {}}
    write_results(runs[0] / "results.json", results_of("simcse", 1.0) | setting, overwrite=True)
    (written,) = runs[0].glob("more*.json")
    file = runs[0] / "tokenizer.json"
    same = file.read_text(encoding="utf-8")
    text = f"{written.name} is left out: its scores are those of another tokenizer"
    for changed in (False, True):
        if changed:
            tokenizer = json.loads(same)
            vocabulary = tokenizer["model"]["vocab"]
            vocabulary["dog"], vocabulary["cat"] = vocabulary["cat"], vocabulary["dog"]
            file.write_text(json.dumps(tokenizer), encoding="utf-8")
        found = run(runs[0], "-o", tmp_path / "report.html")
        assert found.exit_code == 0, found.output
        assert (text in " ".join(found.output.split())) == changed
        card = CliRunner().invoke(main, ["card", str(runs[0]), "--scores", str(written)])
        assert ("they are of another tokenizer" in " ".join(card.output.split())) == changed, card.output
        assert card.exit_code == (2 if changed else 0), card.output
    content = read_results(written)
    del content["run"]["tokenizer"]  # an earlier version wrote none
    write_results(written, content, overwrite=True)
    assert "left out" not in run(runs[0], "-o", tmp_path / "report.html").output
