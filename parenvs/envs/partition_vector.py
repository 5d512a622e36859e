"""Batches of ``OperatorPartition-v0`` and ``DataParallel-v0``: all episodes in a few arrays."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parenvs.envs.data_parallel import DataParallelEnv
from parenvs.envs.operator_partition import OperatorPartitionEnv
from parenvs.envs.partition import PartitionEnv
from parenvs.judge_partition import ILLEGAL
from parenvs.partition_answers import answers_of
from parenvs.partition_space import OPEN
from parenvs.plan import PartitionPlan

MASKS = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.int8)
"""Legal actions where the class at stake is replicated, partitioned, and, index -1, open."""
FORBIDDEN = np.array([1, 0, 2])
"""The illegal action there; none where the class is open."""


class PartitionVectorEnv(VectorEnv[dict[str, Any], np.ndarray, np.ndarray]):
    """n episodes at once, each as in the single environment, to the last bit.

    What ``reset`` and ``step`` return is what ``gymnasium.vector.SyncVectorEnv`` makes of n single
    environments: observations batched, rewards (n,) float64, both flags (n,) bool, and
    ``infos["action_mask"]``, (n, 2) int8, with ``infos["_action_mask"]``, (n,) bool.

    Args:
        num_envs: n.
        autoreset_mode: an ended episode starts anew in the next step, whose action is ignored and
            whose reward is 0 (``NEXT_STEP``); in the same step, with the last observation in
            ``infos["final_obs"]`` (``SAME_STEP``); or by ``reset(options={"reset_mask": ...})``
            (``DISABLED``).
        copy: False hands out ``decisions`` as a read-only view that holds until the next call.
        kwargs: arguments of the single environment.

    Raises:
        ParenvsError: as in the single environment.
        ValueError: no environment, or an unknown mode.
    """

    single: ClassVar[type[PartitionEnv]]

    def __init__(
        self,
        num_envs: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make one environment, and room for n episodes."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs, self.copy = num_envs, copy
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.env: PartitionEnv = self.single(**kwargs)
        self.space, self.render_mode = self.env.space, self.env.render_mode
        self.metadata = {**self.env.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = self.env.action_space
        self.single_observation_space = self.env.observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.answers = answers_of(self.space)
        # The mask forbids something only where a question may be for what is known already.
        self._strict = not self.space.linkage
        self._hints = self._strict and self.env.masked
        self._decisions = np.tile(self.answers.first_decisions, (num_envs, 1))
        self._known = np.tile(self.answers.first_known, (num_envs, 1))
        self._row = np.arange(num_envs) * self._known.shape[1]
        self._position = np.zeros(num_envs, dtype=np.int64)
        self._stake = np.zeros(num_envs, dtype=np.int64)  # what is known of the class at stake
        self._over = np.zeros(0, dtype=np.int64)  # episodes that have ended
        # What is the same in every step: arrays, as making them, or using numbers, takes longer.
        self._all, self._none = np.ones(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)
        self._free = np.ones((num_envs, 2), dtype=np.int8)
        self._one = np.ones(num_envs, dtype=np.int64)
        self._other_bits = ~self._one  # no legal action has them
        self._start(np.arange(num_envs))

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all episodes anew, or those of ``options["reset_mask"]``, (n,) bool.

        Episodes are the same whatever the seed, a number or one for each environment.

        Raises:
            TypeError: the mask is no array of bool.
            ValueError: the mask, or the seeds, are not n; or the mask holds nothing.
        """
        if isinstance(seed, Sequence):
            if len(seed) != self.num_envs:
                raise ValueError(f"{self.num_envs} seeds are needed, not {len(seed)}")
            seed = seed[0]
        super().reset(seed=seed)
        if options is None or "reset_mask" not in options:
            self._start(np.arange(self.num_envs))
            self._over = self._over[:0]
            return self._observation(), self._infos()
        mask = self._reset_mask(options["reset_mask"])
        self._start(np.flatnonzero(mask))
        self._over = self._over[~mask[self._over]]
        infos = {"action_mask": self._masks() * mask[:, None], "_action_mask": mask.copy()}
        return self._observation(), infos

    def step(
        self, actions: np.ndarray | Sequence[int]
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Partition (1) or replicate (0) what is at stake, (n,) whole numbers.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ValueError: not n actions.
        """
        answers, over = self.answers, self._over
        if over.size and self.autoreset_mode == AutoresetMode.DISABLED:
            raise AssertionError(f"episodes {over.tolist()} are over: reset them by 'reset_mask'")
        choices = self._choices(actions)
        wrong = self._wrong(choices)
        codes = self._position + self._position
        codes += choices
        self._position += self._one
        for rows in (wrong, over):
            if rows.size:
                codes[rows] = len(answers.paid) - 1
        rewards = answers.paid.take(codes)
        if answers.once:
            rewards = np.where(self._stake == OPEN, rewards, 0.0)
        elif answers.varies is not None:
            rows = answers.varies.take(codes).nonzero()[0]
            if rows.size:
                rewards[rows] = answers.varying(self._known[rows], codes[rows])
        answers.decisions.write(self._decisions, codes)
        answers.known.write(self._known, codes)
        if wrong.size:
            rewards[wrong] = ILLEGAL
            self._position[wrong] -= 1
        if over.size:
            rewards[over] = 0.0
            self._start(over)
        self._look()
        terminated = answers.last.take(self._position)
        if wrong.size:
            terminated[wrong] = True
            terminated[over] = False  # what was asked of them did not count
        self._over = terminated.nonzero()[0]
        if self._over.size and self.autoreset_mode == AutoresetMode.SAME_STEP:
            final = self._final_infos(terminated)
            self._start(self._over)
            self._over = self._over[:0]
            infos = {**final, **self._infos()}
        else:
            infos = self._infos()
        return self._observation(), rewards, terminated, self._none.copy(), infos

    def action_masks(self) -> np.ndarray:
        """(n, 2) bool, legal actions; all true where the episode is over."""
        return self._masks().view(bool)

    def plan(self, index: int) -> PartitionPlan:
        """The plan built so far by one environment; what is undecided is replicated."""
        return self.fork(index).plan()

    def render(self) -> Any:
        """What each environment's ``render`` gives."""
        return tuple(self.fork(index).render() for index in range(self.num_envs))

    def fork(self, index: int) -> PartitionEnv:
        """A single environment in the state of one of these; it leaves this one alone."""
        env = copying.copy(self.env)
        env._decisions = self._decisions[index].copy()
        env._known = self._known[index, : len(self.space.classes)].tolist()
        env._position = int(self._position[index])
        env._over = bool(np.isin(index % self.num_envs, self._over))
        return env

    def _choices(self, actions: np.ndarray | Sequence[int]) -> np.ndarray:
        """Actions as (n,) int64; what is no action stays none."""
        choices = np.asarray(actions)
        if choices.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not {choices.shape}")
        if choices.dtype != np.int64:
            if choices.dtype.kind not in "iub":  # as the single environment: whatever int() takes
                choices = np.array([min(max(int(one), -1), 2) for one in choices])
            choices = choices.astype(np.int64)
        return choices

    def _wrong(self, choices: np.ndarray) -> np.ndarray:
        """(k,) indices of environments whose action is illegal."""
        wrong = (choices & self._other_bits).nonzero()[0]
        if self._strict:
            clash = choices == FORBIDDEN.take(self._stake)
            if wrong.size:
                clash[wrong] = True
            wrong = clash.nonzero()[0]
        return wrong

    def _look(self) -> None:
        """Find what is known of the class at stake; with linkage go on to the next open one."""
        if self._strict:
            column = self.answers.column.take(self._position)
            self._stake = self._known.take(self._row + column).astype(np.int64)  # an index
            return
        stake = self._known.take(self._row + self._position)
        known = (~stake).nonzero()[0]  # ~OPEN == 0
        if known.size:  # all before are known, so the first open one is the next
            self._position[known] = (self._known[known] == OPEN).argmax(axis=1)

    def _start(self, rows: np.ndarray) -> None:
        """Start episodes anew with nothing decided."""
        self._decisions[rows] = self.answers.first_decisions
        self._known[rows] = self.answers.first_known
        self._position[rows] = 0
        if self._strict:
            self._stake[rows] = self.answers.first_known[self.answers.column[0]]

    def _observation(self) -> dict[str, Any]:
        if self.copy:
            decisions = self._decisions.copy()
        else:
            decisions = self._decisions.view()
            decisions.flags.writeable = False
        return {
            "decisions": decisions,
            "position": self._position.copy(),
            "stake": self.space.stakes.take(self._position, axis=0),
        }

    def _masks(self) -> np.ndarray:
        """(n, 2) int8, a fresh array."""
        if not self._hints:
            return self._free.copy()
        masks = MASKS.take(self._stake, axis=0)
        if self._over.size:
            masks[self._over] = 1
        return masks

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": self._masks(), "_action_mask": self._all.copy()}

    def _final_infos(self, ended: np.ndarray) -> dict[str, Any]:
        """What ``SyncVectorEnv`` says of (n,) bool episodes that end and start anew at once."""
        last = self._position[self._over]
        parts = zip(self._decisions[self._over], last, self.space.stakes[last], strict=True)
        final = np.full(self.num_envs, None, dtype=object)
        for index, (decisions, position, stake) in zip(self._over.tolist(), parts, strict=True):
            final[index] = {"decisions": decisions, "position": position, "stake": stake}
        masks = np.zeros((self.num_envs, 2), dtype=np.int8)
        masks[self._over] = 1
        return {
            "final_obs": final,
            "_final_obs": ended.copy(),
            "final_info": {"action_mask": masks, "_action_mask": ended.copy()},
            "_final_info": ended.copy(),
        }

    def _reset_mask(self, mask: Any) -> np.ndarray:
        """The mask of a reset, if it is one."""
        if not isinstance(mask, np.ndarray) or mask.dtype != bool:
            kind = mask.dtype if isinstance(mask, np.ndarray) else type(mask).__name__
            raise TypeError(f"options['reset_mask'] must be an array of bool, not {kind}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must be ({self.num_envs},), not {mask.shape}")
        if not mask.any():
            raise ValueError("options['reset_mask'] must hold at least one True")
        return mask


class OperatorPartitionVectorEnv(PartitionVectorEnv):
    """n times ``OperatorPartition-v0``; see ``OperatorPartitionEnv`` for the task."""

    single = OperatorPartitionEnv


class DataParallelVectorEnv(PartitionVectorEnv):
    """n times ``DataParallel-v0``; see ``DataParallelEnv`` for the task."""

    single = DataParallelEnv
