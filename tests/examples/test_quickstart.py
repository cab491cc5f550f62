"""The quickstart: the page's commands are those that were run, and the notebook runs as it stands."""

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments import quickstart
from experiments.quickstart import PAGE, RESULTS, run_steps, steps

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def cells() -> list[str]:
    """The code cells of the notebook."""
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def test_the_outputs_of_the_page_are_of_its_commands() -> None:
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))["steps"]
    named = steps(PAGE.read_text(encoding="utf-8"))
    assert {name: step["commands"] for name, step in recorded.items()} == named, (
        "run: python -m experiments.quickstart"
    )
    assert list(named) == ["corpus", "check", "label", "train", "compare", "neighbors", "encode", "search"]


def test_steps_run_in_order_in_one_folder_and_a_failure_names_its_step(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    found = run_steps(
        {
            "one": "echo a > file.txt; ls examples/demo",
            "two": "cat file.txt\nread x; echo $x; echo warning: b >&2; echo bar >&2",
        },
        tmp_path / "first",
    )
    assert "dev.tsv" in found["one"]["output"]
    assert found["two"]["output"] == ["a", "q", "warning: b"]
    (tmp_path / "second").mkdir()
    with pytest.raises(RuntimeError, match=r"bad: .*nowhere"):
        run_steps({"bad": "cat nowhere", "never": "true"}, tmp_path / "second")


def test_outputs_are_renewed_with_the_times_of_a_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, output = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("```bash\necho new\n```\n\n<!-- table:quickstart/one -->\n")
    old = {"seconds": 1.5, "output": ["old"], "commands": "echo new"}
    output.write_text(json.dumps({"schema": 1, "environment": {"threads": 2}, "load": 0.1, "steps": {"one": old}}))
    monkeypatch.setattr(quickstart, "PAGE", page)
    quickstart.main(["--output", str(output), "--keep_times"])
    kept = json.loads(output.read_text())
    assert kept["steps"] == {"one": {"seconds": 1.5, "output": ["new"], "commands": "echo new"}}
    assert (kept["environment"], kept["load"]) == ({"threads": 2}, 0.1)
    quickstart.main(["--output", str(output)])
    renewed = json.loads(output.read_text())
    assert renewed["environment"] != {"threads": 2}


@pytest.mark.parametrize(
    ("earlier", "told"),
    [
        ({"one": {"commands": "echo old"}}, "the recorded commands, those of one are other ones"),
        ({"two": {"commands": "echo new"}}, "the recorded steps, two, got one"),
        (None, "No such file"),
    ],
)
def test_times_of_other_commands_are_not_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    earlier: dict[str, Any] | None,
    told: str,
) -> None:
    """Steps of the same names with other commands got the earlier times."""
    page, output = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("```bash\necho new\n```\n\n<!-- table:quickstart/one -->\n")
    if earlier is not None:
        output.write_text(json.dumps({"schema": 1, "steps": earlier}))
    monkeypatch.setattr(quickstart, "PAGE", page)
    assert quickstart.main(["--output", str(output), "--keep_times"]) == 2
    found = capsys.readouterr()
    assert told in found.err and not found.out


def test_the_notebook_is_a_notebook_without_outputs() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    assert all(not cell["outputs"] for cell in content["cells"] if cell["cell_type"] == "code")
    for text in cells():
        ast.parse(text)


@pytest.mark.slow
def test_the_notebook_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("quickstart", "demo"):
        shutil.copytree(ROOT / "examples" / folder, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, Any] = {}
    for number, text in enumerate(cells()):
        exec(compile(text, f"{NOTEBOOK.name}, cell {number}", "exec"), names)
    assert names["scores"]["after"]["spearman"] > names["scores"]["before"]["spearman"]
    assert len(names["texts"]) == 3
    assert (tmp_path / "runs" / "notebook" / "results.json").is_file()
