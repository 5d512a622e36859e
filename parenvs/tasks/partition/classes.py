"""Dimension classes: what is partitioned together, what can never be, and what excludes what.

Every tensor has one partitioning, the same for its producer and all its consumers, and nothing is
resharded. So all dimensions that factors link, directly or through others, form a **class**:
partitioning one member partitions all. A class is **blocked** if a member is in no factor of an
instruction that touches it, or if two factors of one instruction fall in it. Two classes
**conflict** if they hold two factors of one instruction. Deciding a class "partition" forces every
class that conflicts with it to "replicate"; that is the whole closure.
"""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np

import parenvs.graph.opcodes as opcodes
from parenvs.cluster import Cluster
from parenvs.compiled import Array
from parenvs.errors import HloError, ParenvsError, refuse_unknown, shown
from parenvs.fields import Count, checked, plain, whole
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.opcodes import Factor, Instruction, Kind, bytes_of, factors_of, target_rule
from parenvs.tasks.pipeline.plan import RECOMPUTE

LINKED = ("while", "conditional", "opt-barrier", "optimization-barrier")
"""Opcodes through which values go as they are, into and out of the computations inside."""
_SOURCES = ("parameter", "constant", "iota", "partition-id", "replica-id")


@dataclass(frozen=True)
class Factors:
    """The factors and links of every instruction; dimensions are positions in ``graph.dims``.

    Attributes:
        links: (L, 2) int64 pairs of dimensions that one factor holds.
        link_at: (L,) int32, the instruction whose factor it is.
        instruction: (F,) int32: the instruction of each factor, ascending; those of the entry
            parameters follow, a factor for each dimension.
        member: (F,) int64, a dimension of each factor.
        kind: (F,) uint8, ``Kind`` of each factor.
        untouchable: (U, 2) int64: an instruction, and a dimension that is in none of its factors.
    """

    graph: Graph
    rules: str
    links: Array
    link_at: Array
    instruction: Array
    member: Array
    kind: Array
    untouchable: Array

    @classmethod
    def of(cls, graph: Graph, rules: str) -> Factors:
        """Apply the rules.

        Raises:
            HloError: an opcode without a rule; names the instruction.
        """
        reader = _Reader(graph, rules)
        links = np.array(reader.links, np.int64).reshape(-1, 3)
        factors = np.array(reader.factors, np.int64).reshape(-1, 3)
        return cls(
            graph,
            rules,
            links=links[:, :2],
            link_at=links[:, 2].astype(np.int32),
            instruction=factors[:, 0].astype(np.int32),
            member=factors[:, 1].copy(),
            kind=factors[:, 2].astype(np.uint8),
            untouchable=np.array(reader.untouchable, np.int64).reshape(-1, 2),
        )

    @cached_property
    def partial(self) -> Array:
        """(F,) bool, whether splitting a factor leaves a partial result, to be all-reduced."""
        return self.kind != Kind.KEPT


def nested(flat: Array, offset: Array) -> list[list[int]]:
    """The rows of a ragged array as lists, such as the operands of each instruction."""
    values = flat.tolist()
    return [values[start:end] for start, end in itertools.pairwise(offset.tolist())]


def owner_of(graph: Graph) -> Array:
    """(N,) the tensor of each of ``graph.dims``."""
    return np.repeat(np.arange(len(graph.element_type)), np.diff(graph.dim_offset))


