"""csv and tsv files that used to lose rows or columns with exit code 0: every command that reads one refuses them."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.evaluation.pairs import read_pairs
from csekit.trainers import load_corpus

RUN_UNSUP = Path(__file__).parents[1] / "examples" / "run_unsup.py"
TEXT_COMMANDS = ("check", "encode", "train")


def told(exit_code: int, output: str) -> str:
    """Return the one line of an error."""
    assert exit_code == 2, output
    assert output.count("\n") == 1, output
    assert "error: " in output
    return output


@pytest.fixture
def command(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """``command(name, file)`` runs a command on a file and returns its error."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "texts.txt").write_text("a dog\na cat\nthe man\n")

    def run(name: str, file: Path) -> str:
        train, dev = ("texts.txt", file) if name == "dev" else (file, None)
        if name in ("train", "dev"):
            words = ["--model_name_or_path", tiny_folder, "--train_file", tmp_path / train, "--use_cpu", "True"]
            words += ["--output_dir", tmp_path / "run", *(["--dev_file", dev] if dev else [])]
            monkeypatch.setattr(sys, "argv", ["run_unsup.py", *map(str, words)])
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(RUN_UNSUP))["main"]()
            return told(int(end.value.code or 0), capfd.readouterr().err)
        words = {
            "check": ["check", file, "--model", tiny_folder],
            "encode": ["encode", file, "--model", tiny_folder, "--pooling", "mean", "-o", tmp_path / "out.npy"],
            "eval": ["eval", tiny_folder, "--pooling", "mean", "--pairs", file],
        }[name]
        found = CliRunner().invoke(main, [*map(str, words)])
        return told(found.exit_code, found.output)

    return run


def write(path: Path, head: str, rows: list[str], place: int, broken: str) -> Path:
    """Write a csv file whose data row ``place``, from 1, is replaced."""
    rows[place - 1] = broken
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


@pytest.mark.parametrize("name", TEXT_COMMANDS)
def test_an_unbalanced_quote_names_its_line(command: Callable[..., str], tmp_path: Path, name: str) -> None:
    """Half of the rows used to become one text."""
    file = write(tmp_path / "a.csv", "text", [f"a dog {i}" for i in range(1000)], 501, '"a dog')
    assert "a.csv, line 502: an unbalanced quote opens here" in command(name, file)


@pytest.mark.parametrize("name", ["eval", "dev"])
def test_an_unbalanced_quote_in_pairs_names_its_line(command: Callable[..., str], tmp_path: Path, name: str) -> None:
    rows = [f"a dog {i},a cat,{i % 6}" for i in range(60)]
    file = write(tmp_path / "p.csv", "sentence1,sentence2,score", rows, 30, '"a dog,a cat,2')
    assert "p.csv, line 31: an unbalanced quote opens here" in command(name, file)


def test_a_quote_that_another_row_closes_names_the_line_where_it_opens(tmp_path: Path) -> None:
    rows = [f'"a dog {i}",cat' for i in range(20)]
    file = write(tmp_path / "a.csv", "s,t", rows, 7, '"a dog,cat')
    with pytest.raises(ValueError, match=r"a\.csv, line 8: an unbalanced quote opens here: .* in line 9$"):
        load_corpus(file, cache_dir=tmp_path)


def test_a_quote_that_closes_far_away_is_no_text(tmp_path: Path) -> None:
    rows = [f"a dog {i},cat" for i in range(300)]
    rows[250] = 'a screen of 5",cat'
    file = write(tmp_path / "a.csv", "s,t", rows, 10, '"a dog,cat')
    with pytest.raises(ValueError, match=r"a\.csv, line 11: .* spans more than 100 lines"):
        load_corpus(file, cache_dir=tmp_path)


def test_a_long_text_of_a_csv_is_told_how_to_write_it(tmp_path: Path) -> None:
    text = "\n".join(["a dog"] * 120)
    file = write(tmp_path / "a.csv", "s,t", ["a,b"] * 6, 3, f'"{text}",cat')
    with pytest.raises(ValueError, match=r"a\.csv, line 4: .*; if the text is so long, put the header and all cells"):
        load_corpus(file, cache_dir=tmp_path)


def test_where_all_cells_are_quoted_an_unbalanced_quote_names_its_line(tmp_path: Path) -> None:
    rows = [f'"a dog {i}","cat"' for i in range(300)]
    file = write(tmp_path / "a.csv", '"s","t"', rows, 7, '"a dog","cat')
    with pytest.raises(ValueError, match=r"a\.csv, line 8: an unbalanced quote opens here: .* in line 9$"):
        load_corpus(file, cache_dir=tmp_path)
    rows[6] = "a dog,cat"  # from here on not all are quoted
    file = write(tmp_path / "b.csv", '"s","t"', [*rows[:20], *["a,b"] * 300], 20, '"a dog,cat')
    with pytest.raises(ValueError, match=r"b\.csv, line 21: .* spans more than 100 lines"):
        load_corpus(file, cache_dir=tmp_path)


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv"])
def test_long_texts_are_read_from_every_format(tmp_path: Path, tiny_folder: Path, suffix: str) -> None:
    """A cell of more than 131,072 characters in a tsv used to end in a traceback."""
    file = tmp_path / f"long{suffix}"
    texts = ["a dog", "a cat " * 30_000 + "end", "the man"]
    file.write_text("\n".join([*([] if suffix == ".txt" else ["text"]), *texts]) + "\n")
    corpus = load_corpus(file, cache_dir=tmp_path, tell=False)
    assert [row["texts"] for row in corpus.dataset.__getitems__([0, 1, 2])] == [[text] for text in texts]
    words = ["encode", file, "--model", tiny_folder, "--pooling", "mean", "-o", tmp_path / "out.npy"]
    found = CliRunner().invoke(main, [*map(str, words)])
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_tsv_with_empty_lines_and_quotes(tmp_path: Path, end: str) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(end.join(["s\tt", 'a "dog\tb', "", "c\t", 'd\t"e"']) + end, newline="")
    corpus = load_corpus(file, cache_dir=tmp_path, tell=False)
    assert [row["texts"] for row in corpus.dataset.__getitems__([0, 1])] == [['a "dog', "b"], ["d", '"e"']]
    assert (corpus.report.rows, corpus.report.blank) == (4, 2)


