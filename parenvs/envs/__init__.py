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
from parenvs.errors import ParenvsError


def __getattr__(name: str) -> Any:
    agents = agents_of(name)
    if agents is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return agents


def agents_of(name: str) -> Any:
    """Return the environment of several agents of a name, see ``parenvs.envs.pettingzoo``."""
    places = (task.parallel_env for task in TASKS.values())
    return next((late(place) for place in places if place.endswith(f":{name}")), None)


def register(task: Task) -> None:
    """Register the environments of a task with Gymnasium, as ``ID`` and ``parenvs/ID``.

    Beside the class of a game ``Name`` stand ``NameEnv`` and ``NameVectorEnv``.
    """
    for env_id, entry_point in task.envs.items():
        for name in (env_id, f"parenvs/{env_id}"):
            vectors = f"{entry_point}VectorEnv"
            register_env(name, f"{entry_point}Env", vector_entry_point=vectors)
    if task.parallel_env:
        refuse = partial(_refuse_agents, task.parallel_env.rpartition(":")[2])
        register_env(refuse.args[0], refuse, vector_entry_point=refuse)


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


def _refuse_agents(name: str, **arguments: Any) -> Any:
    raise ParenvsError(
        f"{name} has several agents, which Gymnasium's environments have not; use "
        f"parenvs.envs.{name}.parallel_env() or parenvs.envs.{name}.env()"
    )
