"""The base of the objectives' settings, and checks of single values."""

import math
import types
import typing
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

#: Fields that some values of another field leave unread: field to (the other one, these values).
Unread = dict[str, tuple[str, tuple[Any, ...]]]


@dataclass
class ObjectiveConfig:
    """Settings of one auxiliary objective.

    The class attribute ``name`` is the name of its loss term and its prefix in logs, batches and state dicts.

    Arguments:
        weight: factor of the term in the loss; at 0 the objective is not computed.

    Raises:
        ValueError: a value of another type than its field, a number that is not finite, a weight below 0.
    """

    name: ClassVar[str] = ""
    unread_with: ClassVar[Unread] = {}
    weight: float = 0.0

    def __post_init__(self) -> None:
        for field, hint in typing.get_type_hints(type(self)).items():
            if typing.get_origin(hint) is not ClassVar:
                check_type(f"{self.name}_{field}", getattr(self, field), hint)
        check_number(f"{self.name}_weight", self.weight, 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields with ``name``, as ``config.json`` holds them."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def upgraded(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a saved config with values that this version takes, and the same effect. Earlier
        versions saved some that are refused now."""
        return fields

    def complete(self, name_or_path: str) -> None:
        """Fill in the fields that depend on the backbone's checkpoint. ``from_backbone`` calls this before it builds
        the model."""

    def unread(self) -> dict[str, str]:
        """Map the fields that were set and have no effect to the setting that leaves them unread."""
        defaults = {field.name: field.default for field in fields(self)}
        return {
            f"{self.name}_{name}": f"{self.name}_{other} {getattr(self, other)}"
            for name, (other, values) in self.unread_with.items()
            if getattr(self, name) != defaults[name] and getattr(self, other) in values
        }

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


_KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    float: ("a number", (int, float)),
    int: ("a whole number", (int,)),
    bool: ("True or False", (bool,)),
    str: ("text", (str,)),
}


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError if a value has not the type of its field, or is a number that is not finite.

    Arguments:
        name: name of the field, for the message.
        hint: float, int, bool, str, or one of these or None; other types are not checked.
    """
    optional = typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)] if optional else [hint]
    if (value is None and optional) or len(kinds) != 1 or kinds[0] not in _KINDS:
        return
    wanted, allowed = _KINDS[kinds[0]]
    if not isinstance(value, allowed) or (isinstance(value, bool) and kinds[0] is not bool):
        raise ValueError(f"{name} must be {wanted}{' or None' if optional else ''}, got {value!r:.80}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")


def check_number(name: str, value: Any, low: float, high: float = math.inf, open_ends: str = "") -> None:
    """Raise ValueError unless a value is a finite number between two bounds.

    Arguments:
        name: name of the field, for the message.
        open_ends: the bounds that are not allowed themselves: 'low', 'high' or 'low high'.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    above = number and (value > low if "low" in open_ends else value >= low)
    if above and (value < high if "high" in open_ends else value <= high):
        return
    most = "" if high == math.inf else f" and {'below' if 'high' in open_ends else 'at most'} {high:g}"
    least = f"greater than {low:g}" if "low" in open_ends else f"of at least {low:g}"
    raise ValueError(f"{name} must be a number {least}{most}, got {value!r:.80}")
