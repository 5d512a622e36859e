"""The cost model of partitions: step time, returns, and memory on each device, each once.

One mesh axis over all N devices. An instruction has at most one partitioned factor. It then takes
the share of its time that the fullest device holds, plus an all-reduce of its result if that
factor is contracted, reduced or indexed. So the step time is linear in the decisions of the C
dimension classes, and so are both returns.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from parenvs.cluster import EFFICIENCY, Cluster, Device
from parenvs.compiled import Array
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.tasks.partition.classes import DimensionClasses, free_tensors, nested, owner_of

PARTITION_REWARD, REPLICATION_REWARD = 0.4, 0.1
"""What a dimension pays in the paper if it is partitioned, and if not (arXiv 2007.04069, 3.3)."""
STRUCTURE = ("parameter", "return", "while", "conditional")
"""Opcodes that take no time of their own; what is inside a loop or branch does."""


def instruction_seconds(graph: Graph, device: Device, efficiency: float = EFFICIENCY) -> Array:
    """(I,) seconds of each instruction in one run of the module, on one device.

    The larger of FLOPs / (efficiency * peak) and bytes / memory bandwidth, times the number of
    runs; the peak is that of the type of elements. Free instructions take no time: a compiler folds
    them into what uses them. The HLO is unfused, so that elementwise instructions pay for reading
    and writing all of their operands and results.
    """
    # Roofline: the slower of computing and moving data.
    compute = graph.flops / (efficiency * graph.peak_flops(device))
    seconds = np.maximum(compute, graph.bytes_accessed / device.memory_bw)
    seconds[graph.free | np.isin(graph.opcode, _codes(graph, STRUCTURE))] = 0.0
    return seconds * runs(graph, seconds)


def runs(graph: Graph, seconds: Array) -> Array:
    """(I,) how often each instruction runs: loops by their trip counts, one branch of several.

    Of a conditional's branches the one that takes longest counts, by the instructions' own
    ``seconds`` (I,) and those of the loops and branches in it.
    """
    seconds_with_inside = np.array(seconds, float)  # of one run
    runs_in_parent = np.ones(len(seconds_with_inside))
    outers = np.unique(graph.parent[graph.parent >= 0])
    for outer in outers[::-1].tolist():  # instructions inside have higher numbers
        inside = np.flatnonzero(graph.parent == outer)
        if graph.opcodes[graph.opcode[outer]] == "while":
            trips = json.loads(graph.strings[graph.attribute[outer]])["trip_count"]
            runs_in_parent[inside] = trips
        else:
            returns = np.isin(graph.opcode[inside], _codes(graph, ("return",)))
            branch: Array = np.cumsum(returns) - returns  # a branch ends with its return
            longest = np.bincount(branch, seconds_with_inside[inside]).argmax()
            runs_in_parent[inside] = branch == longest
        seconds_with_inside[outer] = (seconds_with_inside * runs_in_parent)[inside].sum()
    times = runs_in_parent.copy()
    for outer in outers.tolist():
        times[graph.parent == outer] *= times[outer]
    return times


def device_share(classes: DimensionClasses, devices: int) -> Array:
    """(C,) largest share of a dimension that one device holds if its class is partitioned.

    1/N, or more where padding leaves devices idle: 12 heads over 8 devices make 2/12. The worst
    dimension of the class decides.
    """
    splittable = classes.graph.dims > 1
    size = classes.graph.dims[splittable]
    largest = np.full(len(classes), 1 / devices)
    # The fullest device holds ceil(d / N) of d elements.
    np.maximum.at(largest, classes.label[splittable], np.ceil(size / devices) / size)
    return largest


def saved_seconds(classes: DimensionClasses, seconds: Array, share: Array) -> Array:
    """(C,) seconds of computation per step that partitioning a class saves.

    ``seconds`` (I,) is ``instruction_seconds``, ``share`` (C,) ``device_share``.
    """
    instruction = classes.factors.instruction
    # An instruction has at most one factor in a legal plan, so what classes save adds up.
    unsplit = np.bincount(classes.factor_class, seconds[instruction], len(classes))
    return unsplit * (1 - share)


def all_reduce_seconds(
    classes: DimensionClasses, seconds: Array, cluster: Cluster, times: Array
) -> Array:
    """(C,) seconds of all-reduces per step that partitioning a class costs.

    Each factor that leaves a partial result costs one ring over all devices, ``times`` (I,) per
    step, loops aside. ``seconds`` (I,) of the instructions decide which branch is taken.
    """
    graph, factors = classes.graph, classes.factors
    instruction = factors.instruction[factors.partial]
    often = (runs(graph, seconds) * times)[instruction]
    size_bytes = graph.tensor_bytes_of(instruction) * often
    # Inside a loop each trip sums its own result: times of the loop and of the step multiply.
    ring_seconds = cluster.sync_seconds(size_bytes, np.array(0), np.array(cluster.devices))
    return np.bincount(classes.factor_class[factors.partial], ring_seconds, len(classes))


def all_reduces(classes: DimensionClasses, chosen: Array, times: Array) -> int:
    """Number of all-reduces of a step, loops aside, if the classes ``chosen`` are split.

    ``times`` (I,) says how often a step sums each instruction's result. An argmax reduces two
    arrays at once, values and indices: each is all-reduced.
    """
    instructions = partial_instructions(classes, chosen)
    results = np.diff(classes.graph.result_offset)[instructions]
    return int((results * times[instructions]).sum())


def partial_instructions(classes: DimensionClasses, chosen: Array) -> Array:
    """(k,) instructions that leave partial results if the classes ``chosen`` are split."""
    partial = chosen[classes.factor_class] & classes.factors.partial
    return np.unique(classes.factors.instruction[partial])


class LinearReturn(NamedTuple):
    """Return of complete episodes, linear in the classes that they partition."""

    base: float  # return of the episode that partitions nothing
    weights: Array  # (C,) what partitioning each class adds

    def value(self, chosen: Array) -> Array:
        """(...) returns of the episodes that partition the classes ``chosen``, (..., C) bool."""
        return self.base + chosen @ self.weights


def paper_reward(choice: int, dimensions: int = 1) -> float:
    """The paper's reward for partitioning (1) or replicating (0) a number of dimensions."""
    return (PARTITION_REWARD if choice else REPLICATION_REWARD) * dimensions


