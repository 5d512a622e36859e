"""``solve_iopddl``: a plan of an IOPDDL problem and a bound, within a time limit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parenvs.agents.sharding.search import Clock, Search, Status, prepare, silent
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.reduced import NEVER
from parenvs.tasks.sharding.reduction import reduce

SECONDS = 60.0
"""Default time limit."""


def solve_iopddl(
    problem: Sharding,
    seconds: float | None = SECONDS,
    seed: int = 0,
    steps: int | None = None,
    processor: bool = False,
    tell: Callable[[Status], None] = silent,
    threads: int = 1,
) -> Answer:
    """Search for the cheapest legal plan, and prove how cheap a plan can be.

    The problem is reduced first; what is done with the rest follows from its size and from what
    came of each way to search. An interrupt (Ctrl-C) ends the search with the best plan so far.

    Args:
        problem: the problem.
        seconds: time limit, reduction included; None: ``steps`` end the search.
        seed: seed of the search.
        steps: limit of rounds. Without ``seconds`` the same plan comes out every time.
        processor: whether seconds are those of the process, on a machine that others use, too.
        tell: told about once a second how far the search is.
        threads: chains of moves over trees that run at once, each with draws of its own. HiGHS has
            a thread beside them.

    Raises:
        InfeasibleError: no plan keeps the limit without a forbidden cost.
        TimeLimitError: none was found in time.
        ParenvsError: neither seconds nor steps are given, the costs are too large, or seconds of
            the process are asked for with several threads, which would share them.
    """
    if seconds is None and steps is None:
        raise ParenvsError("the search needs an end: give seconds or steps")
    if (seconds is not None and not seconds > 0) or (steps is not None and steps < 1):
        raise ParenvsError(f"seconds and steps must be positive, not {seconds} and {steps}")
    if threads < 1 or (processor and threads > 1):
        raise ParenvsError(
            f"threads must be a whole number from 1, not {threads}"
            if threads < 1
            else "seconds of the process are for one thread; leave out processor, or threads"
        )
    prepare()
    clock = Clock(seconds, steps, processor)
    tell(Status(0.0, None, None, "reduction"))
    half = np.inf if seconds is None else 0.5 * seconds
    reduced = reduce(problem, lambda: clock.spent > half)
    notes = (
        f"reduced from {len(problem):,} nodes and {len(problem.ends):,} edges to {len(reduced):,} "
        f"and {len(reduced.ends):,} in {clock.spent:.1f} s",
    )
    if not len(reduced):
        chosen, bound, rounds = np.zeros(0, dtype=np.int64), reduced.constant, 0
    else:
        search = Search(reduced, clock, seed, tell, threads)
        search.run()
        search.say("end", force=True)
        if search.infeasible:
            raise InfeasibleError(f"{problem.name}: no plan is legal")
        if search.chosen is None:
            known = ""
            if search.bound > -NEVER:
                known = f"none costs less than {search.bound + reduced.constant:,}, and "
            raise TimeLimitError(
                f"{problem.name}: no legal plan was found in {clock.spent:.0f} s; {known}there may "
                "be none; give it more time"
            )
        reduced, chosen, rounds = search.reduced, search.chosen, clock.round
        bound = search.bound + reduced.constant
    strategies = reduced.lift(chosen)
    cost = problem.cost(strategies)
    return Answer(
        problem=problem,
        plan=problem.plan(strategies),
        cost=cost,
        method="iopddl",
        proven=bound >= cost,
        bound=bound,
        evaluations=rounds,
        seconds=clock.spent,
        notes=notes,
    )
