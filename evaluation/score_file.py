"""Store scores of sentence pairs in a file that an interrupted labelling can resume.

The module needs neither torch nor Transformers, so that resuming is instant.
"""

import hashlib
import json
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import write_atomically
from csekit.evaluation.pairs import normal, read_lines
from csekit.evaluation.sts_data import parse_gold

_HEADER = "sentence1\tsentence2\tscore"


class ScoreFile:
    """The scores of drawn pairs, written to disk after each answer: a TSV that training accepts as its dev set.

    ``NAME.pairs.json`` beside ``NAME.tsv`` holds all pairs in the order of the questions, so that labelling resumes
    without the encoder. Both files are written atomically.

    Arguments:
        path: path of the TSV, with the columns ``sentence1``, ``sentence2`` and ``score``.
        pairs: pairs in the order of the questions.
        scores: score of each pair, None if it has none yet.
        origin: source of the pairs, as JSON values.
    """

    def __init__(
        self,
        path: str | Path,
        pairs: Sequence[tuple[str, str]],
        scores: Sequence[float | None],
        origin: Mapping[str, Any],
    ) -> None:
        self.path, self.origin = Path(path), dict(origin)
        self.pairs, self.scores = [(normal(a), normal(b)) for a, b in pairs], list(scores)

    @staticmethod
    def beside(path: str | Path) -> Path:
        """Return the path of ``NAME.pairs.json`` beside ``NAME.tsv``."""
        return Path(path).with_suffix(".pairs.json")

    @classmethod
    def begin(cls, path: str | Path, pairs: Sequence[tuple[str, str]], origin: Mapping[str, Any]) -> "ScoreFile":
        """Write new pairs without scores to disk.

        Raises:
            FileExistsError: the file exists.
        """
        for old in (Path(path), cls.beside(path)):
            if old.exists():
                raise FileExistsError(f"{old}: exists already; choose another name or delete it")
        file = cls(path, pairs, [None] * len(pairs), origin)
        content = {"origin": file.origin, "pairs": file.pairs}
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_atomically(cls.beside(path), text.encode("utf-8"))
        return file

    @classmethod
    def resume(cls, path: str | Path, origin: Mapping[str, Any]) -> "ScoreFile | None":
        """Read an unfinished file; None if there is none. A part of ``origin`` that the file does not name, as those
        of earlier versions, is not compared.

        Raises:
            ValueError: the file has another origin, or was changed.
        """
        path, beside = Path(path), cls.beside(path)
        if not beside.is_file():
            if path.exists():
                raise ValueError(f"{path}: holds something else ({beside.name} is missing); choose another name")
            return None
        begun, pairs = _begun(beside)
        for name, value in origin.items():
            if begun.get(name, value) != value:
                raise ValueError(
                    f"{path}: begun with {name} {begun[name]!r}, got {value!r}; give that one or another --output"
                )
        file = cls(path, pairs, [None] * len(pairs), begun)
        file._read()
        return file

    def _read(self) -> None:
        position = {pair: i for i, pair in enumerate(self.pairs)}
        lines = read_lines(self.path) if self.path.is_file() else []
        if lines and lines[0] != _HEADER:
            raise ValueError(f"{self.path}, line 1: must be the header {_HEADER!r}, got {lines[0]!r}")
        for number, line in enumerate(lines[1:], 2):
            where, cells = f"{self.path}, line {number}", line.split("\t")
            if len(cells) != 3 or (cells[0], cells[1]) not in position:
                raise ValueError(
                    f"{where}: must be a pair of {self.beside(self.path).name} with a score, got {line!r}"
                )
            if self.scores[position[cells[0], cells[1]]] is not None:
                raise ValueError(f"{where}: the pair is scored in a line before")
            self.scores[position[cells[0], cells[1]]] = parse_gold(cells[2], f"{where}, field score")

    def set(self, i: int, score: float) -> None:
        """Set the score of pair i, from 0 to 5, replace an earlier one, and write the file."""
        self.scores[i] = parse_gold(repr(float(score)), "score")
        lines = [_HEADER]
        for pair, value in zip(self.pairs, self.scores, strict=True):
            if value is not None:
                lines.append("\t".join((*pair, repr(value))))
        write_atomically(self.path, ("\n".join(lines) + "\n").encode("utf-8"))

    def open(self) -> list[int]:
        """Return the pairs without a score, in order."""
        return [i for i, score in enumerate(self.scores) if score is None]


def _begun(path: Path) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Read origin and pairs. Raises ValueError: the file holds something else."""
    content = read_json(path)
    origin, pairs = (content.get(name) for name in ("origin", "pairs")) if isinstance(content, dict) else (None, None)
    if not isinstance(origin, dict) or not isinstance(pairs, list):
        raise ValueError(f"{path}: not the pairs of a labelling: must have 'origin' and 'pairs'")
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(
                f"{path}: not the pairs of a labelling: a pair must be two texts, got {reprlib.repr(pair)}"
            )
    return origin, [(first, second) for first, second in pairs]


def corpus_digest(sentences: Sequence[str]) -> str:
    """Return the sha256 of the sentences, in order."""
    return hashlib.sha256("\n".join(sentences).encode("utf-8")).hexdigest()
