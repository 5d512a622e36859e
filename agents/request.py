"""What a planner of any task is asked, and the planners that can be asked."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from parenvs.agents.trained import STEPS
from parenvs.errors import ParenvsError, did_you_mean, need_extra


@dataclass(frozen=True)
class Request(ABC):
    """A problem, and how much may be done to solve it.

    Attributes:
        env_kwargs: the problem as arguments of the task's environment.
        seed: seed of planners that draw numbers.
        steps: environment steps of planners that learn; random search judges as many plans as
            those steps make episodes.
        progress: show a progress bar where there is one.
    """

    env_kwargs: dict[str, Any]
    seed: int = 0
    steps: int = STEPS
    progress: bool = False

    env_id: ClassVar[str]
    planners: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """Every planner of the task by name; each takes the request and gives an answer."""

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return str(self.env_kwargs["instance"])

    @property
    @abstractmethod
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Words for a folder's name: what sets this problem apart from others."""

    @abstractmethod
    def report(self, answer: Any) -> Any:
        """What the judge says of an answer; the report holds the plan."""

    @abstractmethod
    def optimum(self) -> float:
        """Return of the best episode of the environment, proven."""

    def target(self, best: float) -> float:
        """The return from which an episode reaches the optimum, whose return is ``best``."""
        from parenvs.agents.optimum import target

        return target(str(self.env_kwargs.get("reward", "1/L")), best)

    def run(self, agent: str) -> Any:
        """The answer of one planner, with its wall time.

        Raises:
            ParenvsError: unknown planner, or no plan exists.
        """
        if agent not in self.planners:
            raise ParenvsError(
                f"unknown agent {agent!r}{did_you_mean(agent, self.planners)}; "
                f"known: {', '.join(self.planners)}"
            )
        start = time.perf_counter()
        answer = self.planners[agent](self)
        return replace(answer, method=agent, seconds=time.perf_counter() - start)

    def train(self, agent: str) -> Any:
        """The result of training an agent on the problem.

        Raises:
            ParenvsError: the extra ``agents`` is not installed.
        """
        with need_extra("agents", f"agent {agent!r}"):
            from parenvs.agents.train.run import Config, train
        config = Config(self.env_id, self.env_kwargs, agent, self.seed, self.steps)
        return train(config, progress=self.progress)[0]
