"""What people ask of hybrid plans beside speed, and how training software sends and sums."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import Annotated, Any

import numpy as np

from parenvs.compiled import Array
from parenvs.errors import InfeasibleError, ParenvsError, refuse_unknown
from parenvs.fields import check, one_of, words
from parenvs.graph.layout import against
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES, SENDS, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import PARTS
from parenvs.tasks.hybrid.schedules import CHUNKS, SPLIT, TWO_WAYS, fewest
from parenvs.tasks.hybrid.task import Limits
from parenvs.tasks.hybrid.uniform import Uniform, concatenated, even_bounds


@dataclass(frozen=True)
class Framework:
    """What a framework runs. Figures are those of ``parenvs.exports``; others would be rounded.

    Attributes:
        schedules: those that split backward passes; 1F1B is run by all.
        recompute: modes of all layers.
        zero: levels of one stage.
        alone: degrees that must be 1, of ``chunks``, ``context`` and ``expert``.
        shard: ZeRO levels that may be shared among some replicas.
        sends: ``sends(plans)`` are the columns of plans that say how it sends and sums, where
            these are not the plans' own.
        also: ``also(plans, model)`` is (N,) bool, what else must hold.
    """

    schedules: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ("none", "selective", "full")
    zero: tuple[int, ...] = (0, 1, 2, 3)
    alone: tuple[str, ...] = ()
    shard: tuple[int, ...] = ()
    sends: Callable[[Uniform], dict[str, Any]] | None = None
    also: Callable[[Uniform, HybridModel], Any] | None = None

    def part(self, plans: Uniform, model: HybridModel) -> Uniform:
        """Return the uniform plans that the framework runs, sent as it sends."""
        fits = np.isin(plans.schedule, ("", *self.schedules))
        fits &= np.isin(plans.recompute, self.recompute)
        # Levels of plans with pipelines are limited by the rules alone.
        fits &= np.isin(plans.zero, self.zero) | (plans.pp > 1)
        for name in self.alone:
            fits &= getattr(plans, name) == 1
        fits &= (plans.shard == 0) | np.isin(plans.zero, self.shard)
        fits &= ~plans.offload.astype(bool)
        if self.also is not None:
            fits &= self.also(plans, model)
        runs = plans.take(np.flatnonzero(fits))
        return replace(runs, **self.sends(runs)) if runs.size and self.sends is not None else runs


def _torch(plans: Uniform, model: HybridModel) -> Any:
    """Pipelines take as many micro-batches as stages at least, interleaved ones whole rounds.

    A shape has no modules.
    """
    count = plans.batch // (plans.micro_batch * plans.dp)
    rounds = np.maximum(count // plans.pp, 1)
    fits = (plans.pp == 1) | ((count >= plans.pp) & (count % rounds == 0))
    for holds, _ in _against(plans, model):
        fits &= ~holds
    return fits & (model.work is not None)


def _against(plans: Uniform, model: HybridModel) -> list[tuple[Any, str]]:
    """What PyTorch does not do of a module's plans, (N,) bool each, and why."""
    causes = {} if model.work is None else model.work.causes
    count = plans.batch // (plans.micro_batch * plans.dp)
    return against(causes, plans.tp, plans.pp, plans.dp, plans.zero, count)


