"""The judge's verdict on a hybrid plan: legality, seconds by part, memory by stage, utilization."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from parenvs.cluster import PASSES, Cluster
from parenvs.core.plan import ILLEGAL, TimedReport
from parenvs.errors import ClusterError, PlanError
from parenvs.tasks.hybrid import schedules
from parenvs.tasks.hybrid.formulas import Memory, Stages, Step, compose
from parenvs.tasks.hybrid.layers import Split, kernels_of
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan
from parenvs.tasks.hybrid.schedules import SPLIT, HybridTimetable, simulate
from parenvs.tasks.hybrid.stack import Machine, Stack
from parenvs.tasks.pipeline import formulas as pure
from parenvs.view.words import duration, plural


def malformed(plan: HybridPlan, model: HybridModel, cluster: Cluster) -> list[str]:
    """Reasons for which the cost of a plan cannot even be computed."""
    return [
        *_ranges(plan, model),
        *_schedule(plan, model),
        *_devices(plan, cluster),
        *_samples(plan),
        *_splits(plan, model),
        *_recompute(plan),
        *_offload(plan, cluster),
    ]


def mismatches(plan: HybridPlan, problem: Any) -> list[str]:
    """Reasons for which a plan is for something else than a problem."""
    stack = problem.stack
    settings = {name: getattr(problem, name) for name in ("cluster", "precision", "batch")}
    reasons = plan.mismatches(problem.model.name, problem.model.fingerprint, settings)
    try:
        planned = Stack.parse(plan.stack, stored=True)
        if planned != stack:
            other = "" if planned.name != stack.name else " with other constants"
            reasons.append(f"stack: the plan is for {planned.name}{other}, not {stack.name}")
    except PlanError as error:
        reasons.append(f"stack: {error}")
    if plan.schedule not in stack.schedules:
        reasons.append(
            f"schedule: {stack.name} has {', '.join(stack.schedules)}, not {plan.schedule}; its "
            "constant 'schedules' says which"
        )
    if plan.offload and not stack.offloads:
        reasons.append(
            f"offload: {stack.name} moves no activations to the memory of the server; its constant "
            "'offloads' says so"
        )
    try:
        plan.cluster.device.peak(plan.precision)
    except ClusterError as error:
        reasons.append(f"precision: {error}")
    return reasons


def over_memory(held: Memory, limit: float) -> list[str]:
    """Stages that need more than ``limit`` bytes on a device; each part of ``held`` is (S,)."""
    reasons = []
    for stage in np.flatnonzero(held.total > limit).tolist():
        size, parts = held.total[stage], {name: getattr(held, name)[stage] for name in PARTS}
        largest = max(parts, key=lambda name: parts[name])
        reasons.append(
            f"stage {stage}: {size:,.0f} bytes on each device, {size - limit:,.0f} more than "
            f"the {limit:,.0f} allowed; the largest part is {largest}, {parts[largest]:,.0f}"
        )
    return reasons


PARTS = tuple(name for name in Memory._fields if name != "total")
"""Parts of a device's memory, by the names of ``Memory``."""


def _ranges(plan: HybridPlan, model: HybridModel) -> Iterator[str]:
    """Layers: one range for each chunk, all layers once, in the order that data passes."""
    wrong = [i for i, stage in enumerate(plan.stages) if len(stage.layers) != plan.chunks]
    for number in wrong:
        count = plural(len(plan.stages[number].layers), "range")
        yield f"stages[{number}].layers: {count} for {plural(plan.chunks, 'chunk')}"
    if wrong or plan.chunks != schedules.CHUNKS.get(plan.schedule, plan.chunks):
        return  # the schedule's own reason
    for chain in schedules.chains(plan.schedule, len(plan.stages), plan.chunks):
        passed = 0
        for number, chunk in chain:
            first, end = plan.stages[number].layers[chunk]
            where = f"stages[{number}].layers: [{first}, {end}]"
            if first < passed:
                yield f"{where} overlaps the layers before it, which end at {passed}"
            elif first > passed:
                yield f"{where} leaves out layers {passed} to {first - 1}"
            # What embedding and head take may fill the first and the last range alone.
            at_front = (number, chunk) == chain[0] and model.embedding is not None
            at_end = (number, chunk) == chain[-1] and model.head is not None
            if end < first or (end == first and not (at_front or at_end)):
                yield f"{where} holds no layer"
            if first != passed or end < first:
                return  # what comes behind would only repeat it
            passed = end
        if passed < len(model):
            yield f"stages: layers {passed} to {len(model) - 1} of {model.name} are left out"
        elif passed > len(model):
            yield f"stages: the layers end at {passed}, but {model.name} has {len(model)}"