def paper_return(dimensions: int, counts: Array) -> LinearReturn:
    """The paper's return: 0.1 a dimension, 0.3 more if it is partitioned.

    Args:
        dimensions: number of dimensions that are decided, size 1 included.
        counts: (C,) those of them that belong to each class, size 1 excluded.
    """
    # A replicated dimension pays 0.1 already, so partitioning it adds 0.4 - 0.1.
    weights = (PARTITION_REWARD - REPLICATION_REWARD) * counts
    return LinearReturn(paper_reward(0, dimensions), weights)


def _codes(graph: Graph, opcodes: tuple[str, ...]) -> list[int]:
    return [graph.opcodes.index(name) for name in opcodes if name in graph.opcodes]


_VIEWS = (
    "add-dependency", "bitcast", "broadcast", "opt-barrier", "optimization-barrier", "reshape",
    "while",
)  # fmt: skip
"""Opcodes whose results need no memory of their own: the same bytes, or fused into their users."""
_HALVINGS = 12
"""Sizes of segments that are tried: the whole forward pass, a half of it, and so on."""


@dataclass(frozen=True)
class Memory:
    """Bytes on each device when most is in use.

    Attributes:
        parameters: variables and frozen weights.
        optimizer: optimizer state, and statistics.
        gradients: results of the backward pass that the update reads.
        at: that moment; without recomputation the index of the instruction that runs.
    """

    parameters: float
    optimizer: float
    inputs: float
    gradients: float
    activations: float
    at: int

    @property
    def peak(self) -> float:
        """Bytes in all."""
        return self.parameters + self.optimizer + self.inputs + self.gradients + self.activations


class LinearBytes(NamedTuple):
    """Bytes on each device at one moment, linear in the classes that are split."""

    replicated_bytes: float  # if nothing is split
    saved_bytes: Array  # (C,) what splitting each class saves


class Lifetimes(NamedTuple):
    """When tensors are in memory: a row is a tensor, from its first moment to its last, (s,)."""

    tensor: Array
    first: Array
    last: Array


