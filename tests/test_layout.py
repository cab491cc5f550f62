"""The packages hold what they should, and the Hub finds modeling/. Imports between rooms are import-linter's part."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("modeling", "trainers", "encoding", "evaluation")
SOURCE = ROOT / "src" / "csekit"


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (module, dots in front, line) of every import, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level, node.lineno


def copy_tree(target: Path) -> Path:
    """Copy what a build reads, links as links."""
    target.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, target)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*ROOMS, "model_cards", "examples", "experiments", "src"):
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignored)
    return target


def build(kind: str, source: Path, target: Path) -> Path:
    """Build an sdist or a wheel offline, in a process of its own: setuptools keeps state."""
    target.mkdir(exist_ok=True)
    script = f"import sys; from setuptools.build_meta import *; print(build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", script, str(target)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_tree(tmp_path_factory.mktemp("source") / "csekit")


@pytest.fixture(scope="module")
def sdist(source: Path) -> Path:
    return build("sdist", source, source.parent / "built")


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build("wheel", source, source.parent / "built")


@pytest.fixture(scope="module")
def wheel_names(wheel: Path) -> list[str]:
    """The names of the files that the wheel installs."""
    names = zipfile.ZipFile(wheel).namelist()
    return [name for name in names if ".dist-info/" not in name]


def test_the_sdist_holds_what_the_readme_starts(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"CHANGELOG.md", "examples/run_unsup.py", "examples/configs/simcse-bert-base.yaml", "modeling/losses.py"}
    assert wanted - names == set()
    assert not [name for name in names if name.startswith(("runs/", "experiments/results/"))]


def test_pypi_would_take_both(sdist: Path, wheel: Path) -> None:
    pytest.importorskip("twine", reason="needs the extra dev")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_version_stands_in_one_place(sdist: Path, wheel: Path) -> None:
    import csekit

    assert sdist.name == f"csekit-{csekit.__version__}.tar.gz"
    assert wheel.name.startswith(f"csekit-{csekit.__version__}-")


def test_the_wheel_holds_the_code_of_the_rooms_and_nothing_else(wheel_names: list[str]) -> None:
    code = {path.relative_to(ROOT / "src").as_posix() for path in (*SOURCE.glob("*.py"), *SOURCE.glob("cli/*.py"))}
    code |= {f"csekit/{path.relative_to(ROOT).as_posix()}" for room in ROOMS for path in modules(room)}
    assert sorted(name for name in wheel_names if name.endswith(".py")) == sorted(code)


def test_the_wheel_holds_the_data_of_the_rooms_and_nothing_else(wheel_names: list[str]) -> None:
    data = {"csekit/py.typed", "csekit/evaluation/report/papers.yaml"}
    data |= {f"csekit/evaluation/report/templates/report.{kind}" for kind in ("html", "css", "js")}
    data |= {f"csekit/model_cards/{path.name}" for path in (ROOT / "model_cards").glob("*.jinja")}
    data |= {f"csekit/examples/demo/{part}.tsv" for part in ("dev", "test")}
    for pattern in ("*.yaml", "pretraining/*.yaml"):
        data |= {f"csekit/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "examples/configs").glob(pattern)}
    assert sorted(name for name in wheel_names if not name.endswith(".py")) == sorted(data)


def test_a_checkout_without_symbolic_links_builds_the_same_wheel(wheel_names: list[str], tmp_path: Path) -> None:
    """Git writes a link as a text file where the system has no links."""
    source = copy_tree(tmp_path / "csekit")
    for room in ROOMS:
        link = source / "src" / "csekit" / room
        link.unlink()
        link.write_text(f"../../{room}")
    names = zipfile.ZipFile(build("wheel", source, tmp_path / "built")).namelist()
    assert [name for name in names if ".dist-info/" not in name] == wheel_names


@pytest.mark.parametrize("room", ROOMS)
def test_links_for_type_checkers(room: str) -> None:
    link = SOURCE / room
    if not link.is_symlink():
        pytest.skip("checkout without symbolic links")
    assert os.readlink(link) == f"../../{room}"
    assert link.resolve() == ROOT / room


def test_modeling_imports_siblings_only_as_the_hub_s_copier_can_see() -> None:
    """Only ``from .x import y`` of the same flat folder is copied with custom code."""
    assert not [path for path in (ROOT / "modeling").iterdir() if path.is_dir() and path.name != "__pycache__"]
    siblings = {path.stem for path in modules("modeling")}
    for path in modules("modeling"):
        for module, dots, line in imports(path):
            where = f"modeling/{path.name}:{line}"
            assert dots <= 1, f"{where} leaves the folder"
            assert dots == 0 or module in siblings, f"{where} must read 'from .x import y'"
            first = module.split(".")[0]
            assert dots == 1 or first not in ("csekit", "experiments", *ROOMS), f"{where} imports {module}"


def test_importing_csekit_costs_nothing() -> None:
    script = "import sys, csekit; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