FRAMEWORKS = {
    "megatron": Framework(
        shard=(1, 2, 3),
        # Devices wait for their sends in schedules of one chunk.
        sends=lambda x: {"blocking": x.blocking | ((x.pp > 1) & (x.chunks == 1))},
        # It trains transformers, all of their weights.
        also=lambda x, model: model.attends and not model.frozen,
    ),
    "torchtitan": Framework(
        schedules=("zb-v",),
        zero=(0, 2, 3),
        shard=(1, 2, 3),
        sends=lambda x: {"gradient_bytes": 4.0},
        # Transformers; tp shares the tokens, too; shared states, whole groups of context ranks.
        also=lambda x, model: (
            ((x.tp == 1) | x.sequence_parallel)
            & (x.shard % x.context == 0)
            & (model.attends and not model.frozen)
        ),
    ),
    "deepspeed": Framework(
        recompute=("none", "full"),
        alone=("chunks", "context", "expert"),
        shard=(3,),
        # Gradients of pipelines, and without ZeRO, are summed at the end.
        sends=lambda x: {"gradient_overlap": x.gradient_overlap & (x.pp == 1) & (x.zero > 0)},
        # Matrices are split by the topology of pipelines, and layers are dealt out evenly.
        also=lambda x, model: ((x.tp == 1) | (x.pp > 1)) & (len(model) % x.pp == 0),
    ),
    "accelerate": Framework(
        recompute=("none", "full"),
        zero=(0, 2, 3),
        alone=("pp", "chunks", "expert"),
        shard=(2, 3),
        # FSDP2 sums gradients in the 16 bits of its products, DDP in fp32.
        sends=lambda x: {"gradient_bytes": np.where(x.zero > 0, 2.0, 4.0)},
        # Matrices and tokens are shared beside FSDP2 alone, by Transformers, which share no tokens
        # between the ranks of tp; states, among whole groups of context ranks.
        also=lambda x, model: (
            ((x.tp * x.context == 1) | ((x.zero > 0) & (x.dp * x.context > 1)))
            & (np.logical_not(x.sequence_parallel) & (x.shard % x.context == 0) & model.attends)
        ),
    ),
    "torch": Framework((), ("none",), (0, 2, 3), ("context", "expert"), also=_torch),
    "jax": Framework(
        recompute=("none",),
        zero=(0, 1, 3),
        alone=("context", "expert"),
        # Shardings of one stage and one batch, of a program, which a shape has not.
        also=lambda x, model: (
            (x.pp == 1)
            & (x.micro_batch * x.dp == x.batch)
            & (model.work is not None)
            & ((x.dp == 1) | (model.work is None or "batch" not in model.work.causes))
        ),
    ),
}
"""Name, as ``parenvs export --to`` has it -> what it runs."""
ANY, FREE = "any", "free"
"""Constraints on frameworks: one at least runs the plan as it is, or none has to."""


def runs_of(plans: Uniform, model: HybridModel, framework: str) -> Uniform:
    """Return the uniform plans that a framework runs, or ``ANY`` of them, sent as it sends.

    DeepSpeed's plans are Megatron's, too; so are torchtitan's of one stage.
    """
    if framework != ANY:
        return FRAMEWORKS[framework].part(plans, model)
    names = ("megatron", "torchtitan") if model.shape is not None else ("torch", "jax")
    first, other = (FRAMEWORKS[name].part(plans, model) for name in names)
    if model.shape is not None:
        other = other.take(other.pp > 1)
    return concatenated([first, other])


_OF_PLAN = ("chunks", "context", "expert", "expert_tp", "schedule")
"""Constraints on what a plan decides for all of its stages."""
TOKENS_EACH = 2048
"""Least tokens that each rank has of a sample, unless ``context`` is pinned.

Attention is priced at one rate, however short the blocks of a ring: at 1,024 tokens, where no
measurement is at hand, plans would gain from it.
"""
MOST_CHUNKS = 64
"""Most ranges of layers on a stage, of models with so many layers that more could be."""


@dataclass(frozen=True)
class Software:
    """How a training software sends, and keeps and sums gradients; fields as in ``HybridPlan``."""

    blocking: bool
    gradient_bytes: int
    gradient_overlap: bool

    @property
    def of_plan(self) -> dict[str, Any]:
        """The fields of a ``HybridPlan`` that say so."""
        gradients = {name: x for name, x in vars(self).items() if name != "blocking"}
        return {"p2p": SENDS[not self.blocking], **gradients}

    @property
    def of_arrays(self) -> dict[str, Any]:
        """The fields of ``Stages`` and ``Uniform`` that say so."""
        return {**vars(self), "gradient_bytes": float(self.gradient_bytes)}


SOFTWARE = {
    **dict.fromkeys(("megatron-2019", "megatron-2022"), Software(True, 4, False)),
    "megatron-deepspeed-2022": Software(True, 4, False),
    "megatron-2021": Software(True, 2, False),
    "internevo-2023": Software(True, 2, True),
    "nemo-2025": Software(False, 2, True),
    "nemo-2026": Software(False, 2, True),
    "deepspeed-2022": Software(False, 2, False),
    "roofline": Software(False, 4, False),
}
"""Stack -> how it sends and sums; all others overlap both and sum gradients in fp32."""


