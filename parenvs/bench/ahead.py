"""Times rows that look ahead beside the formulas alone, on as many plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.bench.play import Case, draw_actions, make, rate

TURNS = 8
"""Random turns after which rows are made."""


def ahead(what: str, case: Case, count: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Time what makes the rows of a batch, and the formulas that judge what they look ahead to.

    Args:
        what: name of the environment.
        case: its id and arguments.
        count: number of environments.
        seconds: processor seconds of each run.
        repeats: number of runs of both, in turns.

    Returns:
        ``what``, ``envs``, ``plans`` of a call and, for each run, ``rows`` and ``formulas``: plans
        judged a second.
    """
    env, rng = make(case, count), np.random.default_rng(0)
    _, info = env.reset(seed=0)
    for _ in range(TURNS):
        info = env.step(draw_actions(rng, info, count))[-1]
    game = env.unwrapped.game
    both = game.judging(np.flatnonzero(~game.over))
    rates = [[rate(each.call, each.plans, seconds) for each in both] for _ in range(repeats)]
    rows, formulas = zip(*rates, strict=True)
    return {
        "what": what, "envs": count, "plans": both[0].plans, "rows": rows, "formulas": formulas,
    }  # fmt: skip
