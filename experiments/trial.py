"""One run of a plan: its arguments, the words of its command line, its steps, and the runs whose folders it reads."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

#: ``name: value`` of a command line; a list becomes several words, ``None`` leaves the argument out.
Arguments = dict[str, Any]

PRESETS = Path(__file__).parents[1] / "examples" / "configs"

_FOLDER = re.compile(r"\{folder:([^{}]*)\}")


class PlanError(ValueError):
    """A plan, a command line or a folder of earlier runs is wrong; nothing was started."""


@dataclass(frozen=True)
class Trial:
    """One run.

    Arguments:
        kind: ``grid``, ``final``, ``listed`` or ``command``.
        arguments: the command line as text, without output folder and resumption.
        command: the words after ``python``, before the arguments.
    """

    experiment: str
    name: str
    kind: str
    arguments: dict[str, str | list[str]]
    command: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.experiment}/{self.name}"

    @property
    def batch(self) -> int:
        """Sentences in one optimiser step of one process."""
        accumulation = int(self.setting("gradient_accumulation_steps", "1"))
        return int(self.setting("per_device_train_batch_size", "64")) * accumulation

    @property
    def steps(self) -> int | None:
        """Return the optimiser steps: ``max_steps``, else from the epochs and the lines of its text, else None; with
        those of the objectives' warm-up."""
        if self.kind == "command":
            return 0
        before = int(self.setting("objective_warmup_steps", "0"))
        if int(self.setting("max_steps", "-1")) > 0:
            return before + int(self.setting("max_steps", "-1"))
        path = Path(self.setting("train_file", ""))
        if path.suffix not in (".txt", ".csv", ".tsv") or not path.is_file():
            return None
        rows = _lines(path) - (path.suffix != ".txt")  # without the header
        return before + math.ceil(rows / self.batch * float(self.setting("num_train_epochs", "1")))

    @property
    def needs(self) -> list[str]:
        """Labels of the trials whose folders this one reads."""
        values = [*self.command, *self.arguments.values()]
        words = [word for value in values for word in ([value] if isinstance(value, str) else value)]
        return list(dict.fromkeys(label for word in words for label in _FOLDER.findall(word)))

    @property
    def preset(self) -> Path | None:
        """The file of the argument ``config``, a path or the name of one of csekit's presets; None without one."""
        name = str(self.arguments.get("config", ""))
        return next((path for path in (Path(name), PRESETS / f"{name}.yaml") if path.is_file()), None)

    def setting(self, name: str, default: str) -> str:
        """The value of a single argument: from the command line, else from the preset ``config``, else the default."""
        if name in self.arguments:
            return str(self.arguments[name])
        return str(default if self.preset is None else _preset(self.preset).get(name, default))

    def argv(self, output_dir: Path, resume: bool) -> list[str]:
        """The words after ``python``; ``output_dir`` is the plan's working folder."""
        own = str(output_dir / self.label)
        words = [word.replace("{output_dir}", own) for word in self.command]
        for key, value in self.arguments.items():
            words += [f"--{key}", *([value] if isinstance(value, str) else value)]
        if self.kind != "command":
            words += ["--output_dir", own, *(["--resume_from_checkpoint", "True"] if resume else [])]
        return [_FOLDER.sub(lambda match: str(output_dir / match[1]), word) for word in words]


def as_words(value: Any) -> str | list[str]:
    """Return a value's command-line form: ``1.0e-4``, ``"1e-4"`` and ``0.0001`` have the same.

    Equal arguments then have equal text, and equal records.
    """
    if isinstance(value, list | tuple):
        return [str(as_words(inner)) for inner in value]
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value):
        value = float(value) if re.search(r"[.eE]", value) else value
    return repr(value) if isinstance(value, float) else str(value)


@cache
def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


@cache
def _preset(path: Path) -> Mapping[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})
