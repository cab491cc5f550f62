"""benchmarks/newcomer.sh runs README's commands in fresh clones, and fails with them."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "newcomer.sh"
README = """# x

## Two commands

```bash
test "$HOME" != "{home}" && echo first > made.txt && cat made.txt
```

Words.

```bash
{second}
```

## From a text file
"""


def repository(folder: Path, second: str) -> Path:
    (folder / "benchmarks").mkdir(parents=True)
    (folder / "benchmarks" / "newcomer.sh").write_bytes(SCRIPT.read_bytes())
    (folder / "README.md").write_text(README.format(home=Path.home(), second=second))
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "benchmarks" / "newcomer.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_it_finds_the_commands_of_the_readme() -> None:
    lines = run(ROOT, "--list").stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("python3 -m venv .venv && . .venv/bin/activate && pip install ")
        assert line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()


def test_each_command_has_its_own_clone_and_home(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", "test ! -e made.txt")
    done = run(folder, str(tmp_path / "work"))
    assert done.returncode == 0, done.stderr
    assert [line.split(" in ")[0] for line in done.stdout.splitlines()[::2]] == ["done", "done"]
    assert (tmp_path / "work" / "1.log").read_text() == "first\n"


def test_a_command_that_fails_is_told_and_ends_with_status_1(tmp_path: Path) -> None:
    folder = repository(tmp_path / "repository", "cat nowhere")
    done = run(folder, str(tmp_path / "work"))
    assert done.returncode == 1
    assert [line.split(" in ")[0] for line in done.stdout.splitlines()[::2]] == ["done", "failed"]
    assert "nowhere" in (tmp_path / "work" / "2.log").read_text()
