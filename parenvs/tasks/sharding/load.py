"""Loads IOPDDL problems by name or path, and judges plans on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from parenvs.core.registry import TASKS
from parenvs.core.sets import Validation
from parenvs.core.task import refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.instances import text_of
from parenvs.tasks.sharding.plan import ShardingPlan
from parenvs.tasks.sharding.problem import Sharding, ShardingReport
from parenvs.tasks.sharding.store import find
from parenvs.tasks.sharding.task import ShardingOptions


def load(source: Any, cluster: Any, options: ShardingOptions) -> Sharding:
    """Load a problem; see ``parenvs.problem``.

    Args:
        source: ``SET/NAME``, the path of a file, the name of an added one, or a problem.
        cluster: must be None, as problems hold their costs.
        options: none.
    """
    if not isinstance(source, Sharding):
        source = find(text_of(source, "a Sharding"), TASKS["sharding"].sets)
    return refuse_settings(source, cluster, options)


def judge(plan: ShardingPlan, target: Any = None, cluster: Any = None) -> ShardingReport:
    """Judge a plan; see ``parenvs.judge``. The target is a problem, or its name or path."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} is for no cluster")
    target = plan.instance if target is None else target
    if isinstance(target, (str, os.PathLike)):
        target = TASKS["sharding"].found(target) or find(os.fspath(target))
    if not isinstance(target, Sharding):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on a Sharding, not on {shown(target)}; read one "
            'with parenvs.problem(path, task="sharding")'
        )
    return target.report(plan)


def training(instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the environment of a training, its arguments, and options that may be added."""
    return "IntraOpSharding-v1", {} if instance is None else {"instance": instance}, ()


def validation(env_kwargs: Mapping[str, Any]) -> Validation:
    """Return the set on which agents are judged, and what they see and may choose."""
    settings = {name: env_kwargs[name] for name in ("form", "rows") if name in env_kwargs}
    return Validation("intra-op-validation", env_kwargs.get("family", "mesh"), settings)


def rules() -> list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Return environments of rows, the sets that they are tested on, and planners beside them."""
    sets: list[tuple[str, str | None]] = [
        (name, family)
        for name in ("intra-op-test", "intra-op-outside")
        for family in ("mesh", "classes")
    ]
    planners: dict[str, dict[str, Any]] = {
        "greedy": {}, "messages": {}, "leanest": {}, "exact": {"time_limit": 5.0},
    }  # fmt: skip
    return [("IntraOpSharding-v1", sets, planners)]
