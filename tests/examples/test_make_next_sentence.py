"""The script that writes sentences with the one that follows."""

import subprocess
import sys
from pathlib import Path

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
