"""``OperatorPartition-v0`` and ``DataParallel-v0``: which dimensions are split over the devices.

Both decide one dimension or class per step; the docstrings of the classes specify them. Rewards are
those of ``parenvs.tasks.partition.formulas``, tabulated by ``PartitionSpace``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Fixed, Groups, Rows, Source
from parenvs.core.registry import problem as load_problem
from parenvs.core.rows import Rowed
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.partition.formulas import paper_reward
from parenvs.tasks.partition.plan import REMADE, PartitionPlan
from parenvs.tasks.partition.problem import Partitioning
from parenvs.tasks.partition.space import OPEN, PARTITION, STAKES, PartitionSpace
from parenvs.tasks.partition.turns import Turns

SETTINGS = (
    "devices", "rules", "uneven", "reward", "micro_batch", "micro_batches", "recompute",
    "memory_limit",
)  # fmt: skip
"""Arguments that are options of ``parenvs.problem``."""


SHARP = 10.0
"""What column 0 gives for a class that is worth all."""
CLASS = ("dimensions", "bytes", "seconds", "excluded_dimensions", "excluded_seconds")
"""Columns that describe the class at stake, in the order of ``stake``."""
WORTH = {"paper": "dimensions", "step_time": "seconds"}
"""Reward -> the figure by which the rule chooses."""


class PartitionGame(Rowed):
    """Asks one question of a ``PartitionSpace`` per step: about a dimension or a class.

    Args:
        count: n.
        space: the questions, and the consequences and rewards of the answers.
        masked: whether the mask forbids answers that contradict earlier decisions; otherwise it
            forbids nothing.
        memory: whether infos at the end of an episode have ``excess_bytes``; with a limit of memory
            they always do.
        rows: how actions are observed as rows, or None if they are not.
    """

    rule = "to partition what is paid more than if replicated; what is paid most is asked first"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "of the choice that partitions, 10 times the class's share of the dimensions, or "
        "of the seconds where these are paid",
        "partition": "1 for the choice that partitions",
        "dimensions": "the class's share of all dimensions, of the choice that partitions",
        "bytes": "its share of the bytes of all parameters",
        "seconds": "share of the replicated step's seconds that it saves",
        "excluded_dimensions": "share of the dimensions that it excludes",
        "excluded_seconds": "share of the seconds that those could save",
    }
    ahead = frozenset({"rule"})
    contexts: ClassVar[Mapping[str, str]] = {
        "asked": "share of the questions that were asked",
        "partitioned": "share of the dimensions that are partitioned",
        "undecided": "share of those that are undecided",
        "devices": "log2 of the devices / 10",
    }

    options = ("instance", "cluster", *SETTINGS, "problem")
    exact = "parenvs.agents.partition.exact:best_of_game"
    render_fps = 4

    def __init__(
        self,
        count: int,
        space: PartitionSpace,
        masked: bool,
        memory: bool,
        rows: str | None,
    ) -> None:
        """Set up the spaces."""
        super().__init__(count)
        self.space, self.masked, self.memory = space, masked, memory
        self.source: Source = Fixed(space)
        self.groups = Groups(count, Turns(count, space, memory))
        self.action_space = spaces.Discrete(2)
        self.observation_space = spaces.Dict(
            {
                "decisions": spaces.Box(-1, 1, (len(space.dimensions),), np.int8),
                "position": spaces.Discrete(len(space.questions) + 1),
                "stake": spaces.Box(-1.0, 1.0, (STAKES,), np.float32),
            }
        )
        if rows is not None:
            self.show_rows(2, rows)
        self._check_memory()

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        if self.groups.only:
            return self.groups.home.legal(self.masked)
        legal = np.empty((self.count, 2), dtype=np.bool_)
        for turns, rows, _ in self.groups.of(self._rows):
            legal[rows] = turns.legal(self.masked)[rows]
        return legal

    def put(self, rows: Rows, problem: PartitionSpace) -> None:
        """See ``Game.put``."""
        self.groups.give(
            rows,
            lambda turns: turns.space is problem,
            lambda: Turns(self.count, problem, self.memory),
        )

    def start(self, rows: Rows) -> None:
        """See ``Game.start``."""
        for turns, group, _ in self.groups.of(rows):
            turns.start(group)
        self.over[rows] = False

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: partition (1) or replicate (0) what is at stake."""
        if self.groups.only:
            rewards, self.over[rows] = self.groups.home.play(rows, actions)
            return rewards
        rewards = np.empty(len(actions))
        for turns, group, positions in self.groups.of(rows):
            rewards[positions], self.over[group] = turns.play(group, actions[positions])
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        if self.shown:
            return self._rowed(rows)
        groups = self.groups.of(rows)
        seen = [
            (
                turns.decisions[group],
                turns.position[group],
                turns.space.stakes.take(turns.position[group], axis=0),
            )
            for turns, group, _ in groups
        ]
        if len(seen) == 1:
            return dict(zip(("decisions", "position", "stake"), seen[0], strict=True))
        order = np.argsort(np.concatenate([positions for _, _, positions in groups]))
        return {
            name: np.concatenate([parts[i] for parts in seen])[order]
            for i, name in enumerate(("decisions", "position", "stake"))
        }

    def _rowed(self, rows: Rows) -> dict[str, np.ndarray]:
        """Return what is observed as rows: nothing of the choice that replicates."""
        indices = self._rows[rows]
        columns = {name: np.zeros((len(indices), 2)) for name in self.columns}
        context = np.zeros((len(indices), len(self.contexts)), dtype=np.float32)
        for turns, group, positions in self.groups.of(indices):
            space, decisions = turns.space, turns.decisions[group]
            stake = space.stakes.take(turns.position[group], axis=0)
            for name, values in zip(CLASS, stake.T, strict=True):
                columns[name][positions, PARTITION] = values
            columns["rule"][positions] = SHARP * columns[WORTH[space.reward]][positions]
            context[positions] = np.stack(
                [
                    turns.position[group] / len(space.questions),
                    (decisions == PARTITION).mean(axis=1),
                    (decisions == OPEN).mean(axis=1),
                    np.full(len(decisions), np.log2(space.problem.cluster.devices) / 10),
                ],
                axis=1,
            )
        columns["partition"][:, PARTITION] = 1.0
        return self.as_rows(columns, context, self.legal[rows], self.over[rows])

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: of complete plans."""
        outcome: dict[str, np.ndarray] = {}
        indices = self._rows[rows]
        for turns, group, positions in self.groups.of(indices):
            at = np.arange(len(indices))[positions]
            complete = turns.is_complete()[group]
            if not complete.any():
                continue
            for name, values in turns.figures(np.asarray(group)[complete]).items():
                outcome.setdefault(name, np.full(len(indices), np.nan))[at[complete]] = values
        return outcome

    def plan(self, row: int) -> PartitionPlan:
        """Return the plan built so far; undecided dimensions are replicated."""
        return self.problem(row).plan(self.groups.part(row).chosen(row))

    def problem(self, row: int) -> Partitioning:
        """See ``Game.problem``."""
        return self.groups.part(row).space.problem

    def undecided(self, row: int) -> set[str]:
        """Return the paths of the entry parameters that have an undecided dimension."""
        turns = self.groups.part(row)
        space, problem = turns.space, turns.space.problem
        undecided_dims = space.dimensions[turns.decisions[row] == OPEN]
        tensors = np.searchsorted(problem.graph.dim_offset, undecided_dims, side="right") - 1
        undecided_tensors = set(tensors.tolist())
        return {path for path, tensor in problem.tensor.items() if tensor in undecided_tensors}

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return len(self.space.questions)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, by which learners scale returns."""
        space = self.space
        return paper_reward(PARTITION, len(space.dimensions)) if space.reward == "paper" else 1.0

    def _check_memory(self) -> None:
        """Warn if no plan can fit the memory of a device, or keep to the limit."""
        problem = self.space.problem
        if problem.step.limit is None:
            every_class = np.ones(len(problem.classes), dtype=bool)
            minimum, what = problem.footprint.memory(every_class).peak, "that of a device"
            more = ""
        else:
            minimum, what = problem.footprint.least(~problem.classes.blocked), "memory_limit"
            more = ", so every complete episode returns -1"
        if minimum > problem.memory_limit:
            warnings.warn(
                f"no plan fits the memory: {problem.instance} on {problem.cluster}: the peak "
                f"exceeds {what} by {minimum - problem.memory_limit:,.0f} bytes or more, whatever "
                f"is partitioned{more}",
                stacklevel=4,
            )


