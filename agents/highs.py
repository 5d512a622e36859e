"""HiGHS by ``highspy``, on one thread and silent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def solver(**options: Any) -> Any:
    """Return a new ``highspy.Highs`` that prints nothing and has one thread."""
    import highspy

    with _silence():
        made = highspy.Highs()
        for name, value in {"output_flag": False, "threads": 1, **options}.items():
            made.setOptionValue(name, value)
    return made


@contextmanager
def _silence() -> Iterator[None]:
    """Keep the solver's banner, which its library writes by itself, from the standard output."""
    try:
        before = os.dup(1)
    except OSError:  # it is closed
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    # The library writes to the file descriptor, past ``sys.stdout``.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(nothing)
