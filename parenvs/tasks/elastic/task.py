"""The task ``elastic``, as the rest of the house knows it."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.core.task import Task, option


@dataclass(frozen=True, kw_only=True)
class ElasticOptions:
    """Options of ``parenvs.problem``; the help of each field says what it is."""

    model: str | None = option(None, "The model, of a trace (default: gpt-1.5b).")
    interval: float | None = option(None, "Seconds between two decisions (default: 60).")
    batch: int | None = option(None, "Samples of a step (elastic: default 512).")


TASK = Task(
    name="elastic",
    words="Choose plans for a job while nodes leave and come.",
    options=ElasticOptions,
    load="parenvs.tasks.elastic.load:load",
    judge="parenvs.tasks.elastic.load:judge",
    plan="parenvs.tasks.elastic.plan:ElasticPlan",
    request="parenvs.agents.elastic.planners:ElasticRequest",
    planners=(
        "exact",
        "keep-degrees",
        "fastest",
        "myopic",
        "hysteresis",
        "look-ahead",
        "optimal",
        "learned",
    ),
    sets=("elastic-train", "elastic-validation", "elastic-test", "elastic-windows"),
    instances=("p3", "g4dn"),
    drawn=("elastic",),
    find="parenvs.datasets.elastic.named:find_elastic",
    envs={
        "ElasticPlan-v1": "parenvs.tasks.elastic.choice:ElasticChoice",
    },
    text="parenvs.tasks.elastic.view.text:text",
    answer="parenvs.tasks.elastic.view.text:answer",
    figure="parenvs.tasks.elastic.view.figure:draw",
    hooks={
        "strategy": "parenvs.tasks.elastic.run:price",
        "sets": "parenvs.datasets.elastic.sets:set_kind",
        "train": "parenvs.tasks.elastic.load:training",
        "validation": "parenvs.tasks.elastic.load:validation",
        "rules": "parenvs.tasks.elastic.load:rules",
        "teach": "parenvs.agents.elastic.teacher:teach",
        "commands": "parenvs.jobs.commands:add",
        "leaderboard": "parenvs.agents.elastic.entries:TASKS",
    },
)
"""The task."""
