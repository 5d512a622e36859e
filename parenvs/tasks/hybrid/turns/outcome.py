"""What complete episodes end in: seconds of a step, bytes over the limit, layers recomputed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.stages import Stages
from parenvs.tasks.hybrid.turns.actions import FEWEST, MODES
from parenvs.tasks.hybrid.turns.columns import Chains, Columns, exponent

_FEWEST, _SELECTIVE, _FULL = (MODES.index(name) for name in (FEWEST, "selective", "full"))
_FITS = 1.0 - 1e-13  # of the limit: sums of the same terms in another order fit, too


class Choices(NamedTuple):
    """The choices of k complete episodes, the stage axis first.

    Attributes:
        rows: (k,) problem of each in ``Columns``.
        stages: (k,) S of each.
        micro_batch: (k,) samples in a replica of the first stage.
        chunks: (k,) v.
        shared: (k,) bool, whether sequence parallelism was chosen.
        ends: (S, k) last layer plus one of each stage in the first piece of the chain; behind the
            last stage the same again.
        devices: (S, k); 0 behind the last stage.
        tp: (S, k); 1 behind the last stage.
        zero: (S, k); 0 behind the last stage.
        mode: (S, k) numbers in ``MODES``; 0 behind the last stage.
        servers: (k, 64) order of the servers, or None if all stand in order.
    """

    rows: np.ndarray
    stages: np.ndarray
    micro_batch: np.ndarray
    chunks: np.ndarray
    shared: np.ndarray
    ends: np.ndarray
    devices: np.ndarray
    tp: np.ndarray
    zero: np.ndarray
    mode: np.ndarray
    servers: np.ndarray | None = None


class Outcome(NamedTuple):
    """What k episodes end in.

    Attributes:
        length: (k,) seconds of a step.
        excess: (k,) bytes over the limit on the fullest device; at most 0 if the plan fits.
        full: (S, k) layers recomputed in full.
        selective: (S, k) layers of which the attention is recomputed.
    """

    length: np.ndarray
    excess: np.ndarray
    full: np.ndarray
    selective: np.ndarray


def outcome(columns: Columns, choices: Choices) -> Outcome:
    """Judge complete episodes, as ``Hybrid.report`` judges their plans."""
    layout = _Layout(columns, choices)
    stages = _stages(columns, choices, layout)
    model: Any = Chains(columns, choices.rows, stages.split)
    machine = columns.machine(choices.rows)
    held = formulas.parameters(model, stages)
    stages, full, selective, size = _recomputed(
        columns, choices, layout, stages, model, machine, held
    )
    step = formulas.step(model, columns.cluster, machine, stages, held)
    excess = size.max(axis=0) - columns.memory_limit[choices.rows]
    return Outcome(step.length, excess, full, selective)


class _Layout:
    """Where the layers of every stage stand: pieces of the chain, and of the stages in them."""

    def __init__(self, columns: Columns, choices: Choices) -> None:
        rows, chunks = choices.rows, choices.chunks
        kinds = columns.kinds_before.shape[-1]
        self.before = columns.kinds_before[rows] if kinds > 1 else None  # (k, 129, K)
        self.per, self.chunks = columns.layers[rows] // chunks, chunks
        self.end = choices.ends
        self.begin = np.concatenate([np.zeros_like(self.end[:1]), self.end[:-1]])
        self.width = self.end - self.begin
        self.plan = np.arange(len(rows))
        self.max_chunks = int(chunks.max())

    def first(self, number: Any) -> np.ndarray:
        """(K, S, k) kinds of the first layers of every stage, ``number`` (S, k) of them."""
        if self.before is None:
            return number[None].astype(np.float64)
        parts = [self.of_chunk(number, chunk) for chunk in range(self.max_chunks)]
        return np.sum(parts, axis=0) if len(parts) > 1 else parts[0]

    def of_chunk(self, number: np.ndarray, chunk: int) -> np.ndarray:
        """(K, S, k) those of them in one chunk."""
        within = np.minimum(np.maximum(number - chunk * self.width, 0), self.width)
        if self.max_chunks > 1:
            within = np.where(chunk < self.chunks, within, 0)
        if self.before is None:
            return within[None].astype(np.float64)
        base = np.minimum(chunk * self.per, self.per * self.chunks - self.per) + self.begin
        found = self.before[self.plan, base + within] - self.before[self.plan, base]
        return found.transpose(2, 0, 1)


def _recomputed(
    columns: Columns,
    choices: Choices,
    layout: _Layout,
    stages: Stages,
    model: Any,
    machine: Any,
    parameters: tuple[np.ndarray, np.ndarray],
) -> tuple[Stages, np.ndarray, np.ndarray, np.ndarray]:
    """Say what the stages recompute.

    Returns:
        The plans, the layers that stages recompute in full and selectively, and the bytes on a
        device of each, (S, k).
    """
    size = layout.width * layout.chunks
    is_full, is_selective = choices.mode == _FULL, choices.mode == _SELECTIVE
    full, selective = np.where(is_full, size, 0), np.where(is_selective, size, 0)
    stages = stages._replace(full=stages.layers * is_full, selective=stages.layers * is_selective)
    fewest = choices.mode == _FEWEST
    held = formulas.memory(model, machine, stages, held=parameters)
    if fewest.any():
        need = held.total - columns.memory_limit[choices.rows] * _FITS
        lacking = fewest & (need > 0)
        if lacking.any():
            own = _fewest(layout, stages, model, machine, need, held.working, size)
            full = np.where(lacking, own[0], full)
            selective = np.where(lacking, own[1], selective)
            again = layout.first(full)
            stages = stages._replace(full=again, selective=layout.first(full + selective) - again)
            held = formulas.memory(model, machine, stages, states=held)
    return stages, full, selective, held.total


def _fewest(
    layout: _Layout,
    stages: Stages,
    model: Any,
    machine: Any,
    need: np.ndarray,
    working: np.ndarray,
    size: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(S, k) fewest layers to recompute in full, and selectively.

    Layers count from the first: attention of one after the other, then whole layers. While one is
    recomputed in full, the largest layer of the stage is taken to be at work.

    Args:
        layout: where the layers stand.
        stages: the plans, nothing recomputed.
        model: their chains.
        machine: their machines.
        need: (S, k) bytes over the limit.
        working: (S, k) bytes of them that exist only while a layer runs.
        size: (S, k) layers of each stage.
    """
    flight = formulas.in_flight(
        len(stages.tp), stages.micro_batches, stages.chunks, count=stages.count
    )
    flight, split = flight / stages.chunks, stages.split
    kept = [
        [kind.saved_bytes(machine, split, mode) for mode in ("none", "selective", "full")]
        for kind in model.kinds
    ]
    some = np.stack([none - part for none, part, _ in kept])  # (K, S, k) bytes saved by a layer
    whole = np.stack([none - least for none, _, least in kept])
    at_work = [
        np.where(count > 0, modes[0] + kind.working_bytes(machine, split), 0.0)
        for kind, count, modes in zip(model.kinds, stages.layers, kept, strict=True)
    ]
    largest = np.maximum(np.max(at_work, axis=0) - working, 0.0)  # beyond what runs anyway

    if len(kept) == 1:  # all layers are alike
        selective = _whole(need, flight * some[0], size)
        enough = need - flight * selective * some[0] <= 0
        more = need + largest - flight * size * some[0]
        full = np.where(enough, 0, _whole(more, flight * (whole - some)[0], size))
        return full, np.where(enough, selective, size - full)

    def fits(full: np.ndarray, number: np.ndarray) -> np.ndarray:
        again = layout.first(full)
        attention = layout.first(number) - again
        saved = (again * whole).sum(axis=0) + (attention * some).sum(axis=0)
        return np.asarray(need + np.where(full > 0, largest, 0.0) - flight * saved <= 0)

    selective = _smallest(lambda number: fits(np.zeros_like(number), number), size)
    enough = fits(np.zeros_like(size), selective)
    full = np.where(enough, 0, _smallest(lambda number: fits(number, size), size))
    return full, np.where(enough, selective, size - full)


