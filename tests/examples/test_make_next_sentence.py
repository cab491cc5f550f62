"""The script that writes sentences with the one that follows."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "make_next_sentence.py"


def test_consecutive_lines_within_documents(tmp_path: Path) -> None:
    text = "\ufeffOne.\nTwo\tand a tab.\nThree.\n\n \nAlone.\n\nÄ.\nB.\n"
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "text.txt"), str(tmp_path / "pairs.tsv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "3 sentences" in done.stdout
    lines = (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    assert lines == ["sentence\tnext", "One.\tTwo and a tab.", "Two and a tab.\tThree.", "Ä.\tB."]


def test_another_ending_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("One.\nTwo.\n", encoding="utf-8")
    command = [sys.executable, str(SCRIPT), str(tmp_path / "text.txt"), str(tmp_path / "pairs.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "output must end in .tsv, got" in done.stderr
    assert not (tmp_path / "pairs.csv").exists()


@pytest.mark.parametrize(
    ("content", "output", "told"),
    [
        (None, "pairs.tsv", "text.txt"),
        (b"", "pairs.tsv", "text.txt: must hold two sentences in a row, a line each, got none"),
        (b"Alone.\n\nAlone.\n", "pairs.tsv", "text.txt: must hold two sentences in a row, a line each, got none"),
        (b"One.\nTwo.\n\xff\n", "pairs.tsv", "text.txt: must be UTF-8, got the byte 0xff"),
        ("folder", "pairs.tsv", "text.txt"),
        (b"One.\nTwo.\n", "nowhere/pairs.tsv", "nowhere/pairs.tsv"),
        (b"One.\nTwo.\n", "folder.tsv", "folder.tsv"),
        (b"One.\nTwo.\n", "link.tsv", "output must be another file than the text, got"),
    ],
)
def test_files_that_cannot_be_are_one_line(
    tmp_path: Path, content: bytes | str | None, output: str, told: str
) -> None:
    """They were tracebacks, and an earlier output was lost."""
    text = tmp_path / "text.txt"
    (tmp_path / "pairs.tsv").write_text("earlier")
    (tmp_path / "folder.tsv").mkdir()
    (tmp_path / "link.tsv").symlink_to(text)
    if isinstance(content, bytes):
        text.write_bytes(content)
    elif content is not None:
        text.mkdir()
    command = [sys.executable, str(SCRIPT), str(text), str(tmp_path / output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and told in done.stderr, done.stderr
    assert (tmp_path / "pairs.tsv").read_text() == "earlier"
    assert not list(tmp_path.rglob("*.draft"))
