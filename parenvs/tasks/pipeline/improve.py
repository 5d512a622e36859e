"""``PipelineImprove-v0``: relocate stages of a pipeline's plan, which sweeps then mend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar

import numpy as np

from parenvs.compiled import Array, compiled
from parenvs.core import game as games
from parenvs.core.registry import problem as load_problem
from parenvs.core.sets import chosen
from parenvs.datasets.pipeline import problems
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, refuse_unknown
from parenvs.fields import whole
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline import relocations as moves
from parenvs.tasks.pipeline.plan import PIPELINE_OPTIONS, PipelinePlan
from parenvs.tasks.pipeline.problem import (
    Pipeline,
    bytes_of,
    compute_seconds,
    first_from,
    in_front,
    is_near,
    link_seconds,
    reduce_seconds,
    tables_of,
    through,
)
from parenvs.tasks.pipeline.spaces import graded
from parenvs.tasks.pipeline.sweeps import fitting_seconds, pivots_of, placed

POOL = 1024
"""Problems of a tier that are played without ``fresh``."""
KEPT = 1024
"""Problems that are kept with the plan that their episodes begin with."""
NUMBERS = 1 << 31
"""Drawn problems have numbers below this."""
TURNS = 16
"""Relocations of an episode, at most."""
PAIRED = 32
"""Stages from which on a relocation is chosen by two actions."""
GAIN = 1e-6
"""Relative: the first plan is swept until that brings no more."""
FAILED = 1.0
"""What column 0 is less for each relocation that was tried in vain."""
SHARP = 30.0
"""Column 1 of a plan that is shorter by a share before it is mended: 3 % are one unit."""
DESCENT: tuple[tuple[float, ...], moves.Kinds] = (1.0, 0.5, 0.25), ((4, 0, 1),)
"""Distances and kinds of the first sweeps around a graded plan, see ``relocations.modes_of``."""
_OF_STAGES = ("gain", "part", "half", "same", "away", "distance", "close")
MERGED, PARTED = (0, 1, 5, 6), (0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14)
"""Columns of ``stage_columns`` in a row: of the stages that merge, and of the parted one."""
STAGE_COLUMNS = 18


class Board:
    """A problem as the game plays it.

    Attributes:
        tables: its costs, see ``sweeps.Tables``.
        start: cuts and devices, (S+1,) each, of the plan that episodes begin with.
        seconds: core plus tail of that plan.
        modes: how relocations are mended.

    Raises:
        InfeasibleError: no plan that fits the memory was found, or there is one stage alone.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        if pipeline.stages < 2:
            raise InfeasibleError(
                f"{pipeline.instance}: a plan of one stage has none to relocate; "
                "give stages=2 or more"
            )
        self.pipeline, self.pivots = pipeline, pivots_of(pipeline)
        self.tables = tables_of(pipeline, self.pivots)
        self.modes, free = moves.mending(self.tables), np.ones(pipeline.stages + 1, bool)
        first, modes = moves.modes_of(self.tables, *DESCENT), np.concatenate(self.modes)
        plans = [placed(pipeline, self.tables, self.pivots, plan) for plan in graded(pipeline)]
        lengths = [fitting_seconds(self.tables, *plan) for plan in plans]
        # Where none fits the memory, sweeps may lead to one that does.
        for number in np.argsort(lengths, kind="stable").tolist():
            self.start, is_shorter = plans[number], True
            cuts, devices = self.start
            self.seconds = moves.mend(self.tables, cuts, devices, first, free, lengths[number])
            # Else any relocation would seem to be worth what mending is.
            while is_shorter:
                upper = moves.mend(self.tables, cuts, devices, modes, free, self.seconds)
                is_shorter = upper < self.seconds * (1 - GAIN)
                self.seconds = upper
            if np.isfinite(self.seconds):
                break
        else:
            raise InfeasibleError(
                f"{pipeline.instance}: found no plan of {pipeline.stages} stages that fits the "
                "memory; try more devices or fewer samples in a micro-batch"
            )
        known = problems.costs(pipeline)
        self.best = np.nan if known is None else known.value
        self.bound = pipeline.bubble_free if known is None else known.bound


