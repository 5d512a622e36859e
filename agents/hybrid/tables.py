"""What every stage that a hybrid plan may have costs: the tables of the label search.

A stage is a run of layers on a group of devices, split in one way. Its costs are looked up by its
*configuration* (devices, tp, ZeRO, speed) and the *class* of its run: runs with the same kinds of
layers in the same order cost the same. The figures are those of ``parenvs.tasks.hybrid.formulas``,
asked for stages in the first, an inner and the last place of a pipeline.

A stage recomputes its first ``full`` layers in full and the next ``selective`` ones selectively, by
the counts that take it the fewest seconds and fit the memory.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Stages
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import Constraints, Software

FIRST, INNER, LAST = 0, 1, 2
"""Places of a stage in a pipeline; the only stage of a plan has place FIRST of other tables."""
_EXACT = 1.0 - 1e-13  # of bytes: sums of the same terms in another order fit, too


@dataclass(frozen=True)
class Setting:
    """What all stages of a plan share; ``samples`` of a micro-batch are over all replicas.

    Fields are those of ``HybridPlan``; ``devices`` are all that the plan uses, and ``software`` is
    how it sends and sums gradients.
    """

    micro_batches: int
    samples: int
    devices: int
    sequence_parallel: bool
    context: int
    expert: int
    software: Software
    shard: int = 0


class Configurations(NamedTuple):
    """Ways to split a stage, (C,) each; ``speed`` is that of the slowest server."""

    group: Array
    tp: Array
    dp: Array
    zero: Array
    speed: Array


class StageCosts(NamedTuple):
    """Costs of stages with as few seconds recomputed as memory asks, (C, Q) each.

    Attributes:
        seconds: of a micro-batch, both passes, sends left out; infinite where a stage does not fit.
        hiding: backward pass of a micro-batch.
        exposed: what the stage's last backward pass leaves of its gradients' collectives.
        update: optimizer.
        least: what any plan leaves of these collectives at least, however much it recomputes.
    """

    seconds: Array
    hiding: Array
    exposed: Array
    update: Array
    least: Array


def groups(problem: Hybrid, most: int) -> list[int]:
    """Return the devices that a stage may have: divisors of a server's, and whole servers."""
    inside = problem.cluster.devices_per_server
    within = [x for x in range(1, inside) if inside % x == 0]
    whole = [inside * servers for servers in range(1, problem.cluster.servers + 1)]
    return [x for x in within + whole if x <= most]


def configurations(
    problem: Hybrid, setting: Setting, limits: Constraints, single: bool
) -> Configurations:
    """Return the ways to split a stage of a setting that keep to the constraints.

    A ``single`` stage is the only one of its plan, and has all devices. Where ranks share what lies
    between the matrices, other stages of the plan may have tp 1, unless every stage has to share.
    """
    rows = []
    alone = setting.sequence_parallel and not single and limits.sequence_parallel is None
    counts = [setting.devices] if single else groups(problem, setting.devices - 1)
    counts = [count for count in counts if limits.stage_devices in (None, count)]
    speeds = sorted(set(problem.cluster.speeds)) or [1.0]
    for group in counts:
        for tp in limits.tensor_ranks(problem):
            dp, rest = divmod(group, tp * setting.context)
            if rest or not dp or setting.samples % dp or dp % setting.expert:
                continue
            micro_batch = setting.samples // dp
            asked = limits.micro_batch in (None, micro_batch) and limits.dp in (None, dp)
            may_share = True in limits.sequences(problem, tp, setting.context)
            if micro_batch > limits.most_micro_batch or not asked:
                continue
            if setting.sequence_parallel and not may_share and not (alone and tp == 1):
                continue
            for zero in limits.levels(1 if single else 2, dp * setting.context):
                if setting.shard and (not zero or dp * setting.context % setting.shard):
                    continue
                rows += [(group, tp, dp, zero, speed) for speed in speeds]
    if alone and not any(tp > 1 for _, tp, *_ in rows):
        rows = []  # the plans without sequence parallelism
    columns = np.array(rows, float).reshape(-1, 5).T
    group, tp, dp, zero = columns[:4].astype(np.int64)
    return Configurations(group, tp, dp, zero, columns[4])


