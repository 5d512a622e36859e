"""What is believed of a plan before any trial: step times by several stacks, constants uncertain.

Constants of software and links are log-normal around those of a stack. A step is a sum of parts,
each of which one constant scales, so that ``L = L0 (1 + sum_j w_j (e^(s_j z_j) - 1))``: one
evaluation by the formulas of the task for each constant gives its part ``w_j`` for every machine.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.stack import LOW, STACKS, Stack
from parenvs.tasks.hybrid.uniform import Uniform

SPREAD = {
    "matmul_share": 0.10,
    "attention_share": 0.25,
    "intra_bw": 0.25,
    "nic_bw": 0.35,
    "send_share": 0.35,
    "memory_share": 0.25,
    "launch": 0.6,
    "hop_in": 0.7,
    "hop_out": 0.7,
    "send_wait": 0.7,
    "gather_share": 0.3,
    "permute_passes": 0.6,
    "optimizer_bytes": 0.3,
    "hidden": 0.25,
    "tensor_overlap": 0.4,
}
"""Constant of a stack or a cluster -> standard deviation of its logarithm; of ``SHARES`` of itself.

Shares of matrix products that fit one table alike span 0.9 to 1.1 and more of their value; shares
of links in nccl-tests and in stacks lie between 0.53 and 1.1 times 0.86; passes over tokens between
6 and 40, and 4 and 12, in two releases.
"""
MEASURED = 0.03
"""The same of links that were measured; kernels that were have the rates that were found."""
SHARES = ("hidden", "tensor_overlap")
"""Constants that are added to, and stay in [0, 1]."""
LATER = ("launch", "hop_in", "hop_out", "send_wait", "permute_passes", "optimizer_bytes")
"""Constants of which more is slower; of the others more is faster."""
_ALSO = {
    "nic_bw": ("inter_bw",), "hidden": ("gather_hidden",),
    "optimizer_bytes": ("optimizer_bytes_full",),
}  # fmt: skip
"""Constant -> those that move with it."""
PARTICLES = 256
"""Machines around each stack."""
FURTHEST = 2.0
"""Most standard deviations that a constant moves."""
FASTEST = 0.1
"""Least share of the stack's own step time that a machine can take."""
COPIES = ("roofline", "megascale-2024", "maxtext-2025", "deepseek-2024")
"""Stacks of which nothing of their own was measured."""
MODERN = ("nemo-2026", "titan-2025", "llama-2024")
"""Stacks that may run on a device on which none, or few, were measured."""


def moved(problem: Hybrid, name: str, deviations: float) -> Hybrid:
    """Return a problem with a constant of ``SPREAD`` moved by so many standard deviations."""
    stack, cluster = problem.stack, problem.cluster
    known = cluster.measured is not None and cluster.measured.collectives
    step = (MEASURED if known and name == "intra_bw" else SPREAD[name]) * deviations
    factor, is_link = float(np.exp(step)), name in ("intra_bw", "nic_bw")
    changed: dict[str, Any] = {}
    for key in (name, *_ALSO.get(name, ())):
        value = getattr(cluster if is_link else stack, key)
        if name in SHARES:
            changed[key] = None if value is None else float(np.clip(value + step, 0, 1))
        elif isinstance(value, dict):  # a constant by device moves on all devices alike
            changed[key] = {device: x * factor for device, x in value.items()}
        elif value is not None:
            changed[key] = value * factor
    if is_link:
        return replace(problem, cluster=replace(cluster, **changed))
    return replace(problem, stack=replace(stack, **changed))


def stacks_on(problem: Hybrid) -> tuple[Stack, ...]:
    """Return the stacks that may run on a problem's devices: the newest measured of each software.

    Where fewer than ``MODERN`` were measured, those may, too, if the device has bf16.
    """
    device, precision = problem.cluster.device.name, problem.precision
    newest: dict[str, Stack] = {}
    for stack in sorted(STACKS.values(), key=lambda stack: stack.date):
        software, _, year = stack.name.rpartition("-")
        is_own = year.isdecimal() and stack.name not in COPIES
        if is_own and not stack.is_guess(device, precision):
            newest[software] = stack
    known = [newest[name] for name in sorted(newest)]
    can_be = not known or "bf16" in dict(problem.cluster.device.peaks)
    if can_be and len(known) < len(MODERN):
        known += [STACKS[name] for name in MODERN if STACKS[name] not in known]
    return tuple(known)


def _end(stack: Stack, name: str) -> float:
    """Return how many deviations a constant is moved to find its part: to where it is slower."""
    if name in SHARES:
        # A share that cannot fall is moved up.
        return -1.0 if getattr(stack, name) > 0 else 1.0
    return 1.0 if name in LATER else -1.0


def scales(stack: Stack) -> Array:
    """(P, J) by how much of its part each constant lengthens a step on each machine.

    Number k is one machine in every problem, as all draws come from one seed.
    """
    normal = np.random.default_rng(17).standard_normal((PARTICLES, len(SPREAD)))
    columns = []
    for z, (name, spread) in zip(normal.T, SPREAD.items(), strict=True):
        z, end = np.clip(z, -FURTHEST, FURTHEST), _end(stack, name)
        if name in SHARES:
            share = getattr(stack, name)
            columns.append(np.clip(z, -share / spread, (1 - share) / spread) / end)
        else:
            columns.append(np.expm1(spread * z * end) / np.expm1(spread))
    return np.stack(columns, axis=1)