class _Reader:
    """Goes over the instructions once and collects the links and factors of each.

    Attributes:
        links: two dimensions, and the instruction that links them.
        factors: instruction, a dimension and the kind of each factor.
        untouchable: an instruction and a dimension that it cannot split.
    """

    def __init__(self, graph: Graph, rules: str) -> None:
        self.graph, self.rules = graph, rules
        self.links: list[tuple[int, int, int]] = []
        self.factors: list[tuple[int, int, int]] = []
        self.untouchable: list[tuple[int, int]] = []
        self.shapes = [graph.shape(t) for t in range(len(graph.element_type))]
        self.offset = graph.dim_offset.tolist()
        self.cache: dict[tuple[object, ...], tuple[Factor, ...]] = {}
        self.free = free_tensors(graph).tolist()
        self.warned: set[str] = set()
        self.operands = nested(graph.operands, graph.operand_offset)
        self.results = nested(graph.results, graph.result_offset)
        free = graph.free.tolist()
        for index, code in enumerate(graph.opcode.tolist()):
            opcode = graph.opcodes[code]
            if opcode in LINKED:
                self.link_through(index, opcode)
            elif opcode not in _SOURCES and opcode != "return" and not free[index]:
                self.read_instruction(index, opcode)
        self.read_entry_parameters()

    def splittable(self, tensor: int) -> list[int]:
        """Positions of a tensor's dimensions that are not of size 1."""
        first = self.offset[tensor]
        return [first + d for d, size in enumerate(self.shapes[tensor]) if size != 1]

    def read_instruction(self, index: int, opcode: str) -> None:
        operands, results = self.operands[index], self.results[index]
        # Rules number operands from 0 up and results from -1 down.
        slots = {**dict(enumerate(operands)), **{-1 - k: t for k, t in enumerate(results)}}
        linked: set[int] = set()
        for factor in self.factors_of(index, opcode, operands, results):
            # Its dimensions are then in no factor, which blocks their classes.
            if factor.kind == Kind.REDUCED and self.keeps_whole(index, opcode, results):
                continue
            dimensions = [(slots[slot], d) for slot, d in factor.pairs]
            members = [self.offset[t] + d for t, d in dimensions if not self.free[t]]
            if members:
                first, *others = members
                self.links += [(first, other, index) for other in others]
                linked.update(members)
                self.factors.append((index, first, int(factor.kind)))
        for tensor in slots.values():
            if not self.free[tensor]:
                missed = [p for p in self.splittable(tensor) if p not in linked]
                self.untouchable += [(index, position) for position in missed]

    def keeps_whole(self, index: int, opcode: str, results: list[int]) -> bool:
        """Whether the rule set keeps the dimensions whole that an instruction reduces.

        Automap's does for every ``reduce``, except those of gradients and weights after the forward
        pass, like the norm that clips gradients: they join all variables, and no class would be
        left.
        """
        if self.rules != "automap" or opcode != "reduce":
            return False
        is_scalar = all(size == 1 for tensor in results for size in self.shapes[tensor])
        return not is_scalar or bool(self.graph.phase[index] == Phase.FORWARD)

    def read_entry_parameters(self) -> None:
        """With one mesh axis a tensor is split once, even if no instruction reads it."""
        graph = self.graph
        if "parameter" in graph.opcodes:
            code = graph.opcodes.index("parameter")
            for index in np.flatnonzero((graph.opcode == code) & (graph.parent < 0)).tolist():
                for tensor in self.results[index]:
                    self.factors += [(index, p, int(Kind.KEPT)) for p in self.splittable(tensor)]

    def factors_of(
        self, index: int, opcode: str, read: Sequence[int], written: Sequence[int]
    ) -> tuple[Factor, ...]:
        """Factors of one instruction: layers repeat, a few hundred kinds for tens of thousands."""
        operands = tuple(self.shapes[t] for t in read)
        results = tuple(self.shapes[t] for t in written)
        attribute = int(self.graph.attribute[index])
        # Shapes are part of the key: they decide what a reshape can split.
        key = (opcode, attribute, operands, results)
        if key not in self.cache:
            text = self.graph.strings[attribute]
            instruction = Instruction(opcode, json.loads(text) if text else {}, operands, results)
            target = instruction.attribute.get("target", "")
            if opcode == "custom-call" and target_rule(target) is None:
                self.warn_of_target(index, target)
            try:
                self.cache[key] = factors_of(instruction)
            except HloError as error:
                name = self.graph.strings[self.graph.op_name[index]]
                raise HloError(f"{self.graph.name}: instruction {index} {name}: {error}") from None
        return self.cache[key]

    def warn_of_target(self, index: int, target: str) -> None:
        """Warn of each unknown custom-call target once."""
        if target not in self.warned:
            self.warned.add(target)
            name = self.graph.op_names(np.array([index]))[0]
            warnings.warn(
                f"{self.graph.name}: no rule knows the custom call {target!r} ({name}); "
                "its dimensions are never partitioned",
                stacklevel=2,
            )

    def link_through(self, index: int, opcode: str) -> None:
        """Link what goes into a loop, branch or barrier with what is inside, and what comes out."""
        graph = self.graph
        operands, results = self.operands[index], self.results[index]
        groups = [results] if opcode == "conditional" else [results, operands]
        # Operands of a conditional: the first chooses, each branch takes its share.
        taken = 1
        for inner in np.flatnonzero(graph.parent == index).tolist():
            name = graph.opcodes[graph.opcode[inner]]
            values = self.results[inner]
            if name == "parameter" and opcode == "while":
                groups.append(values)
            elif name == "parameter":
                self.link_tensors(index, [operands[taken:][: len(values)], values])
                taken += len(values)
            elif name == "return" and len(self.operands[inner]) == len(results):
                groups.append(self.operands[inner])  # a loop's condition returns something else
        self.link_tensors(index, groups)

    def link_tensors(self, index: int, groups: Sequence[Sequence[int]]) -> None:
        """Link dimension d of the k-th tensor of every group."""
        for tensors in zip(*groups, strict=False):
            linked = [t for t in tensors if not self.free[t]]
            for other in linked[1:]:
                if other != linked[0]:
                    shift = self.offset[linked[0]] - self.offset[other]
                    self.links += [(p + shift, p, index) for p in self.splittable(other)]


