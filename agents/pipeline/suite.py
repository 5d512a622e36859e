"""The pipelines of ``parenvs bench agents``; the hook ``bench`` of the task."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from parenvs.agents.pipeline import heuristics
from parenvs.tasks.pipeline.spaces import CutSpace


class Suite:
    """What the benchmark of agents needs of an environment's search space.

    Args:
        space: the space.

    Attributes:
        settings: id of an environment -> name of a setting -> arguments of the environment.
        word: what a setting is.
        reward: what an episode pays.
        problem: the problem of the space.
        fingerprint: of what is planned.
        episode_steps: steps of the longest episode.
    """

    settings: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "PipelineCut-v0": {name: {"cluster": name} for name in ("A", "B", "C")}
    }
    word: ClassVar[str] = "cluster"

    def __init__(self, space: CutSpace) -> None:
        self._space, self.problem = space, space.pipeline
        self.reward, self.episode_steps = "1/L", space.stages - 1
        self.fingerprint = space.pipeline.profile.fingerprint

    def references(self) -> dict[str, float]:
        """Return the returns of heuristics that do not learn, by name."""
        return {"even": heuristics.even_cut(self.problem).value}

    def random_value(self, episodes: int, rng: np.random.Generator) -> float:
        """Return the best return of random episodes."""
        return heuristics.random_search(self._space, episodes, rng).value