class Priced(NamedTuple):
    """What is believed of N plans by S stacks; J constants.

    Attributes:
        seconds: (S, N) logarithms of the step time, in seconds of the problem's batch.
        parts: (S, N, J) of the step time that each constant scales, see ``scales``.
        states: (S, N) bytes of weights, gradients and optimizer on the fullest device.
        others: (S, N) bytes of activations and what exists while a layer runs.
        features: (N, F) see ``features_of``.
        limit: bytes of a device.
    """

    seconds: Array
    parts: Array
    states: Array
    others: Array
    features: Array
    limit: float

    def take(self, which: Array) -> Priced:
        """Return some of the plans."""
        arrays = (x[:, which] for x in self[:4])
        return Priced._make([*arrays, self.features[which], self.limit])

    def particles(self, stacks: tuple[Stack, ...]) -> Array:
        """(S, P, N) logarithms of the step time on each machine."""
        longer = np.stack([
            scales(stack) @ part.T for stack, part in zip(stacks, self.parts, strict=True)
        ])  # fmt: skip
        return np.asarray(self.seconds[:, None] + np.log(np.maximum(1 + longer, FASTEST)))


def joined(parts: list[Priced]) -> Priced:
    """Return plans of several problems together; the limit is that of the last."""
    columns = (np.concatenate(x, axis=1) for x in zip(*(part[:4] for part in parts), strict=True))
    features = np.concatenate([part.features for part in parts])
    return Priced._make([*columns, features, parts[-1].limit])


def lengths(problem: Hybrid, stacks: tuple[Stack, ...], plans: Uniform | HybridPlan) -> Array:
    """(S, N) logarithms of the step time of plans by several stacks."""
    return np.stack([
        _judged(replace(problem, stack=stack), plans, held=False)[0] for stack in stacks
    ])  # fmt: skip


def priced(problem: Hybrid, stacks: tuple[Stack, ...], plans: Uniform | HybridPlan) -> Priced:
    """Price uniform plans, or one plan, by several stacks, constants moved one at a time."""
    rows = []
    for stack in stacks:
        at = replace(problem, stack=stack)
        length, memory = _judged(at, plans)
        parts = np.zeros((len(length), len(SPREAD)))
        for j, name in enumerate(SPREAD):
            other = moved(at, name, _end(stack, name))
            if matters(name, other, plans) and other.machine != at.machine:
                parts[:, j] = np.expm1(_judged(other, plans, held=False)[0] - length)
        states = memory.weights + memory.gradients + memory.optimizer
        others = memory.activations + memory.working
        rows.append((length, parts, states, others))
    more = features_of(problem, plans), problem.cluster.device.memory_bytes
    return Priced._make([*map(np.stack, zip(*rows, strict=True)), *more])


def matters(name: str, problem: Hybrid, plans: Uniform | HybridPlan | None = None) -> bool:
    """Return whether a constant may change the step time of plans."""
    shape, cluster = problem.model.shape, problem.cluster
    if name == "permute_passes":
        return shape is not None and shape.experts > 1
    if name in ("nic_bw", "hop_out"):
        return cluster.servers > 1
    if name == "gather_share" and isinstance(plans, Uniform):
        return bool((plans.zero >= 3).any())
    return True


def _judged(
    problem: Hybrid, plans: Uniform | HybridPlan, held: bool = True
) -> tuple[Array, formulas.Memory | Any]:
    """Logarithms of the step time for the problem's batch, (N,), and bytes on a device."""
    software, batch = software_of(problem), plans.batch
    memory: Any = None
    if isinstance(plans, Uniform):
        plans = replace(plans, **software.of_arrays)
        parts = plans.seconds(problem.model, problem.cluster, problem.machine)
        length = parts["length"]
        if held:
            memory = formulas.Memory(**plans.memory(problem.model, problem.machine))
    else:
        plan = replace(plans, **software.of_plan)
        length = np.array([problem.length(plan)])
        if held:
            every = problem.memory(plan)
            memory = formulas.Memory(*(x[[every.total.argmax()]] for x in every))
    return np.log(length * problem.batch / batch), memory


def features_of(problem: Hybrid, plans: Uniform | HybridPlan) -> Array:
    """(N, 10) what residuals of alike plans have in common, each scaled to its importance."""
    if isinstance(plans, HybridPlan):
        plans = uniform_of(plans)
    shape = problem.model.shape
    tokens = plans.micro_batch * (1 if shape is None else shape.sequence) / plans.context
    again = np.select([plans.recompute == mode for mode in RECOMPUTE_MODES], [0.0, 0.5, 1.0])
    return np.stack([
        np.log2(plans.tp), np.log2(plans.pp), np.log2(tokens), 1.5 * again,
        0.7 * plans.sequence_parallel, 0.3 * plans.zero, 0.7 * np.log2(plans.chunks),
        np.log2(plans.context), np.log2(plans.expert),
        np.full(plans.size, float(problem.precision in LOW)),
    ], axis=1)  # fmt: skip


def uniform_of(plan: HybridPlan) -> Uniform:
    """Return the uniform plan of a plan's values; where its stages differ, those of the first."""
    first = plan.stages[0]
    modes = [mode for stage in plan.stages for mode in stage.modes] or ["none"]
    axes = {name: x for name, x in plan.axes.items() if x is not None}
    axes["schedule"] = "" if plan.schedule in ("1f1b", "interleaved") else plan.schedule
    defaults = {
        "tp": first.tp,
        "dp": first.devices // (first.tp * plan.context),
        "zero": first.zero,
        "recompute": max(modes, key=modes.count),
    }
    names = {item.name for item in fields(Uniform)} & set(vars(plan)) - {"schedule"}
    alike = {name: getattr(plan, name) for name in names}
    return Uniform(**{**defaults, **alike, **axes})
