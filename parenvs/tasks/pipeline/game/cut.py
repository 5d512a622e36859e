"""``PipelineCut-v0``: cut a chain of pivots into pipeline stages, one cut a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS
from parenvs.core.game import EVERY, Fixed, Rows, Source, warn_infeasible
from parenvs.core.plan import ILLEGAL
from parenvs.core.registry import problem as load_problem
from parenvs.core.rows import Rowed
from parenvs.envs.env import GameEnv, whole_number
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.cuts import RADIUS, CutSpace
from parenvs.tasks.pipeline.game.cut_kernel import (
    MAX_BYTES_VECTOR,
    NOTHING,
    CutKernel,
    SettledStages,
    kernel_of,
)
from parenvs.tasks.pipeline.load import PIPELINE_OPTIONS
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    RECOMPUTE,
    TIED,
    PipelinePlan,
)
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.tasks.pipeline.profile import StageProfile

SHARP = 10.0
"""What column 0 gives for a plan of a whole reward more than the best of the others."""


class PipelineCut(Rowed):
    """Cut a model into S pipeline stages so that a training step is as short as possible.

    ## Description
    The forward instructions of a model are a chain of pivots. Step k chooses the first pivot of
    stage k+1 among the candidates; the cut of the devices follows from it: each stage gets devices
    in proportion to its seconds. After S-1 cuts the judge computes the length of a training step,
    with all-reduces and transfers (arXiv 2007.04069, sections 3.5 and 4.4; the formula is in
    ``parenvs.tasks.pipeline.formulas``).

    ## Action Space
    ``Discrete(c)``: the index of a candidate; ``game.space.pivots[action]`` is its pivot. A
    candidate is legal if it lies after the last cut and within the window of this step, leaves
    every stage a variable and a device, and can be followed by the remaining cuts. The mask of
    legal actions is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the
    observation with ``parenvs.wrappers.MaskInObservation``. Memory is not masked.

    ## Observation Space
    ``Dict``:

    * ``features``: (c, 3) float32 in [0, 1], of the plan that cuts at the candidate next and makes
      the rest of the chain the last stage: the longest all-reduce and the longest transfer, each
      divided by the instance's maximum, and the shortest compute time of a stage divided by the
      longest. Zeros for candidates that are not legal.
    * ``cuts``: (S-1,) float32 in [-1, 1], the chosen cuts divided by n, -1 if not yet chosen.
    * ``step``: Discrete(S), the number of cuts made.

    With ``rows`` a row for each candidate instead, see ``parenvs.core.rows.Rowed``:

    * ``actions``: (c, 8) float32: ``rule``, ``reward``, ``all_reduce``, ``transfer``, ``balance``,
      ``pivot``, ``stage``, ``devices``; with ``rows="bare"`` the last three.
    * ``context``: (4,) float32: ``made``, ``last``, ``left``, ``stages``.
    * ``action_mask``: (c,) int8.

    ## Rewards
    0 for every cut but the last. The last pays 1/L, where L is the length in units of the
    bubble-free time (all devices compute all the time), so it lies in (0, 1]; or -1 if a stage
    exceeds the device memory. An illegal action pays -1 and ends the episode.

    ## Starting State
    No cut; the same at every reset.

    ## Episode End
    After S-1 cuts or an illegal action. No truncation.

    ## Arguments
    * ``instance``: shipped name, path of a ``.csv`` profile or of a graph, ``parenvs.Graph`` or
      ``parenvs.StageProfile``; the last two make a specification that is not serialisable.
    * ``cluster``: preset, short form, ``.json`` path or object, see ``Cluster.parse``.
    * ``stages``: S (default: one stage a server).
    * ``micro_batch``, ``micro_batches``: samples in a micro-batch, micro-batches in a step.
    * ``copies``, ``recompute``, ``sync``, ``tied``: copies of the parameters on each device,
      recomputation of activations, synchronisation of gradients and tied weights, see
      ``parenvs.Pipeline``.
    * ``radius``: largest distance of a device cut from the centre solution.
    * ``candidates``: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.
    * ``rows``: None, or ``"ahead"`` or ``"bare"``, with which candidates are observed as rows.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above but ``radius``, ``candidates``
      and ``rows``.

    Each but ``rows`` is also a key of ``reset(options=...)``, for one episode, if the spaces stay
    the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan
    ``length_seconds`` of a training step, and ``excess_bytes``, by which the fullest stage exceeds
    the memory of a device (<= 0: it fits).

    ## Many at Once
    ``gym.make_vec("PipelineCut-v0", num_envs=1024)``, see ``PipelineCutVectorEnv``.

    ## Version History
    * v0: first version.
    """

    options = (
        "instance",
        "cluster",
        *PIPELINE_OPTIONS,
        "radius",
        "candidates",
        "problem",
    )
    exact = "parenvs.agents.pipeline.planners:best_of_game"
    rule = "the cut after which the step is shortest if the rest of the chain is cut evenly"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "10 times the reward, less that of the best legal candidate",
        "reward": "of the plan that goes on with stages of the same seconds each",
        "all_reduce": "longest all-reduce if the rest is one stage, over the instance's maximum",
        "transfer": "longest transfer then, over the instance's maximum",
        "balance": "shortest compute time of a stage then, over the longest",
        "pivot": "the pivot over n",
        "stage": "seconds of the stage that ends there, over those of all that are left, evenly, "
        "over 4",
        "devices": "devices of that stage, as a share of all",
    }
    ahead = frozenset({"rule", "reward", "all_reduce", "transfer", "balance"})
    contexts: ClassVar[Mapping[str, str]] = {
        "made": "share of the cuts that are made",
        "last": "pivot of the last cut over n, 0 before the first",
        "left": "share of the seconds after it",
        "stages": "log2 of the stages / 10",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | Graph | StageProfile = "t5-base",
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        tied: str = TIED[0],
        radius: int = RADIUS,
        candidates: str = "minima",
        rows: str | None = None,
        problem: Pipeline | None = None,
    ) -> None:
        """Load the instance and find its candidates; see the class for the arguments."""
        super().__init__(count)
        if problem is None:
            problem = load_problem(
                instance,
                cluster,
                stages=stages,
                micro_batch=micro_batch,
                micro_batches=micro_batches,
                copies=copies,
                recompute=recompute,
                sync=sync,
                tied=tied,
                fractions=True,
            )
        space = CutSpace.build(problem.with_fractions(), radius, candidates)
        kernel = kernel_of(space)
        lowest_excess = kernel.least_excess()
        if lowest_excess > 0:
            warn_infeasible(
                f"{problem.instance} on {problem.cluster}: the fullest stage exceeds that of a "
                f"device by {lowest_excess:,.0f} bytes or more, so every episode pays -1"
            )
        if count > 1 and not kernel.tabulated:
            kernel = kernel_of(space, MAX_BYTES_VECTOR)
        self.source = Fixed(kernel)
        candidate_count, cuts = kernel.end, kernel.cuts
        self.action_space = spaces.Discrete(candidate_count)
        self.observation_space = spaces.Dict(
            {
                "features": spaces.Box(0.0, 1.0, (candidate_count, 3), np.float32),
                "cuts": spaces.Box(-1.0, 1.0, (cuts,), np.float32),
                "step": spaces.Discrete(cuts + 1),
            }
        )
        if rows is not None:
            self.show_rows(candidate_count, rows)
        # Row k of chains is cut k of every episode, between the ends of the model.
        self.chains = np.full((cuts + 2, count), kernel.end)
        self.chains[0] = kernel.start
        self.made = np.empty(count, dtype=np.int64)
        self.figures = np.empty((2, count))  # length and excess bytes of complete plans
        self._cuts = np.empty((count, cuts), dtype=np.float32)
        # Legal are the candidates [begin, end) of each episode.
        self._window, self._first_window = np.empty((2, count, 2), dtype=np.int64)
        # Of the stages settled, see CutKernel.settle.
        self._peaks, self._paces = np.zeros((count, 2), dtype=np.float32), np.zeros((count, 2))
        # Cuts that all have made, if they are as many and no episode is over.
        self._common: int | None = None

    @property
    def kernel(self) -> CutKernel | None:
        """The kernel of the problem that all episodes have; None if their problems differ."""
        kernel: CutKernel | None = self._shared
        return kernel

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        step, kernel = self._common, self.kernel
        if kernel is not None and step is not None:
            if step == 0 or not kernel.overlaps[step]:
                legal = np.zeros((self.count, kernel.end), dtype=np.bool_)
                legal[:, slice(*self._window[0])] = True
                return legal
            if kernel.tabulated:
                last = self.chains[step] - kernel.low[step - 1]
                return kernel.step_masks[step].take(last, axis=0)
        elif self.over.all():
            return np.ones((self.count, self.action_space.n), dtype=np.bool_)
        numbers, (begin, end) = np.arange(self.action_space.n), self._window.T[..., None]
        return (numbers >= begin) & (numbers < end)

    def put(self, rows: Rows, problem: CutKernel) -> None:
        """See ``Game.put``."""
        begin = max(problem.after[problem.start], problem.low[0])
        self._first_window[rows] = begin, problem.high[0]

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: no cut."""
        self.made[rows] = 0
        self.over[rows] = False
        self._cuts[rows] = -1.0
        self._window[rows] = self._first_window[rows]
        self._common = 0 if rows is EVERY else self._alike()

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: cut at a candidate in each episode."""
        kernel, step, (begin, end) = self.kernel, self._common, self._window[rows].T
        legal = (actions >= begin) & (actions < end)
        if (
            rows is EVERY
            and kernel is not None
            and step is not None
            and np.count_nonzero(legal) == self.count
        ):
            self._common = step + 1 if step + 1 < kernel.cuts else None
            return self._cut(kernel, step, EVERY, actions)
        rows, rewards = self._rows[rows], np.full(len(actions), ILLEGAL)
        illegal = rows[~legal]
        self.over[illegal], self.figures[:, illegal] = True, np.nan
        for kernel, step, index in self._groups(rows, legal):
            rewards[index] = self._cut(kernel, step, rows[index], actions[index])
        self._common = self._alike()
        return rewards

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        features = self._features(rows)
        if self.shown:
            return self.rowed(rows, features, self.legal[rows])
        return {"features": features, "cuts": self._cuts[rows], "step": self.made[rows]}

    def rowed(self, rows: Rows, features: np.ndarray, legal: np.ndarray) -> dict[str, np.ndarray]:
        """Return what is observed of episodes as rows.

        Args:
            rows: the episodes.
            features: (k, c, 3), as in the observation without rows.
            legal: (k, c) bool.
        """
        rows = self._rows[rows]
        pivot, stage, devices, reward = np.zeros((4, *legal.shape))
        context = np.zeros((len(rows), len(self.contexts)), dtype=np.float32)
        for kernel, step, index in self._groups(rows, ~self.over[rows]):
            chains, stages = self.chains[:, rows[index]], kernel.cuts + 1
            seconds = kernel.seconds_sum / kernel.seconds_sum[kernel.end]
            done, before = seconds[chains[step]], kernel.device[chains[step]]
            pivot[index] = kernel.shares
            even = (1.0 - done) / (stages - step)
            stage[index] = (seconds[: kernel.end] - done[:, None]) / (4.0 * even[:, None])
            ahead = kernel.device[: kernel.end] - before[:, None]
            devices[index] = ahead / kernel.device[kernel.end]
            context[index, 0] = step / kernel.cuts
            context[index, 1] = kernel.shares[chains[step]] if step else 0.0
            context[index, 2], context[index, 3] = 1.0 - done, np.log2(stages) / 10
            if self.looks:
                episode, cut = legal[index].nonzero()
                plans = chains[:, episode]
                plans[step + 1] = cut
                kernel.evenly(step, plans)
                reward[index[episode], cut] = kernel.reward(*kernel.length_and_excess(plans))
        best = np.where(legal, reward, -np.inf).max(axis=1, keepdims=True)
        reduce, transfer, balance = features.transpose(2, 0, 1)
        columns = {
            "rule": SHARP * (reward - best), "reward": reward, "all_reduce": reduce,
            "transfer": transfer, "balance": balance, "pivot": pivot, "stage": stage,
            "devices": devices,
        }  # fmt: skip
        return self.as_rows(columns, context, legal, self.over[rows])

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``length_seconds`` and ``excess_bytes`` of whole plans."""
        length, excess_bytes = self.figures[:, rows]
        return {"length_seconds": length, "excess_bytes": excess_bytes}

    def plan(self, row: int) -> PipelinePlan:
        """Return the plan so far; the rest of the chain is its last stage."""
        space = self.space_of(row)
        return space.pipeline.plan(*space.plan(self.chains[1 : 1 + self.made[row], row]))

    def problem(self, row: int) -> Pipeline:
        """See ``Game.problem``."""
        return self.space_of(row).pipeline

    def space_of(self, row: int) -> CutSpace:
        """Return the candidates of an episode's problem."""
        space: CutSpace = self._held[row].space
        return space

    @property
    def space(self) -> CutSpace:
        """The candidates of the first episode's problem."""
        return self.space_of(0)

    def view(self, row: int) -> Report | Pipeline:
        """See ``Game.view``."""
        return self.problem(row).so_far(self.plan(row))

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``; rows would show another number of cuts alike.

        Raises:
            ParenvsError: the problem has another number of stages.
        """
        source = super().elsewhere(options)
        mine, its = self.episode_steps + 1, source.only.cuts + 1
        if mine != its:
            raise ParenvsError(
                f"options: {', '.join(options)} would change the stages from {mine} to {its}; make "
                "another environment for it"
            )
        return source

    @property
    def episode_steps(self) -> int:
        """Steps of an episode in which no action is illegal."""
        return len(self.chains) - 2

    def _groups(
        self, rows: np.ndarray, chosen: np.ndarray
    ) -> Iterator[tuple[CutKernel, int, np.ndarray]]:
        """Group episodes by kernel and number of cuts made.

        Args:
            rows: (k,) int64, the episodes.
            chosen: (k,) bool, which of them are grouped.

        Yields:
            A kernel, a number of cuts, and the indices in ``rows`` of the episodes that have both.
        """
        if not chosen.any():
            return
        made, held = self.made[rows], [self._held[row] for row in rows.tolist()]
        for kernel in dict.fromkeys(held):
            alike = chosen if self.kernel else chosen & [other is kernel for other in held]
            for step in range(kernel.cuts):
                index = np.flatnonzero(alike & (made == step))
                if index.size:
                    yield kernel, step, index

    def _alike(self) -> int | None:
        """Return the number of cuts that all have made, if they are as many and none is over."""
        made = int(self.made[0])
        return made if not self.over.any() and bool((self.made == made).all()) else None

    def _cut(self, kernel: CutKernel, step: int, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """Take legal actions in episodes of a kernel with ``step`` cuts; returns rewards (k,)."""
        self.chains[step + 1, rows] = actions
        self._cuts[rows, step] = kernel.shares.take(actions)
        self.made[rows] = step + 1
        if step + 1 == kernel.cuts:
            length, excess_bytes = kernel.length_and_excess(self.chains[:, rows])
            self.figures[0, rows], self.figures[1, rows] = length, excess_bytes
            self.over[rows] = True
            return kernel.reward(length, excess_bytes)
        self._window[rows, 0] = np.maximum(kernel.follower.take(actions), kernel.low[step + 1])
        self._window[rows, 1] = kernel.high[step + 1]
        self._peaks[rows], self._paces[rows] = kernel.settle(
            step, self.chains[:, rows], self._peaks[rows], self._paces[rows]
        )
        return np.zeros(len(actions))

    def _features(self, rows: Rows) -> np.ndarray:
        """Return ``features`` of episodes ``rows``, a fresh array or a view."""
        kernel, step, size = self.kernel, self._common, self.action_space.n
        if rows is EVERY and kernel is not None and step is not None:
            if step == 0:
                features = np.empty((self.count, size, 3), dtype=np.float32)
                features[:] = kernel.first
                return features
            if step == 1 and kernel.openings is not None:
                return kernel.openings.take(self.chains[1] - kernel.low[0], axis=0, mode="clip")
            return self._written(kernel, step, EVERY)
        rows = self._rows[rows]
        features = np.zeros((len(rows), size, 3), dtype=np.float32)
        for kernel, step, index in self._groups(rows, ~self.over[rows]):
            features[index] = self._written(kernel, step, rows[index]) if step else kernel.first
        return features

    def _written(self, kernel: CutKernel, step: int, rows: Rows) -> np.ndarray:
        """Return ``features`` of episodes of a kernel that have made ``step`` >= 1 cuts."""
        chains = self.chains[:, rows]
        features = np.zeros((chains.shape[1], kernel.end, 3), dtype=np.float32)
        kernel.features(step, chains, self._peaks[rows], self._paces[rows], features)
        return features


class PipelineCutEnv(GameEnv, game=PipelineCut):
    """A single environment of ``PipelineCut``, which it plays with numbers in place of arrays."""

    game: PipelineCut
    _kernel: CutKernel
    _chain: list[int]  # the kernel's index of the start, and the candidates cut so far
    _settled: SettledStages
    _cuts: np.ndarray  # as in the observation
    _begin: int  # the candidates [begin, end) are legal; none once the episode is over
    _end: int
    _outcome: dict[str, float]  # of a whole plan

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Cut at a candidate."""
        action, reward = whole_number(action), 0.0
        if self._begin <= action < self._end:
            game, kernel, chain = self.game, self._kernel, self._chain
            step = len(chain)  # the number of cuts after this one
            game.made[0], game.chains[step, 0] = step, action
            self._cuts[step - 1] = kernel.shares[action]
            if step < kernel.cuts:
                self._settled = kernel.settle_one(chain, action, self._settled)
                chain.append(action)
                self._begin = max(kernel.after[action], kernel.low[step])
                self._end = kernel.high[step]
                return self._observation(), reward, False, False, self._info()
            chain.append(action)
            length, excess_bytes = kernel.length_and_excess_one([*chain, kernel.end])
            self._outcome = {"length_seconds": length, "excess_bytes": excess_bytes}
            value = formulas.value(length, kernel.bubble_free)
            reward = value if excess_bytes <= 0 else ILLEGAL
        else:  # illegal, or the episode is over and nothing is legal
            reward = ILLEGAL
        self.game.over[0], self._begin, self._end = True, 0, 0
        return self._observation(), reward, True, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (c,) bool; all are true once the episode is over."""
        return self._info()["action_mask"].view(bool)

    def _deal(self, source: Source | None) -> None:
        game = self.game
        if source is None and game._shared is game.source.only:  # the same problem again
            game.made[0], game.over[0] = 0, False
        else:
            super()._deal(source)

    def _started(self) -> None:
        self._kernel = kernel = self.game._held[0]
        self._chain, self._settled, self._outcome = [kernel.start], NOTHING, {}
        self._cuts = kernel.no_cuts.copy()
        self._begin, self._end = max(kernel.after[kernel.start], kernel.low[0]), kernel.high[0]

    def _observation(self) -> dict[str, Any]:
        if self._end:
            features = self._kernel.features_one(self._chain, self._begin, self._settled)
        else:
            features = np.zeros((self._actions, 3), dtype=np.float32)
        if self.game.shown:
            legal = np.zeros((1, self._actions), dtype=np.bool_)
            legal[0, self._begin : self._end] = True
            seen = self.game.rowed(EVERY, features[None], legal)
            return {name: values[0] for name, values in seen.items()}
        step = self._kernel.counts[len(self._chain) - 1]
        return {"features": features, "cuts": self._cuts.copy(), "step": step}

    def _info(self, start: bool = False) -> dict[str, Any]:
        mask = np.zeros(self._actions, dtype=np.int8)
        mask[self._begin : self._end or self._actions] = 1
        if start or not self._end:
            instance = self._kernel.space.pipeline.instance
            return {"action_mask": mask, "instance": instance, **self._outcome}
        return {"action_mask": mask}


class PipelineCutVectorEnv(GameVectorEnv, single=PipelineCutEnv):
    """A native batch of ``PipelineCut``."""
