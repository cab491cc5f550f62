"""The house keeps its shape: what is packaged, who imports whom, how long files and functions are."""

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
FOLDERS = ("modeling", "trainers", "encoding", "evaluation")
#: Who may import which of ours: downward only.
ARROWS = {
    "modeling": {"modeling"},
    "encoding": {"encoding", "modeling"},
    "evaluation": {"evaluation", "encoding", "modeling"},
    "trainers": {"trainers", "evaluation", "encoding", "modeling"},
}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def linked() -> list[Path]:
    """Modules that lie in src/csekit itself: the package's own and the commands."""
    source = ROOT / "src" / "csekit"
    return sorted([*source.glob("*.py"), *(source / "cli").glob("*.py")])


def own_code() -> list[Path]:
    """Python files of the package, the examples and the tests; the links under src are not followed."""
    folders = [*FOLDERS, "examples", "experiments", "benchmarks", "tests"]
    return sorted([*linked(), *(path for name in folders for path in (ROOT / name).rglob("*.py"))])


def imports(path: Path) -> Iterator[tuple[str, int, ast.stmt]]:
    """(module, dots in front, statement) of every import, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level, node


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel, built offline from a copy of the tree."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    for name in (*FOLDERS, "model_cards", "examples", "experiments", "src"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for kind in ("sdist", "wheel"):  # a process each: setuptools keeps the state of the first
        build = f"import sys; from setuptools.build_meta import *; build_{kind}(sys.argv[1])"
        done = subprocess.run([sys.executable, "-c", build, str(target)], cwd=source, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> list[str]:
    """The names in the wheel."""
    (path,) = built.glob("csekit-*.whl")
    return zipfile.ZipFile(path).namelist()


def test_the_sdist_holds_what_the_readme_starts(built: Path) -> None:
    (path,) = built.glob("csekit-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "CHANGELOG.md",
        "examples/run_unsup.py",
        "examples/configs/simcse-bert-base.yaml",
        "modeling/losses.py",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("runs/", "experiments/results/"))]


def test_the_index_would_take_both(built: Path) -> None:
    pytest.importorskip("twine", reason="needs the extra dev")
    files = [str(path) for path in built.iterdir()]
    done = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_the_version_stands_in_one_place(built: Path) -> None:
    import csekit

    assert {path.name.split("-")[1].removesuffix(".tar.gz") for path in built.iterdir()} == {csekit.__version__}


def test_the_wheel_holds_the_folders(wheel):
    code = {path.relative_to(ROOT / "src").as_posix() for path in linked()}
    code |= {f"csekit/{path.relative_to(ROOT)}" for folder in FOLDERS for path in modules(folder)}
    packaged = [name for name in wheel if ".dist-info/" not in name]
    assert len(set(packaged)) == len(packaged)
    assert {name for name in packaged if name.endswith(".py")} == code
    assert "csekit/py.typed" in packaged
    data = [name for name in packaged if not name.endswith(".py") and name != "csekit/py.typed"]
    assert all((ROOT / name.removeprefix("csekit/")).exists() for name in data), data
    templates = {f"csekit/evaluation/report/templates/report.{kind}" for kind in ("html", "css", "js")}
    templates |= {f"csekit/model_cards/{path.name}" for path in (ROOT / "model_cards").glob("*.jinja")}
    assert {"csekit/evaluation/report/papers.yaml", *templates} <= set(data)


@pytest.mark.parametrize("folder", FOLDERS)
def test_links_for_type_checkers(folder):
    link = ROOT / "src" / "csekit" / folder
    if not link.is_symlink():
        pytest.skip("checkout without symbolic links")
    assert os.readlink(link) == f"../../{folder}" and link.resolve() == ROOT / folder


def test_modeling_imports_siblings_only_as_the_hub_s_copier_can_see():
    """Only ``from .x import y`` of the same flat folder is copied with custom code."""
    assert not [path for path in (ROOT / "modeling").iterdir() if path.is_dir() and path.name != "__pycache__"]
    siblings = {path.stem for path in modules("modeling")}
    for path in modules("modeling"):
        for module, dots, node in imports(path):
            where = f"{path.name}:{node.lineno}"
            assert dots <= 1, f"{where} leaves the folder"
            assert dots == 0 or module in siblings, f"{where} must read 'from .x import y'"
            assert module.split(".")[0] not in ("csekit", *FOLDERS[1:]), f"{where} imports {module}"


def test_no_import_of_the_bare_folder_names():
    """It would make a second copy of every class."""
    for path in own_code():
        for module, dots, node in imports(path):
            bare = dots == 0 and module.split(".")[0] in FOLDERS
            assert not bare, f"{path.relative_to(ROOT)}:{node.lineno} imports {module}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_arrows_point_downward(folder):
    for path in modules(folder):
        for module, dots, node in imports(path):
            names = [module]
            if dots == 2:
                names = [f"csekit.{module}"] if module else [f"csekit.{alias.name}" for alias in node.names]
            elif module == "csekit" and isinstance(node, ast.ImportFrom):
                names = [f"csekit.{alias.name}" for alias in node.names]
            for name in names:
                parts = name.split(".")
                above = parts[0] == "csekit" and len(parts) > 1 and parts[1] in {*FOLDERS, "cli"} - ARROWS[folder]
                assert not above, f"{path.relative_to(ROOT)}:{node.lineno} imports {name}"


def test_length_of_files_and_functions():
    short = [path for path in own_code() if path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks")]
    long_files = [path for path in short if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    long_functions = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in own_code()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno >= 60
    ]
    assert not long_files, relative(long_files)
    assert not long_functions


def test_forward_is_short():
    """The whole way of a batch on one screen: at most 15 lines behind the signature."""
    tree = ast.parse((ROOT / "modeling" / "modeling_cse.py").read_text(encoding="utf-8"))
    (forward,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    assert (forward.end_lineno or 0) - forward.body[0].lineno + 1 <= 15


def test_importing_csekit_costs_nothing():
    script = "import sys, csekit; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
