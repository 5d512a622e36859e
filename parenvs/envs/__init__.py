"""The environments: games as Gymnasium's; ``import parenvs`` registers those of all tasks.

Tasks whose agents can take turns offer them here, too, see ``parenvs.envs.pettingzoo``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.envs.registration import register as register_env

from parenvs.core.registry import REMOVED, TASKS, refuse_removed
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
            vectors = f"{entry_point}VectorEnv"
            register_env(name, f"{entry_point}Env", vector_entry_point=vectors)
    if task.parallel_env:
        name = task.parallel_env.rpartition(":")[2]
        register_env(id=name, vector_entry_point=partial(_by_agents, name))


def register_removed() -> None:
    """Make ``gym.make`` and ``gym.make_vec`` of a removed id raise the line that says so."""
    for env_id in REMOVED["environment"]:
        refuse = partial(_refuse, env_id)
        # An id of its own namespace, so that Gymnasium does not take it for a version of the
        # environments that are left, which it would recommend.
        spec = EnvSpec(f"removed/{env_id}", entry_point=refuse, vector_entry_point=refuse)
        for name in (env_id, f"parenvs/{env_id}"):
            gym.registry.setdefault(name, spec)


def _refuse(env_id: str, **arguments: Any) -> Any:
    refuse_removed("environment", env_id)


def _by_agents(name: str, num_envs: int, autoreset_mode: Any, **arguments: Any) -> Any:
    from parenvs.envs.env import ParallelVectorEnv

    agents = __getattr__(name)
    return ParallelVectorEnv(agents.parallel_env, num_envs, autoreset_mode, **arguments)