class OperatorPartition(PartitionGame):
    """Decide for each dimension of each trainable variable: partition it, or replicate it.

    ## Description
    A training step is a graph of instructions. Dimensions that instructions tie together form a
    class, which is partitioned over all N devices as a whole, or not at all. Some classes can never
    be partitioned, and some exclude each other, as an instruction may split at most one of its
    factors (arXiv 2007.04069, sections 3.3 and 4.2; the rules are in
    ``parenvs.graph.opcodes``). Each step decides one class, and with it all classes that it
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

    With ``rows`` a row for each choice instead, see ``parenvs.core.rows.Rowed``:

    * ``actions``: (2, 7) float32: ``rule``, ``partition``, and in the row that partitions
      ``dimensions``, ``bytes``, ``seconds``, ``excluded_dimensions``, ``excluded_seconds`` of the
      class at stake; with ``rows="bare"`` without the first.
    * ``context``: (4,) float32: ``asked``, ``partitioned``, ``undecided``, ``devices``.
    * ``action_mask``: (2,) int8.

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
    * ``rows``: None, or ``"ahead"`` or ``"bare"``, with which choices are observed as rows.
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``linkage``, ``masked``, ``memory`` and ``rows``.

    All but ``linkage``, ``masked``, ``memory`` and ``rows`` are also keys of
    ``reset(options=...)``, for one episode, if the spaces stay the same.

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
        count: int = 1,
        *,
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
        rows: str | None = None,
        problem: Partitioning | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        given = {
            "instance": instance, "devices": devices, "cluster": cluster, "rules": rules,
            "uneven": uneven, "reward": reward, "memory_limit": memory_limit,
            "micro_batch": micro_batch, "micro_batches": micro_batches, "recompute": recompute,
            "problem": problem, "linkage": linkage, "masked": masked, "memory": memory,
        }  # fmt: skip
        space = PartitionSpace.of(_problem("variables", given), linkage)
        super().__init__(count, space, masked, memory, rows)


class OperatorPartitionEnv(GameEnv, game=OperatorPartition):
    """A single environment of ``OperatorPartition``."""


class OperatorPartitionVectorEnv(GameVectorEnv, single=OperatorPartitionEnv):
    """A native batch of ``OperatorPartition``."""


class DataParallel(PartitionGame):
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
    batch inputs, ``position`` and ``stake``; with ``rows`` as there.

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
    * ``memory``, ``rows``, options of ``reset``, and infos: as in ``OperatorPartition-v0``.
    * ``problem``: a ``parenvs.Partitioning`` of this scope, in place of all the above but
      ``masked``, ``memory`` and ``rows``.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        count: int = 1,
        *,
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
        rows: str | None = None,
        problem: Partitioning | None = None,
    ) -> None:
        """Load the instance and find its classes; see the class for the arguments."""
        given = {
            "instance": instance, "devices": devices, "cluster": cluster, "rules": rules,
            "uneven": uneven, "reward": reward, "memory_limit": memory_limit,
            "micro_batch": micro_batch, "micro_batches": micro_batches, "recompute": recompute,
            "problem": problem, "masked": masked, "memory": memory,
        }  # fmt: skip
        space = PartitionSpace.of(_problem("inputs", given), linkage=False)
        super().__init__(count, space, masked, memory, rows)


class DataParallelEnv(GameEnv, game=DataParallel):
    """A single environment of ``DataParallel``."""


class DataParallelVectorEnv(GameVectorEnv, single=DataParallelEnv):
    """A native batch of ``DataParallel``."""


def _problem(scope: str, given: dict[str, Any]) -> Partitioning:
    """Return the problem that arguments are, or name.

    Raises:
        ParenvsError: its plans are of another scope.
    """
    problem: Partitioning | None = given["problem"]
    if problem is None:
        settings = {name: given[name] for name in SETTINGS}
        return load_problem(
            given["instance"], given["cluster"], PartitionPlan.task, scope=scope, **settings
        )
    if problem.scope != scope:
        raise ParenvsError(f"problem: is of scope {problem.scope}, not of {scope}")
    return problem
