"""``PipelinePlan-v0``: cut any chain, and the devices under it, into pipeline stages.

``observe`` computes the part of the observation that describes a problem; networks that plan
without an environment get their input from it, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.core.plan import ILLEGAL
from parenvs.core.problem import problem as load_problem
from parenvs.datasets.pipeline import generators
from parenvs.datasets.pipeline import sets as instance_sets
from parenvs.datasets.pipeline.optima import optimum_of
from parenvs.envs.base import (
    PLAYED,
    PlanEnv,
    check_options,
    is_sequential,
    outcome_of,
    pipeline_so_far,
    whole_number,
)
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, shown
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.drawn import sequence
from parenvs.tasks.pipeline.drawn.sequence import RANGES
from parenvs.tasks.pipeline.load import PIPELINE_OPTIONS
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    RECOMPUTE,
    TIED,
    PipelinePlan,
)
from parenvs.tasks.pipeline.points import POINTS, STAGES, UNITS, PointSpace
from parenvs.tasks.pipeline.problem import Pipeline, Report, stages_on
from parenvs.tasks.pipeline.profile import StageProfile

MOST_MICRO_BATCHES = 64
"""Largest number of micro-batches that the observation tells apart."""
OCTAVES = 16
"""Largest logarithm to base 2 in the observation, which divides logarithms by it."""
NUMBERS = (
    "stages", "micro_batches", "units", "devices", "memory", "backward", "link", "recompute",
)  # fmt: skip
"""Names of the observation's ``numbers``."""
OPTIONS = ("instance", "cluster", *PIPELINE_OPTIONS)
"""Keys of ``reset(options=...)``."""
DEFAULTS: dict[str, Any] = {
    "cluster": "C", "stages": None, "micro_batch": MICRO_BATCH, "micro_batches": MICRO_BATCHES,
    "copies": COPIES, "recompute": RECOMPUTE[0], "sync": SYNC_METHODS[0], "tied": TIED[0],
}  # fmt: skip
"""Settings of named problems -> their defaults."""
DRAWS = (1, sequence.VERSION)
"""Values of the argument ``draw``."""


def observe(space: PointSpace) -> dict[str, np.ndarray]:
    """Compute the constant part of an episode's observation.

    Returns:
        ``chain``, ``topology`` and ``numbers``, float32; ``PipelinePlanEnv`` specifies them.
    """
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    ends, point_count = space.pivots[1:], len(space.pivots) - 1
    seconds = np.stack(
        [
            pipeline.seconds_sum[ends],
            formulas.transfer_seconds(pipeline.cut_before[ends], cluster.inter_bw),
            2.0 * pipeline.parameter_sum[ends] / cluster.inter_bw,
        ]
    )
    longest_seconds = seconds.max()
    chain = np.zeros((4, POINTS), dtype=np.float32)
    chain[:3, :point_count], chain[3, :point_count] = seconds / longest_seconds, 1.0
    unit_count = len(space.devices) - 1
    first_device, end_device = space.devices[:-1], space.devices[1:]
    # The bandwidth between two units, or inside one, is that of the group that spans both.
    group_first = np.minimum.outer(first_device, first_device)
    group_end = np.maximum.outer(end_device, end_device)
    topology = np.zeros((UNITS, UNITS), dtype=np.float32)
    fastest = max(cluster.intra_bw, cluster.inter_bw)
    topology[:unit_count, :unit_count] = cluster.bandwidth(group_first, group_end) / fastest
    bandwidth_ratio = max(cluster.intra_bw / cluster.inter_bw, 1.0)
    memory_seconds = 2.0 * pipeline.memory_limit / cluster.inter_bw
    numbers = [
        space.stages / STAGES,
        pipeline.micro_batches / MOST_MICRO_BATCHES,
        unit_count / UNITS,
        np.log2(end_device[0]) / OCTAVES,
        memory_seconds / (memory_seconds + longest_seconds * pipeline.copies),
        pipeline.backward_sum[-1] / pipeline.seconds_sum[-1],
        np.log2(bandwidth_ratio) / OCTAVES,
        float(pipeline.recompute == "full"),
    ]
    return {
        "chain": chain,
        "topology": topology,
        # A planner may have more stages than the environment.
        "numbers": np.append(numbers[:1], np.minimum(numbers[1:], 1.0)).astype(np.float32),
    }


def playable(pipeline: Pipeline) -> PointSpace:
    """Build the search space of a problem that the environment has room for.

    Raises:
        InfeasibleError: it has more than ``STAGES`` stages, or no plan.
    """
    if pipeline.stages > STAGES:
        raise InfeasibleError(
            f"{pipeline.profile.name} on {pipeline.cluster}: {pipeline.stages} stages asked for; "
            f"PipelinePlan-v0 has at most {STAGES} (planners take more)"
        )
    return PointSpace.build(pipeline)


