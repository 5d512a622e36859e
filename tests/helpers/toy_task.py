"""A toy task, a knapsack: everything that a task has, from nothing but its ``Task``."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Drawn, Fixed, Game
from parenvs.core.leaderboard import ONE, Description, TaskKind, TaskProblem
from parenvs.core.plan import ILLEGAL, Answer, Plan, Report
from parenvs.core.request import Request
from parenvs.core.task import Task
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.fields import Integer, Text

ITEMS = 6


@dataclass(frozen=True)
class Knapsack:
    """Choose items of little weight and much value; left-out value is the cost."""

    task: ClassVar[str] = "knapsack"
    instance: str
    weights: tuple[int, ...]
    values: tuple[int, ...]
    capacity: int

    @property
    def fingerprint(self) -> str:
        return f"knapsack:{self.weights}{self.values}{self.capacity}"

    def plan(self, items: Any) -> KnapsackPlan:
        return KnapsackPlan(self.instance, self.fingerprint, tuple(int(i) for i in items))

    def report(self, plan: KnapsackPlan) -> KnapsackReport:
        weight = sum(self.weights[i] for i in plan.items)
        heavy = f"the items weigh {weight}, at most {self.capacity} fit"
        cost = 1 + sum(self.values) - sum(self.values[i] for i in plan.items)
        return KnapsackReport(self, plan, (heavy,) if weight > self.capacity else (), cost)


@dataclass(frozen=True)
class KnapsackPlan(Plan):
    instance: Text
    fingerprint: Text
    items: tuple[Integer, ...]
    task: ClassVar[str] = "knapsack"


@dataclass(frozen=True)
class KnapsackReport(Report):
    task: ClassVar[str] = "knapsack"
    problem: Knapsack
    plan: KnapsackPlan
    reasons: tuple[str, ...]
    cost: int


def find(name: str) -> Knapsack:
    rng = np.random.default_rng(int(name.partition("/")[2]))
    return Knapsack(name, *(tuple(rng.integers(1, 9, ITEMS).tolist()) for _ in range(2)), 16)


class Pack(Game):
    """Take or leave one item after the other; the return is 1 / cost, or -1 for too much weight."""

    options, episode_steps = ("instance",), ITEMS

    def __init__(self, count: int = 1, *, instance: str | None = None, problem: Any = None) -> None:
        super().__init__(count)
        only = problem or (instance and find(instance))
        draws = Drawn(lambda stream: find(f"knapsack/{stream.rng.integers(99)}"))
        self.source = Fixed(only) if only else draws
        self.turn, self.taken = np.zeros(count, dtype=int), np.zeros((count, ITEMS), dtype=np.int8)
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {"taken": spaces.Box(0, 1, (ITEMS,), np.int8), "items": spaces.Box(0, 16, (2 * ITEMS,))}
        )
        self.items = np.zeros((count, 2 * ITEMS), dtype=np.float32)

    def put(self, rows: Any, problem: Knapsack) -> None:
        self.items[rows] = (*problem.weights, *problem.values)

    def start(self, rows: Any) -> None:
        self.turn[rows], self.taken[rows], self.over[rows] = 0, 0, False

    def play(self, rows: Any, actions: np.ndarray) -> np.ndarray:
        rows, wrong = self._rows[rows], (actions < 0) | (actions > 1)
        self.taken[rows, self.turn[rows]] = np.where(wrong, 0, actions)
        self.turn[rows] += 1
        self.over[rows] = over = wrong | (self.turn[rows] == ITEMS)
        values = [self.view(row).value if self.over[row] else 0.0 for row in rows.tolist()]
        return np.where(over & ~wrong, values, np.where(wrong, ILLEGAL, 0.0))

    def observation(self, rows: Any) -> dict[str, np.ndarray]:
        return {"taken": self.taken[rows], "items": self.items[rows]}

    def plan(self, row: int) -> KnapsackPlan:
        return self.problem(row).plan(np.flatnonzero(self.taken[row]))


class PackEnv(GameEnv, game=Pack): ...


class PackVectorEnv(GameVectorEnv, single=PackEnv): ...


def exact(request: KnapsackRequest) -> Answer:
    problem = request.problem
    every = [problem.plan(np.flatnonzero(x)) for x in product((0, 1), repeat=ITEMS)]
    best = min(every, key=lambda plan: -problem.report(plan).value)
    return Answer(problem=problem, plan=best, proven=True, bound=problem.report(best).cost)


def greedy(request: KnapsackRequest) -> Answer:
    problem, taken = request.problem, []
    for item in np.argsort(np.array(problem.weights) / problem.values, kind="stable"):
        if problem.report(problem.plan([*taken, item])).legal:
            taken.append(item)
    return Answer(problem=problem, plan=problem.plan(taken))


class KnapsackRequest(Request):
    planners: ClassVar = {"exact": exact, "greedy": greedy}


class KnapsackProblem(TaskProblem):
    plan_class, decisions = KnapsackPlan, ("items",)


def problems(instances=None):
    for name in (f"knapsack/{seed}" for seed in range(3)):
        if instances is None or name in instances:
            yield KnapsackProblem(name, "knapsack", "", name, find(name).fingerprint, {})


def planner(agent, seed, steps):
    return lambda item: KnapsackRequest(item.target, seed=seed, steps=steps).run(agent).plan


BOARD = {
    "knapsack": TaskKind(
        title="Pack a knapsack.", kind="knapsack", cost="value left out",
        trivial="nothing is packed", problem=KnapsackProblem, problems=problems, planner=planner,
        agents={name: Description(f"{name}.", "", ONE) for name in KnapsackRequest.planners},
    )
}  # fmt: skip


class KnapsackTask(Task):
    name, words, drawn = "knapsack", "Pack a knapsack.", {"knapsack": "7"}
    envs: ClassVar = {"Knapsack-v0": "toy_task:Pack"}

    def find(self, name: str) -> Knapsack:
        return find(name)

    def plan_class(self) -> type[KnapsackPlan]:
        return KnapsackPlan

    def request_class(self) -> type[KnapsackRequest]:
        return KnapsackRequest

    def leaderboard(self) -> dict[str, Any]:
        return BOARD
