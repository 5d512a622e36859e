"""On which set a policy is judged that was trained on drawn problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parenvs.tasks.hybrid.turns.rules import HETERO, ORDERS

RULES = (
    "mask", "server_order", "stage_devices", "most_chunks",  # of ``HybridPlan-v0``
    "form", "advice", "moves", "width",  # of ``IntraOpSharding-v0``
)  # fmt: skip
"""Arguments that decide what a policy sees and may choose, whatever the problem."""


def validation_set(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the name of a set and a family of it (None: all), of problems like those of a run.

    Args:
        env_id: id of the run's environment, without a namespace.
        env_kwargs: its arguments.
    """
    if env_id == "HybridPlan-v0":
        kind = str(env_kwargs.get("instance") or "hybrid")
        if env_kwargs.get("cluster") == HETERO:
            kind = f"{HETERO}-32"
        parts = kind.split("-")
        tier = "-".join(parts[:2]) if parts[0] == HETERO else "hybrid"
        return f"{tier}-validation", env_kwargs.get("family")
    if env_id == "MicroBatchOrder-v0":
        return "order-validation", env_kwargs.get("tier", "p8-m16")
    if env_id == "IntraOpSharding-v0":
        return "intra-op-validation", env_kwargs.get("family", "mesh")
    if env_id == "ElasticPlan-v0":
        return "elastic-validation", None
    if env_id == "PartitionPlan-v0":
        return "partition-validation", None  # its families are not those of the training set
    return "plan-validation", env_kwargs.get("family")


def rules_of(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a run's environment that it has on every set, too."""
    found = {name: env_kwargs[name] for name in RULES if name in env_kwargs}
    if env_kwargs.get("order") in ORDERS:
        found["server_order"] = env_kwargs["order"]
    return found
