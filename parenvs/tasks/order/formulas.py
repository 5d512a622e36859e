"""How long a 1F1B step takes whose micro-batches differ, every formula once.

Stage s of S does its passes in a fixed order of positions: w_s = S - s - 1 forward passes, then
turns of one forward and one backward pass, then the backward passes that are left (arXiv
2104.04473, section 2.2; ``parenvs.tasks.hybrid.simulate.order``). An order says which micro-batch
takes each position. Turn k of a stage is the forward pass of position k and the backward pass of
position k - w_s; c_s(k), the *frontier*, is when it ends:

    x_s(k) = max( x_{s-1}(k), c_s(k-1) ) + F_s                     end of the forward pass
    c_s(k) = max( x_s(k), c_{s+1}(k-1) ) + B_s                     x_s(k) as long as k < w_s

as stage s + 1 did the backward pass of position k - w_s in turn k - 1. So the S numbers c are all
that later turns need to know of earlier ones. The first line is a prefix maximum:

    x_s(k) = P_s + max_{i <= s} ( c_i(k-1) - P_{i-1} ),   P_s = F_0 + ... + F_s

From turn M on there are no forward passes; the step ends when stage 0 has done turn M + S - 2.

Arrays have the stage axis last. Stages of 0 seconds in front of the others change nothing, not even
a bit: what they wait for, the first stage has waited for already.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Seconds(NamedTuple):
    """Seconds of the passes of M micro-batches, with a row of zeros behind them.

    Attributes:
        before: (M + 1, S) forward seconds of the stages in front of each.
        through: (M + 1, S) ``before`` and the stage's own forward seconds.
        backward: (M + 1, S).
    """

    before: np.ndarray
    through: np.ndarray
    backward: np.ndarray

    @classmethod
    def of(cls, forward: np.ndarray, backward: np.ndarray) -> Seconds:
        """Tabulate the seconds of passes, (S, M) each."""
        stages, count = forward.shape
        before, through, behind = np.zeros((3, count + 1, stages))
        through[:-1] = forward.T.cumsum(axis=1)
        before[:, 1:] = through[:, :-1]
        behind[:-1] = backward.T
        return cls(before, through, behind)


def warming(stages: int, most_turns: int) -> np.ndarray:
    """(turns, S) -inf where a stage does no backward pass yet in a turn, else 0."""
    turn, left = np.arange(most_turns)[:, None], stages - 1 - np.arange(stages)
    return np.where(turn < left, -np.inf, 0.0)


def forward_turn(frontier: np.ndarray, before: np.ndarray, through: np.ndarray) -> np.ndarray:
    """Return x(k), when the forward passes of a turn end; all arrays are (..., S)."""
    latest: np.ndarray = np.maximum.accumulate(frontier - before, axis=-1)
    latest += through
    return latest


def backward_turn(
    reached: np.ndarray, frontier: np.ndarray, backward: np.ndarray, wait: np.ndarray
) -> np.ndarray:
    """Return c(k), when a turn ends.

    Args:
        reached: (..., S) x(k); from turn M on c(k-1).
        frontier: (..., S) c(k-1).
        backward: (..., S) seconds of each stage's backward pass, 0 where it does none.
        wait: (..., S) the row of ``warming`` of the turn.
    """
    ended = reached.copy()
    ended[..., :-1] = np.maximum(reached[..., :-1], frontier[..., 1:] + wait[..., :-1])
    ended += backward
    return ended


def lengths(seconds: Seconds, orders: np.ndarray) -> np.ndarray:
    """Return the seconds of 1F1B steps.

    Args:
        seconds: of M micro-batches.
        orders: (..., K) int, the micro-batch at each position; K may be less than M, then the
            others are left out.

    Returns:
        (...) float64.
    """
    stages, none = seconds.backward.shape[1], len(seconds.backward) - 1
    flat = orders.reshape(-1, orders.shape[-1])
    count = flat.shape[1]
    outside = np.full((len(flat), stages - 1), none)
    padded = np.concatenate([outside, flat, outside], axis=1)
    wait, columns = warming(stages, count + stages - 1), np.arange(stages)
    frontier = np.zeros((len(flat), stages))
    for turn in range(count + stages - 1):
        reached = frontier
        if turn < count:
            chosen = flat[:, turn]
            reached = forward_turn(frontier, seconds.before[chosen], seconds.through[chosen])
        passing = seconds.backward[padded[:, turn : turn + stages], columns]
        frontier = backward_turn(reached, frontier, passing, wait[turn])
    return frontier[:, 0].reshape(orders.shape[:-1])


def insertion_lengths(seconds: Seconds, orders: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the seconds of the steps that result if a micro-batch is taken up at each position.

    A turn looks at S positions, so S turns see the new one; the turns before them are those of the
    old order, and so are those behind, one later. What is behind is a maximum of sums of the
    frontier and constants, its *tails*, which are made from the last turn to the first. So each
    position takes S turns, where its whole step takes K + S.

    Args:
        seconds: of micro-batches.
        orders: (n, K) int, K from 0.
        chosen: (n,) int, the micro-batch that is taken up.

    Returns:
        (n, K + 1) float64, which equal ``lengths`` of the new orders but for rounding.
    """
    rows, count = orders.shape
    stages, none = seconds.backward.shape[1], len(seconds.backward) - 1
    outside = np.full((rows, stages), none)
    padded = np.concatenate([outside, orders, outside], axis=1)  # position p in column p + S
    before, through, columns = seconds.before[orders], seconds.through[orders], np.arange(stages)
    # What turn t of the old order passes back, in column t + 1: on stage s position t - w_s.
    at = np.arange(count + stages + 1)[:, None] + columns
    backward = seconds.backward[padded[:, at], columns]
    wait = warming(stages, count + stages)
    heads = np.zeros((rows, count + 1, stages))
    for turn in range(count):
        reached = forward_turn(heads[:, turn], before[:, turn], through[:, turn])
        heads[:, turn + 1] = backward_turn(
            reached, heads[:, turn], backward[:, turn + 1], wait[turn]
        )
    tails = np.full((rows, count + 1, stages), -np.inf)
    tails[:, count, 0] = 0.0
    for turn in range(count + stages - 2, stages - 2, -1):
        after = tails[:, turn - stages + 2] + backward[:, turn + 1]
        tail = tails[:, turn - stages + 1]
        tail[:] = after
        if turn < count:
            latest = np.maximum.accumulate((after + through[:, turn])[:, ::-1], axis=1)[:, ::-1]
            tail[:] = latest - before[:, turn]
        np.maximum(tail[:, 1:], after[:, :-1], out=tail[:, 1:])
    frontier, passing = heads, np.empty_like(heads)
    for turn in range(stages):
        # Position j + turn of the new order is forward; stage ``own`` passes ``chosen`` back.
        own = stages - 1 - turn
        passing[..., :own] = backward[:, turn + 1 : turn + count + 2, :own]
        passing[..., own] = seconds.backward[chosen, own][:, None]
        passing[..., own + 1 :] = backward[:, turn : turn + count + 1, own + 1 :]
        if turn == 0:
            first = seconds.before[chosen][:, None], seconds.through[chosen][:, None]
            reached = forward_turn(frontier, *first)
        else:
            left = max(count + 1 - turn, 0)  # positions behind which a micro-batch is left
            shifted = slice(turn - 1, turn - 1 + left)
            reached = frontier.copy()
            reached[:, :left] = forward_turn(
                frontier[:, :left], before[:, shifted], through[:, shifted]
            )
        frontier = backward_turn(reached, frontier, passing, wait[turn : turn + count + 1])
    result: np.ndarray = (frontier + tails).max(axis=2)
    return result


