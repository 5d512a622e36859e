"""``ElasticPlan-v2``: choose a plan again and again while nodes leave and come, or save the state.

Courses are fixed before an episode begins, so returns are relative to the hindsight optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.core import game as games
from parenvs.core.sets import chosen, family_named
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.elastic import problems
from parenvs.tasks.elastic.library import (
    CHECKPOINT,
    EVENTS,
    GONE,
    LOST,
    MAX_PLANS,
    MAX_SPARES,
    READY,
    Array,
    Library,
    departures,
    event_chances,
    happened,
)
from parenvs.tasks.elastic.problem import (
    INTERVALS,
    MAX_NODES,
    SECONDS,
    Course,
    Elastic,
    ElasticPlan,
    KnownSamples,
    Moment,
    Run,
    cost_of,
    known_samples,
    replay,
)
from parenvs.tasks.elastic.problems import ELASTIC_SETS, FAMILIES, MEASURED, WINDOWS, load_elastic

HORIZON = 10
"""Intervals in which a change has to pay off."""
DEGREES = 128.0
"""Degrees are shown as log2(1 + degree) over log2 of this."""
SHIFTS = (-1, -2, -4, 1, 2, 4)
"""Nodes lost and joined for which the best next plan is judged."""
RATES = np.geomspace(1e-4, 0.5, 96)
"""Probabilities that a node leaves in an interval, for which chances are worked out."""
_CUTS = np.sqrt(RATES[1:] * RATES[:-1])


class Outlook:
    """The tables of one library at one length of intervals.

    Attributes:
        earned: (EVENTS, 64, 64) float64, see ``Elastic.earned``.
        lost_samples: (64,) float64.
        saved: (64,) float64.
        used, held: (64,) int64, nodes that train, and the same with spares.
        borders: (64, 65) int64, see ``Library.borders``; the last is repeated.
        fits: (65, 64) bool, whether nodes are enough for a plan.
        change: (EVENTS, 64, 64, 2) float32, seconds of a change over those of an interval, and
            bytes that the busiest node sends over those of the state.
        restart: (64,) float64, intervals of a restart that reads a checkpoint.
        save: intervals in which training waits for a checkpoint.
    """

    def __init__(self, library: Library, seconds: float) -> None:
        self.library, self.count, costs = library, len(library), library.costs
        count, (taken, egress) = self.count, library.tables
        self.every, self.save = costs.every, costs.save / seconds
        self.earned = _padded((seconds - taken) * library.rate, EVENTS, MAX_PLANS, MAX_PLANS)
        self.lost_samples = _padded(seconds * library.rate, MAX_PLANS)
        self.saved = _padded(costs.save * library.rate, MAX_PLANS)
        self.used = _padded(library.used, MAX_PLANS)
        self.held = _padded(library.needed, MAX_PLANS)
        # Repeated ends make empty groups, which can lose nothing.
        missing = MAX_NODES + 1 - library.borders.shape[1]
        borders = np.pad(library.borders, ((0, 0), (0, missing)), "edge")
        self.borders = _padded(borders, MAX_PLANS, MAX_NODES + 1)
        self.fits = np.zeros((MAX_NODES + 1, MAX_PLANS), np.bool_)
        self.fits[:, :count] = library.needed <= np.arange(MAX_NODES + 1)[:, None]
        change = np.stack([taken / seconds, egress / library.state.bytes], axis=-1)
        self.change = _padded(change, EVENTS, MAX_PLANS, MAX_PLANS, 2).astype(np.float32)
        self.restart = self.change[0, 0, :, 0].astype(np.float64)

    @cached_property
    def plan_features(self) -> Array:
        """(64, 6) float32 of each plan: degrees, nodes, spares and rate."""
        library = self.library
        result = np.zeros((MAX_PLANS, 6))
        degrees = np.array([plan.degrees for plan in library.candidates])
        result[1 : self.count, :3] = np.log2(1.0 + degrees) / np.log2(DEGREES)
        result[: self.count, 3] = library.used / MAX_NODES
        result[: self.count, 4] = library.spares / MAX_SPARES
        result[: self.count, 5] = self.rate
        return result.astype(np.float32)

    @property
    def rate(self) -> Array:
        """(K,) samples a second over those of the fastest plan."""
        rate = self.library.rate
        return rate / rate.max()

    @cached_property
    def chances(self) -> Array:
        """(len(RATES), 64, 3) float32, probabilities in an interval by the rate of departures.

        That a node in use leaves; that one does, and no spare is ready or a part of the state is
        lost; that a part of the state is lost.
        """
        result = np.zeros((len(RATES), MAX_PLANS, 3), np.float32)
        for row, leave in enumerate(RATES.tolist()):
            chances = event_chances(self.library, leave)
            hit, ready = chances[1:].sum(axis=0), chances[READY + 1 : GONE].sum(axis=0)
            result[row, : self.count] = np.stack([hit, hit - ready, chances[GONE]], axis=1)
        return result

    @cached_property
    def look_ahead(self) -> Array:
        """(65, 64, 6) float32, the best net rate after ``SHIFTS``, by nodes now and plan.

        A plan's net rate is its samples a second without the seconds that the change to it takes of
        ``HORIZON`` intervals, over the rate of the fastest. Nodes that are lost are of the plan,
        and of as different parts of its state as there are.
        """
        count, library = self.count, self.library
        # A change that takes all of the horizon leaves nothing, not less.
        net = self.rate * np.maximum(1.0 - self.change[:, :count, :count, 0] / HORIZON, 0.0)
        best = np.stack([(net * fits).max(axis=2) for fits in self.fits[:, :count]], axis=2)
        result = np.zeros((MAX_NODES + 1, MAX_PLANS, len(SHIFTS)), np.float32)
        nodes, plans = np.arange(MAX_NODES + 1)[:, None], np.arange(count)
        # Of G groups of R replicas at most G (R - 1) nodes can leave safely.
        safe = library.used - library.used // library.replicas
        for column, shift in enumerate(SHIFTS):
            event = np.where(library.spares >= -shift, READY - shift, min(-shift, LOST))
            event = np.where(-shift > safe, GONE, event)
            # Nothing happens to waiting, nor to a plan that nodes join.
            event *= (plans > 0) & (shift < 0)
            later = nodes + shift
            result[:, :count, column] = best[event, plans, later.clip(0, MAX_NODES)] * (later >= 0)
        return result


outlook = lru_cache(maxsize=16)(Outlook)


def _padded(array: Array, *shape: int) -> Array:
    result = np.zeros(shape, array.dtype)
    result[tuple(slice(length) for length in array.shape)] = array
    return result


ACTIONS = MAX_PLANS + 1
"""Plans, and ``CHECKPOINT``."""
MEMORIES = (10, 60, 240)
"""Intervals that the means of departures and joins reach back."""
FORGETTING = 1.0 - 1.0 / np.array(MEMORIES)[:, None, None]
"""What an interval leaves of them."""
BELIEVED = 2
"""Number of the memory whose departures the rule of column 0 believes."""
CAUTION = 0.3
"""Weight of the risk in the rule of column 0.