@compiled
def stage_columns(tables, cuts, devices):
    """Features of the stages of a plan, (S, ``STAGE_COLUMNS``), and of the plan, (5,).

    Those of the plan are tail, passed seconds, the slowest stage, the mean stage and all
    transfers; all but the slowest stage over core plus tail.
    """
    stages, m = len(cuts) - 1, tables.micro_batches
    columns, plan = np.zeros((stages, STAGE_COLUMNS)), np.zeros(5)
    passed, _, core, tail = in_front(tables, cuts, devices, stages)
    length, slowest, links = core + tail, 0.0, 0.0
    for s in range(stages):
        group = devices[s + 1] - devices[s]
        x = compute_seconds(tables.work[cuts[s + 1]] - tables.work[cuts[s]], group)
        slowest = max(slowest, x)
        plan[3] += x / stages
    passed = hidden = 0.0
    total = tables.work[-1]
    for s in range(stages):
        f, p, q, e, d = columns[s], cuts[s], cuts[s + 1], devices[s], devices[s + 1]
        link, work = 0.0, tables.work[q] - tables.work[p]
        f[7], f[8] = 0.0, 1.0
        if s:
            link = 2 * link_seconds(tables, p, is_near(tables, devices[s - 1], d))
            passed, hidden, links = passed + link, hidden + link / 2, links + link
            f[7] = link / (link + slowest)
            f[8] = 1 - through(passed, link, m) / core
        x = compute_seconds(work, d - e)
        passed += x
        reduce = reduce_seconds(tables, p, q, is_near(tables, e, d), d - e)
        f[0] = x / slowest
        f[1] = 1 - through(passed, x, m) / core
        f[2] = np.log(max(work / total * stages, 1e-3))
        f[3] = np.log((d - e) / devices[-1] * stages)
        f[4] = min(reduce / length, 2.0)
        f[5] = max((reduce - hidden) / length, -1.0)
        f[6] = min(bytes_of(tables, p, q, d - e, stages - s) / tables.limit, 2.0)
        f[9] = is_near(tables, e, d)
        f[10] = np.log(q - p) / 4
        f[12], f[14] = 1.0, 1.0
        for pivot in range(p, q):
            f[11] = max(f[11], (tables.work[pivot + 1] - tables.work[pivot]) / max(work, 1e-30))
            if pivot > p:
                inside = 2 * link_seconds(tables, pivot, 0)
                f[12] = min(f[12], inside / (inside + slowest))
        half = first_from(tables.work, (tables.work[p] + tables.work[q]) / 2)
        middle = (d + e) // 2
        if p < half < q and e < middle:
            f[13] = max(
                reduce_seconds(tables, p, half, is_near(tables, e, middle), middle - e),
                reduce_seconds(tables, half, q, is_near(tables, middle, d), d - middle),
            )
            f[13] = min(f[13] / length, 2.0)
            inside = 2 * link_seconds(tables, half, is_near(tables, e, d))
            f[14] = inside / (inside + slowest)
        hidden += compute_seconds(tables.backward[q] - tables.backward[p], d - e)
        if s + 1 < stages:  # merged with the next stage
            q, d = cuts[s + 2], devices[s + 2]
            x = compute_seconds(tables.work[q] - tables.work[p], d - e)
            reduce = reduce_seconds(tables, p, q, is_near(tables, e, d), d - e)
            f[15] = min(x / slowest, 4.0)
            f[16] = min(reduce / length, 2.0)
            f[17] = min(bytes_of(tables, p, q, d - e, stages - 1 - s) / tables.limit, 2.0)
    plan[0], plan[1], plan[2], plan[4] = tail, passed, slowest, links
    plan /= length
    plan[3] *= length / slowest
    return columns, plan


