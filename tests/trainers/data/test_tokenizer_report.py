"""Does the tokenizer know the language: unknown tokens, words in single letters, lost accents."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from csekit.cli import main
from csekit.trainers.data.tokenizer_report import accents_dropped, tokenizer_report

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß"
GERMAN = ["die brücke führt über den fluß", "der bär ißt früh", "ein haus am see"]


def wordpiece(words: list[str], strip_accents: bool = False, letters: str = LETTERS) -> PreTrainedTokenizerFast:
    pieces = [*words, *letters, *(f"##{letter}" for letter in letters)]
    vocab = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])}
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(strip_accents=strip_accents, lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **special)


def test_the_right_tokenizer_is_left_in_peace() -> None:
    words = sorted({word for text in GERMAN for word in text.split()})
    report = tokenizer_report(GERMAN, wordpiece(words), 32)
    assert report.warning is None
    assert report.accents_dropped == 0
    assert report.unknown_share == 0
    characters = sum(len(text.replace(" ", "")) for text in GERMAN)
    assert report.characters_per_token == characters / sum(len(text.split()) for text in GERMAN)


def test_words_in_single_letters() -> None:
    report = tokenizer_report(GERMAN, wordpiece([]), 64)
    assert report.characters_per_token == 1
    assert "words fall apart into single letters" in str(report.warning)
    cut = tokenizer_report(GERMAN, wordpiece([]), 18)  # what is cut says nothing of a token's length
    assert cut.truncated_share == pytest.approx(1 / 3)
    assert cut.characters_per_token == 1


def test_scripts_of_single_letters_are_nothing_unusual() -> None:
    text = "これは本です"
    report = tokenizer_report([text] * 3, wordpiece([], letters=text), 32)
    assert report.unknown_share == 0
    assert report.characters_per_token == 1
    assert report.warning is None


def test_lost_accents() -> None:
    tokenizer = wordpiece(sorted({word for text in GERMAN for word in text.split()}), strip_accents=True)
    assert accents_dropped(GERMAN, tokenizer) == pytest.approx(2 / 3)  # ß is a letter, not an accent
    assert "67% of the texts of de.txt lose accents" in str(
        tokenizer_report(GERMAN, tokenizer, 32, name="de.txt").warning
    )
    assert accents_dropped(["naïve", *["plain"] * 9], tokenizer) == 0.1
    assert tokenizer_report(["naïve", *["plain"] * 9], tokenizer, 32).accents_dropped == 0.1


def test_check_prints_what_is_there(tmp_path: Path) -> None:
    wordpiece([], strip_accents=True).save_pretrained(tmp_path / "model")
    corpus = tmp_path / "de.txt"
    corpus.write_text("\n".join([*GERMAN, "", GERMAN[0]]) + "\n", encoding="utf-8")
    result = CliRunner().invoke(main, ["check", str(corpus), "--model", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    assert "4 of 5 rows used; 1 blank ones dropped; 1 exact duplicates kept" in result.output
    assert "characters a token" in result.output
    assert "warning: " in result.output
    assert "d ##i ##e b ##r ##u" in result.output  # how the text looks to the encoder


def test_check_measures_tokens_where_all_texts_are_truncated(tmp_path: Path) -> None:
    """A tokenizer of another language makes so many tokens that no text fits."""
    wordpiece([]).save_pretrained(tmp_path / "model")
    corpus = tmp_path / "de.txt"
    corpus.write_text("".join(f"ein haus am see und noch ein haus am see nur {end}\n" for end in "abc"))
    result = CliRunner().invoke(main, ["check", str(corpus), "--model", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    shown = dict(line.rsplit(maxsplit=1) for line in result.stdout.splitlines() if line.strip())
    assert shown["texts over 32 tokens (--max_seq_length)"] == "100.0%"
    assert shown["characters a token"] == "1.00"
    assert "words fall apart into single letters" in result.output


@pytest.mark.parametrize(
    "argv, message",
    [
        (["nowhere.txt"], "nowhere.txt"),
        (["{corpus}", "--sample", "0"], "--sample must be at least 1, got 0"),
        (["{corpus}", "--columns", "title"], "title"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, argv: list[str], message: str) -> None:
    wordpiece([]).save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("ein haus\nam see\n")
    argv = [word.format(corpus=tmp_path / "a.txt") for word in argv]
    result = CliRunner().invoke(main, ["check", *argv, "--model", str(tmp_path / "model")])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1
