"""``MicroBatchOrder-v0``: choose the micro-batches of a 1F1B step one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import PLAYED, PlanEnv, check_options, outcome_of, whole_number
from parenvs.tasks.order import formulas
from parenvs.tasks.order.game.tables import (
    MICRO_BATCHES,
    NUMBERS,
    SECONDS,
    STAGES,
    WAIT,
    OrderTables,
    Source,
    named,
)
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport

ROWS = MICRO_BATCHES + 1
"""Rows of a problem's tables; the last stands for no micro-batch."""
NONE = MICRO_BATCHES * STAGES
"""Where that row begins."""
KEPT = 1024
"""Most problems of sets and pools whose seconds are kept."""


class Play:
    """The turns of n episodes at once; the single environment is the case n = 1.

    Attributes:
        tables: the problem of each episode.
        frontier: (n, 16) float64 seconds, see ``parenvs.tasks.order.formulas``.
        offset: (n, 94) int64, 16 times the micro-batch at each position, with 15 positions of none
            (micro-batch 64) in front and behind.
        placed: (n,) int64, positions that are filled.
        position: (n, 64) float32, position / 64 of each micro-batch, -1 if it has none.
        legal: (n, 65) bool, micro-batches that have no position; the last column is no action.
    """

    def __init__(self, count: int) -> None:
        self.tables: list[OrderTables] = []
        # Seconds of the problems: a place of ROWS rows for each episode, and behind them one for
        # each problem of a set or a pool, which is not copied at every reset then.
        self.before, self.through, self.backward = np.zeros((3, count * ROWS, STAGES))
        self._places: dict[str, int] = {}
        self.observed = np.zeros((2, count, MICRO_BATCHES, STAGES), dtype=np.float32)
        self.numbers = np.zeros((count, len(NUMBERS)), dtype=np.float32)
        self.bound, self.unit = np.ones(count), np.ones(count)
        self.size = np.zeros(count, dtype=np.int64)
        self.frontier = np.zeros((count, STAGES))
        self.offset = np.full((count, MICRO_BATCHES + 2 * STAGES - 2), NONE, dtype=np.int64)
        self.placed = np.zeros(count, dtype=np.int64)
        self.position = np.full((count, MICRO_BATCHES), -1.0, dtype=np.float32)
        self.legal = np.zeros((count, ROWS), dtype=np.bool_)
        self._first = np.arange(count) * ROWS
        self._columns = np.arange(STAGES)
        self._cell = self._first[:, None] * STAGES + self._columns

    def put(self, row: int, tables: OrderTables) -> None:
        """Give an episode another problem."""
        first = self._place_of(row, tables) * ROWS
        self._first[row] = first
        self._cell[row] = first * STAGES + self._columns
        self.observed[:, row], self.numbers[row] = tables.observed, tables.numbers
        self.bound[row], self.unit[row] = tables.bound, tables.unit
        self.size[row] = tables.micro_batches

    def _place_of(self, row: int, tables: OrderTables) -> int:
        """Return the place of a problem's seconds; they are written there if they are not yet."""
        place, count = self._places.get(tables.key), len(self.placed)
        if place is not None:
            return place
        place = row
        if tables.key and len(self._places) < KEPT:
            place = count + len(self._places)
            self._places[tables.key] = place
            if len(self.before) < (place + 1) * ROWS:
                more = np.zeros((max(len(self._places), 16) * ROWS, STAGES))
                for name in ("before", "through", "backward"):
                    setattr(self, name, np.concatenate([getattr(self, name), more]))
        rows = slice(place * ROWS, (place + 1) * ROWS)
        self.before[rows], self.through[rows] = tables.before, tables.through
        self.backward[rows] = tables.backward
        return place

    def start(self, who: Any) -> None:
        """Start the episodes of ``who`` with nothing placed."""
        self.frontier[who] = 0.0
        self.offset[who] = NONE
        self.placed[who] = 0
        self.position[who] = -1.0
        self.legal[who] = np.arange(ROWS) < self.size[who][..., None]

    def place(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Place legal micro-batches in episodes ``rows``, (k,) int64 each.

        Returns:
            The episodes whose order is complete now, (j,) int64.
        """
        turn = self.placed[rows]
        self.offset[rows, turn + STAGES - 1] = chosen * STAGES
        self.position[rows, chosen] = turn * (1 / MICRO_BATCHES)
        self.legal[rows, chosen] = False
        self.placed[rows] = turn + 1
        is_all = len(rows) == len(self.placed)
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
        return rows[turn + 1 == self.size[rows]]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
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
        is_all, first = len(rows) == len(self.placed), int(turn[0])
        wait = WAIT[first]
        if (turn == first).all():
            passing = self.offset[:, first : first + STAGES]
            passing = passing if is_all else passing[rows]
        else:
            passing, wait = self.offset[rows[:, None], turn[:, None] + self._columns], WAIT[turn]
        cells = passing + (self._cell if is_all else self._cell[rows])
        return formulas.backward_turn(reached, frontier, self.backward.take(cells), wait)

    def observation(self, rows: Any) -> dict[str, np.ndarray]:
        """Return the arrays of the observation that change, (k, ...)."""
        frontier = self.frontier[rows]
        latest = frontier.max(axis=1)
        ahead = frontier - frontier.min(axis=1, keepdims=True)
        ahead /= (2 * STAGES) * self.unit[rows][:, None]
        numbers = self.numbers[rows].copy()
        numbers[:, 2] = self.placed[rows] * (1 / MICRO_BATCHES)
        numbers[:, 4] = np.minimum(latest / (2 * self.bound[rows]), 1.0)
        return {
            "frontier": np.minimum(ahead, 1.0).astype(np.float32),
            "position": self.position[rows].copy(),
            "numbers": numbers,
        }


class MicroBatchOrderEnv(PlanEnv):
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
      problem (``"order-test/p8-m16-003"``) or the path of a ``.json`` file gives that problem at
      every reset. ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``.
    * ``pool``: how many different new problems there are (None: one anew at every reset, which
      takes milliseconds). Problems of a pool are the same in all environments.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on.
    * ``problem``: a ``parenvs.tasks.order.problem.Order``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("MicroBatchOrder-v0", num_envs=64)``, see ``MicroBatchOrderVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = ("instance",)

    def __init__(
        self,
        tier: str | None = "p8-m16",
        instance: str | None = None,
        ranges: str = "inside",
        pool: int | None = None,
        order: str = PLAYED[0],
        problem: Order | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the fixed problem, or draw a first one; see the class for the arguments."""
        super().__init__(render_mode)
        self.source = Source(tier, instance, ranges, pool, order)
        self.fixed: OrderTables | None = None
        if problem is not None:
            self.fixed = OrderTables.of(problem)
        elif self.source.is_fixed:
            self.fixed = named(instance)
        self._play, self._row = Play(1), np.zeros(1, dtype=np.int64)
        # A problem to render before the first reset.
        self._use(self.fixed or self.source.draw(np.random.default_rng(0)))
        self.action_space = spaces.Discrete(MICRO_BATCHES)
        self.observation_space = spaces.Dict(
            {
                **dict.fromkeys(SECONDS, spaces.Box(0.0, 1.0, (MICRO_BATCHES, STAGES), np.float32)),
                "position": spaces.Box(-1.0, 1.0, (MICRO_BATCHES,), np.float32),
                "frontier": spaces.Box(0.0, 1.0, (STAGES,), np.float32),
                "numbers": spaces.Box(0.0, 1.0, (len(NUMBERS),), np.float32),
            }
        )

    @property
    def draws(self) -> bool:
        """Whether problems are drawn, from the generator or from a set."""
        return self.fixed is None

    def _elsewhere(self, options: dict[str, Any]) -> OrderTables:
        check_options(options, self.OPTIONS)
        return named(options["instance"])

    def _enter(self, other: OrderTables | None) -> None:
        if other is None:
            other = self.fixed or self.source.draw(self.np_random, self._next)
            self._next += 1
        self._use(other)

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Place a micro-batch."""
        action, reward = whole_number(action), 0.0
        if self._over or not (0 <= action < MICRO_BATCHES and self._play.legal[0, action]):
            self._over, reward = True, ILLEGAL
            self._outcome = outcome_of(ILLEGAL, self._play.tables[0].optimum)
        elif len(self._play.place(self._row, np.array([action]))):
            self._over = True
            length = float(self._play.lengths(self._row)[0])
            reward = self.problem.bound_seconds / length
            known = outcome_of(reward, self._play.tables[0].optimum)
            self._outcome = {"length_seconds": length, **known}
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (64,) bool; all are true once the episode is over."""
        if self._over:
            return np.ones(MICRO_BATCHES, dtype=np.bool_)
        return self._play.legal[0, :MICRO_BATCHES].copy()

    def plan(self) -> OrderPlan:
        """Return the order so far; the other micro-batches follow by number."""
        return plan_of(self._play, 0)

    def _viewable(self) -> OrderReport | Order:
        return viewable(self._play, 0)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; the largest number if tiers are drawn."""
        return MICRO_BATCHES if self.draws and self.source.tier is None else int(self._play.size[0])

    @property
    def largest_return(self) -> float:
        """An upper bound of the return; learners scale returns by it."""
        return 1.0

    def _observation(self) -> dict[str, Any]:
        play = self._play
        changing = {key: value[0] for key, value in play.observation(self._row).items()}
        seconds = zip(SECONDS, play.observed[:, 0].copy(), strict=True)
        return {**dict(seconds), **changing}

    def _use(self, tables: OrderTables) -> None:
        """Start an episode of a problem."""
        self.problem = tables.problem
        self._play.tables[:] = [tables]
        self._play.put(0, tables)
        self._start()

    def _start(self) -> None:
        self._play.start(self._row)
        self._over, self._outcome = False, {}


def plan_of(play: Play, row: int) -> OrderPlan:
    """Return the order of an episode so far; the other micro-batches follow by number."""
    placed = play.offset[row, STAGES - 1 :][: int(play.placed[row])] // STAGES
    rest = np.flatnonzero(play.legal[row, :MICRO_BATCHES])
    return play.tables[row].problem.plan(np.concatenate([placed, rest]))


def viewable(play: Play, row: int) -> OrderReport | Order:
    """Return the judge's report on an episode's order so far, or the problem if there is none."""
    problem = play.tables[row].problem
    return problem.report(plan_of(play, row)) if play.placed[row] else problem
