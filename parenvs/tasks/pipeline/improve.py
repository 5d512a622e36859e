"""``PipelinePlan-v1``: improve a whole plan of a pipeline of many stages, one move a turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.cluster import SYNC_METHODS, Cluster, group_bandwidth, same_server, server_of
from parenvs.core.game import (
    EVERY,
    ORDERS,
    Drawn,
    Fixed,
    Members,
    Rows,
    Source,
    Stream,
    is_sequential,
)
from parenvs.core.registry import problem as load_problem
from parenvs.core.rows import AHEAD, RANGE, RowGame, Timed
from parenvs.datasets.pipeline import problems
from parenvs.datasets.pipeline.families import FAMILIES
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    PIPELINE_OPTIONS,
    RECOMPUTE,
    TIED,
)
from parenvs.tasks.pipeline.plan import PipelinePlan as Plan
from parenvs.tasks.pipeline.problem import Pipeline, Report, stages_on
from parenvs.tasks.pipeline.spaces import points

POINTS = 1000
"""Largest number of points of a chain."""
DEVICES = 4096
"""Largest number of devices."""
STAGES = 64
"""Largest number of stages."""
FAR = 4
"""Far moves are of one over this of the smaller stage's points or devices, at least two."""
POINT_STEPS = (-2, -1, 1, 2, 0, 0, 0, 0, -2, 2, 0)
"""Steps of the point of a boundary, by kind of move; 2 is far."""
DEVICE_STEPS = (0, 0, 0, 0, -2, -1, 1, 2, -2, 2, 0)
"""The same of its first device."""
SWAP, MERGE, SPLIT, KINDS = 10, 11, 12, 13
"""Kinds of moves of a boundary."""
FORWARD, BACKWARD, PARAMETERS, CROSSING, AFTER, BEFORE = range(6)
COLUMNS = 6
"""What is known of a point, see ``Board.chain``."""
FEWEST = 3
"""Stages from which on there are merges and splits."""
JUDGED = 60_000
"""Boundaries of plans that are judged together, so that they stay in the cache."""


class Board:
    """A problem over at most ``POINTS`` points, prepared for ``Boards``.

    Args:
        pipeline: the problem.
        cuts: pivots that are among the points.

    Attributes:
        pivots: (m + 1,) int64, boundaries of the points.
        figures: (7,): micro-batches, copies, bytes that a device may hold, bytes/s inside a server
            and between servers, devices a server, devices.
        plain: whether the arrays of a board have the costs.
    """

    def __init__(self, pipeline: Pipeline, cuts: np.ndarray) -> None:
        self.pipeline, self.plain = pipeline, computes(pipeline)
        room = POINTS if len(pipeline.profile) <= POINTS else POINTS - len(cuts)
        self.pivots = np.union1d(points(pipeline, room, by_network=True), cuts)
        cluster = pipeline.cluster
        self.figures = np.array(
            [
                *(pipeline.micro_batches, pipeline.copies, pipeline.memory_limit),
                *(cluster.intra_bw, cluster.inter_bw, cluster.devices_per_server, cluster.devices),
            ]
        )

    @cached_property
    def chain(self) -> np.ndarray:
        """Of each point, (m + 1, ``COLUMNS``).

        Forward and backward seconds and parameters up to there, bytes that cross there, the first
        point so that a variable lies between (m + 1 if there is none), and the last one (or -1).
        """
        pipeline, pivots = self.pipeline, self.pivots
        values = (
            pipeline.forward_sum, pipeline.backward_sum, pipeline.parameter_sum, pipeline.cut_before
        )  # fmt: skip
        variables = pipeline.variable_sum[pivots]
        after = np.searchsorted(variables, variables, side="right")
        before = np.searchsorted(variables, variables, side="left") - 1
        return np.stack([*(each[pivots] for each in values), after, before], axis=1)

    @cached_property
    def inside(self) -> np.ndarray:
        """Largest cut of 1, 2, 4, ... points from each on, (levels, m) float64."""
        pivots = self.pivots
        rows = [self.pipeline.largest_cut(pivots[:-1], pivots[1:])]
        while (half := 1 << (len(rows) - 1)) < len(pivots) - 1:
            row = rows[-1].copy()
            np.maximum(row[:-half], row[half:], out=row[:-half])
            rows.append(row)
        return np.array(rows)


def computes(pipeline: Pipeline) -> bool:
    """Return whether the arrays of a board have the costs of a problem."""
    is_plain = pipeline.recompute == "full" and pipeline.sync == "allreduce"
    return is_plain and pipeline.tied_weights is None and not pipeline.frozen_sum[-1]


class Judged(NamedTuple):
    """What plans cost, arrays of one shape.

    Attributes:
        seconds: of a step.
        tail: the part of them behind the last micro-batch.
        excess: bytes of the fullest device over those that it may hold, less 1; <= 0 fits.
    """

    seconds: np.ndarray
    tail: np.ndarray
    excess: np.ndarray


