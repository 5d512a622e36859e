"""Proven optima and certified bounds over plans of one server for each stage."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.agents.hybrid.labels import SLACK
from parenvs.agents.hybrid.servers.order import complete, plan_of
from parenvs.agents.hybrid.servers.tables import NEVER, ONE_SERVER, ServerTables, check, settings
from parenvs.agents.hybrid.solve import one_stage
from parenvs.agents.hybrid.tables import Setting
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.plan import SENDS, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints

AMONG = "1F1B plans of one server a stage"
"""Words for the plans over which the proofs of this folder hold."""
_FAR = 2.0
"""Factor of a setting's bound up to which plans are looked for first."""


@dataclass(frozen=True)
class Bounded:
    """A setting, and what no plan of it is faster than.

    Attributes:
        setting: the setting.
        bound: seconds.
        alone: seconds that plans of a single stage take at least.
    """

    setting: Setting
    bound: float
    alone: float = np.inf


def bounded_settings(problem: Hybrid, limits: Constraints = ONE_SERVER) -> list[Bounded]:
    """Return the settings of a problem with their bounds, the least first.

    Args:
        problem: the problem.
        limits: the constraints.

    Raises:
        InfeasibleError: there is none.
    """
    slowest = np.array([min(speeds_of(problem))])
    found = []
    for setting in settings(problem, limits):
        tables = ServerTables(problem, setting, slowest, 0.0, limits)  # no runs
        if tables.is_possible:
            found.append(Bounded(setting, tables.root_bound(), tables.root_bound(1)))
    if not found:
        raise InfeasibleError(
            f"{problem.instance} on {problem.cluster}, batch {problem.batch}: no plan of one "
            "server for each stage keeps to the constraints"
        )
    return sorted(found, key=lambda x: x.bound)


def speeds_of(problem: Hybrid) -> np.ndarray:
    """(P,) speed of every server."""
    cluster = problem.cluster
    return np.array(cluster.speeds or (1.0,) * cluster.servers)


@dataclass
class Orders:
    """Judges orders of servers: the best cuts and splits of each by core, then the whole plan.

    Attributes:
        problem: the problem.
        limits: the constraints.
        settings: those that may hold the best plan.
        best: the best plan so far.
        length: its seconds.
        judged: plans that were judged.
    """

    problem: Hybrid
    limits: Constraints = ONE_SERVER
    best: HybridPlan | None = None
    setting: Setting | None = None
    length: float = np.inf
    judged: int = 0

    def __post_init__(self) -> None:
        """List the settings."""
        check(self.problem)
        self.settings = bounded_settings(self.problem, self.limits)
        self._tables: dict[Setting, ServerTables] = {}

    def alone(self) -> None:
        """Judge the best plans of one stage, on the fastest server; mostly none comes close."""
        fastest = by_speed(self.problem)
        speed = float(speeds_of(self.problem).max())
        cluster = self.problem.cluster
        small = replace(self.problem, cluster=replace(cluster, servers=1, speeds=(speed,)))
        for bounded in self.settings:
            setting = bounded.setting
            if bounded.alone >= self.length:
                continue
            one = replace(setting, devices=cluster.devices_per_server)
            found = one_stage(small, one, self.limits, self.length)
            self.judged += 1
            if found is not None:
                stage, software = found[0], setting.software
                plan = self.problem.plan(
                    [stage],
                    setting.samples // (stage.devices // stage.tp),
                    sequence_parallel=setting.sequence_parallel and stage.tp > 1,
                    p2p=SENDS[0] if software.blocking else SENDS[1],
                    gradient_bytes=software.gradient_bytes,
                    gradient_overlap=software.gradient_overlap,
                    servers=tuple(fastest),
                )
                self.keep(plan, setting, self.problem.length(plan))

    def tables(self, setting: Setting, longest: float = np.inf) -> ServerTables:
        """Return the costs in a setting; runs are left out that the best plan's length forbids.

        Args:
            setting: the setting.
            longest: seconds of a step above which plans are of no interest.
        """
        if setting not in self._tables:
            upper = min(self.length, longest)
            speeds = speeds_of(self.problem)
            self._tables[setting] = ServerTables(
                self.problem, setting, speeds, upper / setting.micro_batches, self.limits
            )
        return self._tables[setting]

    def start(self, orders: Iterable[list[int]], deadline: float = np.inf) -> None:
        """Judge some orders in every setting that may hold the best plan.

        Settings with a bound that is no better than the best plan are passed over. Plans more than
        ``_FAR`` times as long as the bound are looked at only if there are no others.

        Args:
            orders: servers, the first stage's first.
            deadline: ``time.perf_counter()`` behind which the first plan that fits will do.
        """
        tried = np.array(list(orders))
        for factor in (_FAR, np.inf):
            for bounded in self.settings:
                if self.best is not None and time.perf_counter() > deadline:
                    return
                if bounded.bound < self.length:
                    self.tables(bounded.setting, factor * bounded.bound)
                    self.judge(tried, bounded.setting)
            if self.best is None or time.perf_counter() < deadline:
                self.alone()
            if self.best is not None:
                break
            self._tables.clear()

    def judge(self, orders: np.ndarray, setting: Setting) -> np.ndarray:
        """(B,) seconds of the best plans of orders in a setting, each judged; keep the best.

        Args:
            orders: (B, P) servers, the first stage's first.
            setting: what all stages share.
        """
        tables = self.tables(setting)
        speeds = np.searchsorted(tables.speeds, speeds_of(self.problem)[orders])
        found = complete(tables, speeds)
        lengths = np.full(len(orders), np.inf)
        for row, order in enumerate(orders.tolist()):
            self.judged += 1
            if found.core[row] >= NEVER:
                continue
            servers = order[len(order) - int(found.stages[row]) :]
            plan = plan_of(tables, servers, found.cuts[row], found.splits[row])
            lengths[row] = self.problem.length(plan)
            self.keep(plan, setting, float(lengths[row]))
        return lengths

    def keep(self, plan: HybridPlan, setting: Setting, length: float) -> None:
        """Take a plan as the best one if it is."""
        if length < self.length * (1 - SLACK):
            self.best, self.setting, self.length = plan, setting, length

    def answer(self, method: str, begin: float, **more: Any) -> Answer:
        """Return the best plan as an answer.

        Args:
            method: name of the planner.
            begin: when it began, ``time.perf_counter()``.
            **more: other fields of ``Answer``.

        Raises:
            InfeasibleError: no plan fits.
        """
        if self.best is None:
            raise InfeasibleError(
                f"{self.problem.instance} on {self.problem.cluster}, batch {self.problem.batch}: "
                "no plan of one server for each stage was found that fits the memory"
            )
        values: dict[str, Any] = {"among": AMONG, "evaluations": self.judged, **more}
        seconds = time.perf_counter() - begin
        return Answer(
            problem=self.problem,
            plan=self.best,
            cost=self.length,
            method=method,
            seconds=seconds,
            **values,
        )


def by_speed(problem: Hybrid, descending: bool = True) -> list[int]:
    """Return the servers by speed."""
    order = np.argsort(speeds_of(problem), kind="stable")
    return (order[::-1] if descending else order).tolist()
