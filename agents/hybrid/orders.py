"""Proven optima and certified bounds over plans of one server for each stage."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from parenvs.agents.hybrid import exact
from parenvs.agents.hybrid.labels import place_of, stage_of
from parenvs.agents.hybrid.tables import (
    FIRST,
    INNER,
    LAST,
    Setting,
    StageCosts,
    StageTables,
    send_between,
)
from parenvs.agents.pipeline.bounds import SLACK
from parenvs.compiled import Array
from parenvs.core.plan import Answer
from parenvs.core.request import Budget
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.formulas import compose
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, software_of
from parenvs.tasks.pipeline.formulas import prepend_core

ONE_SERVER = Constraints(chunks=1, context=1, expert=1)
"""What plans of a hetero problem keep to beside stages of one server."""
NEVER = 1e200
"""Seconds of a stage that does not fit."""


class ServerTables:
    """Costs of stages of one server in a setting.

    Attributes:
        setting: what all stages share; ``devices`` are those of the cluster.
        speeds: (U,) ascending.
        sent: (C,) seconds of the send in front of a stage, one way, for each element per sample.
        hop: (C,) seconds of it, once.
        sizes: (w,) layers that a stage can have and still be shorter than ``longest``.
        number: (n+1, n+1) class of the layers [i, j) among the Q that are short enough, else Q.
        work: (n+1,) least server-seconds of a micro-batch at speed 1 in the layers before each
            boundary: speed times seconds, for any split and any of the speeds.
    """

    def __init__(
        self,
        problem: Hybrid,
        setting: Setting,
        speeds: Array,
        longest: float = np.inf,
        limits: Constraints = ONE_SERVER,
    ) -> None:
        """Ask the formulas for every split, speed and run of at most ``longest`` seconds."""
        check(problem)
        self.problem, self.setting, self.longest = problem, setting, longest
        self.speeds = np.unique(speeds)
        inside = problem.cluster.devices_per_server
        # One server of each speed is enough to ask what a stage costs on it.
        servers, of_each = len(self.speeds), tuple(self.speeds.tolist())
        one_of_each = replace(problem.cluster, servers=servers, speeds=of_each)
        stand_in = replace(problem, cluster=one_of_each)
        inner = replace(limits, stage_devices=inside)
        self.stages = StageTables(stand_in, setting, inner, kinds=longest <= 0)
        configs, count = self.stages.configs, len(self.speeds)
        self.is_possible = len(configs.tp) > 0
        if not self.is_possible:
            return
        every = np.arange(len(configs.tp))
        sent, hop = send_between(stand_in, setting, configs, every, every, False)
        self.sent, self.hop = (x.reshape(-1, count)[:, 0] for x in (sent, hop))
        # Seconds times speed: what a layer takes at speed 1, at least, in any split.
        weighted = self.stages.kind_seconds * configs.speed[:, None]
        least = weighted.min(axis=0)[list(problem.model.kind_of)]
        self.work = np.append(0.0, least.cumsum())
        short = np.flatnonzero(self.stages.shortest <= longest)
        numbers = np.full(len(self.stages.size) + 1, len(short))
        numbers[short] = np.arange(len(short))
        self.number = numbers[self.stages.classes]
        self._short = self.stages.of(short)
        self.sizes = np.arange(0, int(self._short.size.max(initial=0)) + 1)
        # Work of each class: that of its first run.
        first, end = self._short.runs.T
        self.class_work = self.work[end] - self.work[first]
        self._memo: dict[tuple[int, int], StageCosts] = {}
        self._stages: dict[tuple[int, int, int, tuple[int, int]], HybridStage] = {}

    def stage(
        self, number: int, count: int, speed: int, split: int, layers: tuple[int, int]
    ) -> HybridStage:
        """Return a stage of ``count`` ones as plans have it; see ``stage_of``."""
        left, config = count - number, split * len(self.speeds) + speed
        key = place_of(number, count), min(left, self.setting.micro_batches), config, layers
        if key not in self._stages:
            self._stages[key] = stage_of(self.stages, number, count, config, layers)
        return self._stages[key]

    def costs(self, place: int, left: int) -> StageCosts:
        """Return the costs of stages in a place; ``left`` counts itself and those behind.

        They are (U, C, Q + 1) each, by speed, split and class of runs, the last of which has none;
        ``seconds`` are ``NEVER`` where a stage does not fit.
        """
        key = place, min(left, self.setting.micro_batches)
        if key not in self._memo:
            asked = self._short.costs(place, key[1], self.longest)
            seconds = np.minimum(asked.seconds, NEVER)  # no 0 x infinity with one micro-batch
            figures = np.stack([seconds, *asked[1:]])
            # (5, C x U, Q) by configuration; the class behind all others does not fit.
            figures = figures.reshape(5, len(self.sent), len(self.speeds), -1).swapaxes(1, 2)
            figures = np.pad(figures, [(0, 0)] * 3 + [(0, 1)])
            figures[0, ..., -1] = NEVER
            self._memo[key] = StageCosts(*figures)
        return self._memo[key]

    @cached_property
    def link(self) -> Array:
        """(C, n+1) seconds, one way, of the send in front of a stage that begins at a boundary."""
        return self.sent[:, None] * self.problem.model.crossing_after + self.hop[:, None]

    def most_work(self, longest: float) -> Array:
        """(U,) most work of the layers of one stage of ``longest`` seconds, at each speed."""
        most = np.zeros(len(self.speeds))
        for place in (FIRST, INNER):
            seconds = self.costs(place, 1).seconds.min(axis=1)[:, :-1]
            held = np.where(seconds <= min(longest, NEVER / 2), self.class_work, 0.0)
            most = np.maximum(most, held.max(axis=1, initial=0.0))
        return most

    def root_bound(self, most: int | None = None) -> float:
        """Lower bound of the seconds of a step of every plan of the setting (docs/hybrid.md).

        ``M work / sum_j s_j q^j`` over the cluster's speeds, the fastest ``most`` first, with the
        tables' own least work; it needs the slowest speed among the tables' alone.
        """
        m, speeds = self.setting.micro_batches, np.sort(speeds_of(self.problem))[::-1][:most]
        # The j-th stage waits for those in front: it has q^j of the core for its own work.
        turns = (1.0 - 1.0 / m) ** np.arange(len(speeds))
        # All layers in a core C: M work <= C sum_j s_j q^j.
        core = m * self.work[-1] / (speeds * turns).sum()
        return float(compose(self.problem.machine, core))


def check(problem: Hybrid) -> None:
    """Raise a ParenvsError for blocking sends, for ones by the stage in front, or tied weights."""
    if software_of(problem).blocking or not problem.stack.scatter_gather:
        raise ParenvsError(
            f"stack {problem.stack.name}: planners of the order of servers need overlapped sends "
            "of shared activations; take exact, or a stack like llama-2024"
        )
    if problem.model.tied_parameters:
        raise ParenvsError(
            f"{problem.model.name}: planners of the order of servers do not know tied weights; "
            "take exact"
        )


def complete(tables: ServerTables, orders: Array) -> list[tuple[list[int], list[int]] | None]:
    """Find the plan of least core for each order of servers; None where none fits.

    The last stage is on the last server of an order. Servers at its front may be left out.
    ``orders`` are (B, P) speeds of the servers, as numbers in ``tables.speeds``. A plan is the
    first layer, and the number of the split, of each stage.
    """
    orders = np.atleast_2d(orders)
    batch, servers = orders.shape
    model, m = tables.problem.model, tables.setting.micro_batches
    n, rows = len(model), np.arange(batch)
    core = np.full((batch, n + 1), NEVER)
    # core[b, i]: the least core of a suffix from layer i on, on the last servers of order b.
    core[:, n] = 0.0  # suffixes of no layers
    begin = np.arange(n + 1)
    sizes = tables.sizes
    end = np.minimum(begin[:, None] + sizes, n)
    number = tables.number[begin[:, None], end]
    number = np.where(begin[:, None] + sizes <= n, number, -1)
    links = 2 * tables.link[:, :, None]
    best, count = np.full(batch, NEVER), np.zeros(batch, np.int64)
    chosen, firsts = [], []
    for k in range(1, servers + 1):
        speed = orders[:, servers - k]
        if k > 1:
            seconds = tables.costs(FIRST, k).seconds[speed][:, :, tables.number[0]]
            whole = prepend_core(core[:, None], seconds, m).reshape(batch, -1)
            at = whole.argmin(axis=1)
            better = whole[rows, at] < best
            best = np.where(better, whole[rows, at], best)
            count = np.where(better, k, count)
            firsts.append(at)
        if k == servers:
            break
        seconds = tables.costs(LAST if k == 1 else INNER, k).seconds[speed]
        # Only a last stage with the head may have no layers.
        may_be_empty = k == 1 and model.head is not None
        classes = number if may_be_empty else np.where(number == tables.number[0, 0], -1, number)
        behind = prepend_core(core[:, end][:, None], seconds[:, :, classes], m)
        # An overlapped send is a resource between two stages, there and back.
        behind = prepend_core(behind, links, m)  # (B, C, n+1, w)
        if model.embedding is None:
            behind[:, :, 0] = NEVER
        behind = behind.transpose(0, 2, 1, 3).reshape(batch, n + 1, -1)
        at = behind.argmin(axis=2)
        # Only the core is minimized: tails and updates are computed for the finished plan.
        core = np.take_along_axis(behind, at[:, :, None], 2)[:, :, 0]
        chosen.append(at)
    plans: list[tuple[list[int], list[int]] | None] = [None] * batch
    for row in np.flatnonzero(best < NEVER).tolist():
        split, layer = divmod(int(firsts[count[row] - 2][row]), n + 1)
        cuts, splits = [0], [split]
        for left in range(int(count[row]) - 1, 0, -1):
            cuts.append(layer)
            split, size = divmod(int(chosen[left - 1][row, layer]), len(sizes))
            splits.append(split)
            layer += int(sizes[size])
        plans[row] = cuts, splits
    return plans


def plan_of(
    tables: ServerTables, servers: list[int], cuts: list[int], splits: list[int]
) -> HybridPlan:
    """Return the plan of one server for each stage, with as few layers recomputed as memory asks.

    ``servers`` are numbered, the first stage's first; others of the cluster are left unused. The
    speed of each must be among those of the tables.
    """
    problem, setting = tables.problem, tables.setting
    ends, count = [*cuts[1:], len(problem.model)], len(cuts)
    numbers = np.searchsorted(tables.speeds, speeds_of(problem)[servers]).tolist()
    stages = [
        tables.stage(k, count, *stage)
        for k, stage in enumerate(zip(numbers, splits, zip(cuts, ends, strict=True), strict=True))
    ]
    unused = [server for server in range(problem.cluster.servers) if server not in set(servers)]
    return exact.plan_of(problem, setting, stages, servers=(*servers, *unused))


AMONG = "1F1B plans of one server a stage"
"""Words for the plans over which the proofs of this folder hold."""
_FAR = 2.0
"""Factor of a setting's bound up to which plans are looked for first."""