class PipelinePlanEnv(PlanEnv):
    """Plan pipelines of many models, so that a trained policy can plan a model it has not seen.

    ## Description
    The model is a chain of at most 128 points, the cluster has at most 64 units: devices, or groups
    of devices if there are more than 64. Steps take turns: the first step chooses the first point
    of the next stage, the second the unit on which that stage starts. After S-1 choices of each
    kind the judge computes the length of a training step of the whole chain (arXiv 2007.04069,
    sections 3.5 and 4.5; the formula is in ``parenvs.tasks.pipeline.formulas``). A chain of more than 128
    pivots can be cut at points only (``parenvs.tasks.pipeline.points`` chooses them); the plan is a plan
    of the pivots.

    ## Action Space
    ``Discrete(192)``: 0 to 127 cut before that point, 128 + d starts the next stage on unit d. The
    mask of legal actions is ``info["action_mask"]`` (int8), ``action_masks()`` (bool), or part of
    the observation with ``parenvs.wrappers.MaskInObservation``. An action is legal if it can lead
    to a plan that fits the memory, with a variable and a unit in every stage.

    ## Observation Space
    ``Dict``, float32 in [0, 1] unless another type or range is given:

    * ``chain``: (4, 128). Rows 0 to 2 are seconds, divided by their common maximum: forward plus
      backward seconds up to the end of each point; seconds of a transfer of the activations that
      cross its end, between servers; twice the parameter bytes up to its end, divided by the
      bandwidth between servers. Row 3 is 1 for each point and 0 beyond the chain.
    * ``topology``: (64, 64), bandwidth between units divided by that inside a server; 0 beyond the
      cluster.
    * ``numbers``: (8,): stages / 8; micro-batches / 64, at most 1; units / 64; log2 of the devices
      in a unit, / 16; x / (1 + x), where x is the bytes of parameters that a device may hold, in
      the unit of row 2 of ``chain``; backward seconds divided by forward plus backward seconds;
      log2 of the ratio of the bandwidths, / 16; 1 if activations are recomputed.
    * ``plan``: (2, 7) in [-1, 1], chosen points / 128 and chosen units / 64; -1 if not yet chosen.
    * ``step``: Discrete(15), the number of choices made; odd if the next choice is a unit.

    ## Rewards
    0 for every choice but the last. The last pays 1/L, where L is the length in units of the
    bubble-free time (all devices compute all the time), so it lies in (0, 1]. An illegal action
    pays -1 and ends the episode.

    ## Starting State
    Nothing is chosen; the problem is one that ``reset`` draws, or the one that arguments name.

    ## Episode End
    After 2 (S-1) choices or an illegal action. No truncation.

    ## Arguments
    * ``instance``: None draws from the generators (``parenvs.datasets.pipeline.generators``); the name of a
      set (``"plan-validation"``, ``"plan-test"``, ``"plan-outside"``) draws from it; the name of a
      problem of a set (``"plan-test/cnn-003"``), a shipped name, or the path of a ``.csv`` profile
      or of a graph gives that problem at every reset. ``reset(options={"instance": ...})`` sets
      the instance of one episode.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``, ``tied``: settings of named instances and files, as in ``PipelineCut-v0``; they are
      also keys of ``options``. Drawn problems and sets have settings of their own, for which these
      are refused.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above.
    * ``family``: problems of this family only.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once (``repeat`` times), and then again; a seed begins it anew.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, larger problems.
    * ``repeat``: episodes of each drawn problem before the next is drawn (50 in the paper).
    * ``draw``: how problems are generated: 1 draws each from the environment's generator; 2 takes
      the numbered problems of ``parenvs.tasks.pipeline.drawn.sequence``, of the same distribution. The k-th
      problem of a seed is always the same, and a native batch keeps problems in a pool, so that a
      reset is a look-up.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a plan ``length_seconds``
    of a training step and ``excess_bytes``, by which the fullest stage exceeds the memory of a
    device (<= 0: it fits); at the end on a problem of a shipped set ``optimum``, the largest
    return, and ``regret``, the share of it that the return falls short of (1 for illegal actions).

    ## Many at Once
    ``gym.make_vec("PipelinePlan-v0", num_envs=64)``, see ``PipelinePlanVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = OPTIONS

    def __init__(
        self,
        instance: str | Graph | StageProfile | None = None,
        cluster: str | dict[str, Any] = "C",
        stages: int | None = None,
        micro_batch: int = MICRO_BATCH,
        micro_batches: int = MICRO_BATCHES,
        copies: float = COPIES,
        recompute: str = RECOMPUTE[0],
        sync: str = SYNC_METHODS[0],
        tied: str = TIED[0],
        family: str | None = None,
        ranges: str = "inside",
        repeat: int = 1,
        order: str = "random",
        draw: int = 1,
        problem: Pipeline | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Load the fixed problem, or draw a first one; see the class for the arguments."""
        super().__init__(render_mode)
        if family is not None and family not in generators.FAMILIES:
            raise ParenvsError(
                f"unknown family {family!r}{did_you_mean(family, generators.FAMILIES)}; known: "
                f"{', '.join(generators.FAMILIES)}"
            )
        if ranges not in RANGES:
            raise ParenvsError(f"ranges must be one of {', '.join(RANGES)}, not {ranges!r}")
        if not isinstance(repeat, int) or repeat < 1:
            raise ParenvsError(f"repeat must be >= 1, not {repeat!r}")
        is_sequential(order)
        if draw not in DRAWS:
            raise ParenvsError(
                f"draw must be one of {', '.join(map(str, DRAWS))}, not {shown(draw)}"
            )
        self.family, self.ranges, self.repeat, self.order = family, ranges, repeat, order
        self.draw = draw
        self._settings: dict[str, Any] = {
            "instance": instance,
            "cluster": cluster,
            "stages": stages,
            "micro_batch": micro_batch,
            "micro_batches": micro_batches,
            "copies": copies,
            "recompute": recompute,
            "sync": sync,
            "tied": tied,
        }
        self._check_arguments(problem)
        self._fixed: PointSpace | None = None
        self._points: list[int]
        self._units: list[int]
        self._over: bool
        self._legal: np.ndarray
        if problem is not None:
            self._fixed = playable(problem)
        elif instance is not None and not is_set(instance):
            self._fixed = self._named(self._settings)
        self._left = 0  # episodes until the next problem is drawn
        if self._fixed is not None:
            self._use(self._fixed)
        else:  # a problem to render before the first reset
            self._use(self._drawn(np.random.default_rng(0), 0, 0))
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

    def _elsewhere(self, options: dict[str, Any]) -> PointSpace:
        return self._space_of_options(options)

    def _enter(self, other: PointSpace | None) -> None:
        if other is not None:
            self._use(other)
            self._left = 0
        elif self._fixed is not None:
            self._use(self._fixed)
        elif self._left and self._next:  # a seed begins with a new problem
            self._left -= 1
        else:
            self._use(self._drawn(self.np_random, self._next, self.np_random_seed))
            self._left, self._next = self.repeat - 1, self._next + 1

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Choose a point or a unit."""
        action, reward = whole_number(action), 0.0
        if self._over or not (0 <= action < POINTS + UNITS and self._legal[action]):
            self._over, reward, self._outcome = True, ILLEGAL, self._known_outcome(ILLEGAL)
        elif action < POINTS:
            self._points.append(action)
        else:
            self._units.append(action - POINTS)
            if len(self._units) == self.space.stages:
                self._over = True
                plans = self.space.plan(np.array(self._points[1:]), np.array(self._units[1:]))
                reward = float(self.problem.values(*plans))
                self._outcome = {
                    "length_seconds": float(self.problem.length(*plans)),
                    "excess_bytes": float(self.problem.excess_bytes(*plans)),
                    **self._known_outcome(reward),
                }
        self._legal = np.ones_like(self._legal) if self._over else self._mask()
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (192,) bool; all are true once the episode is over."""
        return self._legal.copy()

    def plan(self) -> PipelinePlan:
        """Return the plan built so far; the rest of the chain is its last stage."""
        count = len(self._units)
        cuts, device_cuts = self.space.plan(
            np.array(self._points[1:count], dtype=int), np.array(self._units[1:], dtype=int)
        )
        return self.problem.plan(cuts, device_cuts)

    def _viewable(self) -> Report | Pipeline:
        return pipeline_so_far(self.plan(), self.problem)

    @property
    def draws(self) -> bool:
        """Whether problems are drawn, from the generators or from a set."""
        return self._fixed is None

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; the largest number if problems are drawn."""
        return 2 * ((self.space.stages if self._fixed else STAGES) - 1)

    @property
    def largest_return(self) -> float:
        """An upper bound of the return; learners scale returns by it."""
        return 1.0

    def _mask(self) -> np.ndarray:
        """Return the legal actions while the episode is not over, (192,) bool."""
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
        plan[0, : len(self._points) - 1] = np.array(self._points[1:], dtype=np.float32) / POINTS
        plan[1, : len(self._units) - 1] = np.array(self._units[1:], dtype=np.float32) / UNITS
        step = len(self._points) + len(self._units) - 2
        constant = {key: value.copy() for key, value in self._constant.items()}
        return {**constant, "plan": plan, "step": np.int64(step)}

    def _known_outcome(self, value: float) -> dict[str, float]:
        """Return the optimum and the regret of an episode that returned ``value``, if known."""
        return outcome_of(value, optimum_of(self.instance))

    def _use(self, space: PointSpace) -> None:
        """Start an episode of the problem of ``space``."""
        self.space, self.problem = space, space.pipeline
        self._constant = observe(space)
        self._start()

    def _start(self) -> None:
        """Start an episode with nothing chosen; stage 0 starts at point 0 and unit 0."""
        self._points, self._units, self._over, self._outcome = [0], [0], False, {}
        self._legal = self._mask()

    def _drawn(self, rng: np.random.Generator, number: int, seed: int) -> PointSpace:
        """Draw a problem from the generators, or from the set that ``instance`` names.

        Args:
            rng: generator of this environment.
            number: number of the problem since the last seed, which ``order`` may go by.
            seed: that seed, which ``draw`` may go by.
        """
        set_name = self._settings["instance"]
        if set_name is None and self.draw == sequence.VERSION:
            return self.space_of(int(sequence.number_of([seed], [number])[0]))
        if set_name is None:
            return generators.draw(rng, self.family, RANGES[self.ranges]).space
        problems = self._set(set_name)
        one_by_one = is_sequential(self.order)
        index = number % len(problems) if one_by_one else int(rng.integers(len(problems)))
        # The problem's own ``space`` would stay in memory as long as the cached set.
        return playable(problems[index].pipeline)

    def space_of(self, number: int) -> PointSpace:
        """Draw the problem of a number, see ``parenvs.tasks.pipeline.drawn.sequence``."""
        return sequence.problem_of(number, self.family, self.ranges).space

    def _set(self, name: str) -> list[generators.DrawnProblem]:
        """Return the problems of a set, those of the family alone if there is one."""
        problems = instance_sets.load_set(name)
        if self.family is None:
            return problems
        return [problem for problem in problems if problem.family == self.family]

    def _space_of_options(self, options: dict[str, Any]) -> PointSpace:
        """Load the problem that options of ``reset`` name.

        Raises:
            ParenvsError: an option or the instance is unknown, or no plan fits the memory.
        """
        check_options(options, self.OPTIONS)
        settings = {**self._settings, **options}
        if settings["instance"] is None or is_set(settings["instance"]):
            raise ParenvsError("options: 'instance' must name a problem, a graph or a file")
        if is_set(settings["instance"], member=True):
            self._check_member({key: options[key] for key in options if key != "instance"})
        return self._named(settings)

    def _check_arguments(self, problem: Pipeline | None) -> None:
        """Raise an error for arguments that would be ignored.

        Raises:
            ParenvsError: a setting is given for problems that have their own, or how to draw for a
                problem that is fixed; an order is given where no set is played.
        """
        instance, signature = self._settings["instance"], self._settings
        changed = {
            name: signature[name]
            for name, default in DEFAULTS.items()
            if name in signature and signature[name] != default
        }
        fixed = problem is not None or (instance is not None and not is_set(instance))
        if not fixed or (problem is None and is_set(instance, member=True)):
            self._check_member(changed)
        if problem is not None and (changed or instance is not None):
            name = next(iter(changed), "instance")
            raise ParenvsError(f"{name}: the argument problem has its own; leave out one of them")
        drawing = {"family": self.family is not None, "repeat": self.repeat > 1}
        drawing["ranges"], drawing["draw"] = self.ranges != "inside", self.draw != DRAWS[0]
        for name, given in drawing.items():
            if given and (fixed or (name in ("ranges", "draw") and instance is not None)):
                raise ParenvsError(f"{name}: no problems are generated here; leave it out")
        if self.order != PLAYED[0] and (fixed or instance is None):
            raise ParenvsError(
                f"order: {self.order!r} plays a set, like instance='plan-test'; leave it out"
            )

    def _check_member(self, changed: dict[str, Any]) -> None:
        """Raise an error if settings are given for a problem that was drawn.

        Raises:
            ParenvsError: they are.
        """
        for name in changed:
            raise ParenvsError(
                f"{name}: drawn problems have settings of their own; leave it out, or name the "
                "instance, graph or file that it is for"
            )

    def _named(self, settings: dict[str, Any]) -> PointSpace:
        """Load a problem of a set, a shipped instance or a file, with the given settings."""
        instance = settings["instance"]
        if is_set(instance, member=True):
            return playable(instance_sets.find(instance).pipeline)
        settings = {**settings, "cluster": Cluster.parse(settings["cluster"])}
        if settings["stages"] is None:
            settings["stages"] = min(stages_on(settings["cluster"]), STAGES)
        return playable(load_problem(settings.pop("instance"), **settings))


def is_set(instance: Any, member: bool = False) -> bool:
    """Return whether an instance is the name of a shipped set, or of a member of one."""
    if not isinstance(instance, str):
        return False
    name = instance.split("/")[0] if member else instance
    return name in instance_sets.SETS
