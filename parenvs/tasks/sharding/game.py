"""``IntraOpSharding-v0``: choose the strategies of a program's nodes, or solve blocks anew."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Game, Rows, regret_of
from parenvs.core.plan import ILLEGAL
from parenvs.core.sets import proven_optimum
from parenvs.core.source import ORDERS, Drawn, Fixed, Members, Source, Stream, is_sequential
from parenvs.datasets.sharding import drawing
from parenvs.datasets.sharding.drawing import FAMILIES, NODES, RANGES, SETS, STRATEGIES
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding, ShardingReport
from parenvs.tasks.sharding.turns import construct, improve
from parenvs.tasks.sharding.turns.advice import LEVELS
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct, board_of
from parenvs.tasks.sharding.turns.improve import MOVES, Improve
from parenvs.tasks.sharding.turns.worth import REWARDS, worth_of

FORMS = {"construct": construct, "improve": improve}
"""Forms of the environment, and the modules of their rules."""
DRAWS = 10**6
"""Numbers of the problems that are drawn."""


class IntraOpSharding(Game):
    """Choose a strategy for every node of a program so that it costs little within its memory.

    ## Description
    A problem of the ASPLOS 2025 contest on intra-operator parallelism (arXiv 2501.10387), or a
    drawn one: each node takes one of its strategies, nodes and edges cost, and at no time may the
    nodes in use exceed a limit. The problem is reduced first, which changes no optimum
    (``parenvs.tasks.sharding.reduce``). With ``form="construct"`` each action takes a strategy for
    the next node, in the order of the program. With ``form="improve"`` the episode begins with the
    plan that the greedy rule builds, and each action chooses the node whose block is solved anew.

    ## Action Space
    ``Discrete(width)``: the strategy of the node in hand, or the node. The mask of legal actions is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``.

    A strategy is legal if it is allowed with all decided neighbours, every neighbour that follows
    keeps one allowed with it, and the limit is kept with all other nodes at their least.
    Where no pair is forbidden and every node has a strategy that always uses its least, as in the
    contest's problems B, G, L and V after reduction, exactly the strategies that can be completed
    are legal. On all other problems a legal plan for the rest is always kept as a witness, and a
    strategy must also go with the witness after its neighbours are mended, so that there are no
    dead ends; strategies that can be completed only otherwise are masked there.
    A block is legal if it was not solved since the plan changed last.

    ## Observation Space
    ``Dict``, float32. Amounts of cost are logarithms: ln(1 + x) / 16, at most 1, in units of what a
    node of the greedy plan costs on average.

    * ``actions``: (width, 9) in [0, 1]. Of each strategy: by how much its cost with decided
      neighbours exceeds the least (``cost``); the same of the least that following neighbours cost
      more with it (``ahead``) and of the sum (``both``); of cost and messages; of cost, messages
      and prices (0 unless ``advice`` gives them); the share of the free memory that it takes; its
      memory over time; whether it is the legal one with the least sum; whether it is legal. With
      ``form="improve"`` (width, 10), of each node's block: see
      ``parenvs.tasks.sharding.turns.improve``. Rows without an action are 0.
    * ``numbers``: (8,) or (6,) in [-1, 1]: progress, the share of legal actions, bound or savings,
      sizes; see ``NUMBERS`` of ``parenvs.tasks.sharding.turns.construct`` and ``improve``.

    ## Rewards
    A plan is worth ln(reference / cost) with ``reward="log"``, or reference / cost with
    ``reward="ratio"`` (``parenvs.tasks.sharding.turns.worth``); the reference is the cost of the
    plan that the greedy rule builds without advice, so that 0, or 1, is a draw with it.
    The return of ``form="construct"`` is the worth of the plan. With ``"log"`` it is paid as it is
    lost: each action pays by how much it raises the bound of the cost of all that is decided above
    the reference, and the last one what is left. With ``"ratio"`` only the last action pays.
    With ``form="improve"`` each action pays what it adds to the plan's worth: the return is the
    worth of the last plan less that of the first (0 or 1).
    An illegal action ends the episode; the return is -50 (``"log"``) or -1, less than of any plan.

    ## Starting State
    Nothing is decided, or the greedy plan; the problem is one that ``reset`` draws, or named.

    ## Episode End
    When all nodes are decided; after ``moves`` actions, or when no block can gain anything; after
    an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``; after a whole plan ``cost``, which the
    judge gives it, and ``reference``; at the end on a problem of a shipped set whose optimum is
    proven ``optimum``, its reference / cost, and ``regret``, the share of it that the plan's own
    falls short of (1 for illegal actions).

    ## Arguments
    * ``form``: ``"construct"`` or ``"improve"``.
    * ``family``: ``"mesh"`` or ``"classes"``, of problems that are drawn
      (``parenvs.datasets.sharding.drawing``). None plays all problems of a set.
    * ``instance``: None draws new problems; the name of a set (``"intra-op-validation"``,
      ``"intra-op-test"``, ``"intra-op-outside"``) draws from its problems of the family; the name
      of one (``"intra-op-test/mesh-003"``), of a drawn one (``"intra-op/inside/mesh/17"``), of an
      added file (``parenvs iopddl add``; its last letter is enough: ``"B"``) or a path gives that
      problem at every reset.
      ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on.
    * ``advice``: ``"none"``, ``"messages"`` (of message passing, of what is not decided) or
      ``"prices"`` (with prices of memory); computed once for a problem, in seconds and more.
    * ``reward``: ``"log"`` or ``"ratio"``.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``.
    * ``pool``: how many different problems are drawn (None: a million).
    * ``moves``: most actions of ``form="improve"``.
    * ``width``: number of actions (None: as many as the named problem needs, or the most of drawn
      ones).
    * ``reduction``: False plays a named problem without reducing it.
    * ``problem``: a ``parenvs.tasks.sharding.Sharding``, in place of family, instance and pool.

    ## Many at Once
    ``gym.make_vec("IntraOpSharding-v0", num_envs=64)``, see ``parenvs.envs.vector.GameVectorEnv``.
    Episodes that have the same node of the same problem in hand are played together, so that a
    batch of one problem is fast; ``form="improve"`` solves its blocks one by one. Drawing a problem
    takes as long as thousands of steps: give ``pool``.

    ## Version History
    * v0: first version.
    """

    options = ("instance",)
    after_end = 0.0

    def __init__(
        self,
        count: int = 1,
        *,
        form: str = "construct",
        family: str | None = "mesh",
        instance: str | None = None,
        advice: str = "none",
        reward: str = "log",
        ranges: str = "inside",
        pool: int | None = None,
        moves: int = MOVES,
        width: int | None = None,
        reduction: bool = True,
        order: str = ORDERS[0],
        problem: Sharding | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        super().__init__(count)
        for name, value, known in (
            ("form", form, FORMS), ("advice", advice, LEVELS), ("reward", reward, REWARDS),
        ):  # fmt: skip
            if value not in known:
                raise ParenvsError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
        for name, number in (("moves", moves), ("width", 1 if width is None else width)):
            if type(number) is not int or not 1 <= number <= 10**6:
                raise ParenvsError(f"{name} must be a whole number from 1, not {shown(number)}")
        self.form, self.moves, self.reduction = form, moves, reduction
        self.source = source_of(family, instance, ranges, pool, reduction, order, problem)
        if self.source.only is not None:
            self.width = width or self._needs(self.source.only)
        elif form == "improve":
            self.width = width or NODES[1]
        else:
            families = FAMILIES if family is None else (family,)
            self.width = width or max(STRATEGIES[each] for each in families)
        self.turns: Construct | Improve = (
            Construct(count, self.width, advice, reward)
            if form == "construct"
            else Improve(count, self.width, reward, moves)
        )
        self.over = self.turns.over
        rules = FORMS[form]
        self.action_space = spaces.Discrete(self.width)
        self.observation_space = spaces.Dict(
            {
                "actions": spaces.Box(0.0, 1.0, (self.width, len(rules.ROWS)), np.float32),
                "numbers": spaces.Box(-1.0, 1.0, (len(rules.NUMBERS),), np.float32),
            }
        )

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        return self.turns.legal[:]

    def put(self, rows: Rows, problem: Board) -> None:
        """See ``Game.put``.

        Raises:
            InfeasibleError: the board needs more actions than the environment has.
        """
        self._check(problem)
        for row in self._rows[rows].tolist():
            self.turns.put(row, problem)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``."""
        self.turns.start(self._rows[rows])

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: take a strategy, or solve a block."""
        return self.turns.play(self._rows[rows], actions)

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        return {"actions": self.turns.rows[rows], "numbers": self.turns.numbers[rows].copy()}

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``cost``, and ``reference``, that of the greedy plan."""
        boards = [self.board(row) for row in self._rows[rows].tolist()]
        cost = self.turns.cost[rows]
        reference = np.array([float(board.reference) for board in boards])
        values = [
            worth_of(own, board.reference, "ratio") if own == own else ILLEGAL
            for own, board in zip(cost.tolist(), boards, strict=True)
        ]
        optimum = np.array([proven_optimum(board.instance) or np.nan for board in boards])
        return {
            "cost": cost,
            "reference": np.where(np.isnan(cost), np.nan, reference),
            "optimum": optimum,
            "regret": regret_of(np.array(values), optimum),
        }

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan so far; nodes that are not decided take what uses little."""
        return self.turns.plan(row)

    def board(self, row: int) -> Board:
        """Return the problem of an episode as it is played."""
        return self.turns.boards[row]

    def problem(self, row: int) -> Sharding:
        """See ``Game.problem``."""
        return self.board(row).problem

    def view(self, row: int) -> ShardingReport | Sharding:
        """See ``Game.view``."""
        problem = self.problem(row)
        begun = self.form == "improve" or self.turns.turn[row]
        return problem.report(self.plan(row)) if begun else problem

    def greedy(self, rows: Rows) -> np.ndarray:
        """Return the legal action that the observation, with its advice, rates best, (k,) int64."""
        return self.turns.greedy(self._rows[rows])

    @property
    def episode_steps(self) -> int:
        """Maximum number of steps of an episode of the problem at hand."""
        return self.moves if self.form == "improve" else len(self.board(0))

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        board = named(options["instance"], self.reduction)
        self._check(board)
        return Fixed(board)

    def _check(self, board: Board) -> None:
        """Raise an error if a board needs more actions than the environment has.

        Raises:
            InfeasibleError: it does.
        """
        needed = self._needs(board)
        if needed > self.width:
            raise InfeasibleError(
                f"{board.instance}: it needs {needed} actions, and the environment has "
                f"{self.width}; give width={needed}"
            )

    def _needs(self, board: Board) -> int:
        """Return how many actions a board needs."""
        return int(board.sizes.max()) if self.form == "construct" else len(board)


class IntraOpShardingEnv(GameEnv, game=IntraOpSharding):
    """A single environment of ``IntraOpSharding``."""


class IntraOpShardingVectorEnv(GameVectorEnv, single=IntraOpShardingEnv):
    """A native batch of ``IntraOpSharding``."""


def source_of(
    family: str | None,
    instance: str | None,
    ranges: str,
    pool: int | None,
    reduction: bool,
    order: str,
    problem: Sharding | None,
) -> Source:
    """Return the source of boards that the arguments of ``IntraOpSharding`` name.

    Raises:
        ParenvsError: an argument is unknown, or there is no set that has an order.
    """
    if family is not None or instance not in SETS:
        drawing.check_family(family)
    if is_sequential(order) and instance not in SETS:
        raise ParenvsError(
            f"order: {order!r} plays a set, like instance='intra-op-test'; leave it out"
        )
    if ranges not in RANGES:
        raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {shown(ranges)}")
    if pool is not None and (type(pool) is not int or not 1 <= pool <= DRAWS):
        raise ParenvsError(
            f"pool must be a whole number from 1 to {DRAWS:,} or None, not {shown(pool)}"
        )
    if problem is not None:
        return Fixed(board_of(problem, reduction))
    if instance is None:
        return Drawn(partial(_drawn, str(family), ranges, pool or DRAWS))
    if instance not in SETS:
        return Fixed(named(instance, reduction))
    start = "" if family is None else f"{family}-"
    members = [name for name in drawing.set_names(instance) if f"/{start}" in name]
    return Members(members, named, order)


def _drawn(family: str, ranges: str, pool: int, stream: Stream) -> Board:
    """Draw the number of a problem, and return its board."""
    return numbered(family, int(stream.rng.integers(pool)), ranges)


@lru_cache(maxsize=4096)
def numbered(family: str, number: int, ranges: str) -> Board:
    """Return the board of a drawn problem, the same in every process."""
    return board_of(drawing.drawn(family, number, ranges))


@lru_cache(maxsize=256)
def _of_set(name: str) -> Board:
    return board_of(drawing.of_set(name))


@lru_cache(maxsize=32)
def _of_file(name: str, reduction: bool) -> Board:
    return board_of(store.find(name, SETS), reduction)


def named(name: object, reduction: bool = True) -> Board:
    """Return the board of a problem of a set, a drawn one, an added file, or a path, read once.

    Raises:
        ParenvsError: there is no such problem, no plan of it is legal, or nothing is to decide.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/mesh-000")
    if name.split("/")[0] == drawing.FIRST:
        return numbered(*drawing.named(name))
    return _of_set(name) if name.split("/")[0] in SETS else _of_file(name, reduction)
