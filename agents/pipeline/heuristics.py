"""Simple pipelines: even cuts, PipeDream's planner, random search, and plans of whole samples."""

from __future__ import annotations

from operator import itemgetter

import numpy as np

from parenvs.cluster import group_bandwidth, same_server
from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages, tables_of
from parenvs.tasks.pipeline.profile import RangeTable
from parenvs.tasks.pipeline.spaces import Cuts, CutSpace, PointSpace, coarse_pivots, cuts_of
from parenvs.tasks.pipeline.sweeps import to_groups

_BATCH = 4096  # episodes drawn at once
# ``few_points`` takes one point in ``_CHEAP`` where the fewest bytes cross.
_CHEAP = 4


def answer_of(pipeline: Pipeline, plan: Cuts, evaluations: int) -> Answer:
    """Return a plan as an answer without proof."""
    cuts, device_cuts = (np.asarray(positions, np.int64) for positions in plan)
    return Answer(
        problem=pipeline,
        plan=pipeline.plan(cuts, device_cuts),
        cost=float(pipeline.length(cuts, device_cuts)),
        evaluations=evaluations,
    )


def even_cut(pipeline: Pipeline) -> Answer:
    """Equal shares of devices and of forward plus backward seconds, as GPipe (arXiv 1811.06965).

    Device cut k is ``round(k D / S)``; cut k is the pivot nearest to k/S of all seconds, moved as
    little as needed to leave each stage a variable. Communication and memory are ignored: the plan
    may break the memory limit.

    Raises:
        InfeasibleError: more stages than variables or devices.
    """
    check_stages(pipeline)
    stages = pipeline.stages
    k = np.arange(1, stages)
    device_cuts = np.rint(k * pipeline.cluster.devices / stages).astype(np.int64)
    seconds, variables = pipeline.seconds_sum, pipeline.variable_sum
    cuts: list[int] = []
    for cut in k:
        variables_before = variables[cuts[-1]] if cuts else 0
        low = int(np.searchsorted(variables, variables_before, side="right"))
        high = int(np.searchsorted(variables, variables[-1] - (stages - cut), side="right"))
        distance = np.abs(seconds[low:high] - cut * seconds[-1] / stages)
        cuts.append(low + int(distance.argmin()))
    return answer_of(pipeline, (np.array(cuts, np.int64), device_cuts), 1)


def random_search(space: CutSpace, evaluations: int, rng: np.random.Generator) -> Answer:
    """The shortest plan of ``evaluations`` random episodes that fits the memory.

    If none fits, it is the plan that exceeds the memory least.
    """
    pipeline = space.pipeline
    evaluations = max(evaluations, 1)
    best: tuple[float, float, Cuts] | None = None
    for start in range(0, evaluations, _BATCH):
        size = min(_BATCH, evaluations - start)
        cuts, device_cuts = space.plan(_random_episodes(space, size, rng))
        excess = np.maximum(pipeline.excess_bytes(cuts, device_cuts), 0.0)
        length = pipeline.length(cuts, device_cuts)
        # Least excess first: of plans that fit, whose excess is 0, the shortest.
        i = int(np.lexsort((length, excess))[0])
        plan = float(excess[i]), float(length[i]), (cuts[i], device_cuts[i])
        best = min(filter(None, (best, plan)), key=itemgetter(0, 1))
    assert best is not None
    _, _, shortest = best
    return answer_of(pipeline, shortest, evaluations)


def _random_episodes(space: CutSpace, count: int, rng: np.random.Generator) -> Array:
    """(count, S-1) int64 candidates, each drawn uniformly from the legal ones."""
    followers = space.followers()
    chosen = np.full((count, space.stages - 1), -1)  # entry -1: what may be the first cut
    for step, row in enumerate(space.allowed):
        allowed = np.flatnonzero(row)
        # Of the candidates that a step allows, those from the first follower on are legal.
        first = np.searchsorted(allowed, followers[chosen[:, step - 1]])
        chosen[:, step] = allowed[rng.integers(first, len(allowed))]
    return chosen


