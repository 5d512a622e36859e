"""``PipelinePlan-v0``: cut any chain, and the devices under it, into pipeline stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from parenvs.cluster import Cluster
from parenvs.compiled import Array
from parenvs.core import game as games
from parenvs.core.plan import ILLEGAL
from parenvs.core.registry import problem as load_problem
from parenvs.datasets.pipeline import problems
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import InfeasibleError, ParenvsError, refuse_unknown, shown
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.cut import SHARP
from parenvs.tasks.pipeline.plan import PIPELINE_OPTIONS, PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report, stages_on
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import POINTS, STAGES, UNITS, PointSpace

ACTIONS = POINTS + UNITS
"""Number of actions; points come first."""
KEPT = 64
"""Problems of sets that are kept, prepared."""
REPEAT = 50
"""Episodes of a generated problem (arXiv 2007.04069, section 4.5.1)."""
NUMBERS = 1 << 31
"""Generated problems have numbers below this."""
MICRO_BATCHES = 64
"""Largest number of micro-batches that the observation tells apart."""
OCTAVES = 16
"""Largest base-2 logarithm in the observation, which divides logarithms by it."""


class Board:
    """A problem as the game plays it.

    Args:
        space: its points and units.

    Attributes:
        optimum: the largest return if it is proven, else NaN.
        observed: the parts of the observation that stay the same in an episode.
    """

    def __init__(self, space: PointSpace) -> None:
        self.space, self.pipeline = space, space.pipeline
        optimum = problems.optimum_of(space.pipeline.instance)
        self.optimum = np.nan if optimum is None else optimum
        self.observed = observe(space)
        pipeline = self.pipeline
        crossing = pipeline.cut_before[space.pivots]
        seconds = 2.0 * formulas.transfer_seconds(crossing, pipeline.cluster.inter_bw)
        self.transfers = pipeline.micro_batches * seconds / pipeline.bubble_free

    @cached_property
    def shares(self) -> dict[str, Array]:
        """Shares of the totals before each point, (m+1,) float64, and of the devices, (u+1,)."""
        pipeline, pivots = self.pipeline, self.space.pivots
        weights = pipeline.parameter_sum
        return {
            "seconds": pipeline.seconds_sum[pivots] / pipeline.seconds_sum[-1],
            "weights": weights[pivots] / (weights[-1] or 1.0),
            "devices": self.space.devices / pipeline.cluster.devices,
        }

    def prefix_seconds(self, points: Array, units: Array) -> Array:
        """Return core, passed seconds and tail of stages, (3, k), of their starts, (k, s+1) each.

        The first s stages count, over the bubble-free time.
        """
        stages, m = points.shape[1] - 1, self.pipeline.micro_batches
        if not stages:
            return np.zeros((3, len(points)))
        # As a plan whose last stage is the rest, which does not count, nor the transfer to it.
        times = self.pipeline.stage_seconds(*self.space.plan(points[:, 1:], units[:, 1:]))
        forward, backward = (x[: 2 * stages - 1] for x in (times.forward, times.backward))
        seconds = forward + backward
        core, tail = formulas.core_and_tail(seconds, backward, times.all_reduce[:stages], m)
        return np.stack([core, seconds.sum(axis=0), tail]) / self.pipeline.bubble_free

    def outcome(self, points: Array, units: Array) -> Array:
        """Return length, excess bytes and return, (3, k), of plans (k, S) that fit the memory."""
        plans = self.space.plan(points[:, 1:], units[:, 1:])
        length = self.pipeline.length(*plans)
        value = formulas.value(length, self.pipeline.bubble_free)
        return np.stack([length, self.pipeline.excess_bytes(*plans), value])

    def best_completion(self, points: Array, units: Array, choices: int) -> Array:
        """Return the best return, (k,), of plans that go on from the choices made in some ways.

        Devices that are left are shared evenly, by devices and by servers, or each stage that is
        left in turn gets all of them but a server for each other one.

        Args:
            points: (k, S) as of ``PointSpace.complete``; not changed.
            units: (k, S) likewise.
            choices: points and units chosen so far, in turn.
        """
        best = np.full(len(points), -np.inf)
        stages = range(choices // 2, self.space.stages)
        for large, by_server in ((None, False), (None, True), *((stage, True) for stage in stages)):
            plans = points.copy(), units.copy()
            self.space.complete(*plans, choices, large, by_server)
            _, _, value = self.outcome(*plans)
            np.maximum(best, value, out=best)
        return best


def observe(space: PointSpace) -> dict[str, Array]:
    """Return ``chain``, ``topology`` and ``numbers``, float32; ``PipelinePlanning`` has them."""
    pipeline, cluster = space.pipeline, space.pipeline.cluster
    ends, point_count = space.pivots[1:], len(space.pivots) - 1
    seconds = np.stack(
        [
            pipeline.seconds_sum[ends],
            formulas.transfer_seconds(pipeline.cut_before[ends], cluster.inter_bw),
            2.0 * pipeline.parameter_sum[ends] / cluster.inter_bw,
        ]
    )
    longest = seconds.max()
    chain = np.zeros((4, POINTS), np.float32)
    chain[:3, :point_count], chain[3, :point_count] = seconds / longest, 1.0
    unit_count = len(space.devices) - 1
    first_device, end_device = space.devices[:-1], space.devices[1:]
    # The bandwidth between two units, or inside one, is that of the group that spans both.
    group_first = np.minimum.outer(first_device, first_device)
    group_end = np.maximum.outer(end_device, end_device)
    topology = np.zeros((UNITS, UNITS), np.float32)
    fastest = max(cluster.intra_bw, cluster.inter_bw)
    topology[:unit_count, :unit_count] = cluster.bandwidth(group_first, group_end) / fastest
    memory_seconds = 2.0 * pipeline.memory_limit / cluster.inter_bw
    numbers = [
        space.stages / STAGES,
        pipeline.micro_batches / MICRO_BATCHES,
        unit_count / UNITS,
        np.log2(end_device[0]) / OCTAVES,
        memory_seconds / (memory_seconds + longest * pipeline.copies),
        pipeline.backward_sum[-1] / pipeline.seconds_sum[-1],
        np.log2(max(cluster.intra_bw / cluster.inter_bw, 1.0)) / OCTAVES,
        float(pipeline.recompute == "full"),
    ]
    shares = np.minimum(numbers, 1.0).astype(np.float32)
    return {"chain": chain, "topology": topology, "numbers": shares}


class Repeated(games.Drawn):
    """The source of generated problems that an environment plays several times each.

    Args:
        function: see ``Drawn``.
        repeat: episodes of each problem.
    """

    def __init__(self, function: Any, repeat: int) -> None:
        super().__init__(function)
        self.repeat = repeat
        self._problems: dict[int, Any] = {}  # by the row of their stream

    def next(self, stream: games.Stream) -> Any:
        """See ``Source.next``; a stream that is seeded anew begins with another problem."""
        # The stream counts episodes; a seed sets its count back to the first.
        episode = (stream.number - stream.row) // stream.count
        if episode % self.repeat == 0:
            self._problems[stream.row] = self.draw(stream)
        stream.number += stream.count
        return self._problems[stream.row]


class PipelinePlanning(games.Rowed):
    """Plan pipelines of many models, so that a policy can plan a model it has not seen.

    ## Description
    The model is a chain of at most 128 points, the cluster has at most 64 units: devices, or groups
    of devices if there are more than 64. Choices alternate: the first step chooses the first point
    of the next stage, the second the unit on which that stage starts. After S-1 choices of each
    kind the plan is evaluated (arXiv 2007.04069, sections 3.5 and 4.5; the formula is in
    ``parenvs.tasks.pipeline.formulas``). A chain of more than 128 pivots can be cut at points only
    (``parenvs.tasks.pipeline.spaces`` chooses them); the plan is a plan of the pivots.

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
    * ``topology``: (64, 64), bandwidth between units divided by the largest; 0 beyond the cluster.
    * ``numbers``: (8,): stages / 8; micro-batches / 64, at most 1; units / 64; log2 of the devices
      in a unit, / 16; x / (1 + x), where x is the bytes of parameters that a device may hold, in
      the unit of row 2 of ``chain``; backward seconds divided by forward plus backward seconds;
      log2 of the ratio of the bandwidths, / 16; 1 if activations are recomputed.
    * ``plan``: (2, 7) in [-1, 1], chosen points / 128 and chosen units / 64; -1 if not yet chosen.
    * ``step``: Discrete(15), the number of choices made; odd if the next choice is a unit.

    With ``rows="ahead"`` or ``"bare"`` the observation is ``actions`` (192, F), ``context`` (15,)
    and ``action_mask`` instead, see ``parenvs.core.game``; the context begins with ``numbers``.

    ## Rewards
    0 for every choice but the last. The last pays 1/L, where L is the step time in units of the
    bubble-free time (all devices compute all the time), so it lies in (0, 1]. An illegal action
    pays -1 and ends the episode.

    ## Starting State
    Nothing is chosen; the problem is one that ``reset`` generates, or the one that arguments name.

    ## Episode End
    After 2 (S-1) choices or an illegal action. No truncation.

    ## Arguments
    * ``instance``: None generates problems, named like ``"generated-2/inside/any/17"``; the name of
      a set of up to eight stages (``"plan-validation"``, ``"plan-test"``, ``"plan-outside"``) draws
      from it; the name of a problem of a set or of a generated one, a shipped name, or the path of
      a ``.csv`` profile or of a graph gives that problem at every reset.
      ``reset(options={"instance": ...})`` sets the instance of one episode.
    * ``cluster``, ``stages``, ``micro_batch``, ``micro_batches``, ``copies``, ``recompute``,
      ``sync``, ``tied``: settings of named instances and files, as in ``PipelineCut-v0``; they are
      also keys of ``options``. Generated problems and sets have settings of their own, for which
      these are refused.
    * ``problem``: a ``parenvs.Pipeline``, or its points, in place of all the above.
    * ``family``: problems of this family only; ``"uniform"``, ``"normal"`` and ``"binomial"`` are
      the paper's (section 4.5.1).
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew.
    * ``ranges``: ``"inside"``, what agents train on, or ``"outside"``, larger problems.
    * ``repeat``: episodes of each generated problem before the next (default: 50, as in the paper).
    * ``rows``: None, ``"ahead"`` or ``"bare"``, see the observation space.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a plan ``cost``, the
    seconds of a training step, and ``excess_bytes``, by which the fullest stage exceeds the memory
    of a device (<= 0: it fits); on a problem of a shipped set ``reference`` and ``bound``, the
    proven optimum, and ``gap``, cost / reference - 1.

    ## Many at Once
    ``gym.make_vec("PipelinePlan-v0", num_envs=64)``, see ``PipelinePlanningVectorEnv``. Generating
    a problem takes as long as hundreds of steps, so the speed depends most on ``repeat``.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS)
    exact = "parenvs.agents.pipeline.planners:best_of_game"
    fixed_length = True
    rule = "the choice behind which a plan that shares out the rest is shortest"
    columns: ClassVar[Mapping[str, str]] = {
        "rule": "10 times the reward, less that of the best legal action",
        "reward": "of the plan that shares what is left in the best of some ways",
        "stage": "seconds of the stage that ends at the point, over an even share of what is left, "
        "over 4",
        "weights": "share of the parameters in that stage",
        "transfer": "seconds of all transfers there between servers, over the bubble-free time",
        "devices": "devices of the stage that ends at the unit, over an even share, over 4",
        "compute": "seconds in which that stage computes, over the bubble-free time",
        "reduce": "seconds of its all-reduce, over the bubble-free time",
        "server": "1 if the unit is the first of a server",
    }
    ahead = frozenset({"rule", "reward"})
    _problems: list[Board]
    contexts: ClassVar[Mapping[str, str]] = {
        "stages": "stages / 8",
        "micro_batches": "micro-batches / 64, at most 1",
        "units": "units / 64",
        "unit": "log2 of the devices in a unit / 16",
        "memory": "memory of a device, as in numbers",
        "backward": "share of the backward seconds",
        "link": "log2 of the ratio of the bandwidths / 16",
        "recompute": "1 if activations are recomputed",
        "made": "share of the choices that are made",
        "turn": "1 if the next choice is a unit",
        "seconds_left": "share of the seconds after the last cut",
        "devices_left": "share of the devices after the last cut",
        "core": "seconds of the slowest stage or transfer so far, over the bubble-free time",
        "passed": "seconds until a micro-batch has passed the stages so far, over the same",
        "tail": "seconds of their all-reduces that nothing hides, over the same",
    }

    def __init__(
        self,
        count: int = 1,
        *,
        instance: str | Graph | StageProfile | None = None,
        cluster: str | dict[str, Any] | None = None,
        stages: int | None = None,
        micro_batch: int | None = None,
        micro_batches: int | None = None,
        copies: float | None = None,
        recompute: str | None = None,
        sync: str | None = None,
        tied: str | None = None,
        family: str | None = None,
        ranges: str = "inside",
        repeat: int | None = None,
        order: str = games.ORDERS[0],
        rows: str | None = None,
        problem: Pipeline | PointSpace | None = None,
    ) -> None:
        arguments, (_, *settings) = locals(), self.options
        super().__init__(count)
        self._settings = {key: arguments[key] for key in settings if arguments[key] is not None}
        if problem is not None and instance is not None:
            raise ParenvsError("instance: the argument problem has its own; leave out one of them")
        self._instance = instance
        target = instance if problem is None else problem
        self.source = _source(target, self._settings, family, ranges, repeat, order)
        self.action_space = spaces.Discrete(ACTIONS)
        self.observation_space = spaces.Dict(
            {
                "chain": spaces.Box(0.0, 1.0, (4, POINTS), np.float32),
                "topology": spaces.Box(0.0, 1.0, (UNITS, UNITS), np.float32),
                "numbers": spaces.Box(0.0, 1.0, (8,), np.float32),
                "plan": spaces.Box(-1.0, 1.0, (2, STAGES - 1), np.float32),
                "step": spaces.Discrete(2 * (STAGES - 1) + 1),
            }
        )
        self._observed = {
            key: np.zeros((count, *(self.observation_space[key].shape or ())), np.float32)
            for key in ("chain", "topology", "numbers", "plan")
        }
        if rows is not None:
            self.show_rows(ACTIONS, rows)
        self.stages = np.zeros(count, np.int64)
        # Entry k is the start of stage k, in every episode.
        self.points, self.units = np.zeros((2, count, STAGES), np.int64)
        self.choices = np.zeros(count, np.int64)
        self.figures = np.full((3, count), np.nan)  # see ``Board.outcome``
        # The last column stands for all numbers that are not actions.
        self._legal = np.zeros((count, ACTIONS + 1), bool)

    @property
    def legal(self) -> Array:
        return self._legal[:, :ACTIONS]

    def put(self, rows: games.Rows, problem: Board) -> None:
        super().put(rows, problem)
        self.stages[rows] = problem.space.stages
        for key, values in problem.observed.items():
            self._observed[key][rows] = values

    def start(self, rows: games.Rows) -> None:
        self._observed["plan"][rows] = -1.0
        self.choices[rows], self.over[rows] = 0, False
        self.figures[:, rows] = np.nan
        self._update_legal(self._rows[rows])

    def play(self, rows: games.Rows, actions: Array) -> Array:
        rows, actions = self._rows[rows], self.within(actions)
        legal = self._legal[rows, actions]
        self.over[rows[~legal]] = True
        self.figures[2, rows[~legal]] = ILLEGAL
        rows, actions = rows[legal], actions[legal]
        stage, is_unit = np.divmod(self.choices[rows], 2)
        # Units are numbered behind the points.
        chosen = actions - POINTS * is_unit
        for kind, starts, most in ((0, self.points, POINTS), (1, self.units, UNITS)):
            of_kind = is_unit == kind
            row, number, position = rows[of_kind], stage[of_kind], chosen[of_kind]
            starts[row, number + 1] = position
            self._observed["plan"][row, kind, number] = position / most
        self.choices[rows] += 1
        rewards = np.where(legal, 0.0, ILLEGAL)
        # The last choice completes the plan: one point and one unit per stage but the first.
        ended = self.choices[rows] == 2 * (self.stages[rows] - 1)
        for board, _, index in self._by_board_and_choices(rows[ended]):
            row, count = rows[ended][index], board.space.stages
            plans = self.points[row, :count], self.units[row, :count]
            self.figures[:, row] = board.outcome(*plans)
        rewards[np.flatnonzero(legal)[ended]] = self.figures[2, rows[ended]]
        self.over[rows[ended]] = True
        self._update_legal(rows[~ended])
        return rewards

    def observation(self, rows: games.Rows) -> dict[str, Array]:
        if self.shown:
            return self._row_observation(self._rows[rows])
        constant = {key: values[rows] for key, values in self._observed.items()}
        return {**constant, "step": self.choices[rows]}

    def outcome(self, rows: games.Rows) -> dict[str, Array]:
        """See ``Game.outcome``; of whole plans ``excess_bytes``, too."""
        known = self.known[rows]
        return games.costs(self.cost[rows], known, known) | {"excess_bytes": self.figures[1, rows]}

    @property
    def cost(self) -> Array:
        """Seconds of a step of each whole plan, (n,); NaN of others."""
        return np.where(self.figures[2] > 0, self.figures[0], np.nan)

    @property
    def known(self) -> Array:
        """Seconds of a step of each problem's shortest plan, (n,); NaN where none is proven."""
        return np.array([x.space.pipeline.bubble_free / x.optimum for x in self._problems])

    def plan(self, row: int) -> PipelinePlan:
        """Return the plan so far; the rest of the chain is its last stage."""
        stages, space = slice(1, 1 + int(self.choices[row]) // 2), self.space_of(row)
        return space.pipeline.plan(*space.plan(self.points[row, stages], self.units[row, stages]))

    def problem(self, row: int) -> Pipeline:
        return self.space_of(row).pipeline

    def space_of(self, row: int) -> PointSpace:
        """Return the points and units of an episode's problem."""
        return self._problems[row].space

    def view(self, row: int) -> Report | Pipeline:
        return self.problem(row).so_far(self.plan(row))

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; the largest number if problems differ."""
        return 2 * ((STAGES if self.draws else self.source.only.space.stages) - 1)

    def elsewhere(self, options: dict[str, Any]) -> games.Source:
        return games.Fixed(_board(*problems.asked(options, self._instance, self._settings)))

    def _by_board_and_choices(self, rows: Array) -> Iterator[tuple[Board, int, Array]]:
        """Yield a problem, a number of choices made, and the indices of rows with both."""
        choices, numbers = self.choices[rows], np.arange(len(rows))
        for board, index in self.by_problem(rows):
            for number in dict.fromkeys(choices[index].tolist()):
                yield board, number, numbers[index][choices[index] == number]

    def _update_legal(self, rows: Array) -> None:
        self._legal[rows] = False
        for board, choices, index in self._by_board_and_choices(rows):
            row, (stage, is_unit) = rows[index], divmod(choices, 2)
            begin, space = (self.points[row, stage], self.units[row, stage]), board.space
            if is_unit:
                legal = space.legal_units(stage, *begin, self.points[row, stage + 1])
            else:
                legal = space.legal_points(stage, *begin)
            # The end of the chain and of the devices are no cuts.
            first = POINTS * is_unit
            self._legal[row, first : first + legal.shape[1] - 1] = legal[:, :-1]

    def _row_observation(self, rows: Array) -> dict[str, Array]:
        legal = self.legal[rows]
        columns = dict(zip(self.columns, np.zeros((len(self.columns), *legal.shape)), strict=True))
        context = np.zeros((len(rows), len(self.contexts)), np.float32)
        context[:, :8] = self._observed["numbers"][rows]
        active = np.flatnonzero(~self.over[rows])
        for board, choices, index in self._by_board_and_choices(rows[active]):
            index = active[index]
            row, (stage, is_unit) = rows[index], divmod(choices, 2)
            shares, last = board.shares, board.space.stages - 1
            point, unit = self.points[row, stage, None], self.units[row, stage, None]
            seconds_left = 1.0 - shares["seconds"][point]
            devices_left = 1.0 - shares["devices"][unit]
            even = (last + 1 - stage) / 4.0
            pipeline, pivots = board.pipeline, board.space.pivots
            if is_unit:
                fraction = (shares["devices"][:-1] - shares["devices"][unit]) / devices_left
                cells = index[:, None], np.arange(POINTS, POINTS + fraction.shape[1])
                columns["devices"][cells] = fraction * even
                first, devices = board.space.devices[unit], board.space.devices[None, :-1]
                ends = np.maximum(devices, first + 1)
                cut, end = pivots[point], pivots[self.points[row, stage + 1, None]]
                work = pipeline.seconds_sum[end] - pipeline.seconds_sum[cut]
                # All micro-batches on this stage, over those on an even share of the devices.
                compute = pipeline.micro_batches * formulas.compute_seconds(work, ends - first)
                columns["compute"][cells] = compute / pipeline.bubble_free
                all_reduce = pipeline.reduce_seconds(cut, end, first, ends)
                columns["reduce"][cells] = all_reduce / pipeline.bubble_free
                columns["server"][cells] = devices % pipeline.cluster.devices_per_server == 0
            else:
                # Pivots that cost no time may be all that is left.
                fraction = shares["seconds"][:-1] - shares["seconds"][point]
                fraction /= np.where(seconds_left > 0, seconds_left, 1.0)
                cells = index[:, None], np.arange(fraction.shape[1])
                columns["stage"][cells] = fraction * even
                columns["weights"][cells] = shares["weights"][:-1] - shares["weights"][point]
                columns["transfer"][cells] = board.transfers[:-1]
            context[index, 8], context[index, 9] = choices / (2 * last), is_unit
            context[index, 10:12] = np.concatenate([seconds_left, devices_left], axis=1)
            starts = self.points[row, : stage + 1], self.units[row, : stage + 1]
            context[index, 12:] = board.prefix_seconds(*starts).T
            if self.looks:
                episode, action = legal[index].nonzero()
                plans = self.points[row][episode], self.units[row][episode]
                plans[is_unit][:, stage + 1] = action - POINTS * is_unit
                points, units = (starts[:, : last + 1] for starts in plans)
                columns["reward"][index[episode], action] = board.best_completion(
                    points, units, choices + 1
                )
        # Relative to the best legal action, the score does not depend on how good the problem is.
        best = np.where(legal, columns["reward"], -np.inf).max(axis=1, keepdims=True)
        columns["rule"] = SHARP * (columns["reward"] - best)
        return self.as_rows(columns, context, legal, self.over[rows])


class PipelinePlanningEnv(GameEnv, game=PipelinePlanning):
    """A single environment of ``PipelinePlanning``."""


class PipelinePlanningVectorEnv(GameVectorEnv, single=PipelinePlanningEnv):
    """A native batch of ``PipelinePlanning``."""


def _source(
    target: Any,
    settings: Mapping[str, Any],
    family: str | None,
    ranges: str,
    repeat: int | None,
    order: str,
) -> games.Source:
    """Return the source of the problems that arguments name.

    Raises:
        ParenvsError: an argument is unknown, or would be ignored.
    """
    if family is not None:
        problems.check_family(family)
    refuse_unknown("unknown ranges", ranges, problems.RANGES)
    if repeat is not None and (not isinstance(repeat, int) or repeat < 1):
        raise ParenvsError(f"repeat must be >= 1, not {shown(repeat)}")
    is_set = isinstance(target, str) and target in problems.SETS
    if games.is_sequential(order) and not is_set:
        raise ParenvsError(f"order: {order!r} plays a set, like instance='plan-test'; leave it out")
    generating = {"ranges": ranges != "inside", "repeat": repeat is not None}
    generating["family"] = family is not None and not is_set
    for name, given in generating.items():
        if given and target is not None:
            raise ParenvsError(f"{name}: no problems are generated here; leave it out")
    for name in settings if target is None or is_set else ():
        raise ParenvsError(
            f"{name}: generated problems have settings of their own; leave it out, or name the "
            "instance, graph or file that it is for"
        )
    if is_set:
        names = [x.name for x in problems.load_set(target) if family in (None, x.family)]
        return games.Members(names, partial(_board, settings={}), order)
    if target is not None:
        return games.Fixed(_board(target, settings))
    return Repeated(partial(_generated_board, family, ranges), REPEAT if repeat is None else repeat)


def _board(target: Any, settings: Mapping[str, Any]) -> Board:
    """Prepare the problem of a name, a graph, a file or an object.

    Raises:
        ParenvsError: there is none, it has too many stages, or no plan of it fits the memory.
    """
    if isinstance(target, PointSpace):
        return Board(target)
    if problems.is_member(target) and not settings:
        return _member_board(target)
    settings = dict(settings)
    if not (problems.is_member(target) or isinstance(target, Pipeline) or "stages" in settings):
        settings["cluster"] = Cluster.parse(settings.get("cluster", "C"))
        settings["stages"] = min(stages_on(settings["cluster"]), STAGES)
    return _board_of(load_problem(target, task="pipeline", **settings))


@lru_cache(maxsize=KEPT)
def _member_board(name: str) -> Board:
    return _board_of(problems.pipeline_of(name))


def _generated_board(family: str | None, ranges: str, stream: games.Stream) -> Board:
    number = int(stream.rng.integers(NUMBERS))
    return Board(problems.problem_of(number, family, ranges).space)


def _board_of(pipeline: Pipeline) -> Board:
    if pipeline.stages > STAGES:
        raise InfeasibleError(
            f"{pipeline.instance}: {pipeline.stages} stages asked for; PipelinePlan-v0 has at most "
            f"{STAGES} (planners take more)"
        )
    return Board(PointSpace.build(pipeline.with_fractions()))