class StageTables:
    """Costs of all stages of one setting.

    Attributes:
        configs: (C,) the configurations.
        classes: (n+1, n+1) int64, class of the layers [i, j).
        size: (Q,) layers of each class.
        runs: (Q, 2) the first run of each class, half-open.
        tied: (C,) seconds in which first and last stage sum the gradients of shared weights.
    """

    def __init__(
        self,
        problem: Hybrid,
        setting: Setting,
        limits: Constraints,
        single: bool = False,
        kinds: bool = False,
    ) -> None:
        """Ask the formulas for every configuration and class.

        With ``kinds``, only kinds of layers are asked for, and of runs the empty one.
        """
        self.problem, self.setting, self.single = problem, setting, single
        self.modes = limits.recompute
        self.configs = configurations(problem, setting, limits, single)
        model = problem.model
        self._chain = np.array(model.kind_of, np.int64)
        self.classes, self.runs = _classes(model.kind_of)
        self._memo: dict[tuple[int, int, float], StageCosts] = {}
        self._most: dict[int, Array] = {}
        if len(self.configs.tp):
            self._ask_kinds()
            runs = np.diff(model.kinds_before[self.runs], axis=1)[:, 0]  # (Q, K)
            if single or kinds:  # one run, of class 0
                number = int(self.classes[0, -1]) if single else 0
                self.classes, runs = np.where(self.classes == number, 0, 1), runs[[number]]
                self.runs = self.runs[[number]]
            self.size = runs.sum(axis=1).astype(np.int64)
            self._ask(runs.T)
            stay = ~self._beaten()
            self.configs = Configurations(*(column[stay] for column in self.configs))
            for name in ("_busy", "_hiding", "_update", "_reduction", "_states", "_plain",
                         "_working", "_working_full", "_saved", "_again"):  # fmt: skip
                setattr(self, name, getattr(self, name)[:, stay])
            for name in ("kind_seconds", "kind_hiding", "kind_update", "tied"):
                setattr(self, name, getattr(self, name)[stay])

    def of(self, classes: Array) -> StageTables:
        """Return the costs of some classes, (Q',), which are numbered anew; configurations stay."""
        part = copy(self)
        part._memo = {}
        part.size, part.runs = self.size[classes], self.runs[classes]
        for name in ("_busy", "_hiding", "_update", "_reduction", "_states", "_plain"):
            setattr(part, name, getattr(self, name)[..., classes])
        return part

    def _ask_kinds(self) -> None:
        kinds = len(self.problem.model.kinds)
        one, zero = np.eye(kinds), np.zeros((kinds, kinds))
        step, held = self._judged(
            *(np.concatenate(x, axis=1) for x in ([one] * 3, [zero, one, zero], [zero, zero, one]))
        )
        # One call judges every kind three times: plain, in full, and selectively recomputed.
        none, full, selective = (slice(i * kinds, (i + 1) * kinds) for i in range(3))
        busy = step.busy - step.gathers
        # Embedding and head are not in an inner stage; a single stage has one place.
        row = min(INNER, len(busy) - 1)
        self.kind_seconds, self.kind_hiding = busy[row, :, none], step.hiding[row, :, none]
        self.kind_update = step.update[row, :, none]
        saved, again = held.activations[row], step.recomputed[row]
        # What recomputation saves and costs adds up over layers, so prefix sums answer any run:
        # (2, C, n+1), in full and selectively.
        modes = (full, selective)
        self._saved = np.stack([self._before(saved[:, none] - saved[:, x]) for x in modes])
        self._again = np.stack([self._before(again[:, x]) for x in modes])
        self._working_full = held.working[:, :, full][:, :, self._chain]

    def _before(self, by_kind: Array) -> Array:
        """(C, n+1) sums before each boundary of (C, K) figures of layers."""
        sums = by_kind[:, self._chain].cumsum(axis=1)
        return np.concatenate([np.zeros((len(sums), 1)), sums], axis=1)

    def _ask(self, runs: Array) -> None:
        step, held = self._judged(runs, 0 * runs, 0 * runs)
        self.tied = step.tied[:, 0]
        self._busy, self._hiding = step.busy - step.gathers, step.hiding
        self._update, self._reduction = step.update, step.reduction
        self._states = held.total - held.activations - held.working
        self._plain = held.activations  # of one micro-batch, nothing recomputed
        self._working = held.working[:, :, 0]

    def _beaten(self) -> Array:
        """(C,) bool, the configurations without ZeRO that are no better than with ZeRO 1."""
        configs = self.configs
        beaten = np.zeros(len(configs.tp), bool)
        if self.single:
            return beaten
        # ZeRO 1 changes states and their collectives, not the passes.
        split = np.stack([configs.group, configs.tp, configs.speed])
        for k in np.flatnonzero(configs.zero == 0):
            for other in np.flatnonzero((configs.zero == 1) & (split == split[:, [k]]).all(axis=0)):
                pairs = (self._states, self._reduction, self._update)
                beaten[k] |= all((x[:, other] <= x[:, k]).all() for x in pairs)
        return beaten

    def _judged(
        self, layers: Array, full: Array, selective: Array
    ) -> tuple[formulas.Step, formulas.Memory]:
        """Judge stages of (K, Q) layers in every place; results are (places, C, Q) or (C, Q)."""
        problem, setting, configs = self.problem, self.setting, self.configs
        places, count, (kinds, number) = 1 if self.single else 3, len(configs.tp), layers.shape
        shape = (places, count * number)

        def wide(column: Array) -> Array:
            return np.broadcast_to(np.repeat(column, number), shape)

        def spread(counts: Array) -> Array:
            return np.broadcast_to(np.tile(counts, count)[:, None], (kinds, *shape))

        zeros, ones = np.zeros(shape), np.ones(shape[1])
        stages = Stages(
            layers=spread(layers), first_chunk=spread(layers), full=spread(full),
            selective=spread(selective), on=zeros, back=zeros, first=np.ones(shape),
            links=zeros[1:], tp=wide(configs.tp), dp=wide(configs.dp), zero=wide(configs.zero),
            device=np.zeros(shape, np.int64), speed=wide(configs.speed),
            # One micro-batch: what the number of them changes is put on by the search.
            samples=setting.samples * ones, micro_batches=ones, chunks=ones,
            context=setting.context, sequence_parallel=setting.sequence_parallel,
            expert=setting.expert,
            shard=setting.shard, **{**setting.software.of_arrays, "blocking": False},
        )  # fmt: skip
        step = formulas.step(problem.model, problem.cluster, problem.machine, stages)
        held = formulas.memory(problem.model, problem.machine, stages)

        def shaped(figures: Any) -> Any:
            wider = (x if np.shape(x)[-1:] == shape[1:] else x + 0 * ones for x in figures)
            return type(figures)(*(x.reshape(*x.shape[:-1], count, number) for x in wider))

        return shaped(step), shaped(held)

    def tied_seconds(self, config: int, last: Array) -> Array:
        """(l,) seconds in which a first and several last stages sum shared weights' gradients."""
        tp = self.configs.tp
        # The ranks of the stage with fewer of them sum larger shares.
        fewer = np.where(last > 0, np.minimum(last, tp[config]), tp[config])
        order = np.argsort(tp, kind="stable")
        return self.tied[order[np.searchsorted(tp[order], fewer)]]

    @cached_property
    def device_seconds(self) -> Array:
        """(n+1,) least device-seconds of a micro-batch in the layers before each boundary."""
        return self._least(self.kind_seconds * self.configs.group[:, None])

    @cached_property
    def device_update(self) -> Array:
        """(n+1,) least device-seconds of the optimizer in the layers before each boundary."""
        return self._least(self.kind_update * self.configs.group[:, None])

    @cached_property
    def least_hiding(self) -> Array:
        """(n+1,) least seconds of a backward pass through the layers before each boundary."""
        return self._least(self.kind_hiding)

    def _least(self, by_kind: Array) -> Array:
        least = by_kind.min(axis=0)[self._chain] if len(by_kind) else np.zeros(len(self._chain))
        return np.append(0.0, least.cumsum())

    @property
    def shortest(self) -> Array:
        """(Q,) least seconds of a stage of each class, sends left out, nothing recomputed."""
        return np.asarray(self._busy.min(axis=(0, 1)))

    def forget(self) -> None:
        """Forget the costs that were asked for, as they are for one incumbent."""
        self._memo.clear()

    def costs(self, place: int, left: int, longest: float = np.inf) -> StageCosts:
        """Return the costs of stages in a place; ``left`` counts itself and those behind.

        Stages that take more than ``longest`` seconds even if nothing is recomputed are left out.
        """
        flight = min(left, self.setting.micro_batches)
        key = (place, flight, longest)
        if key not in self._memo:
            again = self._counts(place, flight, self._busy[place] <= longest)[0]
            seconds = self._busy[place] + again
            hiding = self._hiding[place] + again
            reduction, overlap = self._reduction[place], self.setting.software.gradient_overlap
            exposed = formulas.exposed_seconds(reduction, self.size, hiding, overlap)
            # Overlapped, the gradients of one layer at least are summed behind the passes.
            least = reduction / np.maximum(self.size, 1) if overlap else reduction
            self._memo[key] = StageCosts(seconds, hiding, exposed, self._update[place], least)
        return self._memo[key]

    def recomputed(self, place: int, left: int, config: int, number: int) -> tuple[int, int]:
        """Return the layers that a stage recomputes in full, and selectively."""
        flight = min(left, self.setting.micro_batches)
        only = np.zeros(self._busy[place].shape, bool)
        only[config, number] = True
        _, full, selective = self._counts(place, flight, only)
        return int(full[config, number]), int(selective[config, number])

    def _counts(self, place: int, flight: int, asked: Array) -> tuple[Array, Array, Array]:
        """(C, Q) fewest seconds recomputed, and the layers in full and selectively that take them.

        Seconds are infinite where nothing fits or (C, Q) ``asked`` is false. Every number of fully
        recomputed layers is tried, with the fewest selective ones that do.
        """
        shape = asked.shape
        again = np.full(shape, np.inf)
        full, selective = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        # The judge adds bytes in another order; plans on the limit must pass there, too.
        limit = self.problem.memory_limit * _EXACT
        need = self._states[place] + flight * self._plain[place] - limit
        if "none" in self.modes:
            fits = asked & (need + self._working[place][:, None] <= 0)
            again[fits] = 0.0
            asked = asked & ~fits
        config, number = np.nonzero(asked)
        # Block by block, as every number of fully recomputed layers of each stage is a row.
        for begin in range(0, len(config), _BLOCK):
            stages = config[begin : begin + _BLOCK], number[begin : begin + _BLOCK]
            counts = self._fewest_seconds(*stages, need, place, flight)
            again[stages], full[stages], selective[stages] = counts
        return again, full, selective

    def _fewest_seconds(
        self, config: Array, number: Array, need: Array, place: int, flight: int
    ) -> tuple[Array, Array, Array]:
        """Try all numbers of fully recomputed layers of (l,) stages; see ``_counts``."""
        # A stage of n layers has n + 1 choices of ``whole``, each a row of flat arrays.
        count = self.size[number] + 1
        starts = count.cumsum() - count
        row = np.repeat(np.arange(len(config)), count)
        whole = np.arange(count.sum()) - starts[row]
        c, q = config[row], number[row]
        first = self.runs[q, 0]
        middle, end = first + whole, first + self.size[q]
        saved, seconds = self._saved, self._again
        working = np.where(
            whole > 0, self._most_working(place)[c, first, whole], self._working[place][c]
        )
        # Every micro-batch in flight keeps less.
        missing = need[c, q] + working - flight * (saved[0][c, middle] - saved[0][c, first])
        rest = end - middle
        part = np.zeros_like(whole)
        if "selective" in self.modes:
            part = _fewest(saved[1], c, middle, rest, missing / flight)
            missing = missing - flight * (saved[1][c, end] - saved[1][c, middle])
        part = np.where("none" in self.modes, part, rest)  # what is not allowed cannot stay
        fits = missing <= 0
        if "none" not in self.modes and "selective" not in self.modes:
            fits &= rest == 0
        if "full" not in self.modes:
            fits &= whole == 0
        cost = seconds[0][c, middle] - seconds[0][c, first]
        cost = cost + seconds[1][c, middle + part] - seconds[1][c, middle]
        cost = np.where(fits, cost, np.inf)
        # The first row of each stage is its cheapest; of equals that with the fewest in full.
        best = np.lexsort((whole, cost, row))[starts]
        return cost[best], whole[best], part[best]

    def _most_working(self, place: int) -> Array:
        """(C, n+1, w+1) bytes at work where j layers from i on are recomputed in full."""
        if place not in self._most:
            by_layer = self._working_full[place]
            count, n = by_layer.shape
            most = np.zeros((count, n + 1, int(self.size.max()) + 1))
            for j in range(1, most.shape[2]):
                end = n + 1 - j
                # A run of j layers is one of j - 1 and its last layer.
                most[:, :end, j] = np.maximum(most[:, :end, j - 1], by_layer[:, j - 1 :])
            self._most[place] = most
        return self._most[place]


