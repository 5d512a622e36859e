"""What ``same.py`` asks of a checkout, by the names that the one from before has, or the one after.

The one from before has no ``parenvs.core.sets``.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np


def is_old() -> bool:
    """Return whether the imported checkout is the one from before."""
    return find_spec("parenvs.core.sets") is None


def sets() -> Any:
    """Return the module of sets."""
    return import_module("parenvs.datasets.sets" if is_old() else "parenvs.core.sets")


def problem_of(task: str, source: str, options: dict[str, Any]) -> Any:
    """Make a problem of a name."""
    import parenvs

    if not is_old():
        return parenvs.problem(source, task=task, **options)
    place = source.partition("/")[0]
    if place in sets().set_names():
        return sets().set_of(place).load(source)
    if task == "elastic":
        return import_module("parenvs.datasets").load_elastic(source, **options)
    rest = {key: value for key, value in options.items() if key != "scope"}
    is_batch = options.get("scope") == "inputs"
    old = {"pipeline": "pipeline-cut",
           "partition": "data-parallel" if is_batch else "operator-partition"}  # fmt: skip
    return parenvs.problem(source, task=old.get(task, task), **rest)


def drawn(kind: str, number: int) -> Any:
    """Draw a problem by its number, or from a generator that is seeded with it."""
    rng = np.random.default_rng(number)
    if kind == "numbered":
        sequence = import_module("parenvs.datasets.pipeline.problems")
        return sequence.problem_of(number, None, ("inside", "outside")[number % 2]).pipeline
    if kind == "pipeline":
        from parenvs.datasets.pipeline import problems as generators

        return generators.draw(rng, None, (generators.INSIDE, generators.OUTSIDE)[number % 2])
    if kind == "sharding":
        from parenvs.datasets.sharding import problems as mesh

        return mesh.drawn(mesh.FAMILIES[number % 2], number)
    return problem_of("hybrid", f"{kind}/{number}", {})


def solved(task: str, problem: Any, agent: str, options: dict[str, Any]) -> Any:
    """Plan a problem."""
    import parenvs

    if not is_old() or task not in ("sharding", "elastic"):
        return parenvs.solve(problem, agent, **options)
    if task == "elastic":
        from parenvs.agents.elastic import policies
        from parenvs.tasks.elastic.problem import follow

        course = problem.drawn(0)
        if agent == "exact":
            return policies.hindsight(problem, course)
        policy = policies.optimal(problem) if agent == "optimal" else policies.RULES[agent]()
        return follow(problem, course, policy)
    from parenvs.agents.sharding.planners import solve_iopddl
    from parenvs.tasks.sharding.turns import board_of

    if agent == "exact":
        return solve_iopddl(problem, None, 0, options["rounds"])
    board = board_of(problem, True)
    plan = problem.plan(board.reduced.lift(board.first if agent == "greedy" else board.witness))
    return problem.report(plan)
