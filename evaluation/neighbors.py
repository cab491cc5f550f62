"""Find nearest neighbours of the same queries under several encoders (DiffCSE Table 9, MSSE Table 8)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from csekit.encoding.encoder import Encoder, check_texts, embed
from csekit.encoding.json_files import read_json
from csekit.encoding.provenance import write_atomically
from csekit.evaluation.pairs import normal
from csekit.evaluation.search import BLOCK_DOCUMENTS, search_blocks

#: Columns of the .tsv file.
COLUMNS = ("query", "model", "rank", "cosine", "sentence")


@dataclass(frozen=True)
class Neighbor:
    """A sentence of the corpus and its cosine with the query."""

    sentence: str
    cosine: float


@dataclass(frozen=True)
class QueryNeighbors:
    """A query with its neighbours, nearest first: a tuple for each encoder, in the order in which they were given."""

    query: str
    found: tuple[tuple[Neighbor, ...], ...]

    def shared(self) -> set[str]:
        """Return the sentences that every encoder found."""
        return set.intersection(*({neighbor.sentence for neighbor in side} for side in self.found))


def nearest_neighbors(
    encoders: Sequence[Encoder],
    corpus: Sequence[str],
    queries: Sequence[str],
    k: int = 5,
    *,
    keep_equal: bool = False,
    block_size: int = BLOCK_DOCUMENTS,
    progress: bool = False,
) -> list[QueryNeighbors]:
    """Find the k sentences of the corpus with the highest cosine to each query, under each encoder.

    Each encoder encodes each distinct text once. The search is exact; equal cosines come in the order of the corpus.

    Arguments:
        encoders: one or more, as ``embed`` takes them.
        corpus: sentences; white space is normalised, equal ones count once.
        queries: any texts, from the corpus or not.
        k: number of neighbours per query; a smaller corpus gives fewer.
        keep_equal: keep a neighbour that equals the query. By default it is excluded.
        block_size: number of corpus rows compared at a time, see ``search_blocks``.

    Raises:
        ValueError: no encoders, no queries, ``k`` below 1, a corpus that leaves no neighbour, or what ``embed``
            raises.
    """
    if not encoders:
        raise ValueError("encoders must hold at least one encoder")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    sentences = list(dict.fromkeys(normal(text) for text in check_texts(corpus)))
    asked = [normal(text) for text in check_texts(queries)]
    position = {text: i for i, text in enumerate(sentences)}
    own = [-1 if keep_equal else position.get(text, -1) for text in asked]
    if len(sentences) < 2 and not keep_equal:
        raise ValueError(f"corpus must hold at least 2 distinct sentences, got {len(sentences)}")
    texts = list(dict.fromkeys([*sentences, *asked]))
    rows = {text: i for i, text in enumerate(texts)}
    sides = []
    for encoder in encoders:
        embeddings = embed(encoder, texts, progress)
        scores, index = search_blocks(
            embeddings[[rows[text] for text in asked]],
            [embeddings[: len(sentences)]],
            k if keep_equal else k + 1,
            block_documents=block_size,
        )
        rows_found = zip(index.tolist(), scores.tolist(), own, strict=True)
        sides.append(
            [
                tuple(Neighbor(sentences[j], value) for j, value in zip(*row, strict=True) if j != left_out)[:k]
                for *row, left_out in rows_found
            ]
        )
    return [QueryNeighbors(query, tuple(found)) for query, *found in zip(asked, *sides, strict=True)]


def shared_fraction(answers: Sequence[QueryNeighbors]) -> float:
    """Return the fraction of a query's neighbours that all encoders found, averaged over the queries."""
    return float(np.mean([len(answer.shared()) / len(answer.found[0]) for answer in answers]))


def write_neighbors(
    path: str | Path, answers: Sequence[QueryNeighbors], names: Sequence[str], about: Mapping[str, Any]
) -> Path:
    """Write the answers as JSON, or as TSV with one line per neighbour (query, model, rank, cosine, sentence).

    Arguments:
        path: path that ends in .json or .tsv.
        names: names of the encoders.
        about: further fields of the JSON file.

    The file is written whole or not at all.

    Raises:
        ValueError: another ending.
        OSError: among others, the disk is full; an older file stays.
    """
    path = Path(path)
    check_ending(path)
    rows = [
        {"query": a.query, "model": name, "rank": i, "cosine": round(found.cosine, 6), "sentence": found.sentence}
        for a in answers
        for name, side in zip(names, a.found, strict=True)
        for i, found in enumerate(side, 1)
    ]
    if path.suffix == ".tsv":
        lines = ["\t".join(COLUMNS)]
        lines += ["\t".join(str(value) for value in row.values()) for row in rows]
        text = "\n".join(lines)
    else:
        shared = [{"query": answer.query, "shared": sorted(answer.shared())} for answer in answers]
        content = {**about, "models": list(names), "neighbors": rows, "shared": shared}
        text = json.dumps(content, indent=1, ensure_ascii=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text + "\n").encode())
    return path


def check_replaceable(path: Path) -> None:
    """Raise FileExistsError for a file that ``write_neighbors`` did not write."""
    if not path.is_file():
        return
    if path.stat().st_size == 0:
        raise FileExistsError(f"{path}: exists and is empty; delete it or choose another name")
    if path.suffix == ".tsv":
        with path.open(encoding="utf-8", errors="replace") as file:
            ours = file.readline().rstrip("\n") == "\t".join(COLUMNS)
    else:
        content = _json(path)
        ours = isinstance(content, dict) and {"models", "neighbors", "shared"} <= content.keys()
    if not ours:
        raise FileExistsError(f"{path}: holds something else than neighbours; choose another name")


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError:
        return None


def check_ending(path: Path) -> None:
    """Raise ValueError unless ``write_neighbors`` can write the file."""
    if path.suffix not in (".json", ".tsv"):
        raise ValueError(f"output must end in .json or .tsv, got {path.name!r}")
