"""ONNX exports: the real exporter, the real onnxruntime."""

import json
import pickle
import re
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer
from typer.testing import CliRunner

from csekit.cli import main
from csekit.cli.common import identity
from csekit.encoding import ONNXEncoder, load_encoder, onnx_export
from csekit.encoding.files import encoder_settings
from csekit.encoding.onnx_export import EncoderGraph, check_batches, export_onnx, largest_difference
from csekit.evaluation import sts_data
from csekit.modeling import SimCSEModel

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")

TEXTS = ["the man plays guitar .", "a dog runs", "cat", "a fast red ball is in the house on the tree . " * 4]
TEMPLATE = "{sentence} is {mask} ."


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env={"CSEKIT_DATA": None})


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(" ".join(TEXTS).split()))]
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(words)}, model_max_length=32)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(words), max_position_embeddings=32, initializer_range=0.3, **sizes)
    folder = tmp_path_factory.mktemp("onnx") / "tiny"
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def checkpoint(backbone: Path) -> Path:
    """A training checkpoint whose projector is kept."""
    torch.manual_seed(1)
    model = SimCSEModel.from_backbone(backbone, projector="tanh", projector_at_inference=True)
    model.save_pretrained(backbone.parent / "run/training")
    BertTokenizer.from_pretrained(backbone).save_pretrained(backbone.parent / "run/training")
    return backbone.parent / "run"


