"""The shape of a pipeline, chosen with proof: how many stages, on how many of the devices.

A *shape* is a number of stages on a part of a cluster (``Cluster.parts``): a ``Pipeline``. More
stages hide less of the pipeline's start, more devices make all-reduces slower, so that neither is
best at its largest. ``exact_shape`` searches many shapes for the one plan that is shortest of all.

1. A shape of one stage has one plan; its length is a formula.
2. A shape whose least length by its work alone (``bounds.least_length``) reaches the best plan so
   far is out. That bound grows with the stages, so most shapes are never looked at.
3. Of the others, some are searched by a few sweeps first, the most promising one
   first; then the best one, and others about it in stages, by more sweeps. So the best plan is soon
   so short that the searches over all pivots, each for shorter plans only, end quickly.
4. Searches over all pivots take turns of growing length, so that no single one uses up the time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from parenvs.agents.pipeline.bounds import SLACK, least_lengths
from parenvs.agents.pipeline.exact import (
    infeasible,
    is_large,
    leanest_plan,
    one_stage,
    plan_within,
    prepare,
    proven_answer,
)
from parenvs.agents.pipeline.labels import LabelSearch
from parenvs.agents.pipeline.search import search
from parenvs.cluster import Cluster
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.plan import stage_counts
from parenvs.tasks.pipeline.problem import Pipeline, check_split, check_stages
from parenvs.tasks.pipeline.spaces import Cuts, cuts_of, distinct_pivots
from parenvs.view.words import plural

PARTS = 128
"""Parts of a cluster among which ``exact_shape`` chooses, at most."""
_LADDER = frozenset(x for k in range(1, 14) for x in (2**k, 3 * 2 ** (k - 1)))
"""Numbers of stages that are tried first."""
_FEWER = 0.75
"""Devices of the next part of the cluster that is tried first, relative to the last one."""
# Sweeps of a search: of all shapes, of those near the best.
_QUICK, _THOROUGH = 16, 120
# Of the time limit: when both kinds of them end.
_FEW_SHARE, _CLIMB_SHARE = 0.2, 0.5
# For the devices that are not the best, each number of them.
_SURVEY_SECONDS = 0.2
# Seconds of the turns of the searches over all pivots.
_TURNS = (0.5, 2.0, 8.0, np.inf)


@dataclass
class Trial:
    """What is known of a shape.

    Attributes:
        problem: the problem, of any shape.
        bound: seconds; every plan of the shape that is shorter than the best known plan of all
            shapes takes at least this long.
        settled: whether no plan of the shape is shorter than the best known one.
        plan: the shortest plan found, or None.
        length: its seconds, infinite without a plan.
    """

    problem: Pipeline
    stages: int
    cluster: Cluster
    bound: float
    settled: bool = False
    plan: Cuts | None = None
    length: float = np.inf

    @property
    def devices(self) -> int:
        """Devices of the shape."""
        return self.cluster.devices

    @cached_property
    def pipeline(self) -> Pipeline:
        """The problem of the shape."""
        return self.problem.with_stages(self.stages, self.cluster)


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
        content = {
            "devices": self.devices, "stages": self.stages,
            "length_seconds": self.length, "bound_seconds": self.bound,
        }  # fmt: skip
        return {key: None if value == np.inf else value for key, value in content.items()}


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
        clusters: parts of the problem's cluster (default: ``Cluster.parts``); of more than
            ``PARTS``, so many, evenly spread, count.
        fewest: least number of stages.
        time_limit: seconds after which the best plan found is returned without proof, with a valid
            ``bound``; the time it takes to find a first plan that fits is not limited.

    Raises:
        InfeasibleError: no plan of any shape fits the memory; says how many bytes one on the most
            devices lacks.
    """
    prepare()
    begin = time.perf_counter()
    parts = pipeline.cluster.parts() if clusters is None else clusters
    if len(parts) > PARTS:
        parts = [parts[i] for i in np.linspace(0, len(parts) - 1, PARTS).astype(np.int64)]
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
    """The trials of a choice: every shape that may hold the best plan, and the best of them."""

    def __init__(
        self, pipeline: Pipeline, clusters: Sequence[Cluster], fewest: int, begin: float,
        time_limit: float,
    ) -> None:  # fmt: skip
        self.pipeline, self.fewest, self.clusters = pipeline, fewest, clusters
        self.begin, self.time_limit, self.deadline = begin, time_limit, begin + time_limit
        self.best: Trial | None = None
        self.trials: list[Trial] = []
        self.evaluations = 0
        self._pivots = distinct_pivots(pipeline)
        if fewest == 1:
            for cluster in clusters:
                self._add_one_stage(cluster)
        for cluster in clusters:
            for trial in self._trials_on(cluster):
                self.trials.append(trial)
                if self._is_excluded(trial):
                    break  # so are those of more stages
        self.trials.sort(key=lambda trial: trial.bound)  # stable: fewer stages, more devices first

    @property
    def upper(self) -> float:
        """Seconds of the best plan."""
        return np.inf if self.best is None else self.best.length

    def search_few(self) -> None:
        """Look for plans of few sweeps; of stages and devices, in steps that grow with them."""
        end = self.begin + _FEW_SHARE * self.time_limit
        devices: list[int] = []
        for cluster in self.clusters:
            if not devices or cluster.devices <= _FEWER * devices[-1]:
                devices.append(cluster.devices)
        for trial in self._open_trials():
            if trial.stages in _LADDER and trial.devices in devices:
                self._search_sweeps(trial, _QUICK, end)

    def climb(self) -> None:
        """Search the best shape, and others in stages, ever closer, until none is better."""
        end = self.begin + _CLIMB_SHARE * self.time_limit
        searched: set[int] = set()
        assert self.best is not None
        # Length changes slowly with the stages: large steps first, halved where none gains.
        step = max(self.best.stages // 4, 1)
        while step:
            center = self.best
            for trial in self._open_trials():
                distance = abs(trial.stages - center.stages)
                is_neighbor = trial.devices == center.devices and distance in (0, step)
                if is_neighbor and id(trial) not in searched:
                    searched.add(id(trial))
                    self._search_sweeps(trial, _THOROUGH, end)
            if self.best is center:
                step //= 2
        if self.best.stages > 1:
            self._search_sweeps(self.best, np.inf, end)

    def search_fitting(self) -> None:
        """Find a first plan where the memory is so tight that few pivots allow none.

        What fits fewer devices fits more of them, so the most devices tell whether any plan fits.

        Raises:
            InfeasibleError: no plan of any shape fits.
        """
        limit = self.pipeline.memory_limit
        largest = [trial for trial in self.trials if trial.cluster == self.clusters[0]]
        # Where devices share no sample, fewer of them may be divided better.
        for trial in largest if self.pipeline.fractions else self.trials:
            plan = None if self._is_excluded(trial) else plan_within(trial.pipeline, limit)
            if plan is not None:
                self._update_best(trial, plan)
                return
        shapes = [trial.pipeline for trial in largest or self.trials]
        if not shapes:
            check_split(self.pipeline.with_stages(self.fewest, self.clusters[0]))
        shapes = [shape for shape in shapes if shape.can_split(shape.stages)] or shapes
        examples = [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
        excesses = [excess for _, excess in map(leanest_plan, examples)]
        excess, shape = min(zip(excesses, examples, strict=True), key=itemgetter(0))
        hint = "; another number of stages does not fit either" if len(shapes) > 1 else ""
        raise InfeasibleError(f"{infeasible(shape, excess)}{hint}")

    def search_all(self) -> None:
        """Search all shapes that are left over all pivots, in turns, until the time is over."""
        for seconds in _TURNS:
            for trial in self._open_trials():
                begin = time.perf_counter()
                if begin > self.deadline:
                    return
                end = min(self.deadline, begin + seconds)
                search = LabelSearch(trial.pipeline, self._pivots, self.upper, end)
                search.run()
                self.evaluations += search.evaluations
                trial.bound = max(trial.bound, min(search.bound, self.upper))
                trial.settled = search.bound >= search.upper
                if search.best is not None:
                    self._update_best(trial, search.best)

    def survey(self) -> None:
        """Look for good plans on the devices that are not the best, to tell how good they are."""
        best = None if self.best is None else self.best.cluster
        trials = self._by_devices()
        # The table of shapes says how near plans on other devices come.
        for cluster in (x for x in self.clusters if x != best):
            end = min(self.deadline, time.perf_counter() + _SURVEY_SECONDS)
            by_stages = {trial.stages: trial for trial in trials.get(cluster.devices, ())}
            upper = min((trial.length for trial in by_stages.values()), default=np.inf)
            for trial in self._trials_on(cluster):
                if trial.bound >= upper or time.perf_counter() > end:
                    break
                if trial.stages not in _LADDER:
                    continue
                if trial.stages not in by_stages:
                    by_stages[trial.stages] = replace(trial, settled=True)
                    self.trials.append(by_stages[trial.stages])
                self._search_sweeps(by_stages[trial.stages], _QUICK, end)
                upper = min(upper, by_stages[trial.stages].length)

    def choice(self) -> Choice:
        """The best plan, and what is known of each number of devices."""
        assert self.best is not None and self.best.plan is not None
        bounds = [trial.bound for trial in self.trials if not self._is_excluded(trial)]
        bound = min(bounds) if bounds else None
        answer = proven_answer(self.best.pipeline, self.best.plan, self.evaluations, bound)
        trials, counts = self._by_devices(), [x.devices for x in self.clusters]
        tried = tuple(self._tried_on(count, trials.get(count, [])) for count in counts)
        return Choice(answer, tried, self.fewest, self.pipeline.cluster.devices)

    def _by_devices(self) -> dict[int, list[Trial]]:
        # Grouped in one pass: there may be 100,000 shapes on hundreds of numbers of devices.
        groups: dict[int, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.devices, []).append(trial)
        return groups

    def _tried_on(self, devices: int, trials: list[Trial]) -> Tried:
        bound = min((min(trial.bound, trial.length) for trial in trials), default=np.inf)
        shortest = min(trials, key=lambda trial: trial.length, default=None)
        if shortest is None or shortest.plan is None:
            return Tried(devices, None, np.inf, bound)
        return Tried(devices, shortest.stages, shortest.length, bound)

    def _add_one_stage(self, cluster: Cluster) -> None:
        trial = Trial(self.pipeline, 1, cluster, np.inf, settled=True)
        self.trials.append(trial)
        with suppress(InfeasibleError):
            answer = one_stage(trial.pipeline)
            self.evaluations += 1
            self._update_best(trial, cuts_of(answer.plan))

    def _trials_on(self, cluster: Cluster) -> Iterator[Trial]:
        shape = self.pipeline.with_stages(1, cluster)
        counts: Sequence[int] = range(1, min(cluster.devices, int(shape.variable_sum[-1])) + 1)
        if not shape.fractions:
            sizes = np.flatnonzero(shape.is_group).tolist()
            counts = stage_counts(cluster.devices, counts[-1], sizes)
        bounds = least_lengths(shape, cluster.devices) * (1 - SLACK)
        for stages in counts:
            if stages >= max(self.fewest, 2):
                yield Trial(self.pipeline, stages, cluster, float(bounds[stages - 1]))

    def _is_excluded(self, trial: Trial) -> bool:
        return trial.settled or trial.bound >= self.upper * (1 - SLACK)

    def _open_trials(self) -> Iterator[Trial]:
        return (trial for trial in self.trials if not self._is_excluded(trial))

    def _search_sweeps(self, trial: Trial, sweeps: float, end: float) -> None:
        if time.perf_counter() < end and is_large(trial.pipeline, self._pivots):
            plan = search(trial.pipeline, trial.plan, last=sweeps, deadline=end)
            if plan is not None:
                self._update_best(trial, plan)

    def _update_best(self, trial: Trial, plan: Cuts) -> None:
        length = float(trial.pipeline.length(*plan))
        if length < trial.length:
            trial.plan, trial.length = plan, length
        if length < self.upper:
            self.best = trial
