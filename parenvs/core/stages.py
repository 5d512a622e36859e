"""A plan as programs run it: stages of whole layers, and the expected memory and traffic of a step.

``Task.stages`` and ``Task.step`` return these; exports, checkpoints and runs read them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from parenvs.errors import InfeasibleError, ParenvsError, listed

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline.

    Attributes:
        layers: ranges of layers, one for each chunk.
        tp: ranks that share every matrix.
        zero: 0 to 3, which states the replicas share.
        modes: what is recomputed of each layer, in the order of the ranges.
    """

    layers: tuple[tuple[int, int], ...]
    devices: int
    tp: int = 1
    zero: int = 0
    modes: tuple[str, ...] = ()

    def moved(self, part: tuple[int, int]) -> Stage:
        """Return the stage with other layers: as many of each mode, the last mode for more."""
        # Moved boundaries change the number of layers; recomputation is kept from the left.
        size = part[1] - part[0]
        modes = (*self.modes[:size], *(self.modes[-1:] * (size - len(self.modes))))
        return replace(self, layers=(part,), modes=modes)


@dataclass(frozen=True)
class Stages:
    """Stages of whole layers. n layers, S stages.

    Attributes:
        run: the plan that is run: ``plan``, or one whose cuts were moved to layer boundaries.
        replan: returns ``run`` with other stages.
        names: (n,) names of the layers in the model.
        micro_batch: samples of a micro-batch in one replica of the first stage.
        schedule: ``"1f1b"``, ``"interleaved"`` or ``"early"``.
        chunks: ranges of layers on each stage.
        sequence_parallel: whether tp ranks share what lies between the matrices.
        context: ranks that share the tokens of a sample.
        expert: replicas over which experts are distributed.
        expert_tp: ranks over which an expert is partitioned; 0: those of tp.
        shard: replicas, context ranks included, over which ZeRO partitions states; 0: all.
        precision: number format of matrix products; "" if unspecified.
        gradient_bytes: bytes of a gradient; 0 if unspecified.
        gradient_overlap: whether gradients are reduced during the last backward pass; None if
            unspecified.
        p2p: ``"blocking"`` or ``"overlapped"`` sends; "" if unspecified.
        attention: ``"fused"``, ``"written"`` (scores go to memory) or ``"none"`` (the model has no
            attention); "" if unspecified.
        tensor_overlap: whether collectives of tp overlap with matrix products.
        target: the problem that ``judge`` takes; None for the plan's instance.
        shared: trainable weights that layers of several stages use.
        frozen: weights that are not trained.
    """

    plan: Any
    run: Any
    replan: Callable[[Sequence[Stage]], Any]
    names: tuple[str, ...]
    stages: tuple[Stage, ...]
    batch: int
    micro_batch: int
    schedule: str = "1f1b"
    chunks: int = 1
    sequence_parallel: bool = False
    context: int = 1
    expert: int = 1
    expert_tp: int = 0
    shard: int = 0
    precision: str = ""
    gradient_bytes: int = 0
    gradient_overlap: bool | None = False
    p2p: str = ""
    attention: str = ""
    tensor_overlap: bool = False
    target: Any = None
    shared: tuple[str, ...] = ()
    frozen: Sequence[str] = ()
    notes: tuple[str, ...] = ()

    @property
    def devices(self) -> int:
        """Number of devices in use."""
        return sum(stage.devices for stage in self.stages)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self.batch // (self.micro_batch * self.replicas[0])

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """(S,) replicas of each stage."""
        return tuple(stage.devices // (stage.tp * self.context) for stage in self.stages)

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Ranges of layers in the model's order, whatever the order of chunks and stages."""
        return tuple(sorted(part for stage in self.stages for part in stage.layers))

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """(n,) what is recomputed of each layer."""
        modes = ["none"] * len(self.names)
        for stage in self.stages:
            layers = [layer for first, end in stage.layers for layer in range(first, end)]
            for layer, mode in zip(layers, stage.modes, strict=True):
                modes[layer] = mode
        return tuple(modes)

    def same(self, field: str, framework: str) -> int:
        """Return a field's value that a framework requires to be equal on all stages.

        Raises:
            InfeasibleError: the stages differ.
        """
        values = self.replicas if field == "dp" else [getattr(x, field) for x in self.stages]
        for number, value in enumerate(values):
            if value != values[0]:
                raise InfeasibleError(
                    f"stages[{number}].{field}: {framework} gives every stage the same, and the "
                    f"plan has {value} there and {values[0]} on the first stage"
                )
        return values[0]

    def refuse_models(self, framework: str) -> None:
        """Refuse frozen weights, several stacks of layers (encoder and decoder), or no attention.

        Raises:
            ParenvsError: the model has one of these.
        """
        if self.frozen:
            raise ParenvsError(
                f"instance: {framework}'s settings train every weight, and {self.plan.instance} "
                f"has frozen ones ({listed(self.frozen, 1)}); export --to torch"
            )
        if self.attention == "none":
            raise ParenvsError(
                f"instance: {framework} trains transformers, and {self.plan.instance} has no "
                "attention"
            )
        # Layers of one stack have names that differ in numbers alone: h.0, h.1, ...
        stacks = list(dict.fromkeys(_NUMBER.sub("N", name) for name in self.names))
        if len(stacks) > 1:
            raise ParenvsError(
                f"instance: {framework}'s pipelines are of one stack of layers, and "
                f"{self.plan.instance} has {', '.join(stacks[:3])}"
            )


@dataclass(frozen=True)
class Step:
    """The expected memory and traffic of a plan's training step.

    Attributes:
        memory: (S,) bytes on a device of each stage.
        sent: bytes that stages send each other, both directions.
        trained: bytes of the weights of all stages; 0 if a layout determines them.
        adam: whether the memory counts the states of Adam.
        updates: whether the step time counts the optimizer's update.
        measured: layer of a measured chain -> bytes of its weights.
    """

    memory: tuple[float, ...]
    sent: float = 0.0
    trained: float = 0.0
    adam: bool = False
    updates: bool = True
    measured: Mapping[str, float] = field(default_factory=dict)
