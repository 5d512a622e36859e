"""``MicroBatchOrder-v0``: choose the micro-batches of a 1F1B step one after the other."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Game, Rows, with_regret
from parenvs.core.plan import ILLEGAL
from parenvs.core.source import ORDERS, Drawn, Fixed, Members, Source, is_sequential
from parenvs.datasets.order.drawing import tier_of
from parenvs.datasets.order.named import RANGES
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.order import formulas
from parenvs.tasks.order.load import ORDER_SETS, ordering_steps
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport
from parenvs.tasks.order.tables import (
    MICRO_BATCHES,
    NUMBERS,
    SECONDS,
    STAGES,
    WAIT,
    OrderTables,
    drawn,
    named,
)

ROWS = MICRO_BATCHES + 1
"""Rows of a problem's tables; the last stands for no micro-batch."""
NONE = MICRO_BATCHES * STAGES
"""Where that row begins."""
KEPT = 1024
"""Maximum number of problems of sets and pools whose seconds are kept."""


class MicroBatchOrder(Game):
    """Choose the order of micro-batches that differ, of many models on many servers.

    ## Description
    A step trains on M micro-batches of equally many tokens, packed of documents of any length.
    Attention takes time with the squares of the lengths, so micro-batches take unequal time on the
    S stages of a pipeline, and the order in which a 1F1B schedule takes them decides how long
    stages wait for each other. Each action places the next micro-batch. At the end the judge
    computes the length of the step (``parenvs.tasks.order.formulas``). Finding the best order is
    strongly NP-hard from three stages on (``docs/packed-order.md``).

    ## Action Space
    ``Discrete(64)``: the number of a micro-batch. The mask of legal actions is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``: micro-batches of the step that have no position.

    ## Observation Space
    ``Dict``, float32. Stages are the last columns: with fewer than 16 stages the columns in front
    are 0, as are rows beyond the last micro-batch.

    * ``forward_seconds``, ``backward_seconds``: (64, 16) in [0, 1], of each micro-batch on each
      stage, divided by those of the longest pass.
    * ``position``: (64,) in [-1, 1], position / 64 of each micro-batch, -1 if it has none.
    * ``frontier``: (16,) in [0, 1], when each stage has done what the micro-batches placed so far
      let it do, less the earliest of them, divided by 32 longest passes. Together with
      ``position`` (whose last 15 are still to go back) it determines the rest of the step.
    * ``numbers``: (5,) in [0, 1]: stages / 16; micro-batches / 64; positions filled / 64; the
      bound, divided by 160 longest passes; the latest of the frontier, divided by twice the bound.

    ## Rewards
    0 for every choice but the last. The last pays 1/L, where L is the length in units of the
    machine bound (``Order.bound_seconds``), so it lies in (0, 1]. An illegal action pays -1 and
    ends the episode.

    ## Starting State
    Nothing is placed; the problem is one that ``reset`` draws, or the one that arguments name.

    ## Episode End
    After M choices or an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; after the last
    choice ``length_seconds``; at the end on a problem of a shipped set whose optimum is proven
    ``optimum``, the largest return, and ``regret``, the share of it that the return falls short of
    (1 for illegal actions).

    ## Arguments
    * ``tier``: ``"p4-m8"``, ``"p8-m16"``, ``"p8-m32"``, ``"p16-m32"`` or ``"p16-m64"``: stages and
      micro-batches of problems that are drawn (``parenvs.datasets.order.drawing``). None draws
      from all.
    * ``instance``: None draws new problems; the name of a set (``"order-validation"``,
      ``"order-test"``, ``"order-outside"``) draws from its problems of the tier; the name of a
      problem (``"order-test/p8-m16-003"``, or of a drawn one) or the path of a ``.json`` file gives
      that problem at every reset. ``reset(options={"instance": ...})`` sets the problem of one
      episode.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``.
    * ``pool``: how many different new problems there are (None: one anew at every reset, which
      takes milliseconds). Problems of a pool are the same in all environments.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on.
    * ``problem``: a ``parenvs.tasks.order.problem.Order``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("MicroBatchOrder-v0", num_envs=64)``, see ``parenvs.envs.vector.GameVectorEnv``.

    ## Version History
    * v0: first version.
    """

    # State of the episodes: ``frontier`` (n, 16) float64 seconds, see ``formulas``; ``offset``
    # (n, 94) int64, 16 times the micro-batch at each position, with 15 positions of none
    # (micro-batch 64) in front and behind; ``placed`` (n,) positions that are filled; ``position``
    # (n, 64) float32, position / 64 of each micro-batch, -1 if it has none.

    options = ("instance",)

    def __init__(
        self,
        count: int = 1,
        *,
        tier: str | None = "p8-m16",
        instance: str | None = None,
        ranges: str = "inside",
        pool: int | None = None,
        order: str = ORDERS[0],
        problem: Order | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        super().__init__(count)
        self.tier = tier
        self.source = source_of(tier, instance, ranges, pool, order, problem)
        self.action_space = spaces.Discrete(MICRO_BATCHES)
        self.observation_space = spaces.Dict(
            {
                **dict.fromkeys(SECONDS, spaces.Box(0.0, 1.0, (MICRO_BATCHES, STAGES), np.float32)),
                "position": spaces.Box(-1.0, 1.0, (MICRO_BATCHES,), np.float32),
                "frontier": spaces.Box(0.0, 1.0, (STAGES,), np.float32),
                "numbers": spaces.Box(0.0, 1.0, (len(NUMBERS),), np.float32),
            }
        )
        self.tables: list[OrderTables] = [None] * count  # type: ignore[list-item]
        # Seconds of the problems: ROWS rows for each episode, and behind them ROWS for each problem
        # of a set or a pool, which is not copied at every reset then.
        self.before, self.through, self.backward = np.zeros((3, count * ROWS, STAGES))
        self._blocks: dict[str, int] = {}
        self.observed = np.zeros((2, count, MICRO_BATCHES, STAGES), dtype=np.float32)
        self.numbers = np.zeros((count, len(NUMBERS)), dtype=np.float32)
        self.bound, self.unit = np.ones(count), np.ones(count)
        self.size = np.zeros(count, dtype=np.int64)
        self.length = np.full(count, np.nan)
        self.frontier = np.zeros((count, STAGES))
        self.offset = np.full((count, MICRO_BATCHES + 2 * STAGES - 2), NONE, dtype=np.int64)
        self.placed = np.zeros(count, dtype=np.int64)
        self.position = np.full((count, MICRO_BATCHES), -1.0, dtype=np.float32)
        self._legal = np.zeros((count, ROWS), dtype=np.bool_)  # the last column is no action
        self._first = np.arange(count) * ROWS
        self._columns = np.arange(STAGES)
        self._cell = self._first[:, None] * STAGES + self._columns

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``: micro-batches without a position."""
        return self._legal[:, :MICRO_BATCHES]

    def put(self, rows: Rows, problem: OrderTables) -> None:
        """See ``Game.put``."""
        indices = self._rows[rows]
        for row in indices.tolist():
            self.tables[row] = problem
        self._first[rows] = first = self._blocks_of(indices, problem) * ROWS
        self._cell[rows] = first[:, None] * STAGES + self._columns
        self.observed[:, rows], self.numbers[rows] = problem.observed[:, None], problem.numbers
        self.bound[rows], self.unit[rows] = problem.bound, problem.unit
        self.size[rows] = problem.micro_batches

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: nothing is placed."""
        self.frontier[rows] = 0.0
        self.offset[rows] = NONE
        self.placed[rows] = 0
        self.position[rows] = -1.0
        self.length[rows] = np.nan
        self.over[rows] = False
        self._legal[rows] = np.arange(ROWS) < self.size[rows][..., None]

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: place a micro-batch in each episode."""
        rows, chosen = self._rows[rows], self.within(actions)
        rewards = np.zeros(len(rows))
        legal = self._legal[rows, chosen]
        if not legal.all():
            rewards[~legal], self.over[rows[~legal]] = ILLEGAL, True
            rows, chosen = rows[legal], chosen[legal]
        complete = self._place(rows, chosen) if rows.size else self.over[:0]
        if complete.any():
            ended = rows[complete]
            self.length[ended] = self._lengths(ended)
            self.over[ended] = True
            paid = np.flatnonzero(legal)[complete]
            rewards[paid] = self.bound[ended] / self.length[ended]
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        frontier = self.frontier[rows]
        latest = frontier.max(axis=1)
        ahead = frontier - frontier.min(axis=1, keepdims=True)
        ahead /= (2 * STAGES) * self.unit[rows][:, None]
        numbers = self.numbers[rows].copy()
        numbers[:, 2] = self.placed[rows] * (1 / MICRO_BATCHES)
        numbers[:, 4] = np.minimum(latest / (2 * self.bound[rows]), 1.0)
        return {
            **dict(zip(SECONDS, self.observed[:, rows], strict=True)),
            "position": self.position[rows],
            "frontier": np.minimum(ahead, 1.0).astype(np.float32),
            "numbers": numbers,
        }

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``length_seconds`` of whole orders."""
        length = self.length[rows]
        values = np.where(length == length, self.bound[rows] / length, ILLEGAL)
        optimum = [self.tables[row].optimum for row in self._rows[rows].tolist()]
        return with_regret({"length_seconds": length}, values, optimum)

    def plan(self, row: int) -> OrderPlan:
        """Return the order so far; the other micro-batches follow by number."""
        placed = self.offset[row, STAGES - 1 :][: int(self.placed[row])] // STAGES
        remaining = np.flatnonzero(self._legal[row])
        return self.problem(row).plan(np.concatenate([placed, remaining]))

    def problem(self, row: int) -> Order:
        """See ``Game.problem``."""
        return self.tables[row].problem

    def view(self, row: int) -> OrderReport | Order:
        """See ``Game.view``."""
        problem = self.problem(row)
        return problem.report(self.plan(row)) if self.placed[row] else problem

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; the largest number if tiers are drawn."""
        if self.draws:
            return MICRO_BATCHES if self.tier is None else tier_of(self.tier).micro_batches
        return int(self.source.only.micro_batches)

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        return Fixed(named(options["instance"]))

    def _blocks_of(self, rows: np.ndarray, tables: OrderTables) -> np.ndarray:
        """Return the block of a problem's seconds for each row; they are written if need be."""
        if tables.key in self._blocks:
            return np.full(len(rows), self._blocks[tables.key])
        blocks = rows
        if tables.key and len(self._blocks) < KEPT:
            block = self.count + len(self._blocks)
            self._blocks[tables.key] = block
            if len(self.before) < (block + 1) * ROWS:
                more = np.zeros((max(len(self._blocks), 16) * ROWS, STAGES))
                for name in ("before", "through", "backward"):
                    setattr(self, name, np.concatenate([getattr(self, name), more]))
            blocks = np.full(len(rows), block)
        for block in np.unique(blocks).tolist():
            part = slice(block * ROWS, (block + 1) * ROWS)
            self.before[part], self.through[part] = tables.before, tables.through
            self.backward[part] = tables.backward
        return blocks

    def _place(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Place legal micro-batches, (k,), and return which orders are complete now, (k,) bool."""
        turn = self.placed[rows]
        self.offset[rows, turn + STAGES - 1] = chosen * STAGES
        self.position[rows, chosen] = turn * (1 / MICRO_BATCHES)
        self._legal[rows, chosen] = False
        self.placed[rows] = turn + 1
        is_all = len(rows) == self.count
        frontier = self.frontier if is_all else self.frontier[rows]
        at = self._first[rows] + chosen
        reached = formulas.forward_turn(
            frontier, self.before.take(at, axis=0), self.through.take(at, axis=0)
        )
        after = self._back(rows, turn, reached, frontier)
        if is_all:
            self.frontier = after
        else:
            self.frontier[rows] = after
        return turn + 1 == self.size[rows]

    def _lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the seconds of the steps of complete orders, (k,) float64."""
        frontier, size = self.frontier[rows], self.size[rows]
        for after in range(STAGES - 1):
            frontier = self._back(rows, size + after, frontier, frontier)
        return frontier[:, 0]

    def _back(
        self, rows: np.ndarray, turn: np.ndarray, reached: np.ndarray, frontier: np.ndarray
    ) -> np.ndarray:
        """Do the backward passes of a turn."""
        # Stage s passes position turn - w_s, and w_s falls by one a column.
        is_all, first = len(rows) == self.count, int(turn[0])
        wait = WAIT[first]
        if (turn == first).all():
            passing = self.offset[:, first : first + STAGES]
            passing = passing if is_all else passing[rows]
        else:
            passing, wait = self.offset[rows[:, None], turn[:, None] + self._columns], WAIT[turn]
        cells = passing + (self._cell if is_all else self._cell[rows])
        return formulas.backward_turn(reached, frontier, self.backward.take(cells), wait)


class MicroBatchOrderEnv(GameEnv, game=MicroBatchOrder):
    """A single environment of ``MicroBatchOrder``."""


class MicroBatchOrderVectorEnv(GameVectorEnv, single=MicroBatchOrderEnv):
    """A native batch of ``MicroBatchOrder``."""


def source_of(
    tier: str | None,
    instance: str | None,
    ranges: str,
    pool: int | None,
    order: str,
    problem: Order | None,
) -> Source:
    """Return the source of problems that the arguments of ``MicroBatchOrder`` name.

    Raises:
        ParenvsError: an argument is unknown, or there is no set that has an order.
    """
    if tier is not None:
        tier_of(tier)
    if is_sequential(order) and instance not in ORDER_SETS:
        raise ParenvsError(
            f"order: {order!r} plays a set, like instance='order-test'; leave it out"
        )
    if ranges not in RANGES:
        raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {shown(ranges)}")
    if pool is not None and (type(pool) is not int or not 1 <= pool < 2**31):
        raise ParenvsError(f"pool must be a whole number from 1 or None, not {shown(pool)}")
    if problem is not None:
        return Fixed(OrderTables.of(problem))
    if instance is None:
        return Drawn(partial(drawn, tier, ranges, pool))
    if instance not in ORDER_SETS:
        return Fixed(named(instance))
    start = "" if tier is None else f"{tier}-"
    members = [f"{instance}/{name}" for name in ordering_steps(instance) if name.startswith(start)]
    return Members(members, named, order)
