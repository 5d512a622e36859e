"""Evaluates a policy on an environment: its return, its plan, its gap to the reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents.planners import solve
from parenvs.core.plan import Answer, Plan
from parenvs.core.task import late
from parenvs.errors import ParenvsError, shown

Choose = Callable[[Any, np.ndarray, bool], Any]
"""Chooses an action for an observation and a mask, greedily if the third argument is true; models
take batches of both, too."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Result of playing a policy without further training.

    Attributes:
        value: return of the greedy episode.
        reference: the best answer to the environment's problem, proven.
        gap: share by which the plan may fall short of the reference; None if the plan is illegal.
        returns: (episodes,) float64, returns of the sampled episodes.
        best_value: the best return of the greedy and the sampled episodes.
        best_plan: the plan of the episode with the best return.
    """

    value: float
    plan: Plan
    report: Any
    reference: Answer
    gap: float | None
    returns: np.ndarray
    best_value: float
    best_plan: Plan

    def __str__(self) -> str:
        """Return a few lines with the return, the gap and the report."""
        gap = "illegal" if self.gap is None else f"{self.gap:.3%} from the optimum"
        lines = [f"return {self.value:.4f} ({gap})"]
        if len(self.returns):
            lines.append(
                f"{len(self.returns)} sampled episodes: {self.returns.mean():.4f} +- "
                f"{self.returns.std():.4f}, best {self.best_value:.4f}"
            )
        return "\n".join([*lines, str(self.report)])


def evaluate(
    model: Any, env: gym.Env[Any, Any], episodes: int = 0, seed: int | None = None
) -> Evaluation:
    """Play the greedy policy once, and the sampled policy ``episodes`` times, with masks.

    Args:
        model: anything with ``predict(observation, action_masks=..., deterministic=...)``, as the
            algorithms of Stable-Baselines3 have it (without ``action_masks`` if the model does not
            take them), or a function from observation and mask to an action.
        env: an environment of this suite, wrapped or not.
        episodes: number of sampled episodes.
        seed: seed of the environment and of the sampling.

    Raises:
        ParenvsError: ``env`` is no environment of this suite, or ``model`` no policy.

    >>> import gymnasium as gym, parenvs
    >>> env = gym.make("OperatorPartition-v0", instance="vgg-19")
    >>> parenvs.evaluate(lambda observation, mask: mask.argmax(), env).value < 29
    True
    """
    game = getattr(env.unwrapped, "game", None) if isinstance(env, gym.Env) else None
    if game is None:
        raise ParenvsError(
            f"evaluate takes an environment of parenvs, made by gym.make, not {shown(env)}"
        )
    choose = chooser(model)
    if seed is not None and hasattr(model, "set_random_seed"):
        model.set_random_seed(seed)
    value = _play(env, choose, True, seed)
    plan: Plan = env.get_wrapper_attr("plan")()
    problem = env.get_wrapper_attr("problem")
    best_value, best_plan, returns = value, plan, []
    for _ in range(episodes):
        returns.append(_play(env, choose, False))
        if returns[-1] > best_value:
            best_value, best_plan = returns[-1], env.get_wrapper_attr("plan")()
    # The best answer to the problem of the first episode, proven where it can be.
    answer = late(game.exact)(game, 0) if game.exact else solve(game.problem(0))
    report = problem.report(plan)
    gap = report.gap(answer) if value > 0 or report.legal else None
    return Evaluation(value, plan, report, answer, gap, np.array(returns), best_value, best_plan)


def chooser(model: Any) -> Choose:
    """Return a function that chooses actions by the model; ``ParenvsError`` if it is no policy."""
    predict = getattr(model, "predict", None)
    if predict is None:
        if not callable(model):
            raise ParenvsError(
                f"a model needs predict(observation, ...) or must be a function, not {shown(model)}"
            )
        return lambda observation, mask, greedy: int(model(observation, mask))
    masked = "action_masks" in inspect.signature(predict).parameters

    def choose(observation: Any, mask: np.ndarray, greedy: bool) -> Any:
        masks = {"action_masks": mask} if masked else {}
        return predict(observation, deterministic=greedy, **masks)[0]

    return choose


def _play(env: gym.Env[Any, Any], choose: Choose, greedy: bool, seed: int | None = None) -> float:
    observation, info = env.reset(seed=seed)
    total, done = 0.0, False
    while not done:
        action = int(choose(observation, info["action_mask"].astype(bool), greedy))
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        done = terminated or truncated
    return total
