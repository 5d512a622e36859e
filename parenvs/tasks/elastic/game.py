"""``ElasticPlan-v0``: choose a plan again and again while nodes leave and come."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from parenvs.core.game import EVERY, Game, Rows
from parenvs.core.groups import Groups
from parenvs.core.plan import ILLEGAL
from parenvs.core.sets import family_named
from parenvs.core.source import ORDERS, Drawn, Fixed, Source, Stream, is_sequential
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.elastic.library import MAX_PLANS
from parenvs.tasks.elastic.load import ELASTIC_SETS, elastic_rows, load_elastic
from parenvs.tasks.elastic.problem import SECONDS, Elastic
from parenvs.tasks.elastic.run import Run
from parenvs.tasks.elastic.tables import CHANGE_COLUMNS, PLAN_COLUMNS, Tables
from parenvs.tasks.elastic.turns import NUMBERS, Turns


class Job(NamedTuple):
    """A problem and its course, as an episode plays them.

    Attributes:
        tables: the problems that it is one of.
        number: its number among them.
        drawn: what decides its course, of ``Elastic.draw``; None where nothing is random.
    """

    tables: Tables
    number: int
    drawn: np.ndarray | None


class ElasticPlan(Game):
    """Choose a plan again and again while nodes leave and come.

    ## Description
    A job trains on nodes that leave and come: spot machines, or shares of a cluster. At every
    interval (a minute) a plan is chosen for the nodes that are there: tensor, pipeline and data
    degrees, and nodes kept as spares. A change costs seconds, as the state of the model has to be
    moved (``parenvs.tasks.elastic.movement``). A node in use that leaves stops the job, unless a
    spare is ready; if no replica is left of a part of the state, the work since the last checkpoint
    is lost. What will happen is not known, so a plan made beforehand is no answer: a policy is
    (``docs/elastic.md``).

    ## Action Space
    ``Discrete(64)``: the number of a candidate plan; 0 waits. Choosing the plan in force again
    keeps it, and after a loss repairs it. The mask of legal actions is ``info["action_mask"]``
    (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``: plans that the nodes are enough for, spares included.

    ## Observation Space
    ``Dict``, float32, all in [0, 1]. Rows beyond the last candidate are 0.

    * ``plans``: (64, 6) of each candidate: log2(1 + degree) / 7 of T, P and D, nodes that train
      / 64, spares / 2, samples a second / those of the fastest candidate.
    * ``change``: (64, 3) of each candidate, from the plan in force and what happened to it: seconds
      of the change / interval, at most 1; bytes that the busiest node sends / bytes of the state;
      1 for the plan in force.
    * ``numbers``: (16,): nodes there, joined, left, in use, spares, idle (all / 64); samples a
      second of the plan in force / the fastest; nodes in use that were lost / 4; spares are ready;
      state is lost; intervals since the state was safe / those between checkpoints; intervals since
      the last event / 60, at most 1; share of the episode that remains; running mean of the
      departures of a node; of joins / 64; 1 / intervals of an episode.

    ## Rewards
    Samples that the interval trains, over those of all intervals of an episode with the fastest
    plan and free changes (``Elastic.ideal``: of a trace its own, of a chain the expected number).
    The return is the share of that ideal. An interval can earn less than nothing: a change is paid
    for at once, and lost work is taken back. An illegal action pays -1 and ends the episode.

    ## Starting State
    Nothing runs; the first choice starts from a checkpoint. The course of the nodes is drawn by
    ``reset`` from the environment's generator, and whatever is chosen, the same seed gives the same
    course (common random numbers).

    ## Episode End
    After the last interval (240 minutes of a chain, the length of a trace) or an illegal action. No
    truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; after the last
    interval ``samples`` and ``share``, that of the ideal of the very course.

    ## Arguments
    * ``instance``: a set (``"elastic-train"``, ``"elastic-validation"``, ``"elastic-test"``), from
      which each episode draws a chain; one problem of it (``"elastic-test/bulk-gpt-1.5b-003"``);
      or a trace: ``"p3"``, ``"g4dn"`` or the path of a ``.csv`` file, ``seconds,event,node`` or
      ``seconds,nodes``. ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``model``: of a trace (default ``"gpt-1.5b"``), or the only one of a set to draw from.
    * ``family``: of a set: only its problems of this family, like ``"bulk-gpt-1.5b"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on. Courses are drawn all the same.
    * ``interval``: seconds, of a trace.
    * ``cluster``, ``batch``: of a trace: candidates by the cost model on such servers
      (``"16x8:a100"``), for any model; without them measured steps of ``gpt-1.5b`` or
      ``bert-large``.
    * ``problem``: a ``parenvs.tasks.elastic.problem.Elastic``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("ElasticPlan-v0", num_envs=64)``, see ``parenvs.envs.vector.GameVectorEnv``.

    ## Version History
    * v0: first version.
    """

    options = ("instance",)

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str = ELASTIC_SETS[0],
        model: str | None = None,
        interval: float = SECONDS,
        cluster: str | None = None,
        batch: int | None = None,
        problem: Elastic | None = None,
        family: str | None = None,
        order: str = ORDERS[0],
    ) -> None:
        """Load the problems; see the class for the arguments."""
        super().__init__(count)
        self._settings: dict[str, Any] = {
            "model": model, "interval": interval, "cluster": cluster, "batch": batch
        }  # fmt: skip
        self.source = source_of(instance, problem, family, order, **self._settings)
        self.home = Turns(count, self.source.preview().tables)
        self.groups = Groups(count, self.home)
        self._jobs: list[Job] = [None] * count  # type: ignore[list-item]
        self._complete = np.zeros(count, dtype=np.bool_)
        self._plans = np.zeros((count, MAX_PLANS, len(PLAN_COLUMNS)), dtype=np.float32)
        self.action_space = spaces.Discrete(MAX_PLANS)
        self.observation_space = spaces.Dict(
            {
                key: spaces.Box(0.0, 1.0, shape, np.float32)
                for key, shape in (
                    ("plans", (MAX_PLANS, len(PLAN_COLUMNS))),
                    ("change", (MAX_PLANS, len(CHANGE_COLUMNS))),
                    ("numbers", (len(NUMBERS),)),
                )
            }
        )

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``: plans that the nodes are enough for."""
        if self.groups.only:
            return self.home.masks() > 0
        legal = np.empty((self.count, MAX_PLANS), dtype=np.bool_)
        for turns, rows, _ in self.groups.of(EVERY):
            legal[rows] = turns.masks()[rows] > 0
        return legal

    def put(self, rows: Rows, problem: Job) -> None:
        """See ``Game.put``."""
        self.groups.give(
            rows,
            lambda turns: turns.tables is problem.tables,
            lambda: Turns(self.count, problem.tables),
        )
        for row in self._rows[rows].tolist():
            self._jobs[row] = problem

    def start(self, rows: Rows) -> None:
        """See ``Game.start``."""
        for turns, group, _ in self.groups.of(rows):
            indices = self._rows[group].tolist()
            jobs = [self._jobs[row] for row in indices]
            turns.start(group, [job.number for job in jobs], [job.drawn for job in jobs])
            self._plans[group] = turns.tables.plans[turns.row[group]]
        self.over[rows] = self._complete[rows] = False

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: choose the plans of an interval."""
        rewards = np.full(len(actions), ILLEGAL)
        columns = self.within(actions)
        for turns, group, positions in self.groups.of(rows):
            indices, chosen = self._rows[group], columns[positions]
            legal = turns.legal(indices, chosen)
            if not legal.all():
                self.over[indices[~legal]] = True
                indices, chosen = indices[legal], chosen[legal]
            if not indices.size:
                continue
            paid, complete = turns.step(indices, chosen)
            rewards[positions if legal.all() else np.arange(len(actions))[positions][legal]] = paid
            self.over[indices] = self._complete[indices] = complete
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        groups = list(self.groups.of(rows))
        if len(groups) == 1:
            return {"plans": self._plans[rows], **groups[0][0].observation(rows)}
        observed: dict[str, np.ndarray] = {"plans": self._plans[rows]}
        for turns, group, positions in groups:
            for key, values in turns.observation(group).items():
                whole = observed.setdefault(
                    key, np.empty((len(observed["plans"]), *values.shape[1:]), values.dtype)
                )
                whole[positions] = values
        return observed

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``samples`` and ``share``, that of the ideal of the very course."""
        indices = self._rows[rows]
        figures = {name: np.full(len(indices), np.nan) for name in ("samples", "share")}
        for turns, group, positions in self.groups.of(indices[self._complete[indices]]):
            at = np.flatnonzero(self._complete[indices])[positions]
            figures["samples"][at] = turns.total[group]
            figures["share"][at] = turns.shares(self._rows[group])
        return figures

    def plan(self, row: int) -> Run:  # type: ignore[override]
        """Return the plans chosen so far, with what they earned."""
        return self.groups.part(row).run(row)

    def problem(self, row: int) -> Elastic:
        """See ``Game.problem``."""
        job = self._jobs[row]
        return job.tables.problems[job.number]

    def view(self, row: int) -> Run:
        """See ``Game.view``."""
        return self.plan(row)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; of the longest, where problems differ."""
        return self.home.size

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        instance = options["instance"]
        first = instance.split("/")[0] if isinstance(instance, str) else ""
        return source_of(instance, **({} if first in ELASTIC_SETS else self._settings))


class ElasticPlanEnv(GameEnv, game=ElasticPlan):
    """A single environment of ``ElasticPlan``."""


class ElasticPlanVectorEnv(GameVectorEnv, single=ElasticPlanEnv):
    """A native batch of ``ElasticPlan``."""


def source_of(
    instance: str = ELASTIC_SETS[0],
    problem: Elastic | None = None,
    family: str | None = None,
    order: str = ORDERS[0],
    model: str | None = None,
    interval: float = SECONDS,
    cluster: str | None = None,
    batch: int | None = None,
) -> Source:
    """Return the source of jobs that the arguments of ``ElasticPlan`` name.

    Raises:
        ParenvsError: an argument is wrong.
    """
    is_set = problem is None and instance in ELASTIC_SETS
    for name, is_given in (("order", is_sequential(order)), ("family", family is not None)):
        if is_given and not is_set:
            raise ParenvsError(
                f"{name}: it is of a set, like instance='elastic-test'; leave it out"
            )
    if is_set:
        for name, value in (("cluster", cluster), ("batch", batch)):
            if value is not None or interval != SECONDS:
                raise ParenvsError(
                    f"{name if value is not None else 'interval'}: problems of {instance} have "
                    "settings of their own; leave it out"
                )
        tables = _of_set(instance, model, family)
    elif problem is not None:
        tables = Tables.of([problem])
    else:
        tables = Tables.of([load_elastic(instance, model, interval, cluster, batch)])
    if not any(each.is_random for each in tables.problems):
        return Fixed(Job(tables, 0, None))
    return Drawn(partial(_drawn, tables, is_sequential(order)))


def _drawn(tables: Tables, sequential: bool, stream: Stream) -> Job:
    """Draw one of some problems, or take the next, and draw its course."""
    count = len(tables.problems)
    if sequential:
        number = stream.number % count
    else:
        number = int(stream.rng.integers(count)) if count > 1 else 0
    return Job(tables, number, tables.problems[number].draw(stream.rng))


@lru_cache(maxsize=8)
def _of_set(name: str, model: str | None, family: str | None) -> Tables:
    """Return the problems of a set, or those of it with a model or of a family."""
    rows = elastic_rows(name)
    names = [x for x, row in rows.items() if model is None or row.model == model]
    if not names:
        known = sorted({row.model for row in rows.values()})
        raise ParenvsError(f"model: {name} has none of {model!r}; known: {', '.join(known)}")
    if family is not None:
        families = list(dict.fromkeys(map(family_named, names)))
        names = [x for x in names if family_named(x) == family]
        if not names:
            hint = did_you_mean(family, families)
            raise ParenvsError(
                f"family: {name} has none of {shown(family)}{hint}; known: {', '.join(families)}"
            )
    return Tables.of([load_elastic(f"{name}/{x}") for x in names])
