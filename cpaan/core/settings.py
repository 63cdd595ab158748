"""Frozen settings, validated on creation and parsed from text."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

_LARGEST = 3e38  # about the largest float32, the type of most computations


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of settings; creation raises ValueError for a value of the wrong type."""

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(annotation) is tuple and isinstance(value, list):  # JSON has no tuples
                object.__setattr__(self, name, value := tuple(value))
            if not _is_of_type(value, annotation):
                raise ValueError(f"{name} must be {_name_type(annotation)}, got {value!r}")

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Return a copy with some fields replaced; raise ValueError for an unknown name."""
        unknown = sorted(set(overrides) - {field.name for field in fields(self)})
        if unknown:
            raise ValueError(f"unknown settings: {', '.join(unknown)}")
        return replace(self, **overrides)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Create settings from the result of `to_dict`; raise TypeError for an unknown name."""
        return cls(**content)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for a results file or a checkpoint."""
        return asdict(self)

    def _refuse_unless_positive(self, *names: str) -> None:
        self._refuse(names, lambda value: 0 < value < _LARGEST, "positive and finite")

    def _refuse_unless_below_one(self, *names: str) -> None:
        self._refuse(names, lambda value: 0 <= value < 1, "at least 0 and below 1")

    def _refuse_negative(self, *names: str) -> None:
        self._refuse(names, lambda value: 0 <= value < _LARGEST, "finite and not negative")

    def _refuse(self, names: Sequence[str], is_good: Callable[[Any], bool], wanted: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not is_good(value):
                raise ValueError(f"{name} must be {wanted}, got {value}")


def parse_settings(assignments: Sequence[str], *configs: Settings) -> list[dict[str, Any]]:
    """Parse ``["name=value", ...]`` into overrides of every config, by the types of its fields.

    Names that several configs share are set in all. Raise ValueError for an invalid assignment.
    """
    types = [get_type_hints(type(config)) for config in configs]
    overrides: list[dict[str, Any]] = [{} for _ in configs]
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"a setting must have the form NAME=VALUE, got {assignment!r}")
        _refuse_unknown(name, types)
        for known, changes in zip(types, overrides, strict=True):
            if name in known:
                try:
                    changes[name] = _parse_as(text, known[name])
                except (ValueError, KeyError):
                    wanted = _name_type(known[name])
                    raise ValueError(f"setting {name} must be {wanted}, got {text!r}") from None
    return overrides


def assignments_for(
    method: str,
    assignments: Sequence[str],
    known: Mapping[str, Collection[str]],
    elsewhere: Mapping[str, Collection[str]] | None = None,
) -> list[str]:
    """Select the ``--set`` assignments that apply to one of several methods.

    ``NAME=VALUE`` applies to all methods with this setting, ``METHOD.NAME=VALUE`` to one method.
    ``known`` maps these methods to the names of their settings, ``elsewhere`` all methods.
    """
    selected = []
    for assignment in assignments:
        name = assignment.partition("=")[0]
        prefix, dot, _ = name.partition(".")
        if not dot:
            owners = [owner for owner, names in (elsewhere or {}).items() if name in names]
            if owners and not any(name in names for names in known.values()):
                raise ValueError(f"--set {name}: this setting is only for {', '.join(owners)}")
            _refuse_unknown(name, known.values())
        elif prefix not in known:
            methods = ", ".join(filter(None, known))
            raise ValueError(f"--set {name}=...: {prefix} is not one of {methods}")
        if prefix == method if dot else name in known[method]:
            selected.append(assignment.removeprefix(f"{prefix}.") if dot else assignment)
    return selected


def _refuse_unknown(name: str, known: Iterable[Collection[str]]) -> None:
    names = sorted(set().union(*known))
    if name not in names:
        hint = suggestion(name, names)
        raise ValueError(f"unknown setting {name!r}{hint}; `cpaan settings` lists them")


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``, did you mean ...?`` with the nearest of the known names, whatever its case."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f", did you mean {by_lower[close[0]]}?" if close else ""


def _parse_as(text: str, annotation: Any) -> Any:
    """Parse text as a value of a field's type."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return text  # the config checks its choices
    if origin is UnionType:
        (wanted,) = set(parts) - {NoneType}
        return None if text == "none" else _parse_as(text, wanted)
    if origin is tuple:
        return tuple(_parse_as(part.strip(), parts[0]) for part in text.split(","))
    if annotation is bool:
        return {"true": True, "false": False}[text]
    return annotation(text)


def _is_of_type(value: Any, annotation: Any) -> bool:
    """Return whether a value has a field's type; a whole number also counts as a float."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return value in parts
    if origin is UnionType:
        return any(_is_of_type(value, choice) for choice in parts)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is_of_type(part, parts[0]) for part in value)
    if annotation in (int, float):
        kind = Integral if annotation is int else Real
        return isinstance(value, kind) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _name_type(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(parts)}"
    if origin is UnionType:
        return " or ".join(map(_name_type, parts))
    if origin is tuple:
        return f"{_name_type(parts[0])}, or several separated by commas"
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none"}
    return names.get(annotation, "a name")
