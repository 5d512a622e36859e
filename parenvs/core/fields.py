"""Checks of the fields of plan files.

Each returns the field's value, or raises a ``PlanError`` that names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parenvs.cluster import Cluster
from parenvs.errors import PlanError, did_you_mean, shown

LARGEST_NUMBER = 2**31 - 1
"""Largest number in a plan file."""
_LARGEST_SIZE = 1e30
_LONGEST_TEXT = 4096  # as long as a path can be


def check_keys(
    content: Mapping[str, Any], needed: set[str], optional: set[str], where: str
) -> None:
    """Raise a PlanError for missing and unknown keys."""
    for key in sorted(needed - set(content)):
        raise PlanError(f"{where}: field {key!r} is missing")
    for key in sorted(set(content) - needed - optional):
        raise PlanError(
            f"{where}: unknown field {shown(key)}{did_you_mean(key, needed | optional)}"
        )


def text(content: Mapping[str, Any], key: str, where: str) -> str:
    """Return a field that is a text and not empty."""
    value = content[key]
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_TEXT:
        raise PlanError(
            f"{where}: field {key!r} must be a text of 1 to {_LONGEST_TEXT:,} characters, not "
            f"{shown(value)}"
        )
    return value


def texts(content: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Return a field that is a list of texts."""
    value = content[key]
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise PlanError(f"{where}: field {key!r} must be a list of texts")
    return tuple(value)


def count(content: Mapping[str, Any], key: str, where: str) -> int:
    """Return a field that is a whole number from 1."""
    value = content[key]
    if not is_integer(value) or not 1 <= value <= LARGEST_NUMBER:
        raise PlanError(f"{where}: field {key!r} must be a whole number from 1, not {shown(value)}")
    return value


def number(content: Mapping[str, Any], key: str, default: float, where: str) -> float:
    """Return a field that is a number from 0; ``default`` if the key is missing."""
    value = content.get(key, default)
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= LARGEST_NUMBER
    ):
        raise PlanError(f"{where}: field {key!r} must be a number from 0, not {shown(value)}")
    return value


def size(content: Mapping[str, Any], key: str, where: str) -> float:
    """Return a field that is a positive number of bytes."""
    value = content[key]
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value <= _LARGEST_SIZE
    ):
        raise PlanError(
            f"{where}: field {key!r} must be a positive number of bytes, not {shown(value)}"
        )
    return float(value)


def integers(content: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """Return a field that is a list of whole numbers."""
    value = content[key]
    if not isinstance(value, list) or not all(
        is_integer(x) and abs(x) <= LARGEST_NUMBER for x in value
    ):
        raise PlanError(f"{where}: field {key!r} must be a list of whole numbers")
    return tuple(value)


def choice(content: Mapping[str, Any], key: str, known: Sequence[str], where: str) -> str:
    """Return a field that is one of the ``known`` words; the first if the key is missing."""
    value = content.get(key, known[0])
    if value not in known:
        raise PlanError(
            f"{where}: field {key!r} must be one of {', '.join(known)}, not {shown(value)}"
        )
    return str(value)


def cluster(content: Mapping[str, Any], key: str, where: str) -> Cluster:
    """Return the cluster that a field describes in a form that ``Cluster.parse`` takes."""
    try:
        return Cluster.parse(content[key])
    except ValueError as error:
        raise PlanError(f"{where}: field {key!r}: {error}") from None


def dimensions(content: Mapping[str, Any], key: str, where: str) -> dict[str, int]:
    """Return a field that is an object of paths and dimensions."""
    value = content[key]
    if not isinstance(value, dict):
        raise PlanError(f"{where}: field {key!r} must be an object of paths and dimensions")
    for path, dimension in value.items():
        if not is_integer(dimension) or not 0 <= dimension <= LARGEST_NUMBER:
            raise PlanError(
                f"{where}: field {key!r}: the dimension of {shown(path)} must be a whole number "
                f"from 0, not {shown(dimension)}"
            )
    return dict(value)


def is_integer(value: Any) -> bool:
    """Return whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)
