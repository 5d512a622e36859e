"""Small problems of ordering micro-batches, every order of them, and a second way to time them."""

import itertools

import numpy as np

from parenvs.tasks.hybrid.schedules import order as passes_of
from parenvs.tasks.order.problem import Order


def drawn(rng, stages=None, count=None):
    """A problem of up to 5 stages and 6 micro-batches, with times of any ratio."""
    size = stages or int(rng.integers(1, 6)), count or int(rng.integers(1, 7))
    return Order(rng.uniform(0.1, 2.0, size), rng.uniform(0.1, 2.0, size))


def every_order(count):
    """All orders of a few micro-batches, (M!, M)."""
    return np.array(list(itertools.permutations(range(count))))


def longest_path(problem, order):
    """Seconds of a step, pass by pass: each begins when its stage and its input are ready."""
    stages, count = problem.forward.shape
    end, waiting = {}, [list(passes_of(s, stages, count, 1)) for s in range(stages)]
    free = [0.0] * stages
    while any(waiting):
        for stage in range(stages):
            if not waiting[stage]:
                continue
            kind, _, position = waiting[stage][0]
            if kind == 0:
                needs = (0, stage - 1, position) if stage else None
            else:
                last = stage == stages - 1
                needs = (0, stage, position) if last else (1, stage + 1, position)
            if needs is not None and needs not in end:
                continue
            waiting[stage].pop(0)
            seconds = (problem.forward, problem.backward)[kind][stage, order[position]]
            begin = max(free[stage], 0.0 if needs is None else end[needs])
            free[stage] = end[kind, stage, position] = begin + seconds
    return max(end.values())