@compiled
def write_rows(tables, cuts, devices, looks, rows):
    """Write the features of all relocations of a plan, ((S-1)^2, F); see ``PipelineImprovement``.

    Returns the plan's own, as ``stage_columns`` does.
    """
    stages = len(cuts) - 1
    columns, plan = stage_columns(tables, cuts, devices)
    _, _, core, tail = in_front(tables, cuts, devices, stages)
    ahead = moves.seconds_ahead(tables, cuts, devices) if looks else np.zeros((1, 1))
    for s in range(1, stages):
        left, right = columns[s - 1], columns[s]
        for t in range(stages - 1):
            row, at = rows[(s - 1) * (stages - 1) + t], 0
            if looks:
                row[1], at = SHARP * np.log((core + tail) / ahead[s - 1, t]), 2
            row[at], row[at + 1] = right[7], right[8]
            row[at + 2], row[at + 3], row[at + 4] = left[15], left[16], left[17]
            at += 5
            for column in MERGED:
                row[at], row[at + 1] = left[column], right[column]
                at += 2
            # The t-th of the stages that are left: the two that merge are one of them.
            part = columns[t if t < s else t + 1]
            for column in PARTED:
                row[at] = part[column]
                at += 1
            away = t + 1 - s
            row[at], row[at + 1] = 1.0 if away == 0 else 0.0, away / stages
            row[at + 2], row[at + 3] = abs(away) / stages, 1.0 if abs(away) <= 2 else 0.0
            row[at + 4] = s / stages
    return plan


@compiled
def write_tried(tried, stages, looks, rows):
    """Write what was tried in vain, (R,) bool, into the features of relocations, (R, F)."""
    cuts, parts = np.zeros(stages), np.zeros(stages)
    for number in range(len(tried)):
        if tried[number]:
            s, t = number // (stages - 1) + 1, number % (stages - 1)
            cuts[s] += 1
            parts[t if t < s else t + 1] += 1
    for number in range(len(tried)):
        s, t = number // (stages - 1) + 1, number % (stages - 1)
        row, part = rows[number], t if t < s else t + 1
        row[-2], row[-1] = cuts[s] / (stages - 1), parts[part] / (stages - 1)
        if looks:
            row[0] = row[1] - FAILED * (cuts[s] + parts[part])


