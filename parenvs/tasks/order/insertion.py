"""``MicroBatchOrder-v1``: put each micro-batch of a 1F1B step, heaviest first, among the others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.core.game import ORDERS, Drawn, Fixed, Members, Rows, Source, Stream, is_sequential
from parenvs.core.registry import problem as problem_of
from parenvs.core.rows import AHEAD, RowGame, Timed
from parenvs.core.sets import OPTIMUM, family_named
from parenvs.datasets.order.drawing import ALL_TIERS, tier_of
from parenvs.datasets.order.named import BANKS, RANGES, drawn_by, numbered
from parenvs.datasets.order.sets import costs
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.order import formulas
from parenvs.tasks.order.load import ORDER_SETS, load_ordering, ordering_steps
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import NANO, Order, OrderReport, pyramid
from parenvs.tasks.order.task import OrderTask

STAGES, MICRO_BATCHES = 64, 256
"""Largest number of stages and of micro-batches."""
KEPT = 2048
"""Problems of sets and banks that are kept."""
SHARP = 20.0
"""What column 0 gives for a step that is longer by its own length: 5 % are one unit."""
JUDGED = 2048
"""Insertions that are judged together, so that their frontiers stay in the cache."""


class Insertion(NamedTuple):
    """A problem as the environment plays it.

    Attributes:
        problem: the problem.
        heaviest: (M,) micro-batches by their work, the heaviest first.
        start: seconds of the pyramid, the start plan.
        known: best cost known, proven optimum; NaN where there is none.
    """

    problem: Order
    heaviest: np.ndarray
    start: float
    bound: float
    known: tuple[float, float] = (np.nan, np.nan)

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.problem.instance

    @classmethod
    def of(cls, problem: Order) -> Insertion:
        """Prepare a problem, with what is known of it if it is of a shipped set.

        Raises:
            InfeasibleError: it has more stages or micro-batches than the environment.
        """
        stages, count = problem.forward.shape
        if stages > STAGES or count > MICRO_BATCHES:
            raise InfeasibleError(
                f"{problem.instance}: {count} micro-batches on {stages} stages; MicroBatchOrder-v1 "
                f"has at most {MICRO_BATCHES} on {STAGES}"
            )
        start = float(problem.length(pyramid(problem.work)))
        bound, known = problem.bound_seconds, (np.nan, np.nan)
        name = problem.instance
        reference = costs(name) if name.split("/")[0] in ORDER_SETS else None
        if reference is not None:
            best, bound = reference.value, max(bound, reference.bound)
            known = (best, best if reference.kind == OPTIMUM else np.nan)
        heaviest = np.argsort(-problem.work, kind="stable")
        return cls(problem, heaviest, start, bound, known)


class MicroBatchInsertion(RowGame):
    """Choose the order of micro-batches that differ, each among those that are ordered already.

    ## Description
    A step trains on M micro-batches of equally many tokens, packed of documents of any length.
    Attention takes time with the squares of the lengths, so micro-batches take unequal time on the
    S stages of a pipeline, and the order in which a 1F1B schedule takes them decides how long
    stages wait for each other (``parenvs.tasks.order.formulas``). Turns go through the
    micro-batches from the heaviest to the lightest; each action is the position that the next one
    takes among those ordered so far. The rule of column 0, the position at which the step of those
    ordered so far is shortest, is the heuristic NEH (Nawaz, Enscore and Ham, Omega 11, 1983).
    Finding the best order is strongly NP-hard from three stages on (``docs/packed-order.md``).

    The rule alone has 0.985 to 0.995 of the best cost known on the test sets, and is within 2 % of
    it on most problems, so this is an environment to check a learner's *sanity*
    (``benchmarks/results/rules.md``).

    ## Action Space
    ``Discrete(M)``: a position, 0 in front of all; M is the tier's. Legal are those up to the
    number of micro-batches that are ordered.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.rows.RowGame``.

    * ``actions``: (M, 7) float32: ``rule``, ``excess``, ``in_front``, ``behind``, ``position``,
      ``first``, ``last``; with ``rows="bare"`` without the first two.
    * ``context``: (6,) float32: ``stages``, ``micro_batches``, ``placed``, ``next``, ``spread``,
      ``stage_spread``.
    * ``action_mask``: (M,) int8.

    ## Rewards
    0 but for the last, which is log(reference / L): L is the length of the step, the reference the
    best known of problems of shipped sets and the pyramid's otherwise. An illegal action ends the
    episode and pays log 0.2.

    ## Starting State
    Nothing is ordered; the problem is one of the bank, or the one that arguments name.

    ## Episode End
    After M turns or an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, the seconds of the step, and of the problem ``start`` (the pyramid), ``bound``,
    ``best_known``, ``optimum`` in seconds and ``regret`` as far as they are known.

    ## Arguments
    * ``tier``: ``"p8-m32"``, ``"p16-m32"``, ``"p16-m64"``, ``"p32-m128"``, ``"p64-m256"``, or the
      small ``"p4-m8"`` and ``"p8-m16"``: stages and micro-batches of the problems of banks, sets
      and draws. None: all tiers of a set.
    * ``instance``: None plays the bank, which is the same everywhere; the name of a set plays its
      problems of the tier; the name of a problem (``"order-test/p8-m32-003"``, or of a drawn one)
      or the path of a ``.json`` file gives that problem at every reset.
      ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``fresh``: with True each reset draws a new problem, in milliseconds.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, which is always fresh.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``problem``: a ``parenvs.tasks.order.problem.Order``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("MicroBatchOrder-v1", num_envs=64)``, see
    ``parenvs.envs.vector.GameVectorEnv``.

    ## Version History
    * v1: insertion, rows, larger steps, returns as logarithms. v0 appended micro-batches.
    """

    options = ("instance",)
    rule = "the position at which the step of the micro-batches ordered so far is shortest (NEH)"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "-20 times what the step is longer than at the best position, as a share",
        "excess": "what the step of those ordered is longer than their work on the busiest stage, "
        "as a share",
        "in_front": "work of the neighbour in front over the mean, less 1; 0 if there is none",
        "behind": "the same of the neighbour behind",
        "position": "the position over the number of micro-batches that are ordered",
        "first": "1 for the position in front of all",
        "last": "1 for the position behind all",
    }
    ahead = frozenset({"rule", "excess"})
    contexts: ClassVar[Mapping[str, str]] = {
        "stages": "S / 64",
        "micro_batches": "M / 256",
        "placed": "micro-batches that are ordered, over M",
        "next": "work of the next micro-batch over the mean, less 1",
        "spread": "standard deviation of the micro-batches' work over the mean",
        "stage_spread": "the same of the stages' work",
    }

    # State: ``order`` (n, M) int64, rows of ``seconds`` in their order so far; ``placed`` (n,).
    # ``seconds`` has a block of M rows for each episode, and a last row of zeros.

    def __init__(
        self,
        count: int = 1,
        *,
        tier: str | None = "p16-m64",
        instance: str | None = None,
        fresh: bool = False,
        ranges: str = "inside",
        rows: str = AHEAD,
        order: str = ORDERS[0],
        problem: Order | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        self.source = source_of(tier, instance, fresh, ranges, order, problem)
        stages, size = _size(tier, self.source)
        super().__init__(count, size, rows)
        self.seconds = formulas.Seconds(*np.zeros((3, count * size + 1, stages)))
        self.problems: list[Insertion] = [None] * count  # type: ignore[list-item]
        self.work = np.zeros((count, size))
        self.heaviest = np.zeros((count, size), dtype=np.int64)
        self.size = np.zeros(count, dtype=np.int64)
        self.order = np.zeros((count, size), dtype=np.int64)
        self.placed = np.zeros(count, dtype=np.int64)
        self._sorted = np.zeros((count, size + 2))  # work less 1 in order, a zero at both ends
        self._fixed = np.zeros((count, len(self.contexts)), dtype=np.float32)
        self._columns = np.arange(size)

    def put(self, rows: Rows, problem: Insertion) -> None:
        """See ``Game.put``."""
        order, size = problem.problem, self.mask.shape[1]
        stages, count = order.stages, order.micro_batches
        width = self.seconds.before.shape[1]
        work = order.work / order.work.mean()
        busy = (order.forward + order.backward).sum(axis=1)
        fixed = [stages / STAGES, count / MICRO_BATCHES, 0.0, 0.0, work.std()]
        for row in self._rows[rows].tolist():
            self.problems[row] = problem
            first = row * size
            for mine, its in zip(self.seconds, order.seconds, strict=True):
                mine[first : first + size, : width - stages] = 0.0
                mine[first : first + count, width - stages :] = its[:-1]
            self.work[row, :count] = work
            self.heaviest[row, :count] = problem.heaviest
            self.size[row] = count
            self._fixed[row] = [*fixed, busy.std() / busy.mean()]
        self.know(rows, problem.start, problem.bound, *problem.known)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: nothing is ordered."""
        self.fresh(rows)
        self.placed[rows] = 0
        self.cost[rows] = np.nan
        self._sorted[rows] = 0.0
        self.actions[rows], self.mask[rows] = 0.0, False
        self.context[rows] = self._fixed[rows]

    def look(self, rows: np.ndarray, part: Rows) -> None:
        """See ``RowGame.look``."""
        placed = self.placed[part]
        coming = self.work[rows, self.heaviest[rows, placed]] - 1.0
        self.context[part, 2] = placed / self.size[part]
        self.context[part, 3] = coming
        turn = int(placed[0])
        if (placed == turn).all():
            self._write(rows, part, turn)
        else:
            for turn in np.unique(placed).tolist():
                chosen = rows[placed == turn]
                self._write(chosen, chosen, turn)

    def _write(self, rows: np.ndarray, part: Rows, turn: int) -> None:
        """Write the rows of episodes in which ``turn`` micro-batches are ordered."""
        end, offset = turn + 1, 2 if self.looks else 0
        actions = self.actions[part, :end]
        self.mask[part, :end] = True
        if self.looks:
            lengths = self._insertions(rows, turn)
            actions[..., 0] = SHARP * (1.0 - lengths / lengths.min(axis=1, keepdims=True))
            actions[..., 1] = lengths / (NANO * self._busiest(rows, turn)[:, None]) - 1.0
        actions[..., offset] = self._sorted[part, :end]
        actions[..., offset + 1] = self._sorted[part, 1 : end + 1]
        actions[..., offset + 2] = self._columns[:end] / max(turn, 1)
        actions[..., offset + 3] = self._columns[:end] == 0
        actions[..., offset + 4] = self._columns[:end] == turn
        if actions.base is None:
            self.actions[part, :end] = actions

    def judging(self, rows: np.ndarray) -> tuple[Timed, Timed]:
        """See ``RowGame.judging``."""
        turns = self.placed[rows]
        groups = [(rows[turns == turn], turn) for turn in np.unique(turns).tolist()]
        count = int((turns + 1).sum())
        looked = Timed(partial(self.look, rows, rows), count)
        return looked, Timed(lambda: [self._insertions(*group) for group in groups], count)

    def move(self, rows: np.ndarray, actions: np.ndarray, part: Rows) -> None:
        """See ``RowGame.move``: put the next micro-batch at a position."""
        placed, size = self.placed[part], self.mask.shape[1]
        number = self.heaviest[rows, placed]
        for values, entry, shift in (
            (self.order, rows * size + number, 0),
            (self._sorted, self.work[rows, number] - 1.0, 1),
        ):
            old = values[part]
            columns = np.arange(old.shape[1]) - shift
            new = np.where(columns < actions[:, None], old, np.roll(old, 1, axis=1))
            new[np.arange(len(rows)), actions + shift] = entry
            values[part] = new
        self.placed[part] += 1
        complete = rows[self.placed[part] == self.size[part]]
        if complete.size:
            self.over[complete] = True
            for count in np.unique(self.size[complete]).tolist():
                ended = complete[self.size[complete] == count]
                orders = self.order[ended, :count]
                self.cost[ended] = formulas.lengths(self.seconds, orders)

    def plan(self, row: int) -> OrderPlan:
        """Return the order so far; the other micro-batches follow, the heaviest first."""
        placed, count = int(self.placed[row]), int(self.size[row])
        order = self.order[row, :placed] - row * self.mask.shape[1]
        return self.problem(row).plan(np.concatenate([order, self.heaviest[row, placed:count]]))

    def problem(self, row: int) -> Order:
        """See ``Game.problem``."""
        return self.problems[row].problem

    def view(self, row: int) -> OrderReport | Order:
        """See ``Game.view``."""
        problem = self.problem(row)
        return problem.report(self.plan(row)) if self.placed[row] else problem

    @property
    def episode_steps(self) -> int:
        """See ``Game.episode_steps``: M."""
        return self.mask.shape[1]

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        problem, size = named(options["instance"]), self.mask.shape[1]
        stages, count = problem.problem.stages, problem.problem.micro_batches
        width = self.seconds.before.shape[1]
        if stages > width or count > size:
            raise InfeasibleError(
                f"{problem.instance}: {count} micro-batches on {stages} stages; this environment "
                f"has at most {size} on {width}; make another one for it"
            )
        return Fixed(problem)

    def _insertions(self, rows: np.ndarray, turn: int) -> np.ndarray:
        """Return the nanoseconds of the step with the next micro-batch at each position.

        They are whole, as those of passes are, so that equal steps are equal: (k, turn + 1).
        """
        chosen = rows * self.mask.shape[1] + self.heaviest[rows, turn]
        several = max(1, JUDGED // (turn + 1))
        lengths = np.concatenate(
            [
                formulas.insertion_lengths(
                    self.seconds, self.order[part, :turn], chosen[begin : begin + several]
                )
                for begin in range(0, len(rows), several)
                for part in (rows[begin : begin + several],)
            ]
        )
        whole: np.ndarray = np.rint(lengths * NANO)
        return whole

    def _busiest(self, rows: np.ndarray, turn: int) -> np.ndarray:
        """Return the seconds that the busiest stage works on the micro-batches so far, (k,)."""
        seconds, size = self.seconds, self.mask.shape[1]
        at = rows[:, None] * size + self.heaviest[rows, : turn + 1]
        passes = seconds.through[at] - seconds.before[at] + seconds.backward[at]
        busiest: np.ndarray = passes.sum(axis=1).max(axis=1)
        return busiest


class MicroBatchInsertionEnv(GameEnv, game=MicroBatchInsertion):
    """A single environment of ``MicroBatchInsertion``."""


class MicroBatchInsertionVectorEnv(GameVectorEnv, single=MicroBatchInsertionEnv):
    """A native batch of ``MicroBatchInsertion``."""


def source_of(
    tier: str | None,
    instance: str | None,
    fresh: bool,
    ranges: str,
    order: str,
    problem: Order | None,
) -> Source:
    """Return the source of problems that the arguments of ``MicroBatchInsertion`` name.

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
    if problem is not None:
        return Fixed(Insertion.of(problem))
    if instance in ORDER_SETS:
        start = "" if tier is None else f"{tier}-"
        names = [name for name in ordering_steps(instance) if name.startswith(start)]
        if not names:
            raise ParenvsError(
                f"{instance} has no problem of tier {tier}; known: "
                f"{', '.join(dict.fromkeys(map(family_named, ordering_steps(instance))))}"
            )
        return Members([f"{instance}/{name}" for name in names], named, order)
    if instance is not None:
        return Fixed(named(instance))
    tiers = [tier] if tier else list(BANKS)
    if fresh or ranges != "inside":
        return Drawn(partial(_fresh, tiers, ranges))
    return Drawn(partial(_of_bank, tiers))


def named(name: object) -> Insertion:
    """Return the problem of a shipped set, a drawn one, or that of a file, which is read anew.

    Raises:
        ParenvsError: there is no such problem, or it is too large.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in ORDER_SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/p4-m8-000")
    if name.split("/")[0] in ORDER_SETS:
        return _of_set(name)
    return Insertion.of(problem_of(name, task=OrderTask.name))


@lru_cache(maxsize=KEPT)
def _of_set(name: str) -> Insertion:
    return Insertion.of(load_ordering(name))


@lru_cache(maxsize=KEPT)
def _numbered(tier: str, number: int) -> Insertion:
    return Insertion.of(numbered(number, tier, "inside"))


def _of_bank(tiers: list[str], stream: Stream) -> Insertion:
    tier = tiers[int(stream.rng.integers(len(tiers)))] if len(tiers) > 1 else tiers[0]
    return _numbered(tier, int(stream.rng.integers(BANKS[tier])))


def _fresh(tiers: list[str], ranges: str, stream: Stream) -> Insertion:
    tier = tiers[int(stream.rng.integers(len(tiers)))] if len(tiers) > 1 else tiers[0]
    return Insertion.of(drawn_by(stream.rng, tier, ranges))


def _size(tier: str | None, source: Source) -> tuple[int, int]:
    """Return the stages and micro-batches that an environment has room for."""
    if isinstance(source, Fixed):
        return source.only.problem.stages, source.only.problem.micro_batches
    tiers = [ALL_TIERS[tier]] if tier else list(ALL_TIERS.values())
    return max(x.stages for x in tiers), max(x.micro_batches for x in tiers)
