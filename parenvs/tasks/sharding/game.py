"""``IntraOpSharding-v2``: choose the strategies of a program's nodes, or solve blocks anew."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from parenvs.core import game as games
from parenvs.core.sets import family_named
from parenvs.datasets.sharding import problems
from parenvs.datasets.sharding.problems import BANKS, FAMILIES, NODES, RANGES, SETS, STRATEGIES
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, refuse_unknown, shown
from parenvs.tasks.sharding import files, turns
from parenvs.tasks.sharding.board import Board
from parenvs.tasks.sharding.problem import Sharding, ShardingPlan, ShardingReport
from parenvs.tasks.sharding.turns import MOVES, Construct, Improve, board_of

DRAWS = 10**6
"""Numbers of the problems that are drawn."""
KEPT = 1024
"""Problems of banks and sets that are kept as they are played."""


def source_of(
    instance: str | None, family: str | None, fresh: bool, ranges: str, order: str,
    reduction: bool, problem: Sharding | None,
) -> games.Source:  # fmt: skip
    """Return the source of boards that the arguments of ``IntraOpSharding`` name.

    Raises:
        ParenvsError: an argument is wrong, or goes with no other.
    """
    if family is not None:
        problems.check_family(family)
    refuse_unknown("unknown ranges", ranges, RANGES)
    named_source, like = instance if problem is None else problem, "intra-op-test"
    # Its family is given by default, so it may stand beside a single problem.
    is_set, is_bank = games.check_place(named_source, SETS, (None,), like, order, None, fresh)
    if not reduction and (is_set or is_bank):
        raise ParenvsError("reduction: it is of one problem; leave it out")
    if problem is not None:
        if not isinstance(problem, Sharding):
            raise ParenvsError(f"problem must be a Sharding, not {shown(problem)}")
        return games.Fixed(board_of(problem, reduction))
    families = list(FAMILIES) if family is None else [family]
    if is_bank:
        # The pool is of the ranges "inside".
        return games.Drawn(partial(_generated, families, ranges, fresh or ranges != "inside"))
    if not is_set:
        return games.Fixed(named(instance, reduction))
    assert instance is not None
    members = [x for x in problems.set_names(instance) if family_named(x) in families]
    return games.Members(members, named, order)


def named(name: object, reduction: bool = True) -> Board:
    """Return the board of a problem of a set, a drawn one, an added file, or a path, read once.

    Raises:
        ParenvsError: there is no such problem, no plan of it is legal, or nothing is to decide.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/mesh-000")
    if name.split("/")[0] == problems.FIRST:
        board = _numbered(*problems.named(name))
        return board if reduction else board_of(board.problem, reduction)
    if name.split("/")[0] in SETS:
        return _of_set(name) if reduction else board_of(problems.of_set(name), reduction)
    return _of_file(name, reduction)


_numbered = lru_cache(maxsize=KEPT)(problems.numbered)
_of_set = lru_cache(maxsize=KEPT)(problems.board_of_set)


@lru_cache(maxsize=32)
def _of_file(name: str, reduction: bool) -> Board:
    return board_of(files.find(name, SETS), reduction)


def _generated(families: list[str], ranges: str, fresh: bool, stream: games.Stream) -> Board:
    rng = stream.rng
    family = families[int(rng.integers(len(families)))] if len(families) > 1 else families[0]
    if fresh:
        return problems.numbered(family, int(rng.integers(BANKS[family], DRAWS)), ranges)
    return _numbered(family, int(rng.integers(BANKS[family])), ranges)


FORMS = ("construct", "improve")
"""Values of the argument ``form``."""


