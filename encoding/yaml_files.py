"""Read YAML; every fault is a ValueError that names the file."""

from pathlib import Path
from typing import Any

import yaml

from csekit.encoding.json_files import DEEPEST, is_deep


class _TwiceError(ValueError):
    """A mapping has a key twice."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which would keep the last of two equal keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Compose a mapping. Raises _TwiceError for a key that it has twice."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if (first := lines.get((key.tag, key.value))) is not None:
                    raise _TwiceError(f"line {line}: {key.value!r} must be given once, line {first} has it as well")
                lines[key.tag, key.value] = line
        return node


def read_yaml(path: Path) -> Any:
    """Return the content of a UTF-8 YAML file.

    Raises:
        ValueError: not YAML, a key of a mapping that is given twice, or nested more than 100 levels deep (also without
            end, through an alias).
    """
    deep = f"{path}: not a YAML file: nested more than {DEEPEST} levels deep"
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except RecursionError:
        raise ValueError(deep) from None
    except _TwiceError as error:
        raise ValueError(f"{path}, {error}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: such as a date that does not exist
        raise ValueError(f"{path}: not a YAML file: {error}") from None
    if is_deep(content):
        raise ValueError(deep)
    return content