@dataclass(frozen=True)
class Constraints(Limits):
    """What a plan must keep to, see ``parenvs.tasks.hybrid.task.Limits``."""

    def __post_init__(self) -> None:
        """Raise errors for values that no plan can have."""
        check(self)
        if self.framework is not None:
            refuse_unknown("--for: no framework", self.framework, (ANY, FREE, *FRAMEWORKS))
        if self.shard == 1:
            raise ParenvsError("shard must be 0, for all replicas, or from 2, not 1")
        passed = 0
        for first, end, _ in sorted(self.pinned, key=lambda pin: pin[:2]):
            if end <= first or first < passed:
                where = f"--pin {first}-{end - 1}"
                raise ParenvsError(f"{where}: pin a first and a last layer, each layer once")
            passed = end

    def check_pins(self, problem: Hybrid) -> None:
        """Raise a ParenvsError for pinned layers and devices that the problem does not have."""
        layers, cluster = len(problem.model), problem.cluster
        if any(end > layers or (count or 1) > cluster.devices for _, end, count in self.pinned):
            raise ParenvsError(
                f"--pin: {problem.model.name} has layers 0 to {layers - 1}, and {cluster} has "
                f"{cluster.devices} devices; pin no others"
            )

    def faults(self, plan: HybridPlan) -> list[str]:
        """Return the constraints that a plan does not keep to, and what it has instead."""
        stages = plan.stages
        dp = [stage.devices // (stage.tp * plan.context) for stage in stages]
        sizes = {plan.micro_batch * dp[0] // replicas for replicas in dp}
        has: dict[str, set[Any]] = {
            **{name: {getattr(plan, name)} for name in _OF_PLAN},
            **{name: {getattr(stage, name) for stage in stages} for name in ("tp", "zero")},
            "pp": {len(stages)},
            "dp": set(dp),
            "micro_batch": sizes,
            "shard": {plan.shard if stage.zero else 0 for stage in stages},
            "sequence_parallel": {plan.sequence_parallel and stage.tp > 1 for stage in stages},
            "recompute": {mode for stage in stages for mode in stage.modes},
            "stage_devices": {stage.devices for stage in stages},
            "devices": {sum(stage.devices for stage in stages)},
        }
        faults = [f"a micro-batch has {size}" for size in sizes if size > self.most_micro_batch]
        for name, values in has.items():
            asked = getattr(self, name)
            known = asked if isinstance(asked, (tuple, list)) else (asked,)
            if asked is not None and not values <= set(known):
                faults.append(f"{name} is {', '.join(map(str, sorted(values)))}, not {asked}")
        groups = {(stage.layers, count) for stage in stages for count in (None, stage.devices)}
        for first, end, devices in self.pinned:
            if (((first, end),), devices) not in groups:
                faults.append(f"layers {first} to {end - 1} are no stage of their own as pinned")
        return faults

    @property
    def on_frameworks(self) -> Constraints:
        """The constraints, and by default that a framework runs plans; none runs pinned layers."""
        is_default = self.framework is None and not self.pinned
        return replace(self, framework=ANY) if is_default else self

    @property
    def needs_framework(self) -> bool:
        """Whether a framework, one or any, has to run the plan as it is."""
        return self.framework not in (None, FREE)

    def device_counts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of devices that plans may use, the most first.

        Raises a ParenvsError if the cluster has fewer than are asked for.
        """
        cluster = problem.cluster
        if self.devices is not None:
            cluster.part(self.devices)
            return [self.devices]
        if not self.idle:
            return [cluster.devices]
        return [part.devices for part in cluster.parts()] + [1]

    def tensor_ranks(self, problem: Hybrid) -> list[int]:
        """Return the tp by which the matrices divide, none across servers."""
        inside = problem.cluster.devices_per_server
        return [
            tp
            for tp in divisors(inside)
            if self.tp in (None, tp) and problem.model.reasons_against_tp(tp) is None
        ]

    def contexts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of ranks that may share the tokens of a sample.

        They are powers of two that leave each rank ``TOKENS_EACH`` tokens, or the pinned number.
        """
        shape = problem.model.shape
        if shape is None:
            return [1] if self.context in (None, 1) else []
        most = max(shape.sequence // TOKENS_EACH, 1)
        counts = [2**i for i in range(most.bit_length())]
        if self.context is not None:
            counts = [self.context]
        # A rank has two blocks of tokens, an early and a late one, so that causal work is even.
        return [count for count in counts if count == 1 or shape.sequence % (2 * count) == 0]

    def experts(self, problem: Hybrid) -> list[int]:
        """Return the numbers of replicas among which experts may be dealt out."""
        shape = problem.model.shape
        counts = divisors(1 if shape is None else shape.experts)
        return [count for count in counts if self.expert in (None, count)]

    def expert_ranks(self, problem: Hybrid, tp: int) -> list[int]:
        """Return the ranks that may share every matrix of an expert; 0: all of tp."""
        shape = problem.model.shape
        mixes = shape is not None and shape.experts > 1
        counts = [0, 1] if tp > 1 and mixes else [0]
        if self.expert_tp:
            return [self.expert_tp] if mixes and tp % self.expert_tp == 0 else []
        return counts if self.expert_tp is None else [0]

    def micro_batches(self, samples: int) -> list[int]:
        """Return the micro-batches of a replica: powers of two, or the one that is asked for."""
        most = self.most_micro_batch
        powers = [2**i for i in range(most.bit_length())]
        sizes = powers if self.micro_batch is None else [self.micro_batch]
        return [size for size in sizes if size <= most and samples % size == 0]

    def sequences(self, problem: Hybrid, tp: int, context: int) -> list[bool]:
        """Return whether tp ranks may, and may not, share what lies between the matrices."""
        shape = problem.model.shape
        ranks = tp * (2 * context if context > 1 else 1)
        possible = tp > 1 and shape is not None and shape.sequence % ranks == 0
        choices = [False, True] if possible else [False]
        return [choice for choice in choices if self.sequence_parallel in (None, choice)]

    def shards(self, problem: Hybrid, tp: int, replicas: int, zero: int) -> list[int]:
        """Return the replicas among which ZeRO may share states: all, or those of one server."""
        if not zero:
            return [0] if not self.shard else []
        if self.shard is not None:
            return [self.shard] if not self.shard or replicas % self.shard == 0 else []
        # Neighbors in one server, whose links are fast.
        near = problem.cluster.devices_per_server // tp
        return [0, near] if 1 < near < replicas and replicas % near == 0 else [0]

    def levels(self, pp: int, replicas: int) -> list[int]:
        """Return the ZeRO levels: the least for one replica, gradients only without a pipeline."""
        levels = [level for level in sorted(self.zero) if pp == 1 or level <= 1]
        return levels[:1] if replicas == 1 else levels


def software_of(problem: Hybrid) -> Software:
    """Return how the problem's stack sends and sums gradients.

    At full precision gradients take as many bytes as weights, whatever the stack.
    """
    software = SOFTWARE.get(problem.stack.name, Software(False, 4, True))
    least = int(problem.machine.width)
    return replace(software, gradient_bytes=max(software.gradient_bytes, least))


def divisors(number: int) -> list[int]:
    """Return the whole numbers that divide a number, from 1."""
    small = [x for x in range(1, math.isqrt(number) + 1) if number % x == 0]
    return sorted({*small, *(number // x for x in small)})


def uniform_plans(problem: Hybrid, constraints: Constraints | None = None) -> Uniform:
    """Return all uniform plans that keep to the constraints, whether they fit the memory or not.

    Layers are dealt out where they divide by the pieces, or do so with embedding and head as a
    layer each; with ``uneven`` as evenly as they can be.

    Raises:
        InfeasibleError: there is none.
    """
    limits = constraints or Constraints()
    rows = list(_rows(problem, limits))
    if not rows:
        asked = [
            f"{item.name} {getattr(limits, item.name)}"
            for item in fields(limits)
            if getattr(limits, item.name) != item.default and item.name != "uneven"
        ]
        reason = problem.model.reasons_against_tp(limits.tp) if limits.tp else None
        rules = "the batch must divide by dp x micro_batch, devices by tp x pp, and layers by the"
        raise InfeasibleError(
            f"{problem}: no uniform plan keeps to {', '.join(asked) or 'the rules'}; "
            f"{reason or f'{rules} stages'}"
        )
    heads, tails = zip(*rows, strict=True)
    counts = [len(tail[0]) for tail in tails]
    columns = [np.repeat(np.array(column), counts) for column in zip(*heads, strict=True)]
    columns += [np.concatenate(parts) for parts in zip(*tails, strict=True)]
    names = (
        "tp", "pp", "dp", "context", "micro_batch", "chunks", "schedule", "expert",
        "expert_tp", "sequence_parallel", "zero", "recompute", "shard",
    )  # fmt: skip
    software = software_of(problem).of_arrays
    plans = Uniform(batch=problem.batch, **software, **dict(zip(names, columns, strict=True)))
    if limits.framework is None or not limits.needs_framework:
        return plans
    runs = runs_of(plans, problem.model, limits.framework)
    if not runs.size:
        who = "a framework" if limits.framework == ANY else limits.framework
        causes = [words for holds, words in _against(plans, problem.model) if holds.any()]
        reason = f" ({'; '.join(dict.fromkeys(causes))})" if causes else ""
        raise InfeasibleError(
            f"{problem}: none of the {plans.size} uniform plans is one that {who} runs as it is"
            f"{reason}; --for {FREE} plans without one"
        )
    return runs


_Rows = Iterator[tuple[tuple[Any, ...], list[Array]]]
"""What shapes the pipeline, and columns of the choices of all other axes with it."""


def _rows(problem: Hybrid, limits: Constraints) -> _Rows:
    """Every choice of the axes that shape the pipeline, and those of the others with it."""
    ends = sum(end is not None for end in (problem.model.embedding, problem.model.head))
    most = len(problem.model) + ends
    for devices, context, tp in product(
        limits.device_counts(problem), limits.contexts(problem), limits.tensor_ranks(problem)
    ):
        groups, rest = divmod(devices, tp * context)
        for pp in () if rest else divisors(groups):
            asked = limits.pp in (None, pp) and limits.stage_devices in (None, devices / pp)
            if pp <= most and asked:
                yield from _of_mesh(problem, limits, tp, pp, groups // pp, context)


def _of_mesh(
    problem: Hybrid, limits: Constraints, tp: int, pp: int, dp: int, context: int
) -> _Rows:
    """What can be chosen once tp, pp, dp and context are."""
    if limits.dp not in (None, dp) or problem.batch % dp:
        return
    others = [
        (expert, expert_tp, sequence, zero, mode, shard)
        for expert in limits.experts(problem)
        for expert_tp in limits.expert_ranks(problem, tp)
        if tp * dp // (expert_tp or tp) % expert == 0
        for sequence in limits.sequences(problem, tp, context)
        # Ranks that hold whole experts send their own share of the tokens.
        if sequence or expert_tp in (0, tp)
        for zero in limits.levels(pp, dp * context)
        for mode in RECOMPUTE_MODES
        if mode in limits.recompute
        for shard in limits.shards(problem, tp, dp * context, zero)
    ]
    if not others:
        return
    columns = [np.array(column) for column in zip(*others, strict=True)]
    for micro_batch in limits.micro_batches(problem.batch // dp):
        count = problem.batch // (dp * micro_batch)
        for chunks, schedule in _orders(problem, limits, pp, count):
            yield (tp, pp, dp, context, micro_batch, chunks, schedule), columns


def _orders(
    problem: Hybrid, limits: Constraints, pp: int, micro_batches: int
) -> Iterator[tuple[int, str]]:
    """Yield the chunks and schedules that can be had; 1F1B and interleaved ones are ``""``."""
    layers, known = len(problem.model), problem.stack.schedules
    most = 1 if pp == 1 or micro_batches % pp else min(max((layers + 2) // pp, 1), MOST_CHUNKS)
    for chunks in range(1, most + 1):
        order = SCHEDULES[1 if chunks > 1 else 0]
        asked = limits.chunks in (None, chunks) and limits.schedule in (None, order)
        if asked and order in known and _divides(problem, limits, pp, pp * chunks):
            yield chunks, ""
    if problem.model.shape is None or software_of(problem).blocking or pp == 1:
        return
    for name in SPLIT:
        chunks, both = CHUNKS[name], name == TWO_WAYS
        if (
            name in known
            and limits.schedule in (None, name)
            and limits.chunks in (None, chunks)
            and not (both and (pp % 2 or micro_batches % 2))
            and micro_batches >= fewest(name, pp)
            and _divides(problem, limits, pp, pp if both else pp * chunks)
        ):
            yield chunks, name


def _divides(problem: Hybrid, limits: Constraints, pp: int, pieces: int) -> bool:
    """Whether layers are dealt out to pieces, with embedding and head as a layer each or not."""
    layers, model = len(problem.model), problem.model
    ends = (model.embedding is not None, model.head is not None)
    return bool(
        layers % pieces == 0
        or (limits.uneven and pieces <= layers and _all_have_layers(layers, ends, pieces))
        or (all(ends) and layers % pp and (layers + 2) % pieces == 0)
    )


@lru_cache
def _all_have_layers(layers: int, ends: tuple[bool, ...], pieces: int) -> bool:
    """Whether layers that do not divide leave no piece empty that must have one."""
    sizes = np.diff(even_bounds(layers, pieces))
    first, last = int(ends[0]), len(sizes) - int(ends[1])
    return bool((sizes[first:last] > 0).all())


LITTLE = 2.0
"""Seconds that are long enough to judge all uniform plans at once, which is faster."""


@dataclass(frozen=True, eq=False)
class UniformSpace:
    """All uniform plans of a problem and what each takes and holds.

    Attributes:
        plans: (N,) the plans.
        memory: bytes on a device of the fullest stage by part, and ``total``, (N,) each.
        whole: whether no plan was left out for want of time.
    """

    problem: Hybrid
    plans: Uniform
    memory: dict[str, Array]
    whole: bool = True

    @classmethod
    def build(
        cls, problem: Hybrid, constraints: Constraints | None = None, deadline: float = math.inf
    ) -> UniformSpace:
        """List the plans, and judge what they hold.

        Of little time, until a ``time.perf_counter()``, one mesh after the other takes its part.

        Raises:
            InfeasibleError: no plan keeps to the constraints.
        """
        if deadline - time.perf_counter() < LITTLE:
            return cls._by_mesh(problem, constraints or Constraints(), deadline)
        plans = uniform_plans(problem, constraints)
        return cls(problem, plans, plans.memory(problem.model, problem.machine))

    @classmethod
    def _by_mesh(cls, problem: Hybrid, limits: Constraints, deadline: float) -> UniformSpace:
        begin, parts = time.perf_counter(), list[UniformSpace]()
        meshes = list(product(limits.contexts(problem), reversed(limits.tensor_ranks(problem))))
        for number, (context, tp) in enumerate(meshes):
            with suppress(InfeasibleError):
                parts.append(cls.build(problem, replace(limits, context=context, tp=tp)))
            # The next mesh takes about as long as the one before.
            spent = (time.perf_counter() - begin) * (number + 2) / (number + 1)
            if begin + spent > deadline and any(part.fits.any() for part in parts):
                break
        if not parts:
            return cls.build(problem, limits)
        plans = concatenated([part.plans for part in parts])
        memory = {x: np.concatenate([part.memory[x] for part in parts]) for x in parts[0].memory}
        return cls(problem, plans, memory, number + 1 == len(meshes))

    def __len__(self) -> int:
        """Return the number of plans."""
        return int(self.plans.size)

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """Parts of a step and its ``length``, (N,) each, by name, of those that do not fit, too."""
        return self.plans.seconds(self.problem.model, self.problem.cluster, self.problem.machine)

    @cached_property
    def length(self) -> Array:
        """(N,) seconds of a step, infinite of plans that do not fit, which may be nearly all."""
        found, fitting = np.full(len(self), np.inf), self.plans.take(self.fits)
        seconds = fitting.seconds(self.problem.model, self.problem.cluster, self.problem.machine)
        found[self.fits] = seconds["length"]
        return found

    @cached_property
    def fits(self) -> Array:
        """(N,) bool, which plans are within memory."""
        return np.asarray(self.memory["total"] <= self.problem.memory_limit)

    def best(self, values: Array | None = None) -> int | None:
        """Return the plan of least value (default: seconds) that fits, or None."""
        if not self.fits.any():
            return None
        return int(np.where(self.fits, self.length if values is None else values, np.inf).argmin())

    def plan(self, k: int) -> HybridPlan:
        """Return one of the plans, which can be saved."""
        return self.problem.uniform_plan(self.plans, k)

    def describe(self, k: int) -> str:
        """Return the degrees of a plan in words."""
        return self.plan(k).words

    def pareto(self) -> Array:
        """Return the plans that no other beats in both seconds and bytes, the fastest first."""
        # By time: a plan is on the front if it needs less than all faster ones.
        order = np.lexsort((self.memory["total"], self.seconds["length"]))
        total = self.memory["total"][order]
        return order[total < np.minimum.accumulate(np.append(np.inf, total[:-1]))]


def infeasible(space: UniformSpace, others: str = "") -> InfeasibleError:
    """Return the error for a problem of whose uniform plans, and ``others``, none fits."""
    # The plan that needs the fewest bytes, the fastest of several.
    k = int(np.lexsort((space.seconds["length"], space.memory["total"]))[0])
    problem, held = space.problem, {name: float(x[k]) for name, x in space.memory.items()}
    largest = max(PARTS, key=lambda name: held[name])
    return InfeasibleError(
        f"{problem}: none of {len(space)} uniform plans{others} fits the memory; the smallest "
        f"({space.describe(k)}) needs {held['total'] - problem.memory_limit:,.0f} bytes more than "
        f"the {problem.memory_limit:,.0f} allowed on its fullest stage; the largest part is "
        f"{largest}, {held[largest]:,.0f}"
    )


OBJECTIVES = ("seconds", "tokens", "money")
"""Seconds of a step; tokens per second (samples where a model has no tokens); money per token."""
HOUR = 3600.0


@dataclass(frozen=True)
class Objective:
    """What makes a plan good. Each is least for the best plan, tokens per second are negative.

    Attributes:
        name: one of ``OBJECTIVES``.
        price: of an hour of one device, in any currency.
    """

    name: Annotated[str, one_of(*OBJECTIVES)] = OBJECTIVES[0]
    price: Annotated[float, words("a positive number", gt=0, lt=1e30)] = 1.0

    def __post_init__(self) -> None:
        """Raise errors for an unknown name, and a price that is not positive or not asked for."""
        check(self, "objective: ")
        if self.price != 1.0 and self.name != "money":
            raise ParenvsError("--price is for --objective money; leave it out")

    def values(self, problem: Hybrid, seconds: Any, devices: Any) -> Any:
        """Return what is minimized, elementwise, of seconds of a step and devices in use."""
        shape = problem.model.shape
        # Samples of a step where a model has no tokens.
        tokens = problem.batch * (1 if shape is None else shape.sequence)
        if self.name == "tokens":
            return -tokens / seconds
        if self.name == "money":
            return seconds * devices * self.price / HOUR / tokens
        return seconds

    def weight(self, devices: Any) -> Any:
        """Return the factor of seconds that orders plans on different numbers of devices."""
        return devices if self.name == "money" else 1

    def weight_of(self, plan: HybridPlan) -> Any:
        """Return the factor of a plan's seconds."""
        return self.weight(sum(stage.devices for stage in plan.stages))


def near_best(
    space: UniformSpace, share: float = 0.05, most: int = 10, objective: Objective | None = None
) -> list[tuple[float, str]]:
    """Return the excess and the words of the best plan of each mesh within ``share`` of the best.

    Plans of one mesh, that is the same tp, pp, dp and context, differ by what can be changed from
    one run to the next; of them only the best is listed.
    """
    goal, plans = objective or Objective(), space.plans
    values = np.asarray(goal.values(space.problem, space.length, plans.devices), float)
    values = np.where(space.fits, values, np.inf)
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    # A mesh is fixed when a run starts; the first of each in rising order is its best.
    meshes = np.stack([plans.tp, plans.pp, plans.dp, plans.context])[:, order]
    chosen = order[np.sort(np.unique(meshes, axis=1, return_index=True)[1])][:most]
    best = values[chosen[:1]]
    near = zip(((values[chosen] - best) / abs(best)).tolist(), chosen.tolist(), strict=True)
    return [(x, space.describe(k)) for x, k in near if x <= share]
