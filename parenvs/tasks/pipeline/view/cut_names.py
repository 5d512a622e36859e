"""Short names of the places where a chain is cut."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from parenvs.errors import printable
from parenvs.tasks.pipeline.scopes import NUMBERED, Path, scopes_of
from parenvs.view.words import clip, plural

if TYPE_CHECKING:
    from parenvs.tasks.pipeline.profile import StageProfile

AFTER = "after "
"""How the name of a cut begins that comes after what it names."""
_INDEX = re.compile(r"\[?\d+\]?")
_DIGITS = re.compile(r"\d+")


def cut_labels(profile: StageProfile, cuts: Iterable[int], width: int = 36) -> list[str]:
    """The shortest names by which both sides of each cut are told apart.

    A cut is named after the outermost scope that it ends, ``after layers/3``, or begins, ``before
    head``; inside a scope after the instruction, ``after layers/3/mlp/dot 2``; where
    scopes have no numbers, after the variable that is read next, ``before layers/3/q``. A scope is
    written from its last number on, and from further left where scopes elsewhere end alike.

    Args:
        profile: the chain.
        cuts: first pivot after each cut; the length of the chain stands for its end.
        width: most characters of a name, ``after`` not counted.

    Returns:
        A name for each cut; different cuts have different names.
    """
    chain, pivots = _Chain(profile), list(cuts)
    words = {}
    for cut in pivots:
        label = printable(chain.label(cut))
        prefix = AFTER if label.startswith(AFTER) else ""
        words[cut] = prefix + _fit(label.removeprefix(prefix), width)
    count = Counter(words.values())
    return [words[cut] if count[words[cut]] == 1 else f"{AFTER}pivot {cut - 1}" for cut in pivots]


class _Chain:
    """The scopes of a chain.

    Attributes:
        profile: the chain.
        paths: (n,) scopes that each pivot stands in.
        operations: (n,) name of its instruction, empty in a measured chain.
        spans: scope -> first and last pivot in it.
    """

    def __init__(self, profile: StageProfile) -> None:
        self.profile = profile
        names = [str(name) for name in profile.names]
        parsed = {name: scopes_of(name, bool(profile.source)) for name in dict.fromkeys(names)}
        self.paths = [parsed[name][0] for name in names]
        self.operations = [parsed[name][1] for name in names]
        self.spans: dict[Path, list[int]] = {}
        for pivot, path in enumerate(self.paths):
            for depth in range(1, len(path) + 1):
                self.spans.setdefault(path[:depth], [pivot, pivot])[1] = pivot

    @cached_property
    def variables(self) -> dict[int, Path]:
        """Pivot -> path of the variable that it is the first to read."""
        reads = self.profile.reads if self.profile.reads is not None else ()
        return {pivot: tuple(path.split("/")) for pivot, path in enumerate(reads) if path}

    @cached_property
    def prefixes(self) -> set[Path]:
        """What the paths of the variables begin with."""
        paths = self.variables.values()
        return {path[: k + 1] for path in paths for k in range(len(path))}

    def label(self, cut: int) -> str:
        """The name of a cut; no other cut of the chain has it."""
        if cut == len(self.paths):
            return "end"
        before, after = self.paths[cut - 1], self.paths[cut]
        ended = self._outermost(before, 1, cut - 1)
        begun = self._outermost(after, 0, cut)
        if ended and not (begun and len(begun) < len(ended)):
            return f"{AFTER}{_suffix(ended, self.spans)}"
        if begun:
            return f"before {_suffix(begun, self.spans)}"
        reader = min((pivot for pivot in self.variables if pivot >= cut), default=None)
        if reader is not None and not _numbered(before):
            variable = _suffix(self.variables[reader], self.prefixes, least=2)
            distance = f"{plural(reader - cut, 'pivot')} " if reader > cut else ""
            return f"{distance}before {variable}"
        return f"{AFTER}{self._occurrence(cut - 1)}"

    def _outermost(self, path: Path, end: int, pivot: int) -> Path:
        """The outermost scope of ``path`` whose first (0) or last (1) pivot this is, or ()."""
        scopes = (path[:depth] for depth in range(1, len(path) + 1))
        return next((scope for scope in scopes if self.spans[scope][end] == pivot), ())

    def _occurrence(self, pivot: int) -> str:
        """The pivot's scope and instruction, and which of those of that name it is."""
        path, operation = self.paths[pivot], self.operations[pivot]
        same = [
            position
            for position, pair in enumerate(zip(self.paths, self.operations, strict=True))
            if pair == (path, operation)
        ]
        parts = (_suffix(path, self.spans), operation)
        number = f" {same.index(pivot) + 1}" if len(same) > 1 else ""
        return "/".join(part for part in parts if part) + number


def _numbered(path: Path) -> bool:
    return any(NUMBERED.search(part) for part in path)


def _suffix(path: Path, rivals: Collection[Path], least: int = 1) -> str:
    """The path from its last numbered part on, and from further left as long as that is ambiguous.

    It is ambiguous if one of the ``rivals`` ends alike up to that part, whatever the numbers, below
    other scopes: ``layers/3`` of an encoder where a decoder has layers too. It has at least
    ``least`` parts, if there are as many.
    """
    numbered = [index for index, part in enumerate(path) if NUMBERED.search(part)]
    start = numbered[-1] if numbered else max(len(path) - 1, 0)
    stop = start + 1
    while start > 0 and (
        _INDEX.fullmatch(path[start])
        or any(
            _alike(rival[start - stop :], path[start:stop])
            and rival[: start - stop] != path[:start]
            for rival in rivals
        )
    ):
        start -= 1
    return "/".join(path[max(min(start, len(path) - least), 0) :])


def _alike(a: Path, b: Path) -> bool:
    """Whether two paths are equal but for their numbers."""
    return len(a) == len(b) and all(_kind(x) == _kind(y) for x, y in zip(a, b, strict=True))


@lru_cache(4096)
def _kind(part: str) -> str:
    """The part with ``#`` for every number."""
    return _DIGITS.sub("#", part)


def _fit(words: str, width: int) -> str:
    """The words in at most ``width`` characters.

    The word pivots and the words between two numbers go first, ``stages/2/layers/3`` becomes
    ``stages/2/3``; then the end goes.
    """
    if len(words) <= width:
        return words
    words = re.sub(r"^(\d+) pivots? ", r"\1 ", words)
    words = re.sub(r"(?<=/)(\d+)/[^/\d]+/(?=\d+(?:/|$))", r"\1/", words)
    return clip(words, width)
