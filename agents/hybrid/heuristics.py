"""Hybrid plans by Megatron's rule of thumb, and random plans."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from parenvs.core.plan import Answer
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, infeasible


def rule_of_thumb(problem: Hybrid, constraints: Constraints | None = None) -> Answer:
    """Return the plan of Megatron's rule of thumb (arXiv 2104.04473, section 3 and takeaways).

    tp fills a server, with sequence parallelism; pp is the smallest number of stages that fits,
    with as many chunks as there can be; the rest is data parallel with ZeRO 1. Micro-batches are of
    one sample; attention is recomputed, or everything if nothing else fits.

    Raises:
        InfeasibleError: no such plan fits; says how many bytes the smallest one lacks.
    """
    begin = time.perf_counter()
    limits = constraints or Constraints()
    ranks = [tp for tp in limits.tensor_ranks(problem) if tp <= problem.cluster.devices]
    rule = replace(
        limits, tp=max(ranks, default=1), micro_batch=limits.micro_batch or 1, zero=(1,),
        context=limits.context or 1, shard=limits.shard or 0,
    )  # fmt: skip
    for mode in ("selective", "full"):
        space = UniformSpace.build(problem, replace(rule, recompute=(mode,)))
        plans = space.plans
        order = np.lexsort((space.length, ~plans.sequence_parallel, -plans.chunks, plans.pp))
        fitting = order[space.fits[order]]
        if len(fitting):
            return _answer(space, int(fitting[0]), "rule-of-thumb", begin)
    raise infeasible(space)


def random_plan(
    problem: Hybrid, rng: np.random.Generator, constraints: Constraints | None = None
) -> Answer:
    """Return one of the uniform plans that fit, each as likely as any other.

    Raises:
        InfeasibleError: none fits; says how many bytes the smallest one lacks.
    """
    begin = time.perf_counter()
    space = UniformSpace.build(problem, constraints)
    if not space.fits.any():
        raise infeasible(space)
    return _answer(space, int(rng.choice(np.flatnonzero(space.fits))), "random", begin)


def _answer(space: UniformSpace, k: int, method: str, begin: float) -> Answer:
    """Return one of the plans as an answer that proves nothing."""
    return Answer(
        problem=space.problem,
        plan=space.plan(k),
        cost=float(space.length[k]),
        method=method,
        evaluations=len(space),
        seconds=time.perf_counter() - begin,
    )