@pytest.fixture(scope="module")
def exported(checkpoint: Path) -> tuple[Path, str]:
    """The folder of a pooled export with int8, scored on a small dev set, and what the command said."""
    out, dev = checkpoint.parent / "exported", checkpoint.parent / "data/STS/STSBenchmark/sts-dev.csv"
    dev.parent.mkdir(parents=True)
    pairs = enumerate(combinations(TEXTS, 2))
    dev.write_text("".join(f"main\tMSRvid\t2012\t{i}\t{i % 5}\t{one}\t{two}\n" for i, (one, two) in pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sts_data, "COUNTS", {**sts_data.COUNTS, "STS-B-dev": {"dev": 6}})
        options = ("--pooled", "--normalize", "--int8", "--data_dir", checkpoint.parent / "data")
        found = run("export", checkpoint, "-o", out, *options)
        assert found.exit_code == 0, found.output
        options = ("--tasks", "STS-B-dev", "--data_dir", checkpoint.parent / "data", "--no_progress")
        scored = run("eval", out, "--output", out.parent / "scores.json", *options)
        assert scored.exit_code == 0, scored.output
    return out, found.output


def test_the_command_writes_a_checked_folder(exported: tuple[Path, str]) -> None:
    folder, said = exported
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    wanted = {"config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "tokenizer.json"}
    assert wanted | {"onnx/model.onnx", "onnx/model_int8.onnx", "2_Dense/model.safetensors"} <= names
    assert "model.safetensors" not in names
    assert not list(folder.parent.glob(".exported*"))
    record = json.loads((folder / "export.json").read_text())
    assert record["check"]["largest_difference"] <= 1e-4
    assert record["int8"]["least_cosine"] > 0.9
    assert [1, 32] in record["check"]["batches"]
    assert [1, 3] in record["check"]["batches"]
    settings = {"pooled": True, "normalize": True, "pooling": "cls", "max_length": 32}
    assert {name: record[name] for name in settings} == settings
    assert "largest difference to torch" in said
    assert "int8: least cosine" in said
    scores = record["stsb"]["spearman"]
    assert scores.keys() == {"torch", "model", "model_int8"}
    assert record["stsb"]["pairs"] == 6
    assert scores["model"] == pytest.approx(scores["torch"])
    assert f"model {scores['model']:.2f} (+0.00)" in said


def test_eval_scores_an_export(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    results, record = (
        json.loads(path.read_text()) for path in (folder.parent / "scores.json", folder / "export.json")
    )
    (tasks,) = [section["tasks"] for section in results.values() if isinstance(section, dict) and "tasks" in section]
    assert tasks["STS-B-dev"]["all"] == pytest.approx(record["stsb"]["spearman"]["model"])
    assert results["run"]["weights"] == {"model.onnx": record["files"]["onnx/model.onnx"]["sha256"]}
    assert results["run"]["encoder"]["class"] == "ONNXModel"


def test_the_record_names_no_machine(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    assert str(folder.parent) not in (folder / "export.json").read_text()


def test_plain_onnxruntime_and_tokenizers_give_the_encoder_s_embeddings(
    exported: tuple[Path, str], checkpoint: Path
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(exported[0] / "tokenizer.json"))
    session = onnxruntime.InferenceSession(exported[0] / "onnx/model.onnx")
    assert [value.name for value in session.get_outputs()] == ["sentence_embedding", "last_hidden_state"]
    model = AutoModel.from_pretrained(checkpoint / "training")
    for texts in ([TEXTS[2]], TEXTS[:3], TEXTS[:3] * 7):
        tokenizer.enable_padding()
        encoded = tokenizer.encode_batch(texts)
        inputs = {"input_ids": np.array([e.ids for e in encoded])}
        inputs["attention_mask"] = np.array([e.attention_mask for e in encoded])
        with torch.no_grad():
            h = model(**{name: torch.from_numpy(value) for name, value in inputs.items()}).sentence_embedding.numpy()
        found = session.run(["sentence_embedding"], inputs)[0]
        np.testing.assert_allclose(found, h / np.linalg.norm(h, axis=1, keepdims=True), atol=1e-5)


def test_an_export_is_an_encoder(exported: tuple[Path, str], checkpoint: Path) -> None:
    encoder = load_encoder(exported[0])
    wanted = load_encoder(checkpoint, device="cpu").encode(TEXTS)
    assert isinstance(encoder, ONNXEncoder)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-5)
    assert encoder.truncated == 1  # the long one
    described = encoder.describe()
    named = {"pooling": "cls", "name": "exported", "file": "onnx/model.onnx"}
    assert {name: described[name] for name in named} == named
    rounded = load_encoder(exported[0] / "onnx/model_int8.onnx").encode(TEXTS)
    assert (rounded * wanted).sum(1).min() > 0.95
    assert not np.allclose(rounded, wanted, atol=1e-5)
    elsewhere = pickle.loads(pickle.dumps(encoder))  # as for another process
    np.testing.assert_array_equal(elsewhere.encode(TEXTS), encoder.encode(TEXTS))
    with pytest.raises(ValueError, match="max_length must be at most 32 for this graph, got 33"):
        load_encoder(exported[0], max_length=33)
    with pytest.raises(ValueError, match=r"max_length must exceed the 2 tokens .*, got 0"):
        load_encoder(exported[0], max_length=0).encode(TEXTS)
    with pytest.raises(ValueError, match="must be left out for an ONNX export"):
        load_encoder(exported[0], pooling="mean")


@pytest.fixture
def foreign(exported: tuple[Path, str], tmp_path: Path) -> Path:
    """An ONNX folder as others write it, without csekit's record."""
    shutil.copytree(exported[0], tmp_path / "foreign")
    (tmp_path / "foreign/export.json").unlink()
    return tmp_path / "foreign"


def edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**(json.loads(file.read_text()) if file.is_file() else {}), **fields}))


def test_weights_beside_the_graph_belong_to_the_encoder(exported: tuple[Path, str], tmp_path: Path) -> None:
    """Regression: graphs of over 2 GB keep their weights in a file of their own; with other weights there, vectors and
    scores of the earlier ones were taken for those of the same encoder."""
    import onnx

    folder = shutil.copytree(exported[0], tmp_path / "large")
    graph = folder / "onnx" / "model.onnx"
    one_file = encoder_settings(load_encoder(folder))["weights"], identity(str(folder), load_encoder(folder))
    onnx.save_model(
        onnx.load(graph), graph, save_as_external_data=True, location="model.onnx_data", size_threshold=200
    )
    data = graph.with_name("model.onnx_data")
    assert data.stat().st_size > 1000
    before = encoder_settings(load_encoder(folder))["weights"], identity(str(folder), load_encoder(folder))
    content = bytearray(data.read_bytes())
    content[-4:] = np.float32(0.5).tobytes()
    data.write_bytes(content)
    after = encoder_settings(load_encoder(folder))["weights"], identity(str(folder), load_encoder(folder))
    assert len({one_file[0], before[0], after[0]}) == 3
    assert set(before[1]["weights"]) == {"model.onnx", "model.onnx_data"} > set(one_file[1]["weights"])
    assert before[1] != after[1]


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_another_precision_is_refused(exported: tuple[Path, str], tmp_path: Path, precision: str) -> None:
    """It did nothing, and the record named it."""
    (tmp_path / "texts.txt").write_text("cat\n")
    words = ("encode", tmp_path / "texts.txt", "-m", exported[0], "-o", tmp_path / "out.npy", "--precision", precision)
    found = run(*words)
    assert found.exit_code == 2, found.output
    assert "precision must be 'fp32' for " in found.output
    assert not list(tmp_path.glob("out*"))


