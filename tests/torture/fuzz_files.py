"""Damaged files of every format that a command reads: told in one line, or read as what they hold."""

import csv
import io
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

pytestmark = pytest.mark.torture
f = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fuzzing.py"))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model, sentences, scored pairs, and an empty cache."""
    folder = tmp_path_factory.mktemp("fuzz")
    f.tiny(folder / "tiny-bert")
    (folder / "texts.txt").write_text("\n".join(f.sentences(30)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)
        yield folder


# Corpora

ROWS = [{"a": text, "b": other} for text, other in zip(f.sentences(12), f.sentences(12, 1), strict=True)]


def table(sign: str, rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    quoting = csv.QUOTE_NONE if sign == "\t" else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter=sign, quoting=quoting, lineterminator="\n", escapechar="\\").writerows(rows)
    return out.getvalue().encode()


CORPORA = {
    "txt": "\n".join(row["a"] for row in ROWS).encode(),
    "csv": table(",", [["a", "b"], *([row["a"] + ', "so"', row["b"]] for row in ROWS)]),
    "tsv": table("\t", [["a", "b"], *(list(row.values()) for row in ROWS)]),
    "jsonl": "\n".join(map(json.dumps, ROWS)).encode(),
    "json": json.dumps(ROWS, indent=1).encode(),
}


def expected_rows(kind: str, data: bytes) -> int | None:
    """Return the number of rows that another strict reader finds; None where there is none for the kind."""
    text = data.decode("utf-8-sig")
    if kind == "csv":
        return len(list(csv.reader(io.StringIO(text, newline=""), strict=True))) - 1
    if kind == "tsv":
        return len(io.StringIO(text, newline=None).read().removesuffix("\n").split("\n")) - 1
    if kind == "txt":
        return len(io.StringIO(text, newline=None).read().removesuffix("\n").split("\n"))
    return len(json.loads(text)) if text.lstrip()[:1] == "[" else sum(bool(s.strip()) for s in text.split("\n"))


@pytest.mark.parametrize("kind", CORPORA)
def test_corpora(folder: Path, kind: str) -> None:
    """``check`` reads as training does, ``encode`` writes a row for each row."""
    fuzz, numbers = f.Fuzz(f"corpus {kind}"), iter(range(10**9))
    strategy = st.tuples(f.damaged(CORPORA[kind]), st.sampled_from(["check", "encode"]))

    def body(drawn: tuple[bytes, str]) -> None:
        data, command = drawn
        file = folder / f"c{next(numbers)}.{kind}"
        file.write_bytes(data)
        column = [] if kind == "txt" else ["--columns" if command == "check" else "--column", "a"]
        model = ["--model", folder / "tiny-bert"]
        out = file.with_suffix(".npy")
        if command == "encode":
            model += ["--pooling", "mean", "-o", out, "--device", "cpu", "--no_progress"]
        ended = f.csekit(command, file, *model, *column)
        wrong = ""
        if ended.code == 0:
            rows = expected_rows(kind, data)
            if command == "encode" and len(np.load(out)) != rows:
                wrong = f"{len(np.load(out))} rows of {rows}"
            if command == "check" and f" of {rows:,} rows used" not in ended.text:
                wrong = f"not {rows} rows: {ended.text.splitlines()[0]}"
        for path in (file, out, out.with_name(f"{out.name}.json")):
            path.unlink(missing_ok=True)
        fuzz.judge(ended, drawn, wrong)

    fuzz.run(strategy, body)


def test_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [row["a"] for row in ROWS], "n": list(range(12))}), sink)
    fuzz, numbers = f.Fuzz("corpus parquet"), iter(range(10**9))

    def body(data: bytes) -> None:
        file = folder / f"p{next(numbers)}.parquet"
        file.write_bytes(data)
        fuzz.judge(f.csekit("check", file, "--model", folder / "tiny-bert"), data)

    fuzz.run(f.damaged(sink.getvalue()), body)


# Scored pairs, labelled texts, labellings

