"""Fixed sets of clusters whose nodes come and go by chance, stored as data.

    python -m parenvs.datasets.elastic.sets                      # make all sets again
    python -m parenvs.datasets.elastic.sets elastic-test --out /tmp/sets

A set is one ``.json`` of ``parenvs.tasks.elastic.files``: chains of each family and measured model,
drawn by ``parenvs.tasks.elastic.markov.draw_markov``. Problems are called FAMILY-MODEL-NUMBER.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from parenvs.core.plan import Answer
from parenvs.core.sets import OPTIMUM, Reference, SetKind
from parenvs.datasets.banks import write_banks
from parenvs.datasets.elastic.drawing import FAMILIES, NODES
from parenvs.datasets.elastic.named import bank
from parenvs.datasets.set_commands import command_line, write_files
from parenvs.tasks.elastic.files import Row, save_set
from parenvs.tasks.elastic.load import (
    ELASTIC_SETS,
    MEASURED,
    WINDOWS,
    elastic_rows,
    load_elastic,
    windows,
)
from parenvs.tasks.elastic.markov import CHAINS, draw_markov
from parenvs.tasks.elastic.problem import INTERVALS
from parenvs.tasks.elastic.references import known_of

MODULE = "parenvs.tasks.elastic.problems"
SEED = 2024
"""Seed of the shipped sets."""
COUNTS = dict(zip(ELASTIC_SETS, (16, 2, 4), strict=True))
"""Shipped set -> problems of each family and model."""


def make_set(name: str, seed: int) -> dict[str, Row]:
    """Draw the problems of a shipped set, each from the seed, its set, family, model and number."""
    stream = list(COUNTS).index(name)
    return {
        f"{family}-{model}-{number:03d}": Row(
            model,
            INTERVALS,
            draw_markov(np.random.default_rng([seed, stream, i, k, number]), family, NODES),
        )
        for i, family in enumerate(CHAINS)
        for k, model in enumerate(MEASURED)
        for number in range(COUNTS[name])
    }


def write_set(name: str, seed: int, folder: Path) -> tuple[Path, int]:
    """Make a shipped set and write it into a folder; return the path and the number of problems."""
    path = folder / f"{name}.json"
    rows = make_set(name, seed)
    save_set(path, rows)
    return path, len(rows)


def set_kind(name: str) -> SetKind:
    """Return what evaluations know of a set of elastic problems; see ``SetKind``.

    An episode is worth the share of what hindsight earns on its very course.
    """
    members = windows() if name == WINDOWS else elastic_rows(name)
    return SetKind(
        "ElasticPlan-v1",
        lambda name: [f"{name}/{member}" for member in members],
        load_elastic,
        lambda name: Reference(1.0, 1.0, OPTIMUM),
        worth=lambda info: info["best_known"] / info["cost"],
        answered=_of_hindsight,
    )


def _of_hindsight(answer: Answer) -> float:
    problem = replace(answer.problem, checkpoints=True)
    return float(answer.report.total / known_of(problem, problem.drawn(answer.plan.seed)).best)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["banks"]:
        banks = {family: partial(bank, family) for family in FAMILIES}
        return write_banks(f"{MODULE} banks", "Make the banks again.", banks, given[1:])
    about = "Make the sets of Markov chains again."
    return write_files(command_line(MODULE, about, SEED), COUNTS, write_set, given)


if __name__ == "__main__":
    sys.exit(main())