def _schedule(plan: HybridPlan, model: HybridModel) -> Iterator[str]:
    name, count, chunks = plan.schedule, len(plan.stages), plan.chunks
    is_split, interleaved = name in SPLIT, SCHEDULES[1]
    micro_batches, rest = divmod(plan.batch, max(_samples_of(plan), 1))
    gives = f"batch {plan.batch} gives {micro_batches}"
    if is_split:
        yield from _split(plan, None if rest else micro_batches, gives)
    elif chunks > 1 and name != interleaved:
        yield f"schedule: {chunks} chunks need schedule {interleaved}, not {name}"
    elif chunks < 2 and name == interleaved:
        yield f"schedule: {interleaved} needs at least 2 chunks"
    if not is_split and chunks > 1:
        if count < 2:
            yield "chunks: one stage has nothing to interleave; leave out chunks"
        elif not rest and micro_batches % count:
            yield (
                f"schedule: {interleaved} needs micro-batches in multiples of {count} stages; "
                f"{gives}"
            )
    for number, stage in enumerate(plan.stages):
        if count > 1 and stage.zero >= 2:
            yield (
                f"stages[{number}].zero: {stage.zero} shares gradients, which micro-batches in "
                f"flight still add to; with {count} stages at most 1"
            )
    if is_split and model.shape is None:
        yield (
            f"schedule: {name} splits backward passes, and {model.name} has no shape that tells "
            "the gradients of weights apart"
        )


