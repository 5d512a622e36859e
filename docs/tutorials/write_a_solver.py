"""Write a solver.

A solver is a function from a problem to a plan. Costs are functions over arrays of plans, so a
search can weigh thousands of plans in one call. Exact answers say how good the search is. The
plain installation is enough.
"""

import numpy as np

import parenvs

ROUNDS, DRAWS = 40, 256
PROBLEMS = (("t5-base", "C"), ("t5-3b", "C"), ("bert-48", "B"))

# %% The problem
# A pipeline problem has the chain as arrays. `seconds_sum` are prefix sums of the seconds of
# the pivots, and `length(cuts, device_cuts)` are the seconds of a training step. Both arguments
# may have any number of leading axes.

problem = parenvs.problem("t5-base", cluster="C", stages=4)
print(f"{len(problem.profile)} pivots, {problem.cluster.devices} devices, {problem.stages} stages")

# %% The rule of thumb
# Equal shares of the seconds, equal shares of the devices.


def even(problem):
    """Equal shares of seconds and of devices."""
    share = np.arange(1, problem.stages) / problem.stages
    cuts = np.searchsorted(problem.seconds_sum, share * problem.seconds_sum[-1])
    return cuts, np.rint(share * problem.cluster.devices).astype(int)


# %% A search
# Draw plans around the best one so far, weigh all of them at once, keep the best that fits the
# memory. The distance of the draws shrinks from round to round.


def search(problem, seed=0):
    """Random search around the best plan, with a shrinking distance."""
    random = np.random.default_rng(seed)
    pivots, devices, count = len(problem.profile), problem.cluster.devices, problem.stages - 1
    best = even(problem)
    least = problem.length(*best)
    for width in np.geomspace(pivots / 10, 1, ROUNDS):
        cuts = best[0] + np.rint(random.normal(0, width, (DRAWS, count))).astype(int)
        groups = best[1] + random.integers(-2, 3, (DRAWS, count))
        cuts, groups = np.sort(cuts, axis=-1), np.sort(groups, axis=-1)
        rising = np.diff(cuts, axis=-1, prepend=0, append=pivots).min(axis=-1) > 0
        rising &= np.diff(groups, axis=-1, prepend=0, append=devices).min(axis=-1) > 0
        cuts, groups = cuts[rising], groups[rising]
        length = problem.length(cuts, groups)
        length[problem.excess_bytes(cuts, groups) > 0] = np.inf
        if len(length) and length.min() < least:
            least = length.min()
            best = cuts[length.argmin()], groups[length.argmin()]
    return best


# %% How good is it?
# The judge decides. `gap` is the distance to a proven optimum: 0 is optimal.

for name, cluster in PROBLEMS:
    problem = parenvs.problem(name, cluster=cluster, stages=4)
    optimum = parenvs.plan(problem)
    gaps = {}
    for solver in (even, search):
        report = parenvs.judge(problem.plan(*solver(problem)))
        gaps[solver.__name__] = report.gap(optimum) if report.legal else np.inf
    words = ", ".join(f"{key} {gap:.1%}" for key, gap in gaps.items())
    print(f"{name} on {cluster}: above the {optimum.status} plan by: {words}")

# %% Go on
# The same function becomes an entry of the leaderboard in a few lines: see the tutorial on the
# leaderboard. A solver that proves something belongs into `agents/pipeline/`; the page on
# contributing says where.