def pipedream(pipeline: Pipeline) -> Answer:
    """The plan of exactly S stages on all devices that is best by PipeDream's objective.

    PipeDream (arXiv 1806.03377) keeps a pipeline in steady state, so that a minibatch takes as long
    as the slowest stage or link. A stage of pivots [i, j) on m machines takes

        (sum of forward + backward seconds + 4 (m - 1) W / (bandwidth m)) / m

    per minibatch, where W is its parameter bytes. The transfer of A bytes into a stage on m
    machines takes ``2 A / (bandwidth m)``, activations and their gradients together. The published
    optimizer also counts a stage's outgoing transfer on the stage's own machines; on the published
    profiles that changes no optimum, and it is left out here. A minibatch of theirs is a
    micro-batch of ours, each with its own synchronization, as published, although our closed form
    synchronizes once per step.

    Groups and links have the cluster's bandwidth. The plan may break the memory limit, which is
    ignored, as published. The answer's ``length`` is our closed form.

    Raises:
        InfeasibleError: one stage, or more stages than variables or devices.
    """
    check_stages(pipeline, fewest=2)
    stages = pipeline.stages
    cluster, devices = pipeline.cluster, pipeline.cluster.devices
    server = cluster.devices_per_server
    n, variables = len(pipeline.profile), pipeline.variable_sum
    seconds, evaluations = pipeline.seconds_sum, 0
    even = even_cut(pipeline)
    # Rounding must not cut off a plan that is exactly as good.
    upper = bottleneck_seconds(pipeline, *cuts_of(even.plan)) * (1 + 1e-9)
    # value[a, inside]: seconds of the best prefix that ends before each pivot and before device a,
    # its last group inside one server or not; the link to the next group depends on nothing else.
    value = np.full((devices + 1, 2, n + 1), np.inf)
    value[0, 1, 0] = 0.0
    predecessors = []
    for k in range(1, stages + 1):
        after = np.full_like(value, np.inf)
        # Pivot, device and ``inside`` of the best prefix of one stage less.
        predecessor = np.zeros((3, devices + 1, 2, n + 1), np.int32)
        ends = (variables >= k) & (variables[-1] - variables >= stages - k)
        ends[n] = k == stages
        for a in range(k, devices - stages + k + 1) if k < stages else (devices,):
            # Work left and done must fit the devices left and used.
            busy = (seconds <= upper * a) & (seconds[-1] - seconds <= upper * (devices - a))
            targets = np.flatnonzero(ends & busy)
            for e in range(k - 1, a):
                inside = int(same_server(e, a, server))
                position = _stage_sums(pipeline, e, a)
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
                    pivots, edges, sides = predecessor[:, a, inside]
                    pivots[improved] = candidates[index[better]]
                    edges[improved], sides[improved] = e, inside_before
        value = after
        predecessors.append(predecessor)
    pivot, device, inside = n, devices, int(value[devices, :, n].argmin())
    bounds = []
    for predecessor in reversed(predecessors):
        pivot, device, inside = predecessor[:, device, inside, pivot].tolist()
        bounds.append((pivot, device))
    cuts, device_cuts = np.array(bounds[-2::-1], np.int64).T.copy()
    return answer_of(pipeline, (cuts, device_cuts), evaluations)


def bottleneck_seconds(pipeline: Pipeline, cuts: Array, device_cuts: Array) -> float:
    """Seconds of the slowest stage or link of a plan."""
    cluster = pipeline.cluster
    p, d = pipeline.boundaries(cuts, device_cuts)
    stages = [
        np.diff(_stage_sums(pipeline, d[k], d[k + 1])[p[k : k + 2]])[0] for k in range(len(p) - 1)
    ]
    links = 2 * pipeline.cut_before[cuts] / (cluster.bandwidth(d[:-2], d[2:]) * np.diff(d[1:]))
    return float(max(*stages, links.max()))