def timetable(seconds: Seconds, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return when the passes of one order begin and end.

    Args:
        seconds: of M micro-batches.
        order: (M,) int.

    Returns:
        Begin and end, (2, S, M) float64 each, by kind (forward, backward), stage and micro-batch.
    """
    stages, count = seconds.backward.shape[1], len(order)
    end = np.zeros((2, stages, count))
    frontier, wait = np.zeros(stages), warming(stages, count + stages - 1)
    own = seconds.through - seconds.before
    for turn in range(count + stages - 1):
        reached, passing = frontier, np.zeros(stages)
        if turn < count:
            chosen = order[turn]
            reached = forward_turn(frontier, seconds.before[chosen], seconds.through[chosen])
            end[0, :, chosen] = reached
        position = turn - (stages - 1 - np.arange(stages))
        at = np.flatnonzero((position >= 0) & (position < count))
        passing[at] = seconds.backward[order[position[at]], at]
        frontier = backward_turn(reached, frontier, passing, wait[turn])
        end[1, at, order[position[at]]] = frontier[at]
    return end - np.stack([own[:-1].T, seconds.backward[:-1].T]), end


def machine_bound(forward: np.ndarray, backward: np.ndarray) -> float:
    """Return a lower bound of the step over all orders: one stage, all of whose work is serial.

    Stage d does its first pass when the micro-batch at position 0, say i, has come through the
    stages in front, and does 2 M passes one at a time. The last of them is the backward pass of the
    micro-batch at the last position, say j, which then goes back through the stages in front. So a
    step takes at least ``sum_{s<d} F_si + sum_m (F_dm + B_dm) + sum_{s<d} B_sj``, for some i and j
    that differ if M > 1: their minimum over i and j is a bound, and so is the maximum over d.

    Args:
        forward: (S, M) seconds.
        backward: (S, M) seconds.
    """
    stages, count = forward.shape
    head = forward.cumsum(axis=0) - forward
    tail = backward.cumsum(axis=0) - backward
    ends = head[:, :, None] + tail[:, None, :]
    if count > 1:
        ends[:, np.arange(count), np.arange(count)] = np.inf
    work = (forward + backward).sum(axis=1)
    return float((work + ends.reshape(stages, -1).min(axis=1)).max())
