"""Plans of pipelines, and the defaults of what they are made for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.core.plan import Plan
from parenvs.fields import Count, Integer, Number, Text, one_of

MICRO_BATCH = 16
"""Samples per micro-batch.

arXiv 2007.04069 gives the number 16 without saying of what; it is the default of both numbers.
"""
MICRO_BATCHES = 16
"""Micro-batches per step (arXiv 2007.04069)."""
COPIES = 2
"""Copies of a stage's parameters held by each device: weight and gradient."""
RECOMPUTE = ("full", "none")
"""The backward pass recomputes all activations of a stage, or none."""
TIED = ("once", "held")
"""Weights that several stages read count where they are first read, or are held by each of them."""
_SETTINGS = ("copies", "recompute", "sync", "tied", "fractions")
"""Fields of the cost model that files of pipelines may leave out."""


@dataclass(frozen=True)
class PipelinePlan(Plan):
    """Cuts of a chain into S stages, and of the devices into S groups.

    Attributes:
        instance: shipped name or path of the graph or profile.
        fingerprint: ``sha256:...`` of the arrays of the graph or profile.
        cluster: the devices.
        cuts: (S-1) index of the first pivot of every stage but the first.
        device_cuts: (S-1) first device of every stage but the first.
        micro_batch: samples per micro-batch.
        micro_batches: micro-batches per step.
        copies: copies of the parameters on each device of a stage.
        recompute: ``"full"`` or ``"none"``.
        sync: how gradients are synchronised, see ``Cluster.sync_seconds``.
        tied: ``"once"`` or ``"held"``.
        fractions: whether devices may share a sample: False says that the devices of each stage
            take the same whole number of samples of a micro-batch.
        cut_after: (S-1) name of the last pivot before each cut, for readers of the file; may be
            empty.
    """

    instance: Text
    fingerprint: Text
    cluster: Cluster
    cuts: tuple[Integer, ...]
    device_cuts: tuple[Integer, ...]
    micro_batch: Count = MICRO_BATCH
    micro_batches: Count = MICRO_BATCHES
    copies: Number = COPIES
    recompute: Annotated[str, one_of(*RECOMPUTE)] = RECOMPUTE[0]
    sync: Annotated[str, one_of(*SYNC_METHODS)] = SYNC_METHODS[0]
    tied: Annotated[str, one_of(*TIED)] = TIED[0]
    fractions: bool = True
    cut_after: tuple[str, ...] = field(default=(), compare=False)

    task: ClassVar[str] = "pipeline"
    settings: ClassVar[tuple[str, ...]] = (
        "fingerprint", "cluster", "micro_batch", "micro_batches", "recompute", "sync", "tied",
        "copies",
    )  # fmt: skip
    always = ("micro_batch", "micro_batches")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        Copies, recomputation, synchronisation, tied weights and fractions are left out where they
        have their defaults.
        """
        defaults = (COPIES, RECOMPUTE[0], SYNC_METHODS[0], TIED[0], True)
        options = dict(zip(_SETTINGS, defaults, strict=True))
        content: dict[str, Any] = {
            **self._head(),
            "cluster": self.cluster.to_json(),
            "micro_batch": self.micro_batch,
            "micro_batches": self.micro_batches,
            **{key: value for key in options if (value := getattr(self, key)) != options[key]},
            "cuts": list(self.cuts),
            "device_cuts": list(self.device_cuts),
        }
        if self.cut_after:
            content["cut_after"] = list(self.cut_after)
        return content