def _stage_sums(pipeline: Pipeline, first: int, end: int) -> Array:
    """(n+1,) seconds: a stage [i, j) on the devices [first, end) takes entry j minus entry i."""
    m = end - first
    bandwidth = pipeline.cluster.bandwidth(np.array([first]), np.array([end]))
    sync = 4 * (m - 1) * pipeline.parameter_sum / (bandwidth * m)
    return (pipeline.seconds_sum + sync) / m


def best_last_stage(prefix: Array, start: Array, end: Array, count: Array) -> tuple[Array, Array]:
    """The best last stage of plans that are as slow as their slowest stage or link.

    For each target t, the minimum over ``i < count[t]`` of ``max(prefix[i], end[t] - start[i])``.

    Args:
        prefix: (m,) seconds of the best plan up to start i, and of the link behind it.
        start: (m,) cumulative seconds at which the last stage starts, ascending.
        end: (t,) cumulative seconds at which it ends, at each target.
        count: (t,) number of starts of a target.

    Returns:
        (t,) seconds, infinite where count is 0, and (t,) the starts i.
    """
    value, index = np.full(len(end), np.inf), np.zeros(len(end), np.int64)
    reachable = np.flatnonzero(count > 0)
    if not reachable.size:
        return value, index
    end, count, plans = end[reachable], count[reachable], RangeTable(prefix)
    # From later starts the last stage is shorter, but fewer plans are left to choose from. The best
    # start is where the two cross, or the one before: found by bisection, for all targets at once.
    low, high = np.zeros_like(count), count - 1
    while (is_open := low < high).any():
        middle = (low + high) // 2
        crossed = plans.value(middle, count) >= end - start[middle]
        high = np.where(is_open & crossed, middle, high)
        low = np.where(is_open & ~crossed, middle + 1, low)
    crossing = plans.index(low, count)
    earlier = plans.index(np.maximum(low - 1, 0), count)
    slowest, slowest_earlier = (np.maximum(prefix[i], end - start[i]) for i in (crossing, earlier))
    value[reachable] = np.minimum(slowest, slowest_earlier)
    index[reachable] = np.where(slowest_earlier < slowest, earlier, crossing)
    return value, index


def even_plan(space: PointSpace) -> Cuts:
    """The legal plan whose stages, one by one, come nearest to an even share of what is left."""
    points, units = np.zeros((2, 1, space.stages), np.int64)
    space.complete(points, units, 0)
    return points[0, 1:], units[0, 1:]


def few_points(space: PointSpace, count: int) -> Array:
    """At most ``count`` points to cut before, ascending.

    One in ``_CHEAP`` is where the fewest bytes cross; the others divide the work evenly.
    """
    inner = space.pivots[1:-1]
    if len(inner) <= count:
        return np.arange(1, len(inner) + 1)
    even = coarse_pivots(space.pipeline, inner, count - count // _CHEAP)
    order = np.argsort(space.pipeline.cut_before[inner], kind="stable")
    cheap = order[~np.isin(inner[order], even)][: count // _CHEAP]
    return np.sort(np.append(np.searchsorted(space.pivots, even), cheap + 1))


def to_whole_samples(pipeline: Pipeline, plan: Cuts) -> Cuts:
    """Move device cuts as little as needed so that no devices share a sample, see ``is_group``.

    Where no stages of such groups fit the memory, they are moved as if it were no limit.

    Raises:
        InfeasibleError: no device cuts of so many stages are of whole samples.
    """
    pivots, devices = pipeline.boundaries(*plan)
    if not pipeline.is_group[np.diff(devices)].all():
        check_split(pipeline.with_stages(len(pivots) - 1))
        to_groups(tables_of(pipeline), pivots, devices)
    return pivots[1:-1], devices[1:-1]
