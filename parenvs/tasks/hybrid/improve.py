"""``HybridPlan-v2``: improve a plan along all axes, a neighbor a turn."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from parenvs.core import game as games
from parenvs.core.registry import problem as problem_of
from parenvs.core.sets import chosen, family_named
from parenvs.datasets.hybrid.problems import BANKS, STATE_BYTES, family_of, problem_sets, start_of
from parenvs.envs.agents import Agents
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import ParenvsError, refuse_unknown, shown
from parenvs.tasks.hybrid.moves import rows as loops
from parenvs.tasks.hybrid.moves.catalog import KEPT, KINDS, MOVES, SLOTS
from parenvs.tasks.hybrid.moves.columns import MAX_STAGES, OF_STAGE, WHOLE
from parenvs.tasks.hybrid.moves.rows import FIXED
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.plan_arrays import Plans, Start, Table, plan_of
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.task import HybridTask

KEPT_STARTS = 6000
"""Problems that are kept with what is looked up of them."""
MOST_SEED = 2**31
"""Seeds of fresh draws are below it."""


def source_of(
    instance: Any, family: str | None, fresh: bool, order: str, problem: Hybrid | Start | None,
    **settings: Any,
) -> games.Source:  # fmt: skip
    """Return the source of problems that the arguments of ``HybridImprovement`` name."""
    pools = HybridTask.drawn
    if isinstance(instance, (list, tuple)) and problem is None:
        for place in instance or [None]:
            refuse_unknown("instance: of several banks there is no", place, pools)
        return games.Mixed([source_of(x, family, fresh, order, None, **settings) for x in instance])
    instance = next(iter(pools)) if instance is None else instance
    place, like = instance if problem is None else problem, "hybrid-test"
    is_set, is_bank = games.check_place(place, HybridTask.sets, pools, like, order, family, fresh)
    if problem is not None:
        if not isinstance(problem, (Hybrid, Start)):
            raise ParenvsError(f"problem must be a parenvs.Hybrid, not {shown(problem)}")
        return games.Fixed(problem if isinstance(problem, Start) else Start(problem))
    if not (is_set or is_bank):
        return games.Fixed(named(instance, **settings))
    if settings:
        raise ParenvsError(
            f"{', '.join(settings)}: problems of {instance} have settings of their own; leave it "
            "out, or name one instance"
        )
    if is_bank:
        families = {f"{instance}/{x}": family_of(instance, x) for x in range(BANKS[instance])}
    else:
        families = {x.instance: family_named(x.instance) for x in problem_sets()[instance]}
    names = chosen(families, family, instance)
    if fresh:
        return games.Drawn(partial(_fresh, instance, family))
    return games.Members(names, _kept, order) if is_set else games.Members(names, _kept)


def named(instance: Any, **settings: Any) -> Start:
    """Return the start of a problem of a set or a bank, or of a name or path with its settings.

    Raises:
        ParenvsError: there is no such problem, or no uniform plan of it fits.
    """
    if isinstance(instance, str) and instance in (*HybridTask.sets, *HybridTask.drawn):
        raise ParenvsError(f"'instance' must name one problem of {instance}, not all of them")
    if HybridTask().names(instance) and not settings:
        return _kept(str(instance))
    cluster = settings.pop("cluster", None)
    return Start(problem_of(instance, cluster, task=HybridTask.name, **settings))


@lru_cache(maxsize=KEPT_STARTS)
def _kept(name: str) -> Start:
    return start_of(name)


def _fresh(place: str, family: str | None, stream: games.Stream) -> Start:
    while True:
        # Seeds below are those of the pool, which fresh problems never repeat.
        seed = int(stream.rng.integers(BANKS[place], MOST_SEED))
        if family in (None, family_of(place, seed)):
            return start_of(f"{place}/{seed}")


TURNS = 24
"""Turns of an episode, at most."""


class HybridImprovement(games.RowGame):
    """Improve the plan of a training run along all axes together, a change a turn.

    ## Description
    A plan says how the chain of a model's layers is cut into stages, which devices each stage has,
    how many ranks share its matrices, the tokens and the experts, what its replicas share, what is
    recomputed, and how the batch is cut into micro-batches; on servers of different speed it says
    in which order they stand, too. The judge computes the seconds of a training step and the bytes
    on every device (``parenvs.tasks.hybrid.formulas``). An episode begins with the fastest uniform
    plan that fits the memory, and each action takes one of its neighbors
    (``parenvs.tasks.hybrid.moves``): a border or devices move, stages merge or split,
    all stages double, tp, replicas, chunks, ZeRO or recomputation change, servers swap. What counts
    is the fastest plan passed, so that a plan may get worse on the way to a better one.

    To stop at once has 0.946 of the speed of the best plans known of ``hybrid-test``, the rule of
    column 0 0.970, the network that ships 0.981, and a search by the same neighbors 0.992 in 0.3 s.

    ``parenvs.envs.hybrid_v1`` is the same for three agents that take turns over the moves of an
    axis each (``parenvs.tasks.hybrid.improve``).

    ## Action Space
    ``Discrete(97)``: 0 stops; the others are neighbors: 1 to 32 of the axis ``data``, 33 to 80 of
    ``pipeline``, 81 to 96 of ``operator``. Legal are neighbors that fit the memory. Moves of
    single stages come the busiest stage first.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.game.RowGame``.

    * ``actions``: (97, 36) float32: ``rule``, ``gain``, ``fullness``, ``imbalance``, ``rank``;
      ``stop``, ``amount``, ``towards``, ``busyness``; one for each kind of moves: ``stages``,
      ``chunks``, ``balance``, ``sort servers``, ``swap servers``, ``tp``, ``sequence``,
      ``context``, ``samples``, ``zero``, ``recompute``, ``experts``, ``scaled experts``,
      ``shard``, ``cut``, ``merge``, ``split``, ``devices``, ``stage tp``, ``stage zero``,
      ``stage recompute``; ``place``, ``share of layers``, ``share of devices``, ``ranks``,
      ``work``, ``held``. With ``rows="bare"`` without the first five.
    * ``context``: (32,) float32: ``layers``, ``all devices``, ``servers``, ``batch``, ``tokens``,
      ``weights``, ``all experts``, ``unequal``, ``link``, ``network``, ``distance``, ``saved``,
      ``behind``, ``count``, ``pieces``, ``micro-batch``, ``micro-batches``, ``replicas``,
      ``shared``, ``context ranks``, ``expert ranks``, ``near``, ``most tp``, ``least tp``,
      ``zero level``, ``full``, ``selective``, ``bubble``, ``used``, ``fullest``, ``unbalanced``,
      ``remaining``.
    * ``action_mask``: (97,) int8.

    ## Rewards
    Their sum is log(reference / L): L is the seconds of a step of the fastest plan passed, the
    reference the best known of problems of shipped sets and the start plan's otherwise. A turn pays
    what it changes of it; on a set the first turn also pays log(reference / start plan), below
    which no legal episode ends. An illegal action ends it and leaves that less 1.

    ## Starting State
    The fastest uniform plan that fits, of those with equal chunks or none; the problem is one of
    the bank, or the one that arguments name.

    ## Episode End
    After the action 0, after 24 turns, or after an illegal action. No truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, the seconds of a step of the fastest plan passed, and of the problem ``start``,
    ``bound`` (its kernels dealt out evenly), ``reference`` (the best plan known) and ``gap`` (cost
    / reference - 1), as far as they are known. Of unequal servers the reference has a server for
    each stage, and may be beaten.

    ## Arguments
    * ``instance``: None plays the bank, which is the same everywhere, as does ``"hybrid"``;
      ``"hetero-8"`` to ``"hetero-64"`` play the bank of servers of different speed; a set
      (``"hybrid-test"``, ``"hetero-32-validation"``) its problems; one problem of either
      (``"hybrid/7"``, ``"hybrid-test/llama-003"``), a shape's or a graph's name or path gives that
      one at every reset. ``reset(options={"instance": ...})`` sets the problem of one episode.
      Several banks, ``["hybrid", "hetero-32"]``, are drawn from equally often.
    * ``cluster``, ``batch``, ``stack``, ``precision``: of named shapes and graphs, see
      ``parenvs.problem``; the others have their own.
    * ``family``: problems of a set or a bank of this family only.
    * ``fresh``: with True each reset draws a new problem and judges its uniform plans, in 40 ms;
      with ``"hetero-64"`` in seconds.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``problem``: a ``parenvs.Hybrid``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("HybridPlan-v2", num_envs=64)``, see ``parenvs.envs.env.GameVectorEnv``.

    ## Version History
    * v2: returns are not cut at log 0.2, and an illegal action leaves less than any plan.
    * v1: improvement by neighbors, rows, all axes, returns as logarithms, a bank.
    """

    options = ("instance", "cluster", "batch", "stack", "precision")
    rule = "the neighbor whose step is shortest, or to stop if none is shorter (steepest descent)"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "30 times the logarithm of the plan's seconds over the neighbor's",
        "gain": "logarithm of the seconds of the fastest plan passed over the neighbor's",
        "fullness": "bytes on the fullest device over what it may hold",
        "imbalance": "work of the busiest stage over the mean, less 1",
        "rank": "share of the legal neighbors that are faster",
        "stop": "1 for the action that ends the episode",
        "amount": "how much is changed: log2(1 + |x|) / 6 with the sign of x; of many layers 1",
        "towards": "1 to the next stage, -1 to the one in front",
        "busyness": "rank of the stage by its work, 1/8 for the busiest; 0: the whole plan",
        **{kind: f"1 for moves of the kind {kind!r}" for kind in KINDS},
        "place": "number of the stage over that of the last; 0 here and below: the whole plan",
        "share of layers": "of the stage",
        "share of devices": "of the stage",
        "ranks": "log2 of the stage's tp / 3",
        "work": "seconds of a micro-batch on the stage over those on the busiest",
        "held": "bytes on a device of the stage over what it may hold",
    }
    ahead = frozenset({"rule", "gain", "fullness", "imbalance", "rank"})
    contexts: ClassVar[Mapping[str, str]] = {
        "layers": "n / 128",
        "all devices": "log2 D / 9",
        "servers": "log2 of their number / 6",
        "batch": "log2 of the samples of a step / 13",
        "tokens": "log2 of the tokens of a sample / 16, 0 for graphs",
        "weights": "x / (1 + x) for 18 bytes a parameter over the memory of all devices",
        "all experts": "log2 of the experts of a block / 6",
        "unequal": "1 less the speed of the slowest server over that of the fastest",
        "link": "x / (1 + x) for bytes/s between devices of a server over 300e9",
        "network": "x / (1 + x) for a device's bytes/s out of its server over 25e9",
        "distance": "logarithm of the plan's seconds over the bound",
        "saved": "logarithm of the start plan's seconds over those of the fastest plan passed",
        "behind": "logarithm of the plan's seconds over those of the fastest plan passed",
        "count": "stages / 64",
        "pieces": "log2 of chunks / 4",
        "micro-batch": "log2 of the samples of a micro-batch over all replicas / 13",
        "micro-batches": "log2 of their number / 13",
        "replicas": "log2 of the first stage's / 9",
        "shared": "1 with sequence parallelism",
        "context ranks": "log2 of the ranks that share a sample's tokens / 4",
        "expert ranks": "log2 of the replicas among which experts are dealt out / 6",
        "near": "1 where ZeRO shares among neighbors alone",
        "most tp": "log2 of the largest tp / 3",
        "least tp": "log2 of the least tp / 3",
        "zero level": "mean over the stages / 3",
        "full": "share of the layers that are recomputed in full",
        "selective": "share of those of which the attention is",
        "bubble": "(S - 1) / (M v + S - 1) of S stages, M micro-batches, v chunks",
        "used": "share of the devices",
        "fullest": "bytes on the fullest device over what it may hold",
        "unbalanced": "work of the busiest stage over the mean, less 1",
        "remaining": "share of the turns that are left",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        instance: Any = None,
        cluster: Any = None,
        batch: int | None = None,
        stack: Any = None,
        precision: str | None = None,
        family: str | None = None,
        fresh: bool = False,
        rows: str = games.AHEAD,
        order: str = games.ORDERS[0],
        problem: Hybrid | Start | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        settings = {"cluster": cluster, "batch": batch, "stack": stack, "precision": precision}
        self._settings = {key: value for key, value in settings.items() if value is not None}
        self.source = source_of(instance, family, fresh, order, problem, **self._settings)
        # Each agent has its slots behind an action that stops, or passes; alone, one has them all.
        sizes = list(self.agents.values()) or [1 + KEPT]
        super().__init__(count, sum(sizes), rows)
        self._first = np.cumsum([0, *sizes])[:-1]
        self._owner = np.repeat(np.arange(len(sizes)), [size - 1 for size in sizes])
        self._action_of = np.arange(KEPT) + 1 + self._owner
        self._slot_of = np.full(sum(sizes), -1)
        self._slot_of[self._action_of] = np.arange(KEPT)
        self.starts: list[Start] = [None] * count  # type: ignore[list-item]
        # Problems that are played are in rows of a table; rows that nobody plays are free.
        self.table, self._row_of = Table(count), dict[Start | None, int]()
        self._at_row = dict[int, Start]()
        self.at, self.turn, self.on, self.passes = np.zeros((4, count), np.int64)
        self._users = np.bincount(self.at, minlength=count)
        shapes = ((WHOLE,), (MAX_STAGES, OF_STAGE), (1,), (1,))  # ends and servers grow
        empty = [np.zeros((count, *shape), np.int64) for shape in shapes]
        self.plans, self.best = (Plans(self.at, *map(np.copy, empty)) for _ in range(2))
        self.moves = np.full((count, KEPT), -1)
        self.length, self.fullness, self._left = np.zeros((3, count))
        self.busy, self.held = np.zeros((2, count, MAX_STAGES))
        self._fixed = np.zeros((count, FIXED))
        self._costs = np.zeros((2, count))  # bound, best known
        slots = np.array(list(SLOTS.values()))
        self._slots = np.stack([slots.cumsum() - slots, slots], axis=1)
        self._fit()

    def _fit(self) -> None:
        """Make room for the plans of all problems of the table."""
        sizes = self.table.sizes
        self.plans, self.best = self.plans.wide(*sizes), self.best.wide(*sizes)
        known = (MOVES, self._slots, self._action_of, self._owner, self._first)
        memory = loops.memory_for(self.table.arrays, self.plans.arrays)
        self._actions = loops.Actions._make((*known, *memory))

    @property
    def _episodes(self) -> loops.Episodes:
        """What compiled loops know of the episodes."""
        return loops.Episodes(
            self.at, self.plans.arrays, self.best.arrays, self.length, self.fullness, self.busy,
            self.held, self.cost, self._known[0], self._costs[0], self.moves, self.on, self._left,
            self._fixed,
        )  # fmt: skip

    def put(self, rows: games.Rows, problem: Start) -> None:
        """See ``Game.put``."""
        numbers = self._rows[rows]
        self._users -= np.bincount(self.at[numbers], minlength=self.count)
        at = self._row_of.get(problem)
        if at is None:
            # There are as many rows as episodes, so one is free for each new problem.
            at = int(self._users.argmin())
            self._row_of.pop(self._at_row.get(at), None)
            self._row_of[problem], self._at_row[at] = at, problem
            if self.table.put(at, problem.prepared):
                self._fit()
        self._users[at] += len(numbers)
        self.at[rows] = at
        for row in numbers.tolist():
            self.starts[row] = problem
        self._fixed[rows] = fixed_contexts(problem)
        self._costs[:, rows] = np.array((problem.bound, problem.best))[:, None]

    def restarts(self, problem: Start, count: int) -> list[Start]:
        """See ``RowGame.restarts``: the fastest uniform plans that are not much alike."""
        return problem.restarts(count)

    def start(self, rows: games.Rows) -> None:
        """See ``Game.start``: the plan is the start plan."""
        self.fresh(rows)
        numbers = self._rows[rows]
        self.turn[rows], self.on[rows], self.passes[rows] = 0, 0, 0
        for row in numbers.tolist():
            for values, start in zip(self.plans[1:], self.starts[row].plans[1:], strict=True):
                values[row, : start.shape[1]] = start[0]
        self.cost[rows] = np.inf
        loops.judge_plans(self.table.arrays, self._episodes, numbers, self._actions.work)
        # The start plan is the first of those whose fastest counts.
        self.know(rows, self.length[rows], *self._costs[:, rows], worst=self.length[rows])

    def look(self, rows: np.ndarray, part: games.Rows) -> None:
        """See ``RowGame.look``: judge the neighbors."""
        self._left[:] = 1.0 - self.turn / self.episode_steps
        loops.look(
            self.table.arrays, self._episodes, self._actions, rows, self.looks, self.actions,
            self.context, self.mask,
        )  # fmt: skip

    def move(self, rows: np.ndarray, actions: np.ndarray, part: games.Rows) -> None:
        """See ``RowGame.move``: take a neighbor, or stop."""
        slot = self._slot_of[actions]
        going = slot >= 0
        self.turn[part] += 1
        self.passes[part] = np.where(going, 0, self.passes[part] + 1)
        # Agents take turns, whether they move or pass.
        self.on[part] = (self.on[part] + 1) % len(self._first)
        taken = rows[going]
        moves = self.moves[taken, slot[going]]
        loops.advance(self.table.arrays, self._episodes, self._actions, taken, moves)
        passed = self.passes[part] == len(self._first)
        self.over[part] = passed | (self.turn[part] == self.episode_steps)

    def plan(self, row: int) -> HybridPlan:
        """Return the fastest plan passed."""
        return plan_of(self.problem(row), self.best, row)

    def problem(self, row: int) -> Hybrid:
        """See ``Game.problem``."""
        return self.starts[row].problem

    @property
    def episode_steps(self) -> int:
        """See ``Game.episode_steps``: 24, of each agent."""
        return TURNS * len(self._first)

    def elsewhere(self, options: dict[str, Any]) -> games.Source:
        """See ``Game.elsewhere``."""
        if "instance" not in options:
            raise ParenvsError("options: give 'instance' with its settings")
        settings = {key: value for key, value in options.items() if key != "instance"}
        return games.Fixed(named(options["instance"], **{**self._settings, **settings}))


class HybridImprovementEnv(GameEnv, game=HybridImprovement):
    """A single environment of ``HybridImprovement``."""


class HybridImprovementVectorEnv(GameVectorEnv, single=HybridImprovementEnv):
    """A native batch of ``HybridImprovement``."""


@lru_cache(maxsize=KEPT_STARTS)
def fixed_contexts(start: Start) -> np.ndarray:
    """Return the features of contexts that are of the problem alone."""
    problem = start.problem
    cluster, shape = problem.cluster, problem.model.shape
    sequence, experts, parameters = (
        (1, 1, 0.0) if shape is None else (shape.sequence, shape.experts, shape.parameters)
    )
    states = STATE_BYTES * parameters / (problem.memory_limit * cluster.devices)
    speeds = cluster.speeds or (1.0,)
    link, network = problem.machine.links.intra_bw / 300e9, cluster.device_nic_bw / 25e9
    return np.array([
        len(problem.model) / 128,
        np.log2(cluster.devices) / 9,
        np.log2(cluster.servers) / 6,
        np.log2(problem.batch) / 13,
        np.log2(sequence) / 16,
        states / (1 + states),
        np.log2(experts) / 6,
        1.0 - min(speeds) / max(speeds),
        link / (1 + link),
        network / (1 + network),
    ])  # fmt: skip


class HybridTeam(HybridImprovement):
    """Improves a plan as ``HybridImprovement`` does, by three agents who have an axis each.

    ``data``, ``pipeline`` and ``operator`` take turns, in this order. The one on turn takes one of
    the neighbors of its axis, or passes: its action 0. An episode ends when all three have passed
    one after the other, or after 72 turns.
    """

    agents: ClassVar[Mapping[str, int]] = {axis: 1 + slots for axis, slots in SLOTS.items()}


class HybridTeamEnv(GameEnv, game=HybridTeam):
    """An environment of one agent that takes the turns of all three."""


hybrid_v1 = Agents("hybrid_v1", HybridTeamEnv)
"""Agents ``data``, ``pipeline`` and ``operator``, which have 33, 49 and 17 actions."""
