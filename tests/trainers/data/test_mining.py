"""Hard negatives beside sentence-transformers' ``mine_hard_negatives``, resumed, and in training."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from csekit.encoding import load_encoder
from csekit.encoding.encoder import TextEncoder
from csekit.modeling import SimCSEModel
from csekit.trainers import load_corpus
from csekit.trainers.data import mining
from csekit.trainers.data.mining import Mining, mine_negatives

WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree".split()  # noqa: SIM905


def texts(rows: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(4, 7))) for _ in range(rows)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small_backbone: Path) -> Path:
    """An encoder, and pairs of which four queries have two positives; a file with further texts."""
    path = tmp_path_factory.mktemp("mining")
    tokenizer = AutoTokenizer.from_pretrained(small_backbone)
    for name, pooling in (("model", "mean"), ("guide", "cls")):
        model = SimCSEModel.from_backbone(small_backbone, pooling=pooling)
        generator = torch.Generator().manual_seed(1)
        for parameter in model.backbone.parameters():  # cosines of a new encoder are all near 1
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        model.export(path / name, tokenizer)
    queries, positives = texts(30, 1), texts(34, 2)
    rows = list(zip([*queries, *queries[:4]], positives, strict=True))
    lines = [json.dumps({"query": query, "answer": answer}) for query, answer in rows]
    (path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    (path / "further.txt").write_text("\n".join([*texts(20, 3), positives[0]]) + "\n")
    return path


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TextEncoder:
    return load_encoder(folder / "model", device="cpu")


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def mined(folder: Path, encoder: TextEncoder, target: Path, further: bool = False, **settings: Any) -> dict[str, int]:
    guide = load_encoder(folder / "guide", device="cpu") if settings.pop("guide", False) else None
    more = load_corpus(folder / "further.txt", tell=False) if further else None
    pairs = load_corpus(folder / "pairs.jsonl", tell=False)
    return mine_negatives(
        pairs, encoder, target, Mining(**settings), further=more, guide=guide, device="cpu", progress=False
    )


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({"num_negatives": 3}, {}),
        ({"num_negatives": 2, "range_min": 3, "range_max": 9}, {"range_min": 3, "range_max": 9}),
        ({"num_negatives": 4, "margin": 0.01, "range_max": 40}, {"absolute_margin": 0.01, "range_max": 40}),
        ({"num_negatives": 4, "relative_margin": 0.02, "range_max": 40}, {"relative_margin": 0.02, "range_max": 40}),
        (
            {"num_negatives": 3, "max_score": 0.9, "min_score": 0.3, "range_max": 40},
            {"max_score": 0.9, "min_score": 0.3, "range_max": 40},
        ),
    ],
)
@pytest.mark.parametrize("further", [False, True])
def test_the_triplets_are_those_of_sentence_transformers(
    folder: Path, encoder: TextEncoder, tmp_path: Path, settings: dict[str, Any], theirs: dict[str, Any], further: bool
) -> None:
    counts = mined(folder, encoder, tmp_path / "mined.jsonl", further, **settings)
    found = [tuple(row.values()) for row in rows_of(tmp_path / "mined.jsonl")]
    rows = rows_of(folder / "pairs.jsonl")
    data = Dataset.from_dict({name: [row[name] for row in rows] for name in ("query", "answer")})
    corpus = (folder / "further.txt").read_text().splitlines() if further else None
    st = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    expected = st.util.mine_hard_negatives(
        data,
        st.SentenceTransformer(str(folder / "model"), device="cpu"),
        corpus=corpus,
        num_negatives=settings["num_negatives"],
        verbose=False,
        **theirs,
    )
    assert set(found) == {tuple(row.values()) for row in expected}
    assert len(found) == counts["triplets"] > 10
    by_pair = [(row["query"], row["answer"]) for row in rows]
    assert [pair for pair in by_pair if pair in {(a, p) for a, p, _ in found}] == list(
        dict.fromkeys((a, p) for a, p, _ in found)
    )


def test_a_guide_leaves_out_what_it_finds_closer_than_the_positive(
    folder: Path, encoder: TextEncoder, tmp_path: Path
) -> None:
    counts = mined(folder, encoder, tmp_path / "mined.jsonl", guide=True, guide_margin=0.02, num_negatives=3)
    plain = mined(folder, encoder, tmp_path / "plain.jsonl", num_negatives=3)
    judge = load_encoder(folder / "guide", device="cpu")
    known = sorted({text for row in rows_of(folder / "pairs.jsonl") for text in row.values()})
    vectors = judge.encode(known).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    def cosine(a: str, b: str) -> float:
        return float(vectors[known.index(a)] @ vectors[known.index(b)])

    least: dict[str, float] = {}
    for row in rows_of(folder / "pairs.jsonl"):
        least[row["query"]] = min(least.get(row["query"], 2.0), cosine(row["query"], row["answer"]))
    excess = {
        name: [cosine(row["query"], row["negative"]) - least[row["query"]] + 0.02 for row in rows_of(tmp_path / name)]
        for name in ("mined.jsonl", "plain.jsonl")
    }
    assert max(excess["mined.jsonl"]) <= 1e-6
    assert max(excess["plain.jsonl"]) > 0
    assert counts["guide"] > 0
    assert plain["guide"] == 0


def test_the_query_s_own_text_is_no_negative(encoder: TextEncoder, tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(
        "".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in zip(WORDS[:4], [*WORDS[1:4], WORDS[0]], strict=True))
    )
    pairs = load_corpus(tmp_path / "pairs.jsonl", tell=False)
    counts = mine_negatives(pairs, encoder, tmp_path / "out.csv", Mining(9), device="cpu", progress=False)
    assert counts["same_text"] == counts["positive"] == 4
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == '"a","b","negative"'
    for line in lines[1:]:
        a, b, negative = line.split(",")
        assert len({a, b, negative}) == 3


def test_a_killed_search_goes_on_and_gives_the_same(
    folder: Path, encoder: TextEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mined(folder, encoder, tmp_path / "whole.jsonl", num_negatives=2)
    monkeypatch.setattr(mining, "BLOCK", 8)
    search, calls = mining.search_blocks, []

    def stopped(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return search(*arguments, **options)

    monkeypatch.setattr(mining, "search_blocks", stopped)
    with pytest.raises(KeyboardInterrupt):
        mined(folder, encoder, tmp_path / "cut.jsonl", num_negatives=2)
    assert not (tmp_path / "cut.jsonl").exists()
    with pytest.raises(ValueError, match=r"holds parts of another run \(num_negatives: 2 there, 3 now\)"):
        mined(folder, encoder, tmp_path / "cut.jsonl", num_negatives=3)
    mined(folder, encoder, tmp_path / "cut.jsonl", num_negatives=2)
    assert len(calls) == 5  # two blocks before, one interrupted, two after
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not (tmp_path / "cut.jsonl.parts").exists()
    record = json.loads((tmp_path / "cut.jsonl.json").read_text())
    assert record["counts"]["pairs"] == 34
    with pytest.raises(FileExistsError, match="exists already"):
        mined(folder, encoder, tmp_path / "cut.jsonl", num_negatives=2)


def test_training_reads_the_triplets(folder: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    mined(folder, encoder, tmp_path / "mined.jsonl")
    corpus = load_corpus(tmp_path / "mined.jsonl", tell=False)
    assert corpus.columns == ("query", "answer", "negative")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_negatives": 0}, "num_negatives must be a number of at least 1, got 0"),
        ({"range_min": 5, "range_max": 5}, r"range_max must be at least range_min \+ num_negatives, 6, got 5"),
        ({"margin": 3.0}, "margin must be a number of at least -2 and at most 2, got 3.0"),
        ({"min_score": 0.9, "max_score": 0.5}, "min_score must be at most max_score, 0.5, got 0.9"),
    ],
)
def test_settings_that_are_not_allowed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Mining(**settings)


def test_range_min_counts_behind_the_rules_and_range_max_before_them(
    folder: Path, encoder: TextEncoder, tmp_path: Path
) -> None:
    def negatives(name: str, **settings: Any) -> tuple[list[str], int]:
        counts = mined(folder, encoder, tmp_path / name, max_score=0.95, **settings)
        return [row["negative"] for row in rows_of(tmp_path / name)], counts["pairs_without"]

    both, without = negatives("both.jsonl", num_negatives=2, range_max=40)
    assert (len(both), without) == (68, 0)
    assert negatives("second.jsonl", range_min=1, range_max=40)[0] == both[1::2]
    assert 34 > negatives("close.jsonl", range_max=1)[1] > 0
    told = (Path(__file__).parents[3] / "docs" / "positives.md").read_text(encoding="utf-8")
    assert "`--range_min` | the closest of the candidates that all other rules leave |" in told
    assert "`--range_max` | candidates behind a rank, which is counted before the other rules;" in told


def test_no_negative_at_all_is_told_with_the_reason(folder: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"pairs.jsonl: no pair has a negative; candidates left out: .*max_score"):
        mined(folder, encoder, tmp_path / "mined.jsonl", max_score=-0.99)
    assert not (tmp_path / "mined.jsonl").exists()


def test_a_folder_of_one_s_own_beside_the_output_stays(folder: Path, encoder: TextEncoder, tmp_path: Path) -> None:
    """Regression: ``OUT.parts`` was taken for one's own, and deleted at the end with all that was in it."""
    notes = tmp_path / "out.jsonl.parts" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.jsonl\.parts holds something else than parts .* notes\.txt"):
        mined(folder, encoder, tmp_path / "out.jsonl")
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]