PAIRS = [["sentence1", "sentence2", "score"]]
PAIRS += [[a, b, str(i % 6)] for i, (a, b) in enumerate(zip(f.sentences(9, 2), f.sentences(9, 3), strict=True))]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_dev_files(folder: Path, kind: str) -> None:
    fuzz, numbers = f.Fuzz(f"dev file {kind}"), iter(range(10**9))
    base = table("," if kind == "csv" else "\t", PAIRS)

    def body(data: bytes) -> None:
        file = folder / f"d{next(numbers)}.{kind}"
        file.write_bytes(data)
        ended = f.csekit(
            "eval", folder / "tiny-bert", "--pooling", "mean", "--pairs", file, "--device", "cpu", "--no_progress"
        )
        fuzz.judge(ended, data)

    fuzz.run(f.damaged(base), body)


def test_labelled_texts(folder: Path) -> None:
    fuzz, numbers = f.Fuzz("labelled texts"), iter(range(10**9))
    rows = [[text, "ab"[i % 2]] for i, text in enumerate(f.sentences(24, 4))]
    base = table("\t", [["text", "label"], *rows])
    (folder / "whole.tsv").write_bytes(base)

    def body(data: bytes) -> None:
        file = folder / f"l{next(numbers)}.tsv"
        file.write_bytes(data)
        fuzz.judge(f.csekit("eval", "tfidf", "--classification", folder / "whole.tsv", file, "--no_progress"), data)

    fuzz.run(f.damaged(base), body)


def test_beginnings_of_a_labelling(folder: Path) -> None:
    fuzz, out = f.Fuzz("labelling"), folder / "labels.tsv"
    words = ["label", folder / "texts.txt", "--model", folder / "tiny-bert", "--pooling", "mean", "-o", out]
    words += ["--pairs", "4", "--device", "cpu", "--no_progress"]
    begun = f.csekit(*words, typed="1\n2\nq\n")
    assert begun.code == 0, begun.text
    beside = out.with_suffix(".pairs.json")
    held, scores = json.loads(beside.read_text()), out.read_bytes()

    def body(drawn: tuple[Any, bytes]) -> None:
        f.write_json(beside, drawn[0])
        out.write_bytes(drawn[1])
        fuzz.judge(f.csekit(*words, typed="q\n"), drawn)

    fuzz.run(st.tuples(f.changed(held), st.just(scores)) | st.tuples(st.just(held), f.damaged(scores)), body)


# Results

RUN = {
    "format": 1,
    "name": "run",
    "method": "simcse",
    "backbone": "tiny-bert",
    "seed": 1,
    "positives": "dropout",
    "corpus": {"name": "texts.txt", "columns": ["text"], "rows": 30, "used": 30},
    "config": {"pooling": "cls", "prompt_template": None, "objectives": [], "temperature": 0.05},
    "arguments": {"learning_rate": 0.001},
    "dev": {
        "metric": "dev_spearman",
        "best": 50.0,
        "step": 4,
        "after": {"dev_spearman": 50.0},
        "before": {"dev_spearman": 40.0},
        "history": [{"step": 2, "dev_spearman": 45.0}, {"step": 4, "dev_spearman": 50.0}],
    },
    "before": {"tasks": {"STS12": {"all": 40.0}}, "avg": 40.0, "text_form": "raw"},
    "test": {"tasks": {"STS12": {"all": 50.0, "n": 9}}, "avg": 50.0, "text_form": "raw"},
    "transfer": {"tasks": {"MR": {"accuracy": 70.0}}, "avg": 70.0, "mode": "test"},
    "retrieval": {"scifact": {"metrics": {"ndcg@10": 30.0, "map": 20.0}, "queries": 3, "documents": 9}},
    "classification": {"banking77": {"accuracy": 60.0}},
    "clustering": {"set": "titles", "titles": 9, "clusters": 3, "v_measure": 30.0, "accuracy": 40.0},
    "geometry": {
        "set": "STS-B test",
        "alignment": 0.2,
        "uniformity": -2.0,
        "mean_cosine": 0.1,
        "effective_rank": 9.0,
        "spearman": 50.0,
    },
    "log": [{"step": 2, "loss": 1.5, "loss/contrastive": 1.5, "grad_norm": 2.0}, {"step": 4, "loss": 1.0}],
    "environment": {"python": "3.11", "versions": {"torch": "2"}},
    "seconds": {"train": 2.0, "total": 3.0},
    "overlap": {"rows": 1, "texts": 1, "filtered": False, "sets": {"STS12": {"sentences": 1, "of": 9}}},
    "title": "a run",
    "run": {"encoder": {"name": "tiny-bert", "pooling": "cls"}, "weights": {}},
    "suites": {"test": {"settings": {"tasks": ["STS12"]}, "environment": {}}},
    "imports": ["my_terms"],
}