def free_tensors(graph: Graph) -> Array:
    """(T,) bool: results of free instructions, which take part in no rule."""
    free = np.zeros(len(graph.element_type), bool)
    free[graph.results[np.repeat(graph.free, np.diff(graph.result_offset))]] = True
    return free


RULE_SETS = ("shardy", "automap")
"""Factor rules; ``automap`` also forbids to partition a reduced dimension."""
UNEVEN = ("pad", "forbid")
"""Dimensions that the number of devices does not divide are padded, or stay replicated."""


def full_scope(scope: str, reward: str) -> str:
    """Entry parameters that are decided: ``"variables"``, ``"inputs"``, or ``"all"``."""
    return "all" if (scope, reward) == ("variables", "step_time") else scope


@dataclass(frozen=True)
class DimensionClasses:
    """The dimension classes of a graph. N dimensions in all (``Graph.dims``), C classes.

    Attributes:
        factors: what the rules say of its instructions.
        label: (N,) int32, class of each dimension of each tensor; classes that hold only free
            tensors and dimensions of size 1 have no factor and never matter.
        blocked: (C,) bool.
        blocked_by: (C,) int32, an instruction that blocks the class; -1 if none does, or if only
            its size does (``uneven="forbid"``).
        conflicts: (K, 2) int32 pairs of classes, the lower first, sorted, each once.
        conflict_at: (K,) int32, the first instruction that makes each pair conflict.
        devices: devices that a dimension is split over, if ``uneven="forbid"`` asks for it.
    """

    graph: Graph
    factors: Factors
    label: Array
    blocked: Array
    blocked_by: Array
    conflicts: Array
    conflict_at: Array
    devices: int = 0

    def __repr__(self) -> str:
        """Graph and counts in a line."""
        return (
            f"DimensionClasses({self.graph.name!r}, {len(self)} classes, "
            f"{int(self.blocked.sum())} blocked, {len(self.conflicts)} conflicts)"
        )

    def __len__(self) -> int:
        """Number of classes."""
        return len(self.blocked)

    @cached_property
    def inputs(self) -> Array:
        """Indices into the parameter arrays of the batch inputs, in parameter order."""
        return np.flatnonzero(self.graph.parameter_role == Role.BATCH)

    def parameters(self, scope: str) -> Array:
        """Indices into the parameter arrays of a scope's entry parameters, variables first."""
        both = (self.graph.weights, self.inputs)
        return np.concatenate({"variables": both[:1], "inputs": both[1:], "all": both}[scope])

    @cached_property
    def tensor(self) -> dict[str, int]:
        """Tensor of each variable and batch input, by path."""
        tensors = self.graph.parameter_tensor
        return {self.graph.paths[i]: int(tensors[i]) for i in self.parameters("all").tolist()}

    def dimensions_of(self, parameters: Array) -> Array:
        """(n,) int64, positions in ``graph.dims`` of the dimensions of entry parameters."""
        graph = self.graph
        tensors = graph.parameter_tensor[parameters]
        return np.concatenate(
            [np.arange(graph.dim_offset[t], graph.dim_offset[t + 1]) for t in tensors]
            or [np.zeros(0, np.int64)]
        )

    def splittable(self, tensor: int) -> Array:
        """Positions in ``graph.dims`` of a tensor's dimensions larger than 1."""
        start, end = self.graph.dim_offset[tensor : tensor + 2].tolist()
        return np.arange(start, end)[self.graph.dims[start:end] > 1]

    def counts(self, dimensions: Array) -> Array:
        """(C,) number of the given dimensions, of those larger than 1, in each class."""
        splittable = dimensions[self.graph.dims[dimensions] > 1]
        return np.bincount(self.label[splittable], minlength=len(self))

    @cached_property
    def variable_counts(self) -> Array:
        """(C,) number of variable dimensions, larger than 1, in each class."""
        return self.counts(self.dimensions_of(self.graph.weights))

    @cached_property
    def factor_class(self) -> Array:
        """(F,) int32, class of each factor of ``factors``."""
        return self.label[self.factors.member]

    def rivals(self, chosen: int) -> Array:
        """Classes that conflict with a class: what partitioning it forces to replicate."""
        first, second = self.conflicts.T
        return np.sort(np.concatenate([second[first == chosen], first[second == chosen]]))

    def legal(self, chosen: Array) -> bool:
        """Whether the classes ``chosen``, (C,) bool, can be partitioned together."""
        first, second = self.conflicts.T
        return not (chosen & self.blocked).any() and not (chosen[first] & chosen[second]).any()

    def chosen(self, partition: Mapping[str, int]) -> Array:
        """(C,) bool, the classes of the partitioned dimensions of entry parameters, by path."""
        chosen = np.zeros(len(self), bool)
        for path, dimension in partition.items():
            chosen[self.label[self.graph.dim_offset[self.tensor[path]] + dimension]] = True
        return chosen

    def with_sizes(self, uneven: str, devices: int) -> DimensionClasses:
        """The same classes, blocked by the rules and by the sizes of the graph's dimensions.

        Args:
            uneven: ``"pad"`` or ``"forbid"``, as in ``dimension_classes``.
            devices: devices that a dimension would be split over.
        """
        # Blocks by size alone have no instruction, and are found anew for the new sizes.
        dims, blocked = self.graph.dims, self.blocked_by >= 0
        if uneven == "forbid":
            blocked[self.label[(dims > 1) & (dims % max(devices, 1) != 0)]] = True
        return replace(self, blocked=blocked, devices=devices)

    def partition(self, chosen: Array, scope: str) -> dict[str, int]:
        """Partitioned dimension of each entry parameter of a scope that has one, by path."""
        graph, indices = self.graph, self.parameters(scope)
        tensors = graph.parameter_tensor[indices]
        begin, end = graph.dim_offset[tensors], graph.dim_offset[tensors + 1]
        # A legal plan splits one dimension of a tensor; of an illegal one the first is named.
        split = np.flatnonzero(chosen[self.label] & (graph.dims > 1))
        first = np.append(split, len(graph.dims))[np.searchsorted(split, begin)]
        has_split = first < end
        pairs = zip(indices[has_split].tolist(), (first - begin)[has_split].tolist(), strict=True)
        return {graph.paths[index]: dimension for index, dimension in pairs}


