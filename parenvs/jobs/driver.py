"""Drives a job through a trace: at every interval a policy chooses, and the job changes its plan.

Local processes stand for nodes. A node that leaves is killed in the middle of a step, unless there
is notice of it; what it held comes from replicas or, if there is none, from the checkpoint. What
happened is written down line by line, so that a driver that was killed goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.cluster import Cluster, Device
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.exports.checkpoint import INDEX, Files
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.graph.graph import Graph
from parenvs.jobs.journal import INTERVALS, LOADED, MOVED, STARTED, Interval, Journal, Step
from parenvs.jobs.member import STATE, Fleet, LostError, Settings
from parenvs.machine import store_at
from parenvs.tasks.elastic.library import (
    CHECKPOINT,
    EVENTS,
    GONE,
    LOST,
    READY,
    Library,
    chosen,
    degrees_of,
)
from parenvs.tasks.elastic.movement import Costs, Degrees, Movement, State
from parenvs.tasks.elastic.problem import Course, Elastic, Moment, Policy
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import even_bounds

PER_PARAMETER = 12.0
"""Bytes of a parameter in full precision with Adam's two moments."""


@dataclass(frozen=True)
class LocalCosts(Costs):
    """What changes take among processes that share cores.

    What takes most is that every process of a pipeline traces the module, all of them at once.

    Attributes:
        trace: seconds of a core to trace and cut the module.
    """

    trace: float = 0.0
    cores: int = 1

    def planned(self, movement: Movement, new: Degrees, joins: bool) -> float:
        return super().planned(movement, new, joins) + self._traced(new)

    def unplanned(self, movement: Movement | None, new: Degrees, devices: int) -> float:
        return super().unplanned(movement, new, devices) + self._traced(new)

    def _traced(self, new: Degrees) -> float:
        return self.trace * max(1.0, new.ranks / self.cores) if new.pipeline > 1 else 0.0


LOCAL = LocalCosts(fixed=1.0, restart=((1, 1.0),), egress=4e8, sliced=1e9, save=0.5, load=0.5)
"""What changes take among local processes, roughly, besides tracing, which is measured; as of
``benchmarks/elastic_run.py``."""

CORE = Device(
    "core", peak_flops=2e10, memory_bw=5e9, memory_bytes=4e9, intra_bw=1e9, inter_bw=1e9,
    source="a guess: a core of a server and the loopback device; only proportions count",
)  # fmt: skip
"""What a process stands for if nothing else is said."""


@dataclass(frozen=True)
class Plans:
    """The plans that a job can run, and what is predicted of them.

    Attributes:
        exported: plans in PyTorch's words, as far as they were asked for.
    """

    library: Library
    plans: dict[Degrees, HybridPlan]
    seconds: dict[Degrees, float]
    graph: Graph
    exported: dict[Degrees, TorchPlan]

    def torch_plan(self, degrees: Degrees) -> TorchPlan:
        """Return a plan in PyTorch's words."""
        if degrees not in self.exported:
            self.exported[degrees] = torch_plan(self.plans[degrees], self.graph)
        return self.exported[degrees]