@pytest.mark.parametrize("command", ["report", "card", "figures", "eval"])
def test_results_files(folder: Path, command: str) -> None:
    fuzz, file = f.Fuzz(f"results, {command}"), folder / "results" / "evaluation" / "geometry" / "r.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    (folder / "whole.json").write_text(json.dumps(RUN))
    (folder / "few.tsv").write_bytes(table("\t", PAIRS))
    words = {
        "report": ["report", file, folder / "whole.json", "-o", folder / "page.html", "--label", "a", "--label", "b"],
        "card": ["card", file, "-o", folder / "card.md"],
        "figures": ["figures", "alignment-uniformity", "--results", folder / "results", "--output", folder / "pics"],
        "eval": ["eval", "tfidf", "--pairs", folder / "few.tsv", "--output", file, "--no_progress"],
    }[command]

    def body(content: Any) -> None:
        f.write_json(file, content)
        fuzz.judge(f.csekit(*words), content)

    fuzz.run(f.changed(RUN), body)


def test_compared_results(folder: Path) -> None:
    from csekit.evaluation.results import similarities_path, write_results

    fuzz, file = f.Fuzz("results, compare"), folder / "compared.json"
    gold = np.arange(9) % 4.0
    write_results(file, RUN, {"STS12": (np.linspace(0, 1, 9), gold)}, overwrite=True)
    content, array = json.loads(file.read_text()), similarities_path(file).read_bytes()

    def body(drawn: tuple[Any, bytes]) -> None:
        f.write_json(file, drawn[0])
        similarities_path(file).write_bytes(drawn[1])
        fuzz.judge(f.csekit("compare", file, file, "--resamples", "5"), drawn)

    fuzz.run(st.tuples(f.changed(content), st.just(array)) | st.tuples(st.just(content), f.damaged(array)), body)


def test_states_of_a_trainer(folder: Path) -> None:
    fuzz, run = f.Fuzz("trainer state"), folder / "running"
    (run / "training").mkdir(parents=True, exist_ok=True)
    state = {"global_step": 4, "log_history": [{"step": 2, "loss": 1.5}, {"step": 2, "eval_dev_spearman": 3.0}]}

    def body(content: Any) -> None:
        f.write_json(run / "training" / "trainer_state.json", content)
        fuzz.judge(f.csekit("report", run, "-o", folder / "page.html"), content)

    fuzz.run(f.changed(state), body)


# Records of encodings


def test_records_of_an_encoding(folder: Path) -> None:
    fuzz, out = f.Fuzz("record of an encoding"), folder / "vectors.npy"
    words = ["encode", folder / "texts.txt", "--model", folder / "tiny-bert", "--pooling", "mean", "-o", out]
    words += ["--device", "cpu", "--no_progress"]
    assert f.csekit(*words, "--overwrite").code == 0
    path, whole = out.with_name("vectors.npy.json"), np.load(out)
    record = json.loads(path.read_text())

    def body(content: Any) -> None:
        np.save(out, whole)
        f.write_json(path, content)
        ended = f.csekit(*words)
        wrong = ended.code == 0 and not np.allclose(np.load(out), whole, atol=1e-5)
        fuzz.judge(ended, content, "other vectors" if wrong else "")

    fuzz.run(f.changed(record), body)