_BLOCK = 4096  # stages whose counts are tried at once


def _fewest(sums: Array, config: Array, first: Array, most: Array, need: Array) -> Array:
    """Fewest layers from ``first`` on, at most ``most``, whose sum reaches ``need``; (l,) each.

    ``sums`` are (C, n+1) sums before each boundary, ascending; ``config`` is a row of them.
    """
    low, high = np.zeros_like(most), most.copy()
    base = sums[config, first]
    while np.any(low < high):
        middle = (low + high) // 2
        # Sums ascend, so bisection keeps the answer in [low, high].
        enough = sums[config, first + middle] - base >= need
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return low


@lru_cache(maxsize=8)
def _classes(kind_of: tuple[int, ...]) -> tuple[Array, Array]:
    """(n+1, n+1) class of the layers [i, j), and (Q, 2) the first run of each class."""
    n = len(kind_of)
    classes = np.zeros((n + 1, n + 1), np.int64)
    numbers: dict[tuple[int, int], int] = {}  # class of a run, kind behind it -> class of both
    firsts = [(0, 0)]
    for i in range(n):
        number = 0
        for j in range(i, n):
            number = numbers.setdefault((number, kind_of[j]), len(firsts))
            if number == len(firsts):
                firsts.append((i, j + 1))
            classes[i, j + 1] = number
    return classes, np.array(firsts)


