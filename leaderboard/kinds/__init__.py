"""The tasks, a module for each kind: problems, references, agents; a new task is a new module."""

from parenvs.leaderboard.kinds import hybrid, iopddl, ordering, partition, pipeline
from parenvs.leaderboard.kinds.base import TaskKind

KINDS: dict[str, TaskKind] = {
    **partition.TASKS,
    **pipeline.TASKS,
    **hybrid.TASKS,
    **ordering.TASKS,
    **iopddl.TASKS,
}
"""Name of a task -> what the leaderboard knows of it, in the order of the list."""