class PipelineImprovement(games.RowGame):
    """Improve a pipeline of 8 to 64 stages by relocating its stages.

    ## Description
    A plan cuts a chain of pivots into S stages, and the devices under it into as many groups
    (``parenvs.tasks.pipeline.formulas`` has its costs). An episode begins with a plan that no small
    change improves: sweeps around the best of some graded plans lead to it. An action relocates a
    stage: it removes a cut, so that two stages become one, and parts another stage by half its work
    and half its devices. A few sweeps mend the plan
    (``parenvs.tasks.pipeline.relocations``). If it is then shorter, the episode goes on from
    it; else the plan stays as it was, and the action is illegal until another one shortens it.

    Most relocations bring nothing, and how long the plan is before it is mended tells little of
    how long it is behind. This is what there is to learn.

    ## Action Space
    ``Discrete((S-1)^2)``: action ``(s-1) (S-1) + t`` removes cut s, from 1 on, and parts the t-th
    of the S-1 stages that are left, from 0 on. With ``pairs``, the default from 32 stages on,
    ``Discrete(2 (S-1))``: an action below S-1 chooses the cut, and the next one, from S-1 on, the
    stage.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.game.RowGame``.

    * ``actions``: (A, 35) float32, 33 with ``rows="bare"``; with ``pairs`` the row of a cut has the
      features of the cut, and the largest ``rule`` of its relocations.
    * ``context``: (14,) float32, and ``action_mask``: (A,) int8.

    ## Rewards
    The change of log(reference / seconds of a step); the reference is the shortest plan known on
    shipped sets, and the first plan otherwise. On a set the first reward also has log(reference /
    first plan), below which no legal episode ends. An illegal action ends the episode and leaves
    that less 1.

    ## Starting State
    The first plan of a problem of the tier, or of the one that arguments name.

    ## Episode End
    After 16 relocations (``turns``), when none is left that was not tried in vain, or after an
    illegal action. No truncation.

    ## Arguments
    * ``tier``: ``"s8"``, ``"s16"`` (default), ``"s32"`` or ``"s64"``: problems of so many stages
      are drawn from a pool of 1,024.
    * ``fresh``: with True problems are drawn without end, none of them of the pool.
    * ``instance``: in place of a tier a set (``"plan-s16-test"``), one of its problems, a drawn
      problem (``"generated-3/s16/17"``), a shipped name, or the path of a ``.csv`` profile or of a
      graph. ``reset(options={"instance": ...})`` sets the instance of one episode.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``, ``tied``: of named models and files, as in ``PipelineCut-v0``; also keys of
      ``options``.
    * ``family``: problems of this family only.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``pairs``: whether a relocation takes two actions (default: from 32 stages on).
    * ``turns``: relocations of an episode (default: 16).
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``; at the end ``cost``, the seconds of a
    step, ``start``, those of the first plan, ``bound``, ``reference`` and ``gap`` (cost /
    reference - 1), as far as they are known.

    ## Many at Once
    ``gym.make_vec("PipelineImprove-v0", num_envs=64)``, see ``parenvs.envs.env.GameVectorEnv``.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS)
    rule = (
        "the relocation whose plan is shortest before it is mended (without look-ahead: the "
        "costliest cut goes)"
    )
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "gain, less 0.5 for each relocation of the cut, and of the stage, tried in vain",
        "gain": "30 times the logarithm of the plan's seconds over those before mending",
        "link": "x / (1 + x) for seconds of the removed cut's transfer over the slowest stage",
        "link slack": "share of the step for which that transfer could take longer",
        "merged": "seconds of the two stages in one over the slowest stage, at most 4",
        "merged reduce": "seconds of its all-reduce over the step, at most 2",
        "merged bytes": "bytes on its devices over what they may hold, at most 2",
        **{
            f"{side} {name}": f"{words} of the stage {place} the cut"
            for name, words in (
                ("seconds", "seconds over the slowest"),
                ("slack", "share of the step for which it could take longer"),
                ("late", "seconds of its all-reduce that nothing hides over the step"),
                ("bytes", "bytes over what devices may hold"),
            )
            for side, place in (("left", "before"), ("right", "behind"))
        },
        "part seconds": "seconds of the parted stage over the slowest",
        "part slack": "share of the step for which it could take longer",
        "part work": "logarithm of its work over the mean",
        "part devices": "logarithm of its devices over the mean",
        "part reduce": "seconds of its all-reduce over the step, at most 2",
        "part late": "seconds of it that nothing hides over the step",
        "part bytes": "bytes on its devices over what they may hold",
        "part near": "1 if it lies in one server",
        "part pivots": "logarithm of their number / 4",
        "part largest": "work of its largest pivot over its own",
        "part cheapest": "transfer of its cheapest cut, as in link",
        "half reduce": "seconds of the longer all-reduce of its halves over the step, at most 2",
        "half link": "transfer between its halves, as in link",
        "same": "1 if the two stages that merge are parted again",
        "away": "stages from the cut to the parted stage / S",
        "distance": "the same without its sign",
        "close": "1 if these are two at most",
        "place": "number of the cut / S",
        "cut tried": "share of the relocations of the cut that were tried in vain",
        "part tried": "the same of those that part the stage",
    }
    ahead = frozenset({"rule", "gain"})
    _problems: list[Board]
    contexts: ClassVar[Mapping[str, str]] = {
        "tail": "seconds of all-reduces that nothing hides over the step",
        "passed": "seconds in which one micro-batch passes over the step",
        "slowest": "seconds of the slowest stage over the step",
        "balance": "seconds of the mean stage over the slowest",
        "links": "seconds of all transfers over the step",
        "micro-batches": "log2 of their number / 6",
        "devices": "log2 of the devices of a stage / 6",
        "server": "log2 of the devices of a server / 3",
        "network": "log2 of the ratio of the bandwidths / 8",
        "stages": "S / 64",
        "work": "logarithm of the step over the bubble-free time",
        "saved": "logarithm of the first plan's seconds over the plan's",
        "remaining": "share of the relocations that are left",
        "tried": "share of the relocations that were tried in vain",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        tier: str | None = None,
        fresh: bool = False,
        instance: str | None = None,
        cluster: str | dict[str, Any] | None = None,
        stages: int | None = None,
        micro_batch: int | None = None,
        micro_batches: int | None = None,
        copies: float | None = None,
        recompute: str | None = None,
        sync: str | None = None,
        tied: str | None = None,
        family: str | None = None,
        order: str = games.ORDERS[0],
        rows: str = games.AHEAD,
        pairs: bool | None = None,
        turns: Annotated[int, whole(1, 10**6)] = TURNS,
        problem: Pipeline | None = None,
    ) -> None:
        arguments, (_, *settings) = locals(), self.options
        self._settings = {key: arguments[key] for key in settings if arguments[key] is not None}
        self._instance = instance
        if problem is not None and instance is not None:
            raise ParenvsError("instance: the argument problem has its own; leave out one of them")
        target = instance if problem is None else problem
        self.source, count_of_stages = _source(tier, fresh, target, self._settings, family, order)
        self.turns = turns
        self.others = count_of_stages - 1  # cuts, and stages that are left without one
        self.pairs = count_of_stages >= PAIRED if pairs is None else pairs
        self.relocations = self.others**2
        super().__init__(count, 2 * self.others if self.pairs else self.relocations, rows)
        self.cuts, self.devices = np.zeros((2, count, count_of_stages + 1), np.int64)
        self.seconds, self.turn = np.zeros(count), np.zeros(count, np.int64)
        # The cut that a first action of a pair chose, from 0 on.
        self.removed = np.full(count, -1)
        self.tried = np.zeros((count, self.relocations), bool)
        self.plans = np.zeros((count, 5))
        size = count if self.pairs else 0
        self.rows = np.zeros((size, self.relocations, len(self.shown)), np.float32)
        self._is_new = np.ones(count, bool)  # whether rows of the plan are to be computed

    def start(self, rows: games.Rows) -> None:
        self.fresh(rows)
        self.turn[rows], self.tried[rows], self.removed[rows] = 0, False, -1
        self._is_new[rows] = True
        for row in self._rows[rows].tolist():
            board = self._problems[row]
            (self.cuts[row], self.devices[row]), self.seconds[row] = board.start, board.seconds
            cost = formulas.compose(board.seconds, 0.0)
            self.cost[row] = cost
            self.know(row, cost, board.bound, board.best, worst=cost)

    def look(self, rows: Array, part: games.Rows) -> None:
        features = self.rows if self.pairs else self.actions
        for row in rows.tolist():
            if self._is_new[row]:
                plan = self._problems[row].tables, self.cuts[row], self.devices[row]
                self.plans[row] = write_rows(*plan, self.looks, features[row])
            write_tried(self.tried[row], self.others + 1, self.looks, features[row])
        self._is_new[rows] = False
        left = ~self.tried[rows]
        if self.pairs:
            self._look_at_pairs(rows, left)
        else:
            self.mask[rows] = left
            self.actions[rows] *= left[..., None]
        self.context[rows] = [self._context(row) for row in rows.tolist()]

    def _look_at_pairs(self, rows: Array, left: Array) -> None:
        """Write the rows of cuts, or of stages where a cut is chosen."""
        size = self.others
        self.mask[rows], self.actions[rows] = False, 0.0
        for row, legal in zip(rows.tolist(), left.reshape(-1, size, size), strict=True):
            table, removed = self.rows[row].reshape(size, size, -1), self.removed[row]
            if removed < 0:
                self.mask[row, :size] = can = legal.any(axis=1)
                first = self.actions[row, :size]
                first[:] = table[:, 0]
                # Columns that differ between the relocations of a cut, the rule's aside.
                first[:, [name.startswith(_OF_STAGES) for name in self.shown]] = 0.0
                if self.looks:
                    first[:, 0] = np.where(legal, table[:, :, 0], -games.RANGE).max(axis=1)
                first[~can] = 0.0
            else:
                self.mask[row, size:] = legal[removed]
                self.actions[row, size:] = table[removed] * legal[removed, :, None]

    def _context(self, row: int) -> list[float]:
        tables, pipeline = self._problems[row].tables, self._problems[row].pipeline
        cluster, cost = pipeline.cluster, self.cost[row]
        return [
            *self.plans[row],
            np.log2(pipeline.micro_batches) / 6,
            np.log2(cluster.devices / tables.stages) / 6,
            np.log2(cluster.devices_per_server) / 3,
            np.log2(max(cluster.intra_bw / cluster.inter_bw, 1.0)) / 8,
            tables.stages / 64,
            np.log(cost / pipeline.bubble_free),
            np.log(self._known[0, row] / cost),
            1 - self.turn[row] / self.turns,
            self.tried[row].mean(),
        ]

    def move(self, rows: Array, actions: Array, part: games.Rows) -> None:
        """See ``RowGame.move``: relocate, or keep the cut of a pair."""
        for row, action in zip(rows.tolist(), actions.tolist(), strict=True):
            if self.pairs:
                if self.removed[row] < 0:
                    self.removed[row] = action
                    continue
                action += (self.removed[row] - 1) * self.others  # stages have the later numbers
                self.removed[row] = -1
            board, before = self._problems[row], self.seconds[row]
            near, every = board.modes
            s, t = divmod(action, self.others)
            self.seconds[row] = moves.relocated(
                board.tables, self.cuts[row], self.devices[row], s + 1, t, near, every, before
            )
            self.turn[row] += 1
            if self.seconds[row] < before:
                self.tried[row], self._is_new[row] = False, True
                self.cost[row] = formulas.compose(self.seconds[row], 0.0)
            else:
                self.tried[row, action] = True
            self.over[row] = self.turn[row] == self.turns or self.tried[row].all()

    def plan(self, row: int) -> PipelinePlan:
        """Return the plan of an episode, the shortest that it passed."""
        board = self._problems[row]
        cuts = board.pivots[self.cuts[row, 1:-1]]
        return board.pipeline.plan(cuts, self.devices[row, 1:-1])

    def problem(self, row: int) -> Pipeline:
        return self._problems[row].pipeline

    @property
    def episode_steps(self) -> int:
        return self.turns * (1 + self.pairs)

    def elsewhere(self, options: dict[str, Any]) -> games.Source:
        board = _board(*problems.asked(options, self._instance, self._settings))
        if board.pipeline.stages != self.others + 1:
            raise ParenvsError(
                f"options: {board.pipeline.instance} has {board.pipeline.stages} stages, this "
                f"environment {self.others + 1}; make another environment for it"
            )
        return games.Fixed(board)


class PipelineImprovementEnv(GameEnv, game=PipelineImprovement):
    """A single environment of ``PipelineImprovement``."""


class PipelineImprovementVectorEnv(GameVectorEnv, single=PipelineImprovementEnv):
    """A native batch of ``PipelineImprovement``."""


def _source(
    tier: str | None, fresh: bool, target: Any, settings: Mapping[str, Any], family: str | None,
    order: str,
) -> tuple[games.Source, int]:  # fmt: skip
    """Return the source of the problems that arguments name, and how many stages they have.

    Raises:
        ParenvsError: an argument is unknown, or would be ignored.
    """
    is_set = isinstance(target, str) and target in problems.SETS
    is_drawn = target is None
    for name, is_given, words in (
        ("tier", tier is not None and not is_drawn, "of drawn problems"),
        ("fresh", fresh and not is_drawn, "of drawn problems"),
        ("family", family is not None and not (is_drawn or is_set), "of drawn problems or a set"),
        ("order", games.is_sequential(order) and not is_set, "of a set, like 'plan-s16-test'"),
        *((name, is_drawn or is_set, "of models and files") for name in settings),
    ):
        if is_given:
            raise ParenvsError(f"{name}: it is {words}; leave it out")
    if is_drawn:
        tier = "s16" if tier is None else tier
        refuse_unknown("unknown tier", tier, problems.TIERS)
        if family is not None:
            problems.check_family(family)
        stages, _ = problems.TIERS[tier].stages
        return games.Drawn(partial(_drawn, tier, fresh, family)), stages
    if not is_set:
        board = _board(target, settings)
        return games.Fixed(board), board.pipeline.stages
    members = problems.load_set(target)
    if target not in problems.LARGE:
        raise ParenvsError(
            f"{target}: its problems have different numbers of stages; PipelinePlan-v0 plays it, "
            f"this environment {', '.join(problems.LARGE)}"
        )
    names = chosen({x.name: x.family for x in members}, family, target)
    return games.Members(names, _kept, order), members[0].pipeline.stages


def _board(target: Any, settings: Mapping[str, Any]) -> Board:
    if problems.is_member(target) and not settings:
        return _kept(target)
    return Board(load_problem(target, task="pipeline", **settings))


@lru_cache(maxsize=KEPT)
def _kept(name: str) -> Board:
    return Board(problems.pipeline_of(name))


def _drawn(tier: str, fresh: bool, family: str | None, stream: games.Stream) -> Board:
    low, high = (POOL, NUMBERS) if fresh else (0, POOL)
    while True:
        name = f"{problems.TIER_FIRST}/{tier}/{stream.rng.integers(low, high)}"
        if family in (None, problems.family_of(name)):
            return _kept(name)
