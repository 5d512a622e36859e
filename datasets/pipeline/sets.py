"""Fixed sets of drawn problems, stored as data, so that they outlive changes of the generators.

    python -m parenvs.datasets.pipeline.sets --seed 2007                 # make all sets again
    python -m parenvs.datasets.pipeline.sets --seed 2007 plan-test --out /tmp/sets

A set is one compressed ``.npz`` without pickles. It holds the chains end to end with their offsets,
each number as a whole mantissa and a power of two, and cluster, stages and micro-batches of each
problem. A problem that is read equals the one that was drawn, bit for bit.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from parenvs.datasets.pipeline import large, sequence
from parenvs.datasets.pipeline.families import FAMILIES, ChainArrays
from parenvs.datasets.pipeline.generators import (
    BITS,
    INSIDE,
    OUTSIDE,
    TIERS,
    DrawnProblem,
    Ranges,
    draw,
    generated,
    generated_cluster,
)
from parenvs.datasets.set_commands import command_line, write_files
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, one_line
from parenvs.files import replacing
from parenvs.graph.checks.npz import UNREADABLE, read_arrays
from parenvs.shipped import data_folder
from parenvs.tasks.pipeline.problem import Pipeline

MODULE = "parenvs.datasets.pipeline.sets"
SEED = 2007
"""Seed of the shipped sets."""
SETS: dict[str, tuple[int, Ranges]] = {
    "plan-validation": (200, INSIDE),
    "plan-test": (1000, INSIDE),
    "plan-outside": (200, OUTSIDE),
    **{f"plan-{tier}-validation": (16, TIERS[tier]) for tier in ("s16", "s32", "s64")},
    **{f"plan-{tier}-test": (40, TIERS[tier]) for tier in ("s16", "s32", "s64")},
}
"""Shipped set -> number of problems, and their ranges; the families take turns."""
DRAWN = (*sequence.FIRSTS, large.FIRST)
"""First words of the names of drawn problems."""
LARGE = tuple(name for name, (_, ranges) in SETS.items() if ranges.graded)
"""Sets of problems of 16 stages and more, which ``PipelinePlan-v1`` plays."""
PROVEN = tuple(name for name in SETS if name not in LARGE)
"""The others, whose optima are proven."""

SCHEMA = 1
"""Version of the file format."""
_CHAIN = ("forward", "backward", "cut_bytes", "parameter_bytes")
_CLUSTER = ("servers", "devices_per_server", "intra_bw", "inter_bw", "memory_bytes")
_TYPES = {
    "schema": "|u1",
    "families": "|u1",
    "offset": "<i4",
    **{f"{key}_mantissa": "<u2" for key in _CHAIN},
    **{f"{key}_exponent": "|i1" for key in _CHAIN},
    "family": "|u1",
    **dict(zip(_CLUSTER, ("<i4", "<i4", "<f8", "<f8", "<f8"), strict=True)),
    "micro_batches": "<i4",
    "stages": "<i4",
}
"""Array of a file -> its element type; all have one dimension, and ``schema`` one element."""


def load_set(name: str | os.PathLike[str]) -> list[DrawnProblem]:
    """Load the problems of a shipped set, or of a ``.npz`` that ``save_set`` wrote.

    The problems are called ``SET/FAMILY-NUMBER``, numbered within a family; SET is the name of the
    file without its suffix.

    Raises:
        UnknownInstanceError: ``name`` is no shipped set and does not end in ``.npz``.
        ParenvsError: the file is missing or damaged; the message names file, field and remedy.
    """
    text = os.fspath(name)
    if text in SETS:
        return list(_shipped(text))
    if text.endswith(".npz"):
        return _read(Path(text))
    raise UnknownInstanceError(
        f"unknown set {text!r}{did_you_mean(text, SETS)}; shipped: {', '.join(SETS)}; "
        "or give the path of a .npz file"
    )


def find(name: str) -> DrawnProblem:
    """Return the problem of a shipped set, or a drawn one, by its name.

    Args:
        name: like ``"plan-test/transformer-017"``, or one of ``sequence``.

    Raises:
        UnknownInstanceError: there is no such set, or no such problem in it.
    """
    set_name = name.partition("/")[0]
    if set_name in sequence.FIRSTS:
        return sequence.named(name)
    if set_name == large.FIRST:
        return large.named(name)
    known = _by_name(set_name)
    if name in known:
        return known[name]
    raise UnknownInstanceError(
        f"unknown problem {name!r}{did_you_mean(name, known)}; {set_name} holds {len(known)}, from "
        f"{min(known)} to {max(known)}"
    )


def pipeline_of(name: str) -> Pipeline:
    """Return the pipeline of a problem of a shipped set, see ``find``."""
    return find(name).pipeline


def save_set(path: str | os.PathLike[str], problems: Sequence[DrawnProblem]) -> None:
    """Write problems to one ``.npz``, whole or not at all; their names are not stored.

    Raises:
        ParenvsError: the format cannot hold a problem exactly, as it was not drawn by ``draw``.
    """
    known = list(FAMILIES)
    unknown = [problem.family for problem in problems if problem.family not in known]
    if unknown:
        raise ParenvsError(f"{path}: unknown family {unknown[0]!r}; known: {', '.join(known)}")
    arrays: dict[str, Any] = {
        "schema": [SCHEMA],
        "families": np.frombuffer("\n".join(known).encode(), dtype=np.uint8),
        "offset": np.cumsum([0, *(len(problem.pipeline.profile) for problem in problems)]),
        "family": [known.index(problem.family) for problem in problems],
        "memory_bytes": [problem.pipeline.cluster.device.memory_bytes for problem in problems],
        "micro_batches": [problem.pipeline.micro_batches for problem in problems],
        "stages": [problem.stages for problem in problems],
    }
    for key in _CLUSTER[:-1]:
        arrays[key] = [getattr(problem.pipeline.cluster, key) for problem in problems]
    for key in _CHAIN:
        parts = [getattr(problem.pipeline.profile, key) for problem in problems]
        values = np.concatenate(parts) if parts else np.empty(0)
        mantissa, exponent = np.frexp(values)
        arrays[f"{key}_mantissa"] = np.ldexp(mantissa, BITS)
        arrays[f"{key}_exponent"] = exponent - BITS
    typed: dict[str, Any] = {
        key: np.asarray(arrays[key]).astype(kind) for key, kind in _TYPES.items()
    }
    restored_problems = _problems(typed, Path(path))
    for problem, restored in zip(problems, restored_problems, strict=True):
        if not _equal(problem, restored):
            raise ParenvsError(
                f"{path}: {problem.name} cannot be stored exactly; a set holds problems of "
                f"parenvs.datasets.pipeline.generators.draw only ({BITS} significant bits, default "
                "settings)"
            )
    with replacing(path) as stream:
        np.savez_compressed(stream, **typed)


def make_set(name: str, seed: int) -> list[DrawnProblem]:
    """Draw the problems of a shipped set, each from ``seed``, its set's place and its number."""
    count, ranges = SETS[name]
    families, stream = list(FAMILIES), list(SETS).index(name)
    every: Iterable[int] = range(count)
    if sys.stderr.isatty():  # before rich 14.3 a disabled bar prints an empty line
        every = track(every, description=name)
    return [
        draw(np.random.default_rng([seed, stream, i]), families[i % len(families)], ranges)
        for i in every
    ]


