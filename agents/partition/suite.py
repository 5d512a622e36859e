"""The partitions of ``parenvs bench agents``; the hook ``bench`` of the task."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from parenvs.agents.partition import heuristics
from parenvs.tasks.partition.game import PartitionSpace

DEVICES = 8
"""Number of V100, all in one server."""


class Suite:
    """What the benchmark of agents needs of a space; see ``parenvs.agents.pipeline.suite``."""

    settings: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {
        "OperatorPartition-v0": {
            name: {"devices": DEVICES, "reward": reward, "rules": rules}
            for name, reward, rules in (
                ("paper", "paper", "shardy"),
                ("paper/automap", "paper", "automap"),
                ("step_time", "step_time", "shardy"),
                ("step_time/automap", "step_time", "automap"),
            )
        },
        "DataParallel-v0": {"paper": {"devices": DEVICES, "reward": "paper"}},
    }
    word: ClassVar[str] = "variant"

    def __init__(self, space: PartitionSpace) -> None:
        self._space, self.problem = space, space.problem
        self.reward, self.episode_steps = space.reward, len(space.questions)
        self.fingerprint = space.problem.graph.fingerprint

    def references(self) -> dict[str, float]:
        """Return the returns of heuristics that do not learn, by name."""
        return {"greedy": heuristics.greedy(self._space).value}

    def random_value(self, episodes: int, rng: np.random.Generator) -> float:
        """Return the best return of random episodes."""
        return heuristics.random_search(self._space, episodes, rng).value
