"""``parenvs.fields``: dataclasses read from JSON types, and the line that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from cases import each

from parenvs.errors import ParenvsError, PlanError
from parenvs.fields import (
    LARGEST_NUMBER,
    Count,
    Index,
    Integer,
    Number,
    Size,
    Text,
    check,
    number,
    one_of,
    read,
    read_rows,
    whole,
    words,
    write_rows,
)


class Color:
    """A class that reads its own forms."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def parse(cls, form: Any) -> Color:
        """Take a name; all else is an error."""
        if not isinstance(form, str):
            raise ParenvsError(f"a color is a name, not {form!r}")
        return cls(form)


@dataclass(frozen=True)
class Part:
    size: Count
    mode: Annotated[str, one_of("fast", "slow")] = "fast"
    split: dict[str, Index] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ParenvsError("13 brings no luck")


@dataclass(frozen=True)
class Whole:
    name: Text
    parts: Annotated[tuple[Part, ...], words("a list of parts", min_length=1)]
    pair: tuple[Integer, Integer] = (0, 0)
    share: Number = 0
    size: Size | None = None
    flag: bool = False
    level: Annotated[int, whole(0, 3)] = 0
    rate: Annotated[float, number(0, 1)] = 0.5
    counts: dict[Annotated[str, one_of("a", "b")], Count] = field(default_factory=dict)
    either: tuple[Index, ...] | dict[str, Index] = ()


@dataclass(frozen=True)
class Painted:
    color: Color


GOOD = {"name": "x", "parts": [{"size": 1}, {"size": 2, "split": {"w/a.b": 0}}]}


def test_read__defaults_and_types():
    made = read(Whole, {**GOOD, "share": 3, "rate": 1, "either": {"k": 1}}, "here")
    assert made.parts == (Part(1), Part(2, "fast", {"w/a.b": 0}))
    assert (type(made.share), type(made.rate)) == (int, float)  # as its type says
    assert made.size is None and made.either == {"k": 1}
    assert vars(made) == vars(Whole("x", made.parts, share=3, rate=1.0, either={"k": 1}))


@each(
    ("change", "line"),
    [
        ({"name": ""}, "field 'name' must be a text of 1 to 4,096 characters, not ''"),
        ({"nam": 1}, "unknown field 'nam' (did you mean 'name'?)"),
        ({"parts": []}, "field 'parts' must be a list of parts, not []"),
        ({"parts": [{}]}, "field 'parts[0].size' is missing"),
        ({"parts": [{"siz": 1}]}, "field 'parts[0].size' is missing, and 'siz' is no field"),
        ({"parts": [3]}, "field 'parts[0]' must be an object, not 3"),
        ({"parts": [{"size": 0}]}, "field 'parts[0].size' must be a whole number from 1, not 0"),
        ({"parts": [{"size": True}]}, "field 'parts[0].size' must be a whole number from 1, not T"),
        (
            {"parts": [{"size": 1, "mode": "fest"}]},
            "field 'parts[0].mode' must be one of fast, slow, not 'fest' (did you mean 'fast'?)",
        ),
        (
            {"parts": [{"size": 1, "split": {"a": 1, "w/a.b": -1, "c": 2}}]},
            "field 'parts[0].split.w/a.b' must be a whole number from 0, not -1",
        ),
        ({"parts": [{"size": 1}, {"size": 13}]}, "field 'parts[1]': 13 brings no luck"),
        ({"pair": [1]}, "field 'pair' must be a list of 2, not [1]"),
        ({"pair": [1, 2.0]}, "field 'pair[1]' must be a whole number, not 2.0"),
        (
            {"pair": [1, LARGEST_NUMBER + 1]},
            "field 'pair[1]' must be a whole number, at most 2,147,483,647, not 2147483648",
        ),
        ({"share": -0.5}, "field 'share' must be a number from 0, not -0.5"),
        ({"share": False}, "field 'share' must be a number from 0, not False"),
        ({"size": None}, "field 'size' must be a positive number of bytes, not None"),
        ({"size": 0}, "field 'size' must be a positive number of bytes, not 0"),
        ({"flag": 1}, "field 'flag' must be true or false, not 1"),
        ({"level": 4}, "field 'level' must be a whole number from 0 to 3, not 4"),
        ({"rate": float("nan")}, "field 'rate' must be a number from 0 to 1, not nan"),
        ({"rate": float("inf")}, "field 'rate' must be a number from 0 to 1, not inf"),
        ({"counts": {"a": 1, "c": 1}}, "field 'counts' must have keys that are one of a, b, not"),
        ({"either": 3}, "field 'either' must be a list or an object, not 3"),
        ({"either": {"k": -1}}, "field 'either.k' must be a whole number from 0, not -1"),
    ],
)
def test_read__says_what_is_wrong(change, line):
    with pytest.raises(PlanError) as error:
        read(Whole, {**GOOD, **change}, "here", PlanError)
    assert str(error.value).startswith(f"here: {line}")
    assert "\n" not in str(error.value)


def test_read__what_is_no_object():
    for content in ([], None, "x", 3):
        with pytest.raises(ParenvsError, match="here: expected one JSON object, not "):
            read(Whole, content, "here")


def test_read__a_class_that_reads_its_own_forms():
    color = read(Painted, {"color": "red"}).color
    assert (type(color), color.name) == (Color, "red")
    with pytest.raises(ParenvsError, match=r"^field 'color': a color is a name, not 3$"):
        read(Painted, {"color": 3})


def test_bounds__are_told_where_there_are_some():
    for bounds, told in (
        (whole(1), "a whole number from 1"),
        (whole(1, 4_000), "a whole number from 1 to 4,000"),
        (number(0), "a number from 0"),
        (number(0, 0.5), "a number from 0 to 0.5"),
        (number(0, 0.5, "a share"), "a share"),
    ):
        assert bounds.description == told
    assert len(read(Whole, {**GOOD, "name": "x" * 4096}).name) == 4096
    with pytest.raises(ParenvsError, match="field 'name' must be a text of 1 to 4,096 characters"):
        read(Whole, {**GOOD, "name": "x" * 4097})


def test_check__what_python_made():
    check(Part(1, "slow", {"w": 1}))
    with pytest.raises(PlanError, match=r"^part: 'size' must be a whole number from 1, not 1\.5$"):
        check(Part(1.5), "part: ", PlanError)


def test_rows__a_set_and_back(tmp_path):
    path = tmp_path / "set.json"
    write_rows(path, {"a": {"size": 1}, "b": {"size": 2, "mode": "slow"}})
    assert read_rows(Part, path, lambda part, _: part) == {"a": Part(1), "b": Part(2, "slow")}
    rows = json.loads(path.read_text())["problems"]
    for changed, line in (
        ([*rows, rows[0]], "problems[2]: field 'name' is 'a' a second time"),
        ([rows[0], {"size": 1}], "problems[1]: field 'name' is missing"),
        ([{**rows[0], "size": "1"}], "problems[0]: field 'size' must be a whole number from 1"),
        ([3], "field 'problems[0]' must be an object, not 3"),
        ([], "field 'problems' must be a list of one problem or more, not []"),
    ):
        path.write_text(json.dumps({"schema": 1, "problems": changed}))
        with pytest.raises(ParenvsError) as error:
            read_rows(Part, path, lambda part, _: part)
        assert str(error.value).startswith(f"{path}: {line}")