class IntraOpSharding(games.RowGame):
    """Choose a strategy for every node of a program so that it costs little within its memory.

    ## Description
    A problem of the ASPLOS 2025 contest on intra-operator parallelism (arXiv 2501.10387), or a
    drawn one: each node takes one of its strategies, nodes and edges cost, and at no time may the
    nodes in use exceed a limit. The problem is reduced first, which changes no optimum
    (``parenvs.tasks.sharding.reduce``). Each action takes a strategy for the next node, in the
    order of the program. The rule of column 0 goes by messages of tree-reweighted message passing:
    they tell what the nodes that follow cost at least, memory apart (``docs/iopddl.md``).

    The rule alone has 0.972 and 1.000 of the best cost known on the test sets of ``mesh``, 0.958
    and 0.885 on those of ``classes``. It is within 2 % on most problems of all but the last, the
    ``classes`` of ``intra-op-outside``, so the others check a learner's *sanity*.

    ## Action Space
    ``Discrete(25)``: the strategy of the node in hand; of the family ``classes`` 8, of a named
    problem as many as it needs. A strategy is legal if it is allowed with all decided neighbors,
    every neighbor that follows keeps one allowed with it, and the limit is kept with all other
    nodes at their least. Where no pair is forbidden and every node has a strategy that always uses
    its least, as in the contest's problems B, G, L and V after reduction and in the family
    ``mesh``, exactly the strategies that can be completed are legal. On all other problems a legal
    plan for the rest is always kept as a witness, and a strategy must also go with the witness
    after its neighbors are mended, so that there are no dead ends; strategies that can be
    completed only otherwise are masked there.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.game.RowGame``.

    * ``actions``: (25, 8) float32: ``rule``, ``messages``, ``ahead``, ``both``, ``pressure``,
      ``cost``, ``use``, ``mass``; with ``rows="bare"`` the last three.
    * ``context``: (9,) float32: ``placed``, ``legal``, ``floor``, ``strategies``, ``later``,
      ``earlier``, ``spread``, ``free``, ``nodes``.
    * ``action_mask``: (25,) int8.

    ## Rewards
    0 but for the last, which is log(reference / cost): the reference is the best cost known of
    problems of the bank and of shipped sets, and that of the greedy plan otherwise. A cost below 1
    counts as 1. An illegal action ends the episode and leaves log(reference / W) - 1: W is the sum
    of the largest cost of every node and edge that is allowed, which no legal plan exceeds.

    ## Starting State
    Nothing is decided; the problem is one of the bank, or the one that arguments name.

    ## Episode End
    When all nodes are decided, or after an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, and of the problem ``start`` (the plan that takes the cheapest legal strategy of each
    node, one after the other, by what it costs with decided neighbors and at least with those that
    follow), ``bound``, ``reference`` (the best plan known) and ``gap`` (cost / reference - 1), as
    far as they are known.

    ## Arguments
    * ``instance``: None plays the bank, which is the same everywhere; the name of a set
      (``"intra-op-validation"``, ``"intra-op-test"``, ``"intra-op-outside"``) plays its problems of
      the family; the name of one (``"intra-op-test/mesh-003"``), of a drawn one
      (``"intra-op/inside/mesh/17"``), of an added file (``parenvs iopddl add``; its last letter is
      enough: ``"B"``) or a path gives that problem at every reset.
      ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``family``: ``"mesh"`` or ``"classes"``, of the bank, of draws and of sets
      (``parenvs.datasets.sharding.problems``). None: both.
    * ``fresh``: with True each reset draws a new problem, reduces it and computes its messages, in
      half a second.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, which is always fresh.
    * ``form``: ``"construct"``, or ``"improve"``, which solves blocks of the greedy plan anew, see
      ``parenvs.tasks.sharding.game.ShardingImprovement``.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``reduction``: False plays a named problem without reducing it.
    * ``problem``: a ``parenvs.tasks.sharding.Sharding``, in place of instance and draws.

    ## Many at Once
    ``gym.make_vec("IntraOpSharding-v2", num_envs=64)``, see ``parenvs.envs.env.GameVectorEnv``.
    Episodes of any problems are played together; ``form="improve"`` solves its blocks one by one.

    ## Version History
    * v2: returns are not cut at log 0.2, and an illegal action leaves less than any plan.
    * v1: rows, messages, returns as logarithms against the best cost known, a bank.
    """

    options = ("instance",)
    rule = (
        "the strategy of the least cost with decided neighbors and messages, less what the limit "
        "is exceeded by if all that follow take what messages lead to"
    )
    columns: ClassVar[Mapping[str, str]] = turns.COLUMNS
    ahead = frozenset(turns.AHEAD)
    contexts: ClassVar[Mapping[str, str]] = turns.CONTEXTS
    kind: ClassVar[type[Construct | Improve]] = Construct
    turns: Construct | Improve

    def __new__(cls, *args: Any, **arguments: Any) -> IntraOpSharding:
        """Make a game of the form that is asked for."""
        kind: type[IntraOpSharding] = cls
        if cls is IntraOpSharding and arguments.get("form") == FORMS[1]:
            kind = ShardingImprovement
        game = super().__new__(kind, *args, **arguments)
        assert isinstance(game, IntraOpSharding)
        return game

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | None = None,
        family: str | None = "mesh",
        fresh: bool = False,
        ranges: str = "inside",
        form: str = FORMS[0],
        rows: str = games.AHEAD,
        order: str = games.ORDERS[0],
        reduction: bool = True,
        problem: Sharding | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        refuse_unknown("unknown form", form, FORMS)
        self.reduction = reduction
        self.source = source_of(instance, family, fresh, ranges, order, reduction, problem)
        only = self.source.only
        super().__init__(
            count, self._max_actions(family) if only is None else self._actions_of(only), rows
        )
        self.turns = self.kind(count, self.mask.shape[1], self.shown)
        # The turns write them.
        turns, self.boards = self.turns, self.turns.boards
        self.actions, self.context, self.mask = turns.rows, turns.contexts, turns.legal

    @staticmethod
    def _max_actions(family: str | None) -> int:
        return max(STRATEGIES[x] for x in (FAMILIES if family is None else (family,)))

    @staticmethod
    def _actions_of(board: Board) -> int:
        return int(board.sizes.max())

    def put(self, rows: games.Rows, problem: Board) -> None:
        """See ``Game.put``.

        Raises:
            InfeasibleError: the board needs more actions than the environment has.
        """
        self._check(problem)
        for row in self._rows[rows].tolist():
            self.turns.put(row, problem)
        costs = (problem.reference, *problem.known, problem.worst)
        start, bound, best, worst = (max(float(x), 1.0) for x in costs)
        self.know(rows, start, bound, best, worst=worst)

    def start(self, rows: games.Rows) -> None:
        self.fresh(rows)
        self.turns.start(self._rows[rows])
        self.cost[rows] = np.maximum(self.turns.cost[rows], 1.0)

    def look(self, rows: np.ndarray, part: games.Rows) -> None:
        """See ``RowGame.look``: the turns look at what they play."""

    def move(self, rows: np.ndarray, actions: np.ndarray, part: games.Rows) -> None:
        self.turns.play(rows, actions)
        self.cost[part] = np.maximum(self.turns.cost[part], 1.0)
        self.over[part] = self.turns.over[part]

    def plan(self, row: int) -> ShardingPlan:
        """Return the plan so far; nodes that are not decided take what uses little."""
        return self.turns.plan(row)

    def problem(self, row: int) -> Sharding:
        return self.boards[row].problem

    def instance(self, row: int) -> str:
        """See ``Game.instance``; the problem itself need not be drawn for it."""
        return self.boards[row].instance

    def view(self, row: int) -> ShardingReport | Sharding:
        problem = self.problem(row)
        begun = isinstance(self.turns, Improve) or self.turns.turn[row]
        return problem.report(self.plan(row)) if begun else problem

    @property
    def episode_steps(self) -> int:
        return NODES[1] if self.source.only is None else len(self.source.only)

    def elsewhere(self, options: dict[str, Any]) -> games.Source:
        board = named(options["instance"], self.reduction)
        self._check(board)
        return games.Fixed(board)

    def _check(self, board: Board) -> None:
        needed, size = self._actions_of(board), self.mask.shape[1]
        if needed > size:
            raise InfeasibleError(
                f"{board.instance}: it needs {needed} actions, and this environment has {size}; "
                "make another one for it"
            )