class Footprint:
    """When each tensor of a graph is alive, and what splitting dimensions saves.

    Instructions run in order. Entry parameters are there throughout and the new values of variables
    and optimizer state are written over the old ones; any other tensor is alive from the
    instruction that writes it to the last one that reads it. Free tensors need no memory. With
    several micro-batches the sums of the gradients are there throughout.

    With recomputation the forward pass is divided into segments, at positions that few bytes cross.
    What crosses a border is kept. All else is recomputed, just before the backward pass first reads
    something of the segment; the last segment is kept. The number of segments minimizes the sum of
    kept bytes and the largest segment (Chen et al., arXiv 1604.06174).

    Attributes:
        order: (m,) the instruction that runs at each moment; without recomputation, all in order.
        reruns: (I,) bool, instructions that run a second time.
        lifetimes: tensors that are no entry parameters, and when they are in memory.

    Raises:
        ParenvsError: there is no backward pass, or a loop in the forward pass, to recompute.
    """

    def __init__(
        self,
        graph: Graph,
        label: Array,
        share: Array,
        micro_batches: int = 1,
        recompute: bool = False,
    ) -> None:
        self.graph, self.label, self.share = graph, label, share
        count, steps = len(graph.element_type), len(graph.opcode)
        self._owner = owner_of(graph)
        self._operands = nested(graph.operands, graph.operand_offset)
        self._results = nested(graph.results, graph.result_offset)
        made_by = np.repeat(np.arange(steps), np.diff(graph.result_offset))
        self._read_by = np.repeat(np.arange(steps), np.diff(graph.operand_offset))
        self.first = np.full(count, -1)
        self.first[graph.results] = made_by
        self.last = np.full(count, -1)
        np.maximum.at(self.last, graph.operands, self._read_by)
        self.last[graph.outputs] = steps - 1
        self._extend_through_loops()
        self.bytes = np.where(free_tensors(graph), 0.0, graph.tensor_bytes)
        views = self._views()
        for view, viewed in reversed(list(views.items())):  # a view of a view ends first
            self.last[viewed] = max(self.last[viewed], self.last[view])
            self.bytes[view] = 0.0
        self.bytes[self._donated(views)] = 0.0
        inner = np.isin(graph.opcode, _codes(graph, ("parameter",))) & (graph.parent >= 0)
        self.bytes[graph.results[inner[made_by]]] = 0.0  # the carried state, which is outside
        self.parameters = graph.parameter_tensor
        self.last[self.parameters] = -1  # never transient
        self.transient = (self.last >= 0) & (self.bytes > 0)
        backward = graph.phase[np.maximum(self.first, 0)] == Phase.BACKWARD
        update = graph.phase[np.maximum(self.last, 0)] == Phase.UPDATE
        self.gradient = self.transient & backward & update
        # A tensor is in memory from its first moment to its last, both included.
        tensor = np.flatnonzero(self.transient)
        self.order, self.reruns = np.arange(steps), np.zeros(steps, bool)
        self.lifetimes = Lifetimes(tensor, self.first[tensor], self.last[tensor])
        moment = self._recompute_segments() if recompute else self.order
        if micro_batches > 1:
            self._accumulate_gradients(moment)

    @cached_property
    def _viewed(self) -> Array:
        """(T,) the tensor that each tensor is a view of, or itself."""
        viewed = np.arange(len(self.bytes))
        # Operands come before their views, so chains of views resolve in one pass.
        for view, operand in self._views().items():
            viewed[view] = viewed[operand]
        return viewed

    def scale(self, chosen: Array) -> Array:
        """(T,) share of each tensor on a device if the classes ``chosen``, (C,) bool, are split."""
        split = np.flatnonzero((chosen & (self.share < 1))[self.label])
        scale = np.ones(len(self.bytes))
        np.multiply.at(scale, self._owner[split], self.share[self.label[split]])
        return scale

    def alive(self, chosen: Array) -> Array:
        """(m,) bytes of gradients and activations at each moment."""
        return self._alive(self.bytes * self.scale(chosen))

    def _alive(self, size: Array) -> Array:
        """(m,) bytes of the tensors that are no parameters; they have ``size`` (T,) bytes each."""
        # Sums of births and deaths; a mask (moments, tensors) would be too large.
        tensor, first, last = self.lifetimes
        step = np.zeros(len(self.order) + 1)
        np.add.at(step, first, size[tensor])
        np.subtract.at(step, last + 1, size[tensor])
        return np.cumsum(step)[:-1]

    def memory(self, chosen: Array) -> Memory:
        """What a device holds when most is in use."""
        size = self.bytes * self.scale(chosen)
        # Parameters are there throughout, so what comes and goes decides the fullest moment.
        at = int(self._alive(size).argmax())
        transient = size * self._copies_at(at)
        permanent, role = size[self.parameters], self.graph.parameter_role

        def of_roles(*roles: Role) -> float:
            return float(permanent[np.isin(role, roles)].sum())

        return Memory(
            parameters=of_roles(Role.VARIABLE, Role.FROZEN),
            optimizer=of_roles(Role.OPTIMIZER, Role.STATISTICS),
            inputs=of_roles(Role.BATCH, Role.SCALAR),
            gradients=float(transient[self.gradient].sum()),
            activations=float(transient[~self.gradient].sum()),
            at=at,
        )

    def lower_bound(self, splits: Array) -> float:
        """Lower bound of bytes per device: each tensor split as far as one class can; (C,) bool."""
        share = np.ones(len(self.bytes))
        dims = np.flatnonzero(splits[self.label] & (self.graph.dims > 1))
        np.minimum.at(share, self._owner[dims], self.share[self.label[dims]])
        size = self.bytes * share
        return float(size[self.parameters].sum() + self._alive(size).max(initial=0.0))

    def saved_at(self, at: int) -> LinearBytes:
        """Bytes at the moment ``at``, as a linear function of the split classes.

        Legal plans split at most one dimension of a tensor, so the savings add up.
        """
        copies = self._copies_at(at)
        copies[self.parameters] = 1
        size = self.bytes * copies
        dims = np.flatnonzero((size > 0)[self._owner] & (self.graph.dims > 1))
        label = self.label[dims]
        saved = size[self._owner[dims]] * (1 - self.share[label])
        return LinearBytes(float(size.sum()), np.bincount(label, saved, len(self.share)))

    def _extend_through_loops(self) -> None:
        """Keep operands of loops and branches alive until the last instruction inside."""
        graph = self.graph
        end = np.arange(len(graph.opcode))
        for index in np.flatnonzero(graph.parent >= 0)[::-1].tolist():
            outer = graph.parent[index]
            end[outer] = max(end[outer], end[index])
        for outer in np.unique(graph.parent[graph.parent >= 0]).tolist():
            operands = self._operands[outer]
            self.last[operands] = np.maximum(self.last[operands], end[outer])

    def _copies_at(self, at: int) -> Array:
        """(T,) how many copies of each tensor that is no parameter are in memory at a moment."""
        tensor, first, last = self.lifetimes
        return np.bincount(tensor[(first <= at) & (at <= last)], minlength=len(self.bytes))

    def _reading_range(self, readers: Array) -> tuple[Array, Array]:
        """(T,) first and last of the ``readers``, (I,) bool, of each tensor; I and -1 if none."""
        counts = readers[self._read_by]
        tensor, reader = self._viewed[self.graph.operands[counts]], self._read_by[counts]
        first, last = np.full(len(self.bytes), len(readers)), np.full(len(self.bytes), -1)
        np.minimum.at(first, tensor, reader)
        np.maximum.at(last, tensor, reader)
        return first, last

    def _accumulate_gradients(self, moment: Array) -> None:
        """Keep sums of gradients throughout, and gradients until the backward pass ends."""
        tensor, first, last = self.lifetimes
        _, last_use = self._reading_range(self.graph.phase != Phase.UPDATE)
        is_gradient = self.gradient[tensor]
        gradient = tensor[is_gradient]
        written = self.first[gradient]
        until = moment[np.maximum(last_use[gradient], written)]
        # Sums of gradients exist from the first moment on, as they start at 0.
        starts = np.where(is_gradient, 0, first)
        gradients = gradient, moment[written], until
        self.lifetimes = Lifetimes(*np.concatenate([(tensor, starts, last), gradients], axis=1))

    def _first_backward(self) -> int:
        graph = self.graph
        backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & ~graph.free)
        if not backward.size:
            raise ParenvsError(
                f"recompute: {graph.name} has no backward pass; leave recompute out, or give a "
                "training step"
            )
        end = int(backward[0])
        if (~graph.free & (graph.parent >= 0))[:end].any():
            raise ParenvsError(
                f"recompute: the forward pass of {graph.name} runs in a loop, whose body says what "
                "is kept; leave recompute out, or give the graph without loops"
            )
        return end

    def _recompute_segments(self) -> Array:
        """Split the forward pass into segments; return (I,) when each instruction runs."""
        graph, steps, end = self.graph, len(self.graph.opcode), self._first_backward()
        is_forward = np.arange(steps) < end
        results = self.transient & (self.first < end)
        _, last_forward = self._reading_range(is_forward)
        last_forward = np.maximum(last_forward, self.first)
        needed, _ = self._reading_range(~is_forward)
        _, updated = self._reading_range(graph.phase == Phase.UPDATE)
        saved = results & (needed < steps) & (updated < 0) & (self.last < steps - 1)
        borders = self._segment_borders(results, last_forward, saved, end)
        segment = np.searchsorted(borders, np.arange(steps))
        segment_of = segment[np.maximum(self.first, 0)]
        crosses = _crossing_tensors(results, self.first, last_forward, borders)
        remade = saved & ~crosses & (segment_of < len(borders))
        segment_needed = np.full(len(borders), steps)
        np.minimum.at(segment_needed, segment_of[remade], needed[remade])
        runs_again = self._recomputed(remade, crosses, end)
        moment, second, delay = np.arange(steps), np.full(steps, -1), 0
        # Segments run again in the order in which the backward pass needs them.
        order = np.lexsort((-np.arange(len(borders)), segment_needed))
        for index in order[segment_needed[order] < steps].tolist():
            inside = np.flatnonzero(runs_again & (segment == index))
            second[inside] = segment_needed[index] + delay + np.arange(len(inside))
            # All that comes later is delayed by what runs again.
            moment[segment_needed[index] :] += len(inside)
            delay += len(inside)
        self.reruns = second >= 0
        self.order = np.zeros(steps + delay, np.int64)
        self.order[moment] = np.arange(steps)
        self.order[second[self.reruns]] = np.flatnonzero(self.reruns)
        reread = np.full(len(self.bytes), -1)
        np.maximum.at(reread, self._viewed[graph.operands], second[self._read_by])
        tensor = self.lifetimes.tensor
        first, last, last_use = self.first[tensor], self.last[tensor], last_forward[tensor]
        dropped = results[tensor] & self.reruns[first] & ~crosses[tensor]
        dropped &= remade[tensor] | (last <= last_use)  # other results are kept for the update
        # What crosses a border is there until the segments that read it have run again.
        ends = np.where(dropped, moment[last_use], np.maximum(moment[last], reread[tensor]))
        again_ends = np.where(remade[tensor], moment[last], reread[tensor])
        stays = tensor, moment[first], ends
        again = np.stack([tensor, second[first], np.maximum(again_ends, second[first])])
        self.lifetimes = Lifetimes(*np.concatenate([stays, again[:, dropped]], axis=1))
        return moment

    def _recomputed(self, remade: Array, kept: Array, end: int) -> Array:
        """(I,) bool, forward instructions (before ``end``) that recompute what is needed.

        ``remade`` (T,) bool: tensors that the backward pass reads and that are not ``kept``, (T,).
        """
        graph = self.graph
        needed = np.zeros(len(self.bytes), bool)
        needed[graph.operands[self._read_by >= end]] = True
        needed &= remade[self._viewed]
        available = kept[self._viewed] | free_tensors(graph)
        recomputed = np.zeros(len(graph.opcode), bool)
        # Backwards: all readers of a result are seen before its writer.
        for index in range(end - 1, -1, -1):
            if needed[self._results[index]].any():
                recomputed[index] = True
                operands = np.array(self._operands[index], np.int64)
                needed[operands[~available[operands]]] = True
        return recomputed & ~np.isin(graph.opcode, _codes(graph, ("parameter",)))

    def _segment_borders(
        self, results: Array, last_forward: Array, saved: Array, end: int
    ) -> Array:
        """(b,) forward instructions (before ``end``) that end a segment, ascending.

        ``results`` (T,) bool: those of the forward pass; ``last_forward`` (T,): last forward
        instruction that writes or reads each; ``saved`` (T,) bool: what the backward pass reads.
        """
        change, kept = np.zeros(end + 1), np.zeros(end)
        np.add.at(change, self.first[results], self.bytes[results])
        np.subtract.at(change, last_forward[results], self.bytes[results])
        np.add.at(kept, self.first[saved], self.bytes[saved])
        crossing, total = np.cumsum(change)[:end], np.cumsum(kept)
        if not kept.any():
            return np.zeros(0, np.int64)
        # Borders at local minima of crossing bytes keep least per segment (arXiv 1604.06174).
        minima = _local_minima(crossing)
        best, lowest = np.zeros(0, np.int64), np.inf
        for halvings in range(_HALVINGS):
            borders = _divide(minima, crossing, total, float(total[-1]) / 2**halvings)
            crosses = _crossing_tensors(results, self.first, last_forward, borders)
            segment = np.searchsorted(borders, self.first)
            inside = np.bincount(segment[saved & ~crosses], self.bytes[saved & ~crosses])
            peak = float(self.bytes[crosses].sum() + inside.max(initial=0.0))
            # Strict: of equal peaks the fewest segments, which recompute least.
            if peak < lowest:
                best, lowest = borders, peak
        return best

    def _views(self) -> dict[int, int]:
        graph = self.graph
        views: dict[int, int] = {}
        codes = _codes(graph, _VIEWS)
        for index in np.flatnonzero(np.isin(graph.opcode, codes) & ~graph.free).tolist():
            views.update(zip(self._results[index], self._operands[index], strict=False))
        return views

    def _donated(self, views: dict[int, int]) -> list[int]:
        """Tensors that are written over parameters, as XLA does with donated buffers."""
        graph = self.graph

        def kind(tensor: int) -> tuple[int, tuple[int, ...]]:
            return int(graph.element_type[tensor]), graph.shape(tensor)

        roles = (Role.VARIABLE, Role.OPTIMIZER, Role.STATISTICS)
        updated = graph.parameter_tensor[np.isin(graph.parameter_role, roles)]
        free = Counter(map(kind, updated.tolist()))
        donated = []
        # An output takes the memory of an argument of its type and shape.
        for tensor in graph.outputs.tolist():
            if free[kind(tensor)] > 0:
                free[kind(tensor)] -= 1
                while tensor in views:
                    tensor = views[tensor]
                donated.append(tensor)
        return sorted(set(donated) - set(graph.parameter_tensor.tolist()))


