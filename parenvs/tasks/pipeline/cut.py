"""``PipelineCut-v0``: cut a chain of pivots into pipeline stages, one cut a step."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from parenvs.cluster import SYNC_METHODS, server_of
from parenvs.compiled import Array, bare, compiled
from parenvs.core.game import Fixed, Rowed, Rows, Source
from parenvs.core.plan import ILLEGAL
from parenvs.core.registry import problem as load_problem
from parenvs.envs.env import GameEnv, GameVectorEnv
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.pipeline import formulas
from parenvs.tasks.pipeline.plan import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    PIPELINE_OPTIONS,
    RECOMPUTE,
    TIED,
    PipelinePlan,
)
from parenvs.tasks.pipeline.problem import (
    Pipeline,
    Report,
    compute_seconds,
    excess_bytes,
    first_from,
    in_front,
    sync_seconds,
    tables_of,
)
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import RADIUS, CutSpace

TABULATED = 512
"""Candidates up to which figures of the last stages are tabulated."""
MAX_OPENINGS = 1 << 22
"""Float32 numbers up to which the observations before the second cut are tabulated."""
MOST_PAIRS = 200_000
"""Pairs of cuts up to which the constructor finds out whether any plan fits the memory."""


class Kernel(NamedTuple):
    """What compiled loops look up of a problem's candidates.

    Candidates are counted 0..c-1; as neighbors of a stage, c stands for the end of the chain and
    c+1 for its start.

    Attributes:
        device: (c+2,) int64, first device behind a cut at each.
        server, last_server: (c+2,) its server, and that of the device in front of it.
        low, high: (S,) int64, the window of each step: its first candidate, one past its last;
            empty behind the last step.
        follower: (c+2,) int64, the first candidate that may come after each.
        seconds, parameters, rank, again, shared, bandwidth, exchange, central: as in ``Tables``, of
            the pivots in front of which each cuts.
        links: (2, c) scaled seconds of a transfer over each, across servers and in one.
        most_reduce: the instance's maximum, over which all-reduces are scaled.
    """

    device: Array
    server: Array
    last_server: Array
    low: Array
    high: Array
    follower: Array
    seconds: Array
    parameters: Array
    rank: Array
    again: Array
    shared: Array
    bandwidth: Array
    exchange: float
    central: bool
    links: Array
    most_reduce: float


@bare
def _stage(kernel, last, cut):
    rank, end_rank = kernel.rank[last], kernel.rank[cut]
    group = kernel.device[cut] - kernel.device[last]
    near = 1 if kernel.server[last] == kernel.last_server[cut] else 0
    reduce = sync_seconds(
        kernel.parameters[cut] - kernel.parameters[last] + kernel.again[rank, end_rank],
        kernel.shared[rank, end_rank], group, kernel.bandwidth[near], kernel.exchange,
        kernel.central,
    )  # fmt: skip
    compute = compute_seconds(kernel.seconds[cut] - kernel.seconds[last], group)
    return compute, reduce / kernel.most_reduce


@compiled
def write_last_stages(kernel, last, first, stop, stages):
    """Write figures of the last two stages of plans whose last cut is in [first, stop), (3, c).

    They are the least and most compute seconds and the largest scaled all-reduce; ``last`` is the
    cut before.
    """
    for cut in range(first, stop):
        compute, reduce = _stage(kernel, last, cut)
        rest, rest_reduce = _stage(kernel, cut, len(kernel.device) - 2)
        stages[0, cut], stages[1, cut] = min(compute, rest), max(compute, rest)
        stages[2, cut] = max(reduce, rest_reduce)


@compiled
def write_features(kernel, table, chosen, steps, index, features):
    """Write what is observed of legal candidates into zeros, (m, c, 3), see ``PipelineCut``.

    Args:
        kernel: the problem.
        table: (c+2, 3, c) what ``write_last_stages`` writes, for each cut before; or empty.
        chosen: (m, S-1) candidates chosen so far.
        steps: (m,) numbers of them; behind the last step nothing is legal.
        index: (k,) episodes of the problem.
        features: of all episodes.
    """
    end = len(kernel.device) - 2
    stages = np.empty((3, end))
    for i in index:
        if steps[i] == chosen.shape[1]:
            continue
        before = last = end + 1
        shortest, longest, reduce, transfer = np.inf, 0.0, 0.0, 0.0
        for k in range(steps[i]):
            cut = chosen[i, k]
            compute, all_reduce = _stage(kernel, last, cut)
            shortest, longest = min(shortest, compute), max(longest, compute)
            reduce = max(reduce, all_reduce)
            if k:
                near = 1 if kernel.server[before] == kernel.last_server[cut] else 0
                transfer = max(transfer, kernel.links[near, last])
            before, last = last, cut
        # The transfer over the last cut, which the candidate makes near or not.
        slow = fast = 0.0
        if steps[i]:
            slow, fast = kernel.links[0, last], kernel.links[1, last]
        near = 1 if kernel.server[last] == kernel.last_server[end] else 0
        first, stop = max(kernel.follower[last], kernel.low[steps[i]]), kernel.high[steps[i]]
        if len(table):
            stages = table[last]
        else:
            write_last_stages(kernel, last, first, stop, stages)
        # Slices, so that the loop is of vector instructions.
        least, most, reduces = stages[0, first:stop], stages[1, first:stop], stages[2, first:stop]
        links, servers = kernel.links[near, first:stop], kernel.last_server[first:stop]
        rows, server = features[i, first:stop], kernel.server[before]
        for j in range(len(rows)):
            link = fast if server == servers[j] else slow
            rows[j, 0] = min(max(reduces[j], reduce), 1.0)
            rows[j, 1] = min(max(transfer, link, links[j]), 1.0)
            rows[j, 2] = min(shortest, least[j]) / max(longest, most[j])


@compiled
def length_and_excess(tables, pivot, device, chosen):
    """Core plus tail, and bytes by which the fullest stage is too large, of plans, (2, m).

    ``pivot`` and ``device``, (c+2,), are those behind each candidate, ``chosen`` is (m, S-1).
    """
    figures = np.empty((2, len(chosen)))
    stages, end = chosen.shape[1] + 1, len(pivot) - 2
    cuts, devices = np.zeros((2, stages + 1), np.int64)
    cuts[stages], devices[stages] = pivot[end], device[end]
    for i in range(len(chosen)):
        for k in range(stages - 1):
            cuts[k + 1], devices[k + 1] = pivot[chosen[i, k]], device[chosen[i, k]]
        _, _, core, tail = in_front(tables, cuts, devices, stages)
        figures[0, i], figures[1, i] = core + tail, excess_bytes(tables, cuts, devices)
    return figures


@compiled
def complete_evenly(kernel, chosen, steps):
    """Complete plans by stages of equal seconds, as nearly as legal candidates allow.

    Of ``chosen``, (m, S-1), columns up to ``steps``, (m,), are given and the others are written.
    """
    cuts, end = chosen.shape[1], len(kernel.device) - 2
    seconds, total = kernel.seconds[:end], kernel.seconds[end]
    for i in range(len(chosen)):
        for k in range(steps[i] + 1, cuts):
            last = chosen[i, k - 1]
            done = kernel.seconds[last]
            ideal = done + (total - done) / (cuts + 1 - k)
            # The first candidate behind the ideal; the one before may be nearer.
            cut = min(max(first_from(seconds, ideal), 1), end - 1)
            if ideal - seconds[cut - 1] < seconds[cut] - ideal:
                cut -= 1
            least = max(kernel.follower[last], kernel.low[k])
            chosen[i, k] = min(max(cut, least), kernel.high[k] - 1)


@compiled
def write_mask(window, mask):
    """Set the mask, (m, c) bool, at the candidates of windows, (m, 2), and nowhere else."""
    for i in range(len(mask)):
        for cut in range(mask.shape[1]):
            mask[i, cut] = window[i, 0] <= cut < window[i, 1]


class Board:
    """A problem as the game plays it.

    Attributes:
        space: the candidates.
        tables: costs of stages.
        pivot: (c+2,) int64, first pivot behind each.
        kernel: what compiled loops look up of them.
        last_stages: the table of ``write_features``.
        openings: (w, c, 3) float32, features before the first cut, and after each candidate of the
            first window; empty where there is no second cut or they are too many.
        shares: (c,) float32, pivots over n.
    """

    def __init__(self, space: CutSpace) -> None:
        self.space, pipeline, cluster = space, space.pipeline, space.pipeline.cluster
        self.end = end = len(space.pivots)
        self.shares = (space.pivots / len(pipeline.profile)).astype(np.float32)
        self.tables = tables = tables_of(pipeline)
        self.pivot = pivot = np.append(space.pivots, [len(pipeline.profile), 0])
        device = np.append(space.devices, [cluster.devices, 0])
        low, high = np.array([*space.windows(), (end, end)]).T.copy()
        follower = space.followers()
        seconds, bandwidth = tables.work[pivot], tables.bandwidth
        # Maxima: all parameters over all devices, and the largest cut over the cluster. What is
        # always 0 is not divided.
        whole = np.array(0), np.array(cluster.devices)
        reduce = float(cluster.sync_seconds(pipeline.parameter_sum[-1:], *whole)[0]) or 1.0
        crossing = pipeline.cut_before[space.pivots]
        transfer = float(formulas.transfer_seconds(crossing.max(), cluster.bandwidth(*whole)))
        self.kernel = kernel = Kernel(
            device, server_of(device, cluster.devices_per_server),
            server_of(device - 1, cluster.devices_per_server), low, high,
            # What may follow the start is what may be the first cut.
            np.append(follower, follower[-1]),
            seconds, tables.parameters[pivot], tables.rank[pivot], tables.again, tables.shared,
            bandwidth, tables.exchange, tables.central,
            formulas.transfer_seconds(crossing, bandwidth[:, None]) / (transfer or 1.0),
            reduce,
        )  # fmt: skip
        count = end + 2 if end <= TABULATED else 0
        self.last_stages = np.zeros((count, 3, end))
        for last, stages in enumerate(self.last_stages):
            if last != end:
                write_last_stages(kernel, last, kernel.follower[last], end, stages)
        count = high[0] - low[0] + 1 if space.stages > 2 else 0
        self.openings = np.zeros(
            (count if 3 * end * count <= MAX_OPENINGS else 0, end, 3), np.float32
        )
        index = np.arange(len(self.openings))
        chosen = np.zeros((len(index), space.stages - 1), np.int64)
        chosen[1:, 0] = np.arange(low[0], high[0])[: len(index)]
        write_features(kernel, self.last_stages, chosen, index.clip(max=1), index, self.openings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Board:
        """Itself: nothing in it changes."""
        return self

    def outcome(self, chosen: Array) -> Array:
        """Length, excess bytes and reward, (3, m), of whole plans, (m, S-1) candidates."""
        seconds, excess = length_and_excess(self.tables, self.pivot, self.kernel.device, chosen)
        length = formulas.compose(seconds, 0.0)
        value = formulas.value(length, self.space.pipeline.bubble_free)
        return np.stack([length, excess, np.where(excess <= 0, value, ILLEGAL)])

    def least_excess(self) -> float:
        """``Pipeline.excess_bytes`` of the plan that needs least; minus infinity if not known."""
        kernel, pipeline = self.kernel, self.space.pipeline
        windows = [np.array([self.end + 1])]
        windows += [np.arange(*window) for window in self.space.windows()]
        windows.append(np.array([self.end]))
        pairs = [(x[:, None], y) for x, y in itertools.pairwise(windows)]
        if sum(x.size * y.size for x, y in pairs) > MOST_PAIRS:
            return -np.inf
        # A dynamic program over the cuts; of each cut, the least fullest stage before it.
        fullest = np.zeros(1)
        for number, (last, cut) in enumerate(pairs):
            first, device = self.pivot[last], kernel.device[last]
            legal = kernel.follower[last] <= cut
            end = np.maximum(self.pivot[cut], first + 1)
            group = np.maximum(kernel.device[cut] - device, 1)
            memory = pipeline.memory_of(first, end, group, np.array(self.space.stages - number))
            most = np.where(legal, np.maximum(fullest[:, None], memory), np.inf)
            fullest = most.min(axis=0)
        return float(fullest.item() - pipeline.memory_limit)


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

    With ``rows`` a row for each candidate instead, see ``parenvs.core.game.Rowed``:

    * ``actions``: (c, 8) float32; ``context``: (4,) float32; ``action_mask``: (c,) int8.

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
      ``parenvs.StageProfile``; the last two make a specification that is not serializable.
    * ``cluster``: preset, short form, ``.json`` path or object, see ``Cluster.parse``.
    * ``stages``: S (default: one stage a server).
    * ``micro_batch``, ``micro_batches``: samples in a micro-batch, micro-batches in a step.
    * ``copies``, ``recompute``, ``sync``, ``tied``: copies of the parameters on each device,
      recomputation of activations, synchronization of gradients and tied weights, see
      ``parenvs.Pipeline``.
    * ``radius``: largest distance of a device cut from the center solution.
    * ``candidates``: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.
    * ``rows``: None, or ``"ahead"`` or ``"bare"``, with which candidates are observed as rows.
    * ``paper``: plays the task of arXiv 2007.04069, section 4.4: ``candidates="all"``, and
      ``features`` alone are observed.
    * ``problem``: a ``parenvs.Pipeline``, in place of all the above but ``radius``,
      ``candidates``, ``rows`` and ``paper``.

    Each but ``rows`` and ``paper`` is also a key of ``reset(options=...)``, for one episode, if the
    spaces stay the same.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a complete plan ``cost``,
    the seconds of a training step if it fits the memory, and ``excess_bytes``, by which the
    fullest stage exceeds the memory of a device (<= 0: it fits).

    ## Many at Once
    ``gym.make_vec("PipelineCut-v0", num_envs=1024)``, see ``PipelineCutVectorEnv``.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", *PIPELINE_OPTIONS, "radius", "candidates", "problem")
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
        paper: bool = False,
        problem: Pipeline | None = None,
    ) -> None:
        arguments = locals()
        super().__init__(count)
        if paper and rows is not None:
            raise ParenvsError("paper: its task has no rows; leave them out")
        if problem is None:
            settings = {name: arguments[name] for name in PIPELINE_OPTIONS}
            problem = load_problem(instance, cluster, **settings, fractions=True)
        space = CutSpace.build(problem.with_fractions(), radius, "all" if paper else candidates)
        board = Board(space)
        lowest_excess = board.least_excess()
        if lowest_excess > 0:
            warnings.warn(
                f"no plan fits the memory: {problem.instance} on {problem.cluster}: the fullest "
                f"stage exceeds that of a device by {lowest_excess:,.0f} bytes or more, so every "
                "episode pays -1",
                stacklevel=3,
            )
        self.source = Fixed(board)
        candidate_count, cuts = board.end, space.stages - 1
        self.action_space = spaces.Discrete(candidate_count)
        observed: dict[str, spaces.Space[Any]] = {
            "features": spaces.Box(0.0, 1.0, (candidate_count, 3), np.float32)
        }
        if not paper:
            observed["cuts"] = spaces.Box(-1.0, 1.0, (cuts,), np.float32)
            observed["step"] = spaces.Discrete(cuts + 1)
        self.observation_space, self._paper = spaces.Dict(observed), paper
        if rows is not None:
            self.show_rows(candidate_count, rows)
        self.chosen = np.zeros((count, cuts), np.int64)
        self.steps = np.zeros(count, np.int64)
        self.figures = np.full((3, count), np.nan)  # see ``Board.outcome``
        self._cuts = np.empty((count, cuts), np.float32)
        # Legal are the candidates [begin, end) of each episode.
        self._window = np.zeros((count, 2), np.int64)

    @property
    def legal(self) -> Array:
        legal = np.empty((self.count, int(self.action_space.n)), bool)
        write_mask(self._window, legal)
        return legal

    def start(self, rows: Rows) -> None:
        rows = self._rows[rows]
        self.steps[rows], self.over[rows], self._cuts[rows] = 0, False, -1.0
        for board, index in self.by_problem(rows):
            self._open_window(board.kernel, rows[index], -1)

    def play(self, rows: Rows, actions: Array) -> Array:
        rows = self._rows[rows]
        begin, end = self._window[rows].T
        legal = (actions >= begin) & (actions < end)
        rewards = np.zeros(len(rows))
        if not legal.all():
            illegal = rows[~legal]
            rewards[~legal] = ILLEGAL
            self.over[illegal], self.figures[:, illegal] = True, np.nan
            rows, actions = rows[legal], actions[legal]
        step = self.steps[rows]
        self.chosen[rows, step] = actions
        self.steps[rows] = step + 1
        is_last = step + 1 == self.episode_steps
        for board, index in self.by_problem(rows):
            row, cut = rows[index], actions[index]
            self._cuts[row, step[index]] = board.shares[cut]
            self._open_window(board.kernel, row, cut)
            if is_last[index].any():
                ended = row[is_last[index]]
                self.figures[:, ended] = board.outcome(self.chosen[ended])
        if is_last.any():
            self.over[rows] = is_last
            rewards[legal] = np.where(is_last, self.figures[2, rows], 0.0)
        return rewards

    def _open_window(self, kernel: Kernel, rows: Array, last: Any) -> None:
        """Set the legal candidates: in the step's window, and behind what may follow the last."""
        step = self.steps[rows]
        self._window[rows, 0] = np.maximum(kernel.follower[last], kernel.low[step])
        self._window[rows, 1] = kernel.high[step]

    def observation(self, rows: Rows) -> dict[str, Array]:
        features = self._features(rows)
        if self.shown:
            return self._row_observation(self._rows[rows], features, self.legal[rows])
        if self._paper:
            return {"features": features}
        return {"features": features, "cuts": self._cuts[rows], "step": self.steps[rows]}

    def _row_observation(self, rows: Array, features: Array, legal: Array) -> dict[str, Array]:
        pivot, stage, devices, reward = np.zeros((4, *legal.shape))
        context = np.zeros((len(rows), len(self.contexts)), np.float32)
        for board, index in self.by_problem(rows):
            kernel, row, stages = board.kernel, rows[index], self.episode_steps + 1
            step = self.steps[row]
            last = np.where(step > 0, self.chosen[row, step - 1], board.end + 1)
            seconds, total = kernel.seconds / kernel.seconds[board.end], kernel.device[board.end]
            done = seconds[last]
            pivot[index] = board.shares
            even = (1.0 - done) / (stages - step)
            stage[index] = (seconds[: board.end] - done[:, None]) / (4.0 * even[:, None])
            devices[index] = (kernel.device[: board.end] - kernel.device[last, None]) / total
            figures = step / (stages - 1), board.pivot[last] / board.pivot[board.end], 1.0 - done
            context[index, :3], context[index, 3] = np.stack(figures, axis=1), np.log2(stages) / 10
            if self.looks:
                episode, cut = (legal[index] & ~self.over[row, None]).nonzero()
                plans, step = self.chosen[row[episode]], step[episode]
                plans[np.arange(len(cut)), step] = cut
                complete_evenly(kernel, plans, step)
                *_, reward[self._rows[: len(rows)][index][episode], cut] = board.outcome(plans)
        # Relative to the best legal candidate, the score does not depend on how good the problem
        # is.
        best = np.where(legal, reward, -np.inf).max(axis=1, keepdims=True)
        reduce, transfer, balance = features.transpose(2, 0, 1)
        columns = {
            "rule": SHARP * (reward - best), "reward": reward, "all_reduce": reduce,
            "transfer": transfer, "balance": balance, "pivot": pivot, "stage": stage,
            "devices": devices,
        }  # fmt: skip
        return self.as_rows(columns, context, legal, self.over[rows])

    def outcome(self, rows: Rows) -> dict[str, Array]:
        length, excess_bytes, _ = self.figures[:, rows]
        return {"cost": np.where(excess_bytes > 0, np.nan, length), "excess_bytes": excess_bytes}

    def plan(self, row: int) -> PipelinePlan:
        """Return the plan so far; the rest of the chain is its last stage."""
        space = self.space_of(row)
        return space.pipeline.plan(*space.plan(self.chosen[row, : self.steps[row]]))

    def problem(self, row: int) -> Pipeline:
        return self.space_of(row).pipeline

    def space_of(self, row: int) -> CutSpace:
        """Return the candidates of an episode's problem."""
        return self._problems[row].space

    @property
    def space(self) -> CutSpace:
        """The candidates of the first episode's problem."""
        return self.space_of(0)

    def view(self, row: int) -> Report | Pipeline:
        return self.problem(row).so_far(self.plan(row))

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``; rows would show another number of cuts alike.

        Raises:
            ParenvsError: the problem has another number of stages.
        """
        source = super().elsewhere(options)
        stages, other = self.episode_steps + 1, source.only.space.stages
        if stages != other:
            raise ParenvsError(
                f"options: {', '.join(options)} would change the stages from {stages} to {other}; "
                "make another environment for it"
            )
        return source

    @property
    def episode_steps(self) -> int:
        """Steps of an episode in which no action is illegal."""
        return self.chosen.shape[1]

    def _features(self, rows: Rows) -> Array:
        rows = self._rows[rows]
        # Behind the last step there are no candidates.
        steps = np.where(self.over[rows], self.episode_steps, self.steps[rows])
        if self._shared is not None and len(self._shared.openings) and steps.max() < 2:
            low, *_ = self._shared.kernel.low
            opening = np.where(steps, self.chosen[rows, 0] - low + 1, 0)
            return self._shared.openings.take(opening, axis=0)
        features = np.zeros((len(rows), int(self.action_space.n), 3), np.float32)
        chosen = self.chosen[rows]
        for board, index in self.by_problem(rows):
            part = self._rows[: len(rows)][index]
            write_features(board.kernel, board.last_stages, chosen, steps, part, features)
        return features


class PipelineCutEnv(GameEnv, game=PipelineCut):
    """A single environment of ``PipelineCut``."""


class PipelineCutVectorEnv(GameVectorEnv, single=PipelineCutEnv):
    """A native batch of ``PipelineCut``."""
