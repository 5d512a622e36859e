"""``PartitionPlan-v0``: which dimensions are split, on a graph of another family at every reset."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Game, Rows
from parenvs.core.source import ORDERS, Fixed, Members, Source, is_sequential
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.partition import sets
from parenvs.tasks.partition.drawn.outlook import CLASS
from parenvs.tasks.partition.episode import (
    AHEAD,
    CHOICE,
    MAX_CLASSES,
    PLAN,
    Episode,
    looked,
    named,
)
from parenvs.tasks.partition.plan import PartitionPlan as Plan
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.sets import PARTITION_SETS
from parenvs.tasks.partition.space import OPEN

SHAPES = {"classes": (1 + AHEAD, len(CLASS)), "choices": (2, len(CHOICE)), "plan": (len(PLAN),)}
"""Parts of the observation."""


class PartitionPlan(Game):
    """Decide which dimensions are split, within a device's memory, on graphs of many families.

    ## Description
    Every reset takes a problem of a set: the training step of a network (a Llama, a U-Net, an LSTM)
    on a cluster, in micro-batches, with or without recomputation, and a limit of memory. Episodes
    are those of ``OperatorPartition-v0`` with linkage, ``reward="step_time"`` and ``memory_limit``:
    dimensions that instructions tie together form a class, which is partitioned over all N devices
    or not at all, and each step decides a class, and with it all classes that it excludes. What is
    seen has the same size whatever the graph, so that one policy plays them all. The families of
    the training, the validation and the test set are disjoint.

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the class at stake. Both are always legal, so the
    mask (``info["action_mask"]``, ``action_masks()``) is all ones.

    ## Observation Space
    ``Dict`` of float32 in [-1, 1]:

    * ``classes``: (5, 13), the class at stake, and the next four that are open; 0 where there are
      no more. Columns: its share of all dimensions; of the bytes of all parameters; share of the
      replicated step's seconds that it saves, and the same by size (1 is all, 0.5 a thousandth, 0 a
      millionth, with its sign); seconds of its all-reduces over those of the replicated step; its
      share of memory, which is what it alone saves of the replicated plan's peak; largest share of
      a dimension that a device holds if it is partitioned; whether it holds dimensions of batch
      inputs; of variables; what the open classes that it excludes have of dimensions, of seconds
      and of memory, 1 at most; and 1 where there is a class.
    * ``choices``: (2, 3), for replicating and for partitioning the class at stake: an upper bound
      of the return that can still be reached; a lower bound of the memory that it needs, where 0 is
      the limit and 1 is 16 times it (the logarithm of their quotient); 1 if that keeps to the
      limit. At 0 no completion fits; at 1 one may. Zeros at the end.
    * ``plan``: (10,), share of classes decided; return so far; difference of the two upper bounds
      in ``choices`` by size; memory of the plan so far and of the replicated one, as above;
      logarithm of the devices (1 is 1,024); whether they are one server; logarithm of the
      micro-batches and 1 with recomputation; logarithm of the classes.

    Memory of the plan so far is a lower bound until the end, where it is exact: of tens of
    thousands of moments of a step it counts a few, at which some plans need most. The bounds come
    from the same moments, see ``parenvs.tasks.partition.drawn.outlook``.

    The classes that save most seconds are asked about first; ties by path.

    ## Rewards
    The fall of the step time T, divided by that of the replicated step. A complete episode returns
    1 - T / T_replicate; one whose plan exceeds the limit of memory returns -1 in all, as the last
    step takes back what the others earned. An illegal action ends the episode with a return of -1.

    ## Starting State
    Dimensions that can never be partitioned are replicated, all others undecided; the problem is
    one that ``reset`` takes from the set, or the one that arguments name.

    ## Episode End
    When everything is decided, or at an illegal action. No truncation. Episodes on shipped graphs
    have 4 to 195 steps.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; at the end of a
    complete plan ``length_seconds`` of a training step and ``excess_bytes``, by which the peak
    exceeds the limit (<= 0: it fits); at the end on a problem of a shipped set ``optimum``, the
    largest return, proven, and ``regret``, the share of it that the return falls short of (1 for
    plans that do not fit).

    ## Arguments
    * ``family``: of a set, its problems of this family only (``"t5"``); None: all.
    * ``instance``: None draws from the training set; the name of a set (``"partition-train"``,
      ``"partition-validation"``, ``"partition-test"``) or the path of a ``.json`` file of one draws
      from that; the name of a problem (``"partition-test/t5-003"``, ``"mine.json/unet-000"``) gives
      that one at every reset. ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on.
    * ``problem``: a ``parenvs.Partitioning`` with ``reward="step_time"`` and a limit of memory, in
      place of all the above.

    The first episode on a problem reads its graph, which takes up to some seconds; after that a
    reset is a look-up.

    ## Many at Once
    ``gym.make_vec("PartitionPlan-v0", num_envs=16)``, see ``parenvs.envs.vector.GameVectorEnv``.
    Episodes of different graphs are played one after the other.

    ## Version History
    * v0: first version.
    """

    options = ("instance",)
    render_fps = 4

    def __init__(
        self,
        count: int = 1,
        *,
        family: str | None = None,
        instance: str | None = None,
        order: str = ORDERS[0],
        problem: Partitioning | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        super().__init__(count)
        self.source = source_of(family, instance, order, problem)
        self.episodes: list[Episode] = [None] * count  # type: ignore[list-item]
        self._seen = {key: np.zeros((count, *shape), np.float32) for key, shape in SHAPES.items()}
        self._legal = np.ones((count, 2), dtype=np.bool_)
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-1.0, 1.0, shape, np.float32) for key, shape in SHAPES.items()}
        )
        if self.source.only is not None:
            self._check_memory(self.source.only.problem, self.source.only.name)

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``: both actions."""
        return self._legal[:]

    def put(self, rows: Rows, problem: Any) -> None:
        """See ``Game.put``."""
        for row in self._rows[rows].tolist():
            self.episodes[row] = Episode(problem)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``."""
        for row in self._rows[rows].tolist():
            self.episodes[row].start()
            self._look(row)
        self.over[rows] = False

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: partition (1) or replicate (0) the classes at stake."""
        rewards = np.zeros(len(actions))
        for i, (row, action) in enumerate(
            zip(self._rows[rows].tolist(), actions.tolist(), strict=True)
        ):
            rewards[i] = self.episodes[row].play(action)
            self.over[row] = self.episodes[row].over
            self._look(row)
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        return {key: values[rows] for key, values in self._seen.items()}

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``."""
        outcomes = [self.episodes[row].outcome for row in self._rows[rows].tolist()]
        names = dict.fromkeys(name for outcome in outcomes for name in outcome)
        return {
            name: np.array([outcome.get(name, np.nan) for outcome in outcomes]) for name in names
        }

    def plan(self, row: int) -> Plan:
        """Return the plan built so far; undecided dimensions are replicated."""
        return self.problem(row).plan(self.episodes[row].chosen())

    def problem(self, row: int) -> Partitioning:
        """See ``Game.problem``."""
        return self.episodes[row].outlook.problem

    def instance(self, row: int) -> str:
        """Return the name of the problem; its plans carry the name of the graph."""
        return self.episodes[row].outlook.name

    def undecided(self, row: int) -> set[str]:
        """Return the paths of the entry parameters that have a dimension in an open class."""
        episode = self.episodes[row]
        space = episode.outlook.space
        problem = space.problem
        open_classes = space.classes[episode.known == OPEN]
        dims = space.dimensions[np.isin(problem.classes.label[space.dimensions], open_classes)]
        tensors = set((np.searchsorted(problem.graph.dim_offset, dims, side="right") - 1).tolist())
        return {path for path, tensor in problem.tensor.items() if tensor in tensors}

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode; the largest number of any problem if it is drawn."""
        return MAX_CLASSES if self.draws else len(self.source.only.gain)

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        return Fixed(named(options["instance"]))

    def _look(self, row: int) -> None:
        """Keep what an environment sees now."""
        for key, values in self.episodes[row].observation().items():
            self._seen[key][row] = values

    def _check_memory(self, problem: Partitioning, name: str) -> None:
        """Warn if no plan can keep to the limit."""
        minimum = problem.footprint.least(~problem.classes.blocked)
        if minimum > problem.memory_limit:
            warnings.warn(
                f"no plan fits the memory: {name} on {problem.cluster}: the peak exceeds "
                f"memory_limit by {minimum - problem.memory_limit:,.0f} bytes or more, whatever is "
                "partitioned, so every complete episode returns -1",
                stacklevel=4,
            )


class PartitionPlanEnv(GameEnv, game=PartitionPlan):
    """A single environment of ``PartitionPlan``."""


class PartitionPlanVectorEnv(GameVectorEnv, single=PartitionPlanEnv):
    """A native batch of ``PartitionPlan``."""


def source_of(
    family: str | None, instance: str | None, order: str, problem: Partitioning | None
) -> Source:
    """Return the source of problems that the arguments of ``PartitionPlan`` name.

    Raises:
        ParenvsError: an argument is unknown, or there is no set that has an order or families.
    """
    name = PARTITION_SETS[0] if instance is None else instance
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a set or problem, not {shown(name)}")
    sequential = is_sequential(order)
    if sets.is_set(name):
        members = sets.members(name, family)
        if problem is not None:
            return Fixed(looked(problem))
        for member in members:  # a row that is wrong is told at once
            sets.row_of(member)
        return Members(members, named, order)
    for argument, given in (("family", family), ("order", sequential or None)):
        if given is not None:
            raise ParenvsError(f"{argument}: {name} is one problem, no set; leave {argument} out")
    return Fixed(looked(problem) if problem is not None else named(name))
