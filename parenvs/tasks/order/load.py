"""Loads problems of ordering micro-batches by name or path, and judges plans on them."""

from __future__ import annotations

from typing import Any

from parenvs.core.task import refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.instances import text_of
from parenvs.shipped import load_ordering
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.order.problem import Order, OrderReport
from parenvs.tasks.order.task import OrderOptions


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
    """Judge a plan; see ``parenvs.judge``. The target is a problem."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} has the cluster of its problem")
    problem = load_ordering(plan.instance) if target is None else target
    if not isinstance(problem, Order):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on an Order, not on {shown(target)}"
        )
    return problem.report(plan)
