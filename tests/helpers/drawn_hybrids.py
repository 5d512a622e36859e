"""Small drawn hybrid problems, and all their plans of free stages judged one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations, product
from typing import Any, NamedTuple

import numpy as np

from parenvs.cluster import Cluster, Device
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Stages
from parenvs.tasks.hybrid.layers import Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.space import Constraints, UniformSpace, software_of
from parenvs.tasks.hybrid.stack import STACKS, Machine
from parenvs.tasks.hybrid.uniform import Uniform, even_bounds


@dataclass(frozen=True)
class DrawnLayer(Layer):
    """A layer whose figures are drawn: seconds and bytes of a sample on one rank."""

    forward: float
    backward: float
    exchange: float
    attention: float
    size: float
    saved: tuple[float, float, float]
    working: float

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        share = split.samples / split.tp
        overhead = np.where(np.asarray(split.tp) > 1, self.exchange * split.samples, 0.0)
        overhead = overhead / split.shared
        return LayerSeconds(
            self.forward * share + 1e-3, self.backward * share + 2e-3, overhead, 1.5 * overhead,
            self.attention * share,
        )  # fmt: skip

    def parameters(self, split: Split) -> tuple[Any, Any]:
        return self.size / split.tp, 0.0

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Any:
        kept = self.saved[("none", "selective", "full").index(mode)]
        return kept * split.samples / split.tp / split.shared**0.5

    def working_bytes(self, machine: Machine, split: Split) -> Any:
        return self.working * split.samples / split.tp


def drawn_layer(rng: np.random.Generator) -> DrawnLayer:
    """Draw a layer; it keeps less the more it recomputes."""
    forward, size, kept = rng.uniform(0.5, 3), 10 ** rng.uniform(6, 8.5), rng.uniform(1, 6) * 1e8
    return DrawnLayer(
        forward,
        forward * rng.uniform(1.5, 2.5),
        forward * rng.choice([0.0, 0.05, 0.4]),
        forward * rng.uniform(0, 0.5),
        size,
        (kept, kept * rng.uniform(0.4, 1), kept * rng.uniform(0.05, 0.4)),
        rng.choice([0.0, 1e8]) * rng.uniform(),
    )


SHAPES = ((1, 2), (1, 4), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1))
"""Servers, and devices of each."""


def drawn_problem(rng: np.random.Generator) -> Hybrid:
    """Draw a problem of at most 6 layers on at most 4 servers; some plans exceed the memory."""
    servers, inside = SHAPES[rng.integers(len(SHAPES))]
    layers = int(rng.integers(2, 7 if servers * inside <= 4 else 5))
    kinds = tuple(drawn_layer(rng) for _ in range(rng.integers(1, 4)))
    ends = [drawn_layer(rng) if rng.random() < 0.6 else None for _ in range(2)]
    tied = 0.0
    if None not in ends and rng.random() < 0.5:
        tied = float(ends[0].size)  # type: ignore[union-attr]
        ends[1] = replace(ends[1], size=2 * tied)  # type: ignore[type-var]
    model = HybridModel(
        name="drawn",
        fingerprint="sha256:drawn",
        kinds=kinds,
        kind_of=tuple(int(x) for x in rng.integers(len(kinds), size=layers)),
        crossing=tuple(rng.uniform(1e6, 1e8, size=layers - 1)),
        embedding=ends[0],
        head=ends[1],
        tied_parameters=tied,
    )
    device = Device("drawn", 1e14, 1e12, 10 ** rng.uniform(9.2, 10.3))
    intra, inter = 10 ** rng.uniform(8.5, 11), 10 ** rng.uniform(8, 10.5)
    speeds = tuple(rng.choice([1.0, 0.8], size=servers)) if rng.random() < 0.2 else ()
    cluster = Cluster(servers, inside, device, max(intra, inter), inter, speeds=speeds)
    name = list(STACKS)[rng.integers(3)]
    stack = replace(STACKS[name], scatter_gather=bool(rng.random() < 0.7))
    return Hybrid(model, cluster, int(rng.choice([4, 6, 8])), stack, "fp16")


def drawn_hetero(rng: np.random.Generator, most: int = 4) -> Hybrid:
    """Draw a problem of at most 5 layers on 2 to ``most`` servers of different speed."""
    drawn = drawn_problem(rng)
    servers = int(rng.integers(2, most + 1))
    layers = int(rng.integers(servers, 6))
    kinds = len(drawn.model.kinds)
    model = replace(
        drawn.model,
        kind_of=tuple(int(x) for x in rng.integers(kinds, size=layers)),
        crossing=tuple(rng.uniform(1e6, 1e8, size=layers - 1)),
        tied_parameters=0.0,
    )
    speeds = tuple(np.round(rng.uniform(0.5, 1.0, servers), 1).tolist())
    cluster = replace(drawn.cluster, servers=servers, devices_per_server=2, speeds=speeds)
    stack = STACKS[str(rng.choice(["nemo-2024", "llama-2024", "megascale-2024"]))]
    return Hybrid(model, cluster, drawn.batch, stack, "fp16")


def drawn_shape(rng: np.random.Generator) -> Hybrid:
    """Draw a problem of a transformer of at most 4 blocks, with all that its shape allows."""
    drawn = drawn_problem(rng)
    experts = int(rng.choice([1, 1, 2, 4]))
    shape = TransformerShape(
        "drawn", int(rng.integers(1, 5)), int(rng.choice([256, 1024])), int(rng.choice([2, 4])),
        int(rng.choice([18, 512, 8192])), 1024, experts=experts, active=min(experts, 2),
        experts_every=int(rng.integers(1, 3)) if experts > 1 else 1, tied=bool(rng.random() < 0.5),
        gated=bool(rng.random() < 0.5),
    )  # fmt: skip
    problem = replace(drawn, model=HybridModel.of_shape(shape))
    held = UniformSpace.build(problem, Constraints(uneven=True, idle=True)).memory["total"]
    memory = float(held.min() * (held.max() / held.min()) ** rng.uniform(-0.05, 1.0))
    device = replace(drawn.cluster.device, memory_bytes=memory / 0.9)
    return replace(problem, cluster=replace(drawn.cluster, device=device))


def drawn_limits(rng: np.random.Generator, problem: Hybrid) -> Constraints:
    """Draw constraints, a few of all there are."""
    n, total = len(problem.model), problem.cluster.devices
    first = int(rng.integers(n))
    choices: dict[str, list[Any]] = {
        "tp": [1, 2, 4], "pp": [1, 2, 3], "dp": [1, 2, 4], "micro_batch": [1, 2, 4],
        "chunks": [1, 2], "context": [1, 2], "expert": [1, 2], "shard": [0, 2, 3],
        "expert_tp": [0, 1],
        "schedule": ["1f1b", "interleaved"], "sequence_parallel": [False, True],
        "recompute": [("none",), ("full",), ("none", "full"), ("selective", "full")],
        "zero": [(0,), (1,), (3,), (0, 2), (1, 3)], "most_micro_batch": [1, 2],
        "devices": [total], "idle": [True], "uneven": [True],
        "stage_devices": [1, 2, total],
        "pinned": [((first, int(rng.integers(first, n)) + 1, group),) for group in (None, 1, 2)],
    }  # fmt: skip
    asked = {}
    for name, values in choices.items():
        value = values[int(rng.integers(len(values)))]
        if rng.random() < 0.12:
            asked[name] = value
    if asked.get("pinned", ((0, 0, 1),))[0][2] == 2 and total == 1:
        del asked["pinned"]
    return Constraints(**asked)


def best_of_orders(problem: Hybrid) -> float:
    """Seconds of the fastest plan of one server a stage, over all orders of all servers."""
    best, cluster = np.inf, problem.cluster
    limits = Constraints(stage_devices=cluster.devices_per_server)
    for count in range(1, cluster.servers + 1):
        for order in permutations(cluster.speeds, count):
            part = replace(cluster, servers=count, speeds=order)
            best = min(best, best_of_free_stages(replace(problem, cluster=part), limits))
    return best


def best_of_uniform(problem: Hybrid, uneven: bool, idle: bool = False) -> float:
    """Seconds of the fastest uniform plan that fits, of a model without a shape; infinite if none.

    Args:
        problem: the problem.
        uneven: whether layers that do not divide by the pieces are dealt out, too.
        idle: whether devices may be left free.
    """
    model, cluster = problem.model, problem.cluster
    inside, n = cluster.devices_per_server, len(model)
    ends = [model.embedding is not None, model.head is not None]
    rows = []
    all_devices = range(1, cluster.devices + 1)
    for tp, pp, dp, chunks, samples in product(
        range(1, inside + 1), all_devices, all_devices, range(1, n + 3), (1, 2, 4, 8, 16)
    ):
        taken, pieces = tp * pp * dp, pp * chunks
        if inside % tp or taken > cluster.devices or problem.batch % (dp * samples):
            continue
        if taken < cluster.devices and not idle:
            continue
        if chunks > 1 and (
            pp == 1 or problem.batch // (dp * samples) % pp
            or "interleaved" not in problem.stack.schedules
        ):  # fmt: skip
            continue
        sizes = np.diff(even_bounds(n, pieces))
        as_layers = all(ends) and n % pp > 0 and (n + 2) % pieces == 0
        dealt = uneven and pieces <= n and sizes[ends[0] : pieces - ends[1]].all()
        if n % pieces and not as_layers and not dealt:
            continue
        for mode, zero, shard in product(
            ("none", "selective", "full"), range(4), {0, inside // tp}
        ):
            shared = shard == 0 or (zero > 0 and 1 < shard < dp and dp % shard == 0)
            if shared and (zero == 0 or dp > 1) and (zero < 2 or pp == 1):
                rows.append((tp, pp, dp, samples, chunks, mode, zero, shard))
    if not rows:
        return np.inf
    names = ("tp", "pp", "dp", "micro_batch", "chunks", "recompute", "zero", "shard")
    software = software_of(problem)
    plans = Uniform(
        batch=problem.batch, blocking=software.blocking,
        gradient_bytes=float(software.gradient_bytes), gradient_overlap=software.gradient_overlap,
        **{name: np.array(x) for name, x in zip(names, zip(*rows, strict=True), strict=True)},
    )  # fmt: skip
    seconds, held = plans.judged(model, cluster, problem.machine)
    fits = held["total"] <= problem.memory_limit
    return float(np.where(fits, seconds["length"], np.inf).min())


def best_of_free_stages(problem: Hybrid, limits: Constraints, every_count: bool = False) -> float:
    """Seconds of the fastest plan of free stages that keeps to limits and fits; infinite if none.

    Args:
        problem: the problem.
        limits: the constraints.
        every_count: whether to try all numbers of recomputed layers of all stages together, not
            only the ones that take a stage the fewest seconds among those that fit.
    """
    best, shape = np.inf, problem.model.shape
    if limits.schedule not in (None, "1f1b") or limits.chunks not in (None, 1):
        return best
    if limits.expert_tp:  # stages of their own share experts as other matrices
        return best
    sequence, experts = (1, 1) if shape is None else (shape.sequence, shape.experts)
    near = [x for x in (1, 2, 4, 8, 16) if x == 1 or sequence // x >= 2048]
    contexts = [x for x in ([limits.context] if limits.context else near)
                if x == 1 or (shape is not None and sequence % (2 * x) == 0)]  # fmt: skip
    dealt = [x for x in range(1, experts + 1) if experts % x == 0 and limits.expert in (None, x)]
    for samples, devices, context, expert, shared in product(
        (x for x in range(1, problem.batch + 1) if problem.batch % x == 0),
        limits.device_counts(problem), contexts, dealt, (False, True),
    ):  # fmt: skip
        setting = Alike(samples, devices, context, expert, shared, limits.shard or 0)
        if limits.sequence_parallel not in (None, shared) or (shared and shape is None):
            continue
        for count in range(1, min(devices, len(problem.model) + 2) + 1):
            rows = list(_rows(problem, limits, setting, count))
            if limits.pp in (None, count) and rows:
                best = min(best, _best(problem, limits, setting, count, rows, every_count))
    return best


class Alike(NamedTuple):
    """What all stages of a plan have in common."""

    samples: int
    devices: int
    context: int
    expert: int
    shared: bool
    shard: int


def _rows(
    problem: Hybrid, limits: Constraints, alike: Alike, count: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """(bounds, first devices, tp, dp, zero) of every plan of ``count`` stages."""
    model, cluster, samples, context = problem.model, problem.cluster, alike.samples, alike.context
    devices, inside, n = alike.devices, cluster.devices_per_server, len(problem.model)
    parts = context * (2 if context > 1 else 1)
    cuts = []
    for inner in combinations_with_replacement(range(n + 1), count - 1):
        bounds = (0, *inner, n)
        empty = [i for i in range(count) if bounds[i] == bounds[i + 1]]
        allowed = {0} if model.embedding is not None else set()
        allowed |= {count - 1} if model.head is not None else set()
        if set(empty) <= allowed and not (count == 1 and empty):
            cuts.append(bounds)
    for starts in combinations_with_replacement(range(1, devices), count - 1):
        firsts = (0, *starts, devices)
        sizes = np.diff(firsts)
        if (sizes < 1).any() or (limits.stage_devices and (sizes != limits.stage_devices).any()):
            continue
        places = zip(firsts, sizes.tolist(), strict=False)
        if not all(
            (size < inside and inside % size == 0 and e // inside == (e + size - 1) // inside)
            or (size % inside == 0 and e % inside == 0)
            or (count == 1 and size == devices)
            for e, size in places
        ):
            continue
        options = [
            [
                (tp, dp, zero)
                for tp in (1, 2, 4)
                for dp in [size // (tp * context)]
                for zero in limits.zero
                if dp and size == tp * context * dp and inside % tp == 0
                and limits.tp in (None, tp) and limits.dp in (None, dp)
                and model.reasons_against_tp(tp) is None
                and samples % dp == 0 and limits.micro_batch in (None, samples // dp)
                and samples // dp <= limits.most_micro_batch and dp % alike.expert == 0
                and (zero == min(limits.zero) or dp * context > 1) and (zero < 2 or count == 1)
                and not (alike.shard and (zero == 0 or dp * context % alike.shard))
                and not (alike.shared and model.shape.sequence % (parts * tp))
                and (tp > 1 or not limits.sequence_parallel)
            ]
            for size in sizes.tolist()
        ]  # fmt: skip
        fitting = [
            bounds for bounds in cuts
            if all(
                any((bounds[i], bounds[i + 1], group or sizes[i]) == (first, end, sizes[i])
                    for i in range(count))
                for first, end, group in limits.pinned
            )
        ]  # fmt: skip
        for chosen in product(*options):
            tp, dp, zero = zip(*chosen, strict=True)
            if alike.shared and max(tp) == 1:
                continue
            for bounds in fitting:
                yield bounds, firsts[:-1], tp, dp, zero


def _best(
    problem: Hybrid,
    limits: Constraints,
    alike: Alike,
    count: int,
    rows: list[Any],
    every_count: bool,
) -> float:
    """Seconds of the best of some plans of ``count`` stages."""
    samples, context = alike.samples, alike.context
    model, cluster, machine = problem.model, problem.cluster, problem.machine
    bounds, firsts, tp, dp, zero = (np.array(x).T for x in zip(*rows, strict=True))
    software = software_of(problem)
    layers = np.diff(model.kinds_before[bounds], axis=0)  # (S, N, K)
    on, back = model.crossing_after[bounds[1:]], model.crossing_after[bounds[:-1]]
    links = on[:-1].copy()
    on[0], back[-1] = 2 * on[0], 2 * back[-1]
    inside = cluster.devices_per_server
    speeds = np.repeat(cluster.speeds or (1.0,) * cluster.servers, inside)
    slowest = np.array([
        [speeds[e : e + size].min() for e, size in zip(*pair, strict=True)]
        for pair in zip(firsts, tp * dp * context, strict=True)
    ])  # fmt: skip
    base = Stages(
        layers=np.moveaxis(layers, 2, 0), first_chunk=np.moveaxis(layers, 2, 0),
        full=np.zeros((len(model.kinds), *tp.shape)),
        selective=np.zeros((len(model.kinds), *tp.shape)),
        on=on, back=back, first=np.ones(tp.shape), links=links, tp=tp, dp=dp, zero=zero,
        device=firsts, speed=slowest, samples=samples * np.ones(len(rows)),
        micro_batches=np.full(len(rows), problem.batch / samples), chunks=np.ones(len(rows)),
        context=context, sequence_parallel=alike.shared, expert=alike.expert, shard=alike.shard,
        blocking=software.blocking, gradient_bytes=float(software.gradient_bytes),
        gradient_overlap=software.gradient_overlap,
    )  # fmt: skip

    def with_counts(full: Any, selective: Any) -> Stages:
        ends = bounds[1:]
        middle = np.minimum(bounds[:-1] + full, ends)
        behind = np.minimum(middle + selective, ends)
        whole = model.kinds_before[middle] - model.kinds_before[bounds[:-1]]
        part = model.kinds_before[behind] - model.kinds_before[middle]
        return base._replace(full=np.moveaxis(whole, 2, 0), selective=np.moveaxis(part, 2, 0))

    def judged(stages: Stages) -> tuple[Any, Any]:
        step = formulas.step(model, cluster, machine, stages)
        fits = formulas.memory(model, machine, stages).total <= problem.memory_limit
        counts = {mode: getattr(stages, mode).sum(axis=0) for mode in ("full", "selective")}
        counts["none"] = stages.layers.sum(axis=0) - sum(counts.values())
        for mode, number in counts.items():
            fits = fits & ((number == 0) | (mode in limits.recompute))
        return step, fits

    n = len(model)
    pairs = [(f, s) for f in range(n + 1) for s in range(n + 1 - f)]
    if every_count:
        best = np.inf
        for counts in product(pairs, repeat=count):
            columns = np.array(counts).T[:, :, None]
            step, fits = judged(with_counts(columns[0], columns[1]))
            best = min(best, float(np.where(fits.all(axis=0), step.length, np.inf).min()))
        return best
    # All counts at once, one after the other along the axis of plans.
    plan_bounds, bounds = bounds, np.tile(bounds, len(pairs))
    plans, base = base, _repeated(base, len(pairs))
    full, selective = (np.repeat(column, tp.shape[1]) for column in np.array(pairs).T)
    step, fits = judged(with_counts(full, selective))
    again = np.where(fits, step.recomputed, np.inf).reshape(count, len(pairs), -1)
    chosen = np.array(pairs)[again.argmin(axis=1)]
    bounds, base = plan_bounds, plans
    step, _ = judged(with_counts(chosen[:, :, 0], chosen[:, :, 1]))
    possible = np.isfinite(again.min(axis=1)).all(axis=0)
    return float(np.where(possible, step.length, np.inf).min())


def _repeated(stages: Stages, times: int) -> Stages:
    """The plans, several times over."""
    return Stages(*(
        np.tile(x, (1,) * (x.ndim - 1) + (times,)) if isinstance(x, np.ndarray) else x
        for x in stages
    ))  # fmt: skip
