"""The label search over hybrid plans: stages of any length, devices, tp, ZeRO and recomputation.

It is the search of ``parenvs.agents.pipeline.label_search`` on other stages. A plan is built from
its last stage to its first. A suffix is the last k stages, from layer i and device e on, and the
send in front of it, which depends on the devices of the stage in front: those are part of the
state. Its label is (core, tail, update): what the suffix contributes to the length of a step, in
seconds.

1. ``prepend_core`` and ``prepend_tail`` of the pipeline's formulas put a stage in front of a label;
   the longest update is a maximum. All three grow with the old ones, so of the labels of a state
   only the Pareto front has to be kept.
2. How many micro-batches a stage keeps follows from k, so the layers it must recompute are known
   when it is put in front (``tables``).
3. The stages in front hide at least their least backward seconds, and the longest of their updates
   takes at least their device-seconds over their devices. Tails and updates below are raised.
4. The layers in front take W device-seconds, so on e devices one of their stages takes W/e at
   least, and so does the first micro-batch on its way through all of them. Labels whose bound
   reaches the incumbent are dropped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from parenvs.agents.hybrid.tables import (
    FIRST,
    INNER,
    LAST,
    Fronts,
    Setting,
    StageCosts,
    StageTables,
)
from parenvs.agents.pipeline.bounds import SLACK, OutOfTimeError
from parenvs.compiled import Array, compiled, warm
from parenvs.tasks.hybrid.formulas import compose
from parenvs.tasks.hybrid.plan import HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.schedules import ChunkSeconds, simulate
from parenvs.tasks.hybrid.space import Constraints
from parenvs.tasks.hybrid.uniform import stage_speeds
from parenvs.tasks.pipeline.formulas import prepend_core, prepend_tail


def pareto3(state: Array, first: Array, second: Array, third: Array) -> Array:
    """Indices of the labels of three figures that no other of their state dominates, by state.

    Of equal ones, one stays.
    """
    # In this order a label can only be dominated by one in front of it in its state.
    order = np.lexsort((third, second, first, state))
    return order[_stays(state[order], second[order], third[order])]


@compiled
def _stays(state: Array, second: Array, third: Array) -> Array:
    """Whether no label in front dominates each one; sorted by state and first figure."""
    stays = np.ones(len(state), np.bool_)
    front = np.empty(len(state), np.int64)
    size = 0
    for k in range(len(state)):
        if k and state[k] != state[k - 1]:
            size = 0
        # A label that any other dominates is dominated by one that stays, too.
        for other in front[:size]:
            if second[other] <= second[k] and third[other] <= third[k]:
                stays[k] = False
                break
        if stays[k]:
            front[size] = k
            size += 1
    return stays


def warm_up() -> None:
    """Compile the search and the simulation, so that no time limit pays for that."""
    simulate(ChunkSeconds(*np.ones((3, 2, 1))), 2)
    figures = np.zeros(0)
    warm(_stays, np.zeros(0, np.int64), figures, figures)


PACE = 4e-6
"""Seconds that a label takes until fronts are kept, on a slow core."""
_NEVER = 1e200  # seconds of a stage that does not fit


Suffixes = TypeVar("Suffixes", bound=Any)
"""Labels of suffixes: a named tuple of (l,) arrays, those of ``SuffixSearch`` among them."""


class Chosen(NamedTuple):
    """A stage of a plan that was found: its layers, and the number of its configuration."""

    layers: tuple[int, int]
    config: int


class SuffixLabels(NamedTuple):
    """Labels of suffixes of k stages, (l,) each; ``core``, ``tail`` and ``update`` in seconds.

    Attributes:
        front: number of the front in ``Fronts``, the devices of the stage in front.
        link: number of the send in front in ``Fronts``.
        last: tp of the last stage if it shares weights with the first, else 0.
        config: configuration of the suffix's first stage.
        parent: the label of the layer before that was extended.
    """

    layer: Array
    device: Array
    front: Array
    link: Array
    core: Array
    tail: Array
    update: Array
    last: Array
    config: Array
    parent: Array


def take(labels: Suffixes, which: Array) -> Suffixes:
    """Return some of the labels."""
    return cast(Suffixes, type(labels)(*(column[which] for column in labels)))


class SuffixSearch(ABC, Generic[Suffixes]):
    """What searches over suffixes of plans share, for servers in order and in any order.

    Both put stages in front of labels, a layer of labels per number of stages, and keep the Pareto
    front of each state. States differ: in order, a suffix is known by its first device, and what a
    send costs depends on the stage in front, a part of the state (``Fronts``). In any order, it is
    known by how many servers of each type it uses; every stage is one server, and sends depend on
    the stage behind alone. Labels have ``layer``, ``core``, ``tail``, ``update``, and the
    ``config`` and the ``parent`` of their first stage.

    Attributes:
        upper: seconds, the length of the best plan found, or that of the incumbent.
        deadline: ``time.perf_counter()`` at which to give up.
        evaluations: number of labels kept, and of plans completed.
    """

    def __init__(self) -> None:
        self.upper, self.deadline, self.evaluations = np.inf, np.inf, 0
        self._layers: list[Suffixes] = []

    @abstractmethod
    def _extend(self, k: int, labels: Suffixes) -> list[Suffixes]:
        """Put a k-th stage from behind, which is not the first of a plan, in front of labels."""

    @abstractmethod
    def _complete(self, k: int, labels: Suffixes) -> None:
        """Put the first stage of plans of k stages in front of labels; keep the best plan."""

    @abstractmethod
    def _state(self, labels: Suffixes) -> Array:
        """(l,) whole number of each label's state."""

    def _search(self, root: Suffixes, most: int, only: int | None = None) -> None:
        """Extend suffixes by a stage until none is left.

        ``most`` bounds the stages of a plan; ``only`` completes plans of so many stages alone.
        """
        self._layers = [root]
        for k in range(1, most + 1):
            labels = self._layers[-1]
            if not len(labels.core):
                return
            if k > 1 and only in (None, k):
                self._complete(k, labels)
            if k < most:
                parts = self._extend(k, labels) or [take(labels, np.zeros(0, np.int64))]
                joined = type(root)(*map(np.concatenate, zip(*parts, strict=True)))
                front = pareto3(self._state(joined), joined.core, joined.tail, joined.update)
                self._layers.append(take(joined, front))
                self.evaluations += len(front)

    def _chosen(self, k: int, config: int, label: int) -> tuple[Chosen, ...]:
        """The stages of a plan of k stages: its first one's configuration, the label behind it."""
        stages, first = [], 0
        for labels in self._layers[k - 1 :: -1]:
            end = int(labels.layer[label])
            stages.append(Chosen((first, end), config))
            first, config = end, int(labels.config[label])
            label = int(labels.parent[label])
        return tuple(stages)


