"""A hybrid problem: a chain of layers on a cluster, and what plans of it cost.

The formulas are those of ``parenvs.tasks.hybrid.formulas``; this module looks up their arguments
for a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError
from parenvs.fields import LARGEST_NUMBER, settle, words
from parenvs.tasks.hybrid import formulas, report
from parenvs.tasks.hybrid.formulas import Chunks, Memory, Stages, Step
from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import SCHEDULES, SENDS, HybridPlan, HybridStage
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.schedules import SPLIT, ChunkSeconds, piece_of
from parenvs.tasks.hybrid.stack import LOW, Machine, Stack
from parenvs.tasks.hybrid.uniform import Uniform, even_bounds, stage_speeds

BEST_PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
"""Precisions that plans have by default: the first of them that the device has."""
BEST_FULL_PRECISIONS = ("tf32", "fp32")
"""The same for JAX functions and files whose products are in full precision."""
DEFAULT_STACKS = {
    "v100": "megatron-2021",
    **dict.fromkeys(("gb200", "gb300", "b200", "b300"), "nemo-2026"),
}  # fmt: skip
"""Device -> the stack that plans have by default."""
OTHER_STACK = "llama-2024"
"""The default stack of other devices; what it reaches there is a guess (``Stack.is_guess``)."""
MIXTURES = "nemo-2026"
"""The same for models with experts: of published mixtures on H100 it is nearest, as nothing hides
its dispatch and it pays for permuting tokens; llama-2024 was measured on dense models alone."""


def best_precision(cluster: Cluster, half: bool = True) -> str:
    """Return the precision that plans on a cluster have by default.

    A device whose peaks by precision are not known is taken to have all of them but TF32. ``half``:
    see ``HybridModel.is_half``.
    """
    peaks = dict(cluster.device.peaks)
    order = BEST_PRECISIONS if half else BEST_FULL_PRECISIONS
    known = peaks or {name: 0.0 for name in order if name != "tf32"}
    return next((name for name in order if name in known), order[-1])


def default_stack(cluster: Cluster, mixes: bool = False) -> Stack:
    """Return the stack that plans on a cluster have by default; ``mixes``: of a mixture."""
    names = cluster.device.name, cluster.device.like
    other = MIXTURES if mixes else OTHER_STACK
    return Stack.parse(next((DEFAULT_STACKS[x] for x in names if x in DEFAULT_STACKS), other))


@dataclass(frozen=True)
class Hybrid:
    """The problem of planning the training of a model on a cluster along all axes together.

    >>> import parenvs
    >>> problem = parenvs.problem("llama3-70b", "16x8:h100", task="hybrid", batch=1024)
    >>> problem.stack.name, problem.precision, len(problem.model)
    ('llama-2024', 'bf16', 80)

    Attributes:
        cluster: the devices; text, as ``Cluster.parse`` takes it, is parsed.
        stack: the training software, a name or an object as ``Stack.parse`` takes it is parsed
            (default: see ``default_stack``).
        precision: of matrix products (default: see ``best_precision``).
        instance: name or path of the instance; plans carry it (default: the model's name).
        trials: a ``Study``, by which reports are made.
        is_named: whether the stack was given.
    """

    task: ClassVar[str] = "hybrid"
    model: HybridModel
    cluster: Cluster
    batch: Annotated[int, words("a whole number of samples from 1", ge=1, le=LARGEST_NUMBER)]
    stack: Stack = None  # type: ignore[assignment]  # resolved in __post_init__
    precision: str = ""
    instance: str = ""
    trials: Any = field(default=None, compare=False, repr=False)
    is_named: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Fill in defaults and raise errors for settings that no plan can have."""
        settle(self, "model", "precision", "instance")
        settle(self, "batch", error=InfeasibleError)
        fill = object.__setattr__
        fill(self, "cluster", Cluster.parse(self.cluster))
        shape = self.model.shape
        mixes = shape is not None and shape.experts > 1
        default = default_stack(self.cluster, mixes)
        fill(self, "is_named", self.stack is not None)
        fill(self, "stack", default if self.stack is None else Stack.parse(self.stack))
        fill(self, "precision", self.precision or best_precision(self.cluster, self.model.is_half))
        fill(self, "instance", self.instance or self.model.name)
        self.machine  # noqa: B018  # raises errors for a precision that the device lacks

    def __str__(self) -> str:
        """Return how errors call it."""
        return f"{self.instance} on {self.cluster}, batch {self.batch}"

    @cached_property
    def machine(self) -> Machine:
        """What the stack makes of the cluster at the precision."""
        return self.stack.machine(self.cluster, self.precision)

    @property
    def memory_limit(self) -> float:
        """Bytes that a stage may hold on each of its devices."""
        return self.cluster.memory_limit

    @cached_property
    def bound_seconds(self) -> float:
        """Seconds of a step if all devices did its matrix products at their peak all the time.

        No plan is faster: kernels, communication and recomputation are left out, and each server
        counts with its own speed.
        """
        device = self.cluster.device
        # Attention stays in 16 bits.
        half = "bf16" if self.precision in LOW else self.precision
        return self._even_seconds(
            self.machine._replace(
                flops=device.peak(self.precision),
                attention_flops=None if self.machine.attention_flops is None else device.peak(half),
                memory_bw=math.inf,
                launch=0.0,
            )
        )

    @cached_property
    def kernel_bound_seconds(self) -> float:
        """Seconds of a step if all devices did nothing but its kernels, as fast as the stack does.

        No plan is faster, whatever its schedule: parts of a kernel, on several devices or for
        several micro-batches, have as many FLOPs and bytes as the whole or more, and fill the
        device no better; launches, communication, recomputation and waiting come on top.
        """
        return self._even_seconds(self.machine._replace(launch=0.0))

    def _even_seconds(self, machine: Machine) -> float:
        """Seconds of all layers for the whole batch, dealt out over the servers by speed."""
        split, model = Split(1, float(self.batch)), self.model
        seconds = 0.0
        counts = (*model.kinds_before[-1].tolist(), 1.0, 1.0)
        for layer, count in zip((*model.kinds, model.embedding, model.head), counts, strict=True):
            if layer is not None:
                times = layer.seconds(machine, split)
                seconds += count * float(times.forward + times.backward)
        speeds = self.cluster.speeds or (1.0,) * self.cluster.servers
        # All devices are busy all the time, each as fast as its server.
        core = seconds / (sum(speeds) * self.cluster.devices_per_server)
        return float(formulas.compose(machine, core))

    def plan(
        self, stages: Sequence[HybridStage], micro_batch: int = 1, **settings: Any
    ) -> HybridPlan:
        """Make a plan of this problem.

        ``micro_batch``: samples of a micro-batch in one replica of the first stage.
        """
        names = ("instance", "cluster", "precision", "batch")
        return HybridPlan(
            **{name: getattr(self, name) for name in names},
            fingerprint=self.model.fingerprint,
            stack=self.stack.to_json(),
            micro_batch=micro_batch,
            stages=tuple(stages),
            **settings,
        )

    def uniform_plan(self, plans: Uniform, k: int) -> HybridPlan:
        """Make the plan object of one of several uniform plans."""
        whole = {
            name: int(getattr(plans, name)[k])
            for name in ("chunks", "context", "expert", "gradient_bytes", "shard", "expert_tp")
        }
        flags = {
            name: bool(getattr(plans, name)[k])
            for name in ("sequence_parallel", "gradient_overlap", "offload")
        }
        tp, pp, chunks = int(plans.tp[k]), int(plans.pp[k]), whole["chunks"]
        schedule = str(plans.schedule[k]) or SCHEDULES[1 if chunks > 1 else 0]
        numbers = piece_of(schedule, pp, chunks)
        bounds = even_bounds(len(self.model), int(numbers.max()) + 1).tolist()
        mode = str(plans.recompute[k])
        stages = []
        for pieces in numbers.tolist():
            layers = tuple((bounds[piece], bounds[piece + 1]) for piece in pieces)
            size = sum(end - first for first, end in layers)
            devices = tp * whole["context"] * int(plans.dp[k])
            again: Any = () if mode == "none" or not size else {mode: size}
            stages.append(HybridStage(layers, devices, tp, int(plans.zero[k]), again))
        p2p = SENDS[0] if plans.blocking[k] else SENDS[1]
        micro_batch = int(plans.micro_batch[k])
        return self.plan(stages, micro_batch, schedule=schedule, p2p=p2p, **whole, **flags)

    def stages(self, plan: HybridPlan) -> Stages:
        """Return a well-formed plan as arrays, (S,) or (K, S) each."""
        layers, full, selective = self._layers(plan)
        behind, ahead = self._crossing(plan)
        is_split = plan.schedule in SPLIT
        return self._arrays(
            plan,
            **formulas.of_chunks(layers, ahead, behind),
            full=full.sum(axis=2),
            selective=selective.sum(axis=2),
            chunks=plan.chunks,
            schedule=plan.schedule,
            pieces=Chunks(layers, full, selective, ahead) if is_split else None,
        )

    def step(self, plan: HybridPlan) -> Step:
        """Return the seconds of a step of a well-formed plan, fitting or not."""
        return formulas.step(self.model, self.cluster, self.machine, self.stages(plan))

    def length(self, plan: HybridPlan) -> float:
        """Return the closed-form seconds of a step of a well-formed plan, fitting or not."""
        return float(self.step(plan).length)

    def memory(self, plan: HybridPlan) -> Memory:
        """Return the bytes on a device of each stage of a well-formed plan, (S,) each."""
        return formulas.memory(self.model, self.machine, self.stages(plan))

    def chunk_seconds(self, plan: HybridPlan) -> ChunkSeconds:
        """Return the seconds of every chunk of a well-formed plan, for the simulation."""
        if plan.schedule in SPLIT:
            stages = self.stages(plan)
            table, transfers = formulas.passes(self.model, self.cluster, self.machine, stages)
            return ChunkSeconds(table[0], table[1] + table[2], transfers, table[2])
        layers, full, selective = self._layers(plan)
        behind, ahead = self._crossing(plan)
        on, back = ahead.copy(), behind.copy()
        # The ends of the chain have one neighbor, whose sends count twice (``Stages.back``).
        on[0, 0] *= 2
        back[-1, -1] *= 2
        seconds = ChunkSeconds(*(np.zeros_like(on) for _ in range(3)))
        last = plan.chunks - 1
        for first, end in sorted({(0, 1), (1, last), (last, last + 1)}):
            if first >= end:
                continue
            which = slice(first, end)
            # A chunk is a plan of one chunk, whose model has its ends only where the chunk has.
            model = replace(
                self.model,
                embedding=self.model.embedding if first == 0 else None,
                head=self.model.head if end > last else None,
            )
            counts = layers[:, :, which]
            stages = self._arrays(
                plan,
                **{"layers": counts, "first_chunk": counts, "full": full[:, :, which]},
                selective=selective[:, :, which],
                **{"on": on[:, which], "back": back[:, which]},
                first=np.ones_like(on[:, which]),
                links=np.zeros_like(on[:-1, which]),
            )
            step = formulas.step(model, self.cluster, self.machine, stages)
            waits = (step.sends + step.gathers) / 2  # half of them in each pass
            seconds.forward[:, which] = step.forward + step.forward_exchange + waits
            exchange = step.exchange - step.forward_exchange
            seconds.backward[:, which] = step.backward + step.recomputed + exchange + waits
            if plan.p2p == SENDS[1] and len(plan.stages) > 1:
                seconds.transfer[:, which] = formulas.transfer_seconds(
                    self.cluster, self.machine, stages, ahead[:, which]
                )
        return seconds

    def report(self, plan: HybridPlan) -> HybridReport:
        """Judge a plan on this problem."""
        reasons = report.malformed(plan, self.model, self.cluster)
        stages, step, held = None, None, None
        if not reasons:
            stages = self.stages(plan)
            chain = formulas.looked_up(self.model, self.machine, stages)
            step = formulas.step(chain, self.cluster, self.machine, stages)
            held = formulas.memory(chain, self.machine, stages)
        reasons += report.mismatches(plan, self)
        if held is not None:
            reasons += report.over_memory(held, self.memory_limit)
        names = ("model", "cluster", "machine", "batch", "bound_seconds")
        found = HybridReport(
            plan=plan,
            **{name: getattr(self, name) for name in names},
            reasons=tuple(reasons),
            memory_limit_bytes=self.memory_limit,
            arrays=stages,
            step=step,
            held=held,
            problem=self,
        )
        return self.trials.judged(found) if self.trials else found

    def _arrays(self, plan: HybridPlan, **figures: Any) -> Stages:
        """Return a plan as arrays; ``figures`` are those that differ by chunk, (S, ...) each."""
        devices, tp, zero = (
            np.array([getattr(stage, name) for stage in plan.stages])
            for name in ("devices", "tp", "zero")
        )
        dp, first = devices // (tp * plan.context), devices.cumsum() - devices
        # A micro-batch is given per replica of the first stage; later ones share its samples.
        samples = plan.micro_batch * int(dp[0])
        shape = figures["on"].shape
        speed = stage_speeds(self.cluster, first, devices, plan.servers)
        columns = {"tp": tp, "dp": dp, "zero": zero, "device": first, "speed": speed}
        for name, column in columns.items():
            wide = column.reshape(-1, *(1,) * (len(shape) - 1))
            figures[name] = np.broadcast_to(wide, shape)
        alike = ("context", "sequence_parallel", "expert", "gradient_overlap", "shard", "expert_tp")
        return Stages(
            **figures,
            **{name: getattr(plan, name) for name in (*alike, "offload")},
            samples=samples,
            micro_batches=plan.batch / samples,
            blocking=plan.p2p == SENDS[0],
            gradient_bytes=float(plan.gradient_bytes),
        )

    def _layers(self, plan: HybridPlan) -> np.ndarray:
        """(3, K, S, v) layers by kind, stage and chunk; those recomputed in full; selectively."""
        kinds, chunks = np.array(self.model.kind_of), plan.chunks
        shape = 3, len(self.model.kinds), len(plan.stages), chunks
        first, end = np.array([stage.layers for stage in plan.stages]).reshape(-1, 2).T
        # All layers, range after range: stages list their modes so.
        size, piece = end - first, np.arange(len(first))
        piece = np.repeat(piece, size)
        layer = np.arange(len(piece)) + np.repeat(first - (size.cumsum() - size), size)
        modes = np.concatenate([np.array(stage.modes) for stage in plan.stages])
        again = 1 * (modes == "full") + 2 * (modes == "selective")
        place = again, kinds[layer], piece // chunks, piece % chunks
        number = np.ravel_multi_index(place, shape)
        counts = np.bincount(number, minlength=np.prod(shape)).reshape(shape).astype(float)
        return np.stack([counts.sum(axis=0), counts[1], counts[2]])

    def _crossing(self, plan: HybridPlan) -> np.ndarray:
        """(2, S, v) elements per sample that cross the boundary before, and behind, each range."""
        bounds = np.array([stage.layers for stage in plan.stages])
        return self.model.crossing_after[np.moveaxis(bounds, 2, 0)]
