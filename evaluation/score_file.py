"""Store scores of sentence pairs in a file that an interrupted labelling can resume.

The module needs neither torch nor Transformers, so that resuming is instant.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from csekit.encoding.provenance import write_atomically
from csekit.evaluation.pairs import normal, parse_score, read_lines

#: Highest score of the STS scale: the same meaning. 0: nothing in common.
HIGHEST = 5.0


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
        """Read an unfinished file; None if there is none.

        Raises:
            ValueError: the file has another origin, or was changed.
        """
        path, beside = Path(path), cls.beside(path)
        if not beside.is_file():
            if path.exists():
                raise ValueError(f"{path}: holds something else ({beside.name} is missing); choose another name")
            return None
        try:
            content = json.loads(beside.read_text(encoding="utf-8"))
            begun, pairs = content["origin"], [(str(a), str(b)) for a, b in content["pairs"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{beside}: not the pairs of a labelling: {error!r}") from error
        for name, value in origin.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"{path}: begun with {name} {begun.get(name)!r}, got {value!r}; give that one or another --output"
                )
        file = cls(path, pairs, [None] * len(pairs), begun)
        file._read()
        return file

    def _read(self) -> None:
        position = {pair: i for i, pair in enumerate(self.pairs)}
        lines = read_lines(self.path)[1:] if self.path.is_file() else []
        for number, line in enumerate(lines, 2):
            where, cells = f"{self.path}, line {number}", line.split("\t")
            if len(cells) != 3 or (cells[0], cells[1]) not in position:
                raise ValueError(
                    f"{where}: must be a pair of {self.beside(self.path).name} with a score, got {line!r}"
                )
            self.scores[position[cells[0], cells[1]]] = check_score(cells[2], f"{where}, field score")

    def set(self, i: int, score: float) -> None:
        """Set the score of pair i, from 0 to 5, replace an earlier one, and write the file."""
        self.scores[i] = check_score(repr(float(score)), "score")
        lines = ["\t".join(("sentence1", "sentence2", "score"))]
        for pair, value in zip(self.pairs, self.scores, strict=True):
            if value is not None:
                lines.append("\t".join((*pair, repr(value))))
        write_atomically(self.path, ("\n".join(lines) + "\n").encode("utf-8"))

    def open(self) -> list[int]:
        """Return the pairs without a score, in order."""
        return [i for i, score in enumerate(self.scores) if score is None]


def check_score(text: str, where: str) -> float:
    """Parse a score from 0 to 5. Raises ValueError that starts with ``where``."""
    score = parse_score(text, where)
    if not 0 <= score <= HIGHEST:
        raise ValueError(f"{where}: must be from 0 to 5, got {text}")
    return score


def corpus_digest(sentences: Sequence[str]) -> str:
    """Return the sha256 of the sentences, in order."""
    return hashlib.sha256("\n".join(sentences).encode("utf-8")).hexdigest()
