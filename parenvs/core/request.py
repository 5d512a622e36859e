"""``Request``: a problem with the limits and options of a planner; ``Budget`` of a search."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from parenvs.core.registry import task_of
from parenvs.core.task import late
from parenvs.errors import ParenvsError, TimeLimitError, need_extra, refuse_unknown

SECONDS = 20.0
"""Default time limit of exact searches."""
STEPS = 60_000
"""Default environment steps of planners that learn or sample."""
EXACT = "exact"
_TRAINING = "parenvs.agents.learning.trainer:on_problem"


class Budget:
    """The budget of a search: evaluated plans, seconds, or both.

    Attributes:
        begin: ``time.perf_counter()`` at construction.

    Args:
        default: number of plans if neither limit is given.
        plans: None: as many as the seconds allow.
        seconds: counted from now; None or inf: no limit.
    """

    def __init__(
        self, default: int, plans: int | None = None, seconds: float | None = None
    ) -> None:
        self.begin = time.perf_counter()
        self._seconds = math.inf if seconds is None else seconds
        # Without any limit a search would not end.
        self._plans = default if plans is None and math.isinf(self._seconds) else plans

    def end(self, share: float = 1.0) -> float:
        """Return the ``time.perf_counter()`` at which a share of the seconds is spent."""
        return self.begin + share * self._seconds

    def left(self, judged: int) -> int:
        """Return how many more plans may be evaluated after ``judged`` ones."""
        if time.perf_counter() >= self.end():
            return 0
        return sys.maxsize if self._plans is None else max(self._plans - judged, 0)


@dataclass(frozen=True)
class Request:
    """A problem, and a planner's limits.

    Attributes:
        seed: seed of randomized planners.
        steps: environment steps of planners that learn; random search evaluates one plan per
            episode that these steps make.
    """

    problem: Any
    seed: int = field(default=0, kw_only=True)
    steps: int = field(default=STEPS, kw_only=True)
    progress: bool = field(default=False, kw_only=True)

    usual: ClassVar[str] = ""
    """Planner whose plan is the task's baseline; empty if there is none."""
    planners: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """Planner name -> function that takes the request and returns an ``Answer``."""
    users: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Option of commands -> the planners that use it; all use those that are not listed."""

    @property
    def env_id(self) -> str:
        """Id of the environment in which agents train on the problem.

        Raises:
            ParenvsError: there is none.
        """
        raise ParenvsError(
            f"no planner trains on one problem of task {task_of(self.problem).name}; parenvs train "
            "trains on many"
        )

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The environment's arguments for a problem that was loaded by name, JSON types."""
        return {"instance": self.problem.instance}

    @property
    def object_kwargs(self) -> dict[str, Any]:
        """The environment's arguments with the problem itself, whatever its name."""
        return {"problem": self.problem}

    @property
    def space(self) -> Any:
        """The search space of the environment, by default the problem."""
        return self.problem

    @property
    def compared(self) -> tuple[str, ...]:
        """Planners that ``parenvs compare`` runs."""
        return tuple(self.planners)

    @property
    def label(self) -> str:
        """Part of a folder's name that distinguishes problems of one instance."""
        return task_of(self.problem).name

    def settled(self, agents: Sequence[str]) -> tuple[Request, Any]:
        """Return the request with every open choice made, such as the number of stages.

        Returns:
            The request, and how the choices were made: None if none were open, else an object with
            ``answer``, of the planner that chose, and ``assumed``, the choices in words.
        """
        return self, None

    def shared(self, agents: Sequence[str]) -> Request:
        """Return the request with the share of the time limit that each planner's search has."""
        limit = getattr(self, "time_limit", None)
        searches = {*agents} & {*self.users.get("seconds", agents)}
        if limit is None or not searches:
            return self
        return replace(self, **{"time_limit": limit / len(searches)})

    def optimum(self) -> float:
        """Return the proven return of the environment's best episode."""
        return float(task_of(self.problem).reference(self.space).value)

    def target(self, best: float) -> float:
        """Return the smallest return that counts as optimal if the optimum is ``best``."""
        from parenvs.core.plan import OPTIMAL

        return best * (1 - OPTIMAL)

    def run(self, agent: str) -> Any:
        """Return the answer of the planner ``agent``, with its wall time.

        Raises:
            ParenvsError: the planner is unknown, or no plan exists.
        """
        self.check(agent)
        # Wall time, as planners may use several processes and solvers' threads.
        begin = time.perf_counter()
        answer = self.planners[agent](self)
        return replace(answer, method=agent, seconds=time.perf_counter() - begin)

    def best(self) -> Any:
        """Return the answer of the default planner."""
        return self.run(EXACT)

    def check(self, agent: str) -> None:
        """Raise a ParenvsError if the planner ``agent`` is unknown."""
        refuse_unknown("unknown agent", agent, self.planners)

    def refuse_unused(self, agents: Sequence[str], flags: Collection[str]) -> None:
        """Raise a ParenvsError for unknown planners, and options that none of them uses."""
        for agent in agents:
            self.check(agent)
        for flag in flags:
            users = self.users.get(flag, agents)
            if not set(users) & set(agents):
                remedy = f"take the planner {' or '.join(users)}" if users else "leave it out"
                raise ParenvsError(f"--{flag}: {' and '.join(agents)} ignores it; {remedy}")

    def train(self, agent: str) -> Any:
        """Train an agent on the problem and return the result.

        Raises:
            ParenvsError: the extra ``agents`` is not installed.
            TimeLimitError: no episode ends within the steps.
        """
        with need_extra("agents", f"agent {agent!r}"):
            train = late(_TRAINING)
        result = train(self, agent)
        if result.value is None:
            raise TimeLimitError(f"{agent} ended no episode; give it more --steps")
        return result
