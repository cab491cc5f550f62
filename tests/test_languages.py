"""The walk-through of other languages: its code runs as it stands on German text."""

import re
from pathlib import Path

import pytest

from csekit.trainers import load_corpus

PAGE = Path(__file__).parents[1] / "docs" / "languages.md"
TEXT = """Dr. Müller kam am 3. Mai in Köln an. Er blieb z. B. bis zum Abend bei seiner Schwester.
Die Straßenbahn fährt über die Brücke zum Bahnhof. Ja.
Die Straßenbahn fährt über die Brücke zum Bahnhof.
"""


def test_running_text_becomes_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentencex", reason="needs the extra dev")
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(TEXT, encoding="utf-8")
    exec(compile(block, "languages.md", "exec"), {})
    corpus = load_corpus("sentences.txt", cache_dir="cache")
    assert [row[0] for row in corpus.sample(10)] == [
        "Dr. Müller kam am 3. Mai in Köln an.",
        "Er blieb z. B. bis zum Abend bei seiner Schwester.",
        "Die Straßenbahn fährt über die Brücke zum Bahnhof.",
    ]
