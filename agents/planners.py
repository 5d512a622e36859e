"""Every planner of pipelines by name: what ``parenvs plan --agent`` offers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.agents.answer import Answer
from parenvs.agents.exact import exact_full, exact_pruned
from parenvs.agents.heuristics import even_cut, random_search
from parenvs.agents.pipedream import pipedream
from parenvs.candidates import CutSpace
from parenvs.errors import ParenvsError, did_you_mean


@dataclass(frozen=True)
class Request:
    """What a planner is asked.

    Attributes:
        space: the problem with its pruned candidates.
        env_kwargs: the same problem as arguments of ``PipelineCut-v0``.
        seed: seed of planners that draw numbers.
        steps: environment steps of planners that learn; random search judges as many plans as
            those steps make episodes.
        progress: show a progress bar where there is one.
    """

    space: CutSpace
    env_kwargs: dict[str, Any]
    seed: int = 0
    steps: int = 60_000
    progress: bool = False

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return str(self.env_kwargs["instance"])


def _random(request: Request) -> Answer:
    episodes = request.steps // (request.space.stages - 1)
    return random_search(request.space, episodes, np.random.default_rng(request.seed))


def _ppo(request: Request) -> Answer:
    try:
        from parenvs.agents.train import Config, train
    except ImportError as error:
        raise ParenvsError(
            f"agent 'ppo' needs the extra 'agents' ({error}); pip install 'parenvs[agents]'"
        ) from None
    config = Config(env_kwargs=request.env_kwargs, seed=request.seed, steps=request.steps)
    result, _ = train(config, progress=request.progress)
    if result.value < 0:
        exact_pruned(request.space)  # raises, and says by how much the best plan misses
        raise ParenvsError("PPO found no plan within memory; give it more --steps")
    cuts, device_cuts = request.space.plan(result.actions)
    length = float(request.space.pipeline.length(cuts, device_cuts))
    return Answer(cuts, device_cuts, length, "ppo", evaluations=result.episodes)


PLANNERS: dict[str, Callable[[Request], Answer]] = {
    "exact": lambda r: exact_pruned(r.space),
    "exact-full": lambda r: exact_full(r.space.pipeline, r.space.stages),
    "even": lambda r: even_cut(r.space.pipeline, r.space.stages),
    "pipedream": lambda r: pipedream(r.space.pipeline, r.space.stages),
    "random": _random,
    "ppo": _ppo,
}
"""``exact`` searches the environment's candidates, ``exact-full`` all pivots and device cuts."""


def run(agent: str, request: Request) -> Answer:
    """The answer of one planner, with its wall time.

    Raises:
        ParenvsError: unknown planner, or no plan exists.
    """
    if agent not in PLANNERS:
        raise ParenvsError(
            f"unknown agent {agent!r}{did_you_mean(agent, PLANNERS)}; known: {', '.join(PLANNERS)}"
        )
    start = time.perf_counter()
    answer = PLANNERS[agent](request)
    return replace(answer, method=agent, seconds=time.perf_counter() - start)