def _split(plan: HybridPlan, micro_batches: int | None, gives: str) -> Iterator[str]:
    """Reasons against a schedule that splits backward passes."""
    name, count = plan.schedule, len(plan.stages)
    chunks, two_ways = schedules.CHUNKS[name], name == schedules.TWO_WAYS
    if plan.chunks != chunks:
        yield f"chunks: schedule {name} has {chunks}, not {plan.chunks}"
    if count < 2 or (two_ways and count % 2):
        needed = "an even number of" if two_ways else "at least 2"
        yield f"schedule: {name} needs {needed} stages, not {count}"
    if plan.p2p != SENDS[1]:
        yield f"p2p: sends of schedule {name} never block; make it {SENDS[1]}"
    least = schedules.fewest(name, count)
    if micro_batches is not None and micro_batches < least:
        yield f"schedule: {name} of {count} stages needs at least {least} micro-batches; {gives}"
    if not two_ways:
        return
    if micro_batches is not None and micro_batches % 2:
        yield f"schedule: half of the micro-batches of {name} enter at each end; {gives}"
    for number, stage in enumerate(plan.stages[: count // 2]):
        opposite = plan.stages[-1 - number]
        if (stage.devices, stage.tp) != (opposite.devices, opposite.tp):
            yield (
                f"stages[{number}].devices: {name} sums gradients with stages"
                f"[{count - 1 - number}], which needs as many devices and the same tp"
            )


def _devices(plan: HybridPlan, cluster: Cluster) -> Iterator[str]:
    """Blocks of devices, the groups inside of them, and the order of servers."""
    used, inside = sum(stage.devices for stage in plan.stages), cluster.devices_per_server
    if used > cluster.devices:
        yield f"stages: {used} devices are planned, but {cluster} has {cluster.devices}"
    first = 0
    for number, stage in enumerate(plan.stages):
        where, tp = f"stages[{number}]", stage.tp
        if stage.devices % (tp * plan.context):
            context = f" x context {plan.context}" if plan.context > 1 else ""
            yield (
                f"{where}.devices: {stage.devices} is not a multiple of tp {tp}{context}, so "
                "there is no whole number of replicas"
            )
        if tp > inside:
            yield f"{where}.tp: {tp} ranks are more than a server's {inside} devices"
        elif first % tp or inside % tp:
            # Groups repeat against servers after ``inside`` of them at most.
            starts = range(first, first + stage.devices - tp + 1, tp)[:inside]
            torn = next((x for x in starts if x // inside != (x + tp - 1) // inside), None)
            if torn is not None:
                yield (
                    f"{where}.tp: ranks on devices {torn} to {torn + tp - 1} lie in two servers "
                    f"of {inside} devices"
                )
        first += stage.devices
    if plan.servers and sorted(plan.servers) != list(range(cluster.servers)):
        yield f"servers: not each of 0 to {cluster.servers - 1} once"


def _samples(plan: HybridPlan) -> Iterator[str]:
    samples = _samples_of(plan)
    if not samples:
        return  # no replica at all: its devices are the reason
    replicas = samples // plan.micro_batch
    if plan.batch % samples:
        yield (
            f"batch: {plan.batch} is not a multiple of {samples} (micro_batch {plan.micro_batch} x "
            f"{plural(replicas, 'replica')})"
        )
    for number, stage in enumerate(plan.stages):
        other = stage.devices // (stage.tp * plan.context)
        if other and samples % other:
            yield (
                f"stages[{number}].devices: {plural(other, 'replica')} cannot share the {samples} "
                "samples of a micro-batch of the first stage's replicas"
            )


def _samples_of(plan: HybridPlan) -> int:
    """Samples of a micro-batch over all replicas of the first stage."""
    stage = plan.stages[0]
    return plan.micro_batch * (stage.devices // (stage.tp * plan.context))


def _splits(plan: HybridPlan, model: HybridModel) -> Iterator[str]:
    ranks = [stage.tp for stage in plan.stages]
    widest, shape = max(ranks), model.shape
    for tp in sorted(set(ranks) - {1}):
        if reason := model.reasons_against_tp(tp):
            yield f"stages[{ranks.index(tp)}].tp: {reason}"
    if plan.sequence_parallel and widest == 1:
        yield "sequence_parallel: needs tp of at least 2"
    elif plan.sequence_parallel and (reason := model.reasons_against_sequence_parallel()):
        yield f"sequence_parallel: {reason}"
    if plan.context > 1 and shape is None:
        yield f"context: {model.name} has no shape, so its tokens cannot be shared"
    if shape is not None:
        factors = {"2 x context": 2 * plan.context} if plan.context > 1 else {}
        factors |= {"tp": widest} if plan.sequence_parallel else {}
        parts = math.prod(factors.values())
        if shape.sequence % parts:
            by = " x ".join(factors)
            yield f"sequence: {shape.sequence} tokens are not a multiple of {by} = {parts}"
    if plan.shard:
        yield from _shard(plan)
    if plan.expert > 1 or plan.expert_tp:
        yield from _experts(plan, 1 if shape is None else shape.experts)
    if plan.gradient_bytes not in (2, 4):
        yield f"gradient_bytes: {plan.gradient_bytes} is neither 2 nor 4"


def _shard(plan: HybridPlan) -> Iterator[str]:
    if plan.shard == 1 or not any(stage.zero for stage in plan.stages):
        yield f"shard: {plan.shard} needs zero of at least 1 and 2 replicas; leave it out"
    for number, stage in enumerate(plan.stages):
        replicas = stage.devices // stage.tp
        if replicas % plan.shard:
            held = plural(replicas, "replica")
            yield f"shard: {plan.shard} does not divide the {held} of stages[{number}]"


def _experts(plan: HybridPlan, experts: int) -> Iterator[str]:
    if experts % plan.expert:
        yield f"expert: {plan.expert} does not divide the model's {plural(experts, 'expert')}"
    for number, stage in enumerate(plan.stages):
        ranks = plan.expert_tp or stage.tp
        if stage.tp % ranks:
            yield (
                f"expert_tp: {ranks} does not divide tp {stage.tp} of stages[{number}]; give 0 "
                "for all of tp"
            )
        elif ranks < stage.tp and not plan.sequence_parallel:
            yield (
                f"expert_tp: {ranks} of tp {stage.tp} in stages[{number}] needs sequence_parallel, "
                "by which each rank has tokens of its own"
            )
        elif (replicas := stage.devices // ranks) % plan.expert:
            held = plural(replicas, "group" if plan.expert_tp else "replica")
            held += f" of {plural(ranks, 'device')}" if plan.expert_tp else ""
            yield f"expert: {plan.expert} does not divide the {held} of stages[{number}]"
    if plan.expert_tp and experts == 1:
        yield "expert_tp: the model has no experts; leave it out"


def _recompute(plan: HybridPlan) -> Iterator[str]:
    for number, stage in enumerate(plan.stages):
        again, by_count = stage.recompute, isinstance(stage.recompute, dict)
        counted = sum(again.values()) if isinstance(again, dict) else len(again)
        # Counts may leave layers out, a list names the mode of each.
        if counted > max(stage.size, 0) or (again and not by_count and counted < stage.size):
            named = plural(counted, "layer")
            yield f"stages[{number}].recompute: {named} named, the stage has {stage.size}"


def _offload(plan: HybridPlan, cluster: Cluster) -> Iterator[str]:
    if plan.offload and not cluster.device.host_bw:
        yield (
            f"offload: the link of a {cluster.device.name} to the memory of its server is not "
            "known; leave it out"
        )
    if plan.offload and plan.schedule in SPLIT:
        yield f"offload: is not counted for schedule {plan.schedule}; leave it out"


MOST_PASSES = 2_000_000
"""Passes of a step that are simulated, at most."""


class HybridStageReport(NamedTuple):
    """One stage of a judged plan; seconds are those of one micro-batch unless they say otherwise.

    Attributes:
        layers: half-open ranges of layers, one for each chunk.
        device_first: its first device, in the order of the servers.
        device_end: one past its last device.
        zero: 0 to 3.
        redone: mode -> number of its layers that are recomputed so.
        speed: of its slowest server.
        forward, backward, recomputed, exchange, sends, gathers: see ``formulas.Step``.
        reduction, exposed: the same, of a step.
        memory: bytes on each of its devices by part, and ``total``.
    """

    layers: tuple[tuple[int, int], ...]
    device_first: int
    device_end: int
    tp: int
    dp: int
    zero: int
    redone: dict[str, int]
    speed: float
    forward: float
    backward: float
    recomputed: float
    exchange: float
    sends: float
    gathers: float
    reduction: float
    exposed: float
    memory: dict[str, float]

    @property
    def busy(self) -> float:
        """Seconds that a micro-batch takes the stage."""
        parts = (self.forward, self.backward, self.recomputed, self.exchange)
        return sum(parts) + self.sends + self.gathers


class Outlook(NamedTuple):
    """What trials say of a plan.

    Attributes:
        seconds: median of a step; of ``low`` and ``high`` are the quantiles of 10 and 90 %.
        fits: probability that it does not run out of memory.
        trials: their number and files, in words.
    """

    seconds: float
    low: float
    high: float
    fits: float
    trials: str

    def __str__(self) -> str:
        """Return it as a line of text."""
        middle, low, high = map(duration, self[:3])
        return f"by {self.trials}: {middle} ({low} to {high}) a step, fits with {self.fits:.0%}"


@dataclass(frozen=True)
class HybridReport(TimedReport):
    """The judge's verdict on a hybrid plan.

    Attributes:
        model: the chain of layers on which it was judged.
        reasons: a sentence for every rule that the plan breaks; empty if it is legal.
        bound_seconds: see ``Hybrid.bound_seconds``.
        memory_limit_bytes: bytes that a stage may hold on each of its devices.
        arrays: the plan as arrays (None if it is malformed, as are the following).
        problem: the ``Hybrid`` that made the report.
        outlook: what its trials say, which then counts for seconds and memory.
    """

    task: ClassVar[str] = "hybrid"
    cost_words: ClassVar[str] = "the hybrid model's"
    plan: HybridPlan
    model: HybridModel
    cluster: Cluster
    machine: Machine
    batch: int
    reasons: tuple[str, ...]
    bound_seconds: float
    memory_limit_bytes: float
    arrays: Stages | None
    step: Step | None
    held: Memory | None
    problem: Any = field(repr=False, compare=False)
    outlook: Outlook | None = None

    @property
    def length_seconds(self) -> float:
        """Closed-form seconds of a step, or those by trials (inf if the plan is malformed)."""
        if self.outlook:
            return self.outlook.seconds
        return math.inf if self.step is None else float(self.step.length)

    @property
    def value(self) -> float:
        """The bound over the length, in (0, 1]; -1 if the plan is illegal or does not fit."""
        if not self.legal:
            return ILLEGAL
        return float(pure.value(self.length_seconds, self.bound_seconds))

    @property
    def micro_batches(self) -> int:
        """M, micro-batches of a step."""
        return 0 if self.arrays is None else round(float(self.arrays.micro_batches))

    @property
    def devices_used(self) -> int:
        """Devices on which the plan puts something."""
        return sum(stage.devices for stage in self.plan.stages)

    @cached_property
    def stages(self) -> tuple[HybridStageReport, ...]:
        """The stages (empty if the plan is malformed)."""
        if self.arrays is None or self.step is None or self.held is None:
            return ()
        reports: list[HybridStageReport] = []
        step, held = self.step, self.held
        names = HybridStageReport._fields[8:-1]  # those that ``Step`` has, too
        for number, stage in enumerate(self.plan.stages):
            first = int(self.arrays.device[number])
            seconds: Any = {name: float(getattr(step, name)[number]) for name in names}
            reports.append(
                HybridStageReport(
                    layers=stage.layers,
                    device_first=first,
                    device_end=first + stage.devices,
                    tp=stage.tp,
                    dp=int(self.arrays.dp[number]),
                    zero=stage.zero,
                    redone=stage.redone,
                    speed=float(self.arrays.speed[number]),
                    memory={name: float(x[number]) for name, x in held._asdict().items()},
                    **seconds,
                )
            )
        return tuple(reports)

    @property
    def redone(self) -> dict[str, int]:
        """Mode -> number of layers that are recomputed so."""
        total = sum((Counter(stage.redone) for stage in self.plan.stages), Counter[str]())
        return dict(sorted(total.items()))

    @cached_property
    def pivot(self) -> int:
        """The stage whose work the core consists of: that which passes all micro-batches last."""
        if self.step is None:
            return 0
        return pivot_of(self.step, self.micro_batches, self.plan.schedule)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Seconds of a step by part, which add up to its length (empty if malformed).

        The first six are those of the pivot stage over all micro-batches, ``bubble`` is what the
        core has beside them.
        """
        if self.step is None or self.arrays is None:
            return {}
        return seconds_by_part(self.step, self.pivot, round(float(self.arrays.rounds)))

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        fullest = max((x.memory for x in self.stages), key=lambda x: x["total"], default={})
        return self.seconds, {name: x for name, x in fullest.items() if name != "total"}

    @cached_property
    def timetable(self) -> HybridTimetable | None:
        """The simulated passes; None if the plan is malformed or has more than ``MOST_PASSES``."""
        pieces = len(self.plan.stages) * self.plan.chunks
        if self.step is None or 2 * pieces * self.micro_batches > MOST_PASSES:
            return None
        chunks = self.problem.chunk_seconds(self.plan)
        return simulate(chunks, self.micro_batches, self.plan.schedule)

    @cached_property
    def simulated_seconds(self) -> float | None:
        """Seconds of a step by event simulation, None without a timetable."""
        if self.timetable is None or self.step is None:
            return None
        step = self.step
        # The simulation has no pass for the gather of the first layer (ZeRO 3).
        passes = float(step.start.max()) + self.timetable.length(step.exposed)
        return float(compose(self.machine, passes, 0.0, step.tied, step.optimizer))

    @cached_property
    def flops(self) -> dict[str, float]:
        """Model FLOPs of a step, counted in three ways (empty if the plan is malformed).

        ``model``: every matrix product of the forward and the backward pass, attention over the
        whole square. ``recomputed``: those and the forward passes of blocks that run again in
        full, as arXiv 2104.04473 counts. ``tokens``: ``6 N`` and causal attention a token, as arXiv
        2407.21783 counts.
        """
        if self.arrays is None:
            return {}
        counted = float(self.model.flops(self.batch))
        # Of all layers, those that run again in full.
        share = float(self.arrays.full.sum()) / max(len(self.model), 1)
        again = self.model.flops(self.batch, recompute=True) - counted
        flops = {"model": counted, "recomputed": counted + share * again}
        if self.model.shape is not None:
            flops["tokens"] = float(self.model.shape.token_flops(self.batch))
        return flops

    @property
    def tflops(self) -> dict[str, float]:
        """TFLOP/s of each device that the plan uses, by the ways of ``flops``."""
        scale = 1e12 * self.length_seconds * self.devices_used
        return {name: count / scale for name, count in self.flops.items()}

    @property
    def mfu(self) -> float | None:
        """Model FLOPs (nothing recomputed) over the peak of the devices that the plan uses."""
        if not self.flops:
            return None
        # Of the precision of the plan, as papers report MFU.
        peak = self.cluster.device.peak(self.machine.precision)
        return self.tflops["model"] * 1e12 / peak

    @property
    def samples_per_second(self) -> float:
        """Samples per second (0 if the plan is malformed)."""
        return self.batch / self.length_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second, None if the model does not say how many a sample has."""
        shape = self.model.shape
        return None if shape is None else self.samples_per_second * shape.sequence

    @property
    def is_guess(self) -> bool:
        """Whether products were measured neither with the stack on such a device, nor on this."""
        machine, known = self.machine, self.cluster.measured
        if known is not None and known.rate(machine.precision):
            return False
        return machine.stack.is_guess(self.cluster.device.name, machine.precision)

    @property
    def as_measured(self) -> str:
        """Which kernels of its blocks and head have measured rates, in words; empty if none."""
        known, shape, plan = self.cluster.measured, self.model.shape, self.plan
        if known is None or shape is None:
            return "" if known is None else "with measured kernels"
        precision, shares = self.machine.precision, []
        samples = plan.micro_batch * self.stages[0].dp
        for tp, dp in {(stage.tp, stage.dp) for stage in self.stages}:
            split = Split(tp, samples / dp, plan.context, True, plan.expert, plan.expert_tp)
            products, attention = kernels_of(shape, split)
            shares += [known.product_share(precision, *product) for product in products]
            shares += [known.attention_share(precision, which, *attention) for which in PASSES]
        measured = int(np.isfinite(shares).sum())
        return f"with {measured} of {len(shares)} kernels as measured"

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object of JSON types (seconds and bytes)."""
        lengths = ("length_seconds", "simulated_seconds", "bound_seconds", "value")
        figures = (
            "batch", "micro_batches", "devices_used", "seconds", "flops", "tflops", "mfu",
            "samples_per_second", "tokens_per_second", "memory_limit_bytes",
        )  # fmt: skip
        content = {
            "legal": self.legal,
            "reasons": list(self.reasons),
            **{name: getattr(self, name) for name in lengths},
            "stack": self.machine.stack.name,
            "precision": self.machine.precision,
            "guess": self.is_guess,
            "outlook": self.outlook and self.outlook._asdict(),
            **{name: getattr(self, name) for name in figures},
            "stages": [{**stage._asdict(), "busy": stage.busy} for stage in self.stages],
        }
        if self.step is None:
            unknown = ("length_seconds", "samples_per_second", "tokens_per_second")
            content |= dict.fromkeys(unknown)
        return content


def pivot_of(step: Step, micro_batches: int, schedule: str) -> int:
    """Return the stage that passes all micro-batches last."""
    if schedule in SPLIT:
        return int(np.argmax(step.busy))
    # As in ``formulas.step``: up to a stage, a micro-batch passes the first chunks.
    before = step.chunk.cumsum(axis=0) - step.chunk
    return int(np.argmax(pure.through(before + step.busy, step.busy, micro_batches) + step.start))


def seconds_by_part(step: Step, pivot: int, rounds: int) -> dict[str, float]:
    """Return the seconds of a step by part, see ``HybridReport.seconds``.

    ``pivot`` is the stage that passes all micro-batches last; a stage does all chunks ``rounds``
    times.
    """
    names = ("forward", "backward", "recomputed", "exchange", "sends", "gathers")
    parts = {name: rounds * float(getattr(step, name)[pivot]) for name in names}
    # The core is the pivot's work and what it waits for.
    parts["bubble"] = float(step.core) - sum(parts.values())
    parts["gradients"] = float(step.tail)
    host = {"host": float(step.host)} if step.host else {}
    return {**parts, "tied": float(step.tied), "optimizer": float(step.optimizer), **host}
