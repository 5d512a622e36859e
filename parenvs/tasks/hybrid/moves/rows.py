"""Observations and steps of episodes that improve plans, compiled; see ``HybridImprovement``."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from parenvs.compiled import Array, bare
from parenvs.tasks.hybrid.moves import changes
from parenvs.tasks.hybrid.moves import columns as col
from parenvs.tasks.hybrid.moves.catalog import AXES, KEPT
from parenvs.tasks.hybrid.moves.changes import Plan, Problems
from parenvs.tasks.hybrid.moves.costs import Work, judge, judge_all, work_for

SHARP = 30.0
"""What column 0 gives for a neighbor that is faster by a share: 3 % are one unit."""
FIXED = 10
"""Features of the context that are of the problem alone."""


Episodes = namedtuple("Episodes", (
    "at", "plans", "best", "length", "fullness", "busy", "held", "cost", "start", "bound",
    "moves", "on", "left", "fixed",
))  # fmt: skip
"""What is known of n episodes, one in each row: number of the problem, plan and the fastest passed,
seconds of a step, bytes on the fullest device over the limit, both of each stage, (n, S), seconds
of the fastest plan passed, of the start plan, and what no plan is below, moves of the catalog by
slot, (n, 96), agent on turn, share of the turns that are left, and ``FIXED`` features."""


Actions = namedtuple("Actions", (
    "moves", "slots", "action", "owner", "stops", "plan", "work", "order", "filled", "stages",
    "figures", "which",
))  # fmt: skip
"""What actions are, and memory for those of one episode.

Attributes:
    slots: (axes, 2) first slot of each axis, and number of its slots.
    action: (96,) of each slot; ``owner`` is its agent.
    stops: (agents,) the action by which each stops or passes.
    figures: (3, 96) seconds, fullness and imbalance of neighbors.
    which: (3, 96) slot and move of neighbors, and their numbers, the fastest first.
"""


def memory_for(problems: Problems, plans: Plan) -> tuple[Any, ...]:
    """Return the memory in ``Actions``, for some problems and plans as wide as ``plans``."""
    plan = Plan(*(np.zeros(values.shape[1:], np.int64) for values in plans))
    order, filled = np.zeros(col.MAX_STAGES, np.int64), np.zeros(len(AXES), np.int64)
    stages, figures = np.zeros((2, col.MAX_STAGES)), np.zeros((3, KEPT))
    which = np.zeros((3, KEPT), np.int64)
    return plan, work_for(problems), order, filled, stages, figures, which


@bare
def imbalance(busy: Array, count: int) -> float:
    """Return the work of the busiest of some stages over the mean, less 1."""
    total, most = 0.0, 0.0
    for stage in range(count):
        total, most = total + busy[stage], max(most, busy[stage])
    return most * count / total - 1.0


@bare
def judge_plans(problems: Problems, episodes: Episodes, which: Array, work: Work) -> None:
    """Judge the plans of some episodes, which may be the fastest so far."""
    judge_all(
        problems, episodes.at, episodes.plans, which, work, episodes.length, episodes.fullness,
        episodes.busy, episodes.held,
    )  # fmt: skip
    for k in which:
        if episodes.length[k] < episodes.cost[k]:
            episodes.cost[k] = episodes.length[k]
            changes.copy_plan(changes.plan_at(episodes.best, k), changes.plan_at(episodes.plans, k))


@bare
def advance(
    problems: Problems, episodes: Episodes, actions: Actions, which: Array, moves: Array
) -> None:
    """Take the neighbor of each of some episodes to which a move of the catalog leads."""
    order, into = actions.order, actions.plan
    for i in range(len(which)):
        row, plan = episodes.at[which[i]], changes.plan_at(episodes.plans, which[i])
        changes.busiest_first(plan.numbers[col.COUNT], episodes.busy[which[i]], order)
        changes.neighbor(problems, row, plan, order, actions.moves, moves[i], into)
        changes.copy_plan(plan, into)
    judge_plans(problems, episodes, which, actions.work)


@bare
def look(
    problems: Problems, episodes: Episodes, actions: Actions, which: Array, looks: bool,
    features: Array, context: Array, mask: Array,
) -> None:  # fmt: skip
    """Write the observations of some episodes: features of actions and contexts, and masks."""
    for k in which:
        mask[k, :], features[k, :, :] = False, 0.0
        count = _judge_neighbors(problems, episodes, actions, k)
        _write_actions(problems, episodes, actions, k, count, looks, features[k], mask[k])
        _write_context(problems, episodes, k, context[k])


@bare
def _judge_neighbors(problems: Problems, episodes: Episodes, actions: Actions, k: int) -> int:
    """Judge the neighbors of an episode's plan; return the number of those that fit."""
    row, plan, into = episodes.at[k], changes.plan_at(episodes.plans, k), actions.plan
    busy, held = actions.stages[0], actions.stages[1]
    filled, moves, figures, which = actions.filled, actions.moves, actions.figures, actions.which
    changes.busiest_first(plan.numbers[col.COUNT], episodes.busy[k], actions.order)
    episodes.moves[k, :], filled[:], fine = -1, 0, 0
    for move in range(len(moves.kind)):
        axis = moves.axis[move]
        if filled[axis] == actions.slots[axis, 1]:
            continue
        if not changes.neighbor(problems, row, plan, actions.order, moves, move, into):
            continue
        slot = actions.slots[axis, 0] + filled[axis]
        filled[axis] += 1
        episodes.moves[k, slot] = move
        if actions.owner[slot] != episodes.on[k]:
            continue
        length, fullness = judge(problems, row, into, actions.work, busy, held)
        if not fullness <= 1:
            continue
        figures[0, fine], figures[1, fine] = length, fullness
        figures[2, fine] = imbalance(busy, into.numbers[col.COUNT])
        which[0, fine], which[1, fine] = slot, move
        place = fine
        while place > 0 and figures[0, which[2, place - 1]] > length:
            which[2, place] = which[2, place - 1]
            place -= 1
        which[2, place] = fine
        fine += 1
    return fine


