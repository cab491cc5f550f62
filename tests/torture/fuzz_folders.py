"""Damaged and hostile model folders: refused in one line, or the embeddings are those of the whole folder."""

import json
import os
import runpy
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

pytestmark = pytest.mark.torture
f = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("fuzzing.py"))))

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
#: Files that say how a folder is used; what they change in it is not damage.
SMALL = {
    "modules.json": MODULES,
    "1_Pooling/config.json": {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
    "config_sentence_transformers.json": {"prompts": {"query": "a"}, "default_prompt_name": None},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("folders")
    whole = f.tiny(folder / "whole")
    for name, content in SMALL.items():
        (whole / name).parent.mkdir(exist_ok=True)
        f.write_json(whole / name, content)
    (folder / "texts.txt").write_text("\n".join(f.sentences(6)) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.chdir(folder)
        yield folder


def encode(model: Path, *more: str) -> Any:
    words = ("texts.txt", "--model", model, "-o", "out.npy", "--device", "cpu", "--no_progress", "--overwrite")
    return f.csekit("encode", *words, *more)


def copied(folder: Path) -> Path:
    broken = folder / "broken"
    shutil.rmtree(broken, ignore_errors=True)
    shutil.copytree(folder / "whole", broken)
    return broken


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", *SMALL])
def test_small_files(folder: Path, name: str) -> None:
    fuzz, base = f.Fuzz(f"model folder, {name}"), json.loads((folder / "whole" / name).read_text())

    def body(content: Any) -> None:
        broken = copied(folder)
        if isinstance(content, bytes):
            (broken / name).write_bytes(content)
        else:
            f.write_json(broken / name, content)
        ended = encode(broken)
        wrong = ended.code == 0 and not np.isfinite(np.load(folder / "out.npy")).all()
        fuzz.judge(ended, content, "embeddings that are not finite" if wrong else "")

    fuzz.run(f.changed(base) | f.damaged(json.dumps(base).encode()), body)


def test_weights(folder: Path) -> None:
    """Cut or longer weights. Single bytes of a number cannot be told without a checksum, and are left alone."""
    fuzz, data = f.Fuzz("model folder, weights"), (folder / "whole" / "model.safetensors").read_bytes()
    assert encode(folder / "whole").code == 0
    wanted = np.load(folder / "out.npy")
    head = 8 + int.from_bytes(data[:8], "little")

    def body(drawn: tuple[str, int, bytes]) -> None:
        how, place, noise = drawn
        broken = copied(folder)
        if how == "cut":
            changed = data[: place % len(data)]
        elif how == "longer":
            changed = data + noise
        else:
            at = place % head
            changed = data[:at] + noise + data[at + len(noise) :]
        (broken / "model.safetensors").write_bytes(changed)
        ended = encode(broken)
        wrong = ended.code == 0 and not np.allclose(np.load(folder / "out.npy"), wanted, atol=1e-5)
        fuzz.judge(ended, drawn, "other embeddings" if wrong else "")

    kinds = st.sampled_from(["cut", "longer", "header", "header"])
    fuzz.run(st.tuples(kinds, st.integers(0, 10**6), st.binary(min_size=1, max_size=3)), body)


@pytest.mark.parametrize("command", ["encode", "eval", "report", "export", "push", "check"])
def test_hostile_folders(folder: Path, command: str) -> None:
    """Files that are folders, links in a circle, devices, names without end, and missing files."""
    fuzz = f.Fuzz(f"hostile folder, {command}")
    (folder / "pairs.tsv").write_text("a\tb\t1\nc\td\t2\ne\tf\t3\n")
    names = sorted(str(p.relative_to(folder / "whole")) for p in (folder / "whole").rglob("*") if p.is_file())

    def body(drawn: list[tuple[str, str]]) -> None:
        broken = copied(folder)
        for name, how in drawn:
            path = broken / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            if how == "folder":
                path.mkdir()
            elif how == "circle":
                path.symlink_to(path)
            elif how == "empty":
                path.touch()
            elif how == "null":
                path.symlink_to(os.devnull)
            elif how == "passwords":
                path.symlink_to("/etc/passwd")
        words = {
            "encode": (
                "texts.txt",
                "--model",
                broken,
                "-o",
                "out.npy",
                "--device",
                "cpu",
                "--no_progress",
                "--overwrite",
            ),
            "eval": (broken, "--pairs", folder / "scored.tsv", "--device", "cpu", "--no_progress"),
            "report": (broken, "-o", "page.html"),
            "export": (broken, "-o", "exported", "--format", "sentence-transformers", "--overwrite"),
            "push": (broken, "me/model"),
            "check": ("texts.txt", "--model", broken),
        }[command]
        ended = f.csekit(command, *words)
        leaked = "root:" in ended.text
        fuzz.judge(ended, drawn, "shows another file" if leaked else "")

    (folder / "scored.tsv").write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\nred\tblue\t2\nthe\ta\t3\n")
    how = st.sampled_from(["folder", "circle", "empty", "null", "passwords", "gone"])
    fuzz.run(st.lists(st.tuples(st.sampled_from(names), how), min_size=1, max_size=2), body)