Chosen on the problem pool.
"""
SHARP = 30.0
"""What column 0 gives for an action that is worse by the fastest plan's rate."""
QUIET = 60
"""Intervals since the last event beyond which they are not told apart."""
SCALE = 20.0
"""Factor of departures in the context: one node of 20 in an interval is 1."""
KEPT = 16_384
"""Jobs that are kept, more than the bank has."""


class Job(NamedTuple):
    """A problem with the course of an episode.

    Attributes:
        problem: the problem, in which checkpoints can be chosen.
        known: samples of hindsight and of the fastest plans.
        seed: seed of the course.
    """

    problem: Elastic
    course: Course
    known: KnownSamples
    seed: int = 0

    @classmethod
    def of(cls, problem: Elastic, seed: int = 0) -> Job:
        """Prepare a problem on the course of a seed.

        Raises:
            InfeasibleError: no plan earns anything on the course.
        """
        # Action 64 needs it, whatever problem is given.
        if not problem.checkpoints:
            problem = replace(problem, checkpoints=True)
        course = problem.drawn(seed)
        return cls(problem, course, known_samples(problem, course), seed)


class ElasticChoice(games.RowGame):
    """Choose a plan again and again while nodes leave and come, or save the state.

    ## Description
    A job trains on nodes that leave and come: spot machines, or shares of a cluster. At every
    interval (a minute) a plan is chosen for the nodes that are there: tensor, pipeline and data
    degrees, and nodes kept as spares. A change costs seconds, as the state of the model has to be
    moved (``parenvs.tasks.elastic.movement``). A node in use that leaves stops the job, unless a
    spare is ready; if no replica is left of a part of the state, the work since the state was safe
    is lost. A change leaves the state safe, and so does a checkpoint: one is written every ten
    intervals without a change, and an action has one written now. What will happen is not known,
    so a plan made beforehand is no answer: a policy is (``docs/elastic.md``).

    ## Action Space
    ``Discrete(65)``: the number of a candidate plan; 0 waits; 64 keeps the plan in force and has a
    checkpoint written at the end of the interval. Choosing the plan in force keeps it, and after a
    loss repairs it. Legal are plans that the nodes are enough for, spares included, and 64 if a
    whole plan is in force and no checkpoint is due anyway.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.game.RowGame``.

    * ``actions``: (65, 20) float32: ``rule``, ``seconds``, ``bytes``, ``hit``, ``stop``, ``lost``,
      ``lose_1``, ``lose_2``, ``lose_4``, ``join_1``, ``join_2``, ``join_4``, ``tensor``,
      ``pipeline``, ``data``, ``nodes``, ``spares``, ``rate``, ``current``, ``checkpoint``; with
      ``rows="bare"`` the last eight. To wait is a row of zeros but for what looks ahead.
    * ``context``: (19,) float32: ``there``, ``joined``, ``left``, ``used``, ``ready_nodes``,
      ``idle``, ``speed``, ``broken``, ``ready``, ``gone``, ``since``, ``quiet``, ``remaining``,
      ``leaving_10``, ``leaving_60``, ``leaving_240``, ``joining``, ``expected``, ``episode``.
    * ``action_mask``: (65,) int8.

    ## Rewards
    Their sum is log(samples / those of hindsight), which knows the course beforehand, so that no
    policy exceeds it. Less than half of what hindsight trains in a mean interval counts as that: of
    S intervals the sum is at least -log(2 S). A turn pays what it changes of log((samples so far +
    those to come) / those of hindsight): those to come are hindsight's share of the fastest plans'
    on the nodes of the intervals left. An illegal action ends the episode and leaves -log(2 S) - 1.

    ## Starting State
    Nothing runs; the first choice starts from a checkpoint. The job is one of the bank, or the one
    that arguments name; whatever is chosen, the same job has the same course.

    ## Episode End
    After the last interval (240 minutes of the bank, 120 of a window, the length of a trace) or an
    illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, seconds of the course per sample (inf of none), and of the problem ``start`` (the
    fastest plan at each interval), ``reference`` and ``bound`` (hindsight, both), and ``gap``.

    ## Arguments
    * ``instance``: None plays the bank, which is the same everywhere; ``"elastic-windows"`` plays
      windows of the public traces; a set of chains (``"elastic-validation"``, ``"elastic-test"``)
      draws a course of each; the name of a problem (``"elastic-windows/p3-gpt-1.5b-012"``, or of a
      drawn one), ``"p3"``, ``"g4dn"`` or the path of a ``.csv`` file gives that one at every reset.
      ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``family``: of the bank or of fresh draws: ``"independent"``, ``"bulk"``, ``"daynight"``,
      ``"growth"``, ``"quiet"``, ``"bursts"`` or ``"gone"`` (None: all); of a set: only its problems
      of this family, like ``"p3-gpt-1.5b"``. To leave one trace out, train on the windows of the
      other.
    * ``model``: ``"gpt-1.5b"`` or ``"bert-large"`` (None: both); of a trace any, see ``cluster``.
    * ``fresh``: with True each reset draws a new course and works out its hindsight, in 20 ms.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``interval``, ``cluster``, ``batch``: of a trace, as in ``parenvs.problem``.
    * ``problem``: a ``parenvs.tasks.elastic.problem.Elastic``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("ElasticPlan-v2", num_envs=64)``, see ``parenvs.envs.env.GameVectorEnv``.

    ## Version History
    * v2: returns are not cut at log 0.2, drawn courses have seeds, ``judge`` takes ``plan()``.
    * v1: rows, a checkpoint by choice, returns as logarithms, a bank, windows of traces.
    """

    options = ("instance",)
    foreseen, keeps = False, False
    rule = (
        "the plan that trains most in ten intervals with its change, less three tenths of what "
        "departures are expected to cost it"
    )
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "30 times the rate of the plan over the fastest, less its change over ten "
        "intervals and a share of its risk; less that of the best action",
        "seconds": "of the change over those of an interval; of a checkpoint those it takes",
        "bytes": "that the busiest node sends, over those of the state",
        "hit": "probability that a node in use leaves, at the rate of departures believed",
        "stop": "probability that the job stops: no spare is ready, or the state is lost",
        "lost": "probability that a part of the state is lost",
        "lose_1": "best rate after a node of the plan is lost, with its change over ten intervals",
        "lose_2": "the same after two",
        "lose_4": "the same after four",
        "join_1": "the same after a node has come",
        "join_2": "the same after two",
        "join_4": "the same after four",
        "tensor": "log2(1 + degree) / 7",
        "pipeline": "the same",
        "data": "the same",
        "nodes": "nodes that train, over 64",
        "spares": "nodes kept as spares, over 2",
        "rate": "samples a second, over those of the fastest candidate",
        "current": "1 for the plan in force, and for its checkpoint",
        "checkpoint": "1 for the checkpoint",
    }
    ahead = frozenset(list(columns)[:12])  # from "rule" to "join_4"
    contexts: ClassVar[Mapping[str, str]] = {
        "there": "nodes that are there, over 64",
        "joined": "nodes that came, over 64",
        "left": "nodes that left, over 64",
        "used": "nodes in use, over 64",
        "ready_nodes": "spares of the plan in force, over 64",
        "idle": "nodes beyond these, over 64",
        "speed": "samples a second of the plan in force, over those of the fastest candidate",
        "broken": "nodes in use that were lost, over 4",
        "ready": "1 if spares are ready for them",
        "gone": "1 if the state is lost",
        "since": "intervals since the state was safe, over those between checkpoints",
        "quiet": "intervals since the last event, over 60, at most 1",
        "remaining": "share of the episode that remains",
        "leaving_10": "20 times the share of nodes that leave in an interval, in the last ten",
        "leaving_60": "the same in the last hour",
        "leaving_240": "the same in the last four hours",
        "joining": "nodes that come in an interval, in the last hour, over 64, times 20",
        "expected": "20 times the rate of departures that is believed",
        "episode": "10 / intervals of the episode",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | None = None,
        family: str | None = None,
        model: str | None = None,
        fresh: bool = False,
        rows: str = games.AHEAD,
        order: str = games.ORDERS[0],
        interval: float = SECONDS,
        cluster: str | None = None,
        batch: int | None = None,
        problem: Elastic | None = None,
    ) -> None:
        """Find the source of jobs; see the class for the arguments."""
        super().__init__(count, ACTIONS, rows)
        self._settings = {"interval": interval, "cluster": cluster, "batch": batch}
        self.source = source_of(instance, self._settings, family, model, fresh, order, problem)
        self.jobs: list[Job] = [None] * count  # type: ignore[list-item]
        self.outlooks: list[Outlook] = []
        # Of each episode: number of its library in ``outlooks``, intervals in all and so far.
        self.library_number, self.length, self.interval = np.zeros((3, count), np.int64)
        # The state of the decision process, see ``Moment``.
        self.plans, self.event, self.since = np.zeros((3, count), np.int64)
        # Intervals since the last event; nodes in use that were lost before this interval.
        self.quiet, self.hits = np.zeros((2, count), np.int64)
        # Nodes that left, that joined, that are there.
        self._node_counts = np.zeros((3, count), np.int64)
        self.total, self.span = np.zeros((2, count))  # samples; seconds of the course
        self._means = np.zeros((len(MEMORIES), 3, count))  # of ``_node_counts``, by memory
        self._lost = np.zeros((count, 0, 1), np.int8)
        self._counts = np.zeros((3, count, 0), np.int16)  # nodes that left, joined, are there
        self._to_come = np.zeros((count, 0))
        self.chosen = np.zeros((count, 0), np.int8)
        self._grow(INTERVALS, 1)

    def _grow(self, intervals: int, nodes: int) -> None:
        """Enlarge arrays to courses of so many intervals and nodes; contents stay."""
        count, *sizes = self._lost.shape
        intervals, width = max(intervals, sizes[0]), max(nodes + 1, sizes[1])
        if sizes != [intervals, width]:
            self._lost = _padded(self._lost, count, intervals, width)
            self._counts = _padded(self._counts, 3, count, intervals)
            self._to_come = _padded(self._to_come, count, intervals + 1)
            self.chosen = _padded(self.chosen, count, intervals)

    def put(self, rows: games.Rows, problem: Job) -> None:
        job, course, known, _ = problem
        length, nodes = len(course), course.lost.shape[1] - 1
        self._grow(length, nodes)
        number = self._library_number(outlook(job.library, job.seconds), rows)
        best = job.best[course.nodes]
        # What hindsight is expected to earn from each interval on: its share of the fastest plans'.
        to_come = np.concatenate([best[::-1].cumsum()[::-1], [0.0]])
        to_come *= known.best / to_come[0]
        for row in self._rows[rows].tolist():
            self.jobs[row] = problem
            self._counts[:, row, :length] = course.left, course.joined, course.nodes
            self._lost[row, :length, : nodes + 1] = course.lost
            self._lost[row, :length, nodes + 1 :] = course.lost[:, -1:]
            self._to_come[row, : length + 1] = to_come
        self.library_number[rows], self.length[rows] = number, length
        self.span[rows] = seconds = job.seconds * length
        start, best_cost = cost_of(seconds, np.array([known.start, known.best]))
        # A run that trains less than half of what hindsight does in a mean interval counts as that.
        self.know(rows, start, best_cost, best_cost, worst=2 * length * best_cost)

    def _library_number(self, new: Outlook, rows: games.Rows) -> int:
        """Return the number of an outlook for rows; it is added if it is not there."""
        if new in self.outlooks:
            return self.outlooks.index(new)
        # Outlooks that only these rows had are removed.
        others = np.ones(self.count, np.bool_)
        others[rows] = False
        # Action features are laid out once per library; most batches have one or two.
        used = np.unique(self.library_number[others]) if self.outlooks else self.library_number[:0]
        self.library_number[others] = np.searchsorted(used, self.library_number[others])
        self.outlooks = [*(self.outlooks[i] for i in used.tolist()), new]
        self._stack_outlooks()
        return len(self.outlooks) - 1

    def _stack_outlooks(self) -> None:
        """Stack the arrays of the outlooks, and lay out action features by nodes.

        Features that depend on the episode stay 0.
        """

        def stacked(name: str) -> Array:
            return np.stack([getattr(outlook, name) for outlook in self.outlooks])

        self._earned = stacked("earned").ravel()
        self._used, self._held = stacked("used").ravel(), stacked("held").ravel()
        self._saved, self._lost_samples = stacked("saved").ravel(), stacked("lost_samples").ravel()
        self._restart = stacked("restart")
        width = max(x.library.borders.shape[1] for x in self.outlooks)
        self._borders = stacked("borders")[..., :width].reshape(-1, width)
        self._every, self._save = stacked("every"), stacked("save")
        fits, plan_features = stacked("fits"), stacked("plan_features")
        # A column more for checkpoints, which ``look`` allows.
        self._fits = np.pad(fits.reshape(-1, MAX_PLANS), ((0, 0), (0, 1)))
        self._speed = plan_features[:, :, 5].ravel()
        base = np.zeros((*fits.shape[:2], ACTIONS, len(self.shown)), np.float32)
        base[:, :, :MAX_PLANS, -8:-2] = plan_features[:, None]
        if self.looks:
            base[:, :, :MAX_PLANS, 6:12] = stacked("look_ahead")
            self._change = stacked("change").reshape(-1, MAX_PLANS, 2)
            self._chances = stacked("chances").reshape(-1, MAX_PLANS, 3)
        base[:, :, :MAX_PLANS] *= fits[..., None]
        self._base = base.reshape(-1, ACTIONS, len(self.shown))

    def start(self, rows: games.Rows) -> None:
        self.fresh(rows)
        for array in (self.interval, self.plans, self.event, self.since, self.quiet, self.hits):
            array[rows] = 0
        self.total[rows], self.chosen[rows], self._means[:, :, rows] = 0.0, 0, 0.0
        # Means of departures begin without any; the prior stands for what was not seen.
        self._node_counts[:, rows] = 0  # those at the beginning did not come
        self.nodes[rows] = self._counts[2, rows, 0]
        self.cost[rows] = self.reference[rows]

    def look(self, rows: Array, part: games.Rows) -> None:
        number, nodes = self.library_number[part], self.nodes[part]
        current = number * MAX_PLANS + self.plans[part]
        self.mask[part] = self._fits.take(number * (MAX_NODES + 1) + nodes, axis=0)
        # A checkpoint that is due anyway needs no action.
        is_early = self.since[part] + 1 < self._every[number]
        self.mask[part, CHECKPOINT] = self._is_whole(part) & is_early
        self._write_context(part, number, current)

    def rows_of(self, rows: games.Rows) -> Array:
        number, nodes, plan = self.library_number[rows], self.nodes[rows], self.plans[rows]
        current, k = number * MAX_PLANS + plan, np.arange(len(number))
        actions = self._base.take(number * (MAX_NODES + 1) + nodes, axis=0, mode="clip")
        # The plan in force is current only while its nodes are there.
        actions[k, plan, -2] = self._held[current] <= nodes
        if self.looks:
            fits = self.mask[rows, :MAX_PLANS, None]
            state = (number * EVENTS + self.event[rows]) * MAX_PLANS + plan
            nearest = np.searchsorted(_CUTS, self._departure_rate(rows))
            chances = self._chances[number * len(RATES) + nearest]
            actions[:, :MAX_PLANS, 1:3] = self._change[state] * fits
            actions[:, :MAX_PLANS, 3:6] = chances * fits
        # A checkpoint has the features of the plan in force, but for its own seconds.
        saving = self.mask[rows, CHECKPOINT].nonzero()[0]
        actions[saving, CHECKPOINT] = actions[saving, plan[saving]]
        actions[saving, CHECKPOINT, -1] = 1.0
        if self.looks:
            actions[saving, CHECKPOINT, 1] = self._save[number[saving]]
            actions[..., 0] = self._scores(actions, rows, number)
        # Ended episodes show nothing.
        actions[self.interval[rows] == self.length[rows]] = 0.0
        return actions

    @property
    def nodes(self) -> Array:
        """(n,) nodes that are there."""
        return self._node_counts[2]

    def _is_whole(self, part: games.Rows) -> Array:
        """Return whether a plan is in force and none of its nodes is missing, (k,) bool."""
        current = self.library_number[part] * MAX_PLANS + self.plans[part]
        is_there: Array = self._held[current] <= self.nodes[part]
        return is_there & (self.event[part] == 0) & (self.plans[part] > 0)

    def _departure_rate(self, part: games.Rows) -> Any:
        return departures(self._means[BELIEVED, 0, part], self._means[BELIEVED, 2, part])

    def _scores(self, actions: Array, part: games.Rows, number: Array) -> Array:
        """Return column 0: what actions train in ``HORIZON`` intervals, less a share of the risk.

        All is in intervals of the action's own rate. Keeping a plan also risks the work since the
        state was safe, which a change or a checkpoint makes safe.
        """
        k, plan, restart = np.arange(len(number)), self.plans[part], self._restart[number]
        restart = np.column_stack([restart, restart[k, plan]])
        stop, lost = actions[..., 4], actions[..., 5]
        # A loss comes, on average, halfway between two checkpoints.
        risk = stop * restart + lost * (0.5 * self._every[number])[:, None]
        spent = actions[..., 1].astype(np.float64)
        # Young, CACM 17, 1974: the work at stake grows with the square of its intervals.
        at_stake = 0.5 * lost[k, plan] * (self.since[part] + 1.0) ** 2
        spent[k, plan] += self._is_whole(part) * at_stake
        remaining = np.maximum(self.length[part] - self.interval[part], 1)  # 0 of ended episodes
        horizon = np.minimum(remaining, HORIZON)[:, None]
        value = actions[..., -3] * (1.0 - CAUTION * risk - spent / horizon)
        value = np.where(self.mask[part], value, -np.inf)
        shortfall = SHARP * (value - value.max(axis=1, keepdims=True))
        return np.maximum(np.where(self.mask[part], shortfall, 0.0), -100.0)

    def _write_context(self, part: games.Rows, number: Array, current: Array) -> None:
        event, interval, length = self.event[part], self.interval[part], self.length[part]
        used, needed = self._used[current], self._held[current]
        means = self._means[:, :, part]
        leaving = means[:, 0] / np.maximum(means[:, 2], 1.0)
        columns = (
            *(self._node_counts[::-1, part] / MAX_NODES),
            used / MAX_NODES,
            (needed - used) / MAX_NODES,
            np.maximum(self.nodes[part] - needed, 0) / MAX_NODES,
            self._speed[current],
            self.hits[part] / LOST,
            (event > READY) & (event < GONE),
            event == GONE,
            self.since[part] / self._every[number],
            np.minimum(self.quiet[part], QUIET) / QUIET,
            1.0 - interval / length,
            *np.minimum(SCALE * leaving, 1.0),
            np.minimum(SCALE * means[1, 1] / MEMORIES[1] / MAX_NODES, 1.0),
            np.minimum(SCALE * self._departure_rate(part), 1.0),
            10.0 / length,
        )
        self.context[part] = np.array(columns, np.float32).T

    def move(self, rows: Array, actions: Array, part: games.Rows) -> None:
        old, event, since = self.plans[part], self.event[part], self.since[part]
        number = self.library_number[part]
        saving = actions == CHECKPOINT
        plan = np.where(saving, old, actions)
        current = number * MAX_PLANS + old
        state = (number * EVENTS + event) * MAX_PLANS + old
        samples = self._earned[state * MAX_PLANS + plan]
        stays = (plan == old) & (event == 0)
        written = stays & (saving | (since + 1 == self._every[number]))
        samples -= written * self._saved[current]
        gone = (event == GONE).nonzero()[0]
        # What was trained since the state was safe is lost with it.
        samples[gone] -= since[gone] * self._lost_samples[current[gone]]
        self.total[part] += samples
        self.chosen[rows, self.interval[part]] = actions
        self.interval[part] += 1
        self.plans[part], self.event[part] = plan, 0
        self.since[part] = (stays & ~written & (old > 0)) * (since + 1)
        over = self.interval[part] == self.length[part]
        self.over[part] = over
        # Samples that are expected to come count, so that each interval is rewarded.
        to_come = self._to_come[rows, self.interval[part]]
        self.cost[part] = cost_of(self.span[part], self.total[part] + to_come)
        running = rows[~over] if over.any() else rows
        if running.size:
            self._happen(running, running if over.any() else part)

    def _happen(self, rows: Array, part: games.Rows) -> None:
        """Let nodes leave and come before the next interval of running episodes."""
        interval = self.interval[part]
        index = rows * self._counts.shape[2] + interval
        self._count_nodes(part, self._counts.reshape(3, -1).take(index, axis=1))
        losing = self._node_counts[0, part].nonzero()[0]
        if losing.size:
            hit, lost = rows[losing], self._lost[rows[losing], interval[losing]]
            current = self.library_number[hit] * MAX_PLANS + self.plans[hit]
            used, needed = self._used[current], self._held[current]
            self.hits[hit] = np.minimum(lost[np.arange(len(hit)), used], LOST)
            self.event[hit] = happened(lost, used, needed, self._borders[current])

    def _count_nodes(self, part: games.Rows, counts: Array) -> None:
        """Take over the nodes that left, came and are there in a new interval, (3, k)."""
        node_counts, means = self._node_counts, self._means
        node_counts[:2, part] = counts[:2]
        # Exponential means: an interval weighs 1 - 1/m after each further one.
        means[..., part] *= FORGETTING
        means[..., part] += node_counts[:, part]
        self.nodes[part] = counts[2]
        self.quiet[part] = np.where(counts[:2].any(axis=0), 0, self.quiet[part] + 1)
        self.hits[part] = 0

    def meet(self, row: int, moment: Moment, joined: int, left: int) -> None:
        """Set an episode to the state of another run, such as a running job.

        Moments follow each other from the first interval on; there are no rewards.
        """
        interval, event = moment.interval, moment.event
        self._counts[:, row, interval] = left, joined, moment.nodes
        if interval:
            self._count_nodes(slice(row, row + 1), self._counts[:, row : row + 1, interval])
        else:
            self.start(slice(row, row + 1))
        self.interval[row], self.plans[row] = interval, moment.plan
        self.event[row], self.since[row] = event, moment.since
        self.hits[row] = LOST if event == GONE else event - READY if event > READY else event
        self._stale[row] = True

    def plan(self, row: int) -> ElasticPlan:
        """Return the plans chosen so far, on the course of the episode."""
        job = self.jobs[row]
        return job.problem.plan(self.chosen[row, : self.interval[row]], job.seed)

    def problem(self, row: int) -> Elastic:
        return self.jobs[row].problem

    def view(self, row: int) -> Run:
        job = self.jobs[row]
        return replay(job.problem, job.course, self.chosen[row, : self.interval[row]])

    @property
    def episode_steps(self) -> int:
        return self._lost.shape[1]

    def elsewhere(self, options: dict[str, Any]) -> games.Source:
        return source_of(options["instance"], self._settings)