def test_records_of_shards(folder: Path) -> None:
    fuzz, out = f.Fuzz("records of shards"), folder / "parts.npy"
    words = ["encode", folder / "texts.txt", "--model", folder / "tiny-bert", "--pooling", "mean", "-o", out]
    for shard in ("1/2", "2/2"):
        assert f.csekit(*words, "--shard", shard, "--device", "cpu", "--no_progress").code == 0
    path = folder / "parts.2-of-2.npy.json"
    record = json.loads(path.read_text())

    def body(content: Any) -> None:
        f.write_json(path, content)
        ended = f.csekit("merge", out, "--keep")
        rows = len(np.load(out)) if ended.code == 0 else 30
        fuzz.judge(ended, content, "" if rows == 30 else f"{rows} rows")
        for file in (out, folder / "parts.npy.json"):
            file.unlink(missing_ok=True)

    fuzz.run(f.changed(record), body)


# Presets, listings of cards, plans

PRESET = {"method": "informin", "learning_rate": 1e-4, "columns": ["a"], "reconstruction_weight": 0.4, "seed": 3}
PRESET |= {"pooling": "cls", "max_steps": 2, "objectives": None, "import": [], "bf16": False, "output_dir": "out"}


def test_presets(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    from csekit.trainers import parse_run_arguments

    fuzz, file = f.Fuzz("preset"), folder / "preset.yaml"

    def body(content: Any) -> None:
        file.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
        words = ["--config", str(file), "--model_name_or_path", "x", "--train_file", "y", "--use_cpu", "True"]

        def call() -> int:
            run, _, _ = parse_run_arguments(words)
            try:
                run.check()
            except ValueError as error:
                print(f"error: {' '.join(str(error).split())}")
                return 2
            return 0

        fuzz.judge(f.in_process(call, capfd), content)

    dumped = yaml.safe_dump(PRESET).encode()
    fuzz.run(f.changed(PRESET) | f.damaged(dumped), body)


def test_listings_of_cards(folder: Path) -> None:
    import yaml

    fuzz, inner = f.Fuzz("listing of cards"), folder / "cards"
    inner.mkdir(exist_ok=True)
    (folder / "whole.json").write_text(json.dumps(RUN))
    listing = {"one": {"results": "whole.json", "scores": [], "language": ["en"], "license": "mit", "name": "n"}}

    def body(content: Any) -> None:
        data = content if isinstance(content, bytes) else yaml.safe_dump(content).encode()
        (inner / "cards.yaml").write_bytes(data)
        fuzz.judge(f.csekit("card", inner / "cards.yaml"), content)

    fuzz.run(f.changed(listing) | f.damaged(yaml.safe_dump(listing).encode()), body)


PLAN = {
    "script": "script.py",
    "arguments": {"learning_rate": 0.001, "columns": ["a", "b"]},
    "seeds": [1, 2],
    "grid_steps": 5,
    "seconds_per_step": 0.1,
    "max_minutes": 5,
    "baseline": "one",
    "margins": {"against": ["one"], "paper": {"two": 1.0}, "source": "none"},
    "experiments": {
        "one": {"grid": {"temperature": [0.05, 0.1]}},
        "two": {"arguments": {"method": "informin"}, "seeds": [3]},
        "three": {"trials": {"short": {"max_steps": 1}}},
        "four": {"command": ["-m", "x", "{output_dir}", "{folder:two/seed=3}"], "run_name": "r"},
    },
    "tables": {"t": {"title": "t", "rows": [{"label": "s", "trial": "three/short"}]}},
}


def test_plans(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import yaml

    from experiments.run_seeds import main

    fuzz, file = f.Fuzz("plan"), folder / "plan.yaml"
    (folder / "script.py").write_text("")

    def body(content: Any) -> None:
        file.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
        words = [str(file), "--output_dir", str(folder / "runs"), "--results_dir", str(folder / "res"), "--dry_run"]
        fuzz.judge(f.in_process(lambda: main(words), capfd), content)

    fuzz.run(f.changed(PLAN) | f.damaged(yaml.safe_dump(PLAN).encode()), body)
