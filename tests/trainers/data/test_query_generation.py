"""Queries of passages: any sequence-to-sequence model, a kill, bad input; then mining and margins of a cross-encoder,
with small models from end to end."""

import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.trainers import load_corpus
from csekit.trainers.data import query_generation
from csekit.trainers.data.cross_encoders import CrossEncoder
from csekit.trainers.data.query_generation import QueryGeneration, write_queries
from csekit.trainers.data.teachers import Teachers

SCRIPT = Path(__file__).parents[3] / "examples" / "generate_queries.py"
SIZES = {"d_model": 16, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


@pytest.fixture(scope="module")
def writer_of(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random model of a family, and its tokenizer of whole words."""

    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        tokens = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *small.WORDS])}
        inner = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
        special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=64, **special).save_pretrained(folder)
        torch.manual_seed(0)
        if kind == "t5":
            config = T5Config(vocab_size=len(tokens), d_kv=8, d_ff=32, num_layers=1, num_heads=2, **SIZES)
            T5ForConditionalGeneration(config).save_pretrained(folder)
        else:
            heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
            layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
            more = {"forced_eos_token_id": None, "bos_token_id": 0, "max_position_embeddings": 64}
            config = BartConfig(vocab_size=len(tokens), **heads, **layers, **SIZES, **more)
            BartForConditionalGeneration(config).save_pretrained(folder)
        return folder

    made = {kind: make(kind) for kind in ("t5", "bart")}
    return made.__getitem__


@pytest.fixture
def passages(small: Any, tmp_path: Path) -> Path:
    return small.write_texts(tmp_path / "passages.txt", 20)


def settings_of(folder: Path, **options: Any) -> QueryGeneration:
    return QueryGeneration(str(folder), **{"block_size": 8, "batch_size": 4, "max_query_length": 6, **options})


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_queries_stand_beside_their_passages(writer_of: Any, passages: Path, tmp_path: Path, kind: str) -> None:
    corpus, state = load_corpus(passages, tell=False), torch.get_rng_state()
    counts = write_queries(corpus, tmp_path / "pairs.jsonl", settings_of(writer_of(kind)), progress=False)
    assert torch.equal(torch.get_rng_state(), state)
    rows = read(tmp_path / "pairs.jsonl")
    assert len(rows) == counts["pairs"] > 20
    order = list(dict.fromkeys(row["passage"] for row in rows))
    texts = passages.read_text().splitlines()
    assert order == [text for text in dict.fromkeys(texts) if text in set(order)]
    assert len({(row["query"], row["passage"]) for row in rows}) == len(rows)
    assert json.loads((tmp_path / "pairs.jsonl.json").read_text())["counts"] == counts


def test_a_killed_call_writes_the_same_pairs(
    writer_of: Any, passages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, settings = load_corpus(passages, tell=False), settings_of(writer_of("t5"))
    write_queries(corpus, tmp_path / "whole.jsonl", settings, progress=False)
    real, written = query_generation.write_json, []

    def killed_at_the_second_block(path: Path, value: Any) -> None:
        written.append(path.name)
        if len([name for name in written if name[0].isdigit()]) == 2:
            raise KeyboardInterrupt
        real(path, value)

    target = tmp_path / "part.jsonl"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(query_generation, "write_json", killed_at_the_second_block)
        write_queries(corpus, target, settings, progress=False)
    assert not target.exists()
    with pytest.raises(ValueError, match=r"holds parts of another run \(top_k: 25 there, 5 now\)"):
        write_queries(corpus, target, settings_of(writer_of("t5"), top_k=5), progress=False)
    write_queries(corpus, target, settings, progress=False)
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not (tmp_path / "part.jsonl.parts").exists()
    with pytest.raises(FileExistsError, match="exists already"):
        write_queries(corpus, target, settings, progress=False)


@pytest.mark.parametrize("changed", ["weights", "tokenizer"])
def test_parts_of_another_generator_of_the_same_name_are_refused(
    writer_of: Any, passages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, changed: str
) -> None:
    """A call that was killed went on with the generator that took the folder's place, without a word."""
    folder, target = shutil.copytree(writer_of("t5"), tmp_path / "writer"), tmp_path / "pairs.jsonl"
    real, settings = query_generation.write_json, target.with_name("pairs.jsonl.parts") / "settings.json"

    def run() -> Any:
        words = [SCRIPT, passages, target, "--model", folder, "--block_size", 8, "--max_query_length", 6]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code

    def killed_at_the_second_block(path: Path, value: Any) -> None:
        if path.name == "000000000008.json":
            raise KeyboardInterrupt
        real(path, value)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(query_generation, "write_json", killed_at_the_second_block)
        run()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if changed == "weights":
        model = T5ForConditionalGeneration.from_pretrained(folder)
        model.shared.weight.data.mul_(2)
        model.save_pretrained(folder)
    else:
        content = json.loads(before["tokenizer.json"])
        words = content["model"]["vocab"]
        words["dog"], words["cat"] = words["cat"], words["dog"]
        (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    assert run() == 2
    assert f"holds parts of another run ({changed}: " in capsys.readouterr().err
    for name, data in before.items():
        (folder / name).write_bytes(data)
    made = json.loads(settings.read_text(encoding="utf-8"))
    if changed == "weights":  # an earlier version wrote none
        settings.write_text(json.dumps({name: made[name] for name in made if name not in ("weights", "tokenizer")}))
    assert run() == 0
    assert {"weights", "tokenizer"} <= json.loads(target.with_name("pairs.jsonl.json").read_text()).keys()


def test_parts_of_another_column_are_refused(
    writer_of: Any, small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The queries of one column used to be written beside the passages of the other."""
    table, target = small.write_texts(tmp_path / "passages.tsv", 20, 2), tmp_path / "pairs.jsonl"
    names = table.read_text().splitlines()[0].split("\t")

    def run(column: str) -> Any:
        words = [SCRIPT, table, target, "--model", writer_of("t5"), "--column", column, "--block_size", 8]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return ended.value.code

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(query_generation, "write_rows", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run(names[0])
    assert run(names[1]) == 2
    assert f"another run (column: {names[0]!r} there, {names[1]!r} now)" in capsys.readouterr().err
    assert run(names[0]) == 0


def test_a_passage_longer_than_the_model_reads_loses_its_end(writer_of: Any, small: Any, tmp_path: Path) -> None:
    """BART has 64 positions: a longer passage or query ended in a traceback."""
    texts = [" ".join((small.WORDS * 20)[i : i + 120]) for i in range(4)]
    passages, target = tmp_path / "passages.txt", tmp_path / "pairs.jsonl"
    passages.write_text("\n".join(texts))
    settings = QueryGeneration(model=str(writer_of("bart")), max_length=350, max_query_length=100, queries=1)
    counts = write_queries(load_corpus(passages, tell=False), target, settings, progress=False)
    assert counts["passages"] == 4
    assert [json.loads(line)["passage"] for line in target.read_text().splitlines()] == texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--queries", "0"], "queries must be a number of at least 1, got 0"),
        (["--top_p", "1.5"], "top_p must be a number greater than 0 and at most 1, got 1.5"),
    ],
)
def test_the_script_refuses_bad_values(
    passages: Path, tmp_path: Path, words: list[str], message: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate_queries.py", str(passages), str(tmp_path / "x.jsonl"), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def judge(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random cross-encoder."""
    folder = tmp_path_factory.mktemp("judge")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *small.WORDS]
    BertTokenizer(vocab={word: i for i, word in enumerate(vocab)}, model_max_length=32).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(vocab), num_labels=1, initializer_range=0.5, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_margins_are_those_of_sentence_transformers_cross_encoder(judge: Path, small: Any, tmp_path: Path) -> None:
    cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder(str(judge), device="cpu")
    corpus = load_corpus(small.write_texts(tmp_path / "triplets.tsv", 12, 3), tell=False)
    found = Teachers(corpus, [str(judge)], tmp_path / "teachers", margins=True).vectors(progress=False)[0]
    rows = [row["texts"] for row in corpus.dataset.__getitems__(range(12))]
    positive, negative = (
        cross_encoder.predict([(row[0], row[side]) for row in rows], activation_fn=torch.nn.Identity())
        for side in (1, 2)
    )
    np.testing.assert_allclose(found[:, 0], positive - negative, atol=1e-5)
    assert np.abs(found).max() > 0.01


def test_a_model_with_two_outputs_is_no_cross_encoder(judge: Path, tmp_path: Path) -> None:
    BertForSequenceClassification(BertConfig.from_pretrained(judge, num_labels=2)).save_pretrained(tmp_path)
    BertTokenizer.from_pretrained(judge).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a cross-encoder must have one output, got 2"):
        CrossEncoder(str(tmp_path))


@pytest.mark.parametrize("family", ["gpt2", "roberta"])
def test_a_cross_encoder_without_padding_token_or_limit(small: Any, tmp_path: Path, family: str) -> None:
    """A decoder's tokenizer has no padding token, and RoBERTa has two positions fewer than its table."""
    tokens = {word: i for i, word in enumerate(["</s>", "<pad>", "<unk>", *small.WORDS])}
    inner = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "</s>", "unk_token": "<unk>"} | ({"pad_token": "<pad>"} if family == "roberta" else {})
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(tmp_path)
    torch.manual_seed(0)
    if family == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 18}
        GPT2ForSequenceClassification(
            GPT2Config(vocab_size=len(tokens), num_labels=1, bos_token_id=0, eos_token_id=0, **sizes)
        ).save_pretrained(tmp_path)
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        RobertaForSequenceClassification(
            RobertaConfig(
                vocab_size=len(tokens), num_labels=1, max_position_embeddings=18, initializer_range=0.5, **sizes
            )
        ).save_pretrained(tmp_path)
    words = small.WORDS
    pairs = [(words[0], words[1]), (" ".join(words[:5]), words[2]), (" ".join([words[3]] * 30), words[4])]
    encoder = CrossEncoder(str(tmp_path))
    alone = [encoder.score([pair])[0] for pair in pairs]
    np.testing.assert_allclose(encoder.score(pairs), alone, atol=1e-6)
    assert len(set(alone)) == 3


def test_from_passages_to_an_encoder(
    small: Any, small_backbone: Path, writer_of: Any, judge: Path, passages: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Queries, hard negatives, margins, training: each reads what the step before wrote."""
    pairs, triplets, run = tmp_path / "pairs.jsonl", tmp_path / "triplets.jsonl", tmp_path / "run"
    words = [SCRIPT, passages, pairs, "--model", writer_of("t5"), "--max_query_length", 6]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert not ended.value.code
    mine = ["mine", pairs, "--model", small_backbone, "--pooling", "mean", "--output", triplets, "--device", "cpu"]
    found = CliRunner().invoke(main, [str(word) for word in mine])
    assert found.exit_code == 0, found.output
    train = [
        "train-pairs",
        "--method",
        "joint",
        "--objectives",
        "margin",
        "--contrastive_weight",
        0,
        "--teachers",
        judge,
    ]
    train += ["--projector", "none", "--projector_at_inference", "False", "--pooling", "mean", "--max_steps", 2]
    train += ["--model_name_or_path", small_backbone, "--output_dir", run, "--per_device_train_batch_size", 8]
    train += ["--report_to", "none", "--disable_tqdm", "True", "--use_cpu", "True", "--label_free_samples", 0]
    refused = CliRunner().invoke(main, [str(word) for word in [*train, "--train_file", pairs]])
    assert refused.exit_code == 2
    assert "the objective 'margin' needs 3 columns (query, positive, negative), pairs.jsonl has" in refused.output
    found = CliRunner().invoke(main, [str(word) for word in [*train, "--train_file", triplets]])
    assert found.exit_code == 0, found.output
    encoder = load_encoder(run, device="cpu")
    assert encoder.similarity_fn_name == "dot"
    assert f"`teachers`: ['{judge.name}']" in (run / "README.md").read_text()