class Moves(NamedTuple):
    """Moves from plans, (``KINDS``, stages - 1, k) each, int16 and bool.

    A move takes a boundary away and puts one in at a point and a device.

    Attributes:
        taken: the number of the boundary, from 1.
        point: its new point.
        device: its new first device.
        legal: whether there is this move.
    """

    taken: np.ndarray
    point: np.ndarray
    device: np.ndarray
    legal: np.ndarray


class Boards:
    """Plans of n problems, one of each.

    Boundaries of a plan are those of its stages, both ends included: b + 1 for b stages. Where
    problems have fewer stages than others, the boundaries behind repeat the end.

    Args:
        count: n.
        stages: the most stages.

    Attributes:
        boards: the problems.
        stages: (n,) int64.
        plans: (2, stages + 1, n) int64, ``points`` and ``devices``.
        known: (stages + 1, n, ``COLUMNS``) what is known of that point, see ``settle``.
    """

    def __init__(self, count: int, stages: int) -> None:
        self.boards: list[Board] = [None] * count  # type: ignore[list-item]
        self.stages = np.ones(count, dtype=np.int64)
        self.plans = np.zeros((2, stages + 1, count), dtype=np.int64)
        self.known = np.zeros((stages + 1, count, COLUMNS))
        self.plain = np.ones(count, dtype=np.bool_)
        self.figures = np.ones((7, count))
        self.chain = np.zeros((count, 0, COLUMNS))
        self.inside = np.zeros((0, count, 0))

    @property
    def points(self) -> np.ndarray:
        """(stages + 1, n) int64, the point of each boundary."""
        return self.plans[0]

    @property
    def devices(self) -> np.ndarray:
        """(stages + 1, n) int64, its first device."""
        return self.plans[1]

    def _grow(self, size: int) -> None:
        count, levels = len(self.boards), size.bit_length() + 1
        for name, shape in (
            ("chain", (count, size + 1, COLUMNS)), ("inside", (levels, count, size + 1)),
        ):  # fmt: skip
            old, new = getattr(self, name), np.zeros(shape)
            new[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, new)

    def put(self, row: int, board: Board) -> None:
        """Write a problem into a row."""
        end = len(board.pivots)
        if end > self.chain.shape[1]:
            self._grow(end - 1)
        self.boards[row], self.plain[row] = board, board.plain
        self.stages[row], self.figures[:, row] = board.pipeline.stages, board.figures
        self.chain[row, :end] = board.chain
        self.inside[: len(board.inside), row, : end - 1] = board.inside

    def settle(self, rows: np.ndarray) -> Judged:
        """Note what is known of points of plans that changed; return what these cost, (k, 1)."""
        points, devices = self.points[:, rows, None], self.devices[:, rows, None]
        self.known[:, rows] = known = self.chain.reshape(-1, COLUMNS).take(self._flat(rows), axis=0)
        return self.judge(rows, points, devices, known[:, :, None])

    def judge(
        self, rows: np.ndarray, points: np.ndarray, devices: np.ndarray, known: Any = None
    ) -> Judged:
        """Return what plans cost, (k, a) each.

        Args:
            rows: (k,) int64, the problem of each group of plans.
            points: (stages + 1, k, a) int64.
            devices: (stages + 1, k, a) int64.
            known: (stages + 1, k, a, ``COLUMNS``) what is known of the points (default: it is
                looked up).
        """
        result = self._judge(rows, points, devices, known)
        for index in np.flatnonzero(~self.plain[rows]).tolist():
            self._judge_one(index, int(rows[index]), points, devices, result)
        return result

    def after_moves(
        self, rows: np.ndarray, taken: np.ndarray, point: np.ndarray, device: np.ndarray
    ) -> Judged:
        """Return what plans cost after moves, (k, a) each; arguments as of ``successors``."""
        several = max(1, JUDGED // (len(self.points) * taken.shape[1]))
        parts = []
        for begin in range(0, len(rows), several):
            part = slice(begin, begin + several)
            some = (rows[part], taken[part], point[part], device[part])
            parts.append(self.judge(rows[part], *self.successors(*some)))
        return Judged(*map(np.concatenate, zip(*parts, strict=True)))

    def _judge(
        self, rows: np.ndarray, points: np.ndarray, devices: np.ndarray, known: Any
    ) -> Judged:
        figures = self.figures[:, rows, None]
        micro_batches, copies, limit, intra, inter, server, _ = figures
        width = self.chain.shape[1]
        flat = points + (rows * width)[:, None]
        starts, ends = devices[:-1], devices[1:]
        group = np.maximum(ends - starts, 1.0)
        servers = server.astype(np.int64)
        first, last = server_of(starts, servers), server_of(ends - 1, servers)
        near, link = first == last, first[:-1] == last[1:]
        forward, backward, weights, cuts = (
            self._of(flat, x) if known is None else known[..., x] for x in range(AFTER)
        )
        seconds = formulas.stage_seconds(
            forward,
            backward,
            weights,
            crossing=cuts[1:-1],
            group=group,
            group_bandwidth=group_bandwidth(near, intra, inter),
            link_bandwidth=group_bandwidth(link, intra, inter),
        )
        both = seconds.forward + seconds.backward
        core, tail = formulas.core_and_tail(
            both, seconds.backward, seconds.all_reduce, micro_batches
        )
        span = points[1:] - points[:-1]
        filled = span > 0
        level = np.frexp(np.maximum(span, 1))[1] - 1
        first = level * (len(self.boards) * width) + flat[:-1]
        tables = self.inside.reshape(-1)
        largest = np.maximum(tables.take(first), tables.take(first + span - (1 << level)))
        left = self.stages[rows][:, None] - np.arange(len(span))[:, None, None]
        flight = formulas.in_flight(np.maximum(left, 1), micro_batches)
        held = formulas.recomputed_bytes(largest, cuts[:-1], flight)
        own = formulas.weight_bytes(weights[1:] - weights[:-1], copies)
        needed = np.where(filled, formulas.stage_bytes(own, held, group), 0.0).max(axis=0)
        return Judged(formulas.compose(core, tail), tail, needed / limit - 1.0)

    def _judge_one(
        self, index: int, row: int, points: np.ndarray, devices: np.ndarray, result: Judged
    ) -> None:
        board, inner = self.boards[row], slice(1, int(self.stages[row]))
        plan = board.pivots[points[inner, index].T], devices[inner, index].T
        times = board.pipeline.stage_times(*plan)
        seconds = [np.moveaxis(x, -1, 0) for x in (times.forward, times.backward)]
        reduce = np.moveaxis(times.all_reduce, -1, 0)[::2]
        core, tail = formulas.core_and_tail(
            seconds[0] + seconds[1], seconds[1], reduce, board.pipeline.micro_batches
        )
        needed = board.pipeline.excess_bytes(*plan) / board.pipeline.memory_limit
        result.seconds[index] = formulas.compose(core, tail)
        result.tail[index], result.excess[index] = tail, needed

    def loads(self, rows: Rows) -> np.ndarray:
        """Return the seconds of a micro-batch on each stage, both directions, (stages, k)."""
        work = self.work(rows)
        group = np.maximum(np.diff(self.devices[:, rows], axis=0), 1)
        return formulas.compute_seconds(np.diff(work, axis=0), group)

    def work(self, rows: Rows) -> np.ndarray:
        """Return forward plus backward seconds on one device up to each boundary."""
        known = self.known[:, rows]
        work: np.ndarray = known[..., FORWARD] + known[..., BACKWARD]
        return work

    def links(self, rows: Rows) -> np.ndarray:
        """Return the seconds of the transfers of a micro-batch, both directions, (stages-1, k)."""
        _, _, _, intra, inter, server, _ = self.figures[:, rows]
        devices = self.devices[:, rows]
        near = same_server(devices[:-2], devices[2:], server.astype(np.int64))
        crossing = self.known[1:-1, rows, CROSSING]
        return 2.0 * formulas.transfer_seconds(crossing, group_bandwidth(near, intra, inter))

    def moves(self, rows: Rows, loads: np.ndarray) -> Moves:
        """Return the moves from the plans of rows; ``loads`` are those of their stages."""
        stages = self.stages[rows]
        points, devices, after, before = (
            values[:, rows].astype(np.int16)
            for values in (*self.plans, self.known[..., AFTER], self.known[..., BEFORE])
        )
        boundaries, count = len(points) - 2, points.shape[1]
        shape = (KINDS, boundaries, count)
        point, device = np.empty((2, *shape), dtype=np.int16)
        number = np.arange(1, boundaries + 1, dtype=np.int16)[:, None]
        taken = np.broadcast_to(number, shape).copy()
        for place, values, kinds in (
            (points, point, POINT_STEPS), (devices, device, DEVICE_STEPS),
        ):  # fmt: skip
            size = np.maximum(np.diff(place, axis=0) // FAR, 2)
            middle = place[1:-1]
            steps = {-2: -size[:-1], 2: size[1:], -1: -1, 1: 1, 0: 0}
            for kind, step in enumerate(kinds):
                values[kind] = middle + steps[step]
        device[SWAP] = devices[:-2] + devices[2:] - devices[1:-1]
        # A merge puts its boundary into the slowest stage; a split takes the one between the two
        # stages that are fastest together.
        low, high = after[:-1], before[1:]
        groups = np.diff(devices, axis=0)
        halves = (
            np.clip(points[:-1] + np.diff(points, axis=0) // 2, low, high),
            devices[:-1] + groups // 2,
        )
        inside = np.arange(boundaries + 1)[:, None] < stages
        parted = inside & (low <= high) & (groups > 1)
        column = np.arange(count)
        slow = np.where(parted, loads, -1.0).argmax(axis=0)
        work = self.work(rows)
        merged = formulas.compute_seconds(
            work[2:] - work[:-2], np.maximum(groups[:-1] + groups[1:], 1)
        )
        real = number < stages
        light = np.where(real, merged, np.inf).argmin(axis=0) + 1
        point[MERGE], device[MERGE] = halves[0][slow, column], halves[1][slow, column]
        taken[SPLIT], point[SPLIT], device[SPLIT] = light, halves[0][1:], halves[1][1:]
        legal = (point >= low[:-1]) & (point <= high[1:])
        legal &= (device > devices[:-2]) & (device < devices[2:])
        legal[SWAP] &= device[SWAP] != devices[1:-1]
        several = stages >= FEWEST
        legal[MERGE] = parted[slow, column] & several & (slow != number) & (slow != number - 1)
        legal[SPLIT] = parted[1:] & several & (light != number) & (light != number + 1)
        legal &= real
        return Moves(taken, point, device, legal)

    def successors(
        self, rows: Rows, taken: np.ndarray, point: np.ndarray, device: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the points and devices of plans after moves, (stages + 1, k, a) each.

        Args:
            rows: k episodes.
            taken: (k, a), see ``Moves``.
            point: (k, a).
            device: (k, a).
        """
        result = []
        index = taken[None]
        for place, value in ((self.points, point), (self.devices, device)):
            plans = np.repeat(place[:, rows][..., None], taken.shape[1], axis=2)
            np.put_along_axis(plans, index, value[None], axis=0)
            plans.sort(axis=0)
            result.append(plans)
        return result[0], result[1]

    def _flat(self, rows: Rows) -> np.ndarray:
        """Return the boundaries as numbers of points of all problems, (stages + 1, k)."""
        starts: Any = np.arange(len(self.boards))[rows] * self.chain.shape[1]
        flat: np.ndarray = self.points[:, rows] + starts
        return flat

    def _of(self, flat: np.ndarray, column: int) -> np.ndarray:
        return self.chain.reshape(-1).take(flat * COLUMNS + column)


TURNS, LEAST_TURNS = 2, 16
"""Turns of an episode, over its stages, and the fewest turns."""
SHARP = 30.0
"""What column 0 gives for a step that is shorter by a factor e: 3 % are one unit."""
PLATEAU = 1e-3
"""What column 0 takes from every move, so that its rule stops where no move gains."""
OVER = 1.0
"""What a plan that does not fit loses, in logarithms of seconds, besides its excess."""
LOOKED = 16_384
"""Rows that are written together, so that they stay in the cache."""
KEPT = 2048
"""Problems of sets and banks that are kept."""
UNKNOWN = 10**12
"""Numbers of fresh problems lie below this."""
DEFAULTS: dict[str, Any] = {
    "cluster": "C", "stages": None, "micro_batch": MICRO_BATCH, "micro_batches": MICRO_BATCHES,
    "copies": COPIES, "recompute": RECOMPUTE[0], "sync": SYNC_METHODS[0], "tied": TIED[0],
}  # fmt: skip
"""Settings of named problems -> their defaults."""


class Start(NamedTuple):
    """A problem as the environment plays it.

    Attributes:
        board: the problem over points.
        plan: (2, S + 1) int64, points of the start plan and its first devices, both ends included.
        seconds: of its step.
        fixed: (6,) what contexts say of the problem.
        known: best seconds known, proven optimum; NaN where there is none.
        bound: seconds that no plan takes less than.
    """

    board: Board
    plan: np.ndarray
    seconds: float
    fixed: np.ndarray
    known: tuple[float, float]
    bound: float

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.board.pipeline.instance

    @classmethod
    def of(cls, pipeline: Pipeline) -> Start:
        """Prepare a problem: find the start plan, and what is known of the problem.

        Raises:
            InfeasibleError: it is too large for the environment, or has no plan.
        """
        pipeline = pipeline.with_fractions()
        if pipeline.stages > STAGES or pipeline.cluster.devices > DEVICES:
            raise InfeasibleError(
                f"{pipeline.instance}: {pipeline.stages} stages on {pipeline.cluster.devices} "
                f"devices; PipelinePlan-v1 has at most {STAGES} on {DEVICES}"
            )
        cuts, devices = problems.begin(pipeline)
        board = Board(pipeline, cuts)
        seconds = float(pipeline.length(cuts, devices))
        bound, known = pipeline.bubble_free, (np.nan, np.nan)
        name = pipeline.instance
        optimum = problems.optimum_of(name)
        if optimum is not None:  # over points and units, which other plans may be shorter than
            known = (pipeline.bubble_free / optimum, np.nan)
        elif name.split("/")[0] in problems.LARGE:
            reference = problems.costs(pipeline)
            if reference is not None:
                known, bound = (reference.value, np.nan), max(bound, reference.bound)
        cluster = pipeline.cluster
        fixed = (
            pipeline.stages / STAGES,
            (len(board.pivots) - 1) / POINTS,
            np.log2(cluster.devices) / np.log2(DEVICES),
            np.log2(cluster.devices_per_server) / 3,
            np.log2(pipeline.micro_batches) / 6,
            np.log2(cluster.intra_bw / cluster.inter_bw) / 16,
        )
        inner = np.stack([np.searchsorted(board.pivots, cuts), devices])
        last = [[len(board.pivots) - 1], [cluster.devices]]
        plan = np.concatenate([np.zeros_like(last), inner, last], axis=1)
        return cls(board, plan, seconds, np.array(fixed), known, bound)


class PipelineImprovement(RowGame):
    """Improve the plan of a pipeline of many stages, one move a turn.

    ## Description
    A chain of up to 1,000 points is cut into S stages, and up to 4,096 devices under it into as
    many groups of consecutive ones, so that a training step is short (arXiv 2007.04069, sections
    3.5 and 4.4; the formula is in ``parenvs.tasks.pipeline.formulas``). An episode begins with the
    plan of a brief search near a graded plan (``parenvs.agents.pipeline.exact.begun``), and each
    turn takes a move to a plan near it. The shortest plan passed that fits the memory counts, so
    that an episode may go through longer plans, and through those that do not fit.

    ## Action Space
    ``Discrete(13 (S - 1) + 1)``: 13 moves of each boundary between two stages, from the first, and
    the last action stops. Moves 0 to 3 of a boundary move its point by a far step to the front, one
    to the front, one to the back, a far step to the back; 4 to 7 move its first device alike; 8 and
    9 move both by far steps to the front or the back; 10 swaps the numbers of devices of the two
    stages; 11 merges them, and parts the slowest stage in halves; 12 parts the stage behind the
    boundary, and merges the two neighbours that are fastest together. A far step is a quarter of
    the stage that shrinks, at least two. Legal are moves after which every stage has a variable and
    a device; a merge or a split needs two stages or neighbours apart from each other.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.rows.RowGame``.

    * ``actions``: (13 (S - 1) + 1, 17) float32: ``rule``, ``gain``, ``record``, ``tail``,
      ``excess``, ``cut``, ``device``, ``swap``, ``merge``, ``split``, ``stop``, ``points``,
      ``devices``, ``front``, ``behind``, ``link``, ``position``; with ``rows="bare"`` without the
      first five.
    * ``context``: (14,) float32: ``stages``, ``chain``, ``cluster``, ``server``,
      ``micro_batches``, ``network``, ``left``, ``gained``, ``behind_best``, ``over``,
      ``last``, ``slowest``, ``spread``, ``transfer``.
    * ``action_mask``: (13 (S - 1) + 1,) int8.

    ## Rewards
    A turn pays the change of log(reference / L), where L is the length of a step of the shortest
    plan so far; the reference is the best known of problems of shipped sets and the start plan
    otherwise. An illegal action ends the episode and leaves log 0.2.

    ## Starting State
    The start plan; the problem is one of the bank, or the one that arguments name.

    ## Episode End
    By the last action, after 2 S turns and 16 at least, or by an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, the seconds of the shortest plan, and of the problem ``start`` (the start plan),
    ``bound``, ``best_known`` in seconds and ``regret`` as far as they are known.

    ## Arguments
    * ``tier``: ``"s16"``, ``"s32"``, ``"s64"``, or ``"s8"`` to teach: stages of the problems of
      the bank and of fresh draws (``parenvs.datasets.pipeline.problems.TIERS``).
    * ``instance``: None plays the bank of the tier, which is the same everywhere; the name of a
      set (``"plan-s16-test"``, ``"plan-s32-validation"``, ``"plan-test"``) plays its problems; the
      name of a problem (``"plan-s16-test/cnn-003"``, ``"generated-3/s16/17"``), a shipped name, or
      the path of a ``.csv`` profile or of a graph gives that problem at every reset.
      ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``family``: problems of this family only, of a set or of the bank.
    * ``fresh``: with True each reset draws a new problem, in tens of milliseconds.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``, ``tied``: settings of named instances and files, as in ``PipelineCut-v0``; they are
      also keys of ``options``.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("PipelinePlan-v1", num_envs=64)``, see ``parenvs.envs.vector.GameVectorEnv``.

    ## Version History
    * v1: improvement, rows, up to 64 stages, 1,000 points and 4,096 devices, returns as logarithms.
      v0 chose points and units of at most 8 stages in turn, which an exact search solves.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS)
    keeps = False
    rule = "the move after which the step is shortest, of those that fit, or to stop"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "30 times the logarithm by which the step gets shorter; a plan that does not fit "
        "loses one and its excess more",
        "gain": "log of the seconds of the plan over those after the move",
        "record": "log of the seconds of the best plan so far over those after the move",
        "tail": "share of a step behind the last micro-batch, after the move",
        "excess": "bytes of the fullest device over those that it may hold, less 1, at most 1",
        "cut": "1 if the point of the boundary moves",
        "device": "1 if its first device moves",
        "swap": "1 for a swap",
        "merge": "1 for a merge",
        "split": "1 for a split",
        "stop": "1 for the action that stops",
        "points": "points that the boundary moves, over those of a mean stage",
        "devices": "devices that it moves, over those of a mean stage",
        "front": "seconds of the stage in front of the boundary over the slowest one's",
        "behind": "the same of the stage behind",
        "link": "x / (1 + x) of the transfer's seconds there over the slowest stage's",
        "position": "number of the boundary over the stages",
    }
    ahead = frozenset({"rule", "gain", "record", "tail", "excess"})
    contexts: ClassVar[Mapping[str, str]] = {
        "stages": "S / 64",
        "chain": "points / 1000",
        "cluster": "log2 of the devices / 12",
        "server": "log2 of the devices of a server / 3",
        "micro_batches": "log2 of the micro-batches / 6",
        "network": "log2 of the bandwidth inside a server over that between / 16",
        "left": "share of the turns that is left",
        "gained": "log of the seconds of the start plan over those of the best plan",
        "behind_best": "log of the seconds of the plan over those of the best plan",
        "over": "bytes of the fullest device over those that it may hold, less 1, at most 1",
        "last": "share of the plan's step behind the last micro-batch",
        "slowest": "number of the slowest stage over S",
        "spread": "seconds of a mean stage over those of the slowest",
        "transfer": "x / (1 + x) of the longest transfer's seconds over the slowest stage's",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        tier: str = "s16",
        instance: Any = None,
        family: str | None = None,
        fresh: bool = False,
        rows: str = AHEAD,
        order: str = ORDERS[0],
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        tied: str = TIED[0],
        problem: Pipeline | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            **{"instance": instance, "cluster": cluster, "stages": stages},
            **{"micro_batch": micro_batch, "micro_batches": micro_batches, "copies": copies},
            **{"recompute": recompute, "sync": sync, "tied": tied},
        }
        check_settings(self._settings, problem)
        self.source, most = source_of(tier, family, fresh, order, problem, self._settings)
        super().__init__(count, KINDS * (most - 1) + 1, rows)
        self.boards = Boards(count, most)
        self.starts: list[Start] = [None] * count  # type: ignore[list-item]
        self.turn = np.zeros(count, dtype=np.int64)
        self._now = Judged(np.ones(count), np.ones(count), np.ones(count))
        self._best = np.zeros((2, most + 1, count), dtype=np.int64)
        self._moves: Moves
        self._loads = self._links = np.zeros((0, count))  # over those of the slowest stage
        self._fixed = np.zeros((count, len(self.contexts)), dtype=np.float32)
        kinds = np.zeros((KINDS, len(self.shown)), dtype=np.float32)
        for name, steps in (("cut", POINT_STEPS), ("device", DEVICE_STEPS)):
            kinds[:SWAP, self.shown.index(name)] = np.sign(np.abs(steps))[:SWAP]
        for name, kind in (("swap", SWAP), ("merge", MERGE), ("split", SPLIT)):
            kinds[kind, self.shown.index(name)] = 1.0
        self._plain = np.concatenate([np.tile(kinds, (most - 1, 1)), np.zeros_like(kinds[:1])])
        self._plain[-1, self.shown.index("stop")] = 1.0

    def put(self, rows: Rows, problem: Start) -> None:
        """See ``Game.put``."""
        for row in self._rows[rows].tolist():
            self.starts[row] = problem
            self.boards.put(row, problem.board)
        self._fixed[rows, : len(problem.fixed)] = problem.fixed
        self.know(rows, problem.seconds, problem.bound, *problem.known)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: the plan is the start plan."""
        self.fresh(rows)
        boards, rows = self.boards, self._rows[rows]
        self.turn[rows] = 0
        for row in rows.tolist():
            plan = self.starts[row].plan
            boards.plans[:, : plan.shape[1], row] = plan
            boards.plans[:, plan.shape[1] :, row] = plan[:, -1:]
        self._judge(rows)
        self.cost[rows] = self._now.seconds[rows]
        self._best[:, :, rows] = boards.plans[:, :, rows]
        self.context[rows] = self._fixed[rows]

    def look(self, rows: np.ndarray, part: Rows) -> None:
        """See ``RowGame.look``: all are looked at, as their moves stand together."""
        boards = self.boards
        loads, links, stages = boards.loads(EVERY), boards.links(EVERY), boards.stages
        self._moves, slowest = boards.moves(EVERY, loads), loads.max(axis=0)
        self._loads, self._links = loads / slowest, links / slowest
        self.mask[rows, :-1] = self._moves.legal.T.reshape(self.count, -1)[rows]
        self.mask[rows, -1] = True
        context = self.context.copy()
        context[:, 6] = 1.0 - self.turn / turns_of(stages)
        context[:, 7] = np.log(self._known[0] / self.cost)
        context[:, 8] = np.log(self._now.seconds / self.cost)
        context[:, 9] = np.minimum(self._now.excess, 1.0)
        context[:, 10] = self._now.tail / self._now.seconds
        context[:, 11] = loads.argmax(axis=0) / stages
        context[:, 12] = loads.sum(axis=0) / stages / slowest
        context[:, 13] = _bounded(links.max(axis=0) / slowest)
        self.context[rows] = context[rows]

    def rows_of(self, rows: Rows) -> np.ndarray:
        """See ``RowGame.rows_of``."""
        numbers = self._rows[rows]
        actions = np.empty((len(numbers), *self._plain.shape), dtype=np.float32)
        # Some episodes at a time, so that their rows stay in the cache.
        several = max(1, LOOKED // len(self._plain))
        for begin in range(0, len(numbers), several):
            some = slice(begin, begin + several)
            self._write(numbers[some], some if rows is EVERY else numbers[some], actions[some])
        actions[self.over[rows] & ~np.isnan(self.cost[rows])] = 0.0
        return actions

    def _write(self, rows: np.ndarray, part: Rows, actions: np.ndarray) -> None:
        boards, stages = self.boards, self.boards.stages[part]
        found = Moves(*(x[..., part] for x in self._moves))
        loads, links = self._loads[:, part], self._links[:, part]
        actions[:] = self._plain
        moving = actions[:, :-1].reshape(*found.legal.T.shape, -1)
        for name, place, target in (
            ("points", boards.points, found.point), ("devices", boards.devices, found.device)
        ):  # fmt: skip
            step = target[: SWAP + 1] - place[1:-1, part].astype(np.int16)
            scaled = step * (stages / place[-1, part])
            moving[..., : SWAP + 1, self.shown.index(name)] = scaled.T
        position = np.arange(1, len(loads))[:, None] / stages
        columns = [x.T for x in (loads[:-1], loads[1:], _bounded(links), position)]
        last = np.stack(columns, axis=-1).astype(np.float32, order="C")
        # Several numbers as one item: items are set several times as fast as rows of numbers.
        item = np.dtype((np.void, last.strides[1]))
        moving[..., -len(columns) :].view(item)[..., 0] = last.view(item)
        if self.looks:
            self._look_ahead(rows, found, moving)
        item = np.dtype((np.void, actions.strides[1]))
        actions.view(item).reshape(-1)[np.flatnonzero(~self.mask[part])] = np.zeros((), item)

    def _look_ahead(self, rows: np.ndarray, found: Moves, moving: np.ndarray) -> None:
        judged = self.boards.after_moves(rows, *self._taken(rows, found))
        now = Judged(*(x[rows, None] for x in self._now))
        gain = np.log(now.seconds / judged.seconds)
        worth = gain - _lost(judged.excess) + _lost(now.excess)
        for column, values in enumerate(
            (
                SHARP * worth - PLATEAU,
                gain,
                gain - self.context[rows, 8, None],
                judged.tail / judged.seconds,
                np.minimum(judged.excess, 1.0),
            )
        ):
            moving[..., column] = np.clip(values, -RANGE, RANGE).reshape(moving.shape[:-1])

    def _taken(self, rows: np.ndarray, found: Moves) -> tuple[np.ndarray, ...]:
        """Return moves as ``Boards.after_moves`` takes them; illegal ones change nothing."""
        taken, point, device, legal = (x.T.reshape(len(rows), -1) for x in found)
        return (
            np.where(legal, taken, 1),
            np.where(legal, point, self.boards.points[1, rows][:, None]),
            np.where(legal, device, self.boards.devices[1, rows][:, None]),
        )

    def judging(self, rows: np.ndarray) -> tuple[Timed, Timed]:
        """See ``RowGame.judging``."""
        found = Moves(*(x[..., rows] for x in self._moves))
        taken = self._taken(rows, found)
        formulas = partial(self.boards.after_moves, rows, *taken)

        def looked() -> None:
            self.look(rows, rows)
            self.rows_of(rows)

        return Timed(looked, taken[0].size), Timed(formulas, taken[0].size)

    def move(self, rows: np.ndarray, actions: np.ndarray, part: Rows) -> None:
        """See ``RowGame.move``."""
        stop = self.mask.shape[1] - 1
        self.over[rows[actions == stop]] = True
        rows, actions = rows[actions != stop], actions[actions != stop]
        if not rows.size:
            return
        boundary, kind = actions // KINDS, actions % KINDS
        taken, point, device = (
            x[kind, boundary, rows, None].astype(np.int64) for x in self._moves[:3]
        )
        points, devices = self.boards.successors(rows, taken, point, device)
        self.boards.points[:, rows], self.boards.devices[:, rows] = points[..., 0], devices[..., 0]
        self.turn[rows] += 1
        self._judge(rows)
        now = Judged(*(x[rows] for x in self._now))
        better = rows[(now.excess <= 0) & (now.seconds < self.cost[rows])]
        self.cost[better] = self._now.seconds[better]
        self._best[:, :, better] = self.boards.plans[:, :, better]
        self.over[rows[self.turn[rows] >= turns_of(self.boards.stages[rows])]] = True

    def _judge(self, rows: np.ndarray) -> None:
        for mine, its in zip(self._now, self.boards.settle(rows), strict=True):
            mine[rows] = its[:, 0]

    def plan(self, row: int) -> Plan:
        """Return the shortest plan so far."""
        board, inner = self.starts[row].board, slice(1, int(self.boards.stages[row]))
        points, devices = self._best[:, inner, row]
        return board.pipeline.plan(board.pivots[points], devices)

    def problem(self, row: int) -> Pipeline:
        """See ``Game.problem``."""
        return self.starts[row].board.pipeline

    def view(self, row: int) -> Report | Pipeline:
        """See ``Game.view``."""
        return self.problem(row).report(self.plan(row))

    @property
    def episode_steps(self) -> int:
        """See ``Game.episode_steps``: 2 S, 16 at least."""
        return int(turns_of(len(self.boards.points) - 1))

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        settings = {**self._settings, **options}
        if settings["instance"] is None or settings["instance"] in problems.SETS:
            raise ParenvsError("options: 'instance' must name a problem, a graph or a file")
        check_settings(settings, None)
        start, most = named(settings), len(self.boards.points) - 1
        stages = start.board.pipeline.stages
        if stages > most:
            raise InfeasibleError(
                f"{start.instance}: {stages} stages; this environment has at most {most}; make "
                "another one for it"
            )
        return Fixed(start)


class PipelineImprovementEnv(GameEnv, game=PipelineImprovement):
    """A single environment of ``PipelineImprovement``."""


class PipelineImprovementVectorEnv(GameVectorEnv, single=PipelineImprovementEnv):
    """A native batch of ``PipelineImprovement``."""


def turns_of(stages: Any) -> Any:
    """Return the turns of episodes of plans of so many stages, elementwise."""
    return np.maximum(TURNS * stages, LEAST_TURNS)


def source_of(
    tier: str,
    family: str | None,
    fresh: bool,
    order: str,
    problem: Pipeline | None,
    settings: dict[str, Any],
) -> tuple[Source, int]:
    """Return the source of problems that the arguments name, and their largest number of stages.

    Raises:
        ParenvsError: an argument is unknown, or would be ignored.
    """
    instance = settings["instance"]
    if problem is not None and not isinstance(problem, Pipeline):
        raise ParenvsError(f"problem must be a parenvs.Pipeline, not {shown(problem)}")
    for word, values, name in ((tier, problems.TIERS, "tier"), (family, FAMILIES, "family")):
        if word not in values and (word is not None or name == "tier"):
            raise ParenvsError(
                f"unknown {name} {shown(word)}{did_you_mean(str(word), values)}; known: "
                f"{', '.join(values)}"
            )
    is_set = isinstance(instance, str) and instance in problems.SETS
    if is_sequential(order) and (problem is not None or not is_set):
        raise ParenvsError(
            f"order: {order!r} plays a set, like instance='plan-s16-test'; leave it out"
        )
    given = {"fresh": fresh, "family": family is not None and not is_set}
    for name, value in given.items():
        if value and (problem is not None or instance is not None):
            raise ParenvsError(f"{name}: no problems are drawn here; leave it out")
    if problem is not None or (instance is not None and not is_set):
        start = Start.of(problem) if problem is not None else named(settings)
        return Fixed(start), start.board.pipeline.stages
    if is_set:
        names = [x.name for x in problems.load_set(instance) if family in (None, x.family)]
        stages = problems.SETS[instance][1].stages[1]
        return Members(names, _member, order), stages
    draw = partial(_fresh if fresh else _of_bank, tier, family)
    return Drawn(draw), problems.TIERS[tier].stages[1]


def check_settings(settings: dict[str, Any], problem: Pipeline | None) -> None:
    """Raise an error for settings that would be ignored.

    Args:
        settings: ``instance`` and the keys of ``DEFAULTS``.
        problem: the problem that is given beside them, if there is one.

    Raises:
        ParenvsError: a setting is given for problems that have their own.
    """
    instance = settings["instance"]
    changed = [name for name, value in DEFAULTS.items() if settings[name] != value]
    if problem is not None and (changed or instance is not None):
        name = next(iter(changed), "instance")
        raise ParenvsError(f"{name}: the argument problem has its own; leave out one of them")
    if changed and problem is None and (instance is None or is_member(instance)):
        raise ParenvsError(
            f"{changed[0]}: drawn problems have settings of their own; leave it out, or name the "
            "instance, graph or file that it is for"
        )


def is_member(instance: Any) -> bool:
    """Return whether an instance is the name of a set, of a problem of one, or of a drawn one."""
    first = instance.split("/")[0] if isinstance(instance, str) else ""
    return first in (*problems.SETS, *problems.DRAWN)


def named(settings: dict[str, Any]) -> Start:
    """Return the problem of a name, a graph or a file, with the given settings.

    Raises:
        ParenvsError: there is none, or it is too large.
    """
    settings = dict(settings)
    instance = settings.pop("instance")
    if is_member(instance):
        return _member(instance)
    settings["cluster"] = Cluster.parse(settings["cluster"])
    if settings["stages"] is None:
        settings["stages"] = min(stages_on(settings["cluster"]), STAGES)
    return Start.of(load_problem(instance, fractions=True, **settings))


@lru_cache(maxsize=KEPT)
def _member(name: str) -> Start:
    return Start.of(problems.find(name).pipeline)


def _of_bank(tier: str, family: str | None, stream: Stream) -> Start:
    return _member(
        f"{problems.TIER_FIRST}/{tier}/{_number(stream, 0, problems.BANKS[tier], family)}"
    )


def _fresh(tier: str, family: str | None, stream: Stream) -> Start:
    number = _number(stream, problems.BANKS[tier], UNKNOWN, family)
    return Start.of(problems.numbered(number, tier).pipeline)


def _number(stream: Stream, first: int, end: int, family: str | None) -> int:
    number = int(stream.rng.integers(first, end))
    if family is None:
        return number
    which, several = list(FAMILIES).index(family), len(FAMILIES)
    number = number // several * several + which
    return number if first <= number < end else number % several + (first // several + 1) * several


def _lost(excess: np.ndarray) -> np.ndarray:
    return np.where(excess > 0, OVER + np.minimum(excess, 1.0), 0.0)


def _bounded(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + x)
