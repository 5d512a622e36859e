"""Writes files so that an interruption leaves the old file or the new one, never a part of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file beside ``path``; rename it over ``path`` when the block succeeds.

    Args:
        path: the file to write; missing parent folders are created.
        mode: ``"wb"`` or ``"w"`` (UTF-8).
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, mode, encoding=None if "b" in mode else "utf-8") as stream:
            yield stream
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, completely or not at all."""
    with replacing(path, "w") as stream:
        stream.write(text)


class DuplicateFieldError(ValueError):
    """A field stands twice in one object of a JSON file."""


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON whose fields differ, for ``json.loads``.

    Raises:
        DuplicateFieldError: a field stands twice.
    """
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateFieldError(f"field {key[:80]!r} stands twice")
            seen.add(key)
    return content
