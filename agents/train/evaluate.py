"""Evaluates a trained agent with action masks: greedy and sampled episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sb3_contrib.common.maskable.evaluation import evaluate_policy

from parenvs.agents.train.learners import learner_of
from parenvs.agents.train.run import MODEL, Config, load_config, replay
from parenvs.agents.vec_env import make_env, one_thread
from parenvs.errors import ParenvsError
from parenvs.plan import Plan


@dataclass(frozen=True)
class Evaluation:
    """How good an agent's episodes are without further training.

    Attributes:
        greedy_value: return of the episode of most probable actions.
        greedy_plan: the plan that this episode builds.
        mean_value: mean return of the sampled episodes.
        std_value: standard deviation of the sampled episodes' returns.
        best_value: greatest return of all episodes, the greedy one included.
        best_plan: the plan that this episode builds.
        episodes: number of sampled episodes.
    """

    greedy_value: float
    greedy_plan: Plan
    mean_value: float
    std_value: float
    best_value: float
    best_plan: Plan
    episodes: int


def evaluate(model: Any, config: Config, episodes: int = 100, seed: int = 0) -> Evaluation:
    """Play one greedy episode and many sampled ones, with masks.

    Args:
        model: the trained agent.
        config: the run that the agent comes from; its environment is played.
        episodes: number of sampled episodes.
        seed: seed of the sampling.
    """
    with one_thread():
        env = make_env(config.env_id, config.env_kwargs, seed, envs=1)
        model.set_random_seed(seed)
        scale = env.get_attr("largest_return")[0]
        greedy = _Recorder(scale)
        evaluate_policy(model, env, 1, deterministic=True, callback=greedy, warn=False)
        sampled = _Recorder(scale)
        returns, _ = evaluate_policy(
            model,
            env,
            episodes,
            deterministic=False,
            callback=sampled,
            return_episode_rewards=True,
            warn=False,
        )
        env.close()
    best = max(greedy.best, sampled.best)
    return Evaluation(
        greedy_value=greedy.best[0],
        greedy_plan=replay(config, greedy.best[1]),
        mean_value=float(np.mean(returns)),
        std_value=float(np.std(returns)),
        best_value=best[0],
        best_plan=replay(config, best[1]),
        episodes=episodes,
    )


def evaluate_folder(folder: str | Path, episodes: int = 100, seed: int = 0) -> Evaluation:
    """Evaluate the model of a training run's folder.

    Args:
        folder: the folder of a finished run.
        episodes: number of sampled episodes.
        seed: seed of the sampling.

    Raises:
        ParenvsError: the folder holds no finished run, or its model is broken.
    """
    config = load_config(folder)
    path = Path(folder) / MODEL
    if not path.exists():
        raise ParenvsError(f"{folder}: no {MODEL} yet; finish the run with resume (--resume)")
    try:
        model = learner_of(config.agent).algorithm.load(path, device="cpu")
    except Exception as error:  # broken pickles and zip files raise errors of many kinds
        raise ParenvsError(f"{path}: not a trained agent ({error}); train anew") from None
    return evaluate(model, config, episodes, seed)


class _Recorder:
    """A callback of ``evaluate_policy`` that keeps the return and actions of the best episode.

    Args:
        scale: the number that the rewards were divided by.
    """

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self.best: tuple[float, list[int]] = (float("-inf"), [])
        self._actions: list[int] = []
        self._return = 0.0

    def __call__(self, local: dict[str, Any], _: dict[str, Any]) -> None:
        self._actions.append(int(local["actions"][local["i"]]))
        self._return += float(local["reward"]) * self._scale
        if local["done"]:
            self.best = max(self.best, (self._return, self._actions))
            self._actions, self._return = [], 0.0
