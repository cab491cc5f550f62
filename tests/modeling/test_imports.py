"""Who imports whom in modeling/: no circle, nothing of our own inside functions, and all that saved code needs."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_relative_import_files

import csekit.modeling

FOLDER = Path(csekit.modeling.__file__).parent
FILES = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.py")}


def siblings(tree: ast.AST) -> set[str]:
    return {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}


def test_no_circle():
    graph = {name: siblings(tree) for name, tree in FILES.items() if name != "__init__"}
    assert graph["modeling_cse"] > {"registry", "losses"}
    list(TopologicalSorter(graph).static_order())  # raises CycleError


def test_own_imports_stand_at_the_top():
    for name, tree in FILES.items():
        top = {node for node in tree.body if isinstance(node, ast.ImportFrom)}
        inside = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node not in top and node.level
        ]
        assert inside == [], name


@pytest.mark.parametrize("kind", ["modeling_simcse", "configuration_simcse", "modeling_cse"])
def test_saved_code_is_complete(kind):
    """Transformers' copier finds every file of every objective, whatever objectives a saved model has."""
    found = {Path(file).stem for file in get_relative_import_files(str(FOLDER / f"{kind}.py"))} | {kind}
    of_training = {
        "fast_compile",
        "fast_buckets",
        "fast_adamw",
        "fast_embedding",
        "fast_memory",
    }  # the trainer calls these, no model
    of_the_model = {"fast_weights"} if kind.startswith("configuration") else set()  # no objective calls it
    needed = {name for name in FILES if name.startswith(("objective", "fast_"))}
    assert needed - of_training - of_the_model <= found
    for name in found:
        assert siblings(FILES[name]) <= found
