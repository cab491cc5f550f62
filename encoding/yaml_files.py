"""Read YAML; every fault is a ValueError that names the file."""

from pathlib import Path
from typing import Any

import yaml

from csekit.encoding.json_files import DEEPEST, is_deep


def read_yaml(path: Path) -> Any:
    """Return the content of a UTF-8 YAML file.

    Raises:
        ValueError: not YAML, or nested more than 100 levels deep (also without end, through an alias).
    """
    deep = f"{path}: not a YAML file: nested more than {DEEPEST} levels deep"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(deep) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: such as a date that does not exist
        raise ValueError(f"{path}: not a YAML file: {error}") from None
    if is_deep(content):
        raise ValueError(deep)
    return content