def plans_of(
    graph: Graph, path: str, cluster: Cluster, batch: int, step_seconds: float, costs: Costs = LOCAL
) -> Plans:
    """Return the plans of degrees that fill whole nodes, divide the batch and run in PyTorch.

    Layers are dealt out evenly; pipelines have the fewest micro-batches that are as many as their
    stages. Steps last in proportion to what the judge says of them on the cluster.

    Args:
        graph: of the training step.
        path: of its file, which plans name.
        cluster: what the nodes stand for.
        batch: samples of a step.
        step_seconds: of a step of the plan with the fewest devices.
        costs: of changes.

    Raises:
        ParenvsError: no plan runs.
    """
    model, devices = HybridModel.of_graph(graph, path), cluster.devices_per_server
    problem = Hybrid(model, cluster, batch, Stack.parse("roofline"), "fp32")
    plans: dict[Degrees, HybridPlan] = {}
    exported: dict[Degrees, TorchPlan] = {}
    judged: dict[Degrees, float] = {}
    reasons: list[str] = []
    runs: dict[tuple[int, int], bool] = {}
    for degrees in sorted(degrees_of(problem), key=lambda x: x.ranks):
        tensor, stages, replicas = degrees
        # At least one micro-batch per stage, or some stage would have nothing to do.
        counts = [n for n in range(stages, batch // replicas + 1) if batch % (n * replicas) == 0]
        if not counts:
            continue
        bounds = even_bounds(len(model), stages).tolist()
        nodes = degrees.hosts(devices)
        plan = HybridPlan(
            path, graph.fingerprint, replace(cluster, servers=nodes), "roofline", "fp32",
            batch=batch, micro_batch=batch // (counts[0] * replicas),
            stages=tuple(
                HybridStage(((first, end),), tensor * replicas, tp=tensor)
                for first, end in pairwise(bounds)
            ),
        )  # fmt: skip
        if (tensor, stages) not in runs:  # replicas make no difference
            try:
                exported[degrees] = torch_plan(plan, graph)
            except InfeasibleError as error:  # such as fewer layers than stages
                reasons.append(str(error))
            runs[tensor, stages] = degrees in exported
        if runs[tensor, stages]:
            report = replace(problem, cluster=plan.cluster).report(plan)
            plans[degrees], judged[degrees] = plan, report.step_seconds
    if not plans:
        raise ParenvsError(
            f"{path}: no plan of a batch of {batch} runs on nodes of {devices} devices"
            f"{f' ({reasons[0]})' if reasons else ''}"
        )
    smallest = min(plans, key=lambda x: (x.ranks, judged[x]))
    # Only proportions of the cost model count; the smallest plan takes as long as was measured.
    seconds = {x: step_seconds * judged[x] / judged[smallest] for x in plans}
    candidates = chosen([(x, batch / seconds[x]) for x in plans], devices)
    library = Library(path, State.of(model, PER_PARAMETER), costs, devices, candidates)
    return Plans(library, plans, seconds, graph, exported)


class Driver:
    """A job on nodes that come and go.

    Args:
        problem: the trace, in seconds of this run, and the candidate plans.
        steps: of an interval (default: each ends by the clock, the first one's seconds after the
            first nodes were started, and so on: what takes longer shortens the next ones).
        notice: whether nodes that leave are known a step before, so that their state is used.
        say: is told of every change, in a line.
        fleet: what starts and ends processes of nodes.
    """

    def __init__(
        self,
        problem: Elastic,
        course: Course,
        plans: Plans,
        policy: Policy,
        journal: Journal,
        settings: Settings,
        steps: int | None = None,
        notice: bool = False,
        say: Callable[[str], None] = lambda words: None,
        fleet: Callable[[Settings, int], Fleet] = Fleet,
    ) -> None:
        self.problem, self.course, self.plans, self.policy = problem, course, plans, policy
        self.journal, self.per_interval, self.notice, self.say = journal, steps, notice, say
        self.store = store_at(settings.host)
        settings = replace(settings, port=self.store.port)
        self.folder = Path(settings.folder)
        self.fleet = fleet(settings, problem.library.devices)
        self.alive: list[int] = []  # by age, the oldest first
        self.rank_nodes: list[int] = []  # node of each host-full of ranks in training
        self.holders: list[int | None] = []  # the same of the state that is held; None: it is gone
        self.held_plan = 0  # plan of the state
        self.plan = 0
        self.steps = 0
        self.pending: tuple[float, list[int], float] | None = None
        self.row = Interval(0, 0)

    def run(self) -> Journal:
        """Drive the job to the end of the trace, from where its journal ends.

        Raises:
            ParenvsError: the journal is of other nodes or of other plans, or the policy chooses one
                that nodes are not enough for.
        """
        problem, course, journal = self.problem, self.course, self.journal
        self._check()
        self.policy.start(problem)
        first, event, since, next_node = len(journal.intervals), 0, 0, 0
        for row in journal.intervals:  # what a policy remembers
            self._choose(Moment(row.interval, row.nodes, self.plan, row.event, row.since))
            self.plan, self.steps = row.plan, row.steps
        if self.plan:
            event = GONE
        bits, save_every = course.bits().tolist(), problem.library.costs.every
        before = time.perf_counter()
        try:
            for t in range(first, problem.intervals):
                leaving = [x for k, x in enumerate(self.alive) if bits[t] >> k & 1]
                count = int(course.nodes[t]) - (len(self.alive) - len(leaving))
                joining = range(next_node, next_node + count)
                next_node += count
                for node in joining:
                    self.fleet.start(node)
                if t == first:  # whatever made processes of this machine possible is over
                    begin = before = time.perf_counter()
                self.row = Interval(t, int(course.nodes[t]), since=since)
                event = self._remove_leaving(leaving, event)
                self.alive = [x for x in self.alive if x not in leaving] + list(joining)
                self.row.event = event
                chosen = self._choose(Moment(t, len(self.alive), self.plan, event, since))
                saves = chosen == CHECKPOINT
                self._change_plan(self.plan if saves else chosen, event)
                self._train(begin + (t + 1 - first) * problem.seconds)
                since = min(since + 1, save_every)
                is_due = since == save_every or t + 1 == problem.intervals
                if self.rank_nodes and (saves or is_due):
                    self._save()
                    since = 0
                since = min(since, save_every - 1)
                self.row.plan, self.row.steps = self.plan, self.steps
                now = time.perf_counter()
                self.row.seconds, before = now - before, now
                journal.add(self.row)
                event = 0
        finally:
            self.fleet.end()
        return journal

    def _check(self) -> None:
        problem, counts = self.problem, self.course.nodes.tolist()
        for t, row in enumerate(self.journal.intervals):
            nodes = counts[t] if t < problem.intervals else None
            plans = [] if nodes is None else problem.fits(nodes).nonzero()[0].tolist()
            for name, is_valid, expected in (
                ("interval", nodes is not None, f"there are {problem.intervals}"),
                ("nodes", row.nodes == nodes, f"the trace has {nodes}"),
                ("plan", row.plan in plans, f"plans for {nodes} nodes are {plans}"),
                ("event", row.event < EVENTS, f"events are 0 to {EVENTS - 1}"),
            ):
                if not is_valid:
                    raise ParenvsError(
                        f"{self.journal.folder / INTERVALS}: line {t + 1}: field {name!r} is "
                        f"{getattr(row, name)}; {expected}; give another --out"
                    )

    def _choose(self, moment: Moment) -> int:
        t = moment.interval
        chosen = self.policy.choose(moment, int(self.course.joined[t]), int(self.course.left[t]))
        refused = self.problem.refused(moment, chosen)
        if refused is not None:
            raise ParenvsError(f"policy {self.policy.name}: interval {t}: {refused}")
        return int(chosen)

    def _remove_leaving(self, leaving: Sequence[int], event: int) -> int:
        """Kill the nodes that leave, with notice after their step; return the interval's event."""
        lost = [x for x in leaving if x in self.rank_nodes]
        idle = [x for x in self.alive if x not in (*leaving, *self.rank_nodes)]
        is_ready = len(lost) <= min(len(idle), self.problem.library.spares[self.plan])
        if lost and self.notice:
            if not self.problem.fits(self.row.nodes)[1:].any():
                self._save()
            self._pause()
        elif lost:
            self.fleet.send_order(self.rank_nodes, "step")
        self._kill([node for node in leaving if not (self.notice and node in lost)])
        if not lost:
            return event
        if not self.notice:
            self._record_lost(lost)
            if not self._is_state_complete():
                return GONE
        return READY + len(lost) if is_ready else min(len(lost), LOST)

    def _kill(self, nodes: Collection[int]) -> None:
        for node in nodes:
            self.fleet.kill(node)
        self.holders = [None if x in nodes else x for x in self.holders]

    def _record_lost(self, nodes: Sequence[int]) -> None:
        """Note that nodes are gone, and let the others hold what they have."""
        self.rank_nodes, self.pending, gone = [], None, set(nodes)
        while True:
            self.holders = [None if x in gone else x for x in self.holders]
            left = [x for x in self.holders if x is not None]
            try:
                # A collective without its partners fails; its reply is taken from the pipe first.
                with suppress(ParenvsError):
                    self.fleet.receive(left)
                self.fleet.ask(left, "pause")
                return
            except LostError as error:
                gone |= set(error.nodes)

    def _restart_dead(self, error: LostError) -> None:
        self.say(f"node {', '.join(map(str, error.nodes))} ended by itself, and starts again")
        self._record_lost(error.nodes)
        for node in error.nodes:
            if node in self.alive:
                self.fleet.start(node)
        self.row.event = min(len(error.nodes), LOST) if self._is_state_complete() else GONE

    def _retried(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except LostError as error:
                self._restart_dead(error)
                self._change_plan(self.plan, 1)

    def _commit(self) -> None:
        """Let the last step count: once it was told, it does in all processes that are left."""
        if self.pending is not None:
            self.fleet.send_order(self.rank_nodes, "commit")
            loss, ids, seconds = self.pending
            self.journal.add(Step(self.steps, self.row.interval, loss, ids, seconds))
            self.steps += 1
            self.row.trained += 1
            self.pending = None
            self.fleet.receive(self.rank_nodes)

    def _pause(self) -> None:
        if self.rank_nodes:
            try:
                self.fleet.ask(self.rank_nodes, "pause")
                self.rank_nodes = []
            except LostError as error:
                self._restart_dead(error)

    def _is_state_complete(self) -> bool:
        if not self.holders:
            return False
        library = self.problem.library
        degrees = library.candidates[self.held_plan - 1].degrees
        files = Files.of(self.plans.plans[degrees])
        numbers = list(map(files.number, files.ranks()))
        # Replicas have the same file: one of each is enough.
        left = {x for k, x in enumerate(numbers) if self.holders[k // library.devices] is not None}
        return left == set(numbers)

    def _change_plan(self, plan: int, event: int) -> None:
        degrees = [None, *(x.degrees for x in self.problem.library.candidates)]
        if self.rank_nodes and event == 0 and degrees[plan] == degrees[self.plan]:
            self.plan = plan
            return
        start = time.perf_counter()
        self._pause()
        self.plan = plan
        while plan:
            try:
                self._build(plan)
                break
            except LostError as error:
                self._restart_dead(error)
        self._kill(set(self.fleet.processes) - set(self.alive))  # what they held has moved
        self.row.change_seconds += time.perf_counter() - start
        if plan:
            self.say(self._change_words(plan))

    def _build(self, plan: int) -> None:
        """Move or load the state, and build the module for a plan on the nodes that run it."""
        library, inside = self.problem.library, self.problem.library.devices
        degrees = library.candidates[plan - 1].degrees
        new = self.plans.plans[degrees], self.plans.torch_plan(degrees)
        takers = self.alive[: int(library.used[plan])]
        others = [x for x in self.holders if x is not None and x not in takers]
        order: list[int] = []
        restore = False
        if self._is_state_complete():
            nodes = [*takers, *others]
            self.fleet.form(nodes)
            replies = self.fleet.ask(nodes, "move", (*new, inside, len(takers)))
            process_of = {rank: k for k, (rank, _) in enumerate(replies) if rank is not None}
            order = [process_of[rank] for rank in range(degrees.ranks)]
            sent = np.array([x for _, x in replies], np.int64)
            between = sent.reshape(len(nodes), inside, len(nodes), inside).sum(axis=(1, 3))
            # Bytes that stay on a node cross no network.
            np.fill_diagonal(between, 0)
            old = library.candidates[self.held_plan - 1].degrees
            holds = [self.holders.index(x) if x in self.holders else None for x in nodes]
            self.row.priced = library.moved(old, degrees, holds, len(takers)).egress_bytes
            self.row.sent, self.row.busiest = int(sent.sum()), int(between.sum(axis=1).max())
            self.row.way = MOVED
        else:
            restore = (self.folder / STATE / INDEX).exists()
            self.row.way = LOADED if restore else STARTED
        self.fleet.form(takers, degrees.ranks, order)
        arguments = (*new, self.plans.seconds[degrees], restore)
        steps, *_ = self.fleet.ask(takers, "build", arguments)
        self.row.lost += max(self.steps - steps, 0)
        self.steps, self.held_plan = steps, plan
        ranks = order or list(range(degrees.ranks))
        self.rank_nodes = [takers[ranks[k] // inside] for k in range(0, degrees.ranks, inside)]
        self.holders = list(self.rank_nodes)
        self.fleet.ask([*takers, *others], "go")

    def _train(self, end: float) -> None:

        def step() -> None:
            self._commit()
            self.pending, *_ = self.fleet.ask(self.rank_nodes, "step")

        if self.per_interval is not None:
            for _ in range(self.per_interval if self.rank_nodes else 0):
                self._retried(step)
        elif self.rank_nodes:
            while time.perf_counter() < end:
                self._retried(step)
        else:
            time.sleep(max(0.0, end - time.perf_counter()))
        self._retried(self._commit)

    def _save(self) -> None:
        self._retried(lambda: self.fleet.ask(self.rank_nodes, "save"))
        self.row.saved = True

    def _change_words(self, plan: int) -> str:
        row, candidate = self.row, self.problem.library.candidates[plan - 1]
        how = {
            STARTED: "from the beginning",
            MOVED: f"moved {row.sent:,} bytes, the busiest node sent {row.busiest:,}",
            LOADED: f"from the checkpoint, {row.lost} steps lost",
        }[row.way]
        return (
            f"interval {row.interval}: {row.nodes} nodes, {candidate.degrees}, {how}, "
            f"{row.change_seconds:.1f} s"
        )
