"""Reads objects of JSON types as dataclasses: fields and bounds are types, and msgspec checks them.

What is wrong is said in one line that names the place, the field, and what it must be:
``plan.json: field 'cuts[1]' must be a whole number, not 'x'``. The words for what it must be stand
in the types, see ``whole``, ``number``, ``words`` and ``one_of``.

>>> from dataclasses import dataclass, fields
>>> @dataclass(frozen=True)
... class Order:
...     order: tuple[Integer, ...]
>>> read(Order, {"order": [2, 0, 1]}, "order.json")
Order(order=(2, 0, 1))
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import StrPath, read_object, write_text

_Kind = TypeVar("_Kind")
_Made = TypeVar("_Made")
_Path = tuple[str | int, ...]
"""Names, positions and keys that lead to a value."""
_KEY = Meta(extra={"key": True})
"""Marks the type of the keys of an object."""
_LISTS = (inspect.ListType, inspect.VarTupleType)

SCHEMA = 1
"""Version of the files of problems and of sets of them."""
LARGEST_NUMBER = 2**31 - 1
"""Largest number of a field, unless its type says another."""


def whole(minimum: int, maximum: int = LARGEST_NUMBER) -> Meta:
    """Return the bounds of a whole number, with their words."""
    end = "" if maximum >= LARGEST_NUMBER else f" to {maximum:,}"
    return Meta(ge=minimum, le=maximum, description=f"a whole number from {minimum:,}{end}")


def number(minimum: float, maximum: float = LARGEST_NUMBER, words: str = "") -> Meta:
    """Return the bounds of a number, with their words."""
    end = "" if maximum >= LARGEST_NUMBER else f" to {maximum:g}"
    return Meta(ge=minimum, le=maximum, description=words or f"a number from {minimum:g}{end}")


def words(text: str, **bounds: Any) -> Meta:
    """Return what a message says that a value must be, and bounds as of ``msgspec.Meta``."""
    return Meta(description=text, **bounds)


def one_of(*known: str) -> Meta:
    """Return the choice of a few texts."""
    # Anchored by \Z, as $ would also match before a final newline.
    pattern = "|".join(map(re.escape, known))
    return Meta(pattern=rf"\A(?:{pattern})\Z", extra={"known": known})


Integer = Annotated[int, words("a whole number", ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
"""A whole number."""
Index = Annotated[int, whole(0)]
"""A whole number from 0."""
Count = Annotated[int, whole(1)]
"""A whole number from 1."""
Number = Annotated[int, number(0)] | Annotated[float, number(0)]
"""A number from 0, which stays a whole one if it is."""
Size = Annotated[float, words("a positive number of bytes", gt=0, le=1e30)]
"""Bytes."""
Text = Annotated[str, words("a text of 1 to 4,096 characters", min_length=1, max_length=4096)]
"""A text that is not empty, as long as a path can be."""


def read(
    kind: type[_Kind], content: Any, where: str = "", error: type[ParenvsError] = ParenvsError
) -> _Kind:
    """Check an object of JSON types and make a dataclass of it.

    A field whose class has a method ``parse``, like ``Cluster``, is read by that. A field that is
    None where it is not given must be left out.

    Args:
        kind: the dataclass, with a type for each field.
        content: the object.
        where: what messages begin with before a colon, a file's name for example.
        error: class of the errors.

    Raises:
        ParenvsError: a field is missing or unknown, or has the wrong type or value.
    """
    prefix = f"{where}: " if where else ""
    if not isinstance(content, Mapping):
        raise error(f"{prefix}expected one JSON object, not {shown(content)}")
    form = _form(cast(Any, kind))
    try:
        for reason in _wrong_names(kind, content, ()):
            raise error(f"{prefix}{reason}")
        content = _parsed(content, kind, prefix, error)
        result: _Kind = _converted(content, kind)
    except msgspec.ValidationError as wrong:
        raise error(f"{prefix}{_reason(wrong, kind, content)}") from None
    except RecursionError:
        raise error(f"{prefix}nested too deeply") from None
    for field in form.fields:  # msgspec leaves defaults to the class, where vars() sees none
        vars(result).setdefault(field.name, getattr(result, field.name))
    return result


def check(value: Any, where: str = "", error: type[ParenvsError] = ParenvsError) -> None:
    """Check the values of a dataclass that Python made, not ``read``, by their types.

    Raises:
        ParenvsError: a field has the wrong type or value.
    """
    kind: Any = type(value)
    values = {field.name: plain(getattr(value, field.name)) for field in fields(kind)}
    try:
        _converted(values, _unchecked(kind))
    except msgspec.ValidationError as wrong:
        reason = _reason(wrong, kind, values)
        raise error(where + reason.removeprefix("field ")) from None


def plain(value: Any) -> Any:
    """Return a value, its numbers of NumPy as ones of Python."""
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def checked(
    owner: Any, given: Mapping[str, Any], where: str = "", error: type[ParenvsError] = ParenvsError
) -> dict[str, Any]:
    """Return options as the fields of a class, or a function's parameters, have their types.

    Others raise ``error``, whose line names the option, the value and what it must be.
    """
    hints = _options(owner)
    result = {name: plain(value) for name, value in given.items()}
    for name, value in result.items():
        if must := _refusal(value, hints.get(name, Any)):
            raise error(f"{where}{name} must be {must}, not {shown(value)}")
    return result


def settle(
    made: Any, *names: str, where: str = "", error: type[ParenvsError] = ParenvsError
) -> None:
    """Check fields of a frozen dataclass when it is made, see ``checked``; by default all."""
    values = {name: getattr(made, name) for name in names or vars(made)}
    for name, value in checked(type(made), values, where, error).items():
        object.__setattr__(made, name, value)


@lru_cache(maxsize=64)
def _options(owner: Any) -> dict[str, Any]:
    return get_type_hints(owner, include_extras=True)


def _refusal(value: Any, hint: Any) -> str:
    """Return what a value must be, "" if it is that."""
    own, others, union = _choices(hint)
    if isinstance(value, own):
        return ""
    try:
        if not others or (isinstance(value, float) and math.isnan(value)):
            raise msgspec.ValidationError
        _converted(value, union)
        return ""
    except msgspec.ValidationError:
        words = [_words(inspect.type_info(x), value) for x in others if x is not NoneType]
        return " or ".join(dict.fromkeys([*words, *(f"a {x.__name__}" for x in own)]))


@lru_cache(maxsize=512)
def _choices(hint: Any) -> tuple[tuple[type, ...], tuple[Any, ...], Any]:
    """Return the classes of a type that msgspec does not know, its other parts, and their union."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if Any in parts:
        return (object,), (), None
    own = [x for x in parts if isinstance(x, type) and get_origin(x) is None]
    own = [x for x in own if x not in (int, float, str, bool, NoneType)]
    others = tuple(x for x in parts if x not in own)
    return tuple(own), others, Union[others] if others else None  # noqa: UP007  # of a tuple