def test_the_folder_s_length_limit_is_followed(foreign: Path) -> None:
    edit(foreign / "sentence_bert_config.json", max_seq_length=5)
    encoder = load_encoder(foreign)
    assert encoder.max_length == 5
    np.testing.assert_array_equal(*encoder.encode(["the man plays guitar", "the man plays cat"]))


@pytest.mark.parametrize(
    ("file", "fields", "message"),
    [
        ("2_Dense/config.json", {"use_residual": True}, "does not run settings or weights in 2_Dense with an ONNX"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "texts that are truncated on the left"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "a "}, "default_prompt_name": "query"},
            "default prompts (default_prompt_name",
        ),
    ],
)
def test_what_only_sentence_transformers_follows_is_refused(
    foreign: Path, file: str, fields: dict[str, Any], message: str
) -> None:
    """These settings were left out without a word."""
    edit(foreign / file, **fields)
    with pytest.raises(ValueError, match=re.escape(message)):
        load_encoder(foreign)


def test_an_unknown_module_is_refused(foreign: Path) -> None:
    """It was taken for Normalize."""
    modules = json.loads((foreign / "modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_LayerNorm", "type": "sentence_transformers.models.LayerNorm"})
    (foreign / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=r"does not run modules \['Transformer', 'Pooling', 'Dense', 'LayerNorm'\]"):
        load_encoder(foreign)


def test_int8_where_the_tokenizer_names_no_limit(backbone: Path, tmp_path: Path) -> None:
    """It ended with the message that max_length must be given, which the command does not have."""
    SimCSEModel.from_backbone(backbone).export(tmp_path / "run", BertTokenizer.from_pretrained(backbone))
    config = json.loads((tmp_path / "run/tokenizer_config.json").read_text())
    del config["model_max_length"]
    (tmp_path / "run/tokenizer_config.json").write_text(json.dumps(config))
    found = run("export", tmp_path / "run", "-o", tmp_path / "out", "--int8")
    assert found.exit_code == 0, found.output
    assert load_encoder(tmp_path / "out").max_length == 32


def test_a_limit_above_the_positions_of_a_foreign_graph(backbone: Path, tmp_path: Path) -> None:
    """onnxruntime's error about an index ended the encoding of the first long text."""
    SimCSEModel.from_backbone(backbone).export(tmp_path / "run", BertTokenizer.from_pretrained(backbone))
    folder = tmp_path / "out"
    assert run("export", tmp_path / "run", "-o", folder).exit_code == 0
    (folder / "export.json").unlink()  # other programs write none
    for name, field in (
        ("tokenizer_config.json", "model_max_length"),
        ("sentence_bert_config.json", "max_seq_length"),
    ):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | {field: 512}))
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, TEXTS[-1] * 4]) + "\n")
    words = ("encode", tmp_path / "texts.txt", "-m", folder, "--no_progress", "-o")
    refused = run(*words, tmp_path / "a.npy", "--max_length", "33")
    assert refused.exit_code == 2
    assert refused.output == "error: max_length must be at most 32 for this graph, got 33\n"
    state = torch.get_rng_state()
    assert load_encoder(folder).max_length == 32
    assert torch.equal(torch.get_rng_state(), state)
    found = run(*words, tmp_path / "b.npy")
    assert found.exit_code == 0, found.output
    wanted = load_encoder(tmp_path / "run", device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "b.npy")[: len(TEXTS)], wanted, atol=1e-4)


