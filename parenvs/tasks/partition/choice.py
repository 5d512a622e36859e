"""``PartitionPlan-v2``: which dimensions are split within a device's memory, class by class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from parenvs.compiled import Array
from parenvs.core.game import AHEAD, ORDERS, Fixed, RowGame, Rows, Source
from parenvs.datasets.partition.problems import named, problem_of, source_of
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.game import OPEN, PARTITION
from parenvs.tasks.partition.linear import CLASS, STEP, Linear, PartialPlans
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.problem import PartitionPlan as Plan

SHARP = 2.0
"""What column 0 gives for a class that is worth the whole replicated step; a thousandth is half."""
TIE = 0.01
"""The same for one that the relaxation splits in part."""
NEXT = 4
"""Classes after the one at stake that the context describes."""
TOLD = ("seconds_log", "all_reduce", "memory")
"""What it says of each."""
BLOCK = 256
"""Episodes that are looked at together, so that their moments stay in the cache."""


class PartitionChoice(RowGame):
    """Decide which dimensions are split, within a device's memory, on graphs of many families.

    ## Description
    The training step of a network (a Llama, a U-Net, an LSTM) runs on a cluster, in micro-batches,
    with or without recomputation, and plans must keep to a limit of memory on each device.
    Dimensions that instructions tie together form a class, which is partitioned over all N devices
    or not at all (arXiv 2007.04069, sections 3.3 and 4.2; the rules are in
    ``parenvs.graph.opcodes``). A class saves the work that is shared, and costs the all-reduces of
    what is summed; on slow networks many cost more than they save, and are split to save memory
    alone. Each turn decides a class, and with it all classes that it excludes. The classes that
    save most seconds are asked about first; ties by path.

    The problem is an integer program of up to 200 classes; the planner ``exact`` proves its optimum
    in seconds. Its linear relaxation, which is solved once a problem, prices bytes and exclusions;
    the rule splits what is worth something then.

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the class at stake. A choice is legal if a plan
    within memory is known that completes it: some plans that fit are part of the problem, and
    follow what is decided. So an episode can always be completed, and every legal one fits.

    ## Observation Space
    ``Dict`` with a row for each action, see ``parenvs.core.game.RowGame``.

    * ``actions``: (2, 22) float32; features of the class at stake are in the row that partitions
      it. With ``rows="bare"`` 13 columns.
    * ``context``: (24,) float32.
    * ``action_mask``: (2,) int8.

    ## Rewards
    0 but for the last, which is log(reference / T): T is the length of the step, the reference the
    best known, which is proven for problems of shipped sets, and that of the start plan otherwise.
    An illegal action ends the episode and pays log(reference / W) - 1: W is the length of the
    replicated step with the seconds of all classes that lose some, which no plan exceeds.

    ## Starting State
    Dimensions that can never be partitioned are replicated, all others undecided; the problem is
    one of the training set, or the one that arguments name.

    ## Episode End
    When everything is decided, or at an illegal action. No truncation. Episodes on problems of
    shipped sets have up to 200 turns.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end
    ``cost``, the seconds of the step, and of the problem ``start`` (the leanest plan known),
    ``reference`` (the best plan known), ``bound`` and ``gap`` (cost / reference - 1).

    ## Arguments
    * ``instance``: None plays ``"partition-train"``; that or another set
      (``"partition-validation"``, ``"partition-test"``) plays its problems; the name of a problem
      (``"partition-test/t5-003"``) or of one of a ``.json`` file of a set (``"mine.json/unet-0"``)
      gives that one at every reset. ``reset(options={"instance": ...})`` sets the problem of one
      episode.
    * ``family``: of a set, its problems of this family only (``"t5"``); None: all.
    * ``rows``: ``"ahead"`` or ``"bare"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order.
    * ``problem``: a ``parenvs.Partitioning`` with ``reward="step_time"`` and a limit of memory, in
      place of all the above.

    Problems of shipped sets ship as arrays, and a reset is a look-up; others are read and searched
    for plans that fit, which takes seconds.

    ## Many at Once
    ``gym.make_vec("PartitionPlan-v2", num_envs=64)``, see ``parenvs.envs.env.GameVectorEnv``.

    ## Version History
    * v2: returns are not cut at log 0.2, an illegal action pays less than any plan, and rows have
      the relaxation.
    * v1: rows, masks that leave what can be completed, returns as logarithms, harder problems.
    """

    options = ("instance",)
    render_fps = 4
    rule = "to partition what is worth something at the prices of the linear relaxation"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "of the choice that partitions, twice what the class is worth at the prices of a "
        "linear relaxation, by size as in seconds_log",
        "bound": "bound of the share of the replicated step's seconds that a plan can save then",
        "room": "bytes that the leanest known completion leaves, over the limit",
        "priced": "of the choice that partitions, here and below: twice what the class is worth at "
        "one price of bytes, at which greedy plans fit, by size",
        "relaxed": "share of the class that the relaxation splits",
        "own_worth": "its worth there, by size, if it excluded nothing",
        "rivals_worth": "the same of the open classes that it excludes, by what is split of them",
        "best_rival": "the most that one of them is worth",
        "tightest": "share of the limit that it saves at the fullest moment of the relaxation",
        "partition": "1 for the choice that partitions",
        "dimensions": "share of all dimensions that are in the class",
        "bytes": "share of the bytes of all parameters",
        "seconds": "share of the replicated step's seconds that it saves",
        "seconds_log": "the same by size: 1 is all, 0.5 a thousandth, 0 a millionth, with its sign",
        "all_reduce": "seconds of its all-reduces over those of the replicated step",
        "memory": "share that it alone saves of the replicated plan's peak",
        "share": "largest share of a dimension that a device holds if it is partitioned",
        "batch": "1 if it holds dimensions of batch inputs",
        "parameters": "1 if it holds dimensions of variables",
        "excluded_dimensions": "dimensions of the open classes that it excludes, as a share",
        "excluded_seconds": "seconds that these save at most, as a share",
        "excluded_memory": "share of the peak that these save, at most 1",
    }
    ahead = frozenset(
        {
            "rule", "bound", "room", "priced", "relaxed", "own_worth", "rivals_worth",
            "best_rival", "tightest",
        }
    )  # fmt: skip
    contexts: ClassVar[Mapping[str, str]] = {
        "decided": "share of the classes that are decided",
        "earned": "share of the replicated step's seconds that is saved so far",
        "left": "bytes that the leanest known completion leaves, over the limit",
        "price": "weight of bytes against seconds at which greedy plans begin to fit, in [0, 1]",
        "replicated_memory": "log2 of the replicated plan's peak over the limit / 4",
        "devices": "log2 of the devices / 10",
        "one_server": "1 if they are one server",
        "micro_batches": "log2 of the micro-batches / 10",
        "recompute": "1 with recomputation",
        "classes": "log2 of the classes / 10",
        **{f"next_{i}_{name}": f"{name} of open class {i} after the one at stake"
           for i in range(1, NEXT + 1) for name in TOLD},
        "expected": "bytes left at the moment that is fullest if open classes are split as in the "
        "relaxation, over the limit",
        "owed": "bytes left at all moments at their prices, by size",
    }  # fmt: skip

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | None = None,
        family: str | None = None,
        rows: str = AHEAD,
        order: str = ORDERS[0],
        problem: Partitioning | Linear | None = None,
    ) -> None:
        super().__init__(count, 2, rows)
        self.source, largest = source_of(instance, family, order, problem)
        self.partial_plans = PartialPlans(count, largest)
        self.position = np.zeros(count, np.int64)
        self.earned = np.zeros(count)

    def put(self, rows: Rows, problem: Linear) -> None:
        self.partial_plans.put(rows, problem)
        start = self.partial_plans.tables.start[self.partial_plans.slot[rows]]
        optimum = problem.best if problem.optimal else np.nan
        self.know(rows, start, optimum, problem.best, worst=problem.longest)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: nothing is decided."""
        self.fresh(rows)
        self.partial_plans.start(rows)
        self.position[rows], self.earned[rows], self.cost[rows] = 0, 0.0, np.nan

    def look(self, rows: Array, part: Rows) -> None:
        plans, stake = self.partial_plans, self.position[rows]
        tables, slot = plans.tables, plans.slot[rows]
        is_open = plans.decisions[rows] == OPEN
        room, bounds = self._judged(rows, stake, is_open)
        mask = room >= 0
        actions = np.zeros((len(rows), 2, len(self.shown)), np.float32)
        offset = len(self.ahead) if self.looks else 0
        limit = tables.limit[slot]
        of_class, rest = plans.relaxed(rows, stake, is_open)
        if self.looks:
            # A class that is split in part has no reduced worth: what is more than half counts.
            tie = TIE * np.sign(of_class[:, 1] - 0.5)
            actions[:, PARTITION, 0] = SHARP * np.where(of_class[:, 0], of_class[:, 0], tie)
            actions[..., 1] = self.earned[rows][:, None] + bounds
            actions[..., 2] = room / limit[:, None]
            actions[:, PARTITION, 3] = SHARP * tables.rule[slot, stake]
            actions[:, PARTITION, 4:offset] = of_class[:, 1:]
        bare = actions[:, PARTITION, offset:]
        bare[:, 0] = 1.0
        bare[:, 1 : 1 + len(CLASS)] = tables.figures[slot, stake]
        bare[:, 1 + len(CLASS) :] = plans.excluded(rows, stake, is_open)
        # Features of a choice that the mask forbids say nothing.
        actions[~mask] = 0.0
        context = np.empty((len(rows), len(self.contexts)), np.float32)
        size = tables.size[slot]
        context[:, 0] = 1.0 - is_open.sum(axis=1) / size
        context[:, 1], context[:, 2] = self.earned[rows], room.max(axis=1) / limit
        context[:, 3] = tables.price[slot]
        context[:, 4 : 4 + len(STEP)] = tables.step[slot]
        context[:, 4 + len(STEP) : -2] = plans.coming(rows, stake, is_open, NEXT, TOLD)
        context[:, -2:] = rest
        self.actions[part], self.context[part], self.mask[part] = actions, context, mask

    def _judged(self, rows: Array, stake: Array, is_open: Array) -> tuple[Array, Array]:
        """(k, 2) rooms of both choices, and (k, 2) bounds if they are shown."""
        room, bounds = np.zeros((2, len(rows), 2))
        plans = self.partial_plans
        order = np.argsort(plans.tables.moments[plans.slot[rows]], kind="stable")
        for begin in range(0, len(rows), BLOCK):  # the fewer have the fewer to look at
            some = order[begin : begin + BLOCK]
            room[some] = plans.remaining_bytes(rows[some], stake[some])
            if self.looks:
                bounds[some] = plans.bounds(rows[some], stake[some], is_open[some])
        return room, bounds

    def move(self, rows: Array, actions: Array, part: Rows) -> None:
        """See ``RowGame.move``: replicate or partition the classes at stake."""
        plans, stake = self.partial_plans, self.position[rows]
        tables = plans.tables
        plans.decide(rows, stake, actions == PARTITION)
        saved = tables.gain[plans.slot[rows], stake]
        self.earned[rows] += np.where(actions == PARTITION, saved, 0.0)
        is_open = plans.decisions[rows] == OPEN
        self.position[rows] = first = is_open.argmax(axis=1)
        # Without an open class argmax is 0, which is then a decided one.
        complete = rows[~is_open[np.arange(len(rows)), first]]
        if complete.size:
            self.over[complete] = True
            slot = plans.slot[complete]
            self.position[complete] = tables.size[slot]
            chosen = plans.decisions[complete] == PARTITION
            gain = np.where(chosen, tables.gain[slot], 0.0).sum(axis=1)
            self.cost[complete] = tables.replicated_seconds[slot] * (1.0 - gain)

    def chosen(self, row: int) -> Array:
        """Return the classes of the graph that are partitioned so far, (C,) bool."""
        chosen = np.zeros(len(self.problem(row).classes), bool)
        chosen[self._decided(row, PARTITION)] = True
        return chosen

    def _decided(self, row: int, decision: int) -> Array:
        """(k,) classes of the graph with a decision."""
        classes = self.linear(row).classes
        return classes[self.partial_plans.decisions[row, : len(classes)] == decision]

    def plan(self, row: int) -> Plan:
        """Return the plan built so far; undecided dimensions are replicated."""
        return self.problem(row).plan(self.chosen(row))

    def linear(self, row: int) -> Linear:
        """Return the problem of an episode as it is played."""
        return self.partial_plans.problems[self.partial_plans.slot[row]]

    def problem(self, row: int) -> Partitioning:
        """See ``Game.problem``; the graph is read."""
        return problem_of(self.linear(row))

    def instance(self, row: int) -> str:
        """Return the name of the problem; its plans carry the name of the graph."""
        return self.linear(row).name

    def undecided(self, row: int) -> set[str]:
        """Return the paths of the entry parameters that have a dimension in an open class."""
        problem = self.problem(row)
        dims = problem.dimensions("all")
        is_open = np.isin(problem.classes.label[dims], self._decided(row, OPEN))
        return problem.paths_of(dims[is_open])

    @property
    def episode_steps(self) -> int:
        """See ``Game.episode_steps``: the number of classes."""
        return self.partial_plans.largest.classes

    def elsewhere(self, options: dict[str, Any]) -> Source:
        problem = named(options["instance"])
        if not self.partial_plans.has_room(problem):
            moments = len(problem.replicated_bytes)
            raise InfeasibleError(
                f"{problem.name}: {len(problem.gain)} classes and {moments:,} moments; "
                "this environment has fewer; make another one for it"
            )
        return Fixed(problem)


class PartitionChoiceEnv(GameEnv, game=PartitionChoice):
    """A single environment of ``PartitionChoice``."""


class PartitionChoiceVectorEnv(GameVectorEnv, single=PartitionChoiceEnv):
    """A native batch of ``PartitionChoice``."""
