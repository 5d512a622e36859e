"""Plans of a job on nodes that come and go: what was chosen in each interval of one course."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from parenvs.core.plan import Plan
from parenvs.fields import Index, Text, words

WAIT = None
"""What an interval that waits has in place of degrees."""

_Degrees = Annotated[
    tuple[Index, Index, Index, Index], words("null or [tensor, pipeline, data, spares]")
]


@dataclass(frozen=True)
class ElasticPlan(Plan):
    """Candidate plans that were chosen on the course of a seed. It names no cluster.

    Attributes:
        instance: name of a problem of a set, or ``TRACE/MODEL``.
        fingerprint: ``sha256:...`` of the candidates, and of what chance decides.
        chosen: of each interval, tensor, pipeline and data degree and the spares of its plan;
            ``WAIT`` for an interval that waits.
        seed: of the course; of a trace whose nodes are named it changes nothing.
        policy: who chose.
        saved: intervals at whose end the policy had a checkpoint written.
    """

    instance: Text
    fingerprint: Text
    chosen: tuple[_Degrees | None, ...]
    seed: Index = 0
    policy: str = ""
    saved: tuple[Index, ...] = ()

    task: ClassVar[str] = "elastic"
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "seed")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        chosen = [WAIT if plan is None else list(plan) for plan in self.chosen]
        saved = {"saved": list(self.saved)} if self.saved else {}
        return {
            **self._head(), "seed": self.seed, "policy": self.policy, "chosen": chosen, **saved
        }  # fmt: skip
