"""Hybrid plans as arrays, and what they cost: stages, the seconds of a step, bytes on a device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.schedules import Place, chains, rounds_of

Figure = Any
"""A number or an array of numbers, one for each plan."""


class Chunks(NamedTuple):
    """What schedules with split backward passes have on each chunk.

    Attributes:
        layers: (K, S, v, ...) layers of each kind.
        full: (K, S, v, ...) those of them whose forward pass runs again.
        selective: (K, S, v, ...) those of which only the attention runs again.
        passed: (S, v, ...) elements per sample that a chunk passes to the next of its chain.
    """

    layers: np.ndarray
    full: np.ndarray
    selective: np.ndarray
    passed: np.ndarray


class Stages(NamedTuple):
    """Plans as arrays, the stage axis first.

    Attributes:
        layers: (K, S, ...) layers of each kind on each stage.
        first_chunk: (K, S, ...) those of its first chunk.
        full: (K, S, ...) layers whose forward pass runs again in the backward pass.
        selective: (K, S, ...) layers of which only the attention runs again.
        on: (S, ...) elements per sample that a stage passes to the one behind, over its chunks.
        back: (S, ...) those whose gradients it passes to the one in front. At both ends of the
            chain the other neighbour's count twice: a device sends, or waits, on every turn.
        first: (S, ...) share of its first chunk in both.
        links: (S-1, ...) elements per sample from each stage to the next, over its chunks.
        tp: (S, ...) ranks that share every matrix.
        dp: (S, ...) replicas.
        zero: (S, ...) 0 to 3, which states the replicas share.
        device: (S, ...) first device of each stage.
        speed: (S, ...) of its slowest server.
        samples: (...) samples of a micro-batch over all replicas.
        micro_batches: (...) M.
        chunks: (...) v.
        context: (...) ranks that share the tokens of a sample.
        sequence_parallel: (...) bool.
        expert: (...) replicas among which experts are dealt out.
        blocking: (...) bool, whether the devices wait for their sends.
        gradient_bytes: (...) u, bytes of a gradient.
        gradient_overlap: (...) bool, whether gradients are summed during the last backward pass.
        shard: (...) replicas among which ZeRO shares states, neighbours; 0: all of them.
        expert_tp: (...) ranks that share every matrix of an expert; 0: ``tp``.
        offload: (...) bool, whether activations wait in the memory of the server.
        attended: (...) tokens of its own document, see ``Split``; None: samples are not packed.
        count: (P,) stages of each of P plans, at most S; what stands behind them holds nothing
            (None: all have S).
        schedule: of all plans, one of ``parenvs.tasks.hybrid.plan.SCHEDULES``.
        pieces: what each chunk has; None unless the schedule splits backward passes.
    """

    layers: np.ndarray
    first_chunk: np.ndarray
    full: np.ndarray
    selective: np.ndarray
    on: np.ndarray
    back: np.ndarray
    first: np.ndarray
    links: np.ndarray
    tp: np.ndarray
    dp: np.ndarray
    zero: np.ndarray
    device: np.ndarray
    speed: np.ndarray
    samples: Figure
    micro_batches: Figure
    chunks: Figure
    context: Figure
    sequence_parallel: Figure
    expert: Figure
    blocking: Figure
    gradient_bytes: Figure
    gradient_overlap: Figure
    shard: Figure = 0
    expert_tp: Figure = 0
    offload: Figure = False
    attended: Figure = None
    count: Figure = None
    schedule: str = ""
    pieces: Chunks | None = None

    @property
    def fronts(self) -> list[Any]:
        """Indices of the stages that hold the embedding, in (S, ...)."""
        return [stage for stage, _ in self.ends(0)] if self.pieces else [0]

    @property
    def backs(self) -> list[Any]:
        """Indices of the stages that hold the head, in (S, ...)."""
        return [stage for stage, _ in self.ends(-1)] if self.pieces else [self.last]

    def ends(self, side: int) -> list[Place]:
        """Stage and chunk at the first (0) or last (-1) place of every chain, if it is split."""
        return [chain[side] for chain in chains(self.schedule, len(self.tp), 0)]

    @property
    def rounds(self) -> Figure:
        """(...) how often a stage does all of its chunks in a step."""
        return rounds_of(self.schedule, self.micro_batches)

    @property
    def last(self) -> Any:
        """Index of the last stage of every plan in (S, ...)."""
        return -1 if self.count is None else (self.count - 1, np.arange(len(self.count)))

    @property
    def several(self) -> Figure:
        """Whether a plan has several stages, a bool or (P,)."""
        return len(self.tp) > 1 if self.count is None else self.count > 1

    def ahead(self, figures: np.ndarray) -> np.ndarray:
        """(S, ...) figures of the stage in front of each; in front of the first stands the last."""
        rolled = np.concatenate([figures[-1:], figures[:-1]])
        if self.count is not None:
            rolled[0] = figures[self.last]
        return rolled

    def behind(self, figures: np.ndarray) -> np.ndarray:
        """(S, ...) figures of the stage behind each; behind the last stands the first."""
        rolled = np.concatenate([figures[1:], figures[:1]])
        if self.count is not None:
            rolled[self.last] = figures[0]
        return rolled

    @property
    def split(self) -> Split:
        """How each stage splits a layer."""
        samples = self.samples / self.dp
        return Split(
            self.tp, samples, self.context, self.sequence_parallel, self.expert, self.attended,
            self.expert_tp,
        )  # fmt: skip

    @property
    def apart(self) -> Figure:
        """(S, ...) replicas among which one copy of all experts is dealt out."""
        if isinstance(self.expert_tp, int) and self.expert_tp == 0:
            return self.expert
        return self.expert * self.split.of_expert / self.tp

    @property
    def replicas(self) -> Figure:
        """(S, ...) ranks that hold the same parameters, tokens of a sample shared or not."""
        if isinstance(self.context, int) and self.context == 1:
            return self.dp
        return self.dp * self.context

    @property
    def sharing(self) -> Figure:
        """(S, ...) replicas among which ZeRO shares states."""
        if isinstance(self.shard, int) and self.shard == 0:
            return self.replicas
        return np.where(np.equal(self.shard, 0), self.replicas, self.shard)

    @property
    def stride(self) -> Figure:
        """(S, ...) distance of the ranks that hold the same parameters."""
        replicas = self.replicas
        return self.tp if np.shape(self.tp) == np.shape(replicas) else self.tp + 0 * replicas


class Step(NamedTuple):
    """Seconds of training steps, stage axis first; ``length`` is the sum of its four parts.

    Attributes:
        forward: (S, ...) one micro-batch through all chunks of a stage: kernels.
        backward: (S, ...) the same, backward, nothing recomputed.
        recomputed: (S, ...) of forward passes that run again, their collectives included.
        exchange: (S, ...) collectives inside the stage, and copies to the memory of the server and
            back, that nothing hides, of one micro-batch.
        forward_exchange: (S, ...) those of them in the forward pass.
        sends: (S, ...) for which the stage waits, of one micro-batch.
        gathers: (S, ...) in which it waits for parameters that ZeRO 3 gathers, of one micro-batch.
        chunk: (S, ...) x of the first chunk.
        busy: (S, ...) X, all of the above.
        reduction: (S, ...) collectives of the gradients, of a step.
        exposed: (S, ...) what of them the stage's own last backward pass does not hide.
        start: (S, ...) in which ZeRO 3 gathers the first layer, once a step.
        hiding: (S, ...) backward pass of a micro-batch, which hides those of stages behind.
        update: (S, ...) optimiser.
        core: (...)
        tail: (...)
        tied: (...)
        optimizer: (...) the longest update.
        length: (...)
    """

    forward: np.ndarray
    backward: np.ndarray
    recomputed: np.ndarray
    exchange: np.ndarray
    forward_exchange: np.ndarray
    sends: np.ndarray
    gathers: np.ndarray
    chunk: np.ndarray
    busy: np.ndarray
    reduction: np.ndarray
    exposed: np.ndarray
    start: np.ndarray
    hiding: np.ndarray
    update: np.ndarray
    core: np.ndarray
    tail: np.ndarray
    tied: np.ndarray
    optimizer: np.ndarray
    length: np.ndarray


class Memory(NamedTuple):
    """Bytes on a device of each stage, (S, ...); ``total`` is the sum.

    Attributes:
        weights: parameters.
        gradients: of them.
        optimizer: master weights and moments.
        activations: kept for backward passes of the micro-batches in flight.
        working: what exists only while a layer runs.
        total: all of it.
    """

    weights: np.ndarray
    gradients: np.ndarray
    optimizer: np.ndarray
    activations: np.ndarray
    working: np.ndarray
    total: np.ndarray