@lru_cache(maxsize=len(SETS))
def _by_name(set_name: str) -> dict[str, DrawnProblem]:
    """Return the problems of a set by their names."""
    return {problem.name: problem for problem in load_set(set_name)}


@lru_cache(maxsize=len(SETS))
def _shipped(name: str) -> tuple[DrawnProblem, ...]:
    """Read a shipped set once."""
    return tuple(_read(data_folder() / f"{name}.npz"))


def _read(path: Path) -> list[DrawnProblem]:
    """Read the problems of a file.

    Raises:
        ParenvsError: the file is missing or damaged.
    """
    try:
        arrays = read_arrays(path)
    except UNREADABLE as error:
        reason = f"not a set of problems, or damaged ({one_line(error)})"
        raise ParenvsError(f"{path}: {reason}; {_remedy(path)}") from None
    fault = _inconsistency(arrays)
    if fault:
        raise ParenvsError(f"{path}: {fault}; {_remedy(path)}")
    return _problems(arrays, path)


def _remedy(path: Path) -> str:
    """Return the words that tell how to make a damaged file again."""
    if path.stem in SETS:
        return f"make it anew with python -m {MODULE} {path.stem}"
    return "write it anew with save_set"


def _inconsistency(arrays: dict[str, np.ndarray]) -> str:
    """Return the fault in the arrays' lengths, types or values in words, or an empty string."""
    if set(arrays) != set(_TYPES):
        unmatched = sorted(set(arrays) ^ set(_TYPES))
        return f"field {unmatched[0]!r} is missing or unknown"
    for key, kind in _TYPES.items():
        if arrays[key].dtype.str != kind or arrays[key].ndim != 1:
            return f"field {key!r} is no array of {np.dtype(kind).name} in one dimension"
    if arrays["schema"].tolist() != [SCHEMA]:
        return f"field 'schema' is {arrays['schema'].tolist()}, not [{SCHEMA}]"
    problems, offset = len(arrays["family"]), arrays["offset"]
    if len(offset) != problems + 1 or offset[0] or (np.diff(offset) < 2).any():
        return "field 'offset' does not cut up the chains"
    for key in _CHAIN:
        for half in (f"{key}_mantissa", f"{key}_exponent"):
            if len(arrays[half]) != offset[-1]:
                return f"field {half!r} has {len(arrays[half])} values for {offset[-1]} pivots"
    for key in ("family", *_CLUSTER, "micro_batches", "stages"):
        if len(arrays[key]) != problems:
            return f"field {key!r} has {len(arrays[key])} values for {problems} problems"
    names = arrays["families"].tobytes().decode(errors="replace").split("\n")
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        return f"field 'families' holds {unknown[0]!r}, not one of {', '.join(FAMILIES)}"
    if problems and arrays["family"].max() >= len(names):
        return f"field 'family' holds {arrays['family'].max()}, only {len(names)} are named"
    return ""


