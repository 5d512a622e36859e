"""One family of errors: each names the file, the field and the remedy, in one line."""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class ParenvsError(ValueError):
    """Base of every error that a user's input can cause; its text is one clear line."""

    def __init__(self, text: str = "") -> None:
        # Names and values that a file holds can be megabytes, and of several lines.
        super().__init__(cut(" ".join(text.splitlines())))


class HloError(ParenvsError):
    """A file is not an HLO module, or contains HLO that the reader does not support."""


class ProfileError(ParenvsError):
    """A per-pivot profile has a missing column or an impossible value."""


class ClusterError(ParenvsError):
    """A description of a cluster does not parse or is contradictory."""


class PlanError(ParenvsError):
    """A plan file does not follow the schema."""


class InfeasibleError(ParenvsError):
    """A problem has no legal plan, for example because the model does not fit the memory."""


class TimeLimitError(ParenvsError, TimeoutError):
    """A planner's time or steps ended before it had a plan; that proves nothing of the problem."""


class UnknownInstanceError(ParenvsError):
    """A name is neither a shipped instance nor a file."""


NO_PLAN = (InfeasibleError, TimeLimitError)
"""What a planner raises that returns no plan."""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """Return a value as text for an error message, cut short, as files can hold megabytes."""
    return _SHORT.repr(value)


def cut(text: str, length: int = 600) -> str:
    """Return a text of at most ``length`` characters, its middle left out where it is longer."""
    half = length // 2
    return text if len(text) <= length else f"{text[: half - 3]} ... {text[-half + 2 :]}"


def printable(text: str) -> str:
    """Return a text fit for one line of a terminal: ``?`` for what controls it or turns its text.

    Those are control characters, line ends, bidirectional controls and lone surrogates.
    """
    return "".join(x if x.isprintable() else "?" for x in text)


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return ``" (did you mean 't5-3b'?)"`` for a known name that was mistyped, or an empty string.

    A name is near if the other begins with it, or differs by at most one slip for every four
    letters: one too many, too few, another, or two in the wrong order. A number is one letter.
    """
    given = str(name)[:80].lower()
    likely = difflib.get_close_matches(given, list(known), n=5, cutoff=0.5)
    apart: dict[str, int] = {}
    near = []
    for other in likely:
        # Numbers count as one letter, or digit by digit: 't511b' is near 't5-11b'.
        for letters in (_letters, lambda name: [*"".join(_letters(name))]):
            slips = _slips(letters(given), letters(other))
            apart[other] = min(slips, apart.get(other, slips))
            near += [other] if slips <= max(len(letters(given)) // 4, 1) else []
    near += [other for other in likely if other.lower().startswith(given)]
    nearest = min(near, key=apart.__getitem__, default=None)
    return f" (did you mean {nearest!r}?)" if nearest is not None else ""


def among(name: object, known: Iterable[str]) -> str:
    """Return the end of a message on an unknown name: a known one that is near, and all of them."""
    names = list(known)
    return f"{did_you_mean(str(name), names)}; known: {', '.join(names) or 'none'}"


def refuse_unknown(
    words: str, name: object, known: Iterable[str], error: type[ValueError] = ParenvsError
) -> None:
    """Raise ``error`` unless a name is known; its message begins with ``words`` and the name."""
    names = list(known)
    if not isinstance(name, str) or name not in names:
        raise error(f"{words} {shown(name)}{among(name, names)}")


def listed(names: Sequence[str], most: int = 3, separator: str = ", ", last: str = " and ") -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - most
    return separator.join(names[:most]) + (f"{last}{more:,} more" if more > 0 else "")


def _letters(name: str) -> list[str]:
    return re.findall(r"[0-9]+|[^\W_]", name.lower())


def _slips(first: list[str], second: list[str]) -> int:
    """How many slips of typing two names are apart (distance of optimal string alignment)."""
    rows = [list(range(len(second) + 1))]
    for i, x in enumerate(first, 1):
        row = [i]
        for j, y in enumerate(second, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (x != y)))
            # Two neighboring letters that changed places are one slip, not two.
            if i > 1 and j > 1 and (x, y) == (second[j - 2], first[i - 2]):
                row[-1] = min(row[-1], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def one_line(error: Exception) -> str:
    """Return the message of ``error`` as one line of at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(" ".join(lines[:2])[:300])


@contextmanager
def need_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import in the block into an error that names the pip command.

    Args:
        extra: name of the extra, e.g. ``"agents"``.
        purpose: subject of the error's sentence, e.g. ``"training"``.

    Raises:
        ParenvsError: an import inside the block failed.
    """
    try:
        yield
    except ImportError as error:
        # The lowest JAX of setup.cfg is of Python 3.11 on; before, pip installs none.
        is_old = sys.version_info < (3, 11) and extra in ("jax", "torch")
        where = "on Python 3.11 or newer, " if is_old else ""
        raise ParenvsError(
            f"{purpose} needs the extra {extra!r} ({error}); {where}pip install 'parenvs[{extra}]'"
        ) from None