@pytest.mark.slow
def test_token_states_of_a_template_are_pooled_outside(backbone: Path, tmp_path: Path) -> None:
    """The mask token is not the last one: the export has our own pooling module."""
    arguments = ("--pooling", "mask", "--prompt_template", TEMPLATE)
    found = run("export", backbone, "-o", tmp_path / "out", *arguments)
    assert found.exit_code == 0, found.output
    assert (tmp_path / "out/template_pooling.py").is_file()
    encoder = load_encoder(tmp_path / "out")
    assert isinstance(encoder, ONNXEncoder) and encoder.model.outputs == ["last_hidden_state"]
    wanted = load_encoder(backbone, pooling="mask", prompt_template=TEMPLATE, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "first_last_mean", "top2_mean", "mask"])
def test_the_graph_is_the_encoder(backbone: Path, pooling: str) -> None:
    """Every pooling in torch, before anything is exported: right padding and left."""
    template = TEMPLATE if pooling == "mask" else None
    encoder = load_encoder(backbone, pooling=pooling, prompt_template=template, device="cpu")
    graph = EncoderGraph(encoder.model, pooled=True, normalize=False).eval()
    for batch in check_batches(encoder.tokenizer, 32, template):
        flipped = {name: value.flip(1) for name, value in batch.items()} if pooling != "mask" else batch
        for given in (batch, flipped):
            with torch.no_grad():
                found, states = graph(**given)
                wanted = encoder.model(**given).sentence_embedding
            assert states.shape[:2] == given["input_ids"].shape
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_check_batches_reach_from_one_token_to_the_limit(backbone: Path) -> None:
    tokenizer = BertTokenizer.from_pretrained(backbone)
    batches = check_batches(tokenizer, 32, None)
    assert {batch["input_ids"].shape for batch in batches} == {(1, 3), (1, 32), (2, 32), (5, 19), (33, 11)}
    assert all(not set(batch["input_ids"][:, 1].tolist()) & {0, 1, 2, 3, 4} for batch in batches)
    again = check_batches(tokenizer, 32, None)
    assert all(torch.equal(one["input_ids"], two["input_ids"]) for one, two in zip(batches, again, strict=True))