@dataclass(frozen=True)
class Bounded:
    """A setting, the bound in seconds of its plans, and that of its plans of a single stage."""

    setting: Setting
    bound: float
    alone: float = np.inf


def bounded_settings(problem: Hybrid, limits: Constraints = ONE_SERVER) -> list[Bounded]:
    """Return settings with their bounds, the least first (``InfeasibleError``: there is none)."""
    slowest = np.array([min(speeds_of(problem))])
    bounds = []
    most = problem.cluster.devices_per_server * limits.most_micro_batch
    for setting in exact.settings(problem, limits):
        if setting.samples > most:  # a stage has one server
            continue
        # The slowest server's speed gives the least work of all speeds.
        tables = ServerTables(problem, setting, slowest, 0.0, limits)  # no runs
        if tables.is_possible:
            bounds.append(Bounded(setting, tables.root_bound(), tables.root_bound(1)))
    if not bounds:
        raise InfeasibleError(
            f"{problem}: no plan of one server for each stage keeps to the constraints"
        )
    return sorted(bounds, key=lambda x: x.bound)


def speeds_of(problem: Hybrid) -> Array:
    """(P,) speed of every server."""
    cluster = problem.cluster
    return np.array(cluster.speeds or (1.0,) * cluster.servers)


@dataclass
class Orders:
    """Judges orders of servers: the best cuts and splits of each by core, then the whole plan.

    Attributes:
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
        fastest, cluster = by_speed(self.problem), self.problem.cluster
        speed = float(speeds_of(self.problem).max())
        small = replace(self.problem, cluster=replace(cluster, servers=1, speeds=(speed,)))
        for bounded in self.settings:
            setting = bounded.setting
            if bounded.alone >= self.length:
                continue
            alone = replace(setting, devices=cluster.devices_per_server)
            best_stage = exact.one_stage(small, alone, self.limits, self.length)
            self.judged += 1
            if best_stage is not None:
                plan = exact.plan_of(self.problem, setting, [best_stage[0]], servers=tuple(fastest))
                self.keep(plan, setting, self.problem.length(plan))

    def tables(self, setting: Setting, longest: float = np.inf) -> ServerTables:
        """Return the costs in a setting, of runs that plans of ``longest`` seconds can have."""
        if setting not in self._tables:
            upper = min(self.length, longest)
            speeds = speeds_of(self.problem)
            self._tables[setting] = ServerTables(
                self.problem, setting, speeds, upper / setting.micro_batches, self.limits
            )
        return self._tables[setting]

    def start(self, deadline: float = np.inf) -> None:
        """Judge both orders of servers by speed in every setting that may hold the best plan.

        Behind the deadline (``time.perf_counter()``) the first plan that fits will do.
        """
        fastest = by_speed(self.problem)
        tried = np.array([fastest, fastest[::-1]])
        # Tables of short runs are small: far plans are looked at only if there are no others.
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
            # They were made for short runs; the next factor needs longer ones.
            self._tables.clear()

    def judge(self, orders: Array, setting: Setting) -> Array:
        """(B,) seconds of the best plans of (B, P) orders in a setting; keep the best."""
        tables = self.tables(setting)
        speeds = np.searchsorted(tables.speeds, speeds_of(self.problem)[orders])
        lengths = np.full(len(orders), np.inf)
        self.judged += len(orders)
        for row, completed in enumerate(complete(tables, speeds)):
            if completed is None:
                continue
            # The last servers of an order are those that are used.
            plan = plan_of(tables, orders[row].tolist()[-len(completed[0]) :], *completed)
            lengths[row] = self.problem.length(plan)
            self.keep(plan, setting, float(lengths[row]))
        return lengths

    def keep(self, plan: HybridPlan, setting: Setting, length: float) -> None:
        """Take a plan as the best one if it is."""
        if length < self.length * (1 - SLACK):
            self.best, self.setting, self.length = plan, setting, length

    def answer(
        self, method: str, begin: float, bound: float | None = None, labels: int = 0
    ) -> Answer:
        """Return the best plan as an answer (``InfeasibleError``: no plan fits).

        ``bound`` are seconds that no plan takes less than; ``labels`` were kept beside the plans.
        """
        if self.best is None:
            raise InfeasibleError(
                f"{self.problem}: no plan of one server for each stage was found that fits the "
                "memory"
            )
        more = {
            "method": method,
            "among": AMONG,
            "bound": bound,
            "proven": bound is not None and bound >= self.length * (1 - 1e-9),
            "evaluations": labels + self.judged,
        }
        return exact.answer_of(self.problem, self.best, self.length, begin, **more)


def by_speed(problem: Hybrid) -> list[int]:
    """Return the servers by speed, the fastest first."""
    return np.argsort(speeds_of(problem), kind="stable")[::-1].tolist()


EVALUATIONS = 800
"""Plans that a search judges where no time limit is given."""


def swap_search(
    problem: Hybrid,
    rng: np.random.Generator,
    constraints: Constraints | None = None,
    evaluations: int | None = None,
    time_limit: float | None = None,
) -> Answer:
    """Return what swaps of two servers make of the better order by speed.

    A random pair of servers changes places; the new order is kept if it is no worse.
    ``evaluations`` plans are judged (default: ``EVALUATIONS``; with a time limit, as many as it
    allows).

    Raises:
        InfeasibleError: no plan of the orders by speed fits.
    """
    budget = Budget(EVALUATIONS, evaluations, time_limit)
    orders, servers = Orders(problem, constraints or ONE_SERVER), problem.cluster.servers
    orders.start()
    setting, best = orders.setting, orders.best
    if setting is not None and best is not None and servers > 1:
        used = len(best.stages)
        current, length = np.array([*best.servers[used:], *best.servers[:used]]), orders.length
        while budget.left(orders.judged):
            pair = rng.choice(servers, 2, replace=False)
            other = current.copy()
            other[pair] = other[pair[::-1]]
            seconds = float(orders.judge(other[None], setting)[0])
            if seconds <= length:
                current, length = other, seconds
    return orders.answer("swap-search", budget.begin)
