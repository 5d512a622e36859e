"""Imitation of the solver on ``IntraOpSharding-v0``: its plans teach the policy what to take.

The solver (``parenvs.agents.sharding.solve``) plans problems of the pool; the policy learns to take
what the plan takes, by cross-entropy over legal strategies. Episodes keep to the plan, or leave it
by what the policy itself would take (S. Ross et al., DAgger, AISTATS 2011); the plan remains the
teacher then. Training by PPO can go on from the result.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from parenvs.agents.learning.sharding.policy import ShardingPolicy
from parenvs.agents.learning.sharding.train import ENV, ppo_settings
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.agents.sharding.solve import solve_iopddl
from parenvs.errors import InfeasibleError
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct

BATCH = 64
"""Episodes that are played side by side."""
LEARNING_RATE = 1e-3


def taught(boards: list[Board], steps: int = 40, seed: int = 0) -> list[tuple[Board, np.ndarray]]:
    """Return the boards that the solver plans with strategies that are left, and its choices.

    Args:
        boards: problems.
        steps: rounds of the solver for each.
        seed: of the solver.
    """
    found = []
    for board in boards:
        try:
            answer = solve_iopddl(board.problem, seconds=None, steps=steps, seed=seed)
            found.append((board, board.choice_of(np.array(answer.plan.strategies))))
        except InfeasibleError:
            continue
    return found


def imitate(
    lessons: list[tuple[Board, np.ndarray]], seed: int = 0, passes: int = 20, own: float = 0.3,
    **env_kwargs: Any,
) -> MaskablePPO:  # fmt: skip
    """Train an agent on the solver's plans.

    Args:
        lessons: boards and the solver's choices, see ``taught``.
        seed: of everything random.
        passes: how often each board is played.
        own: share of turns in which the policy's choice is taken in place of the plan's, in the
            last pass; it rises from 0.
        **env_kwargs: arguments of the environment, of the construct form.
    """
    env = make_env(ENV, {"pool": 1, **env_kwargs}, seed, 1)
    width = int(cast(Any, env.action_space).n)
    rng = np.random.default_rng(seed)
    with one_thread():
        settings = ppo_settings(advice=env_kwargs.get("advice", "none"))
        agent = MaskablePPO(ShardingPolicy, env, seed=seed, **settings)
        optimizer = torch.optim.Adam(agent.policy.parameters(), lr=LEARNING_RATE)
        for turn in range(passes):
            share = own * turn / max(passes - 1, 1)
            order = rng.permutation(len(lessons))
            for begin in range(0, len(order), BATCH):
                some = [lessons[at] for at in order[begin : begin + BATCH].tolist()]
                _play(agent, optimizer, some, width, share, rng, env_kwargs.get("advice", "none"))
    return agent


def _play(
    agent: MaskablePPO, optimizer: torch.optim.Optimizer, lessons: list[tuple[Board, np.ndarray]],
    width: int, share: float, rng: np.random.Generator, advice: str,
) -> None:  # fmt: skip
    """Play an episode of each lesson, and learn from every turn."""
    policy = cast(ShardingPolicy, agent.policy)
    episodes = Construct(len(lessons), width, advice)
    for row, (board, _) in enumerate(lessons):
        episodes.put(row, board)
    episodes.start(np.arange(len(lessons)))
    while len(rows := np.flatnonzero(~episodes.over)):
        target = np.array([lessons[row][1][episodes.turn[row]] for row in rows.tolist()])
        legal = episodes.legal[rows]
        seen = {
            "actions": torch.tensor(episodes.rows[rows]),
            "numbers": torch.tensor(episodes.numbers[rows]),
        }
        ratings = policy.features_extractor(seen)[:, :width]
        ratings = ratings.masked_fill(torch.tensor(~legal), -1e9)
        # Off the plan's path its strategy may be illegal; nothing is learned there.
        can = legal[np.arange(len(rows)), target]
        if can.any():
            loss = torch.nn.functional.cross_entropy(ratings[can], torch.tensor(target[can]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        mine = ratings.detach().numpy().argmax(axis=1)
        follow = can & (rng.random(len(rows)) >= share)
        episodes.play(rows, np.where(follow, target, mine))
