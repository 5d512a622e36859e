"""Trains agents on chains of ``elastic-train``, and plays what they have learnt.

    python -m parenvs.agents.learning.elastic.train --agent ppo --steps 150000 --out ppo.npz

The agents see courses of the training set only. MaskablePPO and RecurrentPPO of sb3-contrib share
the network that rates candidates (``parenvs.agents.learning.elastic.network``)
and what they are paid (``PaidVecEnv``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from io import BufferedIOBase
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium.vector import AutoresetMode
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule

from parenvs.agents.elastic.policies import (
    MASK,
    ElasticLstmPolicy,
    ElasticPolicy,
    PaidVecEnv,
)
from parenvs.agents.learning.elastic.learnt import Learnt
from parenvs.agents.learning.play import one_thread
from parenvs.core.source import Stream
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.files import replacing
from parenvs.tasks.elastic.game import ElasticPlanVectorEnv, source_of
from parenvs.tasks.elastic.load import ELASTIC_SETS
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.tables import Tables
from parenvs.tasks.elastic.turns import Turns

Agent: TypeAlias = "MaskablePPO | RecurrentPPO"
AGENTS = {"ppo": 256, "recurrent-ppo": 256}
"""Agents, and the environments that each has side by side."""
STEPS = 150_000
"""Environment steps of a training by default."""
GAMMA = 0.95
"""Discount of an interval: payments already tell what hindsight loses later."""
RATES = LinearSchedule(3e-3, 3e-4, 1.0)
"""Learning rates of all agents."""


def train(
    agent: str = "ppo",
    seed: int = 0,
    steps: int = STEPS,
    envs: int | None = None,
    callback: BaseCallback | None = None,
    **problem: Any,
) -> Agent:
    """Train an agent on drawn courses.

    Args:
        agent: of ``AGENTS``.
        seed: of everything random.
        steps: environment steps.
        envs: environments side by side (default: of ``AGENTS``).
        callback: of SB3.
        **problem: arguments of ``ElasticPlanEnv`` (default: ``elastic-train``).

    Raises:
        ParenvsError: there is no such agent.
    """
    if agent not in AGENTS:
        raise ParenvsError(
            f"unknown agent {agent!r}{did_you_mean(agent, AGENTS)}; known: {', '.join(AGENTS)}"
        )
    count = envs or AGENTS[agent]
    batch = ElasticPlanVectorEnv(count, autoreset_mode=AutoresetMode.SAME_STEP, **problem)
    env = PaidVecEnv(batch, shows_mask=agent == "recurrent-ppo")
    env.seed(10_000 * seed)  # environments take the seeds behind it
    common: dict[str, Any] = {"gamma": GAMMA, "seed": seed, "device": "cpu"}
    with one_thread():
        learner = _ppo(agent, env, common)
        learner.learn(steps, callback=callback)
    return learner


def _ppo(agent: str, env: PaidVecEnv, common: dict[str, Any]) -> MaskablePPO | RecurrentPPO:
    """Return PPO, or PPO with a memory."""
    options: dict[str, Any] = {
        **common, "learning_rate": RATES, "n_steps": 32, "batch_size": 512, "n_epochs": 3,
        "gae_lambda": 0.8, "ent_coef": 0.001,
    }  # fmt: skip
    if agent == "ppo":
        return MaskablePPO(ElasticPolicy, env, **options)
    return RecurrentPPO(ElasticLstmPolicy, env, **options)


def returns(agent: Agent | Learnt, seeds: Iterable[int], **problem: Any) -> dict[str, np.ndarray]:
    """Return what the agent's likeliest plans earn, an episode for each seed.

    Args:
        agent: the agent.
        seeds: of the environments; the courses are those of ``Elastic.drawn`` for one problem.
        **problem: arguments of ``ElasticPlanEnv``.

    Returns:
        ``value``, the returns, and ``share``, those of each course's ideal, (n,) each.
    """
    source, stream, jobs = source_of(**problem), Stream(), []
    for seed in seeds:
        stream.reseed(seed)
        jobs.append(source.draw(stream))
    turns = Turns(len(jobs), jobs[0].tables)
    return _played(agent, turns, [(job.number, job.drawn) for job in jobs])


def all_returns(
    agent: Agent | Learnt, problems: Sequence[Elastic], seeds: Sequence[int]
) -> list[dict[str, np.ndarray]]:
    """Return ``returns`` of several problems of as many intervals, all played at once.

    Args:
        agent: the agent.
        problems: all of chains, all of one named trace, or all of traces without names.
        seeds: of the courses of each.
    """
    drawn = [
        (number, problem.draw(np.random.default_rng(seed)))
        for number, problem in enumerate(problems)
        for seed in seeds
    ]
    found = _played(agent, Turns(len(drawn), Tables.of(problems)), drawn)
    return [
        {key: values.reshape(len(problems), -1)[i] for key, values in found.items()}
        for i in range(len(problems))
    ]


def _played(
    agent: Agent | Learnt, play: Turns, drawn: Sequence[tuple[int, np.ndarray | None]]
) -> dict[str, np.ndarray]:
    """Turns one episode each of what was drawn: numbers of problems, and what decides courses."""
    who, state, is_over = np.arange(len(drawn)), None, False
    play.start(who, [number for number, _ in drawn], [numbers for _, numbers in drawn])
    plans, total = play.tables.plans[play.row], np.zeros(len(drawn))
    with one_thread():
        while not is_over:
            masks = play.masks() > 0
            seen = {"plans": plans, **play.observation(who)}
            if isinstance(agent, Learnt):
                choice = agent.plans(seen, masks)
            elif isinstance(agent, RecurrentPPO):
                seen[MASK] = masks.astype(np.float32)
                choice, state = agent.predict(seen, state, deterministic=True)
            else:
                choice, _ = agent.predict(seen, action_masks=masks, deterministic=True)
            if not play.legal(who, choice).all():
                raise AssertionError("an agent chose an illegal plan")
            rewards, over = play.step(who, choice)
            total, is_over = total + rewards, bool(over.all())
    return {"value": total, "share": play.shares(who)}


def weights(agent: MaskablePPO) -> dict[str, np.ndarray]:
    """Return the weights of PPO's ratings, for ``parenvs.agents.learning.elastic.network.rate``."""
    heads: Any = agent.policy.mlp_extractor
    return cast(dict[str, np.ndarray], heads.actor.arrays())


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agent", choices=list(AGENTS), default="ppo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--instance", default=ELASTIC_SETS[0])
    parser.add_argument("--model", default=None)
    parser.add_argument(
        "--out", type=Path, default=None, help="the agent, a .zip; of PPO also its weights, a .npz"
    )
    options = parser.parse_args(None if arguments is None else list(arguments))
    problem = {"instance": options.instance, "model": options.model}
    agent = train(options.agent, options.seed, options.steps, **problem)
    found = returns(agent, range(64), instance=ELASTIC_SETS[1], model=options.model)
    sys.stdout.write(f"{ELASTIC_SETS[1]}: mean return {found['value'].mean():.4f}\n")
    if options.out is not None:
        with replacing(options.out) as stream:
            if options.out.suffix == ".npz" and isinstance(agent, MaskablePPO):
                np.savez(stream, **weights(agent))  # type: ignore[arg-type]
            else:
                agent.save(cast(BufferedIOBase, stream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
