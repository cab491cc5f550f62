"""Static encoders beside model2vec: the vectors, and the folder that sentence-transformers and model2vec load."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from csekit.cli import main
from csekit.encoding import load_encoder
from csekit.trainers import static_distillation
from csekit.trainers.static_distillation import StaticDistillation, distill_static, ordinary_tokens, token_vectors

TEXTS = ["the man plays guitar .", "a dog runs", "red unknownword house", "unknownword"]


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(main, ["distill-static", *map(str, words), "--device", "cpu", "--no_progress"])


@pytest.fixture
def static(tiny_folder: Path, tmp_path: Path) -> Path:
    found = run(tiny_folder, "--pooling", "mean", "--output", tmp_path / "static", "--dims", 8)
    assert found.exit_code == 0, found.output
    assert "22 tokens in 8 dimensions" in found.output
    return tmp_path / "static"


def cosines(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


def test_vectors_are_model2vecs(tiny_folder: Path, tmp_path: Path, static: Path) -> None:
    """model2vec's own functions on the same tokens: vectors in context, components, weights."""
    # its package wants a library that does not install beside this Transformers; the file itself does not need it
    file = Path(pytest.importorskip("model2vec").__file__).with_name("distill") / "inference.py"
    spec = importlib.util.spec_from_file_location("model2vec_inference", file)
    assert spec is not None
    assert spec.loader is not None
    inference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(inference)
    teacher = load_encoder(tiny_folder, "mean", device="cpu")
    tokens = ordinary_tokens(teacher)
    own = token_vectors(teacher, tokens, tmp_path / "parts", progress=False)
    rows = [[2, token, 3] for token in tokens]
    peers = inference.create_embeddings(teacher.model.backbone, rows, "cpu", pad_token_id=0)
    np.testing.assert_allclose(own, peers, atol=1e-5)
    weighted = inference.apply_pca(peers, 8) * inference.compute_weights(len(peers), 1e-4)[:, None]
    table = load_file(static / "model.safetensors")["embedding.weight"].numpy()
    np.testing.assert_allclose(cosines(table[tokens]), cosines(weighted), atol=1e-5)
    assert not np.delete(table, tokens, axis=0).any()  # special tokens