def compatible(order: Iterable[int], rivals: Callable[[int], Array], count: int) -> Array:
    """Greedy independent set, (count,) bool: classes in order, unless one before excludes them."""
    chosen, is_open = np.zeros(count, bool), np.ones(count, bool)
    for index in order:
        if is_open[index]:
            chosen[index] = True
            is_open[rivals(index)] = False
    return chosen


def conflict_matrix(pairs: Array, count: int) -> Any:
    """(pairs, count) sparse, a row of two ones for each pair of classes, (pairs, 2)."""
    from scipy.sparse import coo_array

    rows = np.repeat(np.arange(len(pairs), dtype=np.int32), 2)
    entries = (np.ones(rows.size), (rows, pairs.reshape(-1).astype(np.int32)))
    return coo_array(entries, shape=(len(pairs), count)).tocsr()


def dimension_classes(
    graph: Graph, rules: str = "shardy", uneven: str = "pad", devices: int = 0
) -> DimensionClasses:
    """The dimension classes of a graph by the rules ``"shardy"`` or ``"automap"``.

    ``uneven="pad"`` splits any dimension; ``"forbid"`` blocks classes with a member that is no
    multiple of ``devices``, which it requires.

    Raises:
        ParenvsError: an unknown rule set or treatment of uneven dimensions.
        HloError: an opcode without a rule; names the instruction.
    """
    refuse_unknown("unknown rules", rules, RULE_SETS)
    refuse_unknown("unknown uneven", uneven, UNEVEN)
    return _linked(graph, rules).with_sizes(uneven, devices)


