"""Plans of a job on nodes that come and go: what was chosen in each interval of one course."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from parenvs.core import fields
from parenvs.core.plan import HEAD, Plan
from parenvs.errors import PlanError

if TYPE_CHECKING:
    from typing_extensions import Self

WAIT: tuple[int, ...] = ()
"""What an interval that waits has in place of degrees."""


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
    """

    instance: str
    fingerprint: str
    chosen: tuple[tuple[int, ...], ...]
    seed: int = 0
    policy: str = ""

    task: ClassVar[str] = "elastic"
    settings: ClassVar[tuple[str, ...]] = ("fingerprint", "seed")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types, schema version first."""
        chosen = [list(plan) or None for plan in self.chosen]
        return {**self._head(), "seed": self.seed, "policy": self.policy, "chosen": chosen}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str = "plan") -> Self:
        """See ``Plan.from_json``."""
        fields.check_keys(content, {*HEAD, "chosen"}, {"seed", "policy"}, where)
        chosen, seed = content["chosen"], content.get("seed", 0)
        if not isinstance(chosen, list) or not all(map(_is_choice, chosen)):
            raise PlanError(
                f"{where}: field 'chosen' must be a list of null or [tensor, pipeline, data, "
                "spares], whole numbers"
            )
        if not fields.is_integer(seed) or not 0 <= seed <= fields.LARGEST_NUMBER:
            raise PlanError(f"{where}: field 'seed' must be a whole number from 0, not {seed!r}")
        policy = fields.text(content, "policy", where) if content.get("policy") else ""
        return cls(
            instance=fields.text(content, "instance", where),
            fingerprint=fields.text(content, "fingerprint", where),
            chosen=tuple(WAIT if plan is None else tuple(plan) for plan in chosen),
            seed=seed,
            policy=policy,
        )


def _is_choice(plan: Any) -> bool:
    """Return whether a value is four whole numbers from 0, or null."""
    if plan is None:
        return True
    return (
        isinstance(plan, list)
        and len(plan) == 4
        and all(fields.is_integer(x) and 0 <= x <= fields.LARGEST_NUMBER for x in plan)
    )
