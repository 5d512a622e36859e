"""PipeDream's planner (arXiv 1806.03377): the slowest stage or link as fast as can be.

PipeDream keeps a pipeline in steady state, so that a minibatch takes as long as the slowest stage
or link. A stage of pivots [i, j) on m machines takes

    (sum of forward + backward seconds + 4 (m - 1) W / (bandwidth m)) / m

per minibatch, W its parameter bytes, and the transfer of A bytes into a stage on m machines takes
``2 A / (bandwidth m)``, activations and their gradients together. The published optimizer also
counts a stage's outgoing transfer on the stage's own machines; on the published profiles that
changes no optimum, and it is left out here. Deviations: we know no memory limit (nor does theirs by
default), and a minibatch of theirs is a micro-batch of ours, each with its own synchronisation, as
published, although our closed form synchronises once a step.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from parenvs.agents.answer import PipelineAnswer
from parenvs.agents.heuristics.pipeline import even_cut
from parenvs.cluster import group_bandwidth, same_server
from parenvs.pipeline.problem import Pipeline, check_stages
from parenvs.pipeline.profile import StageProfile
from parenvs.pipeline.ranges import RangeTable


class Steady(NamedTuple):
    """An optimum of PipeDream's objective on one level of equal machines.

    Attributes:
        seconds_per_minibatch: of the best plan.
        data_parallel_seconds: of the plan with a single stage.
        cuts: first pivot of each stage but the first.
        machines: machines of each stage.
    """

    seconds_per_minibatch: float
    data_parallel_seconds: float
    cuts: tuple[int, ...]
    machines: tuple[int, ...]


def pipedream_objective(profile: StageProfile, devices: int, bandwidth: float) -> Steady:
    """The optimum with any number of stages, on machines that are all ``bandwidth`` bytes/s apart.

    Args:
        profile: the chain; what it calls a micro-batch is PipeDream's minibatch.
        devices: number of machines, all used.
        bandwidth: bytes/s between any two of them.
    """
    n = len(profile)
    seconds = np.append(0.0, np.cumsum(profile.seconds))
    weights = np.append(0.0, np.cumsum(profile.parameter_bytes))
    # scale[m]: a stage on m machines takes scale[m][j] - scale[m][i] seconds.
    scale = [
        (seconds + 4 * (m - 1) * weights / (bandwidth * m)) / m for m in np.arange(1.0, devices + 1)
    ]
    inner = np.arange(1, n)
    best = [scale[m] - scale[m][0] for m in range(devices)]
    steps = [np.zeros((n + 1, 2), dtype=np.int64) for _ in range(devices)]  # (cut, machines before)
    for total in range(2, devices + 1):
        value, step = best[total - 1].copy(), steps[total - 1]
        for last in range(1, total):
            have = best[total - last - 1][inner]
            have = np.maximum(have, 2 * profile.cut_bytes[:-1] / (bandwidth * last))
            at = scale[last - 1]
            found, place = best_last_stage(have, at[inner], at[1:], np.arange(n))
            better = 1 + np.flatnonzero(found < value[1:])
            value[better] = found[better - 1]
            step[better, 0], step[better, 1] = inner[place[better - 1]], total - last
        best[total - 1] = value
    cuts: list[int] = []
    machines: list[int] = []
    j, left = n, devices
    while j:
        cut, before = (int(x) for x in steps[left - 1][j])
        machines.insert(0, left - before)
        if cut:
            cuts.insert(0, cut)
        j, left = cut, before
    data_parallel = float(scale[-1][-1] - scale[-1][0])
    return Steady(float(best[-1][-1]), data_parallel, tuple(cuts), tuple(machines))


def pipedream(pipeline: Pipeline) -> PipelineAnswer:
    """The plan of exactly S stages on all devices that is best by PipeDream's objective.

    Groups and links have the cluster's bandwidth. The memory limit is not looked at, as published:
    the plan may break it. The answer's ``length`` is our closed form.

    Raises:
        InfeasibleError: more stages than variables or devices.
    """
    begin = time.perf_counter()
    check_stages(pipeline)
    stages = pipeline.stages
    cluster, devices = pipeline.cluster, pipeline.cluster.devices
    server = cluster.devices_per_server
    n, variables = len(pipeline.profile), pipeline.variable_sum
    seconds, evaluations = pipeline.seconds_sum, 0
    even = even_cut(pipeline)
    # Rounding must not cut off a plan that is exactly as good.
    upper = _objective(pipeline, even.cuts, even.device_cuts) * (1 + 1e-9)
    # value[a, inside]: best prefix that ends before each pivot and before device a, its last group
    # inside one server or not; the link to the next group depends on nothing else.
    value = np.full((devices + 1, 2, n + 1), np.inf)
    value[0, 1, 0] = 0.0
    steps = []
    for k in range(1, stages + 1):
        after, step = np.full_like(value, np.inf), np.zeros((devices + 1, 2, n + 1, 3), np.int32)
        ends = (variables >= k) & (variables[-1] - variables >= stages - k)
        ends[n] = k == stages
        for a in range(k, devices - stages + k + 1) if k < stages else (devices,):
            # Work left and done must fit the devices left and used.
            busy = (seconds <= upper * a) & (seconds[-1] - seconds <= upper * (devices - a))
            targets = np.flatnonzero(ends & busy)
            for e in range(k - 1, a):
                inside = int(same_server(e, a, server))
                at = _stage_scale(pipeline, e, a)
                for before in (0, 1):
                    places = np.flatnonzero(value[e, before] <= upper)
                    if not (places.size and targets.size):
                        continue
                    have = value[e, before, places]
                    if k > 1:
                        near = bool(before) and same_server(e - 1, a, server)
                        bandwidth = group_bandwidth(near, cluster.intra_bw, cluster.inter_bw)
                        transfer = 2 * pipeline.cut_before[places] / (bandwidth * (a - e))
                        have = np.maximum(have, transfer)
                    count = np.searchsorted(variables[places], variables[targets])
                    found, place = best_last_stage(have, at[places], at[targets], count)
                    evaluations += len(targets)
                    better = np.flatnonzero(found < after[a, inside, targets])
                    where = targets[better]
                    after[a, inside, where] = found[better]
                    step[a, inside, where, 0] = places[place[better]]
                    step[a, inside, where, 1:] = e, before
        value = after
        steps.append(step)
    pivot, device, inside = n, devices, int(value[devices, :, n].argmin())
    bounds = []
    for step in reversed(steps):
        pivot, device, inside = (int(x) for x in step[device, inside, pivot])
        bounds.append((pivot, device))
    cuts, device_cuts = np.array(bounds[-2::-1], dtype=np.int64).T.copy()
    length = float(pipeline.length(cuts, device_cuts))
    spent = time.perf_counter() - begin
    return PipelineAnswer(
        pipeline, cuts, device_cuts, length,
        method="pipedream", evaluations=evaluations, seconds=spent,
    )  # fmt: skip


def _objective(pipeline: Pipeline, cuts: np.ndarray, device_cuts: np.ndarray) -> float:
    """Seconds of the slowest stage or link of a plan."""
    cluster = pipeline.cluster
    p = np.concatenate([[0], cuts, [len(pipeline.profile)]])
    d = np.concatenate([[0], device_cuts, [cluster.devices]])
    stages = [
        np.diff(_stage_scale(pipeline, d[k], d[k + 1])[p[k : k + 2]])[0] for k in range(len(p) - 1)
    ]
    links = 2 * pipeline.cut_before[cuts] / (cluster.bandwidth(d[:-2], d[2:]) * np.diff(d[1:]))
    return float(max(*stages, links.max()))


def _stage_scale(pipeline: Pipeline, first: int, end: int) -> np.ndarray:
    """(n+1,): a stage of pivots [i, j) on devices [first, end) takes entry j less entry i."""
    m = end - first
    bandwidth = pipeline.cluster.bandwidth(np.array([first]), np.array([end]))
    sync = 4 * (m - 1) * pipeline.parameter_sum / (bandwidth * m)
    return np.asarray((pipeline.seconds_sum + sync) / m)


def best_last_stage(
    have: np.ndarray, at: np.ndarray, to: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best last stage of plans that are as slow as their slowest stage or link.

    For each target t, the least over ``i < count[t]`` of ``max(have[i], to[t] - at[i])``.

    Args:
        have: (m,) value of the plans up to place i.
        at: (m,) position of place i, ascending.
        to: (t,) position of each target.
        count: (t,) number of places that a target may be reached from.

    Returns:
        (t,) values, infinite where count is 0, and (t,) the places i.
    """
    value, place = np.full(len(to), np.inf), np.zeros(len(to), dtype=np.int64)
    reachable = np.flatnonzero(count > 0)
    if not reachable.size:
        return value, place
    to, count, least = to[reachable], count[reachable], RangeTable(have)
    # From later places the step is shorter, but fewer plans are left to choose from: the best is
    # where the two cross, or one place before.
    low, high = np.zeros_like(count), count - 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        crossed = least.value(middle, count) >= to - at[middle]
        high = np.where(open_ & crossed, middle, high)
        low = np.where(open_ & ~crossed, middle + 1, low)
    best = least.place(low, count)
    before = least.place(np.maximum(low - 1, 0), count)
    worse, worse_before = (np.maximum(have[i], to - at[i]) for i in (best, before))
    value[reachable] = np.minimum(worse, worse_before)
    place[reachable] = np.where(worse_before < worse, before, best)
    return value, place
