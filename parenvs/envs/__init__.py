"""The environments: games as Gymnasium's; ``import parenvs`` registers those of all tasks.

Tasks whose agents can take turns offer them here, too, see ``parenvs.envs.pettingzoo``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.envs.registration import register as register_env

from parenvs.core.registry import TASKS
from parenvs.core.task import Task, late


def __getattr__(name: str) -> Any:
    for task in TASKS.values():
        if task.parallel_env.endswith(f":{name}"):
            return late(task.parallel_env)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(task: Task) -> None:
    """Register the environments of a task with Gymnasium, as ``ID`` and ``parenvs/ID``.

    Beside the class of a game ``Name`` stand ``NameEnv`` and ``NameVectorEnv``. Environments of
    several agents are registered by their names, for vectors alone, see ``ParallelVectorEnv``.
    """
    for env_id, entry_point in task.envs.items():
        for name in (env_id, f"parenvs/{env_id}"):
            register_env(
                id=name,
                entry_point=f"{entry_point}Env",
                vector_entry_point=f"{entry_point}VectorEnv",
            )
    if task.parallel_env:
        name = task.parallel_env.rpartition(":")[2]
        register_env(id=name, vector_entry_point=partial(_by_agents, name))


def _by_agents(name: str, num_envs: int, autoreset_mode: Any, **arguments: Any) -> Any:
    """Return environments whose agents act at once, a row for each of them."""
    from parenvs.envs.parallel import ParallelVectorEnv

    agents = __getattr__(name)
    return ParallelVectorEnv(agents.parallel_env, num_envs, autoreset_mode, **arguments)
