"""A job on a trace: planned, driven, and compared with a run that nothing disturbs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from parenvs.agents.elastic.planners import policy_of
from parenvs.agents.elastic.policies import play
from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError
from parenvs.exports.parallel import cut
from parenvs.exports.stream import Stream, left_out
from parenvs.files import locked
from parenvs.graph.graph import Graph
from parenvs.graph.sources import from_torch
from parenvs.instances import load_graph
from parenvs.jobs.driver import Driver
from parenvs.jobs.fleet import Fleet
from parenvs.jobs.journal import Journal
from parenvs.jobs.member import Settings
from parenvs.jobs.model import Model, alone
from parenvs.jobs.plans import LOCAL, Plans, cores, plans_of
from parenvs.jobs.result import Happened
from parenvs.tasks.elastic.problem import Course, Elastic, Recorded
from parenvs.tasks.elastic.problems import load_trace

GRAPH = "graph.npz"
_TIMED = 3
"""Steps that are timed if nobody says how long one takes."""


@dataclass(frozen=True)
class Job:
    """What makes a job; the fields are the options of ``parenvs elastic run``.

    Attributes:
        trace: name or path of the trace.
        source: see ``Model.made``.
        policy: who chooses, see ``policy_of``.
        processes: nodes at a time at most.
        devices: processes of a node.
        batch: samples of a step.
        interval: seconds of the trace between two decisions.
        speed: seconds of the trace in one second here.
        steps: of an interval, in place of its seconds.
        step_seconds: of one node; None: as measured.
        notice: whether nodes leave at a step's end.
        cluster: what nodes stand for; None: cores.
        every: intervals between two checkpoints.
        seed: of initial values, of the order of samples and of who leaves.
    """

    trace: str
    source: str
    policy: str
    processes: int
    devices: int
    batch: int
    interval: float
    speed: float
    steps: int | None
    step_seconds: float | None
    notice: bool
    cluster: str | None
    every: int
    seed: int


@dataclass(frozen=True)
class Prepared:
    """A job whose plans are made.

    Attributes:
        job: the job.
        journal: where it is written down.
        course: which nodes come and leave.
        problem: the course in seconds of this run, and the candidate plans.
        plans: what the candidates stand for.
    """

    job: Job
    journal: Journal
    course: Course
    problem: Elastic
    plans: Plans

    def driven(
        self,
        say: Callable[[str], None] = lambda words: None,
        verify: bool = False,
        host: str = "127.0.0.1",
        fleet: Callable[[Settings, int], Fleet] = Fleet,
    ) -> Happened:
        """Drive the job to its end, from where its folder stands.

        Args:
            say: is told of every change, in a line.
            verify: whether to train as many steps in one process, and compare.
            host: address of this machine, as the nodes' processes know it.
            fleet: what starts and ends these.
        """
        job, journal, policy = self.job, self.journal, policy_of(self.job.policy)
        folder = str(journal.folder)
        graph = str(journal.folder / GRAPH)
        settings = Settings(job.source, graph, folder, job.batch, job.seed, 0, host)
        chooser = policy()
        problem = replace(self.problem, checkpoints=getattr(chooser, "saves", False))
        with locked(folder, beside=True):
            Driver(
                problem, self.course, self.plans, chooser, journal, settings, job.steps,
                job.notice, say, fleet,
            ).run()  # fmt: skip
        steps = journal.trained
        predicted = play(self.problem, self.course, policy())
        happened = Happened(predicted, journal.intervals, steps, job.batch)
        if not verify:
            return happened
        losses, ids = alone(job.source, job.batch, job.seed, len(steps))
        return replace(happened, alone=losses, in_order=[x.ids for x in steps] == ids)


def prepared(job: Job, folder: Path) -> Prepared:
    """Read a job's trace, plan its model, and begin its folder if there is none.

    Raises:
        ParenvsError: there are more nodes than processes, no plan runs, or the folder is another
            job's.
    """
    trace = load_trace(job.trace)
    if trace.most > job.processes:
        raise ParenvsError(
            f"{job.trace}: up to {trace.most} nodes at a time; give --processes {trace.most}, or "
            "a smaller trace"
        )
    rng = np.random.default_rng(job.seed)
    uniform = rng.random((trace.intervals(job.interval), trace.most))  # who leaves, without names
    course = trace.course(job.interval, uniform)
    graph: Graph | None = None
    if Journal.is_new(folder):
        graph, one, tracing = _traced(job)
        Journal.opened(folder, {**asdict(job), "measured": one, "tracing": tracing})
    journal = Journal.opened(folder, asdict(job))
    path = folder / GRAPH
    if not path.exists():
        (_traced(job)[0] if graph is None else graph).save(path)
    graph = load_graph(path)
    cluster = cores(job.processes, job.devices)
    if job.cluster is not None:
        named = Cluster.parse(job.cluster)
        cluster = replace(named, servers=job.processes, devices_per_server=job.devices)
    costs = replace(LOCAL, every=job.every, trace=journal.tracing, cores=os.cpu_count() or 1)
    plans = plans_of(graph, str(path.resolve()), cluster, job.batch, journal.measured, costs)
    name = f"{Path(trace.name).stem}/{Path(job.source.rpartition(':')[0]).stem}"
    seconds = job.interval / job.speed
    problem = Elastic(plans.library, Recorded(name, course), seconds, name=name)
    return Prepared(job, journal, course, problem, plans)


def _traced(job: Job) -> tuple[Graph, float, float]:
    """Trace the training step, and time it where nobody says how long one takes.

    Returns:
        The graph, seconds of a step, and those to trace and cut the module, as a process of a
        pipeline does.
    """
    model = Model.made(job.source, job.seed)
    stream = Stream(len(model.samples), job.batch, job.seed)
    inputs, target = model.batch(stream)
    with left_out():
        graph = from_torch(model.module, *inputs, loss=model.loss, targets=(target,))
    start = time.perf_counter()
    with suppress(ParenvsError):  # such a module runs without stages
        cut(model.module, (), inputs)
    tracing = time.perf_counter() - start
    if job.step_seconds is not None:
        return graph, job.step_seconds, tracing
    alone(job.source, job.batch, job.seed, 1)
    start = time.perf_counter()
    alone(job.source, job.batch, job.seed, _TIMED)
    return graph, (time.perf_counter() - start) / _TIMED, tracing
