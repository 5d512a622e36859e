"""``PartitionPlan-v0``: which dimensions are split, on a graph of another family at every reset."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import PLAYED, PlanEnv, check_options, warn_infeasible, whole_number
from parenvs.tasks.partition.drawn.outlook import CLASS, Outlook
from parenvs.tasks.partition.game.plan_episode import (
    AHEAD,
    CHOICE,
    MOST_CLASSES,
    PLAN,
    Episode,
    Source,
    looked,
    named,
)
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.space import OPEN


class PartitionPlanEnv(PlanEnv):
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
    ``gym.make_vec("PartitionPlan-v0", num_envs=16)``, see ``PartitionPlanVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = ("instance",)
    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        **PlanEnv.metadata,
        "render_fps": 4,
    }

    def __init__(
        self,
        family: str | None = None,
        instance: str | None = None,
        order: str = PLAYED[0],
        problem: Partitioning | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the fixed problem, or a first one; see the class for the arguments."""
        super().__init__(render_mode)
        self.source = Source(family, instance, order)
        self.fixed: Outlook | None = None
        if problem is not None:
            self.fixed = looked(problem)
        elif self.source.is_fixed:
            self.fixed = named(instance)
        # A problem to render before the first reset.
        self._use(self.fixed or named(self.source.members[0]))
        self.action_space = spaces.Discrete(2)
        shapes = {
            "classes": (1 + AHEAD, len(CLASS)),
            "choices": (2, len(CHOICE)),
            "plan": (len(PLAN),),
        }
        self.observation_space = spaces.Dict(
            {key: spaces.Box(-1.0, 1.0, shape, np.float32) for key, shape in shapes.items()}
        )
        if self.fixed is not None:
            self._check_memory()

    @property
    def draws(self) -> bool:
        """Whether problems are taken from a set."""
        return self.fixed is None

    @property
    def instance(self) -> str:
        """Name of the problem; its plans carry the name of the graph."""
        return self.episode.outlook.name

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Partition (1) or replicate (0) the class at stake."""
        choice = whole_number(action)
        reward = ILLEGAL if self._over else self.episode.play(choice)
        self._over, self._outcome = self.episode.over, self.episode.outcome
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (2,) bool: both."""
        return np.ones(2, dtype=np.bool_)

    def plan(self) -> PartitionPlan:
        """Return the plan built so far; undecided dimensions are replicated."""
        return self.problem.plan(self.episode.chosen())

    def undecided(self) -> set[str]:
        """Return the paths of the entry parameters that have an undecided dimension."""
        return undecided(self.episode)

    def _viewable(self) -> PartitionReport:
        return self.problem.report(self.plan())

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode; the most that a problem may have if they are drawn."""
        return MOST_CLASSES if self.draws else len(self.episode.known)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return; learners scale returns by it."""
        return 1.0

    def _elsewhere(self, options: dict[str, Any]) -> Outlook:
        check_options(options, self.OPTIONS)
        return named(options["instance"])

    def _enter(self, other: Outlook | None) -> None:
        if other is None:
            other = self.fixed or self.source.draw(self.np_random, self._next)
            self._next += 1
        self._use(other)

    def _use(self, outlook: Outlook) -> None:
        """Start an episode of a problem."""
        self.problem: Partitioning = outlook.problem
        self.episode = Episode(outlook)
        self._start()

    def _start(self) -> None:
        self.episode.start()
        self._over, self._outcome = False, {}

    def _observation(self) -> dict[str, Any]:
        return self.episode.observation()

    def _check_memory(self) -> None:
        """Warn if no plan can keep to the limit."""
        problem = self.problem
        least = problem.footprint.least(~problem.classes.blocked)
        if least > problem.memory_limit:
            warn_infeasible(
                f"{self.instance} on {problem.cluster}: the peak exceeds memory_limit by "
                f"{least - problem.memory_limit:,.0f} bytes or more, whatever is partitioned, so "
                "every complete episode returns -1"
            )


def undecided(episode: Episode) -> set[str]:
    """Return the paths of the entry parameters that have a dimension in an open class."""
    space = episode.outlook.space
    problem = space.problem
    open_classes = space.classes[episode.known == OPEN]
    dims = space.dimensions[np.isin(problem.classes.label[space.dimensions], open_classes)]
    tensors = set((np.searchsorted(problem.graph.dim_offset, dims, side="right") - 1).tolist())
    return {path for path, tensor in problem.tensor.items() if tensor in tensors}
