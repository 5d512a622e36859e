"""Strategies by rule: the greedy plan and the best of random ones."""

from __future__ import annotations

import time

import numpy as np

from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.problem import Sharding
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct, board_of

EPISODES = 64
"""Random episodes that are played side by side."""


def greedy(problem: Sharding) -> Answer:
    """Return the plan that takes the cheapest legal strategy of each node, one after the other.

    A strategy costs what it and the edges to decided neighbours cost, and at least what those to
    the others will.

    Raises:
        InfeasibleError: no legal plan was found.
    """
    begin = time.perf_counter()
    board = _board(problem)
    return _answer(board, board.first, "greedy", 1, begin)


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
    return _answer(board, best, "random", evaluations, begin)


def _board(problem: Sharding) -> Board:
    """Return the board of a problem; one that its reduction decides is played as it is."""
    try:
        return board_of(problem)
    except InfeasibleError:
        return board_of(problem, reduction=False)


def _answer(board: Board, chosen: np.ndarray, method: str, judged: int, begin: float) -> Answer:
    """Return strategies of a board as an answer that proves nothing."""
    problem, strategies = board.problem, board.whole.lift(chosen)
    return Answer(
        problem=problem,
        plan=problem.plan(strategies),
        cost=problem.cost(strategies),
        method=method,
        evaluations=judged,
        seconds=time.perf_counter() - begin,
    )
