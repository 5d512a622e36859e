"""Planners of shardings by name, and the request that they answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.agents.sharding.search import Clock, Search, prepare
from parenvs.core.plan import Answer
from parenvs.core.request import Request
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.sharding.board import Board
from parenvs.tasks.sharding.problem import NEVER, Sharding, reduce
from parenvs.tasks.sharding.task import ShardingSearch
from parenvs.tasks.sharding.turns import Construct, board_of

SECONDS = 60.0


def solve_iopddl(
    problem: Sharding,
    seconds: float | None = SECONDS,
    seed: int = 0,
    steps: int | None = None,
    processor: bool = False,
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
    if threads < 1:
        raise ParenvsError(f"threads must be a whole number from 1, not {threads}")
    if processor and threads > 1:
        raise ParenvsError(
            "seconds of the process are for one thread; leave out processor, or threads"
        )
    prepare()
    clock = Clock(seconds, steps, processor)
    half = np.inf if seconds is None else 0.5 * seconds
    reduced = reduce(problem, lambda: clock.spent > half)
    notes = (
        f"reduced from {len(problem):,} nodes and {len(problem.ends):,} edges to {len(reduced):,} "
        f"and {len(reduced.ends):,} in {clock.spent:.1f} s",
    )
    if not len(reduced):
        chosen, bound, rounds = np.zeros(0, np.int64), reduced.constant, 0
    else:
        search = Search(reduced, clock, seed, threads)
        search.run()
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
    proof = {"proven": bound >= problem.cost(strategies), "bound": bound, "notes": notes}
    return _answer(problem, strategies, "iopddl", rounds, clock.spent, **proof)


def _answer(
    problem: Sharding, strategies: np.ndarray, method: str, judged: int, spent: float, **proof: Any
) -> Answer:
    plan, cost = problem.plan(strategies), problem.cost(strategies)
    figures: dict[str, Any] = {"evaluations": judged, "seconds": spent, **proof}
    return Answer(problem=problem, plan=plan, cost=cost, method=method, **figures)


EPISODES = 64
"""Random episodes that are played side by side."""


def greedy(problem: Sharding) -> Answer:
    """Return the plan that takes the cheapest legal strategy of each node, one after the other.

    A strategy costs what it and the edges to decided neighbors cost, and at least what those to
    the others will.

    Raises:
        InfeasibleError: no legal plan was found.
    """
    begin = time.perf_counter()
    board = _board(problem)
    return _lifted(board, board.greedy, "greedy", 1, begin)


def random_plans(problem: Sharding, evaluations: int, rng: np.random.Generator) -> Answer:
    """Return the cheapest of the plans of random episodes, in which every action is legal.

    Raises:
        InfeasibleError: no legal plan was found.
    """
    begin = time.perf_counter()
    board = _board(problem)
    best, lowest = board.witness, board.reduced.cost(board.witness)
    for start in range(0, evaluations, EPISODES):
        count = min(EPISODES, evaluations - start)
        rows = np.arange(count)
        game = Construct(count, int(board.sizes.max()))
        for row in rows.tolist():
            game.put(row, board)
        game.start(rows)
        while len(open_ := rows[~game.over]):
            drawn = np.where(game.legal[open_], rng.random(game.legal[open_].shape), -1.0)
            game.play(open_, drawn.argmax(axis=1))
        cheapest = int(np.where(np.isnan(game.cost), np.inf, game.cost).argmin())
        chosen = game.chosen[cheapest, : len(board)]
        if np.isfinite(game.cost[cheapest]) and board.reduced.cost(chosen) < lowest:
            best, lowest = chosen.copy(), board.reduced.cost(chosen)
    return _lifted(board, best, "random", evaluations, begin)


def _board(problem: Sharding) -> Board:
    try:
        return board_of(problem)
    except InfeasibleError:
        return board_of(problem, reduction=False)


def _lifted(board: Board, chosen: np.ndarray, method: str, judged: int, begin: float) -> Answer:
    problem, strategies = board.problem, board.liftable.lift(chosen)
    return _answer(problem, strategies, method, judged, time.perf_counter() - begin)


@dataclass(frozen=True)
class ShardingRequest(ShardingSearch, Request):
    """A program whose nodes need strategies; ``random`` plays one episode for each n ``steps``."""

    problem: Sharding

    @property
    def label(self) -> str:
        """Number of nodes."""
        return f"{len(self.problem)}-nodes"


def _exact(request: ShardingRequest) -> Answer:
    open_ended = request.time_limit is None and request.rounds is None
    seconds = SECONDS if open_ended else request.time_limit
    return solve_iopddl(
        request.problem, seconds, request.seed, request.rounds, threads=request.threads
    )


SHARDING_PLANNERS: dict[str, Callable[[ShardingRequest], Answer]] = {
    "exact": _exact,
    "greedy": lambda r: greedy(r.problem),
    "random": lambda r: random_plans(
        r.problem, max(r.steps // len(r.problem), 1), np.random.default_rng(r.seed)
    ),
}
"""Planners of shardings by name; ``exact`` searches, and proves a bound, within a time limit."""
ShardingRequest.planners = SHARDING_PLANNERS
ShardingRequest.users = {
    "seed": ("exact", "random"),
    "steps": ("random",),
    **dict.fromkeys(("seconds", "rounds", "threads"), ("exact",)),
}