@lru_cache(maxsize=4)
def _linked(graph: Graph, rules: str) -> DimensionClasses:
    """The classes by the rules alone; the same graph object gives the same classes."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    factors = Factors.of(graph, rules)
    size = len(graph.dims)
    links = coo_array((np.ones(len(factors.links)), factors.links.T), shape=(size, size))
    # "Split together" is an equivalence: classes are the components of the links.
    count, label = connected_components(links, directed=False)
    blocked_by = np.full(count, -1, np.int32)
    # Backwards, so that the first instruction that blocks a class is the one that stays.
    for instruction, dimension in factors.untouchable[::-1].tolist():
        blocked_by[label[dimension]] = instruction
    first_conflict: dict[tuple[int, int], int] = {}  # pair of classes -> instruction
    # Factors of one instruction follow one another.
    starts = [*np.flatnonzero(np.diff(factors.instruction, prepend=-1)), len(factors.instruction)]
    factor_class = label[factors.member].tolist()
    for start, end in itertools.pairwise(starts):
        instruction, classes = int(factors.instruction[start]), sorted(factor_class[start:end])
        for i, lower in enumerate(classes):
            for upper in classes[i + 1 :]:
                # Two factors of one instruction in one class would both be split: never legal.
                if lower == upper:
                    if blocked_by[lower] < 0:
                        blocked_by[lower] = instruction
                else:
                    first_conflict.setdefault((lower, upper), instruction)
    pairs = sorted(first_conflict)
    return DimensionClasses(
        graph=graph,
        factors=factors,
        label=label.astype(np.int32),
        blocked=blocked_by >= 0,
        blocked_by=blocked_by,
        conflicts=np.array(pairs, np.int32).reshape(-1, 2),
        conflict_at=np.array([first_conflict[pair] for pair in pairs], np.int32),
    )


REMADE = RECOMPUTE[::-1]
"""What the backward pass of a partitioned step recomputes: nothing, or all but some borders."""
FEWEST = 2
"""Samples of the smallest micro-batch: a dimension of size 1 is in no factor."""
SETTINGS = ("micro_batch", "micro_batches", "recompute")
"""Settings of a step that plans must share with the problem that they are judged on."""
DEVICE = "device"
"""The limit of memory that is the cluster's own."""
_MAX_BYTES = 1e30
"""The largest limit: costs stay finite, and plan files take it."""


@dataclass(frozen=True)
class StepSettings:
    """How a training step runs.

    Attributes:
        micro_batch: b, samples of a micro-batch; None: the batch that the graph was made for.
        micro_batches: M, micro-batches of a step, whose gradients are added up.
        recompute: ``"none"``, or ``"full"``: the backward pass makes the activations again, but for
            those that cross borders between segments, see ``Footprint``.
        limit: bytes on a device beyond which a plan is illegal; None: memory decides nothing.
    """

    micro_batch: Annotated[int, whole(FEWEST)] | None = None
    micro_batches: Count = 1
    recompute: str = REMADE[0]
    limit: float | None = None

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        micro_batch: int | None = None,
        micro_batches: int = 1,
        recompute: str = REMADE[0],
        memory_limit: float | str | bool | None = None,
    ) -> StepSettings:
        """Check the settings of a step, which are those of the class.

        ``memory_limit`` is ``True`` or ``"device"`` for ``Cluster.memory_limit``; a micro-batch has
        2 samples or more.

        Raises:
            ParenvsError: a setting is none of these.
        """
        refuse_unknown("unknown recompute", recompute, REMADE)
        counts = checked(cls, {"micro_batch": micro_batch, "micro_batches": micro_batches})
        return cls(**counts, recompute=recompute, limit=limit_of(memory_limit, cluster))

    def on(self, graph: Graph) -> StepSettings:
        """The same step, with no micro-batch of its own if it is the graph's batch."""
        return replace(self, micro_batch=None) if self.micro_batch == graph.batch_size else self

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not the defaults, by the names of plans' fields."""
        changed = {x: getattr(self, x) for x in SETTINGS if getattr(self, x) != getattr(WHOLE, x)}
        return changed if self.limit is None else {**changed, "memory_limit": self.limit}

    @property
    def recomputes(self) -> bool:
        """Whether activations are made again."""
        return self.recompute != REMADE[0]

    def repetitions(self, graph: Graph, again: Array | int = 0) -> Array:
        """(I,) runs of each instruction per step, loops aside; ``again`` (I,) bool runs twice."""
        passes = self.micro_batches * (1.0 + again) * np.ones(len(graph.opcode))
        # Weights are updated once per step, however many micro-batches it has.
        return np.where(graph.phase == Phase.UPDATE, 1.0, passes)


