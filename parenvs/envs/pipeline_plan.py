"""``PipelinePlan-v0``: cut any chain, and the devices under it, into pipeline stages.

``observe`` makes what an agent sees of a problem; networks that plan without an environment see it
through this function, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs import instances
from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.datasets import generators, instance_sets
from parenvs.envs.base import PlanEnv, pipeline_so_far
from parenvs.errors import ParenvsError, did_you_mean
from parenvs.pipeline import formulas
from parenvs.pipeline.points import POINTS, STAGES, UNITS, PointSpace
from parenvs.pipeline.problem import Pipeline, Report, stages_on
from parenvs.plan import COPIES, ILLEGAL, MICRO_BATCH, MICRO_BATCHES, RECOMPUTE, PipelinePlan

MOST_MICRO_BATCHES = 64
"""More look the same."""
OCTAVES = 16
"""Range of what is given as a logarithm to base 2."""
NUMBERS = (
    "stages", "micro_batches", "units", "devices", "memory", "backward", "link", "recompute",
)  # fmt: skip
"""Names of the observation's ``numbers``."""


def observe(space: PointSpace) -> dict[str, np.ndarray]:
    """What does not change within an episode: ``chain``, ``topology`` and ``numbers``."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    ends, count = space.pivots[1:], len(space.pivots) - 1
    seconds = np.stack(
        [
            pipeline.seconds_sum[ends],
            formulas.transfer_seconds(pipeline.cut_before[ends], cluster.inter_bw),
            2.0 * pipeline.parameter_sum[ends] / cluster.inter_bw,
        ]
    )
    scale = seconds.max()
    chain = np.zeros((4, POINTS), dtype=np.float32)
    chain[:3, :count], chain[3, :count] = seconds / scale, 1.0
    count = len(space.devices) - 1
    first, end = space.devices[:-1], space.devices[1:]
    # Between two units, or inside one: the bandwidth of the group that reaches over both.
    low, high = np.minimum.outer(first, first), np.maximum.outer(end, end)
    topology = np.zeros((UNITS, UNITS), dtype=np.float32)
    fastest = max(cluster.intra_bw, cluster.inter_bw)
    topology[:count, :count] = cluster.bandwidth(low, high) / fastest
    ratio = max(cluster.intra_bw / cluster.inter_bw, 1.0)
    memory = 2.0 * pipeline.memory_limit / cluster.inter_bw
    numbers = [
        space.stages / STAGES,
        pipeline.micro_batches / MOST_MICRO_BATCHES,
        count / UNITS,
        np.log2(end[0]) / OCTAVES,
        memory / (memory + scale * pipeline.copies),
        pipeline.backward_sum[-1] / pipeline.seconds_sum[-1],
        np.log2(ratio) / OCTAVES,
        float(pipeline.recompute == "full"),
    ]
    return {
        "chain": chain,
        "topology": topology,
        "numbers": np.minimum(numbers, 1.0).astype(np.float32),
    }


RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}
OPTIONS = ("instance", "cluster", *instances.PIPELINE_OPTIONS)
"""Keys of ``reset(options=...)``."""


class PipelinePlanEnv(PlanEnv):
    """Plan pipelines of many models: a policy trained here plans one that it has never seen.

    ## Description
    The model is a chain of at most 128 points, the cluster has at most 64 units: devices, or whole
    servers where there are more than 64 devices. Steps take turns: choose the first point of the
    next stage, then the unit that it starts on. After S-1 of both the judge computes the length of
    a training step of the whole chain (arXiv 2007.04069, sections 3.5 and 4.5; the formula is in
    ``parenvs.pipeline.formulas``). A chain of more than 128 pivots is cut at points only
    (``parenvs.pipeline.points`` chooses them); the plan is one of its pivots.

    ## Action Space
    ``Discrete(192)``: 0 to 127 cut before that point, 128 + d starts the next stage on unit d. The
    mask of legal actions is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of
    the observation with ``parenvs.wrappers.MaskInObservation``. Legal is what leads to a plan that
    fits the memory, with a variable and a unit in every stage.

    ## Observation Space
    ``Dict``, float32 in [0, 1] where nothing else is said; the first three rows in seconds, divided
    by their common maximum:

    * ``chain``: (4, 128): forward plus backward seconds up to the end of each point; seconds of its
      cut, activation bytes over the bandwidth between servers; twice the parameter bytes up to its
      end over that bandwidth; and 1 for each point, 0 beyond the chain.
    * ``topology``: (64, 64): bandwidth between units over that inside a server, 0 beyond the
      cluster.
    * ``numbers``: (8,): stages / 8; micro-batches / 64, at most 1; units / 64; log2 of the devices
      in a unit / 16; x / (1 + x), x the bytes of parameters that a device may hold, in units of
      ``chain``; backward seconds over forward plus backward; log2 of the ratio of the bandwidths,
      / 16; 1 if activations are recomputed.
    * ``plan``: (2, 7) in [-1, 1]: points and units chosen so far, over 128 and 64, -1 where not.
    * ``step``: Discrete(15), the number of choices made; odd when it is the units' turn.

    ## Rewards
    0 for every choice but the last; then 1/L, the length in units of the bubble-free time (all
    devices compute all the time), so it lies in (0, 1]. -1 for an illegal action, which ends the
    episode.

    ## Starting State
    Nothing chosen, of an instance that ``reset`` draws, or of the one asked for.

    ## Episode End
    After 2 (S-1) choices or an illegal action. No truncation.

    ## Arguments
    * ``instance``: None draws from the generators (``parenvs.datasets.generators``); the name of a
      set (``"plan-validation"``, ``"plan-test"``, ``"plan-outside"``) draws from it; a problem of
      a set (``"plan-test/cnn-003"``), a shipped name, or the path of a ``.csv`` profile or of a
      graph is that problem at every reset. ``reset(options={"instance": ...})`` is for one episode.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``: of named instances and files, as in ``PipelineCut-v0``; also keys of ``options``.
      Drawn problems and sets bring their own.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above.
    * ``family``: generate problems of this family only.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, larger problems.
    * ``repeat``: episodes of each drawn problem before the next is drawn (the paper: 50).

    ## Many at Once
    ``gym.make_vec("PipelinePlan-v0", num_envs=64)``, see ``PipelinePlanVectorEnv``.

    ## Version History
    * v0: first version.
    """

    def __init__(
        self,
        instance: str | None = None,
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        family: str | None = None,
        ranges: str = "inside",
        repeat: int = 1,
        problem: Pipeline | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load what can be loaded; see the class for the arguments."""
        super().__init__(render_mode)
        if family is not None and family not in generators.FAMILIES:
            raise ParenvsError(
                f"unknown family {family!r}{did_you_mean(family, generators.FAMILIES)}; known: "
                f"{', '.join(generators.FAMILIES)}"
            )
        if ranges not in RANGES:
            raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {ranges!r}")
        if repeat < 1:
            raise ParenvsError(f"repeat must be >= 1, not {repeat}")
        self.family, self.ranges, self.repeat = family, ranges, repeat
        self._settings: dict[str, Any] = {
            "instance": instance,
            "cluster": cluster,
            "stages": stages,
            "micro_batch": micro_batch,
            "micro_batches": micro_batches,
            "copies": copies,
            "recompute": recompute,
            "sync": sync,
        }
        self._fixed: PointSpace | None = None
        self._points: list[int]
        self._units: list[int]
        self._over: bool
        self._legal: np.ndarray
        if problem is not None:
            self._fixed = PointSpace.build(problem)
        elif instance is not None and instance not in instance_sets.SETS:
            self._fixed = self._named(self._settings)
        self._left = 0  # episodes until the next problem is drawn
        if self._fixed is not None:
            self._use(self._fixed)
        else:  # something to show before the first reset
            self._use(self._drawn(np.random.default_rng(0)))
        self.action_space = spaces.Discrete(POINTS + UNITS)
        self.observation_space = spaces.Dict(
            {
                "chain": spaces.Box(0.0, 1.0, (4, POINTS), np.float32),
                "topology": spaces.Box(0.0, 1.0, (UNITS, UNITS), np.float32),
                "numbers": spaces.Box(0.0, 1.0, (len(NUMBERS),), np.float32),
                "plan": spaces.Box(-1.0, 1.0, (2, STAGES - 1), np.float32),
                "step": spaces.Discrete(2 * (STAGES - 1) + 1),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start anew, with the next problem or the one that ``options`` name.

        Raises:
            ParenvsError: an unknown option or instance, or a problem without a plan that fits.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._left = 0
        if options:
            self._use(self._asked(options))
            self._left = 0
        elif self._fixed is not None:
            self._use(self._fixed)
        elif self._left:
            self._left -= 1
        else:
            self._use(self._drawn(self.np_random))
            self._left = self.repeat - 1
        self._start()
        return self._observation(), self._info()

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Choose a point or a unit."""
        action, reward = int(action), 0.0
        if self._over or not (0 <= action < POINTS + UNITS and self._legal[action]):
            self._over, reward = True, ILLEGAL
        elif action < POINTS:
            self._points.append(action)
        else:
            self._units.append(action - POINTS)
            if len(self._units) == self.space.stages:
                self._over = True
                plans = self.space.plan(np.array(self._points[1:]), np.array(self._units[1:]))
                reward = float(self.problem.values(*plans))
        self._legal = np.ones_like(self._legal) if self._over else self._mask()
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """(192,) bool, legal actions; all true once the episode is over."""
        return self._legal.copy()

    def plan(self) -> PipelinePlan:
        """The plan built so far (the rest of the chain is its last stage)."""
        count = len(self._units)
        cuts, device_cuts = self.space.plan(
            np.array(self._points[1:count], dtype=int), np.array(self._units[1:], dtype=int)
        )
        return self.problem.plan(cuts, device_cuts)

    def _viewable(self) -> Report | Pipeline:
        return pipeline_so_far(self.plan(), self.problem)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode in which no action is illegal; the most if problems are drawn."""
        return 2 * ((self.space.stages if self._fixed else STAGES) - 1)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, to scale it by."""
        return 1.0

    def _mask(self) -> np.ndarray:
        """(192,) bool, legal actions before the end."""
        mask = np.zeros(POINTS + UNITS, dtype=bool)
        stage = len(self._units) - 1
        if len(self._points) == len(self._units):
            legal = self.space.legal_points(stage, self._points[-1], self._units[-1])
            mask[: len(legal) - 1] = legal[:-1]
        else:
            legal = self.space.legal_units(
                stage, self._points[-2], self._units[-1], self._points[-1]
            )
            mask[POINTS : POINTS + len(legal) - 1] = legal[:-1]
        return mask

    def _observation(self) -> dict[str, Any]:
        plan = np.full((2, STAGES - 1), -1.0, dtype=np.float32)
        for row, chosen, most in ((plan[0], self._points, POINTS), (plan[1], self._units, UNITS)):
            row[: len(chosen) - 1] = np.array(chosen[1:], dtype=np.float32) / most
        step = len(self._points) + len(self._units) - 2
        constant = {key: value.copy() for key, value in self._constant.items()}
        return {**constant, "plan": plan, "step": np.int64(step)}

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._legal.astype(np.int8)}

    def _use(self, space: PointSpace) -> None:
        """Make this the problem."""
        self.space, self.problem = space, space.pipeline
        self._constant = observe(space)
        self._start()

    def _start(self) -> None:
        self._points, self._units, self._over = [0], [0], False
        self._legal = self._mask()

    def _drawn(self, rng: np.random.Generator) -> PointSpace:
        name = self._settings["instance"]
        if name is None:
            problem = generators.draw(rng, self.family, RANGES[self.ranges])
            return problem.space
        problems = instance_sets.load_set(name)
        problem = problems[int(rng.integers(len(problems)))]
        # Not its own space, which would be kept as long as the set is.
        return PointSpace.build(problem.pipeline)

    def _asked(self, options: dict[str, Any]) -> PointSpace:
        for key in options:
            if key not in OPTIONS:
                raise ParenvsError(
                    f"options: unknown {key!r}{did_you_mean(key, OPTIONS)}; known: "
                    f"{', '.join(OPTIONS)}"
                )
        settings = {**self._settings, **options}
        if settings["instance"] is None or settings["instance"] in instance_sets.SETS:
            raise ParenvsError("options: 'instance' must name a problem, a graph or a file")
        return self._named(settings)

    def _named(self, settings: dict[str, Any]) -> PointSpace:
        instance = settings["instance"]
        if instance.split("/")[0] in instance_sets.SETS:
            problem = instance_sets.find(instance)
            return PointSpace.build(problem.pipeline)
        settings = {**settings, "cluster": Cluster.parse(settings["cluster"])}
        if settings["stages"] is None:
            settings["stages"] = min(stages_on(settings["cluster"]), STAGES)
        return PointSpace.build(instances.problem(**settings))
