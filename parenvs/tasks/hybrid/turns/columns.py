"""Several problems as arrays, for judging plans of all of them at once.

Layers are asked once for every number of samples, tp and kind of sequence parallelism that turns
can choose; afterwards their figures are looked up. Everything else is what ``formulas`` makes of
arrays, whose last axis is plans.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.layers import Figure, Layer, LayerSeconds, Split
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import software_of
from parenvs.tasks.hybrid.stack import Machine
from parenvs.tasks.hybrid.turns.actions import CHUNKS, LAYERS, SERVERS, TPS
from parenvs.tasks.hybrid.turns.rules import Rules, TurnLimits

DOUBLINGS = 12
"""Samples of a replica's micro-batch are powers of two below 2 to this: at most 16 x 128."""
_SECONDS = len(LayerSeconds._fields)
_FIGURES = _SECONDS + len(RECOMPUTE_MODES) + 1
_SAMPLES, _RANKS, _SHARED = np.meshgrid(
    2.0 ** np.arange(DOUBLINGS), TPS, [False, True], indexing="ij"
)
_SHAPE = _SAMPLES.shape
_RATES = ("flops", "attention_flops", "memory_bw", "launch", "multiprocessors")
_OF_PROBLEMS = (
    "layers", "batch", "crossing", "crossing_all", "speeds", "tied", "memory_limit", "bound"
)  # fmt: skip
_LINKS = ("intra_bw", "nic_bw", "hop_in", "hop_out", "share", "send_share")


def kind_of(problem: Hybrid) -> tuple[Any, ...]:
    """Return what problems that are judged together have in common."""
    return problem.stack, problem.precision, problem.cluster.devices_per_server


def figures_of(layer: Layer | None, machine: Machine) -> tuple[np.ndarray, np.ndarray]:
    """Return a layer's figures by samples, tp and sequence parallelism, and its parameters by tp.

    Returns:
        (10, 12, 4, 2): the fields of ``LayerSeconds``, bytes kept in each of ``RECOMPUTE_MODES``,
        working bytes; and (2, 4): parameters that all replicas hold, and experts'.
    """
    table, held = np.zeros((_FIGURES, *_SHAPE)), np.zeros((2, len(TPS)))
    if layer is None:
        return table, held
    split = Split(_RANKS, _SAMPLES, 1, _SHARED, 1)
    kept = (layer.saved_bytes(machine, split, mode) for mode in RECOMPUTE_MODES)
    figures = (*layer.seconds(machine, split), *kept, layer.working_bytes(machine, split))
    for number, figure in enumerate(figures):
        table[number] = figure
    for number, figure in enumerate(layer.parameters(Split(np.array(TPS), 1.0))):
        held[number] = figure
    return table, held


@dataclass(frozen=True, eq=False)
class LookedUp(Layer):
    """One layer of every stage of several plans, whose figures were looked up for their splits.

    Attributes:
        figures: (10, S, k), see ``figures_of``.
        held: (2, S, k) parameters that all replicas hold, and experts'.
    """

    figures: np.ndarray
    held: np.ndarray

    def seconds(self, machine: Machine, split: Split) -> LayerSeconds:
        """See ``Layer.seconds``."""
        return LayerSeconds(*self.figures[:_SECONDS])

    def parameters(self, split: Split) -> tuple[Figure, Figure]:
        """See ``Layer.parameters``."""
        return self.held[0], self.held[1]

    def saved_bytes(self, machine: Machine, split: Split, mode: str) -> Figure:
        """See ``Layer.saved_bytes``."""
        return self.figures[_SECONDS + RECOMPUTE_MODES.index(mode)]

    def working_bytes(self, machine: Machine, split: Split) -> Figure:
        """See ``Layer.working_bytes``."""
        return self.figures[-1]


def exponent(numbers: Any) -> np.ndarray:
    """Return the exponents of powers of two."""
    return np.frexp(numbers)[1] - 1


