"""``OperatorPartition-v0`` and ``DataParallel-v0``: which dimensions are split over the devices.

Both decide one dimension or class per step; the docstrings of the classes specify them. Rewards are
those of ``parenvs.tasks.partition.formulas``, tabulated by ``PartitionSpace``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs import instances
from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import RENDER_MODES, PlanEnv, warn_infeasible, whole_number
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.formulas import paper_reward
from parenvs.tasks.partition.plan import REMADE, PartitionPlan
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.space import OPEN, PARTITION, REPLICATE, STAKES, PartitionSpace


class PartitionEnv(PlanEnv):
    """An environment that asks one question of a ``PartitionSpace`` per step.

    A question is about a dimension or a class.

    Args:
        space: the questions, and the consequences and rewards of the answers.
        masked: whether the mask forbids answers that contradict earlier decisions; otherwise it
            forbids nothing.
        memory: whether infos at the end of an episode have ``excess_bytes``; with a limit of memory
            they always do.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "render_modes": RENDER_MODES,
        "render_fps": 4,
    }

    OPTIONS = (
        "instance", "devices", "cluster", "rules", "uneven", "reward", "micro_batch",
        "micro_batches", "recompute", "memory_limit", "problem",
    )  # fmt: skip
    OF_PROBLEM = ("problem", "space")

    def __init__(
        self, space: PartitionSpace, masked: bool, memory: bool, render_mode: str | None
    ) -> None:
        """Set up the spaces."""
        super().__init__(render_mode)
        self.space, self.masked, self.memory = space, masked, memory
        self.problem: Partitioning = space.problem
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {
                "decisions": spaces.Box(-1, 1, (len(space.dimensions),), np.int8),
                "position": spaces.Discrete(len(space.questions) + 1),
                "stake": spaces.Box(-1.0, 1.0, (STAKES,), np.float32),
            }
        )
        self._decisions = np.full(len(space.dimensions), OPEN, dtype=np.int8)
        self._known: list[int] = []
        self._position, self._earned = 0, 0.0
        self._start()
        self._check_memory()

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Partition (1) or replicate (0) the dimension or class at stake."""
        choice = whole_number(action)
        if self._over or choice not in (REPLICATE, PARTITION) or self._fixed() == 1 - choice:
            self._over, self._outcome = True, {}
            reward = ILLEGAL
        else:
            reward = self._settle(choice) if self.space.linkage else self._decide(choice)
            self._over = self._position == len(self.space.questions)
            if self._over:
                figures = self._figures(np.array([self._known]))
                self._outcome = {name: float(values[0]) for name, values in figures.items()}
                if self.problem.step.limit is not None and self._outcome["excess_bytes"] > 0:
                    reward = ILLEGAL - self._earned
            self._earned += reward
        return self._observation(), reward, self._over, False, self._info()

    def _check_memory(self) -> None:
        """Warn if no plan can fit the memory of a device, or keep to the limit."""
        problem = self.problem
        if problem.step.limit is None:
            every_class = np.ones(len(problem.classes), dtype=bool)
            least, what = problem.footprint.memory(every_class).peak, "that of a device"
            more = ""
        else:
            least, what = problem.footprint.least(~problem.classes.blocked), "memory_limit"
            more = ", so every complete episode returns -1"
        if least > problem.memory_limit:
            warn_infeasible(
                f"{self.instance} on {problem.cluster}: the peak exceeds {what} by "
                f"{least - problem.memory_limit:,.0f} bytes or more, whatever is partitioned{more}"
            )

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (2,) bool; all are true once the episode is over."""
        mask = np.ones(2, dtype=bool)
        if self.masked and not self._over:
            fixed = self._fixed()
            if fixed != OPEN:
                mask[1 - fixed] = False
        return mask

    def plan(self) -> PartitionPlan:
        """Return the plan built so far; undecided dimensions are replicated."""
        return self.space.problem.plan(self.space.chosen(self._known))

    def undecided(self) -> set[str]:
        """Return the paths of the entry parameters that have an undecided dimension."""
        problem = self.space.problem
        undecided_dims = self.space.dimensions[self._decisions == OPEN]
        tensors = np.searchsorted(problem.graph.dim_offset, undecided_dims, side="right") - 1
        undecided_tensors = set(tensors.tolist())
        return {path for path, tensor in problem.tensor.items() if tensor in undecided_tensors}

    def _viewable(self) -> PartitionReport:
        return self.space.problem.report(self.plan())

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return len(self.space.questions)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return; learners scale returns by it."""
        space = self.space
        return paper_reward(PARTITION, len(space.dimensions)) if space.reward == "paper" else 1.0

    def _start(self) -> None:
        """Start an episode with nothing decided but what can never be partitioned."""
        space = self.space
        self._decisions = np.full(len(space.dimensions), OPEN, dtype=np.int8)
        if space.linkage:
            self._decisions[space.fixed] = REPLICATE
        self._known = [OPEN] * len(space.classes)
        self._position, self._earned = 0, 0.0
        self._over, self._outcome = False, {}

    def _figures(self, known: np.ndarray) -> dict[str, np.ndarray]:
        """Return what infos say of complete plans, (k,) each; ``known`` are (k, K) decisions."""
        problem, chosen = self.problem, self.space.chosen(known)
        # A product of matrices could round differently for other k.
        saved_seconds = np.where(chosen, problem.gain_seconds, 0.0).sum(axis=-1)
        figures = {"length_seconds": problem.replicate_seconds - saved_seconds}
        if self.memory or problem.step.limit is not None:
            peaks = [problem.peak(one) for one in chosen]
            figures["excess_bytes"] = np.array(peaks) - problem.memory_limit
        return figures

    def _fixed(self) -> int:
        """Return the decision that earlier ones force on the class at stake, or ``OPEN``."""
        label = self.space.question_class[self._position]
        return REPLICATE if label < 0 else self._known[label]

    def _settle(self, choice: int) -> float:
        """Decide a class and replicate those it excludes, and go on to the next open class.

        Returns:
            The reward of all these decisions.
        """
        space, known = self.space, self._known
        label = space.question_class[self._position]
        reward = space.question_paid[self._position][choice]
        known[label] = choice
        self._decisions[space.members[label]] = choice
        if choice:
            for rival in space.rivals[label]:
                if known[rival] == OPEN:
                    known[rival] = REPLICATE
                    reward += space.paid[rival][REPLICATE]
            self._decisions[space.rival_members[label]] = REPLICATE
        position, labels = self._position + 1, space.question_class
        while position < len(labels) and known[labels[position]] != OPEN:
            position += 1
        self._position = position
        return reward

    def _decide(self, choice: int) -> float:
        """Decide one dimension; decisions that follow from it are known but not yet paid.

        Returns:
            The reward of this decision.
        """
        space, known = self.space, self._known
        label = space.question_class[self._position]
        reward = space.question_paid[self._position][choice]
        self._decisions[space.questions[self._position]] = choice
        self._position += 1
        if label >= 0 and known[label] == OPEN:
            known[label] = choice
            for rival in space.rivals[label] if choice else ():
                known[rival] = REPLICATE
        elif space.pays_once:
            return 0.0
        return reward

    def _observation(self) -> dict[str, Any]:
        return {
            "decisions": self._decisions.copy(),
            "position": np.int64(self._position),
            "stake": self.space.stakes[self._position].copy(),
        }


class OperatorPartitionEnv(PartitionEnv):
    """Decide for each dimension of each trainable variable: partition it, or replicate it.

    ## Description
    A training step is a graph of instructions. Dimensions that instructions tie together form a
    class, which is partitioned over all N devices as a whole, or not at all. Some classes can never
    be partitioned, and some exclude each other, as an instruction may split at most one of its
    factors (arXiv 2007.04069, sections 3.3 and 4.2; the rules are in
    ``parenvs.tasks.partition.rules``). Each step decides one class, and with it all classes that it
    excludes.

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the class or dimension at stake. With ``linkage``
    both are always legal. The mask is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or
    part of the observation with ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``:

    * ``decisions``: (V,) int8, the decision on each dimension, in the order of the paths: 1
      partitioned, 0 replicated, -1 undecided.
    * ``position``: Discrete(n + 1), the index of the question at stake; n at the end.
    * ``stake``: (5,) float32 in [-1, 1], figures of the class at stake: its share of all
      dimensions, its share of the bytes of all parameters, the share of the replicated step's
      seconds that partitioning it saves, the share of the dimensions that it excludes, and the
      share of the seconds that those could save.

    The classes that can earn most are asked about first: those with most dimensions
    (``reward="paper"``), or those that save most seconds (``"step_time"``); ties by path.

    ## Rewards
    * ``reward="paper"``: 0.4 for each dimension that the step partitions, 0.1 for each that it
      replicates, including the dimensions that it excludes. Dimensions that can never be
      partitioned are paid on the first step. A complete episode returns 0.1 V + 0.3 x partitioned
      dimensions.
    * ``reward="step_time"``: the fall of the step time T, divided by that of the replicated step;
      a complete episode returns 1 - T / T_replicate. The dimensions of the batch inputs are decided
      too: partitioning the batch is data parallelism.

    A conflict (an illegal action) pays -1 and ends the episode. A complete plan that exceeds
    ``memory_limit`` returns -1 in all: the last step takes back what the others earned, whatever
    the reward. The mask says nothing of memory, as whether decisions can still be completed within
    the limit is an integer program.

    ## Starting State
    Dimensions that can never be partitioned are replicated, all others are undecided; the same at
    every reset.

    ## Episode End
    When everything is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``: shipped name, path of a graph, or ``parenvs.Graph``, which makes a specification
      that is not serialisable.
    * ``devices``: N (default 8: one server of V100); or ``cluster``: preset, short form, ``.json``
      path or object, see ``Cluster.parse``.
    * ``rules``: ``"shardy"``, or ``"automap"``, where a reduced dimension cannot be partitioned.
    * ``uneven``: ``"pad"``, or ``"forbid"``: only multiples of N can be partitioned.
    * ``reward``: ``"paper"`` or ``"step_time"``.
    * ``linkage``: False is the ablation: each step decides one dimension, nothing is inferred, and
      a decision that contradicts an earlier one is a conflict.
    * ``masked``: whether the mask forbids contradictions; it matters only without linkage.
    * ``memory``: whether infos have ``excess_bytes``, which takes milliseconds an episode.
    * ``memory_limit``: bytes on a device that plans must keep to; ``True`` or ``"device"`` for 0.9
      of the device's memory; None: memory decides nothing.
    * ``micro_batch``: samples of a micro-batch, 2 or more (None: the graph's batch);
      ``micro_batches``: how many a step has, whose gradients are added up.
    * ``recompute``: ``"none"``, or ``"full"``: activations are made again in the backward pass.
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``linkage``, ``masked`` and ``memory``.

    All but ``linkage``, ``masked`` and ``memory`` are also keys of ``reset(options=...)``, for one
    episode, if the spaces stay the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan
    ``length_seconds`` of a training step, and with ``memory`` or ``memory_limit`` ``excess_bytes``,
    by which the peak exceeds the limit, or without one the memory of a device (<= 0: it fits).
    Without a limit rewards do not depend on it.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        instance: str | Graph = "t5-base",
        devices: int | None = None,
        cluster: str | dict[str, Any] | None = None,
        rules: str = "shardy",
        uneven: str = "pad",
        reward: str = "paper",
        linkage: bool = True,
        masked: bool = False,
        memory: bool = False,
        memory_limit: float | str | bool | None = None,
        micro_batch: int | None = None,
        micro_batches: int = 1,
        recompute: str = REMADE[0],
        problem: Partitioning | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        if problem is None:
            problem = instances.problem(
                instance, cluster, PartitionPlan.task, devices=devices, rules=rules, uneven=uneven,
                reward=reward, micro_batch=micro_batch, micro_batches=micro_batches,
                recompute=recompute, memory_limit=memory_limit,
            )  # fmt: skip
        space = PartitionSpace.of(_checked(problem, "variables"), linkage)
        super().__init__(space, masked, memory, render_mode)


class DataParallelEnv(PartitionEnv):
    """Find the dimension of each batch input over which training is data parallel.

    ## Description
    As in ``OperatorPartition-v0``, but the dimensions of the batch inputs are decided, one at a
    time, and nothing is decided along with them. The mask knows which decisions an earlier one
    forces or excludes; contradicting them is a conflict (arXiv 2007.04069, sections 3.4 and 4.3).

    ## Action Space
    ``Discrete(2)``: 0 replicates, 1 partitions the dimension at stake. An action is legal if it
    contradicts no earlier decision; dimensions that can never be partitioned must be replicated.
    The mask is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``.

    ## Observation Space
    ``Dict``, as in ``OperatorPartition-v0``: ``decisions`` (V,) int8 over the dimensions of all
    batch inputs, ``position`` and ``stake``.

    ## Rewards
    * ``reward="paper"``: 0.4 for a dimension that is partitioned, 0.1 for one that is replicated.
    * ``reward="step_time"``: the fall of the step time, divided by that of the replicated step.

    A conflict pays -1 and ends the episode; a complete plan that exceeds ``memory_limit`` returns
    -1, as in ``OperatorPartition-v0``.

    ## Starting State
    Nothing decided; the same at every reset.

    ## Episode End
    When every dimension is decided, or at a conflict. No truncation.

    ## Arguments
    * ``instance``, ``devices``, ``cluster``, ``rules``, ``uneven``, ``reward``, ``memory_limit``,
      ``micro_batch``, ``micro_batches``, ``recompute``: as in ``OperatorPartition-v0``.
    * ``masked``: whether the mask forbids conflicts; if False, it forbids nothing.
    * ``memory``, options of ``reset``, and infos: as in ``OperatorPartition-v0``.
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``masked`` and ``memory``.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        instance: str | Graph = "t5-base",
        devices: int | None = None,
        cluster: str | dict[str, Any] | None = None,
        rules: str = "shardy",
        uneven: str = "pad",
        reward: str = "paper",
        masked: bool = True,
        memory: bool = False,
        memory_limit: float | str | bool | None = None,
        micro_batch: int | None = None,
        micro_batches: int = 1,
        recompute: str = REMADE[0],
        problem: Partitioning | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        if problem is None:
            problem = instances.problem(
                instance, cluster, PartitionPlan.task, devices=devices, scope="inputs", rules=rules,
                uneven=uneven, reward=reward, micro_batch=micro_batch, micro_batches=micro_batches,
                recompute=recompute, memory_limit=memory_limit,
            )  # fmt: skip
        space = PartitionSpace.of(_checked(problem, "inputs"), linkage=False)
        super().__init__(space, masked, memory, render_mode)


def _checked(problem: Partitioning, scope: str) -> Partitioning:
    """Return the problem if its plans are of a scope.

    Raises:
        ParenvsError: they are of another one.
    """
    if problem.scope != scope:
        raise ParenvsError(f"problem: is of scope {problem.scope}, not of {scope}")
    return problem