WHOLE = StepSettings()
"""The step of the whole batch at once."""


def limit_of(memory_limit: float | str | bool | None, cluster: Cluster) -> float | None:
    """The bytes that an argument ``memory_limit`` means, or None without a limit.

    Raises:
        ParenvsError: it is no limit, see ``StepSettings.of``.
    """
    memory_limit = plain(memory_limit)
    # A bool is an int in Python, so these come before numbers.
    if memory_limit is None or memory_limit is False:
        return None
    if memory_limit is True or (isinstance(memory_limit, str) and memory_limit == DEVICE):
        return cluster.memory_limit
    number = memory_limit if isinstance(memory_limit, int | float) else 0
    if 0 < number <= _MAX_BYTES:
        return float(number)
    raise ParenvsError(
        f"memory_limit must be a positive number of bytes, or {DEVICE!r} for "
        f"{cluster.memory_limit:,.0f}, not {shown(memory_limit)}"
    )


def batch_classes(classes: DimensionClasses) -> Array:
    """(C,) bool, the classes of the first dimensions of inputs that are as long as the batch."""
    graph = classes.graph
    dimensions = [
        int(graph.dim_offset[tensor])
        for tensor in graph.parameter_tensor[classes.inputs].tolist()
        if graph.shape(tensor)[:1] == (graph.batch_size,)
    ]
    is_batch = np.zeros(len(classes), bool)
    is_batch[classes.label[dimensions]] = True
    return is_batch


def at_micro_batch(
    classes: DimensionClasses, micro_batch: int, uneven: str = UNEVEN[0]
) -> DimensionClasses:
    """The same classes on the graph at another number of samples, two or more.

    FLOPs and bytes of instructions and the sizes of dimensions follow the batch; what the classes
    hold and exclude does not, but ``uneven="forbid"`` blocks by the new sizes.

    Raises:
        ParenvsError: no input has the batch in front, or a dimension is no multiple of the batch.
    """
    graph = classes.graph
    if micro_batch == graph.batch_size:
        return classes
    batch = batch_classes(classes)
    if not batch.any():
        raise ParenvsError(
            f"micro_batch: no input of {graph.name} has its batch of {graph.batch_size} as first "
            "dimension; leave micro_batch out"
        )
    # A dimension of size 1 is in no factor, so it does not follow the batch.
    follows = batch[classes.label] & (graph.dims > 1)
    dims = graph.dims.copy()
    dims[follows], remainder = np.divmod(dims[follows] * micro_batch, graph.batch_size)
    if remainder.any():
        odd = int(graph.dims[follows][remainder > 0][0])
        raise ParenvsError(
            f"micro_batch: a dimension of {odd} in {graph.name} is no multiple of its batch of "
            f"{graph.batch_size}, so it has no size for {micro_batch} samples; leave it out"
        )
    _resize_constants(graph, follows, dims)
    scaled = replace(graph, batch_size=micro_batch, dims=dims)
    flops, moved = _scaled_costs(classes, batch, scaled)
    scaled = replace(scaled, flops=flops, bytes_accessed=moved)
    return replace(classes, graph=scaled).with_sizes(uneven, classes.devices)


