"""Loads elastic problems by name or path, and judges plans on them."""

from __future__ import annotations

from typing import Any

from parenvs.core.registry import TASKS
from parenvs.core.task import given, refuse_settings
from parenvs.errors import ParenvsError, shown
from parenvs.instances import text_of
from parenvs.shipped import TRACES, load_elastic
from parenvs.tasks.elastic.plan import ElasticPlan
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.run import Run, judged
from parenvs.tasks.elastic.task import ElasticOptions


def load(source: Any, cluster: Any, options: ElasticOptions) -> Elastic:
    """Load a problem; see ``parenvs.problem``.

    Args:
        source: a trace's name or the path of its ``.csv`` file, ``TRACE/MODEL``, ``SET/NAME``, or a
            problem.
        cluster: its servers are the nodes, for the cost model (default: the measured steps).
        options: those of the task.
    """
    if isinstance(source, Elastic):
        return refuse_settings(source, cluster, options)
    text, settings = text_of(source, "an Elastic"), given(options)
    trace, slash, model = text.partition("/")
    if slash and trace in TRACES:
        text, settings = trace, {"model": model.removesuffix("-measured"), **settings}
    return load_elastic(text, cluster=cluster, **settings)


def judge(plan: ElasticPlan, target: Any = None, cluster: Any = None) -> Run:
    """Judge a plan; see ``parenvs.judge``. The target is a problem."""
    if cluster is not None:
        raise ParenvsError(f"a plan of task {plan.task} has the nodes of its problem")
    if target is None:
        target = TASKS["elastic"].found(plan.instance) or load(
            plan.instance, None, ElasticOptions()
        )
    if not isinstance(target, Elastic):
        raise ParenvsError(
            f"a plan of task {plan.task} is judged on an Elastic, not on {shown(target)}"
        )
    return judged(target, plan)
