"""Pairs from documents: the command itself, boundaries, and broken documents."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csekit.cli import main
from csekit.trainers import load_corpus

DOCUMENTS = [
    {"title": "About all dogs", "text": "The dog runs fast.\nIt is a red dog.\n\nshort\nThe cat sleeps here now."},
    {"title": "Cat", "text": ["A first given passage.", "  A second  given passage."]},
    {"title": "An empty little document", "text": "\n\n"},
]


def write(path: Path, documents: list[Any]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def pairs(*words: str | Path) -> Any:
    return CliRunner().invoke(main, ["pairs", *map(str, words)])


def rows(path: Path) -> list[tuple[str, str]]:
    return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]  # type: ignore[misc]


def test_neighbours_do_not_cross_documents_or_short_passages(tmp_path: Path) -> None:
    documents, output = write(tmp_path / "documents.jsonl", DOCUMENTS), tmp_path / "pairs.jsonl"
    found = pairs(documents, "-o", output)
    assert found.exit_code == 0, found.output
    assert "documents 3, pairs 2, documents without 1" in found.output
    assert rows(output) == [
        ("The dog runs fast.", "It is a red dog."),
        ("A first given passage.", "A second given passage."),
    ]
    assert load_corpus(output, tell=False).columns == ("anchor", "positive")


@pytest.mark.parametrize(
    ("unit", "first"),
    [
        ("line", "The dog runs fast."),
        ("paragraph", "The dog runs fast. It is a red dog."),
        ("sentence", "The dog runs fast."),
    ],
)
def test_a_title_goes_with_the_first_passage(tmp_path: Path, unit: str, first: str) -> None:
    documents, output = write(tmp_path / "documents.jsonl", DOCUMENTS), tmp_path / "pairs.csv"
    assert pairs(documents, "-o", output, "--kind", "title", "--unit", unit).exit_code == 0
    assert output.read_text() == f'"anchor","positive"\n"About all dogs","{first}"\n'


def test_documents_without_a_title_are_left_out_and_told(tmp_path: Path) -> None:
    text = {"text": "The dog runs fast."}
    titles: list[dict[str, Any]] = [{}, {"title": None}, {"title": ""}, {"title": " \n"}, {"title": "All about dogs"}]
    documents, output = (
        write(tmp_path / "documents.jsonl", [text | title for title in titles]),
        tmp_path / "pairs.jsonl",
    )
    found = pairs(documents, "-o", output, "--kind", "title")
    assert found.exit_code == 0, found.output
    assert "documents 5, pairs 1, documents without 4, documents without title 4" in found.output
    assert rows(output) == [("All about dogs", "The dog runs fast.")]


def test_sentences_end_at_their_marks_in_any_script(tmp_path: Path) -> None:
    text = "He said: “Is it so?” Yes. No one is here… It costs 3.5 now! 今天很好。明天也好！"
    documents, output = write(tmp_path / "documents.jsonl", [{"text": text}]), tmp_path / "pairs.jsonl"
    assert pairs(documents, "-o", output, "--unit", "sentence", "--min_words", 1).exit_code == 0
    firsts = [first for first, _ in rows(output)]
    assert firsts == ["He said: “Is it so?”", "Yes.", "No one is here…", "It costs 3.5 now!", "今天很好。"]


@pytest.mark.parametrize(
    "parts",
    [
        ["هل أنت بخير؟", "نعم، أنا بخير.", "شكرا لك!"],
        ["آپ کیسے ہیں؟", "میں ٹھیک ہوں۔", "شکریہ۔"],
        ["मैं घर जाता हूँ।", "वह सोता है॥", "वह कौन है?"],
        ["Ես տուն եմ գնում։", "Նա քնում է։"],
        ["እንዴት ነህ።", "ደህና ነኝ።"],
        ["ខ្ញុំទៅផ្ទះ។", "គាត់គេង។"],
        ["ကျွန်တော်အိမ်ပြန်မယ်။", "သူအိပ်နေတယ်။"],
    ],
)
def test_sentences_end_at_marks_of_other_scripts(tmp_path: Path, parts: list[str]) -> None:
    documents, output = write(tmp_path / "documents.jsonl", [{"text": " ".join(parts)}]), tmp_path / "pairs.jsonl"
    found = pairs(documents, "-o", output, "--unit", "sentence", "--min_words", 1)
    assert found.exit_code == 0, found.output  # a text of one passage makes no pair
    assert rows(output) == list(pairwise(parts))


def test_closing_quotes_and_brackets_stay_with_their_sentence(tmp_path: Path) -> None:
    parts = [
        'He asked her, "Why did you go?"',
        "Then he left.",
        "(It was late.)",
        "‘Yes.’",
        '"No!"',
        "«Si.»",
        "End [1].",
    ]
    script = ["他说：“好。”", "然后走了。", "「はい。」", "と言った。", "The end."]
    for number, text in enumerate((" ".join(parts), "".join(script))):
        documents, output = write(tmp_path / "documents.jsonl", [{"text": text}]), tmp_path / f"pairs{number}.jsonl"
        assert pairs(documents, "-o", output, "--unit", "sentence", "--min_words", 1).exit_code == 0
        expected = script if number else parts
        assert rows(output) == list(pairwise(expected))


def test_spans_lie_in_one_document_apart_and_are_the_same_each_time(tmp_path: Path) -> None:
    texts = [" ".join(f"d{number}w{place}" for place in range(40)) for number in range(5)]
    archive = tmp_path / "documents.jsonl.gz"
    with gzip.open(archive, "wt") as file:
        file.write("".join(json.dumps({"body": text}) + "\n" for text in [*texts, "too short"]))
    words = ("--kind", "spans", "--span_words", 7, "--spans", 3, "--text_field", "body")
    for name in ("one.jsonl", "two.jsonl"):
        assert pairs(archive, "-o", tmp_path / name, *words).exit_code == 0
    found = rows(tmp_path / "one.jsonl")
    assert found == rows(tmp_path / "two.jsonl")
    assert len(found) > 10
    for a, b in found:
        (text,) = [text for text in texts if a in text]
        assert text.index(b) > text.index(a) + len(a)
        assert len(a.split()) == len(b.split()) == 7
    assert pairs(archive, "-o", tmp_path / "three.jsonl", *words, "--seed", 1).exit_code == 0
    assert rows(tmp_path / "three.jsonl") != found


@pytest.mark.parametrize(
    ("lines", "words", "message"),
    [
        (['{"text": "a b c"'], (), "documents.jsonl, line 1: not a JSON object on one line: Expecting ',' delimiter"),
        (['{"text": "a b c"}', "[1]"], (), "documents.jsonl, line 2: a document must be an object, got [1]"),
        (['{"body": "a b c"}'], (), "line 1: field 'text' is missing, the document has body"),
        (['{"text": 3}'], (), "line 1: field 'text' must be text or a list of texts, got 3"),
        (['{"text": "a", "title": ["b"]}'], ("--kind", "title"), "line 1: field 'title' must be text, got ['b']"),
        (
            ['{"text": "a b c"}', '{"text": "a\\ud800"}'],
            (),
            "documents.jsonl, line 2: field 'text' holds half a surrogate",
        ),
        (['{"text": ["a", "\\udfff"]}'], (), "documents.jsonl, line 1: field 'text' holds half a surrogate pair"),
        (
            ['{"text": "a b c", "title": "a\\ud800 b c"}'],
            ("--kind", "title"),
            "documents.jsonl, line 1: field 'title' holds half a surrogate pair, not text",
        ),
        (
            ['{"text": "a b c"}', '{"text": "a", "n": ' + "1" * 5000 + "}"],
            (),
            "documents.jsonl, line 2: not readable as JSON: Exceeds the limit (4300 digits)",
        ),
        (
            ['{"text": "a b c", "name": "d e f"}', '{"text": "a b c", "title": " "}'],
            ("--kind", "title"),
            "none of 2 documents makes a pair of kind 'title' with unit 'line', min_words 3 and span_words 32; "
            "2 have no field 'title', or nothing in it",
        ),
        (
            ['{"text": "one line only"}'],
            (),
            "none of 1 documents makes a pair of kind 'neighbors' with unit 'line', min_words 3 and span_words 32; "
            "unit 'sentence' splits lines that hold several sentences",
        ),
        (
            ['{"text": "one line. Only that."}'],
            ("--kind", "spans"),  # which refuses --unit: no hint to another one
            "with unit 'line', min_words 3 and span_words 32\n",
        ),
        (['{"text": "a"}'], ("--kind", "next"), "kind must be one of 'neighbors', 'title', 'spans', got 'next'"),
        (['{"text": "a"}'], ("--span_words", 0), "span_words must be a number of at least 1, got 0"),
    ],
)
def test_what_is_broken_is_named_in_one_line(
    tmp_path: Path, lines: list[str], words: tuple[Any, ...], message: str
) -> None:
    documents, output = tmp_path / "documents.jsonl", tmp_path / "pairs.jsonl"
    documents.write_text("\n".join(lines) + "\n")
    found = pairs(documents, "-o", output, *words)
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [documents]  # nothing half written


def test_an_output_that_exists_is_kept(tmp_path: Path) -> None:
    documents, output = write(tmp_path / "documents.jsonl", DOCUMENTS), tmp_path / "pairs.jsonl"
    output.write_text("mine\n")
    assert "exists already" in pairs(documents, "-o", output).output
    assert output.read_text() == "mine\n"
