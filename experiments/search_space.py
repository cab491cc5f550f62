"""The space of a search of combinations: axes of decisions, each with named choices that set arguments."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from csekit.encoding.schema import Schema, check_schema
from csekit.encoding.yaml_files import read_yaml
from experiments.plan import check_keys, check_name, expand
from experiments.trial import Arguments, PlanError, Trial, as_words


class RawSearch(Schema):
    """The types of the fields of a search."""

    title: str
    script: str
    trials: int = Field(ge=1)
    first_rung: int = Field(ge=1)
    reduction: int = Field(ge=2)
    seed: int
    arguments: dict[str, Any]
    axes: dict[str, dict[str, dict[str, Any] | None]]


@dataclass(frozen=True)
class Search:
    """The settings of a search. ``experiments.search`` documents the fields.

    Arguments:
        axes: decision to its choices, each with the arguments that it sets.
    """

    name: str
    title: str
    script: str
    trials: int
    first_rung: int
    reduction: int
    seed: int
    arguments: Arguments
    axes: dict[str, dict[str, Arguments]]

    @classmethod
    def read(cls, path: Path, variables: Mapping[str, str] = os.environ) -> "Search":
        """Read a YAML file; ``${NAME}`` is filled from the environment.

        Raises:
            PlanError: the file is wrong; the message names the field.
        """
        try:
            raw = expand(read_yaml(path), variables)
            check_schema(RawSearch, raw, path)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None
        except (OSError, ValueError) as error:
            raise PlanError(str(error)) from None
        check_keys(str(path), raw, set(RawSearch.model_fields))
        axes = {axis: {name: given or {} for name, given in of.items()} for axis, of in raw["axes"].items()}
        search = cls(path.stem, **{**raw, "axes": axes})
        search._check(path)
        return search

    def _check(self, path: Path) -> None:
        names = [name for choices in self.axes.values() for name in choices]
        for axis, choices in self.axes.items():
            if len(choices) < 2:
                raise PlanError(f"{path}: axes.{axis} must have at least two choices, got {', '.join(choices)!r}")
        for name in names:
            check_name(f"{path}: a choice", name)
            if names.count(name) > 1:
                raise PlanError(f"{path}: choices must have different names, got {name} twice")
        if not Path(self.script).is_file():
            raise PlanError(f"{path}: script must be a file, got {self.script!r} (seen from {Path.cwd()})")
        steps = self.arguments.get("max_steps")
        if not isinstance(steps, int) or self.first_rung > steps:
            raise PlanError(
                f"{path}: arguments.max_steps must be at least {self.first_rung} (first_rung), got {steps!r}"
            )
        every = self.arguments.get("eval_steps")
        if not isinstance(every, int) or every < 1 or self.first_rung % every:
            raise PlanError(f"{path}: arguments.eval_steps must divide first_rung ({self.first_rung}), got {every!r}")
        for one, other in itertools.combinations(self.axes, 2):
            for name, first in self.axes[one].items():
                for rival, second in self.axes[other].items():
                    self._check_together(path, {name: first, rival: second})
        for choices in self.axes.values():
            for name, given in choices.items():
                self._check_together(path, {"arguments": self.arguments, name: given})

    def _check_together(self, path: Path, parts: Mapping[str, Arguments]) -> None:
        """Check that no argument but a list is set twice."""
        (one, first), (other, second) = parts.items()
        for argument in first.keys() & second.keys():
            if not isinstance(first[argument], list) or not isinstance(second[argument], list):
                raise PlanError(f"{path}: {one} and {other} both set {argument}; only lists can be joined")

    @property
    def steps(self) -> int:
        return int(self.arguments["max_steps"])

    def label(self, choices: Mapping[str, str]) -> str:
        """Return the name of a combination: its choices that are not the first of their axis."""
        chosen = [choices[axis] for axis, of in self.axes.items() if choices[axis] != next(iter(of))]
        return "+".join(chosen) or "+".join(next(iter(of)) for of in self.axes.values())

    def settings(self, choices: Mapping[str, str]) -> Arguments:
        """Return the arguments that the choices of a combination set, lists joined."""
        found: Arguments = {}
        for axis, name in choices.items():
            for argument, value in self.axes[axis][name].items():
                found[argument] = [*found.get(argument, []), *value] if isinstance(value, list) else value
        return found

    def trial(self, choices: Mapping[str, str]) -> Trial:
        """Return the run of a combination."""
        own: Arguments = {"objectives": []} | self.arguments | self.settings(choices)
        words = {key: as_words(value) for key, value in (own | {"seed": self.seed, "do_predict": False}).items()}
        return Trial(self.name, self.label(choices), "listed", words, (self.script,))

    def identity(self) -> dict[str, Any]:
        """Return the settings that a record must share, without folders of this machine."""
        fields = ("name", "title", "script", "first_rung", "reduction", "seed", "arguments", "axes")
        return {name: without_folders(getattr(self, name)) for name in fields}


def without_folders(value: Any) -> Any:
    """Return a copy in which absolute paths are cut to their last part."""
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value