_ELEMENTS = 1e9  # of a send, whose seconds per element are asked for


@dataclass(frozen=True, eq=False)
class Fronts:
    """What a suffix must know of the stage in front: its devices, and the sends between both.

    Attributes:
        group: (F,) devices of a stage in front.
        number: (C,) which of them each configuration has.
        link: (F, C, 2) number of the send from a stage in front to a configuration, across servers
            and inside one.
        seconds: (links,) of it, for each element per sample of a whole micro-batch.
        hop: (links,) of it, once.
        around: (C,) seconds once of the last stage's send to a first stage of a configuration.
    """

    group: Array
    number: Array
    link: Array
    seconds: Array
    hop: Array
    around: Array

    @classmethod
    def of(cls, problem: Hybrid, tables: StageTables) -> Fronts:
        """Ask the formulas for the sends between all configurations."""
        configs, setting = tables.configs, tables.setting
        scattered = setting.sequence_parallel or problem.stack.scatter_gather
        ranks = configs.dp * setting.context * (configs.tp if scattered else 1)
        pairs, first, number = np.unique(
            np.stack([configs.group, ranks]), axis=1, return_index=True, return_inverse=True
        )
        number = np.asarray(number).reshape(-1)
        count = len(configs.tp)
        every = np.arange(count)
        before, behind = np.repeat(first, count), np.tile(every, len(first))
        sends = [
            np.stack(send_between(problem, setting, configs, before, behind, near))
            for near in (False, True)
        ]
        both = np.stack(sends, axis=-1).reshape(2, -1)  # links across servers beside those inside
        values, link = np.unique(both, axis=1, return_inverse=True)
        near = setting.devices <= problem.cluster.devices_per_server
        around = send_between(problem, setting, configs, every, every, near)[1]
        link = np.asarray(link).reshape(len(first), count, 2)
        return cls(pairs[0], number, link, values[0], values[1], around)


