"""Trains agents on drawn problems of ``HybridPlan-v0``, and plays them.

=================  =============================================================================
agent              what it is
=================  =============================================================================
ppo                MaskablePPO that takes all turns
shared-ppo         the three agents of ``hybrid_v0``, MaskablePPO with one network
independent-ppo    the three agents, each with a network of its own
rainbow            Rainbow that takes all turns
imitation          a network that imitates proven optima (``imitation.py``)
imitation-ppo      the same, then MaskablePPO
=================  =============================================================================

The agents of ``hybrid_v0`` take turns in the same episode, all of them see the whole observation,
whose turn says which agent acts, and they share the reward. So they are trained on the native
batch; ``play_together`` plays them on ``hybrid_v0`` itself.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from parenvs.agents.learning.hybrid.imitation import Lesson, examples, imitate
from parenvs.agents.learning.hybrid.policy import HybridPolicy, HybridQPolicy, IndependentPolicy
from parenvs.agents.learning.hybrid.rollouts import AgentRollouts
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.train.learners import ppo_settings
from parenvs.agents.learning.train.weights import load_weights, save_agent
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.files import replacing
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.turns.actions import AGENT_OF, OFFSETS, OWN_OFFSETS, SIZES

ENV, ENVS, POOL = "HybridPlan-v0", 64, 1024
"""The environment, environments side by side, and different problems of a training."""


def rainbow_settings() -> dict[str, Any]:
    """Keyword arguments of Rainbow; the buffer keeps two observations of 7 KB a step."""
    return {
        "gamma": 1.0, "n_steps": 5, "learning_rate": 5e-4, "buffer_size": 30_000,
        "batch_size": 256, "learning_starts": 4_000, "gradient_steps": 2,
        "target_update_interval": 2_000, "exploration_fraction": 0.5,
        "exploration_final_eps": 0.02, "device": "cpu",
    }  # fmt: skip


def _settings() -> dict[str, Any]:
    return ppo_settings(ENV, 0)


def _ppo(env: VecEnv, seed: int) -> Any:
    return MaskablePPO(HybridPolicy, env, seed=seed, **_settings())


def _shared(env: VecEnv, seed: int) -> Any:
    return _by_agent(HybridPolicy, env, seed)


def _independent(env: VecEnv, seed: int) -> Any:
    # A norm over all weights would let the agents' gradients shorten each other.
    return _by_agent(IndependentPolicy, env, seed, max_grad_norm=1e9)


def _by_agent(policy: type[HybridPolicy], env: VecEnv, seed: int, **options: Any) -> Any:
    return MaskablePPO(
        policy, env, seed=seed, rollout_buffer_class=AgentRollouts, normalize_advantage=False,
        **{**_settings(), **options},
    )  # fmt: skip


def _rainbow(env: VecEnv, seed: int) -> Any:
    return Rainbow(HybridQPolicy, env, seed=seed, **rainbow_settings())


def _imitating(env: VecEnv, seed: int) -> Any:
    slow = {"learning_rate": LinearSchedule(3e-4, 3e-5, 1.0)}
    return MaskablePPO(HybridPolicy, env, seed=seed, **{**_settings(), **slow})


AGENTS: dict[str, Callable[[VecEnv, int], Any]] = {
    "ppo": _ppo,
    "shared-ppo": _shared,
    "independent-ppo": _independent,
    "rainbow": _rainbow,
    "imitation": _imitating,
    "imitation-ppo": _imitating,
}
"""Name -> function of environments and a seed that makes a fresh agent."""


def fresh(name: str, generator: str, seed: int) -> Any:
    """Make an agent that has learned nothing, with its environments.

    Args:
        name: one of ``AGENTS``.
        generator: of the problems: ``"hybrid"``, ``"hetero-8"``, ...
        seed: of everything random.

    Raises:
        ParenvsError: the name is unknown.
    """
    if name not in AGENTS:
        raise ParenvsError(
            f"unknown agent {shown(name)}{did_you_mean(name, AGENTS)}; known: {', '.join(AGENTS)}"
        )
    # Environments have consecutive seeds, so the factor keeps runs from sharing episodes.
    env = make_env(ENV, {"instance": generator, "pool": POOL}, 1000 * seed, ENVS)
    return AGENTS[name](env, seed)


def train(name: str, generator: str, seed: int, steps: int, lessons: Sequence[Lesson] = ()) -> Any:
    """Train an agent.

    Args:
        name: one of ``AGENTS``.
        generator: of the problems.
        seed: of everything random but the problems.
        steps: environment steps; ``imitation`` takes none.
        lessons: of the teachers, for agents that imitate.

    Raises:
        ParenvsError: the name is unknown, or there are no lessons to imitate.
    """
    with one_thread():
        model = fresh(name, generator, seed)
        if name.startswith("imitation"):
            source = lessons[0].problem.rpartition("/")[0] if lessons else generator
            imitate(model, examples(source, lessons), seed)
        if name != "imitation":
            model.learn(steps)
    return model


def save(model: Any, file: Path) -> None:
    """Save an agent's weights."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as new, zipfile.ZipFile(new, "w") as archive:
        save_agent(archive, model)


def load(name: str, generator: str, seed: int, file: Path) -> Any:
    """Return an agent with the weights that ``save`` saved; arguments as of ``fresh``.

    Raises:
        ParenvsError: the file does not hold such an agent.
    """
    model = fresh(name, generator, seed)
    try:
        with zipfile.ZipFile(file) as archive:
            load_weights(archive, model)
    except Exception as error:
        raise ParenvsError(f"{file}: no weights of {name}; remove it, and train anew") from error
    return model


def play_together(model: Any, env: Any, seed: int | None = None) -> tuple[HybridPlan, float]:
    """Play an episode of ``hybrid_v0``, every agent by its own observation and mask.

    Args:
        model: a trained agent; its best actions are taken.
        env: ``hybrid_v0.env(...)``.
        seed: of the reset.

    Returns:
        The plan, and what it earns.
    """
    env.reset(seed=seed)
    while not all(env.terminations.values()):
        observation = env.observe(env.agent_selection)
        turn = int(observation["turn"].argmax())
        assert env.agent_selection == env.possible_agents[AGENT_OF[turn]]
        own = observation.pop("action_mask")
        mask = np.zeros(sum(SIZES), dtype=bool)
        mask[OFFSETS[turn] :][: SIZES[turn]] = own[OWN_OFFSETS[turn] :][: SIZES[turn]]
        action, _ = model.predict(observation, action_masks=mask, deterministic=True)
        env.step(int(action) - OFFSETS[turn] + OWN_OFFSETS[turn])
    return env.unwrapped.plan(), float(next(iter(env.rewards.values())))
