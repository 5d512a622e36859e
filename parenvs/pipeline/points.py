"""The search space of ``PipelinePlan-v0``: points to cut before and units of devices to start on.

Points are few pivots that stand for a long chain. Devices are cut at units: single ones, or whole
servers where there are more than ``UNITS`` devices. A plan of S stages takes turns: a point to cut
before, then the unit from which the next stage runs. From every choice that is legal here, a plan
within the memory can still be completed, and every such plan is legal all the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.pipeline import formulas
from parenvs.pipeline.problem import Pipeline, check_stages

POINTS = 128
"""Most points of a chain (arXiv 2007.04069, section 3.5)."""
UNITS = 64
"""Most units of a cluster."""
STAGES = 8
"""Most stages."""


@dataclass(frozen=True)
class PointSpace:
    """The points and device units of one pipeline problem, and what may be chosen when.

    Attributes:
        pipeline: the problem.
        pivots: (m+1,) int64, boundaries of the points: 0, the pivots to cut at, n.
        devices: (u+1,) int64, boundaries of the units: 0, the devices to cut at, D.
        latest: (S+1, m+1, m+1) int16; ``latest[k, i, j]``: the last unit from which a stage of the
            points [i, j), the k-th from the end, can run so that it and all stages behind it fit
            the memory; -1 if there is none.
    """

    pipeline: Pipeline
    pivots: np.ndarray
    devices: np.ndarray
    latest: np.ndarray

    @classmethod
    def build(cls, pipeline: Pipeline, most: int = POINTS) -> PointSpace:
        """The points and units of a problem.

        Args:
            pipeline: the problem.
            most: points at most.

        Raises:
            InfeasibleError: a stage count that no plan can have, or no plan fits the memory.
        """
        check_stages(pipeline)
        stages = pipeline.stages
        devices = units(pipeline)
        if stages > min(STAGES, len(devices) - 1):
            raise InfeasibleError(
                f"{pipeline.profile.name} on {pipeline.cluster}: {stages} stages asked for; a plan "
                f"has at most {STAGES}, and one for each of {len(devices) - 1} units of devices"
            )
        pivots = points(pipeline, most)
        latest = _latest(pipeline, stages, pivots, devices)
        if latest[stages, 0].max() < 0:
            raise InfeasibleError(
                f"{pipeline.profile.name} on {pipeline.cluster}: no plan of {stages} stages over "
                f"{len(pivots) - 1} points fits the memory of {pipeline.memory_limit:,.0f} bytes; "
                "try more devices, another number of stages or a smaller micro-batch"
            )
        return cls(pipeline, pivots, devices, latest)

    @property
    def stages(self) -> int:
        """S; a plan has S-1 cuts."""
        return self.pipeline.stages

    def legal_points(self, stage: int, point: int, unit: int) -> np.ndarray:
        """(m+1,) bool: before which points stage ``stage`` (from 0) may end.

        It starts at ``point`` and ``unit``; never the last stage, which ends with the chain.
        """
        return self.latest[self.stages - stage, point] >= unit

    def legal_units(self, stage: int, point: int, unit: int, end: int) -> np.ndarray:
        """(u+1,) bool: up to which units the stage of the points [point, end) may run."""
        left = self.stages - stage
        first, last = self.pivots[point], self.pivots[end]
        group = np.maximum(self.devices - self.devices[unit], 1)
        fits = self.pipeline.memory_of(first, last, group, np.array(left))
        legal = fits <= self.pipeline.memory_limit
        legal[: unit + 1] = False
        legal[self.latest[left - 1, end].max() + 1 :] = False
        return legal

    def plan(self, cuts: np.ndarray, device_cuts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pivots and devices of cuts given as points and units, each (..., S-1)."""
        chosen = (np.asarray(x, dtype=np.int64) for x in (cuts, device_cuts))
        return self.pivots[next(chosen)], self.devices[next(chosen)]


def points(pipeline: Pipeline, most: int = POINTS) -> np.ndarray:
    """(m+1,) int64 boundaries of m <= ``most`` points: 0, the pivots to cut at, n.

    A chain of few pivots keeps them all; of a longer one ``coarse_pivots`` chooses. A point is what
    lies between two boundaries, so that a plan of points is a plan of pivots, with the same times
    and the same memory.
    """
    n = len(pipeline.profile)
    pivots = np.arange(1, n)
    if n > most:
        pivots = distinct_pivots(pipeline)
    if len(pivots) > most - 1:
        pivots = coarse_pivots(pipeline, pivots, most - 1)
    return np.concatenate([[0], pivots, [n]])