@lru_cache(maxsize=64)
def _unchecked(kind: type) -> type:
    """Return a class with the fields of a dataclass and nothing that is done once it is made."""
    hints = get_type_hints(kind, include_extras=True)
    return msgspec.defstruct(
        kind.__name__, [(field.name, hints[field.name]) for field in fields(kind)]
    )


def read_rows(
    kind: type[_Kind], path: StrPath, make: Callable[[_Kind, str], _Made]
) -> dict[str, _Made]:
    """Read the file of a set of problems, ``{"schema": 1, "problems": [{"name": ..., ...}, ...]}``.

    Args:
        kind: dataclass of a problem, without its name.
        path: the file.
        make: makes a problem of a row and of what messages about it begin with.

    Returns:
        the problems by name, in their order.

    Raises:
        ParenvsError: the file is missing or wrong; the line names the file, the problem and the
            field.
    """
    where, rows = os.fspath(path), dict[str, _Made]()
    listed = read(_Rows, read_object(path, SCHEMA), where).problems
    for position, row in enumerate(listed):
        prefix = f"{where}: problems[{position}]"
        name = read(_Named, {"name": row["name"]} if "name" in row else {}, prefix).name
        if name in rows:
            raise ParenvsError(f"{prefix}: field 'name' is {shown(name)} a second time")
        fields_read = read(kind, {key: row[key] for key in row if key != "name"}, prefix)
        rows[name] = make(fields_read, prefix)
    return rows


