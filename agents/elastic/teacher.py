"""Who teaches in ``ElasticPlan-v1``: hindsight, which knows what will happen, of every choice.

The pupil does not know it. It learns to choose what is worth most on average over the courses on
which it sees the same; as no choice changes what happens to the nodes, nothing has to be explored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parenvs.tasks.elastic.choice import ElasticChoice, Job
from parenvs.tasks.elastic.problem import Moment
from parenvs.tasks.elastic.references import Foresight


def teach(game: Any) -> Callable[[], np.ndarray] | None:
    """Return a function of what actions are worth, (n, 65); None if nothing is known of the game.

    The unit is what hindsight earns in a mean interval of the course.
    """
    if not isinstance(game, ElasticChoice):
        return None
    seen: dict[int, tuple[Job, Foresight]] = {}

    def worth() -> np.ndarray:
        nonlocal seen
        rows = np.flatnonzero(~game.over).tolist()
        known = {id(job): seen.get(id(job)) for job in (game.jobs[row] for row in rows)}
        result = np.full(game.mask.shape, np.nan, dtype=np.float32)
        for row in rows:
            job = game.jobs[row]
            mine = known[id(job)] or (job, Foresight(job.problem, job.course))
            known[id(job)] = mine
            figures = (game.interval, game.nodes, game.plans, game.event, game.since)
            values = mine[1].worth(Moment(*(int(figure[row]) for figure in figures)))
            values *= len(job.course) / job.known.best
            result[row, : len(values) - 1], result[row, -1] = values[:-1], values[-1]
        seen = {key: value for key, value in known.items() if value is not None}
        return np.where(game.legal & np.isfinite(result), result, np.nan)

    return worth
