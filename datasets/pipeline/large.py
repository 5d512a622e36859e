"""Pipelines of many stages by number, ``generated-3/TIER/NUMBER``, and the banks of the first ones.

A problem is drawn by its number alone; the families take turns. A bank keeps the start plans of the
problems from number 0 on, which take longer to find than the problems to draw.

    python -m parenvs.datasets.pipeline.large              # make the banks again
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

import numpy as np

from parenvs.core.sets import Reference
from parenvs.datasets.banks import Bank, write_banks
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.datasets.pipeline.generators import TIERS, DrawnProblem, draw
from parenvs.datasets.references import costs_of
from parenvs.errors import UnknownInstanceError, shown
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.spaces import Cuts
from parenvs.tasks.pipeline.task import PipelineTask

VERSION = 3
"""Version of the draw."""
FIRST = f"generated-{VERSION}"
"""First word of the names."""
BANKS = {"s8": 1000, "s16": 2000, "s32": 1000, "s64": 400}
"""Tier -> problems of its bank."""
REFERENCES = "plan-references.json"
"""File of the best plans known of the sets of many stages."""
SAME = 1e-9
"""Share by which a start plan's seconds may differ from those in the bank by rounding."""


def numbered(number: int, tier: str) -> DrawnProblem:
    """Return a problem by its number, from 0."""
    rng = np.random.default_rng([VERSION, list(TIERS).index(tier), number])
    family = list(FAMILIES)[number % len(FAMILIES)]
    return draw(rng, family, TIERS[tier], f"{FIRST}/{tier}/{number}")


def named(name: str) -> DrawnProblem:
    """Return the problem of a name.

    Raises:
        UnknownInstanceError: it is no such name.
    """
    _, *words = name.split("/")
    if len(words) == 2 and words[0] in TIERS and words[1].isdecimal() and len(words[1]) < 16:
        return numbered(int(words[1]), words[0])
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones of many stages are called like "
        f"{FIRST}/s16/17: tier ({', '.join(TIERS)}) and number"
    )


def begin(pipeline: Pipeline) -> Cuts:
    """Return the start plan of a problem: that of a brief search, or of a bank.

    Raises:
        InfeasibleError: no plan that fits the memory was found.
    """
    first, *words = pipeline.instance.split("/")
    if first == FIRST and int(words[1]) < BANKS[words[0]]:
        row = bank(words[0])[int(words[1])]
        plan = row["cuts"].astype(np.int64), row["devices"].astype(np.int64)
        # A later generator of random numbers may draw another problem.
        if plan[0][-1] < len(pipeline.profile) and plan[1][-1] < pipeline.cluster.devices:
            seconds = float(pipeline.length(*plan))
            if abs(seconds - row["seconds"]) <= SAME * seconds:
                return plan
    return _searched(pipeline)


@lru_cache(maxsize=len(BANKS))
def bank(tier: str) -> Bank:
    """Return the bank of a tier."""
    return Bank(f"pipeline-{tier}", BANKS[tier], partial(_row, tier))


def _row(tier: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of a problem."""
    pipeline = numbered(number, tier).pipeline
    cuts, devices = _searched(pipeline)
    return {
        "cuts": cuts.astype(np.int16),
        "devices": devices.astype(np.int16),
        "seconds": np.array(pipeline.length(cuts, devices)),
    }


def _searched(pipeline: Pipeline) -> Cuts:
    return PipelineTask().start(pipeline)


def costs(pipeline: Pipeline) -> Reference | None:
    """Return the least seconds known of a problem of a set, and their bound; None without them."""
    return costs_of(REFERENCES, pipeline.instance, pipeline.profile.fingerprint)


def main(arguments: Iterable[str] | None = None) -> int:
    """Make banks again, and return the exit status."""
    banks = {tier: partial(bank, tier) for tier in BANKS}
    return write_banks("parenvs.datasets.pipeline.large", __doc__, banks, arguments)


if __name__ == "__main__":
    sys.exit(main())
