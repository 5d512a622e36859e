"""What operator partitioning and data-parallel detection share: one decision a step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from parenvs.judge_partition import ILLEGAL, judge_partition, make_partition_plan
from parenvs.partition_space import OPEN, PARTITION, REPLICATE, STAKES, PartitionSpace
from parenvs.partitioning import PARTITIONED, REPLICATED
from parenvs.plan import PartitionPlan


class PartitionEnv(gym.Env[dict[str, Any], np.int64]):
    """Asks for one dimension or class after the other.

    Args:
        space: what is asked, and what the answers settle and pay.
        instance: name or path, for the plan.
        masked: the mask forbids what contradicts earlier decisions; else nothing.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self, space: PartitionSpace, instance: str, masked: bool, render_mode: str | None
    ) -> None:
        """Set up the spaces."""
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be one of {self.metadata['render_modes']}")
        self.render_mode = render_mode
        self.space, self.instance, self.masked = space, instance, masked
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
        self._position = 0
        self._over = False
        self._start()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start anew with nothing decided."""
        super().reset(seed=seed)
        self._start()
        return self._observation(), self._info()

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Partition (1) or replicate (0) what is at stake."""
        choice = int(action)
        if self._over or choice not in (REPLICATE, PARTITION) or self._fixed() == 1 - choice:
            self._over = True
            reward = ILLEGAL
        else:
            reward = self._settle(choice) if self.space.linkage else self._decide(choice)
            self._over = self._position == len(self.space.questions)
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """(2,) bool, legal actions; all true once the episode is over."""
        mask = np.ones(2, dtype=bool)
        if self.masked and not self._over:
            fixed = self._fixed()
            if fixed != OPEN:
                mask[1 - fixed] = False
        return mask

    def plan(self) -> PartitionPlan:
        """The plan built so far; what is undecided is replicated."""
        space = self.space
        chosen = space.chosen(self._known)
        return make_partition_plan(
            space.problem, chosen, space.task, space.reward, instance=self.instance
        )

    def render(self) -> Any:
        """What is partitioned so far, as text or as an (h, w, 3) uint8 picture."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make")
            return None
        from parenvs import partition_text, viewer_partition

        problem = self.space.problem
        report = judge_partition(self.plan(), problem)
        if self.render_mode == "ansi":
            return partition_text.text(report, undecided=self.undecided())
        return viewer_partition.rgb_array(problem, report, undecided=self.undecided())

    def undecided(self) -> set[str]:
        """Paths of the entry parameters that have an undecided dimension."""
        problem, open_ = self.space.problem, self.space.dimensions[self._decisions == OPEN]
        graph = problem.graph
        tensors = set((np.searchsorted(graph.dim_offset, open_, side="right") - 1).tolist())
        return {path for path, tensor in problem.tensor.items() if tensor in tensors}

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return len(self.space.questions)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, to scale it by."""
        return PARTITIONED * len(self.space.dimensions) if self.space.reward == "paper" else 1.0

    def _start(self) -> None:
        space = self.space
        self._decisions = np.full(len(space.dimensions), OPEN, dtype=np.int8)
        if space.linkage:
            self._decisions[space.fixed] = REPLICATE
        self._known = [OPEN] * len(space.classes)
        self._position = 0
        self._over = False

    def _fixed(self) -> int:
        """What the dimension at stake has to be, by what is known; ``OPEN`` if either will do."""
        label = self.space.question_class[self._position]
        return REPLICATE if label < 0 else self._known[label]

    def _settle(self, choice: int) -> float:
        """Decide a class and what that excludes, and go on to the next open one."""
        space, known = self.space, self._known
        label = space.question_class[self._position]
        reward = space.paid[label][choice]
        if self._position == 0:
            reward += space.initial
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
        """Decide one dimension; what follows from it is known but not paid."""
        space, known = self.space, self._known
        label = space.question_class[self._position]
        self._decisions[space.questions[self._position]] = choice
        self._position += 1
        news = label >= 0 and known[label] == OPEN
        if news:
            known[label] = choice
            for rival in space.rivals[label] if choice else ():
                known[rival] = REPLICATE
        if space.reward == "paper":
            return PARTITIONED if choice else REPLICATED
        return space.paid[label][choice] if news else 0.0

    def _observation(self) -> dict[str, Any]:
        return {
            "decisions": self._decisions.copy(),
            "position": np.int64(self._position),
            "stake": self.space.stakes[self._position].copy(),
        }

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks().astype(np.int8)}