def send_between(
    problem: Hybrid,
    setting: Setting,
    configs: Configurations,
    before: Array,
    behind: Array,
    near: bool,
) -> tuple[Array, Array]:
    """Return the seconds of sends between pairs of configurations: for each element, and once.

    Both are (l,), the first for each element per sample of a whole micro-batch. ``near`` stages are
    in one server.
    """
    pairs = np.stack([before, behind])
    tp, dp = configs.tp[pairs], configs.dp[pairs]
    zeros = np.zeros(pairs.shape)
    far = problem.cluster.devices  # any server that is not the first
    stages = Stages(
        layers=zeros[None], first_chunk=zeros[None], full=zeros[None], selective=zeros[None],
        on=zeros, back=zeros, first=zeros, links=zeros[1:], tp=tp, dp=dp, zero=zeros,
        device=np.array([[0], [0 if near else far]]) + 0 * pairs, speed=zeros + 1,
        samples=setting.samples, micro_batches=1, context=setting.context,
        sequence_parallel=setting.sequence_parallel, expert=setting.expert,
    )  # fmt: skip
    args = problem.cluster, problem.machine, stages
    hop = formulas.transfer_seconds(*args, zeros)[0]
    return (formulas.transfer_seconds(*args, zeros + _ELEMENTS)[0] - hop) / _ELEMENTS, hop
