"""Plans of pipelines, and the defaults of what they are made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.cluster import SYNC_METHODS, Cluster
from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan

if TYPE_CHECKING:
    from typing_extensions import Self

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
_SETTINGS = ("copies", "recompute", "sync", "tied")
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
        cut_after: (S-1) name of the last pivot before each cut, for readers of the file; may be
            empty.
    """

    instance: str
    fingerprint: str
    cluster: Cluster
    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    micro_batch: int = MICRO_BATCH
    micro_batches: int = MICRO_BATCHES
    copies: float = COPIES
    recompute: str = RECOMPUTE[0]
    sync: str = SYNC_METHODS[0]
    tied: str = TIED[0]
    cut_after: tuple[str, ...] = field(default=(), compare=False)

    task: ClassVar[str] = "pipeline"
    settings: ClassVar[tuple[str, ...]] = (
        "fingerprint", "cluster", "micro_batch", "micro_batches", "recompute", "sync", "tied",
        "copies",
    )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first.

        Copies, recomputation, synchronisation and tied weights are left out where they have their
        defaults.
        """
        defaults = (COPIES, RECOMPUTE[0], SYNC_METHODS[0], TIED[0])
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

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        needed = {*HEAD, "cluster", "micro_batch", "micro_batches", "cuts", "device_cuts"}
        fields.check_keys(content, needed, {*_SETTINGS, "cut_after"}, where)
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            cluster=fields.cluster(content, "cluster", where),
            cuts=fields.integers(content, "cuts", where),
            device_cuts=fields.integers(content, "device_cuts", where),
            micro_batch=fields.count(content, "micro_batch", where),
            micro_batches=fields.count(content, "micro_batches", where),
            copies=fields.number(content, "copies", COPIES, where),
            recompute=fields.choice(content, "recompute", RECOMPUTE, where),
            sync=fields.choice(content, "sync", SYNC_METHODS, where),
            tied=fields.choice(content, "tied", TIED, where),
            cut_after=fields.texts(content, "cut_after", where) if "cut_after" in content else (),
        )
