"""Many cases in one test: what fails names its case."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

from parenvs.core.plan import load_plan
from parenvs.errors import PlanError


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable], Callable]:
    """``pytest.mark.parametrize`` for cases that take no time: all of them are one test.

    Fixtures are made once for all cases, none of which is a ``pytest.param``. The first case that
    fails ends the test, and stands in its failure.
    """
    names = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else names
    rows = [dict(zip(names, [row] if len(names) == 1 else row, strict=True)) for row in cases]
    assert rows and not any(hasattr(value, "marks") for row in rows for value in row.values())

    def decorate(test: Callable) -> Callable:
        @wraps(test)
        def through(**fixtures: Any) -> None:
            for row in rows:
                try:
                    test(**row, **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    told = ", ".join(f"{name}={value!r}" for name, value in row.items())
                    raise AssertionError(f"case {told}: {error}") from error

        signature = inspect.signature(test)
        kept = [p for name, p in signature.parameters.items() if name not in names]
        through.__signature__ = signature.replace(parameters=kept)
        return through

    return decorate


def slow(*values: Any) -> list[Any]:
    """Values of a parametrisation that are left to ``make slow``; a tuple has one for each name."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.slow) for row in rows]


def refusal(path, content):
    """What ``load_plan`` says of a file, which must be one line that names it."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(PlanError) as error:
        load_plan(path)
    text = str(error.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(str(path))
