"""The documents: generated tables are fresh, links lead somewhere, README's Python runs, its commands are known."""

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

import csekit
from csekit.cli import main
from csekit.trainers import parse_run_arguments
from csekit.trainers.scripts.pretraining_runs import parse_pretrain_arguments
from experiments.tables.render import update

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TRAININGS = ("train", "train-pairs", "distill", "pretrain")
FIRST_PAGES = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def shell_commands(path: Path) -> list[list[str]]:
    """The words of each command in the bash blocks; what follows ``&&`` is a command of its own."""
    found = []
    for block in code_blocks(path, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "&&" in words:
                end = words.index("&&")
                found.append(words[:end])
                words = words[end + 1 :]
            found.append(words)
    return [words for words in found if words]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_what_the_results_files_give(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert update(text, ROOT / "experiments" / "results") == text, (
        "run: python -m experiments.tables README.md docs/*.md"
    )


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert not [link for link in links if not (path.parent / link).exists()]


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_bert: Any, tiny_tokenizer: Any
) -> None:
    """In a folder that holds a tiny encoder named bert-base-uncased and a text file."""
    pytest.importorskip("sentence_transformers", reason="README's second block needs the extra st")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    tiny_bert.save_pretrained("bert-base-uncased")
    tiny_tokenizer.save_pretrained("bert-base-uncased")
    words = ("man", "woman", "dog", "cat", "ball", "house", "tree", "guitar")
    texts = [f"the {a} is in the {b} ." for a in words for b in words] + [f"a {a} runs fast ." for a in words]
    Path("sentences.txt").write_text("\n".join(texts), encoding="utf-8")

    blocks = code_blocks(ROOT / "README.md", "python")
    found = []
    for number, block in enumerate(blocks):
        names: dict[str, Any] = {}
        exec(compile(block, f"README.md, block {number}", "exec"), names)
        found.append(np.asarray(names["embeddings"]))
    assert [embeddings.shape for embeddings in found] == [(2, 32)] * 2
    # csekit and sentence-transformers read the same encoder, whose weights have been trained
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    untrained = csekit.load_encoder("bert-base-uncased", pooling="cls").encode(
        ["A man plays the guitar.", "Someone makes music."]
    )
    assert np.abs(found[0] - untrained).max() > 1e-4


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_are_parsed(path: Path) -> None:
    """Every command of every page but those with an ellipsis; nothing is run."""
    commands: Any = typer.main.get_command(main)
    used = [words for words in shell_commands(path) if words[0] == "csekit" and len(words) > 1]
    assert used or path not in FIRST_PAGES
    for _, name, *words in used:
        shown = [word for word in words if word not in ("--help", "--help_all")]
        if name.startswith("-") or "…" in " ".join(shown) or shown != words:
            continue
        if name in TRAININGS:
            parse_pretrain_arguments(words) if name == "pretrain" else parse_run_arguments(words)
        else:
            commands.commands[name].make_context(name, [*itertools.takewhile(lambda w: w not in (">", "|"), words)])


@pytest.mark.parametrize("path", FIRST_PAGES, ids=lambda path: path.name)
def test_options_of_training_commands_exist(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the parser makes no folder, but the arguments could
    starts = (["csekit", "train"], ["python", "examples/run_unsup.py"])
    used = [words[2:] for words in shell_commands(path) if words[:2] in starts]
    assert [words for words in used if "--train_file" in words]
    for words in used:
        run, arguments, _ = parse_run_arguments(words, defaults={"output_dir": "runs/demo"})
        assert (run.train_file or "").endswith("sentences.txt") or not words
        assert str(arguments.output_dir).startswith("runs/")


def test_the_version_is_the_same_in_every_place() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[([0-9.]+)\] - (\S+)$", changelog, re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert released[0] == (csekit.__version__, citation["date-released"])
    assert citation["version"] == csekit.__version__
    assert f"version = {{{csekit.__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")