@bare
def _write_actions(
    problems: Problems, episodes: Episodes, actions: Actions, k: int, count: int, looks: bool,
    features: Array, mask: Array,
) -> None:  # fmt: skip
    """Write the features of stopping, and of the ``count`` neighbors that fit."""
    known, plan = problems.known[episodes.at[k]], changes.plan_at(episodes.plans, k)
    now, stop, moves = episodes.length[k], actions.stops[episodes.on[k]], actions.moves
    offset, faster = 5 if looks else 0, 0
    for place in range(count):
        number = actions.which[2, place]
        move, action = actions.which[1, number], actions.action[actions.which[0, number]]
        row, rank, length = features[action], moves.rank[move], actions.figures[0, number]
        mask[action] = True
        faster += length < now
        if looks:
            row[0] = SHARP * np.log(now / length)
            row[1] = np.log(episodes.cost[k] / length)
            row[2], row[3] = actions.figures[1, number], actions.figures[2, number]
            row[4] = place / count
        for column in range(moves.features.shape[1]):
            row[offset + 1 + column] = moves.features[move, column]
        if rank >= 0:
            stage, last = actions.order[rank], len(row)
            row[last - 6] = stage / max(plan.numbers[col.COUNT] - 1, 1)
            row[last - 5] = changes.layers_of(plan, stage) / known.layers
            row[last - 4] = plan.stages[stage, col.DEVICES] / known.devices
            row[last - 3] = np.log2(plan.stages[stage, col.TP]) / 3
            row[last - 2] = episodes.busy[k, stage] / episodes.busy[k, actions.order[0]]
            row[last - 1] = episodes.held[k, stage]
    mask[stop] = True
    features[stop, offset] = 1.0
    if looks:
        features[stop, 4] = faster / max(count, 1)


@bare
def _write_context(problems: Problems, episodes: Episodes, k: int, out: Array) -> None:
    """Write the context of an episode, see ``HybridImprovement.contexts``."""
    known, plan = problems.known[episodes.at[k]], changes.plan_at(episodes.plans, k)
    numbers, stages, count = plan.numbers, plan.stages, plan.numbers[col.COUNT]
    chunks, samples = numbers[col.CHUNKS], numbers[col.SAMPLES]
    length, best, micro_batches = episodes.length[k], episodes.cost[k], known.batch // samples
    dp, least = stages[0, col.DEVICES] // (stages[0, col.TP] * numbers[col.CONTEXT]), np.inf
    for stage in range(count):
        least = min(least, stages[stage, col.TP])
    values = (
        np.log(length / episodes.bound[k]),
        np.log(episodes.start[k] / best),
        np.log(length / best),
        count / col.MAX_STAGES,
        np.log2(chunks) / 4,
        np.log2(samples) / 13,
        np.log2(micro_batches) / 13,
        np.log2(dp) / 9,
        1.0 * numbers[col.SHARED],
        np.log2(numbers[col.CONTEXT]) / 4,
        np.log2(numbers[col.EXPERT]) / 6,
        1.0 if numbers[col.SHARD] > 0 else 0.0,
        np.log2(changes.most(plan, col.TP)) / 3,
        np.log2(least) / 3,
        changes.total(plan, col.ZERO, count) / count / 3,
        changes.total(plan, col.FULL, count) / known.layers,
        changes.total(plan, col.SELECTIVE, count) / known.layers,
        (count - 1) / (micro_batches * chunks + count - 1),
        changes.total(plan, col.DEVICES, count) / known.devices,
        episodes.fullness[k],
        imbalance(episodes.busy[k], count),
        episodes.left[k],
    )
    for column in range(FIXED):
        out[column] = episodes.fixed[k, column]
    for column in range(len(values)):
        out[FIXED + column] = values[column]
