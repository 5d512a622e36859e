"""Plans by a trained policy over rows: its best actions, some that are drawn, and its rule's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from parenvs.core.game import EVERY
from parenvs.core.rows import RowGame

PATIENCE = 8
"""Turns that an episode which has a plan goes on without a better one; networks seldom stop."""


class Rater(Protocol):
    """A policy over rows."""

    def rate(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return logits of actions, (n, A), very low ones of illegal actions."""


class Decoded(NamedTuple):
    """What copies of an episode ended with.

    Attributes:
        costs: (k,) of each copy's plan, NaN without one: the best actions from each start, then
            what was drawn, then the rule's.
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
    policy: Rater | None,
    game: RowGame,
    problem: Any,
    samples: int = 1,
    rule: bool = True,
    seed: int = 0,
    deadline: float = np.inf,
) -> Decoded:
    """Play a problem by several copies, and return the best plan.

    The copies begin where the game may start otherwise, as far as it has such starts: the first
    from each plays by its best actions, others are drawn. With the copy that follows the rule from
    the problem's own start, the plan is never worse than the rule's. A copy that improves a plan
    ends when its own has not become better for ``PATIENCE`` turns.

    Args:
        policy: the policy; None plays the rule alone.
        game: of ``samples`` episodes, and one more with the rule; of one without a policy.
        problem: as the game's ``put`` takes it.
        samples: copies that the policy plays.
        rule: whether a copy plays the rule.
        seed: of what is drawn.
        deadline: ``time.perf_counter()`` at which all copies end with the best plan so far.
    """
    begin = time.process_time()
    samples = samples if policy is not None else 0
    count = samples + (rule or policy is None)
    rng = np.random.default_rng(seed)
    game.put(EVERY, problem)
    starts = game.restarts(problem, samples)
    for copy, start in enumerate(starts[1:], 1):
        game.put(np.array([copy]), start)
    game.start(EVERY)
    waited = np.zeros(count, dtype=np.int64)
    while time.perf_counter() < deadline:
        part = np.flatnonzero(~game.over & (waited < PATIENCE))
        if not part.size:
            break
        rows = EVERY if part.size == count else part
        seen = game.observation(rows)
        legal = seen["action_mask"] != 0
        actions = np.where(legal, seen["actions"][..., 0], -np.inf).argmax(axis=1)
        own = int((part < samples).sum())  # the rule's copy is the last
        if own:
            assert policy is not None
            logits = policy.rate({name: values[:own] for name, values in seen.items()})
            is_best = (part[:own] < len(starts))[:, None]
            drawn = np.where(is_best, 0.0, rng.gumbel(size=logits.shape))
            rated = np.nan_to_num(logits + drawn)  # weights that are far too large rate nothing
            actions[:own] = np.where(legal[:own], rated, -np.inf).argmax(axis=1)
        before = game.cost[part]
        game.play(rows, actions)
        same = game.foreseen & (game.cost[part] >= before)
        waited[part] = np.where(same, waited[part] + 1, 0)
    costs = game.cost.copy()
    best = None if np.isnan(costs).all() else game.plan(int(np.nanargmin(costs)))
    return Decoded(costs, best, time.process_time() - begin)
