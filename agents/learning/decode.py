"""Plans by a trained agent: its best actions, some that are drawn, and its rule's."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch

from parenvs.agents.learning.algorithm import Algorithm, chosen
from parenvs.agents.learning.seen import Lens
from parenvs.core.game import EVERY
from parenvs.core.rows import RowGame


class Decoded(NamedTuple):
    """What copies of an episode ended with.

    Attributes:
        costs: (k,) of each copy's plan, NaN without one: the best actions, then what was drawn,
            then the rule's.
        plan: the plan of the least cost; None without one.
        seconds: processor seconds.
    """

    costs: np.ndarray
    plan: Any
    seconds: float

    @property
    def cost(self) -> float:
        """The least cost; inf without a plan."""
        return float(np.nanmin(self.costs)) if np.isfinite(self.costs).any() else float("inf")


def decode(
    agent: Algorithm | None,
    game: RowGame,
    problem: Any,
    samples: int = 1,
    rule: bool = True,
    seed: int = 0,
) -> Decoded:
    """Play a problem by several copies, and return the best plan.

    With the copy that follows the rule, the plan is never worse than the rule's.

    Args:
        agent: the agent; None plays the rule alone.
        game: of ``samples`` episodes, and one more with the rule; of one without an agent.
        problem: as the game's ``put`` takes it.
        samples: copies that the agent plays, the first by its best actions.
        rule: whether a copy plays the rule.
        seed: of what is drawn.
    """
    begin = time.process_time()
    samples = samples if agent is not None else 0
    count = samples + (rule or agent is None)
    lens = Lens(game.observation_space, game.action_space)
    random = torch.Generator().manual_seed(seed)
    game.put(EVERY, problem)
    game.start(EVERY)
    while not game.over.all():
        part = np.flatnonzero(~game.over)
        rows = EVERY if part.size == count else part
        seen = lens(game.observation(rows), {})
        actions = torch.where(seen.mask, seen.rows[..., 0], -torch.inf).argmax(dim=1)
        if agent is not None:
            own = torch.from_numpy(np.flatnonzero(part < samples))
            if len(own):
                with torch.no_grad():
                    logs = agent.logs(seen.at(own)).cpu()
                mask = seen.mask[own]
                actions[own] = chosen(logs, mask, random)
                if part[0] == 0:
                    actions[:1] = chosen(logs[:1], mask[:1])
        game.play(rows, actions.numpy())
    costs = game.cost.copy()
    best = None if np.isnan(costs).all() else game.plan(int(np.nanargmin(costs)))
    return Decoded(costs, best, time.process_time() - begin)