def test_all_three_libraries_load_the_folder_and_agree(static: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model2vec = pytest.importorskip("model2vec")
    own = load_encoder(static, device="cpu").encode(TEXTS)
    assert own.shape == (4, 8)
    np.testing.assert_allclose(np.linalg.norm(own[:3], axis=1), 1, rtol=1e-5)
    assert not own[3].any()  # nothing but an unknown word
    peer = sentence_transformers.SentenceTransformer(str(static), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(own, peer, atol=1e-6)
    other = model2vec.StaticModel.from_pretrained(str(static)).encode(TEXTS[:3])
    np.testing.assert_allclose(own[:3], other / np.linalg.norm(other, axis=1, keepdims=True), atol=1e-5)


def test_csekit_encode_and_the_card(static: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["encode", tmp_path / "texts.txt", "--model", static, "--output", tmp_path / "rows.npy", "--device", "cpu"]
    found = CliRunner().invoke(main, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), load_encoder(static).encode(TEXTS), atol=1e-6)
    card = (static / "README.md").read_text()
    assert "**tiny-bert**" in card
    assert "8 principal components" in card


def test_a_killed_call_goes_on(tiny_folder: Path, tmp_path: Path, static: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(static_distillation, "BLOCK", 10)
    calls: list[int] = []
    real = static_distillation.embed_chunk

    def killed_at_the_second_block(model: Any, tokenizer: Any, chunk: Any, *rest: Any) -> np.ndarray:
        calls.append(len(chunk.input_ids))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(model, tokenizer, chunk, *rest)

    monkeypatch.setattr(static_distillation, "embed_chunk", killed_at_the_second_block)
    words = (tiny_folder, "--pooling", "mean", "--output", tmp_path / "again", "--dims", 8)
    assert run(*words).exit_code != 0
    assert not (tmp_path / "again" / "modules.json").exists()
    assert run(*words).exit_code == 0
    assert calls == [1, 10, 10, 1, 10, 2]  # one token tells the size
    assert not (tmp_path / "again.parts").exists()
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (static / name).read_bytes()


def test_a_killed_call_does_not_go_on_with_another_tokenizer(
    tiny_folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The tokenizer's special tokens stand around each token: it went on with vectors that had others around them."""
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_folder, teacher)
    words = (teacher, "--pooling", "mean", "--dims", 8, "--output", tmp_path / "static")
    monkeypatch.setattr(
        static_distillation, "weighted_components", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert run(*words).exit_code != 0
    monkeypatch.undo()
    record = tmp_path / "static.parts" / "settings.json"
    whole = json.loads(record.read_text())
    settings = json.loads((teacher / "tokenizer_config.json").read_text())
    swapped = {"cls_token": "[SEP]", "sep_token": "[CLS]"}
    (teacher / "tokenizer_config.json").write_text(json.dumps(settings | swapped))
    found = run(*words)
    assert found.exit_code == 2
    assert "holds the vectors of another encoder, its tokenizer differs: delete it to start again" in found.output
    earlier = {name: value for name, value in whole.items() if name not in ("tokenizer", "layers", "lowercase")}
    record.write_text(json.dumps({**earlier, "name": "teacher"}))  # as earlier versions wrote it
    found = run(*words)
    assert found.exit_code == 0, found.output


def test_a_call_that_was_killed_while_it_wrote_goes_on(tiny_folder: Path, tmp_path: Path, static: Path) -> None:
    """The same call said that the folder holds something else than a static encoder."""
    program = f"""
import os, signal
from pathlib import Path
from csekit.encoding import load_encoder
from csekit.trainers import static_distillation
static_distillation.save_file = lambda *words: os.kill(os.getpid(), signal.SIGKILL)
encoder = load_encoder({str(tiny_folder)!r}, "mean", device="cpu")
settings = static_distillation.StaticDistillation(dims=8)
static_distillation.distill_static(encoder, Path({str(tmp_path / "again")!r}), settings, progress=False)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(tiny_folder, "--pooling", "mean", "--dims", 8, "--output", tmp_path / "again")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "again").iterdir()} == {path.name for path in static.iterdir()}
    assert np.array_equal(*(load_encoder(folder).encode(["a dog runs"]) for folder in (static, tmp_path / "again")))


def test_a_static_encoder_is_replaced_by_overwrite_alone(tiny_folder: Path, static: Path, tmp_path: Path) -> None:
    """The encoder of an earlier call was replaced without a word."""
    before = (static / "model.safetensors").read_bytes()
    words = (tiny_folder, "--pooling", "mean", "--dims", 4, "--output", static)
    found = run(*words)
    assert found.exit_code == 2
    assert "static holds a static encoder already: choose another folder or say overwrite" in found.output
    assert (static / "model.safetensors").read_bytes() == before
    (tmp_path / "static.parts").mkdir()  # a call with --overwrite that was killed
    shutil.copytree(static, tmp_path / "other")
    for more, folder in ((("--overwrite",), tmp_path / "other"), ((), static)):
        found = run(*words[:-1], folder, *more)
        assert found.exit_code == 0, found.output
        assert "22 tokens in 4 dimensions" in found.output
        assert load_encoder(folder).encode(["a dog"]).shape == (1, 4)
    found = run(*words[:-1], tiny_folder, "--overwrite")
    assert found.exit_code == 2 and "holds something else than a static encoder" in found.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dims", 23), "dims must be at most 22, the least of the teacher's 32 dimensions and 22 tokens, got 23"),
        (("--dims", -1), "dims must be a number of at least 0, got -1"),
        (("--sif", 1), "sif must be a number of at least 0 and below 1, got 1.0"),
        (("--output", "{folder}"), "holds something else than a static encoder"),
    ],
)
def test_what_is_refused(tiny_folder: Path, tmp_path: Path, words: tuple[Any, ...], message: str) -> None:
    given = [str(word).format(folder=tiny_folder) for word in words]
    found = run(tiny_folder, "--pooling", "mean", "--output", tmp_path / "static", *given)
    assert found.exit_code == 2
    assert message in found.output


def test_too_many_dimensions_are_told_before_the_vocabulary_is_encoded(
    tiny_folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The size of the teacher was compared when all tokens had been encoded."""
    monkeypatch.setattr(static_distillation, "ordinary_tokens", lambda encoder: [5, 6, 7] * 20)
    monkeypatch.setattr(static_distillation, "token_vectors", None)
    found = run(tiny_folder, "--pooling", "mean", "--output", tmp_path / "static", "--dims", 33)
    assert found.exit_code == 2
    told = "error: dims must be at most 32, the least of the teacher's 32 dimensions and 60 tokens, got 33\n"
    assert found.output == told
    assert list(tmp_path.glob("static*")) == []


def test_a_static_encoder_is_no_teacher_of_one(static: Path, tmp_path: Path) -> None:
    found = run(static, "--output", tmp_path / "other")
    assert found.exit_code == 2
    assert "the teacher must be an encoder that csekit runs itself" in found.output
    assert json.loads((static / "distillation.json").read_text())["teacher"]["pooling"] == "mean"


def test_a_call_that_was_killed_while_it_deleted_its_parts_leaves_none_to_another_teacher(
    tiny_folder: Path, small_backbone: Path, tmp_path: Path, static: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings were deleted first, and the next teacher took the blocks that were left."""
    output = tmp_path / "again"
    rmtree = shutil.rmtree

    def killed(path: Path, **options: Any) -> None:
        if ".parts" in Path(path).name and (Path(path) / "settings.json").exists():
            (Path(path) / "settings.json").unlink()
            raise KeyboardInterrupt
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", killed)
    assert run(small_backbone, "--pooling", "mean", "--dims", 8, "--output", output).exit_code != 0
    monkeypatch.undo()
    words = (tiny_folder, "--pooling", "mean", "--dims", 8, "--output")
    assert run(*words, output, "--overwrite").exit_code == 0
    assert (output / "model.safetensors").read_bytes() == (static / "model.safetensors").read_bytes()
    parts = tmp_path / "third.parts"  # as an earlier version could leave them
    parts.mkdir()
    np.save(parts / "000000000.npy", np.ones((22, 16), dtype=np.float32))
    assert run(*words, tmp_path / "third").exit_code == 0
    assert (tmp_path / "third" / "model.safetensors").read_bytes() == (static / "model.safetensors").read_bytes()


def test_a_folder_of_one_s_own_beside_the_output_stays(tiny_folder: Path, tmp_path: Path) -> None:
    """Regression: ``OUT.parts`` was deleted with all that was in it."""
    notes = tmp_path / "out.parts" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    teacher = load_encoder(tiny_folder, "mean", device="cpu")
    with pytest.raises(FileExistsError, match=r"out\.parts holds something else than parts .* notes\.txt"):
        distill_static(teacher, tmp_path / "out", StaticDistillation(dims=8), progress=False)
    assert notes.read_text() == "mine"
