"""Plans of graded stages: what searches begin with, and what shows that a problem has a plan."""

from __future__ import annotations

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.cuts import Cuts
from parenvs.tasks.pipeline.problem import Pipeline, check_stages


def fitting(pipeline: Pipeline) -> Cuts:
    """Return the shortest of the plans of ``graded`` that fit the memory.

    Raises:
        InfeasibleError: none fits, or no plan can have the number of stages.
    """
    check_stages(pipeline, fewest=2)
    plans = graded(pipeline)
    cuts, devices = (np.array(x) for x in zip(*plans, strict=True))
    fits = pipeline.excess_bytes(cuts, devices) <= 0
    if not fits.any():
        raise InfeasibleError(
            f"{pipeline.profile.name} on {pipeline.cluster}: no plan of {pipeline.stages} graded "
            "stages fits the memory; try more devices or a smaller micro-batch"
        )
    return plans[int(np.where(fits, pipeline.length(cuts, devices), np.inf).argmin())]


def graded(pipeline: Pipeline) -> list[Cuts]:
    """Plans of stages that grow or fall along the pipeline, by their work or by their weights.

    They have a variable and a device in each stage; they need not fit the memory.
    """
    stages, m = pipeline.stages, pipeline.micro_batches
    fall = (1.0 - 1.0 / max(m, 2)) ** np.arange(stages)  # what stages take that limit a step alike
    even = np.ones(stages)
    used = np.where(np.arange(stages) < min(stages, max(2 * m, 2)), 1.0, 1e-6)
    weights = pipeline.parameter_sum
    rows = [
        (pipeline.seconds_sum, even, even),
        (pipeline.seconds_sum, fall, even),
        (pipeline.seconds_sum, even, 1 / fall),
        (pipeline.seconds_sum, fall**0.5, fall**-0.5),
        (weights if weights[-1] else pipeline.seconds_sum, even, None),
        (weights if weights[-1] else pipeline.seconds_sum, 1 / fall, None),
        (pipeline.seconds_sum, fall**2, even),
        (pipeline.seconds_sum, used, used),
        (pipeline.seconds_sum, used[::-1], used[::-1]),
    ]
    return [shaped(pipeline, *row) for row in rows]


def shaped(
    pipeline: Pipeline, shared: np.ndarray, work: np.ndarray, groups: np.ndarray | None
) -> Cuts:
    """The plan whose stages come near given shares.

    Args:
        pipeline: the problem.
        shared: (n+1,) prefix sum of what is shared by the cuts.
        work: (S,) shares of it, in any unit.
        groups: (S,) shares of the devices; None: in proportion to the stages' work.
    """
    devices = pipeline.cluster.devices
    goal = shared[-1] * np.cumsum(work)[:-1] / work.sum()
    cuts = ascending(pipeline, np.searchsorted(shared[:-1], goal))  # sums may be rounded up
    if groups is None:
        ends = pipeline.seconds_sum[np.concatenate([[0], cuts, [len(pipeline.profile)]])]
        groups = np.maximum(np.diff(ends), 1e-9 * ends[-1])
    wanted = np.rint(devices * np.cumsum(groups)[:-1] / groups.sum())
    return cuts, spaced(wanted.astype(np.int64), devices)


def ascending(pipeline: Pipeline, cuts: np.ndarray) -> np.ndarray:
    """Cuts near given ones, (S-1,), so that each stage holds a variable."""
    variables, holders = pipeline.variable_sum, int(pipeline.variable_sum[-1])
    wanted = spaced(variables[np.asarray(cuts)], holders)
    low, high = np.searchsorted(variables, wanted), np.searchsorted(variables, wanted, "right") - 1
    return np.clip(cuts, low, high)


def spaced(wanted: np.ndarray, end: int) -> np.ndarray:
    """Ascending whole numbers from 1 to ``end`` - 1 near the wanted ones, (k,), no two equal."""
    rank = np.arange(len(wanted))
    wanted = np.maximum.accumulate(np.maximum(wanted, 1) - rank) + rank
    rest = end - 1 - rank[::-1]
    return np.minimum(wanted, rest)
