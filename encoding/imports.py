"""Modules of the user's own that register objectives, imported by name (``--import my_module``)."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from csekit.encoding.json_files import read_json


def import_modules(names: Sequence[str]) -> None:
    """Import modules, installed ones or those of the working directory, which is appended to ``sys.path``.

    Raises:
        ValueError: not the name of a module, no such module, or an ImportError or ValueError inside the module.
    """
    here = os.getcwd()
    if names and here not in sys.path:
        sys.path.append(here)
    for name in names:
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"--import must be the name of a module, my_module or my_package.terms, got {name!r}")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                raise ValueError(f"--import {name}: {error}") from error  # a module that it imports
            raise ValueError(
                f"--import {name}: no module {missing!r} in the working directory ({here}) or among the installed "
                "packages"
            ) from None
        except (ImportError, ValueError) as error:
            raise ValueError(f"--import {name}: {error}") from error


def recorded_imports(folder: str | Path) -> list[str]:
    """Return the modules that a run was trained with, as its ``results.json`` names them; [] if it is not there.

    Arguments:
        folder: a run's folder, its ``training`` or a checkpoint in that.
    """
    path = Path(os.path.realpath(folder))
    if path.parent.name == "training":
        path = path.parent
    if path.name == "training":
        path = path.parent
    try:
        results = read_json(path / "results.json")
    except (OSError, ValueError):
        return []
    found = results.get("imports") if isinstance(results, dict) else None
    return [str(name) for name in found] if isinstance(found, list) else []


def import_hint(folder: str | Path) -> str:
    """Return the end of an error message: the ``--import`` that a run was trained with and that is missing now."""
    missing = [name for name in recorded_imports(folder) if name not in sys.modules]
    return f"; {folder} was trained with --import {' '.join(missing)}" if missing else ""