class ElasticChoiceEnv(GameEnv, game=ElasticChoice):
    """A single environment of ``ElasticChoice``."""


class ElasticChoiceVectorEnv(GameVectorEnv, single=ElasticChoiceEnv):
    """A native batch of ``ElasticChoice``."""


class Courses(games.Source):
    """The source of jobs whose courses are generated anew in each episode."""

    def __init__(self, problems: games.Source) -> None:
        self.problems = problems

    def draw(self, stream: games.Stream) -> Job:
        """Return a job of a problem that the stream selects."""
        return Job.of(self.problems.draw(stream), int(stream.rng.integers(2**31)))


def source_of(
    instance: str | None, settings: Mapping[str, Any], family: str | None = None,
    model: str | None = None, fresh: bool = False, order: str = games.ORDERS[0],
    problem: Elastic | None = None,
) -> games.Source:  # fmt: skip
    """Return the source of jobs that the arguments of ``ElasticChoice`` name.

    Raises:
        ParenvsError: an argument is wrong.
    """
    # A problem that is given takes the place of all names.
    named_source, sets = instance if problem is None else problem, (*ELASTIC_SETS, WINDOWS)
    is_set, is_bank = games.check_place(named_source, sets, (None,), WINDOWS, order, family, fresh)
    if is_bank:
        pool = "the problem pool"
        families = chosen({x: x for x in FAMILIES}, family, pool)
        models = chosen({x: x for x in MEASURED}, model, pool, "model")
        return games.Drawn(partial(_generated, families, models, fresh))
    if is_set:
        assert instance is not None
        names = _members(instance, family, model)
        if instance == WINDOWS:
            return games.Members(names, _window, order)
        return Courses(games.Members(names, load_elastic, order))
    if problem is None:
        if not isinstance(instance, str):
            raise ParenvsError(f"'instance' must be the name of a problem, not {shown(instance)}")
        problem = load_elastic(instance, model, **settings)
    if problem.is_random:
        return Courses(games.Fixed(replace(problem, checkpoints=True)))
    return games.Fixed(Job.of(problem))


def _members(name: str, family: str | None, model: str | None) -> list[str]:
    """Return the names of a set's problems, of a family or with a model."""
    if name == WINDOWS:
        models = {f"{name}/{member}": row[1] for member, row in problems.windows().items()}
    else:
        rows = problems.elastic_rows(name).items()
        models = {f"{name}/{member}": row.model for member, row in rows}
    of_family = chosen({member: family_named(member) for member in models}, family, name)
    return chosen({member: models[member] for member in of_family}, model, name, "model")


@lru_cache(maxsize=KEPT)
def _window(name: str) -> Job:
    return Job.of(load_elastic(name))


@lru_cache(maxsize=KEPT)
def _numbered(number: int, family: str, model: str) -> Job:
    problem, known = problems.of_bank(number, family, model)
    return Job(problem, problem.course(), known)


def _generated(
    families: Sequence[str], models: Sequence[str], fresh: bool, stream: games.Stream
) -> Job:
    rng = stream.rng
    family, model = (names[int(rng.integers(len(names)))] for names in (families, models))
    if fresh:
        return Job.of(problems.drawn_by(rng, family, model))
    return _numbered(int(rng.integers(problems.COUNT)), family, model)
