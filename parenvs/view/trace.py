"""Simulated steps in Chrome's trace format, as Perfetto and ``chrome://tracing`` open them.

A process is a stage, or a rank; a slice is a pass, in it the kinds of work or the layers that it
consists of; a counter has the bytes in use.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.files import StrPath, replacing

ENDINGS = (".json", ".json.gz")
"""Endings of files; the second is compressed."""
MOST_PASSES = 500_000
"""Passes of all processes, at most: 100 MB of text."""


class Part(NamedTuple):
    """Work of some seconds.

    Attributes:
        parts: what it consists of, one after the other from its beginning.
    """

    name: str
    seconds: float
    parts: Sequence[Part] = ()


class Track(NamedTuple):
    """What the ranks of a stage do in a step, all of them the same.

    Attributes:
        name: of the stage, in words.
        ranks: numbers of its devices.
        passes: second of the step, and the work that begins there.
        held: (n,) seconds of the step, and (n,) bytes in use on a device from then on.
    """

    name: str
    ranks: range
    passes: Sequence[tuple[float, Part]]
    held: tuple[np.ndarray, np.ndarray] | None = None


def in_use(start: np.ndarray, end: np.ndarray, base: float, most: float) -> Any:
    """Return ``Track.held`` of a stage that holds activations from a pass to its way back.

    Activations of a pass are taken to be as large as those of the others.

    Args:
        start: when activations begin to be held, any shape.
        end: when they are released, of the same shape.
        base: bytes that are always there.
        most: bytes at the peak.
    """
    times = np.concatenate([[0.0], start.ravel(), end.ravel()])
    change = np.repeat([0, 1, -1], [1, start.size, end.size])
    # What is released makes room for what begins then.
    order = np.lexsort((change, times))
    count = change[order].cumsum()
    return times[order], base + (most - base) * count / count.max()


def check_ending(path: StrPath) -> None:
    """Raise a ParenvsError unless a file of that name can hold a trace."""
    if not str(path).endswith(ENDINGS):
        raise ParenvsError(f"{path}: a trace ends in {' or '.join(ENDINGS)}")


def write(path: StrPath, tracks: Sequence[Track], every_rank: bool = False) -> None:
    """Write a trace, whole or not at all; equal steps give equal bytes.

    Args:
        path: ends in one of ``ENDINGS``.
        tracks: one for each stage.
        every_rank: whether a process is a rank, not a stage.

    Raises:
        ParenvsError: another ending, or too many passes.
    """
    check_ending(path)
    count = sum(len(track.passes) * (len(track.ranks) if every_rank else 1) for track in tracks)
    if count > MOST_PASSES:
        raise ParenvsError(f"{path}: {count:,} passes, of at most {MOST_PASSES:,} in a trace")
    lines = (json.dumps(x, separators=(",", ":")) for x in _events(tracks, every_rank))
    events = ",\n".join(lines)
    data = f'{{"displayTimeUnit":"ms","traceEvents":[\n{events}\n]}}\n'.encode("ascii")
    with replacing(path) as file:
        file.write(gzip.compress(data, mtime=0) if str(path).endswith(ENDINGS[1]) else data)


def _events(tracks: Sequence[Track], every_rank: bool) -> Iterator[dict[str, Any]]:
    for number, track in enumerate(tracks):
        for process in track.ranks if every_rank else (number,):
            event = {"pid": process, "tid": 0}
            name = f"rank {process}, {track.name}" if every_rank else track.name
            yield {"ph": "M", "name": "process_name", **event, "args": {"name": name}}
            for start, part in track.passes:
                yield from _slices(event, start, part)
            for start, size in zip(*(track.held or ((), ())), strict=True):
                counter = {"ph": "C", "name": "bytes in use", "ts": _microseconds(start)}
                yield {**counter, **event, "args": {"bytes": round(float(size))}}


def _slices(event: dict[str, Any], start: float, part: Part) -> Iterator[dict[str, Any]]:
    begin = _microseconds(start)
    length = round(_microseconds(start + part.seconds) - begin, 3)
    yield {"ph": "X", "name": part.name, "ts": begin, "dur": length, **event}
    for inner in part.parts:
        yield from _slices(event, start, inner)
        start += inner.seconds


def _microseconds(seconds: float) -> float:
    # Ends and beginnings are rounded alike, so that slices stay inside of each other.
    return round(1e6 * float(seconds), 3)
