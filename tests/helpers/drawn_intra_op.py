"""Small IOPDDL problems drawn at random, and their optima by brute force."""

from itertools import pairwise, product

import numpy as np

from parenvs.tasks.sharding.problem import FORBIDDEN, Sharding


def draw(seed, nodes=6, most=3, edges=8, forbidden=0.2, slack=None):
    """A problem with loops, parallel edges, functional edges and empty intervals among others."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, most + 1, nodes)
    offset = np.concatenate([[0], np.cumsum(sizes)])
    lo = rng.integers(0, 6, nodes)
    intervals = np.stack([lo, lo + rng.integers(0, 6, nodes)], 1)
    costs = rng.integers(0, 12, offset[-1])
    costs[rng.random(len(costs)) < forbidden / 4] = FORBIDDEN
    ends = rng.integers(0, nodes, (edges, 2))
    tables = []
    for a, b in ends:
        table = rng.integers(0, 9, (sizes[a], sizes[b]))
        kind = rng.integers(12)
        if kind == 0:  # b follows from a
            image = rng.integers(0, sizes[b], sizes[a])
            table[np.arange(sizes[b]) != image[:, None]] = FORBIDDEN
        elif kind == 1:  # a sum of both
            table = rng.integers(0, 9, (sizes[a], 1)) + rng.integers(0, 9, sizes[b])
        else:
            table[rng.random(table.shape) < forbidden] = FORBIDDEN
        tables.append(table.ravel())
    usages = rng.integers(0, 8, offset[-1])
    most_used = sum(int(usages[a:b].max()) for a, b in pairwise(offset))
    limit = int(rng.integers(0, most_used + 1)) if slack is None else int(slack * most_used)
    return Sharding(
        name=f"drawn-{seed}",
        limit=limit if rng.random() < 0.9 else None,
        intervals=intervals.astype(np.int64),
        offset=offset.astype(np.int64),
        costs=costs.astype(np.int64),
        usages=usages.astype(np.int64),
        ends=ends.reshape(-1, 2).astype(np.int64),
        edge_offset=np.concatenate([[0], np.cumsum([len(x) for x in tables])]).astype(np.int64),
        edge_costs=np.concatenate([*tables, []]).astype(np.int64),
    )


def second_cost(problem, strategies):
    """Cost, peak and its first time in scalars, as the contest's evaluator sums them."""
    cost, used = 0, {}
    for node, strategy in enumerate(strategies):
        cost += int(problem.costs[problem.offset[node] + strategy])
        for time in range(*problem.intervals[node]):
            usage = int(problem.usages[problem.offset[node] + strategy])
            used[time] = used.get(time, 0) + usage
    for edge, (a, b) in enumerate(problem.ends):
        at = strategies[a] * problem.sizes[b] + strategies[b]
        cost += int(problem.edge_costs[problem.edge_offset[edge] + at])
    peak = max(used.values(), default=0)
    return cost, peak, min((time for time in used if used[time] == peak > 0), default=0)


def optimum(problem):
    """Least cost of a legal plan that takes nothing forbidden, by trying all; None if none."""
    best = None
    for strategies in product(*(range(size) for size in problem.sizes)):
        cost, peak, _ = second_cost(problem, strategies)
        if cost < FORBIDDEN and (problem.limit is None or peak <= problem.limit):
            best = cost if best is None else min(best, cost)
    return best
