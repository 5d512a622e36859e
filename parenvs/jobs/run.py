"""A job on a trace: planned, driven, and compared with a run that nothing disturbs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from parenvs.jobs.driver import CORE, LOCAL, Driver, Plans, plans_of
from parenvs.jobs.journal import LOADED, MOVED, UNCHANGED, Interval, Job, Journal, Step
from parenvs.jobs.member import Fleet, Model, Settings, run_solo
from parenvs.markdown import table
from parenvs.tasks.elastic.problem import Elastic, Recorded, Run
from parenvs.tasks.elastic.problems import load_trace
from parenvs.tasks.elastic.view import plan_name, stacked
from parenvs.view.page import INK, QUIET, RED, Page, mix

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HAPPENED, PREDICTED = "happened", "predicted"
_GAP = 0.35
_HEIGHTS = (1.25, 1.25, 1.2, 1.35)
_LABELS = (
    "nodes there (line),\nin use", "samples a second", "seconds of changes;\nred: from disk",
    "loss; undisturbed (line)",
)  # fmt: skip


@dataclass(frozen=True)
class Happened:
    """A job that was driven through a trace.

    Attributes:
        predicted: what its policy was expected to do and to earn.
        undisturbed: losses of as many steps of one process without a change; empty: it was not run.
        in_order: whether every sample came once, in the order of that process; None: not known.
    """

    predicted: Run
    intervals: Sequence[Interval]
    steps: Sequence[Step]
    batch: int
    undisturbed: Sequence[float] = ()
    in_order: bool | None = None

    @property
    def worst(self) -> float | None:
        """Largest relative difference of a loss to the undisturbed run; None without one."""
        if not self.undisturbed:
            return None
        pairs = zip(self.steps, self.undisturbed, strict=True)
        return max((abs(step.loss / loss - 1) for step, loss in pairs), default=0.0)

    @property
    def changes(self) -> list[tuple[Interval, float, float]]:
        """Intervals with a change, and the seconds and bytes of the busiest node foreseen for it.

        Of the change that did happen, by the tables that policies see. These are made before
        anybody leaves, and take nodes of different groups, the last of each, for the lost ones.
        """
        seconds, egress = self.predicted.problem.library.tables
        before, changes = 0, []
        for row in self.intervals:
            if row.way != UNCHANGED:
                key = row.event, before, row.plan
                changes.append((row, float(seconds[key]), float(egress[key])))
            before = row.plan
        return changes

    def to_json(self) -> dict[str, Any]:
        """Return the totals as an object of JSON types."""
        run, rows = self.predicted, self.intervals
        happened = {
            "seconds": sum(x.seconds for x in rows),
            "steps": len(self.steps),
            "samples": len(self.steps) * self.batch,
            "changes": sum(x.way != UNCHANGED for x in rows),
            "nodes_lost": sum(x.event > 0 for x in rows),
            "from_checkpoint": sum(x.way == LOADED for x in rows),
            "steps_lost": sum(x.lost for x in rows),
            "change_seconds": sum(x.change_seconds for x in rows),
            "bytes": sum(x.sent for x in rows),
            "checkpoints": sum(x.saved for x in rows),
        }
        started = run.plans[np.append(0, run.plans[:-1]) == 0] > 0
        predicted = {
            "seconds": run.problem.seconds * len(run.plans),
            "steps": run.total / self.batch,
            "samples": run.total,
            "changes": int(run.changed.sum() + started.sum()),
            "nodes_lost": int((run.events > 0).sum()),
            "from_checkpoint": int(run.gone.sum()),
            "change_seconds": float(run.seconds.sum()),
        }
        return {
            "instance": run.problem.name, "policy": run.policy, HAPPENED: happened,
            PREDICTED: predicted, "loss": self.steps[-1].loss if self.steps else None,
            "worst_difference": self.worst, "samples_in_order": self.in_order,
        }  # fmt: skip

    def markdown(self) -> list[str]:
        """Return the totals and the changes as tables, and a sentence on losses and samples."""
        content = self.to_json()
        rows = [
            [key.replace("_", " "), _cell(value), _cell(content[PREDICTED].get(key))]
            for key, value in content[HAPPENED].items()
        ]
        lines = [
            [
                str(x.interval), str(x.nodes), plan_name(self.predicted, x.plan), x.way,
                f"{x.change_seconds:.1f}", f"{seconds:.1f}",
                *((f"{x.busiest:,}", f"{x.priced:,.0f}") if x.way == MOVED else ("", "")),
                f"{egress:,.0f}", str(x.lost),
            ]
            for x, seconds, egress in self.changes
        ]  # fmt: skip
        head = [
            "interval", "nodes", "plan", "state from", "seconds", "predicted",
            "bytes of the busiest node", "priced", "foreseen", "steps lost",
        ]  # fmt: skip
        return [table(["", HAPPENED, PREDICTED], rows), table(head, lines, 4), self.verdict]

    @property
    def verdict(self) -> str:
        """What is true of samples and losses, in a sentence."""
        sentence = f"{len(self.steps):,} steps count"
        if self.steps:
            sentence += f", loss {self.steps[0].loss:.4f} -> {self.steps[-1].loss:.4f}"
        if self.worst is not None:
            order = "every sample came once, in order" if self.in_order else "SAMPLES DIFFER"
            sentence += (
                f"; beside one process that nothing disturbs: {order}, and losses differ by at "
                f"most {self.worst:.1e}"
            )
        return f"{sentence}."

    def figure(self) -> Figure:
        """Draw nodes, samples, changes and losses; ``view.page.style`` has to be in force."""
        page, run = Page(), self.predicted
        verdict = self.verdict.rstrip(".").split("; ")
        name = f"{run.problem.name}, {run.policy}: what happened, and what was predicted (line)"
        top = page.heading(name, verdict) + 0.1
        panels = nodes, samples, changes, losses = stacked(page, top, _HEIGHTS, _GAP)
        for axes, label in zip(panels, _LABELS, strict=True):
            axes.set_ylabel(label, size=8)
        rows, edges = self.intervals, np.arange(len(self.intervals) + 1)
        used = run.problem.library.used
        blue, green = mix("#5FB3DE", "#FFFFFF", 0.2), "#2A9D84"
        nodes.stairs([x.nodes for x in rows], edges, color=INK, linewidth=1.0)
        nodes.stairs(used[[x.plan for x in rows]], edges, fill=True, color=blue)
        rate = [x.trained * self.batch / max(x.seconds, 1e-9) for x in rows]
        samples.stairs(rate, edges, fill=True, color=green)
        speed = run.samples / run.problem.seconds
        samples.stairs(np.maximum(speed, 0), np.arange(len(speed) + 1), color=INK, linewidth=0.9)
        for x, seconds, _ in self.changes:
            color = RED if x.way == LOADED else "#4B4AA0"
            changes.bar(x.interval + 0.5, x.change_seconds, 0.7, color=color)
            changes.hlines(seconds, x.interval, x.interval + 1, color=INK, linewidth=1.2)
        changes.set_xlabel("interval", size=8)
        for axes in (nodes, samples, changes):
            axes.set_xlim(0, max(len(rows), 1))
        losses.plot([x.loss for x in self.steps], color=green, linewidth=2.4)
        losses.plot(list(self.undisturbed), color=INK, linewidth=0.8)
        for x, *_ in self.changes:
            losses.axvline(x.steps - x.trained, color=QUIET, linewidth=0.5)
        losses.set_xlabel("step; changes are gray lines", size=8)
        return page.figure


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


GRAPH = "graph.npz"
# Steps that are timed if nobody says how long one takes.
_TIMED = 3


@dataclass(frozen=True)
class Prepared:
    """A job whose plans are made.

    Attributes:
        problem: the course in seconds of this run, and the candidate plans.
    """

    job: Job
    journal: Journal
    problem: Elastic
    plans: Plans

    def drive(
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
        chooser, course = policy(), self.problem.course()
        problem = replace(self.problem, checkpoints=getattr(chooser, "saves", False))
        with locked(folder, beside=True):
            Driver(
                problem, course, self.plans, chooser, journal, settings, job.steps,
                job.notice, say, fleet,
            ).run()  # fmt: skip
        steps = journal.trained
        predicted = play(self.problem, course, policy())
        happened = Happened(predicted, journal.intervals, steps, job.batch)
        if not verify:
            return happened
        losses, ids = run_solo(job.source, job.batch, job.seed, len(steps))
        return replace(happened, undisturbed=losses, in_order=[x.ids for x in steps] == ids)


def prepare(job: Job, folder: Path) -> Prepared:
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
        graph, measured, tracing = _traced(job)
        Journal.open(folder, {**asdict(job), "measured": measured, "tracing": tracing})
    journal = Journal.open(folder, asdict(job))
    path = folder / GRAPH
    # A kill may have come between the journal's beginning and the graph.
    if not path.exists():
        (_traced(job)[0] if graph is None else graph).save(path)
    graph = load_graph(path)
    cluster = Cluster(job.processes, job.devices, CORE, CORE.intra_bw, CORE.inter_bw)
    if job.cluster is not None:
        named = Cluster.parse(job.cluster)
        cluster = replace(named, servers=job.processes, devices_per_server=job.devices)
    costs = replace(LOCAL, every=job.every, trace=journal.tracing, cores=os.cpu_count() or 1)
    plans = plans_of(graph, str(path.resolve()), cluster, job.batch, journal.measured, costs)
    name = f"{Path(trace.name).stem}/{Path(job.source.rpartition(':')[0]).stem}"
    seconds = job.interval / job.speed
    problem = Elastic(plans.library, Recorded(name, course), seconds, name=name)
    return Prepared(job, journal, problem, plans)


def _traced(job: Job) -> tuple[Graph, float, float]:
    """Trace the training step, and time it where nobody says how long one takes.

    Returns:
        The graph, seconds of a step, and those to trace and cut the module, as a process of a
        pipeline does.
    """
    model = Model.from_source(job.source, job.seed)
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
    # A first step warms up PyTorch and is not timed.
    run_solo(job.source, job.batch, job.seed, 1)
    start = time.perf_counter()
    run_solo(job.source, job.batch, job.seed, _TIMED)
    return graph, (time.perf_counter() - start) / _TIMED, tracing
