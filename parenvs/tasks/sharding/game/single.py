"""``IntraOpSharding-v0``: choose the strategies of a program's nodes, or solve blocks anew."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.plan import ILLEGAL
from parenvs.datasets.sets import proven_optimum
from parenvs.datasets.sharding.drawing import NODES, STRATEGIES
from parenvs.envs.base import PLAYED, PlanEnv, check_options, outcome_of, whole_number
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.sharding.game.problems import Source, named
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


class IntraOpShardingEnv(PlanEnv):
    """Choose a strategy for every node of a program so that it costs little within its memory.

    ## Description
    A problem of the ASPLOS 2025 contest on intra-operator parallelism (arXiv 2501.10387), or a
    drawn one: each node takes one of its strategies, nodes and edges cost, and at no time may the
    nodes in use exceed a limit. The problem is reduced first, which changes no optimum
    (``parenvs.tasks.sharding.reduce``). With ``form="construct"`` each action takes a strategy for the next
    node, in the order of the program. With ``form="improve"`` the episode begins with the plan that
    the greedy rule builds, and each action chooses the node whose block is solved anew.

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
      ``form="improve"`` (width, 10), of each node's block: see ``parenvs.tasks.sharding.turns.improve``.
      Rows without an action are 0.
    * ``numbers``: (8,) or (6,) in [-1, 1]: progress, the share of legal actions, bound or savings,
      sizes; see ``NUMBERS`` of ``parenvs.tasks.sharding.turns.construct`` and ``improve``.

    ## Rewards
    A plan is worth ln(reference / cost) with ``reward="log"``, or reference / cost with
    ``reward="ratio"`` (``parenvs.tasks.sharding.turns.worth``); the reference is the cost of the plan that
    the greedy rule builds without advice, so that 0, or 1, is a draw with it.
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
      of one (``"intra-op-test/mesh-003"``), of an added file (``parenvs iopddl add``; its last
      letter is enough: ``"B"``) or a path gives that problem at every reset.
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
    ``gym.make_vec("IntraOpSharding-v0", num_envs=64)``, see ``IntraOpShardingVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = ("instance",)

    def __init__(
        self,
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
        order: str = PLAYED[0],
        problem: Sharding | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the fixed problem, or draw a first one; see the class for the arguments."""
        super().__init__(render_mode)
        for name, value, known in (
            ("form", form, FORMS), ("advice", advice, LEVELS), ("reward", reward, REWARDS),
        ):  # fmt: skip
            if value not in known:
                raise ParenvsError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")
        for name, number in (("moves", moves), ("width", 1 if width is None else width)):
            if type(number) is not int or not 1 <= number <= 10**6:
                raise ParenvsError(f"{name} must be a whole number from 1, not {shown(number)}")
        self.form, self.advice, self.reward = form, advice, reward
        self.moves, self.reduction = moves, reduction
        self.source = Source(family, instance, ranges, pool, reduction, order)
        self.fixed: Board | None = None
        if problem is not None:
            self.fixed = board_of(problem, reduction)
        elif self.source.is_fixed:
            self.fixed = named(instance, reduction)
        first = self.fixed or self.source.draw(np.random.default_rng(0))
        drawn = max(STRATEGIES[one] for one in self.source.families)
        drawn = drawn if form == "construct" else NODES[1]
        self.width = width or (self.needs(first) if self.fixed else drawn)
        self._play, self._row = self.play_of(1), np.zeros(1, dtype=np.int64)
        self._use(self.checked(first))  # a problem to render before the first reset
        rules = FORMS[form]
        self.action_space = spaces.Discrete(self.width)
        self.observation_space = spaces.Dict(
            {
                "actions": spaces.Box(0.0, 1.0, (self.width, len(rules.ROWS)), np.float32),
                "numbers": spaces.Box(-1.0, 1.0, (len(rules.NUMBERS),), np.float32),
            }
        )

    def play_of(self, count: int) -> Construct | Improve:
        """Return fresh episodes of this environment's form, ``count`` of them."""
        if self.form == "construct":
            return Construct(count, self.width, self.advice, self.reward)
        return Improve(count, self.width, self.reward, self.moves)

    def needs(self, board: Board) -> int:
        """Return how many actions a board needs."""
        return int(board.sizes.max()) if self.form == "construct" else len(board)

    def checked(self, board: Board) -> Board:
        """Return a board that has no more actions than the environment.

        Raises:
            InfeasibleError: it has more.
        """
        if self.needs(board) > self.width:
            raise InfeasibleError(
                f"{board.instance}: it needs {self.needs(board)} actions, and the environment has "
                f"{self.width}; give width={self.needs(board)}"
            )
        return board

    @property
    def draws(self) -> bool:
        """Whether problems are drawn, from the generator or from a set."""
        return self.fixed is None

    def next_board(self, rng: np.random.Generator, played: int) -> Board:
        """Return the board of the next episode; the arguments are those of ``Source.draw``."""
        return self.fixed or self.checked(self.source.draw(rng, played))

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take a strategy, or solve a block."""
        action, reward = whole_number(action), 0.0
        if not self._over:
            within = min(max(action, -1), self.width)
            reward = float(self._play.play(self._row, np.array([within]))[0])
            self._over = bool(self._play.over[0])
            cost = float(self._play.cost[0])
            if cost == cost:
                self._outcome = {"cost": cost, "reference": float(self._board.reference)}
            if self._over:
                self._outcome |= outcome_of(worth(cost, self._board), optimum(self._board))
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (width,) bool; all are true once the episode is over."""
        if self._over:
            return np.ones(self.width, dtype=np.bool_)
        return self._play.legal[0].copy()

    def plan(self) -> ShardingPlan:
        """Return the plan so far; nodes that are not decided take what uses little."""
        return self._play.plan(0)

    def greedy_action(self) -> int:
        """Return the legal action that the observation, with its advice, rates best."""
        return int(self._play.greedy(self._row)[0])

    @property
    def episode_steps(self) -> int:
        """Most steps of an episode of the problem at hand."""
        return self.moves if self.form == "improve" else len(self._board)

    @property
    def largest_return(self) -> float:
        """What learners scale returns by; a return of 1 is e times better than greedy."""
        return 1.0

    @property
    def board(self) -> Board:
        """The problem as it is played."""
        return self._board

    def _viewable(self) -> ShardingReport | Sharding:
        return viewable(self._play, 0)

    def _elsewhere(self, options: dict[str, Any]) -> Board:
        check_options(options, self.OPTIONS)
        return self.checked(named(options["instance"], self.reduction))

    def _enter(self, other: Board | None) -> None:
        if other is None:
            other = self.next_board(self.np_random, self._next)
            self._next += 1
        self._use(other)

    def _observation(self) -> dict[str, Any]:
        return {"actions": self._play.rows[0].copy(), "numbers": self._play.numbers[0].copy()}

    def _use(self, board: Board) -> None:
        """Start an episode of a board."""
        self._board, self.problem = board, board.problem
        self._play.put(0, board)
        self._start()

    def _start(self) -> None:
        self._play.start(self._row)
        self._over, self._outcome = False, {}


def worth(cost: float, board: Board) -> float:
    """Return reference / cost of a plan; -1 for one that is illegal, whose cost is NaN."""
    return worth_of(cost, board.reference, "ratio") if cost == cost else ILLEGAL


def optimum(board: Board) -> float | None:
    """Return reference / cost of the best plan of a problem of a set, if that is proven."""
    return proven_optimum(board.instance)


def viewable(play: Construct | Improve, row: int) -> ShardingReport | Sharding:
    """Return the judge's report on an episode's plan so far, or the problem if there is none."""
    problem = play.boards[row].problem
    is_begun = isinstance(play, Improve) or play.turn[row]
    return problem.report(play.plan(row)) if is_begun else problem