def _problems(arrays: dict[str, np.ndarray], path: Path) -> list[DrawnProblem]:
    """Return the problems of consistent arrays.

    Raises:
        ParenvsError: a chain, a cluster or a number of stages is not possible; the message names
            the file and the problem.
    """
    chains = [
        np.ldexp(arrays[f"{key}_mantissa"].astype(np.float64), arrays[f"{key}_exponent"])
        for key in _CHAIN
    ]
    names = arrays["families"].tobytes().decode().split("\n")
    offset, count_by_family, problems = arrays["offset"], Counter[str](), []
    for i, index in enumerate(arrays["family"]):
        family = names[index]
        name = f"{path.stem}/{family}-{count_by_family[family]:03d}"
        count_by_family[family] += 1
        chain = ChainArrays(*(values[offset[i] : offset[i + 1]] for values in chains))
        figures = [arrays[key][i].item() for key in _CLUSTER]
        micro_batches, stages = int(arrays["micro_batches"][i]), int(arrays["stages"][i])
        try:
            cluster = generated_cluster(*figures)
            most_stages = min(cluster.devices, int(np.count_nonzero(chain.parameters)))
            if not 2 <= stages <= most_stages:
                raise ParenvsError(f"field 'stages' is {stages}, not from 2 to {most_stages}")
            problems.append(generated(family, name, chain, cluster, micro_batches, stages))
        except ParenvsError as error:
            raise ParenvsError(f"{path}: {name}: {error}; {_remedy(path)}") from None
    return problems


def _equal(one: DrawnProblem, other: DrawnProblem) -> bool:
    """Return whether two problems differ in nothing but their names."""

    def identity(problem: DrawnProblem) -> tuple[Any, ...]:
        pipeline = problem.pipeline
        settings = (pipeline.micro_batches, pipeline.copies, pipeline.recompute, pipeline.sync)
        chain = pipeline.profile.fingerprint
        return (problem.family, problem.stages, chain, pipeline.cluster, *settings)

    return identity(one) == identity(other)


def write_set(name: str, seed: int, folder: Path) -> tuple[Path, int]:
    """Make a shipped set and write it into a folder; return the path and the number of problems."""
    path = folder / f"{name}.npz"
    problems = make_set(name, seed)
    save_set(path, problems)
    return path, len(problems)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    return write_files(command_line(MODULE, __doc__, SEED), SETS, write_set, arguments)


if __name__ == "__main__":
    sys.exit(main())
