"""Read JSON; every fault is a ValueError that names the file."""

import json
from pathlib import Path
from typing import Any

#: Objects and lists may lie in one another up to this many levels. Python's own limit depends on the caller's stack.
DEEPEST = 100


class _TwiceError(ValueError):
    """An object has a key twice."""


def parse_json(text: str, where: object, once: bool = False) -> Any:
    """Return the value of a JSON text.

    Arguments:
        where: what an error begins with, such as the file.
        once: True to refuse an object that has a key twice, of which Python keeps the last.

    Raises:
        ValueError: not JSON, nested more than 100 levels deep, a number of over 4,300 digits, or with ``once`` a key
            that is given twice.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise _TwiceError(f"{where}: {twice!r:.80} must be given once in an object, got it twice")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique if once else None)
    except _TwiceError:
        raise
    except RecursionError:
        raise ValueError(f"{where}: not a JSON file: nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise ValueError(f"{where}: not a JSON file: {error}") from error
    if is_deep(value):
        raise ValueError(f"{where}: not a JSON file: nested more than {DEEPEST} levels deep")
    return value


def is_deep(value: Any) -> bool:
    """Tell whether objects and lists lie in one another more than ``DEEPEST`` levels deep, or without end."""
    level = _inner([value])
    for _ in range(DEEPEST):
        level = _inner([inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)])
    return bool(level)


def _inner(values: list[Any]) -> list[Any]:
    """Return the objects and lists among the values, each once: an alias of YAML may repeat one."""
    return list({id(value): value for value in values if isinstance(value, dict | list)}.values())


def read_json(path: Path, once: bool = False) -> Any:
    """Return the content of a UTF-8 JSON file. Raises what :func:`parse_json` raises; ValueError: not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a JSON file: {error}") from error
    return parse_json(text, path, once)
