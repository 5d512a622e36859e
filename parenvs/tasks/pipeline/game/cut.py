"""``PipelineCut-v0``: cut a chain of pivots into pipeline stages, one cut a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS
from parenvs.core.plan import ILLEGAL
from parenvs.core.problem import problem as load_problem
from parenvs.envs.base import PlanEnv, pipeline_so_far, warn_infeasible, whole_number
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.cuts import RADIUS, CutSpace
from parenvs.tasks.pipeline.game.cut_kernel import NOTHING, SettledStages, kernel_of
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


class PipelineCutEnv(PlanEnv):
    """Cut a model into S pipeline stages so that a training step is as short as possible.

    ## Description
    The forward instructions of a model are a chain of pivots. Step k chooses the first pivot of
    stage k+1 among the candidates; the cut of the devices follows from it: each stage gets devices
    in proportion to its seconds. After S-1 cuts the judge computes the length of a training step,
    with all-reduces and transfers (arXiv 2007.04069, sections 3.5 and 4.4; the formula is in
    ``parenvs.tasks.pipeline.formulas``).

    ## Action Space
    ``Discrete(c)``: the index of a candidate; ``space.pivots[action]`` is its pivot. A candidate is
    legal if it lies after the last cut and within the window of this step, leaves every stage a
    variable and a device, and can be followed by the remaining cuts. The mask of legal actions is
    ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``. Memory is not masked.

    ## Observation Space
    ``Dict``:

    * ``features``: (c, 3) float32 in [0, 1], of the plan that cuts at the candidate next and makes
      the rest of the chain the last stage: the longest all-reduce and the longest transfer, each
      divided by the instance's maximum, and the shortest compute time of a stage divided by the
      longest. Zeros for candidates that are not legal.
    * ``cuts``: (S-1,) float32 in [-1, 1], the chosen cuts divided by n, -1 if not yet chosen.
    * ``step``: Discrete(S), the number of cuts made.

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
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above but ``radius`` and
      ``candidates``.

    Each is also a key of ``reset(options=...)``, for one episode, if the spaces stay the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan
    ``length_seconds`` of a training step, and ``excess_bytes``, by which the fullest stage exceeds
    the memory of a device (<= 0: it fits).

    ## Many at Once
    ``gym.make_vec("PipelineCut-v0", num_envs=1024)``, see ``PipelineCutVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = (
        "instance",
        "cluster",
        *PIPELINE_OPTIONS,
        "radius",
        "candidates",
        "problem",
    )
    OF_PROBLEM = ("problem", "space", "kernel")

    _chain: list[int]  # the kernel's index of the start, and the candidates cut so far
    _settled: SettledStages
    _cuts: np.ndarray  # as in the observation
    _over: bool
    _begin: int  # the candidates [begin, end) are legal; none once the episode is over
    _end: int

    def __init__(
        self,
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
        problem: Pipeline | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the instance and find its candidates; see the class for the arguments."""
        super().__init__(render_mode)
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
            )
        self.problem: Pipeline = problem
        self.space = CutSpace.build(problem, radius, candidates)
        count, cuts = len(self.space.pivots), self.space.stages - 1
        self.action_space = spaces.Discrete(count)
        self.observation_space = spaces.Dict(
            {
                "features": spaces.Box(0.0, 1.0, (count, 3), np.float32),
                "cuts": spaces.Box(-1.0, 1.0, (cuts,), np.float32),
                "step": spaces.Discrete(cuts + 1),
            }
        )
        self.kernel = kernel_of(self.space)
        least = self.kernel.least_excess()
        if least > 0:
            warn_infeasible(
                f"{self.instance} on {problem.cluster}: the fullest stage exceeds that of a device "
                f"by {least:,.0f} bytes or more, so every episode pays -1"
            )
        self._counts = [np.int64(step) for step in range(cuts + 1)]
        # Copying an array takes less time than filling a new one.
        self._no_cuts = np.full(cuts, -1.0, dtype=np.float32)
        self._any_action = np.ones(count, dtype=np.int8)
        self._start()

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Cut at a candidate."""
        action = whole_number(action)
        chain, kernel = self._chain, self.kernel
        reward = 0.0
        if self._begin <= action < self._end:
            step = len(chain)  # the number of cuts after this one
            self._cuts[step - 1] = kernel.shares[action]
            if step < kernel.cuts:
                self._settled = kernel.settle_one(chain, action, self._settled)
                chain.append(action)
                self._begin = max(kernel.after[action], kernel.low[step])
                self._end = kernel.high[step]
            else:
                chain.append(action)
                length, excess_bytes = kernel.length_and_excess_one([*chain, kernel.end])
                if excess_bytes <= 0:
                    reward = formulas.value(length, kernel.bubble_free)
                else:
                    reward = ILLEGAL
                self._finish()
                self._outcome = {"length_seconds": length, "excess_bytes": excess_bytes}
        else:  # illegal, or the episode is over and nothing is legal
            reward = ILLEGAL
            self._finish()
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (c,) bool; all are true once the episode is over."""
        return self._info()["action_mask"].view(bool)

    def plan(self) -> PipelinePlan:
        """Return the plan built so far; the rest of the chain is its last stage."""
        return self.problem.plan(*self.space.plan(self._chain[1:]))

    def _viewable(self) -> Report | Pipeline:
        return pipeline_so_far(self.plan(), self.problem)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode in which no action is illegal."""
        return self.space.stages - 1

    @property
    def largest_return(self) -> float:
        """An upper bound of the return; learners scale returns by it."""
        return 1.0

    def _start(self) -> None:
        """Start an episode with no cut."""
        kernel = self.kernel
        self._outcome = {}
        self._chain = [kernel.start]
        self._settled = NOTHING
        self._cuts = self._no_cuts.copy()
        self._over = False
        self._begin = max(kernel.after[kernel.start], kernel.low[0])
        self._end = kernel.high[0]

    def _finish(self) -> None:
        """End the episode; every further action is illegal."""
        self._over, self._outcome = True, {}
        self._begin = self._end = 0

    def _observation(self) -> dict[str, Any]:
        if self._over:
            features = np.zeros((self.kernel.end, 3), dtype=np.float32)
        else:
            features = self.kernel.features_one(self._chain, self._begin, self._settled)
        step = self._counts[len(self._chain) - 1]
        return {"features": features, "cuts": self._cuts.copy(), "step": step}

    def _info(self, start: bool = False) -> dict[str, Any]:
        if self._over:
            mask = self._any_action.copy()
            return {"action_mask": mask, "instance": self.instance, **self._outcome}
        mask = np.zeros(self.kernel.end, dtype=np.int8)
        mask[self._begin : self._end] = 1
        return {"action_mask": mask, "instance": self.instance} if start else {"action_mask": mask}