def _local_minima(crossing: Array) -> Array:
    """Positions that fewer bytes cross than their neighbors; of a plateau the last one."""
    ends = np.flatnonzero(np.append(crossing[1:] != crossing[:-1], True))
    level = crossing[ends]
    rises = np.append(level[1:] > level[:-1], False)
    falls = np.append(False, level[1:] < level[:-1])
    return ends[rises & falls]


def _divide(minima: Array, crossing: Array, total: Array, size: float) -> Array:
    """Borders among the local ``minima`` of crossing bytes, about ``size`` saved bytes apart.

    Each is the lowest minimum between half of that and all of it after the border before, or the
    next minimum. ``total`` counts the bytes that are saved up to each position.
    """
    borders: list[int] = []
    passed, reached = 0.0, total[minima]
    while float(total[-1]) - passed > size:
        begin, stop = np.searchsorted(reached, [passed + size / 2, passed + size], side="right")
        stop = max(int(stop), int(begin) + 1)
        window = minima[int(begin) : stop]
        if not window.size:
            break
        border = int(window[::-1][crossing[window][::-1].argmin()])
        borders.append(border)
        passed = float(total[border])
    return np.array(borders, np.int64)


def _crossing_tensors(results: Array, first: Array, last: Array, borders: Array) -> Array:
    """(T,) bool, ``results`` that are written before a border (``first``) and read after it."""
    if not len(borders):
        return np.zeros(len(results), bool)
    following = np.append(borders, np.iinfo(np.int64).max)[np.searchsorted(borders, first)]
    return results & (last > following)
