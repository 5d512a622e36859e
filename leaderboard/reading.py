"""Reading JSON that somebody else wrote: sizes, depths and numbers are limited, nothing runs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from parenvs.errors import ParenvsError, PlanError, shown
from parenvs.plan import no_duplicates

MOST_BYTES = 4 * 2**20
"""Largest file that is read."""
MOST_DEPTH = 8
"""Deepest nesting of lists and objects; a plan's cluster needs five."""
_DIGITS = 20


class EntryError(ParenvsError):
    """A submission that is no entry; its text is one line, ``reasons`` has all of them.

    Attributes:
        where: name of the file.
        reasons: what is wrong, each naming the field.
    """

    def __init__(self, where: str, reasons: list[str]) -> None:
        """Cut what is quoted from the file short, and keep it printable."""
        self.where, self.reasons = where, tuple(cleaned(reason) for reason in reasons)
        super().__init__(f"{where}: {'; '.join(self.reasons)}")


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file that nobody vouches for.

    Raises:
        EntryError: no file, no regular file, too large, no UTF-8, no JSON, nested too deeply, a key
            that stands twice in an object, NaN, an infinite number or one of too many digits.
    """
    where = cleaned(os.fspath(path))
    try:
        # Neither a pipe nor a device is opened: reading one may never end.
        if not Path(path).is_file():
            raise EntryError(where, ["no such file, or not a regular one"])
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise EntryError(where, [f"file: {size:,} bytes, at most {MOST_BYTES:,} are read"])
        with Path(path).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, EntryError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise EntryError(where, [f"file: {reason}"]) from None
    return parse_json(data, where)


def parse_json(data: bytes, where: str) -> Any:
    """The content of bytes of JSON; see ``read_json``."""
    if len(data) > MOST_BYTES:
        raise EntryError(where, [f"file: more than {MOST_BYTES:,} bytes"])
    try:
        content = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_number,
        )
    except RecursionError:
        raise EntryError(where, [f"file: nested deeper than {MOST_DEPTH} levels"]) from None
    except _ContentError as error:
        raise EntryError(where, [str(error)]) from None
    except ValueError as error:
        raise EntryError(where, [f"file: no JSON in UTF-8 ({error})"]) from None
    deep = _too_deep(content)
    if deep is not None:
        raise EntryError(where, [f"field {shown(deep)}: nested deeper than {MOST_DEPTH} levels"])
    return content


def cleaned(text: str, most: int = 400) -> str:
    """A text for a terminal and a table: printable, on one line, cut short."""
    text = " ".join(text[: 4 * most].split())
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


class _ContentError(ValueError):
    """Something that JSON allows, or Python's reader, and we do not."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    try:
        return no_duplicates(pairs)
    except PlanError as error:
        raise _ContentError(f"{error} in one object") from None


def _constant(text: str) -> float:
    raise _ContentError(f"file: {text} is not a JSON number")


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise _ContentError(f"file: the number {text[:_DIGITS]}... has {len(text):,} digits")
    return int(text)


def _number(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise _ContentError(f"file: the number {shown(text)} is too large")
    return value


def _too_deep(content: Any) -> str | None:
    """The field of the first level under which something is nested too deeply, or None."""
    tops = content.items() if isinstance(content, dict) else [("", content)]
    for key, top in tops:
        level = [top]
        for _ in range(MOST_DEPTH):
            inner: list[Any] = []
            for value in level:
                if isinstance(value, (dict, list)):
                    inner.extend(value.values() if isinstance(value, dict) else value)
            level = inner
        if level:
            return str(key)
    return None
