"""The shape of a pipeline, chosen with proof: how many stages, on how many of the devices.

A *shape* is a number of stages on a part of a cluster (``Cluster.parts``): a ``Pipeline``. More
stages hide less of the pipeline's start, more devices make all-reduces slower, so that neither is
best at its largest. ``exact_shape`` searches many shapes for the one plan that is shortest of all.

1. A shape of one stage has one plan; its length is a formula.
2. A shape whose least length by its work alone (``bounds.least_length``) reaches the best plan so
   far is out. That bound grows with the stages, so most shapes are never looked at.
3. The others are searched over few pivots first, the most promising one first; then the best one,
   and its neighbours with a stage more or less, over a ``PointSpace``. So the best plan is soon so
   short that the searches over all pivots, each for shorter plans only, end quickly.
4. Searches over all pivots take turns of growing length, so that no single one uses up the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, least_length
from parenvs.agents.pipeline.exact import answer_of, infeasible, one_stage, search_pivots
from parenvs.agents.pipeline.least_memory import least_excess, plan_within
from parenvs.agents.pipeline.local_search import cuts_of, improve, whole
from parenvs.agents.pipeline.points import exact_points
from parenvs.cluster import Cluster
from parenvs.core.answer import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.cuts import Cuts
from parenvs.tasks.pipeline.points import PointSpace, coarse_pivots, distinct_pivots
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages
from parenvs.view.words import plural

_FEW = 24  # pivots of the first searches
_COARSE_SECONDS = 1.0  # of each search over few pivots
_POINT_SECONDS = 3.0  # of each search over points
_FEW_SHARE, _CLIMB_SHARE = 0.2, 0.4  # of the time limit: when both kinds of them end
_SURVEY_SECONDS = 0.2  # for the devices that are not the best, each number of them
_TURNS = (0.5, 2.0, 8.0, np.inf)  # seconds of the turns of the searches over all pivots


@dataclass
class Trial:
    """What is known of a shape.

    Attributes:
        pipeline: the shape: stages and cluster.
        bound: seconds; every plan of the shape that is shorter than the best known plan of all
            shapes takes at least this long.
        settled: whether no plan of the shape is shorter than the best known one.
        plan: the shortest plan found, or None.
        length: its seconds, infinite without a plan.
    """

    pipeline: Pipeline
    bound: float
    settled: bool = False
    plan: Cuts | None = None
    length: float = np.inf

    @property
    def devices(self) -> int:
        """Devices of the shape."""
        return self.pipeline.cluster.devices


@dataclass(frozen=True)
class Tried:
    """The shapes of one number of devices, in a line.

    Attributes:
        devices: the number.
        stages: of the shortest plan found on these devices, or None if none was found.
        length: its seconds, infinite without a plan.
        bound: seconds; no plan on these devices is shorter.
    """

    devices: int
    stages: int | None
    length: float
    bound: float

    def to_json(self) -> dict[str, Any]:
        """Return the line as an object of JSON types; what is infinite is None."""
        return {
            key: None if value == np.inf else value
            for key, value in (
                ("devices", self.devices),
                ("stages", self.stages),
                ("length_seconds", self.length),
                ("bound_seconds", self.bound),
            )
        }


@dataclass(frozen=True)
class Choice:
    """The shortest plan of all shapes.

    Attributes:
        answer: the plan, on its shape; ``proven`` and ``bound`` are over all shapes.
        tried: what is known of each number of devices, the most first.
        fewest: least number of stages that was asked for.
        devices: devices of the problem's cluster.
    """

    answer: Answer
    tried: tuple[Tried, ...]
    fewest: int
    devices: int

    @property
    def assumed(self) -> str:
        """What planners that cut at least once take as given, in words; empty if all can plan."""
        if self.fewest <= 1:
            return ""
        shape = self.answer.problem
        return (
            "stages and devices are those of the shortest plan of two stages or more: "
            f"{shape.stages} on {plural(shape.cluster.devices, 'device')} "
            "(--stages, --devices-used)"
        )


def exact_shape(
    pipeline: Pipeline,
    clusters: Sequence[Cluster] | None = None,
    fewest: int = 1,
    time_limit: float | None = None,
) -> Choice:
    """Find the shortest plan over all numbers of stages and over several clusters.

    Args:
        pipeline: the problem; its own stages do not count.
        clusters: parts of the problem's cluster (default: ``Cluster.parts``).
        fewest: least number of stages.
        time_limit: seconds after which the best plan found is returned without proof, with a valid
            ``bound``; the time it takes to find a first plan that fits is not limited.

    Raises:
        InfeasibleError: no plan of any shape fits the memory; says how many bytes one on the most
            devices lacks.
    """
    begin = time.perf_counter()
    parts = pipeline.cluster.parts() if clusters is None else clusters
    check_stages(pipeline.with_stages(fewest, parts[0]))
    run = _Run(pipeline, parts, fewest, begin, np.inf if time_limit is None else time_limit)
    run.search_few()
    if run.best is None:
        run.search_fitting()
    run.climb()
    run.search_all()
    run.survey()
    return run.choice()


class _Run:
    """The trials of a choice, and the best of them.

    Attributes:
        trials: every shape that may hold the best plan.
        best: the trial with the shortest plan, or None.
        evaluations: labels of all searches.
    """

    def __init__(
        self, pipeline: Pipeline, clusters: Sequence[Cluster], fewest: int, begin: float,
        time_limit: float,
    ) -> None:  # fmt: skip
        self.pipeline, self.fewest, self.clusters = pipeline, fewest, clusters
        self.begin, self.time_limit = begin, time_limit
        self.best: Trial | None = None
        self.trials: list[Trial] = []
        self.evaluations = 0
        self._pivots = distinct_pivots(pipeline)
        if fewest == 1:
            for cluster in clusters:
                self._try_one_stage(pipeline.with_stages(1, cluster))
        for cluster in clusters:
            self.trials += self._within(cluster)
        self.trials.sort(key=lambda trial: trial.bound)  # stable: fewer stages, more devices first

    @property
    def upper(self) -> float:
        """Seconds of the best plan."""
        return np.inf if self.best is None else self.best.length

    @property
    def deadline(self) -> float:
        """When the search ends."""
        return self.begin + self.time_limit

    def search_few(self) -> None:
        """Search all shapes over few pivots."""
        end = self.begin + _FEW_SHARE * self.time_limit
        for trial in self._open():
            self._search_coarse(trial, self.upper, end)

    def climb(self) -> None:
        """Search the best shape over points, and its neighbours in stages, until none is better."""
        end = self.begin + _CLIMB_SHARE * self.time_limit
        done: set[int] = set()
        centre = None
        while centre is not self.best:
            centre = self.best
            assert centre is not None
            for trial in self._open():
                step = abs(trial.pipeline.stages - centre.pipeline.stages)
                near = trial.devices == centre.devices and step <= 1
                if near and id(trial) not in done and time.perf_counter() < end:
                    done.add(id(trial))
                    self._search_points(trial)

    def search_fitting(self) -> None:
        """Find a first plan where the memory is so tight that few pivots allow none.

        What fits fewer devices fits more of them, so the most devices tell whether any plan fits.

        Raises:
            InfeasibleError: no plan of any shape fits.
        """
        limit = self.pipeline.memory_limit
        largest = [t for t in self._open() if t.pipeline.cluster == self.clusters[0]]
        if not self.pipeline.fractions:  # another number of devices may be divided better
            largest = list(self._open())
        for trial in largest:
            plan = plan_within(trial.pipeline, trial.pipeline.stages, limit)
            if plan is not None:
                self._keep(trial, improve(trial.pipeline, plan, deadline=self.deadline))
                return
        shapes = [t.pipeline for t in self.trials if t.pipeline.cluster == self.clusters[0]]
        shapes = shapes or [t.pipeline for t in self.trials]
        if not shapes:
            check_split(self.pipeline.with_stages(self.fewest, self.clusters[0]))
        shapes = [shape for shape in shapes if shape.can_split(shape.stages)] or shapes
        sample = [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
        lacking = [float(least_excess(shape).excess_bytes) for shape in sample]
        excess, shape = min(zip(lacking, sample, strict=True), key=lambda pair: pair[0])
        more = "; another number of stages does not fit either" if len(shapes) > 1 else ""
        raise InfeasibleError(f"{infeasible(shape, excess)}{more}")

    def search_all(self) -> None:
        """Search all shapes that are left over all pivots, in turns, until the time is over."""
        for seconds in _TURNS:
            for trial in self._open():
                now = time.perf_counter()
                if now > self.deadline:
                    return
                search = search_pivots(
                    trial.pipeline, self._pivots, self.upper, min(self.deadline, now + seconds)
                )
                self.evaluations += search.evaluations
                trial.bound = max(trial.bound, min(search.bound, self.upper))
                trial.settled = search.bound >= search.upper
                if search.best is not None:
                    self._keep(trial, search.best)

    def survey(self) -> None:
        """Look for good plans on the devices that are not the best, to tell how good they are."""
        for cluster in self.clusters:
            end = min(self.deadline, time.perf_counter() + _SURVEY_SECONDS)
            known = {t.pipeline.stages: t for t in self.trials if t.pipeline.cluster == cluster}
            upper = min((trial.length for trial in known.values()), default=np.inf)
            for stages in self._stages(cluster):
                shape = self.pipeline.with_stages(stages, cluster)
                lower = least_length(shape) * (1 - SLACK)
                if cluster == self._best_cluster or lower >= upper or time.perf_counter() > end:
                    break
                if stages not in known:
                    known[stages] = Trial(shape, lower, settled=True)
                    self.trials.append(known[stages])
                self._search_coarse(known[stages], upper, end)
                upper = min(upper, known[stages].length)

    def choice(self) -> Choice:
        """The best plan, and what is known of each number of devices."""
        assert self.best is not None and self.best.plan is not None
        bounds = [trial.bound for trial in self.trials if not self._is_out(trial)]
        bound = min(bounds) if bounds else None
        answer = answer_of(
            self.best.pipeline, self.best.plan, "exact", self.evaluations, self.begin, bound
        )
        tried = tuple(self._tried(cluster.devices) for cluster in self.clusters)
        return Choice(answer, tried, self.fewest, self.pipeline.cluster.devices)

    def _tried(self, devices: int) -> Tried:
        """The shapes of one number of devices, in a line."""
        trials = [trial for trial in self.trials if trial.devices == devices]
        shortest = min(trials, key=lambda trial: trial.length, default=None)
        bound = min((min(trial.bound, trial.length) for trial in trials), default=np.inf)
        if shortest is None or shortest.plan is None:
            return Tried(devices, None, np.inf, bound)
        return Tried(devices, shortest.pipeline.stages, shortest.length, bound)

    def _try_one_stage(self, shape: Pipeline) -> None:
        """Take the only plan of a shape of one stage, if it fits."""
        trial = Trial(shape, np.inf, settled=True)
        self.trials.append(trial)
        try:
            answer = one_stage(shape)
        except InfeasibleError:
            return
        self.evaluations += 1
        self._keep(trial, cuts_of(answer.plan))

    def _within(self, cluster: Cluster) -> Iterator[Trial]:
        """The shapes of two stages and more on a cluster; the first that is out is the last."""
        for stages in self._stages(cluster):
            shape = self.pipeline.with_stages(stages, cluster)
            trial = Trial(shape, least_length(shape) * (1 - SLACK))
            yield trial
            if self._is_out(trial):
                return

    def _stages(self, cluster: Cluster) -> list[int]:
        """The numbers of stages that a plan with cuts on a cluster can have."""
        max_stages = min(cluster.devices, int(self.pipeline.variable_sum[-1]))
        counts = range(max(self.fewest, 2), max_stages + 1)
        return [n for n in counts if self.pipeline.with_stages(n, cluster).can_split(n)]

    @property
    def _best_cluster(self) -> Cluster | None:
        """The cluster of the best plan."""
        return None if self.best is None else self.best.pipeline.cluster

    def _is_out(self, trial: Trial) -> bool:
        """Whether the trial cannot hold a plan shorter than the best."""
        return trial.settled or trial.bound >= self.upper * (1 - SLACK)

    def _open(self) -> Iterator[Trial]:
        """The trials that may hold a shorter plan; each is looked at when its turn comes."""
        return (trial for trial in self.trials if not self._is_out(trial))

    def _search_points(self, trial: Trial) -> None:
        """Look for a short plan of the trial's ``PointSpace``."""
        try:
            space = PointSpace.build(trial.pipeline, by_network=True)
        except InfeasibleError:  # too many stages, or the points allow no plan within the memory
            return
        answer = exact_points(space, time_limit=_POINT_SECONDS)
        self.evaluations += answer.evaluations
        plan = whole(trial.pipeline, cuts_of(answer.plan))
        if trial.pipeline.excess_bytes(*plan) <= 0:
            self._keep(trial, plan)

    def _search_coarse(self, trial: Trial, upper: float, end: float) -> None:
        """Look for a plan shorter than ``upper`` over few pivots, and improve it."""
        now = time.perf_counter()
        if now > end or len(self._pivots) <= _FEW:
            return
        pivots = coarse_pivots(trial.pipeline, self._pivots, _FEW)
        search = search_pivots(trial.pipeline, pivots, upper, min(end, now + _COARSE_SECONDS))
        self.evaluations += search.evaluations
        if search.best is not None:
            self._keep(trial, improve(trial.pipeline, search.best, deadline=end))

    def _keep(self, trial: Trial, plan: Cuts) -> None:
        """Put a plan into its trial, and the trial into ``best`` if it is the shortest."""
        length = float(trial.pipeline.length(*plan))
        if length < trial.length:
            trial.plan, trial.length = plan, length
        if length < self.upper:
            self.best = trial