def write_rows(path: StrPath, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the problems of a set as objects of JSON types, a line each, whole or not at all."""
    lines = (json.dumps({"name": name, **row}) for name, row in rows.items())
    body = ",\n  ".join(lines)
    write_text(path, f'{{"schema": {SCHEMA}, "problems": [\n  {body}\n]}}\n')


@dataclass(frozen=True)
class _Rows:
    problems: Annotated[
        tuple[dict[str, Any], ...], words("a list of one problem or more", min_length=1)
    ]


@dataclass(frozen=True)
class _Named:
    name: Text


@lru_cache(maxsize=64)
def _form(kind: type) -> Any:
    return inspect.type_info(kind)


def _plain(form: Any) -> Any:
    return form.type if isinstance(form, inspect.Metadata) else form


@dataclass(frozen=True)
class _Class:
    """What is to be known of the fields of a dataclass before msgspec reads it."""

    hints: dict[str, Any]
    required: tuple[str, ...]
    none: tuple[str, ...]
    parsers: dict[str, Callable[[Any], Any]]


@lru_cache(maxsize=256)
def _class(kind: type) -> _Class:
    form_fields, hints = _form(kind).fields, get_type_hints(kind, include_extras=True)
    parsers = {
        name: inner.parse for name in hints for inner in _hints(hints[name])
        if hasattr(inner, "parse")
    }  # fmt: skip
    return _Class(
        {field.name: hints[field.name] for field in form_fields},
        tuple(field.name for field in form_fields if field.required),
        tuple(field.name for field in form_fields if field.default is None),
        parsers,
    )


def _parsed(
    content: Mapping[str, Any], kind: Any, prefix: str, error: type[ParenvsError]
) -> dict[str, Any]:
    result = dict(content)
    for name, parse in _class(kind).parsers.items():
        if name in content:
            try:
                result[name] = parse(content[name])
            except ValueError as wrong:
                raise error(f"{prefix}field {name!r}: {wrong}") from None
    return result


def _wrong_names(hint: Any, value: Any, path: _Path) -> Iterator[str]:
    """Yield a reason for each field that is missing, unknown, or None where it can be left out."""
    parsers: Mapping[str, Any] = {}
    for kind in _hints(hint):
        if is_dataclass(kind) and isinstance(value, Mapping):
            fields_of = _class(cast(Any, kind))
            parsers = fields_of.parsers
            unknown = sorted(value.keys() - fields_of.hints.keys())
            other = f", and {shown(unknown[0])} is no field" if unknown else ""
            for name in fields_of.required:
                if name not in value:
                    yield f"field {_text((*path, name))} is missing{other}"
            for name in unknown:
                yield f"unknown field {_text((*path, name))}{did_you_mean(name, fields_of.hints)}"
            for name in fields_of.none:
                if value.get(name, "") is None:
                    expected = _words(inspect.type_info(fields_of.hints[name]))
                    yield f"field {_text((*path, name))} must be {expected}, not None"
    # Classes that parse themselves check their own fields.
    for key, inner, part in _parts(hint, value) if _has_objects(hint) else ():
        if key is not None and key not in parsers:
            yield from _wrong_names(inner, part, (*path, key))


@lru_cache(maxsize=256)
def _has_objects(hint: Any) -> bool:
    return any(
        is_dataclass(kind) or any(map(_has_objects, get_args(kind))) for kind in _hints(hint)
    )


def _fault(hint: Any, value: Any, path: _Path) -> tuple[_Path, Any, Any, Exception | None]:
    """Return path, type and value of the innermost part that msgspec refuses, and a rule's error.

    A rule is a class's own check. A part is refused alone as in the whole, so the search descends.
    """
    for key, inner, part in _parts(hint, value):
        try:
            _converted(part, inner)
        except msgspec.ValidationError as error:
            rule = error.__cause__ if isinstance(error.__cause__, ValueError) else None
            inner_path = (*path, key) if key is not None else path
            inner_path, inner, part, inner_rule = _fault(inner, part, inner_path)
            return inner_path, inner, part, inner_rule or rule
    return path, hint, value, None


def _parts(hint: Any, value: Any) -> Iterator[tuple[str | int | None, Any, Any]]:
    """Yield key or position, type and value of each part; a key of an object is a part at None."""
    for kind in _hints(hint):
        args = get_args(kind)
        if isinstance(value, Mapping) and get_origin(kind) is dict:
            yield from ((None, Annotated[args[0], _KEY], key) for key in value)
            yield from ((key, args[1], part) for key, part in value.items())
        elif isinstance(value, Mapping) and is_dataclass(kind):
            hints = _class(cast(Any, kind)).hints
            yield from ((key, hints[key], part) for key, part in value.items() if key in hints)
        elif isinstance(value, list) and get_origin(kind) in (list, tuple):
            types = () if get_origin(kind) is list or Ellipsis in args else args
            if len(types) in (0, len(value)):
                yield from ((k, types[k] if types else args[0], x) for k, x in enumerate(value))


def _hints(hint: Any) -> tuple[Any, ...]:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        return tuple(kind for choice in get_args(hint) for kind in _hints(choice))
    return (hint,)


def _reason(wrong: msgspec.ValidationError, kind: Any, content: Any) -> str:
    path, hint, value, rule = _fault(kind, content, ())
    if not path and isinstance(wrong.__cause__, ValueError):
        rule = wrong.__cause__
    if rule is not None:  # that types do not say
        return f"field {_text(path)}: {rule}" if path else str(rule)
    form = inspect.type_info(hint)
    must = "must have keys that are" if _KEY in getattr(hint, "__metadata__", ()) else "must be"
    suggestion = did_you_mean(value, _known(form)) if isinstance(value, str) else ""
    return f"field {_text(path)} {must} {_words(form, value)}, not {shown(value)}{suggestion}"


def _converted(content: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(content, kind)
    # JSON can spell half of a surrogate pair, which msgspec cannot encode; it asks objects for more
    # than they have.
    except (UnicodeEncodeError, AttributeError) as wrong:
        raise msgspec.ValidationError(str(wrong)) from None


def _text(path: _Path) -> str:
    """Return a path as messages show it, like ``'stages[0].split.w'``, cut short and quoted."""
    parts = (f"[{x}]" if isinstance(x, int) else f".{x}" for x in path)
    return shown("".join(parts).lstrip("."))


_PLAIN_WORDS = (
    (inspect.BoolType, "true or false"),
    (inspect.IntType, "a whole number"),
    (inspect.FloatType, "a number"),
    (inspect.StrType, "a text"),
    (_LISTS, "a list"),
    ((inspect.DictType, inspect.DataclassType), "an object"),
)


def _words(form: Any, value: Any = None) -> str:
    plain, metadata = _plain(form), form if isinstance(form, inspect.Metadata) else None
    if isinstance(plain, inspect.UnionType):
        choices = (x for x in plain.types if not isinstance(_plain(x), inspect.NoneType))
        return " or ".join(dict.fromkeys(_words(choice, value) for choice in choices))
    if isinstance(plain, inspect.TupleType):
        text = f"a list of {len(plain.item_types)}"
    else:
        text = next((text for kinds, text in _PLAIN_WORDS if isinstance(plain, kinds)), "")
    if metadata is not None:
        text = (metadata.extra_json_schema or {}).get("description", text)
        if known := _known(form):
            text = f"one of {', '.join(known)}" if len(known) > 1 else repr(known[0])
    maximum = getattr(plain, "le", None)
    beyond = maximum is not None and isinstance(value, int | float) and value > maximum
    return f"{text}, at most {maximum:,}" if beyond and f"to {maximum:,}" not in text else text


def _known(form: Any) -> Sequence[str]:
    return (form.extra or {}).get("known", ()) if isinstance(form, inspect.Metadata) else ()
