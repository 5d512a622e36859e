"""The tasks, a module for each kind: problems, references, agents; a new task is a new module."""

from parenvs.leaderboard.kind import TaskKind
from parenvs.leaderboard.kinds import drawn
from parenvs.tasks.elastic import entries as elastic
from parenvs.tasks.hybrid import entries as hybrid
from parenvs.tasks.order import entries as ordering
from parenvs.tasks.partition import entries as partition
from parenvs.tasks.pipeline import entries as pipeline
from parenvs.tasks.sharding import entries as iopddl

KINDS: dict[str, TaskKind] = {
    **partition.TASKS,
    **pipeline.TASKS,
    **hybrid.TASKS,
    **ordering.TASKS,
    **iopddl.TASKS,
    **elastic.TASKS,
}
"""Name of a task -> what the leaderboard knows of it, in the order of the list."""
DRAWN: dict[str, TaskKind] = drawn.TASKS
"""Name of a task whose problems a seed of the checker draws, for methods -> the same."""


def kind_of(task: str) -> TaskKind:
    """Return what the leaderboard knows of a task, of the list or drawn."""
    return KINDS[task] if task in KINDS else DRAWN[task]
