"""Loads problems of ordering micro-batches by name or path, and judges plans on them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from parenvs.core.registry import TASKS
from parenvs.core.sets import Validation
from parenvs.core.task import refuse_settings
from parenvs.datasets.order.drawing import ALL_TIERS, TIERS
from parenvs.errors import ParenvsError, UnknownInstanceError, did_you_mean, shown
from parenvs.instances import text_of
from parenvs.shipped import data_folder
from parenvs.tasks.hybrid.shipped import shapes
from parenvs.tasks.order.files import read_problem, read_set
from parenvs.tasks.order.packing import PackedStep
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport
from parenvs.tasks.order.task import OrderOptions, OrderTask

ORDER_SETS = OrderTask.sets
"""Shipped sets of problems; ``SET/NAME`` is one of a set."""


def load(source: Any, cluster: Any, options: OrderOptions) -> Order:
    """Load a problem; see ``parenvs.problem``.

    Args:
        source: ``SET/NAME``, the path of a ``.json`` file of a problem, ``FILE.json/NAME`` of a
            set's, or a problem.
        cluster: must be None, as problems hold their seconds.
        options: none.
    """
    problem = source if isinstance(source, Order) else load_ordering(text_of(source, "an Order"))
    return refuse_settings(problem, cluster, options)


def judge(plan: OrderPlan, target: Any = None, cluster: Any = None) -> OrderReport:
    """Judge a plan; see ``parenvs.judge``. The target is a problem, or its name or path."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} has the cluster of its problem")
    problem = plan.instance if target is None else target
    if isinstance(problem, (str, os.PathLike)):
        problem = TASKS[plan.task].found(problem) or load_ordering(problem)
    if not isinstance(problem, Order):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on an Order, not on {shown(target)}"
        )
    return problem.report(plan)


def training(instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """Return the environment of a training, its arguments, and options that may be added."""
    if instance is None or instance in ALL_TIERS:
        return "MicroBatchOrder-v1", {} if instance is None else {"tier": instance}, ()
    return "MicroBatchOrder-v1", {"instance": instance, "tier": None}, ()


def validation(env_kwargs: Mapping[str, Any]) -> Validation:
    """Return the set on which agents are judged."""
    tier = env_kwargs.get("tier", "p16-m64")
    return Validation("order-validation", tier if tier in TIERS else "p16-m64")


def rules() -> list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Return environments of rows, the sets that they are tested on, and planners beside them."""
    sets: list[tuple[str, str | None]] = [
        ("order-test", "p8-m32"), ("order-test", "p16-m32"), ("order-test", "p16-m64"),
        ("order-large", "p32-m128"), ("order-large", "p64-m256"),
    ]  # fmt: skip
    planners: dict[str, dict[str, Any]] = {
        "pyramid": {}, "neh": {}, "swap": {},
        **{f"swap/{steps} turns": {"steps": steps} for steps in (600, 6_000)},
    }  # fmt: skip
    return [("MicroBatchOrder-v1", sets, planners)]


def load_ordering(instance: str | os.PathLike[str]) -> Order:
    """Load a problem of ordering micro-batches.

    Args:
        instance: a problem of a shipped set, ``"order-test/p8-m32-003"``, or the path of a
            ``.json`` file of a problem or of a set, ``"FILE.json"`` or ``"FILE.json/NAME"``.

    Raises:
        UnknownInstanceError: there is no such set, problem or file.
        ParenvsError: the file is wrong; the line names the file and the field.
    """
    text = os.fspath(instance)
    name, _, member = text.rpartition("/")
    if text.endswith(".json"):
        if not Path(text).exists():
            raise UnknownInstanceError(f"instance {text!r}: no such file")
        return read_problem(text, shapes(), text)
    if name not in ORDER_SETS and not name.endswith(".json"):
        hint = did_you_mean(text.split("/")[0], ORDER_SETS)
        raise UnknownInstanceError(
            f"unknown instance {text!r}{hint}; give SET/NAME "
            f"of the sets {', '.join(ORDER_SETS)}, or the path of a .json file of a problem"
        )
    steps = ordering_steps(name)
    if member not in steps:
        ends = f", from {min(steps)} to {max(steps)}" if steps else ""
        raise UnknownInstanceError(
            f"unknown problem {text!r}{did_you_mean(member, steps)}; {name} holds "
            f"{len(steps)}{ends}"
        )
    return Order.of_step(steps[member], text)


def ordering_steps(name: str) -> dict[str, PackedStep]:
    """Read the packed steps of a shipped set, or of a ``.json`` file of a set, by their names.

    Raises:
        ParenvsError: there is no such file, or it is wrong.
    """
    if name in ORDER_SETS:
        return _shipped_steps(name)
    return read_set(name, shapes())


@lru_cache(maxsize=len(ORDER_SETS))
def _shipped_steps(name: str) -> dict[str, PackedStep]:
    """Read a shipped set of ordering problems once."""
    return read_set(data_folder() / f"{name}.json", shapes())
