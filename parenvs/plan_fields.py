"""Checks of the fields of plan files; every error names the file and the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import PlanError, did_you_mean, shown

_LARGEST = 2**31 - 1


def check_keys(
    content: Mapping[str, Any], needed: set[str], optional: set[str], where: str
) -> None:
    """Refuse missing and unknown keys."""
    for key in sorted(needed - set(content)):
        raise PlanError(f"{where}: field {key!r} is missing")
    for key in sorted(set(content) - needed - optional):
        raise PlanError(
            f"{where}: unknown field {shown(key)}{did_you_mean(key, needed | optional)}"
        )


def text(content: Mapping[str, Any], key: str, where: str) -> str:
    """A text that is not empty."""
    value = content[key]
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where}: field {key!r} must be a text, not {shown(value)}")
    return value


def texts(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """A list of texts."""
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of texts")
    return tuple(value)


def count(content: Mapping[str, Any], key: str, where: str) -> int:
    """A whole number from 1."""
    value = content[key]
    if not is_integer(value) or not 1 <= value <= _LARGEST:
        raise PlanError(f"{where}: field {key!r} must be a whole number from 1, not {shown(value)}")
    return value


def integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """A list of whole numbers."""
    value = content[key]
    if not isinstance(value, list) or not all(is_integer(x) and abs(x) <= _LARGEST for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of whole numbers")
    return tuple(value)


def choice(content: Mapping[str, Any], key: str, known: Sequence[str], where: str) -> str:
    """One of some words; the first of them if the key is missing."""
    value = content.get(key, known[0])
    if value not in known:
        raise PlanError(
            f"{where}: field {key!r} must be one of {', '.join(known)}, not {shown(value)}"
        )
    return str(value)


def cluster(content: Mapping[str, Any], key: str, where: str) -> Cluster:
    """A preset's name, a short form or an object, as ``Cluster.parse`` takes them."""
    try:
        return Cluster.parse(content[key])
    except ValueError as error:
        raise PlanError(f"{where}: field {key!r}: {error}") from None


def dimensions(content: Mapping[str, Any], key: str, where: str) -> dict[str, int]:
    """An object from paths to dimensions."""
    value = content[key]
    if not isinstance(value, dict):
        raise PlanError(f"{where}: field {key!r} must be an object of paths and dimensions")
    for path, dimension in value.items():
        if not is_integer(dimension) or not 0 <= dimension <= _LARGEST:
            raise PlanError(
                f"{where}: field {key!r}: the dimension of {shown(path)} must be a whole number "
                f"from 0, not {shown(dimension)}"
            )
    return dict(value)


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON without a key that stands twice, for ``json.loads``."""
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise PlanError(f"field {shown(key)} stands twice")
            seen.add(key)
    return content


def no_constant(text: str) -> float:
    """Refuses NaN and Infinity, for ``json.loads``."""
    raise PlanError(f"{text} is not a JSON number")