class ShardingImprovement(IntraOpSharding):
    """Solve parts of a program's plan anew, ``form="improve"`` of ``IntraOpSharding-v2``.

    ## Description
    The episode begins with the greedy plan. Each action chooses a node, whose block, up to 16 nodes
    around it, is solved anew by bucket elimination (``parenvs.tasks.sharding.turns``); the
    plan changes where that makes it cheaper.

    ## Action Space
    ``Discrete(160)``: the node; of a named problem as many as it has. A block is legal if it was
    not solved since the plan changed last.

    ## Observation Space
    * ``actions``: (160, 11) float32: ``rule``, ``single``, ``block``, ``unlimited``, ``excess``,
      ``size``, ``degree``, ``since``, ``changed``, ``gained``, ``free``; with ``rows="bare"`` the
      last six.
    * ``context``: (6,) float32: ``played``, ``legal``, ``saved``, ``last``, ``fullest``, ``nodes``.
    * ``action_mask``: (160,) int8.

    ## Rewards
    Their sum is log(reference / cost) as in the other form. A turn pays what it changes of it; the
    first one also pays log(reference / greedy plan).

    ## Episode End
    After 64 turns, when no block can gain anything, or after an illegal action. No truncation.
    """

    rule = "the block whose nodes save most one by one within the limit"
    columns: ClassVar[Mapping[str, str]] = turns.BLOCK_COLUMNS
    ahead = frozenset(turns.BLOCK_AHEAD)
    contexts: ClassVar[Mapping[str, str]] = turns.BLOCK_CONTEXTS
    kind = Improve

    @staticmethod
    def _max_actions(family: str | None) -> int:
        return NODES[1]

    @staticmethod
    def _actions_of(board: Board) -> int:
        return len(board)

    @property
    def episode_steps(self) -> int:
        return MOVES


class IntraOpShardingEnv(GameEnv, game=IntraOpSharding):
    """A single environment of ``IntraOpSharding``."""


class IntraOpShardingVectorEnv(GameVectorEnv, single=IntraOpShardingEnv):
    """A native batch of ``IntraOpSharding``."""
