"""A folder's own prompts and similarity give the scores of sentence-transformers and mteb on the same folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from csekit.encoding.load import load_encoder
from csekit.evaluation.mteb_adapter import MTEBEncoder, mteb_retrieval_task
from csekit.evaluation.retrieval import evaluate_retrieval
from csekit.evaluation.retrieval_data import Collection
from csekit.modeling import SimCSEModel

WORDS = "the a man woman dog cat plays sings runs red blue fast slow guitar ball house tree".split()  # noqa: SIM905
PROMPTS = {"query": "the dog runs ", "document": "red house : "}


@pytest.fixture
def export(tiny_bert: Any, tiny_tokenizer: Any, tmp_path: Path) -> Path:
    """Weights large enough that sentences, and prompts, make a difference."""
    with torch.no_grad():
        for name, parameter in tiny_bert.named_parameters():
            if name.endswith("weight") and parameter.ndim == 2:
                parameter *= 20
    tiny_bert.save_pretrained(tmp_path / "bert")
    tiny_tokenizer.save_pretrained(tmp_path / "bert")
    model = SimCSEModel.from_backbone(str(tmp_path / "bert"), pooling="mean")
    return model.export(tmp_path / "export", tiny_tokenizer)


def configure(folder: Path, **settings: Any) -> Path:
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    return folder


def collection() -> Collection:
    rng = np.random.default_rng(0)
    documents, queries = ([" ".join(rng.choice(WORDS, 3 + i % 5)) for i in range(n)] for n in (60, 12))
    qrels = {f"q{i}": {f"d{j}": int(rng.integers(0, 3)) for j in rng.permutation(60)[:6]} for i in range(12)}
    ids = tuple(f"d{i}" for i in range(60))
    return Collection("tiny", ids, tuple(documents), tuple(qrels), tuple(queries), qrels)


def by_sentence_transformers(folder: Path, texts: Sequence[str], function: str = "encode") -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return np.asarray(getattr(SentenceTransformer(str(folder), device="cpu"), function)(list(texts)))


@pytest.mark.parametrize("default", [None, "query"])
def test_queries_and_documents_are_those_of_sentence_transformers(export: Path, default: str | None) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra st")
    configure(export, prompts=PROMPTS, default_prompt_name=default)
    texts = ["a man sings", "blue ball", "the tree"]
    encoder = load_encoder(export, device="cpu")
    for role, function in ((None, "encode"), ("query", "encode_query"), ("document", "encode_document")):
        ours = encoder.encode(texts) if role is None else encoder.for_role(role).encode(texts)
        np.testing.assert_allclose(ours, by_sentence_transformers(export, texts, function), atol=1e-5)
    assert abs(encoder.for_role("query").encode(texts) - encoder.for_role("document").encode(texts)).max() > 1e-2
    assert encoder.prompt is None, "the encoder itself must stay as it was"


def test_pooling_without_the_prompt_is_that_of_sentence_transformers(export: Path) -> None:
    """INSTRUCTOR's way: the prompt is read, but its tokens are not pooled."""
    pytest.importorskip("sentence_transformers", reason="needs the extra st")
    configure(export, prompts=PROMPTS)
    pooling = export / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps({**json.loads(pooling.read_text()), "include_prompt": False}))
    texts = ["a man sings", "blue ball"]
    ours = load_encoder(export, device="cpu").for_role("query").encode(texts)
    np.testing.assert_allclose(ours, by_sentence_transformers(export, texts, "encode_query"), atol=1e-5)


def test_e5_s_name_for_documents_is_known(export: Path) -> None:
    configure(export, prompts={"query": "the dog ", "passage": "red house "})
    encoder = load_encoder(export, device="cpu")
    assert encoder.for_role("document").prompt == "red house "
    np.testing.assert_array_equal(
        encoder.for_role("document").encode(["a tree"]), encoder.encode(["red house a tree"])
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_retrieval_is_mteb_s_with_the_same_folder(
    export: Path, similarity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mteb = pytest.importorskip("mteb", reason="needs the extra mteb")
    from sentence_transformers import SentenceTransformer

    configure(export, prompts=PROMPTS, similarity_fn_name=similarity)
    encoder = load_encoder(export, device="cpu")
    reference = SentenceTransformer(str(export), device="cpu")
    ours = evaluate_retrieval(encoder, collection()).metrics
    assert evaluate_retrieval(reference, collection()).metrics == pytest.approx(ours, abs=1e-2)
    for model in (reference, MTEBEncoder(encoder), MTEBEncoder(reference)):
        task = mteb_retrieval_task(collection())
        (result,) = mteb.evaluate(model, task, cache=None, show_progress_bar=False).task_results
        (scores,) = result.scores["test"]
        assert ours == pytest.approx({name: 100 * scores[name.replace("@", "_at_")] for name in ours}, abs=1e-2)
    plain = evaluate_retrieval(lambda texts: encoder.encode(texts), collection()).metrics
    assert plain != pytest.approx(ours, abs=1), "prompts and similarity must make a difference here"


def test_the_results_file_names_prompts_and_similarity_that_are_not_the_default(export: Path) -> None:
    plain = load_encoder(export, device="cpu").describe()
    assert not {"prompts", "similarity_fn_name"} & plain.keys()
    configure(export, prompts={**PROMPTS, "other": ""}, similarity_fn_name="dot")
    found = load_encoder(export, device="cpu").describe()
    assert found == {**plain, "prompts": PROMPTS, "similarity_fn_name": "dot"}


def test_an_unknown_similarity_or_role_is_named(export: Path) -> None:
    with pytest.raises(ValueError, match="role must be 'query', 'document' or None, got 'passage'"):
        load_encoder(export, device="cpu").for_role("passage")
    configure(export, similarity_fn_name="maxsim")
    with pytest.raises(ValueError, match=r"json: similarity_fn_name must be one of 'cosine', 'dot', .* got 'maxsim'"):
        load_encoder(export)
