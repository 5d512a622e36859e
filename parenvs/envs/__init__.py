"""The environments: games as Gymnasium's; ``import parenvs`` registers those of all tasks.

Tasks whose agents can take turns offer them here, too, see ``parenvs.envs.pettingzoo``.
"""

from __future__ import annotations

from typing import Any

from gymnasium.envs.registration import register as register_env

from parenvs.core.registry import TASKS
from parenvs.core.task import Task


def __getattr__(name: str) -> Any:
    for task in TASKS.values():
        if task.hooks.get("pettingzoo", "").endswith(f":{name}"):
            return task.hook("pettingzoo")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(task: Task) -> None:
    """Register the environments of a task with Gymnasium, as ``ID`` and ``parenvs/ID``.

    Beside the class of a game ``Name`` stand ``NameEnv`` and ``NameVectorEnv``.
    """
    for env_id, entry_point in task.envs.items():
        for name in (env_id, f"parenvs/{env_id}"):
            register_env(
                id=name,
                entry_point=f"{entry_point}Env",
                vector_entry_point=f"{entry_point}VectorEnv",
            )