class Chains:
    """The chains of several plans' problems, split as the plans say, for ``formulas``.

    Attributes:
        kinds: the K kinds of layers.
        embedding: what the first stages hold beside their layers.
        head: what the last stages hold beside theirs.
        tied_parameters: (k,) parameters that both share.
    """

    def __init__(self, columns: Columns, rows: np.ndarray, split: Split) -> None:
        """Look up the problems ``rows``, (k,), for a split of (S, k) figures."""
        tp, shared = exponent(split.tp), np.asarray(split.sequence_parallel).astype(np.int64)
        place = (rows * DOUBLINGS + exponent(split.samples)) * len(TPS) + tp
        figures = columns.figures.take(2 * place + shared, axis=2, mode="clip")  # (K + 2, 10, S, k)
        held = columns.held.take(rows * len(TPS) + tp, axis=2, mode="clip")
        layers: list[Layer] = [LookedUp(*pair) for pair in zip(figures, held, strict=True)]
        self.kinds, (self.embedding, self.head) = layers[:-2], layers[-2:]
        self.tied_parameters = columns.tied[rows]


class Columns:
    """P problems as arrays; all have one stack, one precision and servers of one size.

    Attributes:
        rules: what plans have in common.
        kind: what the problems have in common, see ``kind_of``.
        problems: the problems.
        limits: what turns may choose of each.
        layers: (P,) n.
        batch: (P,) samples of a step.
        figures: (K + 2, 10, P * 12 * 4 * 2) of K kinds of layers, of embedding and head, of every
            problem by samples, tp and sequence parallelism, see ``figures_of``.
        held: (K + 2, 2, P * 4) their parameters.
        tied: (P,) parameters that embedding and head share.
        kinds_before: (P, 129, K) layers of each kind before each boundary.
        crossing: (P, 129) elements per sample that cross each boundary, 0 at the ends.
        crossing_all: (P, 4, 129) those that cross the boundaries at one place of every piece of the
            chain together, for each of ``CHUNKS``.
        speeds: (P, 64) speed of each server, 1 beyond the cluster.
        differ: whether any speed is not 1.
        memory_limit: (P,) bytes.
        bound: (P,) seconds, ``Hybrid.bound_seconds``.
    """

    def __init__(self, problems: Sequence[Hybrid], rules: Rules) -> None:
        """Ask the layers of all problems for their figures.

        Raises:
            InfeasibleError: a problem is too large for turns.
            ParenvsError: stacks, precisions or sizes of servers differ.
        """
        first = problems[0]
        self.rules, self.cluster, self.software = rules, first.cluster, software_of(first)
        self.kind = kind_of(first)
        self.problems: list[Hybrid] = []
        self.limits: list[TurnLimits] = []
        kinds = max(len(problem.model.kinds) for problem in problems)
        self._make(len(problems), kinds)
        self.differ = False
        for problem in problems:
            self._put(problem)

    def _make(self, count: int, kinds: int) -> None:
        """Make arrays for a number of problems."""
        self.layers, self.batch = np.ones((2, count), dtype=np.int64)
        self.figures = np.zeros((kinds + 2, _FIGURES, count * _SAMPLES.size))
        self.held = np.zeros((kinds + 2, 2, count * len(TPS)))
        self.kinds_before = np.zeros((count, LAYERS + 1, kinds))
        self.crossing = np.zeros((count, LAYERS + 1))
        self.crossing_all = np.zeros((count, len(CHUNKS), LAYERS + 1))
        self.speeds = np.ones((count, SERVERS))
        self.tied, self.memory_limit, self.bound = np.zeros((3, count))
        self._rates = np.zeros((len(_RATES) + len(_LINKS), count))

    def add(self, other: Columns) -> int:
        """Add the problem of other columns, and return its row.

        Where arrays are full, larger ones are made, and the old ones stay as they are.
        """
        row, kinds = len(self.problems), self.kinds_before.shape[-1]
        if row == len(self.layers) or other.kinds_before.shape[-1] > kinds:
            old, self.problems, self.limits = copy.copy(self), [], []
            self._make(max(2 * row, 16), max(kinds, other.kinds_before.shape[-1]))
            self._take(old)
        self._take(other)
        return row

    def _take(self, other: Columns) -> None:
        """Copy the problems of other columns behind those that are there."""
        row, count, kinds = len(self.problems), len(other.problems), other.kinds_before.shape[-1]
        self.problems += other.problems
        self.limits += other.limits
        self.differ = self.differ or other.differ
        rows = slice(row, row + count)
        for name in _OF_PROBLEMS:
            getattr(self, name)[rows] = getattr(other, name)[:count]
        self.kinds_before[rows, :, :kinds] = other.kinds_before[:count]
        self._rates[:, rows] = other._rates[:, :count]
        for own, others in ((self.figures, other.figures), (self.held, other.held)):
            size = others.shape[-1] // len(other.layers)
            part = others[..., : count * size]
            place = own[..., row * size : (row + count) * size]
            place[:kinds], place[-2:] = part[:-2], part[-2:]

    def _put(self, problem: Hybrid) -> None:
        """Look up the next problem."""
        row, first = len(self.problems), self.problems[0] if self.problems else problem
        if kind_of(problem) != self.kind:
            raise ParenvsError(
                f"{problem.instance} and {first.instance} differ in stack, precision or devices of "
                "a server; problems of one batch must not"
            )
        limits = TurnLimits.of(problem, self.rules)
        self.problems.append(problem)
        self.limits.append(limits)
        model, n = problem.model, len(problem.model)
        kinds = self.kinds_before.shape[-1]
        own = [*model.kinds, *[None] * (kinds - len(model.kinds)), model.embedding, model.head]
        for number, layer in enumerate(own):
            figures, held = figures_of(layer, problem.machine)
            all_figures, all_held = self.of_layers(row)
            all_figures[number], all_held[number] = figures, held
        before = model.kinds_before
        self.kinds_before[row, : n + 1, : before.shape[1]] = before
        self.kinds_before[row, n + 1 :] = self.kinds_before[row, n]
        self.crossing[row, : n + 1] = model.crossing_after
        for number, chunks in enumerate(CHUNKS):
            if n % chunks == 0:
                at = np.arange(chunks)[:, None] * (n // chunks) + np.arange(n // chunks + 1)
                self.crossing_all[row, number, : at.shape[1]] = self.crossing[row, at].sum(axis=0)
        speeds = problem.cluster.speeds
        self.speeds[row, : len(speeds)] = speeds
        self.differ = self.differ or bool(speeds)
        self.layers[row], self.batch[row] = n, problem.batch
        self.tied[row], self.memory_limit[row] = model.tied_parameters, problem.memory_limit
        self.bound[row] = problem.bound_seconds
        machine = problem.machine
        rates = [getattr(machine, name) or 0.0 for name in _RATES]
        self._rates[:, row] = rates + [getattr(machine.links, name) for name in _LINKS]

    def of_layers(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views of one problem's figures, (K + 2, 10, 12, 4, 2), and parameters."""
        begin, end = row * _SAMPLES.size, (row + 1) * _SAMPLES.size
        figures = self.figures[:, :, begin:end].reshape(*self.figures.shape[:2], *_SHAPE)
        return figures, self.held[:, :, row * len(TPS) : (row + 1) * len(TPS)]

    def machine(self, rows: np.ndarray) -> Machine:
        """Return the machines of the problems ``rows``, (k,), as one of arrays."""
        first = self.problems[0].machine
        if len(self.problems) == 1:
            return first
        figures = self._rates[:, rows]
        links = replace(first.links, **dict(zip(_LINKS, figures[len(_RATES) :], strict=True)))
        rates: dict[str, Any] = dict(zip(_RATES, figures, strict=False))
        if first.attention_flops is None:
            rates["attention_flops"] = None
        return first._replace(links=links, **rates)
