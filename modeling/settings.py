"""The base of the objectives' settings."""

import typing
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass
class ObjectiveConfig:
    """Settings of one auxiliary objective.

    The class attribute ``name`` is the name of its loss term and its prefix in logs, batches and state dicts.

    Arguments:
        weight: factor of the term in the loss.

    Raises:
        ValueError: the weight is not a number.
    """

    name: ClassVar[str] = ""
    weight: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.weight, int | float):
            raise ValueError(f"{self.name}_weight must be a number, got {self.weight!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields with ``name``, as ``config.json`` holds them."""
        return {"name": self.name, **asdict(self)}

    def complete(self, name_or_path: str) -> None:
        """Fill in the fields that depend on the backbone's checkpoint. ``from_backbone`` calls this before it builds
        the model."""

    @classmethod
    def field_types(cls) -> dict[str, type]:
        """Return the type of each field by name: float, int, str or bool (also for a field that may be None), and dict
        for a field that a command line cannot set."""
        hints = typing.get_type_hints(cls)
        kinds = {field.name: typing.get_args(hints[field.name]) or (hints[field.name],) for field in fields(cls)}
        return {name: kind[0] if kind[0] in (float, int, str, bool) else dict for name, kind in kinds.items()}

    @classmethod
    def field_names(cls) -> set[str]:
        """Return the names of the fields."""
        return set(cls.field_types())


def check_choice(config: ObjectiveConfig, field: str, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError if a field has a value that is not allowed."""
    value = getattr(config, field)
    if value not in allowed:
        raise ValueError(f"{config.name}_{field} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
