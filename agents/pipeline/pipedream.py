"""PipeDream's planner (arXiv 1806.03377): minimises the time of the slowest stage or link.

PipeDream keeps a pipeline in steady state, so that a minibatch takes as long as the slowest stage
or link. A stage of pivots [i, j) on m machines takes

    (sum of forward + backward seconds + 4 (m - 1) W / (bandwidth m)) / m

per minibatch, where W is its parameter bytes. The transfer of A bytes into a stage on m machines
takes ``2 A / (bandwidth m)``, activations and their gradients together. The published optimizer
also counts a stage's outgoing transfer on the stage's own machines; on the published profiles that
changes no optimum, and it is left out here. Like theirs by default, this planner ignores the memory
limit. One deviation: a minibatch of theirs is a micro-batch of ours, each with its own
synchronisation, as published, although our closed form synchronises once a step.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from parenvs.agents.pipeline.heuristics import even_cut
from parenvs.agents.pipeline.local_search import cuts_of
from parenvs.cluster import group_bandwidth, same_server
from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.problem import Pipeline, check_stages
from parenvs.tasks.pipeline.profile import RangeTable, StageProfile


class Steady(NamedTuple):
    """An optimum of PipeDream's objective on one level of equal machines.

    Attributes:
        seconds_per_minibatch: seconds of a minibatch in the best plan.
        data_parallel_seconds: seconds of a minibatch in the plan with a single stage.
        cuts: first pivot of each stage but the first.
        machines: number of machines of each stage.
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
    # Entries of a step: the last cut, and the machines before it.
    steps = [np.zeros((n + 1, 2), dtype=np.int64) for _ in range(devices)]
    for total in range(2, devices + 1):
        value, step = best[total - 1].copy(), steps[total - 1]
        for last in range(1, total):
            transfer = 2 * profile.cut_bytes[:-1] / (bandwidth * last)
            before = np.maximum(best[total - last - 1][inner], transfer)
            position = scale[last - 1]
            slowest, index = best_last_stage(before, position[inner], position[1:], np.arange(n))
            better = 1 + np.flatnonzero(slowest < value[1:])
            value[better] = slowest[better - 1]
            step[better, 0], step[better, 1] = inner[index[better - 1]], total - last
        best[total - 1] = value
    cuts: list[int] = []
    machines: list[int] = []
    end, machines_left = n, devices
    while end:
        cut, machines_before = (int(entry) for entry in steps[machines_left - 1][end])
        machines.insert(0, machines_left - machines_before)
        if cut:
            cuts.insert(0, cut)
        end, machines_left = cut, machines_before
    data_parallel = float(scale[-1][-1] - scale[-1][0])
    return Steady(float(best[-1][-1]), data_parallel, tuple(cuts), tuple(machines))


def pipedream(pipeline: Pipeline) -> Answer:
    """The plan of exactly S stages on all devices that is best by PipeDream's objective.

    Groups and links have the cluster's bandwidth. The plan may break the memory limit, which is
    ignored, as published. The answer's ``length`` is our closed form.

    Raises:
        InfeasibleError: one stage, or more stages than variables or devices.
    """
    begin = time.perf_counter()
    check_stages(pipeline, fewest=2)
    stages = pipeline.stages
    cluster, devices = pipeline.cluster, pipeline.cluster.devices
    server = cluster.devices_per_server
    n, variables = len(pipeline.profile), pipeline.variable_sum
    seconds, evaluations = pipeline.seconds_sum, 0
    even = even_cut(pipeline)
    # Rounding must not cut off a plan that is exactly as good.
    upper = _objective(pipeline, *cuts_of(even.plan)) * (1 + 1e-9)
    # value[a, inside]: seconds of the best prefix that ends before each pivot and before device a,
    # its last group inside one server or not; the link to the next group depends on nothing else.
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
                position = _stage_scale(pipeline, e, a)
                for inside_before in (0, 1):
                    candidates = np.flatnonzero(value[e, inside_before] <= upper)
                    if not (candidates.size and targets.size):
                        continue
                    before = value[e, inside_before, candidates]
                    if k > 1:
                        near = bool(inside_before) and same_server(e - 1, a, server)
                        bandwidth = group_bandwidth(near, cluster.intra_bw, cluster.inter_bw)
                        transfer = 2 * pipeline.cut_before[candidates] / (bandwidth * (a - e))
                        before = np.maximum(before, transfer)
                    count = np.searchsorted(variables[candidates], variables[targets])
                    slowest, index = best_last_stage(
                        before, position[candidates], position[targets], count
                    )
                    evaluations += len(targets)
                    better = np.flatnonzero(slowest < after[a, inside, targets])
                    improved = targets[better]
                    after[a, inside, improved] = slowest[better]
                    step[a, inside, improved, 0] = candidates[index[better]]
                    step[a, inside, improved, 1:] = e, inside_before
        value = after
        steps.append(step)
    pivot, device, inside = n, devices, int(value[devices, :, n].argmin())
    bounds = []
    for step in reversed(steps):
        pivot, device, inside = (int(entry) for entry in step[device, inside, pivot])
        bounds.append((pivot, device))
    cuts, device_cuts = np.array(bounds[-2::-1], dtype=np.int64).T.copy()
    length = float(pipeline.length(cuts, device_cuts))
    spent = time.perf_counter() - begin
    return Answer(
        problem=pipeline,
        plan=pipeline.plan(cuts, device_cuts),
        cost=length,
        method="pipedream",
        evaluations=evaluations,
        seconds=spent,
    )


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
    """(n+1,) seconds: a stage [i, j) on the devices [first, end) takes entry j minus entry i."""
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
        have: (m,) seconds of the best plan up to place i, and of the link behind it.
        at: (m,) position of place i, ascending, seconds.
        to: (t,) position of each target, seconds.
        count: (t,) number of places at which the last stage to a target may start.

    Returns:
        (t,) seconds, infinite where count is 0, and (t,) the places i.
    """
    value, index = np.full(len(to), np.inf), np.zeros(len(to), dtype=np.int64)
    reachable = np.flatnonzero(count > 0)
    if not reachable.size:
        return value, index
    to, count, plans = to[reachable], count[reachable], RangeTable(have)
    # From later places the last stage is shorter, but fewer plans are left to choose from. The best
    # place is where the two cross, or one place before.
    low, high = np.zeros_like(count), count - 1
    while (open_ := low < high).any():
        middle = (low + high) // 2
        crossed = plans.value(middle, count) >= to - at[middle]
        high = np.where(open_ & crossed, middle, high)
        low = np.where(open_ & ~crossed, middle + 1, low)
    crossing = plans.place(low, count)
    earlier = plans.place(np.maximum(low - 1, 0), count)
    slowest, slowest_earlier = (np.maximum(have[i], to - at[i]) for i in (crossing, earlier))
    value[reachable] = np.minimum(slowest, slowest_earlier)
    index[reachable] = np.where(slowest_earlier < slowest, earlier, crossing)
    return value, index