def _whole(need: np.ndarray, each: np.ndarray, maximum: np.ndarray) -> np.ndarray:
    """Fewest layers, from 1 to ``maximum``, that leave ``need`` bytes if each leaves ``each``."""
    number = np.ceil(need / np.maximum(each, 1e-9 * np.abs(need)))
    return np.minimum(np.maximum(number, 1), maximum).astype(np.int64)


def _smallest(fits: Any, maximum: np.ndarray) -> np.ndarray:
    """Smallest number from 1 to ``maximum`` that fits, ``maximum`` if none does; by halving."""
    low, high = np.minimum(1, maximum), maximum.copy()
    while np.any(low < high):
        middle = (low + high) // 2
        enough = fits(middle)
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return low


def _stages(columns: Columns, choices: Choices, layout: _Layout) -> Stages:
    """Return plans that recompute nothing as arrays, see ``Hybrid.stages``."""
    count, chunks, plan = choices.stages, choices.chunks, layout.plan
    real = np.arange(len(choices.tp))[:, None] < count
    single = len(plan) == 1 or bool((count == len(choices.tp)).all())
    dp = np.maximum(choices.devices, 1) // choices.tp
    samples = choices.micro_batch * dp[0]
    if not single:
        dp = np.where(real, dp, dp[0])
    first = choices.devices.cumsum(axis=0) - choices.devices
    size = layout.width * chunks
    layers = layout.first(size)
    of_first = layers if layout.max_chunks == 1 else layout.of_chunk(size, 0)
    rows, kind = choices.rows, exponent(chunks)
    on = columns.crossing_all[rows, kind, layout.end]
    back = columns.crossing_all[rows, kind, layout.begin]
    if not single:
        on *= real
        back *= real
    links = on[:-1].copy()
    last = (count - 1, plan)
    on[0] += columns.crossing[rows, layout.end[0]]
    back[last] += columns.crossing[rows, layout.per * (chunks - 1) + layout.begin[last]]
    software = columns.software
    return Stages(
        layers=layers,
        first_chunk=of_first,
        full=0.0 * layers,
        selective=0.0 * layers,
        on=on,
        back=back,
        first=of_first.sum(axis=0) / np.maximum(size, 1)
        if layout.max_chunks > 1
        else np.ones(size.shape),
        links=links,
        tp=choices.tp,
        dp=dp,
        zero=choices.zero,
        device=first,
        speed=_speeds(columns, choices, first),
        samples=samples,
        micro_batches=columns.batch[choices.rows] / samples,
        chunks=chunks,
        context=1,
        sequence_parallel=choices.shared & (choices.tp.max(axis=0) > 1),
        expert=1,
        blocking=software.blocking,
        gradient_bytes=float(software.gradient_bytes),
        gradient_overlap=software.gradient_overlap,
        count=None if single else count,
    )


def _speeds(columns: Columns, choices: Choices, first: np.ndarray) -> np.ndarray:
    """(S, k) speed of the slowest server of each stage, 1 behind the last stage."""
    if not columns.differ:
        return np.ones(first.shape)
    inside = columns.cluster.devices_per_server
    ordered = columns.speeds[choices.rows]
    if choices.servers is not None:
        ordered = np.take_along_axis(ordered, choices.servers, axis=1)
    end = -(-(first + choices.devices) // inside)
    begin = first // inside
    widest = int((end - begin).max())
    slowest = np.ones(first.shape)
    for step in range(widest):
        at = np.minimum(begin + step, end - 1)
        found = ordered[np.arange(len(ordered)), at]
        slowest = np.where(end > begin, found if step == 0 else np.minimum(slowest, found), 1.0)
    return slowest