class HybridLabels(SuffixSearch[SuffixLabels]):
    """Finds the fastest plan of a setting with two stages or more, or proves none beats ``upper``.

    Attributes:
        stages: the best plan's stages, or None if none beats the incumbent.
        bound: seconds, proven lower bound of the setting, up to the incumbent's length.
    """

    def __init__(self, problem: Hybrid, setting: Setting, limits: Constraints) -> None:
        super().__init__()
        self.problem, self.setting, self.limits = problem, setting, limits
        self.stages: tuple[HybridStage, ...] | None = None
        self.bound = np.inf
        self._first_tp: int | None = None
        kinds = StageTables(problem, setting, limits, kinds=True)
        if len(kinds.configs.tp):  # all work, evenly dealt out, and the optimizer
            work = setting.micro_batches * kinds.device_seconds[-1]
            core = (work + kinds.device_update[-1]) / setting.devices
            self.bound = float(compose(problem.machine, core))

    @cached_property
    def tables(self) -> StageTables:
        """What stages cost."""
        return StageTables(self.problem, self.setting, self.limits)

    @cached_property
    def fronts(self) -> Fronts:
        """The sends between stages."""
        return Fronts.of(self.problem, self.tables)

    def run(self, upper: float, deadline: float = np.inf) -> bool:
        """Search for plans shorter than ``upper``; True if the search space was exhausted."""
        self.upper, self.deadline, self.stages = upper, deadline, None
        if self.bound >= upper:
            return True
        if time.perf_counter() > deadline:
            return False
        limits = self.limits
        try:
            first_tps: list[int | None] = [None]
            if self.setting.software.blocking and len(np.unique(self.fronts.around)) > 1:
                # The last stage's wait depends on the first one's tp, which is chosen last.
                first_tps = np.unique(self.tables.configs.tp).tolist()
            for first_tp in first_tps:
                self._first_tp = first_tp
                self.tables.forget()
                most = limits.pp if limits.pp is not None else len(self.problem.model) + 2
                self._search(self._root(), most, limits.pp)
        except OutOfTimeError:
            return False
        # Exhausted: no plan of the setting is shorter than ``upper``.
        self.bound = max(self.bound, self.upper)
        return True

    def _root(self) -> SuffixLabels:
        """The suffix of no stages, before each devices of a last stage."""
        n, devices = len(self.problem.model), self.setting.devices
        numbers = np.flatnonzero(self._placed[devices])
        count = len(numbers)
        zeros, none = np.zeros(count), np.full(count, -1)
        # Its tail is that of a whole plan, at least 0.
        return SuffixLabels(
            none * 0 + n, none * 0 + devices, numbers, none, zeros, zeros, zeros, 0 * none, none,
            none,
        )  # fmt: skip

    @cached_property
    def _placed(self) -> Array:
        """(N+1, F) bool, whether a stage of each front may end in front of each device."""
        inside = self.problem.cluster.devices_per_server
        end = np.arange(self.setting.devices + 1)[:, None]
        group = self.fronts.group[None]
        first = end - group
        # A stage is inside one server or takes whole servers.
        within = (group < inside) & (first // inside == (end - 1) // inside)
        whole = (group % inside == 0) & (end % inside == 0)
        return np.asarray((first >= 0) & (within | whole))

    def _allowed(self, config: int, first: Array, end: Array) -> Array:
        allowed = np.ones(np.broadcast(first, end).shape, bool)
        for start, stop, devices in self.limits.pinned:
            same = (first == start) & (end == stop)
            if devices is not None and devices != self.tables.configs.group[config]:
                same = same & False
            allowed &= same | (end <= start) | (first >= stop) | (first == end)
        return allowed

    def _extend(self, k: int, labels: SuffixLabels) -> list[SuffixLabels]:
        place = LAST if k == 1 else INNER
        costs = self.tables.costs(place, k, self.upper / self.setting.micro_batches)
        parts: list[SuffixLabels] = []
        for config, front in enumerate(self.fronts.number.tolist()):
            count = sum(len(part.layer) for part in parts)
            # Fronts take time in proportion to the labels; leave enough of it to build them.
            if time.perf_counter() + count * PACE > self.deadline:
                raise OutOfTimeError
            group = self.tables.configs.group[config]
            rows = np.flatnonzero((labels.front == front) & (labels.device > group))
            if len(rows):
                parts += self._stage(k, config, rows, labels, costs)
        return parts

    def _stage(
        self, k: int, config: int, rows: Array, labels: SuffixLabels, costs: StageCosts
    ) -> list[SuffixLabels]:
        """Put stages of one configuration in front of some labels."""
        model, tables, m = self.problem.model, self.tables, self.setting.micro_batches
        usable = np.isfinite(costs.seconds[config])
        if not usable.any():
            return []
        # A last stage may hold the head alone, a first one the embedding alone.
        least = 0 if k == 1 and model.head is not None else 1
        sizes = np.arange(least, int(tables.size[usable].max()) + 1)
        end = labels.layer[rows][:, None]
        first = end - sizes
        lowest = 0 if model.embedding is not None else 1
        group = int(tables.configs.group[config])
        device = (labels.device[rows] - group)[:, None]
        number = tables.classes[np.maximum(first, 0), end]
        # Not infinite: with one micro-batch the core adds 0 times what stages behind take.
        seconds = np.where(usable[number], costs.seconds[config, number], _NEVER)
        seconds = seconds + self._waits(k, labels, rows, end)
        update = np.maximum(labels.update[rows][:, None], costs.update[config, number])
        core = prepend_core(labels.core[rows][:, None], seconds, m)
        tail = prepend_tail(
            labels.tail[rows][:, None], costs.hiding[config, number], costs.exposed[config, number]
        )
        # Fact 4: dealt out evenly, the layers in front take W/e on each of the e devices in front.
        front_seconds = tables.device_seconds[np.maximum(first, 0)] / device
        legal = (first >= lowest) & usable[number]
        legal &= self._least(core, tail, update, front_seconds) < self.upper
        if self.limits.pinned:
            legal &= self._allowed(config, first, end)
        # A configuration is asked at one speed: that of the slowest server of these devices.
        speeds = stage_speeds(self.problem.cluster, device, group)
        legal &= speeds == tables.configs.speed[config]
        row, column = np.nonzero(legal)
        if not len(row):
            return []
        parent, layer = rows[row], first[row, column]
        at, number = device[row, 0], number[row, column]
        tail, update = tail[row, column], update[row, column]
        # What the stages in front hide or take anyway (fact 3).
        tail = np.maximum(tail, tables.least_hiding[layer])
        update = np.maximum(update, tables.device_update[layer] / at)
        last = labels.last[parent]
        if k == 1 and self.problem.model.tied_parameters:
            last = last + tables.configs.tp[config]
        configs = np.full_like(layer, config)
        core = core[row, column]
        stages = SuffixLabels(layer, at, at, at, core, tail, update, last, configs, parent)
        return self._with_send(k, config, stages, labels, costs.seconds[config, number])

    def _with_send(
        self, k: int, config: int, stages: SuffixLabels, labels: SuffixLabels, seconds: Array
    ) -> list[SuffixLabels]:
        """Put the sends from every possible stage in front of new suffixes.

        ``core`` of the suffixes is without them; ``seconds``, (l,), are those of their first
        stages.
        """
        setting, fronts, m = self.setting, self.fronts, self.setting.micro_batches
        inside = self.problem.cluster.devices_per_server
        crossing = self.problem.model.crossing_after[stages.layer]
        server = (stages.device + self.tables.configs.group[config] - 1) // inside
        parts = []
        for front, group in enumerate(fronts.group.tolist()):
            # A first stage without layers, and no other, may stand in front of layer 0.
            last = (stages.layer > 0) | (stages.device == group)
            which = np.flatnonzero(self._placed[stages.device, front] & last)
            if not len(which):
                continue
            part = take(stages, which)
            near = ((part.device - group) // inside == server[which]).astype(np.int64)
            link = fronts.link[front, config, near]
            sent, hop = fronts.seconds[link] * crossing[which], fronts.hop[link]
            if setting.software.blocking:
                stage_seconds, behind = seconds[which], part.parent
                # At the ends of the chain the only neighbor's send counts twice (``Stages.back``).
                back = 2 * sent if k == 1 else sent
                waits = self._waits(k, labels, behind, labels.layer[behind], hop)
                # A blocking send lengthens the stage: it is put in front anew with its wait.
                core = prepend_core(labels.core[behind], stage_seconds + waits + back, m)
                key = link
            else:
                # An overlapped send is a resource of its own, like a stage.
                core = prepend_core(part.core, 2 * (sent + hop), m)
                key = np.zeros_like(link)
                # Gradients' way to the stages in front hides collectives, too.
                least = self.tables.least_hiding[part.layer]
                part = part._replace(tail=np.maximum(part.tail - (sent + hop), least))
            part = part._replace(core=core, front=np.full_like(link, front), link=key)
            front_seconds = self.tables.device_seconds[part.layer] / part.device
            least = self._least(core, part.tail, part.update, front_seconds)
            parts.append(take(part, np.flatnonzero(least < self.upper)))
        return parts

    def _waits(
        self,
        k: int,
        labels: SuffixLabels,
        rows: Array,
        end: Array,
        hop: Array | float = 0.0,
        is_first: bool = False,
    ) -> Array | float:
        """Seconds that stages wait for their sends behind, and once for those in front.

        ``k`` counts the new stage; ``hop`` is the send in front once, as far as it is known.
        """
        if not self.setting.software.blocking:
            return 0.0
        passed, hop_behind = np.zeros(()), np.asarray(self._around())
        if k > 1:
            link = labels.link[rows].reshape(-1, *(1,) * (end.ndim - 1))
            hop_behind = self.fronts.hop[link]
            passed = self.fronts.seconds[link] * self.problem.model.crossing_after[end]
            passed = 2 * passed if is_first else passed
        return passed + 2 * (np.maximum(hop_behind, hop) + self.problem.stack.send_wait)

    def _around(self) -> float:
        """Seconds once of the last stage's send to the first, for which both wait."""
        around, tp = self.fronts.around, self.tables.configs.tp
        return float(around[0] if self._first_tp is None else around[tp == self._first_tp][0])

    def _least(self, core: Array, tail: Array, update: Array, front: Array) -> Array:
        """Lower bound of plans through labels, see fact 4.

        ``front``: device-seconds of the layers in front over their devices.
        """
        # Some stage in front takes ``front`` or more: M times it bounds the core, too.
        stretched = np.maximum(core + np.maximum(tail, front), self.setting.micro_batches * front)
        tied = float(self.tables.tied.min())
        length = compose(self.problem.machine, stretched, 0.0, tied, update)
        return np.asarray(length * (1 + SLACK))

    def _state(self, labels: SuffixLabels) -> Array:
        shape = (
            len(self.problem.model) + 1, self.setting.devices + 1, len(self.fronts.group),
            max(len(self.fronts.hop), 1), self.problem.cluster.devices_per_server + 1,
        )  # fmt: skip
        columns = labels.layer, labels.device, labels.front, labels.link, labels.last
        return np.ravel_multi_index(columns, shape)

    def _complete(self, k: int, labels: SuffixLabels) -> None:
        tables, m = self.tables, self.setting.micro_batches
        costs = tables.costs(FIRST, k, self.upper / m)
        for config, front in enumerate(self.fronts.number.tolist()):
            if self._first_tp not in (None, int(tables.configs.tp[config])):
                continue
            group = int(tables.configs.group[config])
            rows = np.flatnonzero((labels.front == front) & (labels.device == group))
            speeds = stage_speeds(self.problem.cluster, labels.device[rows] - group, group)
            rows = rows[speeds == tables.configs.speed[config]]
            end = labels.layer[rows]
            number = tables.classes[0, end]
            usable = np.isfinite(costs.seconds[config, number])
            usable &= self._allowed(config, np.zeros_like(end), end)
            rows, end, number = rows[usable], end[usable], number[usable]
            if not len(rows):
                continue
            waits = self._waits(k, labels, rows, end, self._around(), is_first=True)
            core = prepend_core(labels.core[rows], costs.seconds[config, number] + waits, m)
            tail = prepend_tail(
                labels.tail[rows], costs.hiding[config, number], costs.exposed[config, number]
            )
            update = np.maximum(labels.update[rows], costs.update[config, number])
            tied = tables.tied_seconds(config, labels.last[rows])
            length = compose(self.problem.machine, core, tail, tied, update)
            self.evaluations += len(rows)
            best = int(length.argmin())
            if length[best] < self.upper * (1 - SLACK):
                self.upper = float(length[best])
                chosen = self._chosen(k, config, int(rows[best]))
                self.stages = tuple(
                    stage_of(tables, number, k, stage.config, stage.layers)
                    for number, stage in enumerate(chosen)
                )


def place_of(number: int, count: int) -> int:
    """Return the place of a stage by its number among several."""
    return FIRST if number == 0 else LAST if number == count - 1 else INNER


def stage_of(
    tables: StageTables, number: int, count: int, config: int, layers: tuple[int, int]
) -> HybridStage:
    """Return a stage of the tables, of a plan of ``count`` ones, as plans have it.

    As few layers are recomputed as memory asks.
    """
    place, run = place_of(number, count), int(tables.classes[layers])
    full, selective = tables.recomputed(place, count - number, config, run)
    group, tp, _, zero, _ = (column[config].item() for column in tables.configs)
    counts = {"full": full, "selective": selective}
    return HybridStage((layers,), group, tp=tp, zero=zero, recompute=counts)