def test_texts_of_several_lines_are_told(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "s,t", ["a,b"] * 6, 3, '"a dog\nruns",cat')
    report = load_corpus(file, cache_dir=tmp_path).report
    assert report.rows == 6
    assert "1 texts of several lines, the first in a.csv, line 4" in report.summary()


def test_the_report_of_a_copy_names_the_copy(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of the first file was told, with its name."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("a.csv", "b.csv", "a.csv"):
        file = write(tmp_path / name, "s,t", ["a,b", "c,d", "e" * 100_001 + ",f"], 1, '"a dog\nruns",cat')
        found = CliRunner().invoke(main, ["check", str(file), "--model", str(tiny_folder)])
        assert found.exit_code == 0, found.output
        assert f"1 texts over 100,000 characters, the first in {name}, line 5" in found.output
        assert f"1 texts of several lines, the first in {name}, line 2" in found.output


@pytest.mark.parametrize("name", TEXT_COMMANDS)
@pytest.mark.parametrize(("suffix", "sign"), [(".csv", ","), (".tsv", "\t")])
def test_a_header_with_a_name_twice(
    command: Callable[..., str], tmp_path: Path, name: str, suffix: str, sign: str
) -> None:
    """The first of the two columns used to be taken."""
    file = tmp_path / f"a{suffix}"
    file.write_text("".join(f"{sign.join(row)}\n" for row in ("sts", "abc", "def", "ghi")))
    assert f"a{suffix}, line 1: the header names 's' more than once, in columns 1 and 3" in command(name, file)


@pytest.mark.parametrize("name", ["eval", "dev"])
def test_pairs_with_a_name_twice(command: Callable[..., str], tmp_path: Path, name: str) -> None:
    file = tmp_path / "p.tsv"
    file.write_text("sentence1\tsentence2\tscore\tscore\n" + "".join(f"a {i}\tb\t{i}\t1\n" for i in range(4)))
    assert "p.tsv, line 1: the header names 'score' more than once, in columns 3 and 4" in command(name, file)


def test_a_comma_without_quotes_does_not_shift_the_columns(command: Callable[..., str], tmp_path: Path) -> None:
    """``2`` used to be read as the score of the third line, whose own score is 5."""
    file = tmp_path / "p.csv"
    file.write_text("sentence1,sentence2,score\na dog,a cat,1\na man,red,2,5\nthe,a,0\nthe,an,3\n")
    assert "p.csv, line 3: 4 fields, the header has 3" in command("eval", file)


def test_a_column_named_thrice(tmp_path: Path) -> None:
    file = tmp_path / "p.tsv"
    file.write_text("1\t1\t2\n2\t3\t1\n3\t4\t0\n")
    with pytest.raises(ValueError, match=r"sentence1, sentence2, score must be different columns, got \[0, 0, 2\]"):
        read_pairs(file, 0, 0, 2)


@pytest.mark.parametrize("score", ["1_0", "٣", "0x1", "1e", "--1", "1 2"])
def test_scores_are_decimal_numbers(command: Callable[..., str], tmp_path: Path, score: str) -> None:
    """Python reads the first two as 10 and 3."""
    file = tmp_path / "p.tsv"
    file.write_text(f"sentence1\tsentence2\tscore\na dog\ta cat\t1\na man\tred\t2\nthe\ta\t{score}\n")
    line = command("eval", file)
    assert f"p.tsv, line 4, field score ('score'): must be a number, got {score!r}" in line


def test_a_tab_in_the_header_of_a_csv(command: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("s\tt\na\tb\nc\td\n")
    assert "a.csv, line 1: the header has tabs and no comma: rename the file to .tsv" in command("check", file)


def test_a_null_names_its_line(command: Callable[..., Any], tmp_path: Path) -> None:
    """The column used to count as one without text, and the message asked for its name."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a dog"}\n{"text": null}\n{"text": "a cat"}\n')
    assert "a.jsonl, line 2: column 'text' holds nothing (null), not text" in command("check", file)
    assert "a.jsonl, line 2: column 'text' holds nothing (null), not text" in command("encode", file)


@pytest.mark.parametrize(("name", "depth"), [("a.jsonl", 5_000), ("a.json", 5_000), ("a.jsonl", 200_000)])
def test_deep_json(command: Callable[..., str], tmp_path: Path, name: str, depth: int) -> None:
    file = tmp_path / name
    row = '{"text": ' + "[" * depth + "]" * depth + "}"
    file.write_text(f"[{row}]" if name == "a.json" else '{"text": "a"}\n' + row + "\n")
    assert f"{name}, line " in command("check", file)


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_parquet_names_its_file(command: Callable[..., str], tmp_path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": pa.array(["a dog"] * rows, pa.string())}), tmp_path / "a.parquet")
    assert "a.parquet: " in command("check", tmp_path / "a.parquet")
    if not rows:
        assert "a.parquet: 0 rows" in command("encode", tmp_path / "a.parquet")
