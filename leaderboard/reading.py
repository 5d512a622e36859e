"""Reads JSON that cannot be trusted: size, depth and numbers are limited, and no code runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from parenvs.errors import ParenvsError, shown
from parenvs.files import DuplicateFieldError, no_duplicates

MAX_BYTES = 4 * 2**20
"""Size of the largest file that is read."""
MAX_DEPTH = 8
"""Deepest nesting of lists and objects; the cluster of a plan needs five."""
_MAX_DIGITS = 20
"""Digits of the longest whole number that is read."""


class EntryError(ParenvsError):
    """A submission that is no entry; its message is one line of all reasons.

    Attributes:
        where: name of the file.
        reasons: why it is no entry; each reason names the field.
    """

    def __init__(self, where: str, reasons: list[str]) -> None:
        """Shorten the reasons, which may quote the file, and make them printable."""
        self.where, self.reasons = where, tuple(cleaned(reason) for reason in reasons)
        super().__init__(f"{where}: {'; '.join(self.reasons)}")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file that cannot be trusted.

    Raises:
        EntryError: the file is missing, not regular, too large, not UTF-8, no JSON or nested too
            deeply; a key stands twice in an object; or a number is NaN, infinite or too long.
    """
    where = cleaned(os.fspath(path))
    try:
        # Pipes and devices are not opened, as reading one may never end.
        if not Path(path).is_file():
            raise EntryError(where, ["no such file, or not a regular one"])
        size = Path(path).stat().st_size
        if size > MAX_BYTES:
            raise EntryError(where, [f"file: {size:,} bytes, at most {MAX_BYTES:,} are read"])
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, EntryError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise EntryError(where, [f"file: {reason}"]) from None
    return parse_json(data, where)


def parse_json(data: bytes, where: str) -> Any:
    """Parse bytes of JSON that cannot be trusted; see ``read_json``.

    Args:
        data: the bytes.
        where: name of the file, for error messages.
    """
    if len(data) > MAX_BYTES:
        raise EntryError(where, [f"file: more than {MAX_BYTES:,} bytes"])
    try:
        content = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=no_duplicates,
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_number,
        )
    except RecursionError:
        raise EntryError(where, [f"file: nested deeper than {MAX_DEPTH} levels"]) from None
    except DuplicateFieldError as error:
        raise EntryError(where, [f"{error} in one object"]) from None
    except _ContentError as error:
        raise EntryError(where, [str(error)]) from None
    except ValueError as error:
        raise EntryError(where, [f"file: no JSON in UTF-8 ({error})"]) from None
    field = _too_deep(content)
    if field is not None:
        raise EntryError(where, [f"field {shown(field)}: nested deeper than {MAX_DEPTH} levels"])
    return content


def cleaned(text: str, max_length: int = 400) -> str:
    """Make a text fit for a terminal and a table: printable, on one line, not too long."""
    text = " ".join(text[: 4 * max_length].split())
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


class _ContentError(ValueError):
    """Content that JSON or Python's reader allows, and entries must not have."""


def _constant(text: str) -> float:
    """Refuse NaN and infinities."""
    raise _ContentError(f"file: {text} is not a JSON number")


def _whole(text: str) -> int:
    """Return a whole number, which must not be too long."""
    if len(text) > _MAX_DIGITS:
        raise _ContentError(f"file: the number {text[:_MAX_DIGITS]}... has {len(text):,} digits")
    return int(text)


def _number(text: str) -> float:
    """Return a decimal number, which must be finite as a float."""
    if not math.isfinite(value := float(text)):
        raise _ContentError(f"file: the number {shown(text)} is too large")
    return value


def _too_deep(content: Any) -> str | None:
    """Return the top-level field with values nested deeper than ``MAX_DEPTH``, or None."""
    fields = content.items() if isinstance(content, dict) else [("", content)]
    for key, field in fields:
        level = [field]
        for _ in range(MAX_DEPTH):
            next_level: list[Any] = []
            for value in level:
                if isinstance(value, (dict, list)):
                    next_level.extend(value.values() if isinstance(value, dict) else value)
            level = next_level
        if level:
            return str(key)
    return None
