"""Files of problems that a user has added: a folder of the user's, or ``PARENVS_IOPDDL``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean
from parenvs.files import replacing
from parenvs.tasks.sharding.files import load_iopddl
from parenvs.tasks.sharding.known import check_file
from parenvs.tasks.sharding.problem import Sharding

SUFFIXES = (".json.gz", ".json")


def folder() -> Path:
    """Return the folder of the added files; it may not exist yet."""
    given = os.environ.get("PARENVS_IOPDDL")
    return Path(given) if given else Path.home() / ".local" / "share" / "parenvs" / "iopddl"


def names() -> list[str]:
    """Return the names of the added files, without their suffixes, sorted."""
    place = folder()
    if not place.is_dir():
        return []
    names_ = {
        path.name.removesuffix(suffix)
        for path in place.iterdir()
        for suffix in SUFFIXES
        if path.name.endswith(suffix) and not path.name.startswith(".")
    }
    return sorted(names_)


def add(path: str | os.PathLike[str]) -> tuple[Sharding, Path, bool]:
    """Check a file and copy it to the folder.

    Returns:
        The problem, where its copy is, and whether it is the contest's file by its SHA-256.

    Raises:
        ParenvsError: the file holds no problem, is not what it calls itself, or another of its
            name was added.
    """
    source = Path(path)
    problem = load_iopddl(source)
    same = check_file(source, problem.name)
    target = folder() / source.name
    if not source.name.endswith(SUFFIXES):
        raise ParenvsError(f"{source}: the name of a problem's file ends with .json or .json.gz")
    data = source.read_bytes()
    if target.exists() and target.read_bytes() != data:
        raise ParenvsError(f"{target} exists and differs; remove it, or rename {source}")
    with replacing(target) as stream:
        stream.write(data)
    return problem, target, same


def find(target: str, sets: Iterable[str] = ()) -> Sharding:
    """Read a problem by path, or by the name of an added file (its last letter is enough).

    Args:
        target: the path or the name.
        sets: further names that the caller knows, offered when ``target`` is near one.

    Raises:
        UnknownInstanceError: it is neither.
        ParenvsError: the file holds no problem.
    """
    if Path(target).is_file():
        return load_iopddl(target)
    listed = names()
    wanted = [name for name in listed if name == target]
    wanted = wanted or [name for name in listed if name.endswith(f"-{target}")]
    for name in wanted:
        for suffix in SUFFIXES:
            path = folder() / f"{name}{suffix}"
            if path.is_file():
                return load_iopddl(path)
    hint = did_you_mean(target, (*listed, *sets))
    raise UnknownInstanceError(
        f"{target!r} is neither a file nor an added IOPDDL problem{hint}; "
        "add files with parenvs iopddl add FILE.json.gz"
    )