def distinct_pivots(pipeline: Pipeline) -> np.ndarray:
    """Pivots at which a cut can be worth while: of a run of equal ones, the last.

    Two neighbours are equal if all prefix sums and the bytes that cross are. The plan with the
    later one has the same times, and no stage needs more memory: the earlier stage gains a cut as
    large as one that it already holds, the later stage loses one.
    """
    p = np.arange(1, len(pipeline.profile))
    same = np.ones(len(p), dtype=bool)
    sums = [pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum]
    sums += [pipeline.variable_sum, pipeline.cut_before]
    if pipeline.recompute == "none":
        sums.append(pipeline.resident_sum)
    for values in sums:
        same &= values[p] == values[p + 1]
    same[-1] = False
    return p[~same]


def coarse_pivots(pipeline: Pipeline, pivots: np.ndarray, most: int) -> np.ndarray:
    """At most ``most`` of the pivots, even in work, bytes and place, each the least cut near it."""
    place = np.arange(len(pivots)) / len(pivots)
    for values in (pipeline.seconds_sum, pipeline.parameter_sum):
        place = place + values[pivots] / max(values[-1], 1.0 if values[-1] == 0 else 0.0)
    bins = np.minimum((place / 3 * most).astype(np.int64), most - 1)
    order = np.lexsort((pipeline.cut_before[pivots], bins))
    first = np.append(True, np.diff(bins[order]) > 0)
    return np.sort(pivots[order[first]])


def units(pipeline: Pipeline, most: int = UNITS) -> np.ndarray:
    """(u+1,) int64 boundaries of the units: devices, whole servers, or several servers each.

    Where servers are fewer than stages may be, parts of them: the smallest that are few enough.
    """
    cluster = pipeline.cluster
    each, size = cluster.devices_per_server, 1
    if cluster.devices > most:
        size = each * -(-cluster.servers // most)
        if cluster.servers < min(STAGES, most + 1):
            size = next(k for k in range(1, each + 1) if -(-cluster.devices // k) <= most)
    return np.append(np.arange(0, cluster.devices, size), cluster.devices)


def least_devices(pipeline: Pipeline, pivots: np.ndarray, left: int) -> np.ndarray:
    """(m+1, m+1) float64: the fewest devices on which a stage of the points [i, j) fits.

    Infinite where no number does, where j <= i, and where the stage holds no variable.

    Args:
        pipeline: the problem.
        pivots: (m+1,) boundaries of the points.
        left: stages from this one to the last, itself included.
    """
    i, j = np.triu_indices(len(pivots), 1)
    variables = pipeline.variable_sum[pivots]
    holds = np.flatnonzero(variables[j] > variables[i])
    i, j = i[holds], j[holds]
    weights, activations = pipeline.memory_parts(pivots[i], pivots[j], np.full_like(i, left))
    spare, limit = pipeline.memory_limit - weights, pipeline.memory_limit
    group = np.full(len(i), np.inf)
    np.divide(activations, spare, out=group, where=spare > 0)
    group = np.clip(np.ceil(group), 1.0, pipeline.cluster.devices + 1.0)
    # The quotient may be off by rounding; what fits is what the judge says, to the last bit.
    fewer = np.maximum(group - 1.0, 1.0)
    group = np.where(formulas.stage_bytes(weights, activations, fewer) <= limit, fewer, group)
    fits = formulas.stage_bytes(weights, activations, group) <= limit
    group = np.where(fits, group, group + 1.0)
    result = np.full((len(pivots), len(pivots)), np.inf)
    result[i, j] = np.where(group <= pipeline.cluster.devices, group, np.inf)
    return result


def _latest(pipeline: Pipeline, stages: int, pivots: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """``PointSpace.latest``, from the last stage to the first: more devices never hurt."""
    m = len(pivots) - 1
    latest = np.full((stages + 1, m + 1, m + 1), -1, dtype=np.int16)
    start = np.full(m + 1, -1)  # last unit from which the k-1 stages from each point on can run
    start[m] = len(devices) - 1
    latest[0, m, m] = len(devices) - 1
    for k in range(1, stages + 1):
        rest = np.where(start >= 0, devices[start], -1) - least_devices(pipeline, pivots, k)
        if k == stages:
            rest[1:] = -np.inf  # the first stage starts the chain
        unit = np.searchsorted(devices, rest.ravel(), side="right") - 1
        latest[k] = unit.reshape(rest.shape)
        start = latest[k].max(axis=1).astype(np.int64)
    return latest
