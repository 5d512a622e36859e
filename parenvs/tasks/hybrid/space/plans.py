"""All uniform plans of a problem, judged at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.legality import PARTS
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES, HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.schedules import CHUNKS, SPLIT, TWO_WAYS, fewest
from parenvs.tasks.hybrid.space.constraints import Constraints, divisors, software_of
from parenvs.tasks.hybrid.space.frameworks import FRAMEWORKS
from parenvs.tasks.hybrid.uniform import Uniform, even_bounds


def uniform_plans(problem: Hybrid, constraints: Constraints | None = None) -> Uniform:
    """Return all uniform plans that keep to the constraints, whether they fit the memory or not.

    Layers are dealt out where they divide by the pieces, or do so with embedding and head as a
    layer each; with ``uneven`` as evenly as they can be.

    Raises:
        InfeasibleError: there is none.
    """
    limits = constraints or Constraints()
    rows = [(head, others) for head, others in _rows(problem, limits) if others]
    if not rows:
        asked = [
            f"{item.name} {getattr(limits, item.name)}"
            for item in fields(limits)
            if getattr(limits, item.name) != item.default and item.name != "uneven"
        ]
        reason = problem.model.reasons_against_tp(limits.tp) if limits.tp else None
        raise InfeasibleError(
            f"{problem.instance} on {problem.cluster}, batch {problem.batch}: no uniform plan "
            f"keeps to {', '.join(asked) or 'the rules'}; "
            + (reason or "the batch must divide by dp x micro_batch, devices by tp x pp, and "
               "layers by the stages")
        )  # fmt: skip
    heads, tails = zip(*rows, strict=True)
    counts = [len(others) for others in tails]
    columns = [np.repeat(np.array(column), counts) for column in zip(*heads, strict=True)]
    apart = {id(others): others for others in tails}  # of a mesh the same list
    made = {key: [np.array(x) for x in zip(*own, strict=True)] for key, own in apart.items()}
    parts = zip(*(made[id(others)] for others in tails), strict=True)
    columns += [np.concatenate(part) for part in parts]
    names = (
        "tp", "pp", "dp", "context", "micro_batch", "chunks", "schedule", "expert",
        "sequence_parallel", "zero", "recompute", "shard",
    )  # fmt: skip
    software = software_of(problem)
    plans = Uniform(
        batch=problem.batch,
        blocking=software.blocking,
        gradient_bytes=float(software.gradient_bytes),
        gradient_overlap=software.gradient_overlap,
        **dict(zip(names, columns, strict=True)),
    )
    if limits.framework is None:
        return plans
    own = FRAMEWORKS[limits.framework].part(plans, problem.model)
    if not own.size:
        raise InfeasibleError(
            f"{problem.instance} on {problem.cluster}, batch {problem.batch}: {limits.framework} "
            f"runs none of the {plans.size} uniform plans as it is; leave --for "
            f"{limits.framework} out"
        )
    return own


_Rows = Iterator[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]


def _rows(problem: Hybrid, limits: Constraints) -> _Rows:
    """Every choice of the axes that shape the pipeline, and those of the others with it."""
    layers = len(problem.model)
    ends = sum(end is not None for end in (problem.model.embedding, problem.model.head))
    for devices in limits.device_counts(problem):
        for context in limits.contexts(problem):
            for tp in limits.tensor_ranks(problem):
                groups, rest = divmod(devices, tp * context)
                whole = limits.stage_devices
                for pp in () if rest else divisors(groups):
                    if pp > layers + ends or limits.pp not in (None, pp):
                        continue
                    if whole is not None and devices != pp * whole:
                        continue
                    yield from _of_mesh(problem, limits, tp, pp, groups // pp, context)


def _of_mesh(
    problem: Hybrid, limits: Constraints, tp: int, pp: int, dp: int, context: int
) -> _Rows:
    """What can be chosen once tp, pp, dp and context are."""
    if limits.dp not in (None, dp) or problem.batch % dp:
        return
    sequences = limits.sequences(problem, tp, context)
    levels = limits.levels(pp, dp * context)
    shards = {zero: limits.shards(problem, tp, dp * context, zero) for zero in levels}
    modes = [mode for mode in RECOMPUTE_MODES if mode in limits.recompute]
    others = [
        (expert, sequence, zero, mode, shard)
        for expert in limits.experts(problem)
        if dp % expert == 0
        for sequence in sequences
        for zero in levels
        for mode in modes
        for shard in shards[zero]
    ]
    for micro_batch in limits.micro_batches(problem.batch // dp):
        count = problem.batch // (dp * micro_batch)
        orders = [(chunks, "") for chunks in _chunk_counts(problem, limits, pp, count)]
        orders += [(CHUNKS[name], name) for name in _split(problem, limits, pp, count)]
        for order in orders:
            yield (tp, pp, dp, context, micro_batch, *order), others


def _chunk_counts(problem: Hybrid, limits: Constraints, pp: int, micro_batches: int) -> list[int]:
    """Numbers of chunks into which the layers of every stage divide."""
    most = 1 if pp == 1 or micro_batches % pp else max((len(problem.model) + 2) // pp, 1)
    wanted = limits.schedule
    return [
        chunks
        for chunks in range(1, most + 1)
        if limits.chunks in (None, chunks)
        and wanted in (None, SCHEDULES[1 if chunks > 1 else 0])
        and SCHEDULES[1 if chunks > 1 else 0] in problem.stack.schedules
        and _divides(problem, limits, pp, pp * chunks)
    ]


def _split(problem: Hybrid, limits: Constraints, pp: int, micro_batches: int) -> Iterator[str]:
    """Yield the schedules of the stack that split backward passes and can be had."""
    if problem.model.shape is None or software_of(problem).blocking:
        return
    for name in SPLIT:
        chunks, both = CHUNKS[name], name == TWO_WAYS
        if (
            name in problem.stack.schedules
            and limits.schedule in (None, name)
            and limits.chunks in (None, chunks)
            and pp > 1
            and not (both and (pp % 2 or micro_batches % 2))
            and micro_batches >= fewest(name, pp)
            and _divides(problem, limits, pp, pp if both else pp * chunks)
        ):
            yield name


def _divides(problem: Hybrid, limits: Constraints, pp: int, pieces: int) -> bool:
    """Whether layers are dealt out to pieces, with embedding and head as a layer each or not."""
    layers = len(problem.model)
    ends = tuple(end is not None for end in (problem.model.embedding, problem.model.head))
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


@dataclass(frozen=True, eq=False)
class UniformSpace:
    """All uniform plans of a problem and what each takes and holds.

    Attributes:
        problem: the problem.
        plans: (N,) the plans.
        memory: bytes on a device of the fullest stage by part, and ``total``, (N,) each.
    """

    problem: Hybrid
    plans: Uniform
    memory: dict[str, np.ndarray]

    @classmethod
    def build(cls, problem: Hybrid, constraints: Constraints | None = None) -> UniformSpace:
        """List the plans, and judge what they hold.

        Raises:
            InfeasibleError: no plan keeps to the constraints.
        """
        plans = uniform_plans(problem, constraints)
        return cls(problem, plans, plans.memory(problem.model, problem.machine))

    def __len__(self) -> int:
        """Return the number of plans."""
        return int(self.plans.size)

    @cached_property
    def seconds(self) -> dict[str, np.ndarray]:
        """Parts of a step and its ``length``, (N,) each, by name, of those that do not fit, too."""
        return self.plans.seconds(self.problem.model, self.problem.cluster, self.problem.machine)

    @cached_property
    def length(self) -> np.ndarray:
        """(N,) seconds of a step, infinite of plans that do not fit, which may be nearly all."""
        found, fitting = np.full(len(self), np.inf), self.plans.take(self.fits)
        seconds = fitting.seconds(self.problem.model, self.problem.cluster, self.problem.machine)
        found[self.fits] = seconds["length"]
        return found

    @cached_property
    def fits(self) -> np.ndarray:
        """(N,) bool, which plans are within memory."""
        return np.asarray(self.memory["total"] <= self.problem.memory_limit)

    def best(self, values: np.ndarray | None = None) -> int | None:
        """Return the plan within memory of the least value, or None if no plan fits.

        Args:
            values: (N,) what to minimise (default: seconds of a step).
        """
        if not self.fits.any():
            return None
        return int(np.where(self.fits, self.length if values is None else values, np.inf).argmin())

    def smallest(self) -> int:
        """Return the plan that needs the fewest bytes, the fastest of several."""
        total = self.memory["total"]
        return int(np.lexsort((self.seconds["length"], total))[0])

    def plan(self, k: int) -> HybridPlan:
        """Return one of the plans, which can be saved."""
        return self.problem.uniform_plan(self.plans, k)

    def describe(self, k: int) -> str:
        """Return a plan in words: ``tp 4, pp 4, dp 8, micro-batch 1, chunks 20, zero 1``."""
        plans = self.plans
        words = [f"tp {plans.tp[k]}", f"pp {plans.pp[k]}", f"dp {plans.dp[k]}"]
        words.append(f"micro-batch {plans.micro_batch[k]}")
        words += [
            f"{name} {getattr(plans, name)[k]}"
            for name in ("chunks", "context", "expert")
            if getattr(plans, name)[k] > 1
        ]
        words += ["sequence parallel"] if plans.sequence_parallel[k] else []
        words += [str(plans.schedule[k])] if plans.schedule[k] else []
        words += [f"ZeRO {plans.zero[k]}"] if plans.zero[k] else []
        words += [f"shard {plans.shard[k]}"] if plans.shard[k] else []
        words += [f"recompute {plans.recompute[k]}"] if plans.recompute[k] != "none" else []
        return ", ".join(words)

    def pareto(self) -> np.ndarray:
        """Return the plans that no other beats in both seconds and bytes, the fastest first."""
        order = np.lexsort((self.memory["total"], self.seconds["length"]))
        total = self.memory["total"][order]
        before = np.minimum.accumulate(np.append(np.inf, total[:-1]))
        return order[total < before]

    def map(self) -> dict[str, np.ndarray]:
        """Return seconds, bytes, whether they fit, and the axes of all plans, (N,) each.

        It is what a picture of seconds against memory needs; ``pareto`` is 1 on the front.
        """
        names = ("tp", "pp", "dp", "micro_batch", "chunks", "zero", "recompute")
        front = np.zeros(len(self), dtype=bool)
        front[self.pareto()] = True
        return {
            "seconds": self.seconds["length"],
            "bytes": self.memory["total"],
            "fits": self.fits,
            "pareto": front,
            **{name: np.asarray(getattr(self.plans, name)) for name in names},
        }


def infeasible(space: UniformSpace, others: str = "") -> InfeasibleError:
    """Return the error for a problem none of whose uniform plans fits the memory.

    Args:
        space: the uniform plans that keep to the constraints.
        others: what other plans do not fit either, in words.
    """
    k, problem = space.smallest(), space.problem
    total = float(space.memory["total"][k])
    parts = {name: float(space.memory[name][k]) for name in PARTS}
    largest = max(parts, key=lambda name: parts[name])
    return InfeasibleError(
        f"{problem.instance} on {problem.cluster}, batch {problem.batch}: none of {len(space)} "
        f"uniform plans{others} fits the memory; the smallest ({space.describe(k)}) needs "
        f"{total - problem.memory_limit:,.0f} bytes more than the {problem.memory_limit:,.0f} "
        f"allowed on its fullest stage; the largest part is {largest}, {parts[largest]:,.0f}"
    )
