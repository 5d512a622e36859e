"""One family of errors: each names the file, the field and the remedy, in one line."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ParenvsError(ValueError):
    """Base of every error that a user's input can cause; its text is one clear line."""


class HloError(ParenvsError):
    """A file that is no HLO module, or HLO that the reader cannot take."""


class ProfileError(ParenvsError):
    """A per-pivot profile with a missing column or an impossible value."""


class ClusterError(ParenvsError):
    """A cluster description that does not parse or makes no sense."""


class PlanError(ParenvsError):
    """A plan file that does not follow the schema."""


class InfeasibleError(ParenvsError):
    """A problem without a legal plan, for example a model that fits no partition of the memory."""


class UnknownInstanceError(ParenvsError):
    """A name that is neither a shipped instance nor a file."""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """A value for an error message, cut short: files can hold megabytes where a word belongs."""
    return _SHORT.repr(value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" (did you mean 't5-3b'?)"`` for the nearest known name, else an empty string."""
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


@contextmanager
def need_extra(extra: str, purpose: str) -> Iterator[None]:
    """Imports in this block need an optional extra; if one fails, the error names the pip line.

    Args:
        extra: name of the extra, e.g. ``"agents"``.
        purpose: what needs it, the subject of the error's sentence, e.g. ``"training"``.

    Raises:
        ParenvsError: an import inside the block failed.
    """
    try:
        yield
    except ImportError as error:
        raise ParenvsError(
            f"{purpose} needs the extra {extra!r} ({error}); pip install 'parenvs[{extra}]'"
        ) from None
