"""``PipelinePlan-v0``: cut any chain, and the devices under it, into pipeline stages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.core.game import EVERY, Game, Rows, with_regret
from parenvs.core.plan import ILLEGAL
from parenvs.core.problem import problem as load_problem
from parenvs.core.source import ORDERS, Drawn, Fixed, Members, Source, Stream, is_sequential
from parenvs.datasets.pipeline import generators, sequence
from parenvs.datasets.pipeline import sets as instance_sets
from parenvs.datasets.pipeline.sequence import RANGES
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import plan as plans
from parenvs.tasks.pipeline.batch import computes
from parenvs.tasks.pipeline.game.pool import ProblemPool
from parenvs.tasks.pipeline.game.tables import (
    NUMBERS,
    PlanProblem,
    PlanTables,
    Slots,
    playable,
    reserved,
)
from parenvs.tasks.pipeline.load import PIPELINE_OPTIONS
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    RECOMPUTE,
    TIED,
)
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS, PointSpace
from parenvs.tasks.pipeline.problem import Pipeline, Report, stages_on
from parenvs.tasks.pipeline.profile import StageProfile

ACTIONS = POINTS + UNITS
"""Number of actions; points come first."""
DEFAULTS: dict[str, Any] = {
    "cluster": "C", "stages": None, "micro_batch": MICRO_BATCH, "micro_batches": MICRO_BATCHES,
    "copies": COPIES, "recompute": RECOMPUTE[0], "sync": SYNC_METHODS[0], "tied": TIED[0],
}  # fmt: skip
"""Settings of named problems -> their defaults."""
DRAWS = (1, sequence.VERSION)
"""Values of the argument ``draw``."""


class PipelinePlan(Game):
    """Plan pipelines of many models, so that a trained policy can plan a model it has not seen.

    ## Description
    The model is a chain of at most 128 points, the cluster has at most 64 units: devices, or groups
    of devices if there are more than 64. Steps take turns: the first step chooses the first point
    of the next stage, the second the unit on which that stage starts. After S-1 choices of each
    kind the judge computes the length of a training step of the whole chain (arXiv 2007.04069,
    sections 3.5 and 4.5; the formula is in ``parenvs.tasks.pipeline.formulas``). A chain of more
    than 128 pivots can be cut at points only (``parenvs.tasks.pipeline.points`` chooses them); the
    plan is a plan of the pivots.

    ## Action Space
    ``Discrete(192)``: 0 to 127 cut before that point, 128 + d starts the next stage on unit d. The
    mask of legal actions is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of
    the observation with ``parenvs.wrappers.MaskInObservation``. An action is legal if it can lead
    to a plan that fits the memory, with a variable and a unit in every stage.

    ## Observation Space
    ``Dict``, float32 in [0, 1] unless another type or range is given:

    * ``chain``: (4, 128). Rows 0 to 2 are seconds, divided by their common maximum: forward plus
      backward seconds up to the end of each point; seconds of a transfer of the activations that
      cross its end, between servers; twice the parameter bytes up to its end, divided by the
      bandwidth between servers. Row 3 is 1 for each point and 0 beyond the chain.
    * ``topology``: (64, 64), bandwidth between units divided by that inside a server; 0 beyond the
      cluster.
    * ``numbers``: (8,): stages / 8; micro-batches / 64, at most 1; units / 64; log2 of the devices
      in a unit, / 16; x / (1 + x), where x is the bytes of parameters that a device may hold, in
      the unit of row 2 of ``chain``; backward seconds divided by forward plus backward seconds;
      log2 of the ratio of the bandwidths, / 16; 1 if activations are recomputed.
    * ``plan``: (2, 7) in [-1, 1], chosen points / 128 and chosen units / 64; -1 if not yet chosen.
    * ``step``: Discrete(15), the number of choices made; odd if the next choice is a unit.

    ## Rewards
    0 for every choice but the last. The last pays 1/L, where L is the length in units of the
    bubble-free time (all devices compute all the time), so it lies in (0, 1]. An illegal action
    pays -1 and ends the episode.

    ## Starting State
    Nothing is chosen; the problem is one that ``reset`` draws, or the one that arguments name.

    ## Episode End
    After 2 (S-1) choices or an illegal action. No truncation.

    ## Arguments
    * ``instance``: None draws from the generators (``parenvs.datasets.pipeline.generators``); the
      name of a set (``"plan-validation"``, ``"plan-test"``, ``"plan-outside"``) draws from it; the
      name of a problem of a set (``"plan-test/cnn-003"``) or of a numbered one
      (``"generated-2/inside/any/17"``), a shipped name, or the path of a ``.csv`` profile or of a
      graph gives that problem at every reset. ``reset(options={"instance": ...})`` sets the
      instance of one episode.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``, ``tied``: settings of named instances and files, as in ``PipelineCut-v0``; they are
      also keys of ``options``. Drawn problems and sets have settings of their own, for which these
      are refused.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above.
    * ``family``: problems of this family only.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once (``repeat`` times), and then again; a seed begins it anew.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, larger problems.
    * ``repeat``: episodes of each drawn problem before the next is drawn (50 in the paper).
    * ``draw``: how problems are generated: 1 draws each from the environment's generator; 2 takes
      the numbered problems of ``parenvs.datasets.pipeline.sequence``, of the same distribution. The
      k-th problem of a seed is always the same, and a native batch keeps problems in a pool, so
      that a reset is a look-up.
    * ``pool``: with ``draw=2`` a folder in which the first problems lie, 1 GB that is mapped into
      memory; they are written once, which takes a minute. None keeps all in memory.
    * ``refill``: with ``draw=2`` whether another process makes the problems that come next; they
      are the same with and without.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a plan ``length_seconds``
    of a training step and ``excess_bytes``, by which the fullest stage exceeds the memory of a
    device (<= 0: it fits); at the end on a problem of a shipped set ``optimum``, the largest
    return, and ``regret``, the share of it that the return falls short of (1 for illegal actions).

    ## Many at Once
    ``gym.make_vec("PipelinePlan-v0", num_envs=64)``, see ``PipelinePlanVectorEnv``. With a fixed
    instance all environments share look-up tables. Drawing a problem takes as long as hundreds of
    steps, so the speed with drawn problems depends most on ``repeat``, or on a ``pool``: see
    ``benchmarks/results/drawing.md``.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS)
    local = ("problem", "pool", "refill")
    exact = "parenvs.agents.pipeline.planners:best_of_game"

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | Graph | StageProfile | None = None,
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        tied: str = TIED[0],
        family: str | None = None,
        ranges: str = "inside",
        repeat: int = 1,
        order: str = ORDERS[0],
        draw: int = DRAWS[0],
        pool: str | os.PathLike[str] | None = None,
        refill: bool = False,
        problem: Pipeline | None = None,
    ) -> None:
        """Say where problems come from; see the class for the arguments."""
        super().__init__(count)
        self._settings: dict[str, Any] = {
            "instance": instance,
            "cluster": cluster,
            "stages": stages,
            "micro_batch": micro_batch,
            "micro_batches": micro_batches,
            "copies": copies,
            "recompute": recompute,
            "sync": sync,
            "tied": tied,
        }
        if family is not None and family not in generators.FAMILIES:
            raise ParenvsError(
                f"unknown family {family!r}{did_you_mean(family, generators.FAMILIES)}; known: "
                f"{', '.join(generators.FAMILIES)}"
            )
        if ranges not in RANGES:
            raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {ranges!r}")
        if not isinstance(repeat, int) or repeat < 1:
            raise ParenvsError(f"repeat must be >= 1, not {repeat!r}")
        is_sequential(order)
        if draw not in DRAWS:
            raise ParenvsError(
                f"draw must be one of {', '.join(map(str, DRAWS))}, not {shown(draw)}"
            )
        is_numbered = draw == sequence.VERSION
        if (pool is not None or refill) and not is_numbered:
            raise ParenvsError(
                f"pool, refill: need draw={sequence.VERSION}, whose problems are numbered"
            )
        fixed = problem is not None or (instance is not None and not is_set(instance))
        check_settings(self._settings, problem)
        drawing = {"family": family is not None, "repeat": repeat > 1}
        drawing["ranges"], drawing["draw"] = ranges != "inside", is_numbered
        for name, given in drawing.items():
            if given and (fixed or (name in ("ranges", "draw") and instance is not None)):
                raise ParenvsError(f"{name}: no problems are generated here; leave it out")
        if order != ORDERS[0] and (fixed or instance is None):
            raise ParenvsError(
                f"order: {order!r} plays a set, like instance='plan-test'; leave it out"
            )
        self.source: Source
        if fixed:
            space = playable(problem) if problem is not None else named(self._settings)
            self.source = Fixed(PlanProblem(space))
        elif instance is not None:
            problems = instance_sets.load_set(instance)
            names = [each.name for each in problems if family in (None, each.family)]
            self.source = Members(names, member, order)
        else:
            self.source = Drawn(partial(numbered if is_numbered else drawn, family, ranges))
        self.source.repeat = repeat
        self.pool: ProblemPool | None = None
        if is_numbered and (count > 1 or pool is not None or refill):
            self.pool = ProblemPool(family, ranges, count, pool, refill)
        self._own: PlanTables | None = self.pool  # of problems that differ
        self.action_space = spaces.Discrete(ACTIONS)
        self.observation_space = spaces.Dict(
            {
                "chain": spaces.Box(0.0, 1.0, (4, POINTS), np.float32),
                "topology": spaces.Box(0.0, 1.0, (UNITS, UNITS), np.float32),
                "numbers": spaces.Box(0.0, 1.0, (len(NUMBERS),), np.float32),
                "plan": spaces.Box(-1.0, 1.0, (2, STAGES - 1), np.float32),
                "step": spaces.Discrete(2 * (STAGES - 1) + 1),
            }
        )
        self.stages = np.zeros(count, dtype=np.int64)
        self.optimum = np.full(count, np.nan)
        self._is_plain = np.ones(count, dtype=np.bool_)  # whether ``PointBatch`` has the costs
        # Row k is the start of stage k in every episode.
        self.points, self.units = np.zeros((2, STAGES, count), dtype=np.int64)
        self.made = np.empty(count, dtype=np.int64)  # choices
        self.figures = np.empty((3, count))  # length, excess bytes and return of ended episodes
        self._plan = np.empty((count, 2, STAGES - 1), dtype=np.float32)
        # The last column stands for all numbers that are not actions.
        self._legal = np.zeros((count, ACTIONS + 1), dtype=np.bool_)
        self._cells = self._rows * (ACTIONS + 1)
        self._is_known = False  # whether ``_legal`` is of the choices made
        # Number of choices made, if it is the same everywhere and no episode is over; else None.
        self._common: int | None = None

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        self._look()
        return self._legal[:, :ACTIONS]

    def put(self, rows: Rows, problem: PlanProblem) -> None:
        """See ``Game.put``."""
        self.stages[rows], self.optimum[rows] = problem.stages, problem.optimum
        self._is_plain[rows] = computes(problem.pipeline)
        if rows is EVERY or self.count == 1:  # all share its tables
            return
        if self.pool is not None:
            self.pool.lend(rows, problem)
            return
        if self._own is None:
            shared = self._shared.tables.arrays
            self._own = PlanTables(reserved(shared, self.count))
            self._own.put(EVERY, shared)
        self._own.put(rows, problem.tables.arrays)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: nothing is chosen."""
        self._plan[rows] = -1.0
        self.made[rows] = 0
        self.over[rows] = False
        self._compare(rows is EVERY)

    def deal(self, rows: Rows, streams: Sequence[Stream], source: Source | None = None) -> None:
        """See ``Game.deal``; the problems of a pool are taken together."""
        if self.pool is None or source is not None:
            super().deal(rows, streams, source)
            for row in self._rows[rows].tolist() if self.draws and not self._shared else ():
                self._held[row].forget()
            return
        due = []
        for row in self._rows[rows].tolist():
            stream = streams[row]
            if stream.left > 0:
                stream.left -= 1
            else:
                due.append(stream)
        if due:
            turns = [(stream.number - stream.row) // stream.count for stream in due]
            numbers = sequence.number_of([stream.seed for stream in due], turns)
            for stream in due:
                stream.number += stream.count
                stream.left = self.source.repeat - 1
            self._take(np.array([stream.row for stream in due]), numbers, max(turns))
        self.start(rows)

    def preview(self) -> None:
        """See ``Game.preview``."""
        if self.pool is None:
            super().preview()
        else:
            zeros = [0] * self.count
            self._take(self._rows, sequence.number_of(zeros, zeros), 0)
            self.start(EVERY)

    def close(self) -> None:
        """See ``Game.close``: end the process that refills the pool, if there is one."""
        if self.pool is not None:
            self.pool.close()

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: choose a point or a unit in each episode."""
        made, columns = self._common, self.within(actions)
        self._look()
        self._is_known = False
        if rows is EVERY and made is not None:
            legal = self._legal.take(self._cells + columns)
            if np.count_nonzero(legal) == self.count:
                self._common = made + 1
                return self._choose(made % 2, made // 2, EVERY, columns)
        rows = self._rows[rows]
        legal, rewards = self._legal[rows, columns], np.full(len(rows), ILLEGAL)
        illegal = rows[~legal]
        self.over[illegal] = True
        self.figures[:2, illegal], self.figures[2, illegal] = np.nan, ILLEGAL
        choices = self.made[rows]
        for turn in (0, 1):
            index = np.flatnonzero(legal & (choices % 2 == turn))
            if index.size:
                stage = choices[index] // 2
                rewards[index] = self._choose(turn, stage, rows[index], columns[index])
        self._compare()
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        if self._shared is not None:
            count = len(self._rows[rows])
            shared = self._shared.tables.constant
            constant = {key: _repeated(value, count) for key, value in shared.items()}
        else:
            own = self._tables(rows)[0].constant if self.pool is None else self.pool.seen
            constant = {key: value[rows] for key, value in own.items()}
        return {**constant, "plan": self._plan[rows], "step": self.made[rows]}

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``length_seconds`` and ``excess_bytes`` of whole plans."""
        length, excess_bytes, value = self.figures[:, rows]
        figures = {"length_seconds": length, "excess_bytes": excess_bytes}
        return with_regret(figures, value, self.optimum[rows])

    def plan(self, row: int) -> plans.PipelinePlan:
        """Return the plan so far; the rest of the chain is its last stage."""
        problem, cuts = self._problem(row), slice(1, 1 + int(self.made[row]) // 2)
        pivots, devices = self.points[cuts, row], self.units[cuts, row]
        return problem.pipeline.plan(problem.pivots[pivots], problem.devices[devices])

    def problem(self, row: int) -> Pipeline:
        """See ``Game.problem``."""
        return self._problem(row).pipeline

    def space_of(self, row: int) -> PointSpace:
        """Return the points and units of an episode's problem."""
        return self._problem(row).space

    @property
    def space(self) -> PointSpace:
        """The points and units of the first episode's problem."""
        return self.space_of(0)

    def view(self, row: int) -> Report | Pipeline:
        """See ``Game.view``."""
        return self.problem(row).so_far(self.plan(row))

    def instance(self, row: int) -> str:
        """See ``Game.instance``."""
        if self._held[row] is None:
            assert self.pool is not None
            return self.pool.names(self._rows[row : row + 1])[0]
        return super().instance(row)

    def instances(self, rows: np.ndarray) -> str | list[str]:
        """See ``Game.instances``."""
        if self.pool is None or self._shared is not None:
            return super().instances(rows)
        return self.pool.names(rows)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; the largest number if problems are drawn."""
        return 2 * ((STAGES if self.draws else self.source.only.stages) - 1)

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        settings = {**self._settings, **options}
        if settings["instance"] is None or is_set(settings["instance"]):
            raise ParenvsError("options: 'instance' must name a problem, a graph or a file")
        if is_member(settings["instance"]):
            check_member({key: options[key] for key in options if key != "instance"})
        return Fixed(PlanProblem(named(settings)))

    def _problem(self, row: int) -> PlanProblem:
        """Return the problem of an episode."""
        problem: PlanProblem | None = self._held[row]
        if problem is None:
            assert self.pool is not None
            return self.pool.problem(row)
        return problem

    def _take(self, rows: np.ndarray, numbers: np.ndarray, turn: int) -> None:
        """Give episodes ``rows``, (k,) int64, problems of the pool; see ``ProblemPool.take``."""
        assert self.pool is not None
        self.pool.take(rows, numbers, turn)
        self.stages[rows] = self.pool.batch.stages[self.pool.slot[rows]]
        self.optimum[rows], self._is_plain[rows], self._shared = np.nan, True, None
        for row in rows.tolist():
            self._held[row] = None

    def _compare(self, is_start: bool = False) -> None:
        """Note whether all episodes have made as many choices, and none is over."""
        made = int(self.made[0])
        alike = is_start or not (self.over.any() or (self.made != made).any())
        self._common, self._is_known = made if alike else None, False

    def _choose(self, turn: int, stage: Any, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """Take legal actions that choose the start of the stage after ``stage``.

        Args:
            turn: 0 if the actions choose points, 1 if they choose units.
            stage: number of the stage that ends there: (k,) int64, or one for all.
            rows: the episodes.
            actions: (k,) int64.

        Returns:
            (k,) float64 rewards.
        """
        self.made[rows] += 1
        rewards = np.zeros(len(actions))
        if not turn:
            self.points[stage + 1, rows] = actions
            self._plan[rows, 0, stage] = actions * (1 / POINTS)
            return rewards
        units = actions - POINTS
        self.units[stage + 1, rows] = units
        self._plan[rows, 1, stage] = units * (1 / UNITS)
        ended = (self.stages[rows] == stage + 2).nonzero()[0]
        if ended.size:
            rows = EVERY if ended.size == self.count else self._rows[rows][ended]
            cuts, first_units = self.points[1:, rows].T, self.units[1:, rows].T
            self.figures[:, rows] = self._figures(rows, cuts, first_units)
            rewards[ended] = self.figures[2, rows]
            self.over[rows], self._common = True, None
        return rewards

    def _figures(self, rows: Rows, cuts: np.ndarray, units: np.ndarray) -> Any:
        """Return length, excess bytes and return of plans, (k, 7) each, of episodes ``rows``."""
        if self._shared is not None:
            return self._shared.figures(cuts, units)
        tables, slots = self._tables(rows)
        figures = np.array(tables.batch.figures(cuts, units, slots))
        for index in np.flatnonzero(~self._is_plain[rows]).tolist():
            one = slice(index, index + 1)
            problem = self._held[self._rows[rows][index]]
            figures[:, one] = problem.figures(cuts[one], units[one])
        return figures

    def _look(self) -> None:
        """Compute the legal actions of all episodes that are not over, if they are not known."""
        if self._is_known:
            return
        self._is_known = True
        if self._common is not None:
            self._look_at(self._common % 2, self._common // 2, EVERY)
            return
        turns = np.where(self.over, -1, self.made % 2)
        for turn in (0, 1):
            rows = np.flatnonzero(turns == turn)
            if rows.size:
                self._look_at(turn, self.made[rows] // 2, rows)

    def _look_at(self, turn: int, stage: Any, rows: Rows) -> None:
        """Compute the legal actions of episodes; see ``_choose`` for the arguments."""
        (tables, slots), legal = self._tables(rows), self._legal
        point, unit = self.points[stage, rows], self.units[stage, rows]
        if turn:
            end = self.points[stage + 1, rows]
            legal[rows, :POINTS] = False
            legal[rows, POINTS:ACTIONS] = tables.legal_units(slots, stage, point, unit, end)
        else:
            legal[rows, :POINTS] = tables.legal_points(slots, stage, point, unit)
            legal[rows, POINTS:ACTIONS] = False

    def _tables(self, rows: Rows) -> tuple[PlanTables, Slots]:
        """Return the tables in which the problems of episodes are, and their slots."""
        if self._shared is not None:
            return self._shared.tables, 0
        assert self._own is not None
        return self._own, (self._rows if self.pool is None else self.pool.slot)[rows]


class PipelinePlanEnv(GameEnv, game=PipelinePlan):
    """A single environment of ``PipelinePlan``."""


class PipelinePlanVectorEnv(GameVectorEnv, single=PipelinePlanEnv):
    """A native batch of ``PipelinePlan``."""


def is_set(instance: Any) -> bool:
    """Return whether an instance is the name of a shipped set."""
    return isinstance(instance, str) and instance in instance_sets.SETS


def is_member(instance: Any) -> bool:
    """Return whether an instance is the name of a problem of a shipped set, or a drawn one."""
    first = instance.split("/")[0] if isinstance(instance, str) else None
    return first in (*instance_sets.SETS, *instance_sets.DRAWN)


def check_settings(settings: dict[str, Any], problem: Pipeline | None) -> None:
    """Raise an error for settings that would be ignored.

    Args:
        settings: ``instance`` and the keys of ``DEFAULTS``.
        problem: the problem that is given beside them, if there is one.

    Raises:
        ParenvsError: a setting is given for problems that have their own.
    """
    instance = settings["instance"]
    changed = {name: settings[name] for name, value in DEFAULTS.items() if settings[name] != value}
    if problem is not None and (changed or instance is not None):
        name = next(iter(changed), "instance")
        raise ParenvsError(f"{name}: the argument problem has its own; leave out one of them")
    if problem is None and (instance is None or is_set(instance) or is_member(instance)):
        check_member(changed)


def check_member(changed: dict[str, Any]) -> None:
    """Raise an error if settings are given for a problem that was drawn.

    Raises:
        ParenvsError: they are.
    """
    for name in changed:
        raise ParenvsError(
            f"{name}: drawn problems have settings of their own; leave it out, or name the "
            "instance, graph or file that it is for"
        )


def named(settings: dict[str, Any]) -> PointSpace:
    """Load a problem of a set, a shipped instance or a file, with the given settings."""
    settings = dict(settings)
    instance = settings.pop("instance")
    if is_member(instance):
        return playable(instance_sets.find(instance).pipeline)
    settings["cluster"] = Cluster.parse(settings["cluster"])
    if settings["stages"] is None:
        settings["stages"] = min(stages_on(settings["cluster"]), STAGES)
    return playable(load_problem(instance, fractions=True, **settings))


def member(name: str) -> PlanProblem:
    """Return a problem of a set by its name."""
    # The problem's own ``space`` would stay in memory as long as the cached set.
    return PlanProblem(playable(instance_sets.find(name).pipeline))


def drawn(family: str | None, ranges: str, stream: Stream) -> PlanProblem:
    """Draw a problem from the generator of a stream."""
    return PlanProblem(sequence.drawn_by(stream.rng, family, ranges).space)


def numbered(family: str | None, ranges: str, stream: Stream) -> PlanProblem:
    """Draw the next numbered problem of a stream."""
    turn = (stream.number - stream.row) // stream.count
    number = int(sequence.number_of([stream.seed], [turn])[0])
    return PlanProblem(sequence.problem_of(number, family, ranges).space)


def _repeated(values: np.ndarray, count: int) -> np.ndarray:
    """Return a view of shape (count, ...) of values of shape (1, ...).

    ``np.broadcast_to`` is slower.
    """
    shape, strides = values.shape[1:], values.strides[1:]
    return np.ndarray((count, *shape), values.dtype, values, 0, (0, *strides))
