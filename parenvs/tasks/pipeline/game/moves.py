"""Whole plans of pipelines in rows of arrays: what they cost, and the moves from each to others."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from parenvs.cluster import group_bandwidth, same_server, server_of
from parenvs.core.game import Rows
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.batch import computes
from parenvs.tasks.pipeline.points import points
from parenvs.tasks.pipeline.problem import Pipeline

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
        """Make room for so many points; what there is stays."""
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
        """Judge plans of problems whose costs the arrays have."""
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
        return Judged(core + tail, tail, needed / limit - 1.0)

    def _judge_one(
        self, index: int, row: int, points: np.ndarray, devices: np.ndarray, result: Judged
    ) -> None:
        """Judge the plans of a problem by its own formulas, in place."""
        board, inner = self.boards[row], slice(1, int(self.stages[row]))
        plan = board.pivots[points[inner, index].T], devices[inner, index].T
        times = board.pipeline.stage_times(*plan)
        seconds = [np.moveaxis(x, -1, 0) for x in (times.forward, times.backward)]
        reduce = np.moveaxis(times.all_reduce, -1, 0)[::2]
        core, tail = formulas.core_and_tail(
            seconds[0] + seconds[1], seconds[1], reduce, board.pipeline.micro_batches
        )
        needed = board.pipeline.excess_bytes(*plan) / board.pipeline.memory_limit
        result.seconds[index], result.tail[index], result.excess[index] = core + tail, tail, needed

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
        """Return what is known of points, by their numbers among those of all problems."""
        return self.chain.reshape(-1).take(flat * COLUMNS + column)