def test_a_graph_that_differs_is_refused_and_nothing_is_lost(
    exported: tuple[Path, str], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported[0]
    batches = check_batches(BertTokenizer.from_pretrained(folder), 32, None)
    model = load_encoder(checkpoint, device="cpu").model
    with torch.no_grad():
        wanted = [(model(**b).sentence_embedding, model.backbone(**b).last_hidden_state) for b in batches]
    off = [(torch.nn.functional.normalize(e, dim=-1) + 1e-3, states) for e, states in wanted]
    with pytest.raises(ValueError, match=r"differs from torch by 0.001 in a batch of \(1, 3\) tokens, more"):
        largest_difference(folder / "onnx/model.onnx", batches, off)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def broken(*arguments: Any) -> None:
        (arguments[2]).write_bytes((folder / "onnx/model_int8.onnx").read_bytes())

    monkeypatch.setattr(onnx_export, "write_graph", broken)
    found = run("export", checkpoint, "-o", folder, "--pooled", "--normalize", "--overwrite")
    assert found.exit_code == 2, found.output
    assert "differs from torch by" in found.output
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not list(folder.parent.glob(".exported*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pooling", "first_last_mean"], "pooling 'first_last_mean' reads several layers, the graph gives the last"),
        (["--pooling", "cls", "--normalize"], "--normalize needs --pooled"),
        (["--pooling", "cls", "--opset", "11"], "--opset must be at least 18, got 11"),
        (["--pooling", "cls", "--dtype", "float16"], "--dtype is for --format sentence-transformers, got 'float16'"),
        (["--pooling", "cls", "--format", "gguf"], "--format must be onnx or sentence-transformers, got 'gguf'"),
        (["--pooling", "mean", "--format", "sentence-transformers", "--int8"], "--int8 is for --format onnx"),
        ([], "pooling must be one of 'cls', 'mean'"),
    ],
)
def test_what_cannot_be_is_one_line(backbone: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    found = run("export", backbone, "-o", tmp_path / "out", *arguments)
    assert found.exit_code == 2, found.output
    assert message in found.output
    assert found.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_no_export_is_left_alone(backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for more, message in (([], "holds files already"), (["--overwrite"], "no export.json")):
        found = run("export", backbone, "-o", tmp_path, "--pooling", "cls", *more)
        assert found.exit_code == 2 and message in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_missing_packages_are_named(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install 'csekit\[onnx\]'"):
        export_onnx(backbone, tmp_path / "out", pooling="cls")


def test_other_dtypes(checkpoint: Path, tmp_path: Path) -> None:
    found = run(
        "export", checkpoint, "-o", tmp_path / "half", "--format", "sentence-transformers", "--dtype", "float16"
    )
    assert found.exit_code == 0, found.output
    wanted = load_encoder(checkpoint, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tmp_path / "half", device="cpu").encode(TEXTS), wanted, atol=5e-3)
    assert AutoModel.from_pretrained(tmp_path / "half").dtype == torch.float16
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra 'st'")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "half"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs.astype(np.float32), wanted, atol=2e-2)
    record = json.loads((tmp_path / "half/export.json").read_text())
    assert record["dtype"] == "float16" and "model.safetensors" in record["files"]


def test_another_dtype_of_a_checkpoint_with_adapters(backbone: Path, tmp_path: Path) -> None:
    """The folder had the adapters beside the weights, by names of peft: ``AutoModel`` drew the weights at random."""
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    model = SimCSEModel.from_backbone(backbone, pooling="mean", lora=2)
    for name, parameter in model.backbone.named_parameters():
        if ".lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "training")
    BertTokenizer.from_pretrained(backbone).save_pretrained(tmp_path / "training")
    found = run("export", tmp_path / "training", "-o", tmp_path / "out", "--format", "sentence-transformers")
    assert found.exit_code == 0, found.output
    _, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    wanted = load_encoder(tmp_path / "training", device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tmp_path / "out", device="cpu").encode(TEXTS), wanted, atol=1e-5)
    assert run("export", tmp_path / "training", "-o", tmp_path / "graph", "--int8").exit_code == 0
    np.testing.assert_allclose(load_encoder(tmp_path / "graph").encode(TEXTS), wanted, atol=1e-4)
    rounded = load_encoder(tmp_path / "graph/onnx/model_int8.onnx").encode(TEXTS)
    assert torch.nn.functional.cosine_similarity(torch.tensor(rounded), torch.tensor(wanted)).min() > 0.98


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_checkpoint_in_16_bits_is_computed_in_float32(backbone: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    """As every other encoder. It was computed in 16 bits, and its graph could not be run, or was refused."""
    model = SimCSEModel.from_backbone(backbone, projector="tanh", projector_at_inference=True).to(dtype)
    model.export(tmp_path, BertTokenizer.from_pretrained(backbone))
    model.save_pretrained(tmp_path / "training")
    wanted = load_encoder(tmp_path, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tmp_path / "training", device="cpu").encode(TEXTS), wanted, atol=1e-6)
    found = run("export", tmp_path / "training", "-o", tmp_path / "graph", "--pooled")
    assert found.exit_code == 0, found.output
    np.testing.assert_allclose(load_encoder(tmp_path / "graph").encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["roberta", "distilbert", "electra", "mpnet", "modernbert", "deberta-v2", "albert"])
def test_families(family: str, backbone: Path, tmp_path: Path) -> None:
    """The check is the command's own."""
    from transformers import AutoConfig

    tokenizer = BertTokenizer.from_pretrained(backbone)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    sizes |= {"intermediate_size": 24, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "pad_token_id": 0}
    if family == "distilbert":
        sizes |= {"dim": 16, "n_heads": 2, "n_layers": 2, "hidden_dim": 24}
    elif family == "modernbert":
        sizes |= dict.fromkeys(("bos_token_id", "cls_token_id"), 2) | dict.fromkeys(
            ("eos_token_id", "sep_token_id"), 3
        )
    elif family in ("electra", "albert"):
        sizes |= {"embedding_size": 8}
    AutoModel.from_config(AutoConfig.for_model(family, **sizes)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    record = export_onnx(tmp_path / "model", tmp_path / "out", pooling="first_last_mean", pooled=True, int8=True)
    assert record["check"]["largest_difference"] <= 1e-4
