"""The optimal policy on a Markov chain, proven.

The state is the number of nodes, the plan in force, what happened to it, the intervals since its
state was safe, and the time. On a chain the next state depends on these alone, so going back from
the last interval (value iteration of a finite horizon) gives the best policy and its expected
return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from parenvs.agents.elastic.chances import transitions
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.library import CHECKPOINT, EVENTS, GONE
from parenvs.tasks.elastic.markov import Markov
from parenvs.tasks.elastic.problem import Elastic, Moment
from parenvs.tasks.elastic.references import Backup


@dataclass
class Optimal:
    """The optimal policy of a problem on a Markov chain.

    Attributes:
        problem: the problem.
        samples: expected samples of an episode.
        change: (S, EVENTS, N+1, K) int8, the best plan to change to, or to repair.
        stays: (S, N+1, K, C) bool, whether to keep a plan to which nothing happened.
        writes: (S, N+1, K, C) bool, whether to have a checkpoint written then.
    """

    problem: Elastic
    samples: float
    change: np.ndarray
    stays: np.ndarray
    writes: np.ndarray
    name: str = field(default="optimal", init=False)

    @property
    def value(self) -> float:
        """The expected return in the environment."""
        return self.samples / self.problem.ideal

    def start(self, problem: Elastic) -> None:
        """See ``Policy``.

        Raises:
            ParenvsError: the problem is another one.
        """
        if problem.name != self.problem.name:
            raise ParenvsError(
                f"the optimal policy of {self.problem.name} is none of {problem.name}"
            )

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        t, nodes, plan, event, since = moment
        if event == 0 and self.stays[t, nodes, plan, since]:
            return CHECKPOINT if self.writes[t, nodes, plan, since] else plan
        return int(self.change[t, event, nodes, plan])


def optimal(problem: Elastic, seen: Callable[[int, np.ndarray], None] | None = None) -> Optimal:
    """Return the optimal policy on a Markov chain, by going back from the last interval.

    Args:
        problem: the problem.
        seen: is called with each interval and the expected samples after a choice in it, (N+1, K,
            C) by nodes, choice, and intervals since the state is safe then.

    Raises:
        ParenvsError: the nodes of the problem come from a trace.
    """
    chain = problem.source
    if not isinstance(chain, Markov):
        raise ParenvsError(
            f"{problem.name}: a trace has no optimal policy; take the hindsight optimum"
        )
    library, count = problem.library, problem.intervals
    max_nodes, plans, every = chain.nodes, len(library), library.costs.every
    chances = [transitions(library, chain, phase) for phase in range(len(chain.leave))]
    fits = np.array([problem.fits(n) for n in range(max_nodes + 1)])
    backup = Backup(problem)
    change = np.zeros((count, EVENTS, max_nodes + 1, plans), dtype=np.int8)
    stays, writes = np.zeros((2, count, max_nodes + 1, plans, every), dtype=bool)
    after = np.zeros((max_nodes + 1, plans, every))  # expected samples to come, by what is chosen
    for t in range(count - 1, -1, -1):
        if seen is not None:
            seen(t, after)
        keep, writes[t] = backup.kept(after)
        keep[~fits] = -np.inf
        value = np.empty((EVENTS, max_nodes + 1, plans))
        for n in range(max_nodes + 1):
            options = backup.change + np.where(fits[n], after[n, :, 0], -np.inf)
            best = options.argmax(axis=2)
            change[t, :, n] = best
            value[:, n] = np.take_along_axis(options, best[:, :, None], axis=2)[:, :, 0]
        stays[t] = keep >= value[0][:, :, None]
        stays[t, :, 0] = False
        calm = np.where(stays[t], keep, value[0][:, :, None])
        if t == 0:
            break
        chance = chances[chain.phase_of(t)]
        after = np.matmul(chance[:, :, 0].transpose(1, 0, 2), calm.transpose(1, 0, 2))
        after = after.transpose(1, 0, 2)
        broken = np.einsum("nkem,emk->nk", chance[:, :, 1:], value[1:], optimize=True)
        gone = chance[:, :, GONE].sum(axis=2) * problem.lost_samples
        after = after + broken[:, :, None] - gone[:, :, None] * np.arange(every)
    return Optimal(problem, float(calm[chain.start, 0, 0]), change, stays, writes)