def _resize_constants(graph: Graph, follows: Array, dims: Array) -> None:
    """Give free tensors the sizes of the tensors of equal shape that they are combined with.

    They are constants, in no class, but reading them takes as long as reading any other.
    """
    free, instructions = free_tensors(graph), np.arange(len(graph.opcode))
    resized = np.zeros(len(graph.element_type), bool)
    resized[owner_of(graph)[follows]] = True
    reader, operand = graph.uses(instructions)
    toucher, tensor = np.concatenate([(reader, operand), graph.makes(instructions)], axis=1)
    constants = reader[free[operand]], operand[free[operand]]
    has_constant = np.bincount(constants[0], minlength=len(instructions)) > 0
    # Instruction with a free operand -> resized tensors.
    partners: dict[int, list[int]] = {}
    pairs = np.stack([toucher, tensor], axis=1)[has_constant[toucher] & resized[tensor]]
    for index, partner in pairs.tolist():
        partners.setdefault(index, []).append(partner)
    offset = graph.dim_offset.tolist()
    for index, constant in np.stack(constants, axis=1).tolist():
        shape = graph.shape(constant)
        partner = next((t for t in partners.get(index, ()) if graph.shape(t) == shape), None)
        if partner is not None:
            start, end = offset[partner : partner + 2]
            dims[offset[constant] : offset[constant + 1]] = dims[start:end]


def _scaled_costs(classes: DimensionClasses, batch: Array, scaled: Graph) -> tuple[Array, Array]:
    """(I,) FLOPs and bytes of the instructions of the graph with other sizes.

    FLOPs are in proportion to each factor that holds the batch, or else to the results' elements.
    """
    graph = classes.graph
    # A factor that holds the batch scales FLOPs once, so k of them scale by ratio ** k.
    ratio = scaled.batch_size / graph.batch_size
    with_batch = classes.factors.instruction[batch[classes.factor_class]]
    instructions = np.arange(len(graph.opcode))
    count = np.bincount(with_batch, minlength=len(instructions))
    old, new = (g.tensor_bytes_of(instructions) for g in (graph, scaled))
    by_result = np.divide(new, old, out=np.ones(len(instructions)), where=old > 0)
    flops = graph.flops * np.where(count > 0, ratio**count, by_result)
    # Bytes are those of operands and results, but for some opcodes.
    reader, operand = graph.uses(instructions)
    old, new = (
        np.bincount(reader, g.tensor_bytes[operand], len(instructions)) + results
        for g, results in ((graph, old), (scaled, new))
    )
    ratios = np.divide(new, old, out=np.ones(len(instructions)), where=old > 0)
    # These read a part of an operand, so their bytes are not in proportion to its size.
    parts = [code for code, name in enumerate(graph.opcodes) if name in opcodes.PARTS_READ]
    for index in np.flatnonzero(np.isin(graph.opcode, parts) & (ratios != 1)).tolist():
        opcode = graph.opcodes[graph.opcode[index]]
        (_, read), (_, written) = graph.uses(np.array([index])), graph.makes(np.array([index]))
        before, after = (
            bytes_of(opcode, g.tensor_bytes[read].tolist(), g.tensor_bytes[written].tolist())
            for g in (graph, scaled)
        )
        ratios[index] = after / before if before else 1.0
    return flops, graph.bytes_accessed * ratios


def synchronized_once(classes: DimensionClasses) -> Array:
    """(I,) bool, backward instructions whose partial results can wait for the last micro-batch.

    Gradients are linear, so those of several micro-batches are added before they are summed over
    the devices, unless something that has the batch in it reads them, or they are inside a loop.
    """
    graph = classes.graph
    has_batch = np.zeros(len(graph.element_type), bool)
    has_batch[owner_of(graph)[batch_classes(classes)[classes.label] & (graph.dims > 1)]] = True
    operands = nested(graph.operands, graph.operand_offset)
    results = nested(graph.results, graph.result_offset)
    # Tensors that have the batch in them, or that such tensors are computed from.
    needed, waits = has_batch.tolist(), [False] * len(graph.opcode)
    backward = ((graph.phase == Phase.BACKWARD) & (graph.parent < 0)).tolist()
    updates = (graph.phase == Phase.UPDATE).tolist()
    # Backwards: whether a result can wait depends on all that read it, which come later.
    for index in range(len(waits) - 1, -1, -1):
        is_needed = any(needed[tensor] for tensor in results[index])
        waits[index] = backward[index] and not is_needed
        if is_needed and not updates[index]:
            for tensor in operands[index]:
                needed[tensor] = True
    return np.array(waits, bool)
