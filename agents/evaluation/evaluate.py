"""Evaluates a policy on an environment: its return, its plan, its gap to the reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from parenvs.agents import planners
from parenvs.core.plan import Plan
from parenvs.core.task import late
from parenvs.errors import NO_PLAN, ParenvsError, shown
from parenvs.fields import Index, checked

Choose = Callable[[Any, np.ndarray, bool], Any]
"""Chooses an action for an observation and a mask, greedily if the third argument is true; models
take batches of both, too."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Result of playing a policy without further training.

    Attributes:
        value: return of the greedy episode.
        report: the report on the plan of the greedy episode.
        reference: the least cost known of the problem of the episodes; None if no plan is known.
        proven: whether that is the optimum.
        returns: (episodes,) float64, returns of the sampled episodes, of the same problem.
        best_value: the best return of the greedy and the sampled episodes.
        best_report: the report on the plan of the episode with the best return.
    """

    value: float
    report: Any
    reference: float | None
    proven: bool
    returns: np.ndarray
    best_value: float
    best_report: Any

    @property
    def plan(self) -> Plan:
        """The plan of the greedy episode."""
        return self.report.plan

    @property
    def score(self) -> float | None:
        """The reference's cost over the plan's; None without a legal plan or a reference."""
        if self.reference is None or not self.report.legal:
            return None
        return float(self.reference / self.report.cost)

    @property
    def gap(self) -> float | None:
        """``cost / reference - 1``; None without a legal plan or a reference."""
        return None if self.score is None else float(self.report.cost / self.reference) - 1.0

    def __str__(self) -> str:
        """Return a few lines with the return, the gap and the report."""
        gap = "no reference" if self.report.legal else "illegal"
        if self.gap is not None:
            reference = "the optimum" if self.proven else "the best plan known"
            gap = f"cost {self.gap:.3%} above that of {reference}"
        lines = [f"return {self.value:.4f} ({gap})"]
        if len(self.returns):
            lines.append(
                f"{len(self.returns)} sampled episodes: {self.returns.mean():.4f} +- "
                f"{self.returns.std():.4f}, best {self.best_value:.4f}"
            )
        return "\n".join([*lines, str(self.report)])


def evaluate(
    model: Any, env: gym.Env[Any, Any], episodes: Index = 0, seed: Index | None = None
) -> Evaluation:
    """Play the greedy policy once, and the sampled policy ``episodes`` times, with masks.

    All episodes are of the problem that the reset with ``seed`` gives.

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
    given = checked(evaluate, {"episodes": episodes, "seed": seed})
    episodes, seed = given["episodes"], given["seed"]
    game = getattr(env.unwrapped, "game", None) if isinstance(env, gym.Env) else None
    if game is None:
        raise ParenvsError(
            f"evaluate takes an environment of parenvs, made by gym.make, not {shown(env)}"
        )
    choose = chooser(model)
    if seed is not None and hasattr(model, "set_random_seed"):
        model.set_random_seed(seed)
    observation, info = env.reset(seed=seed)
    start = deepcopy(env)
    reference = _reference(game)
    problem = env.get_wrapper_attr("problem")
    value = best_value = _play(env, choose, True, observation, info)
    report = best_report = problem.report(env.get_wrapper_attr("plan")())
    returns = []
    for _ in range(episodes):
        copy = deepcopy(start)
        returns.append(_play(copy, choose, False, observation, info))
        if returns[-1] > best_value:
            best_value = returns[-1]
            best_report = problem.report(copy.get_wrapper_attr("plan")())
    return Evaluation(value, report, *reference, np.array(returns), best_value, best_report)


def _reference(game: Any) -> tuple[float | None, bool]:
    """The least cost known of the problem, or the exact planner's, and whether it is optimal."""
    known = game.outcome(np.arange(1))
    start, reference, bound = (
        float(known.get(key, [np.nan])[0]) for key in ("start", "reference", "bound")
    )
    if np.isfinite(reference):
        return reference, reference <= bound
    try:
        problem = game.problem(0)
        answer = late(game.exact)(game, 0) if game.exact else planners.plan(problem, "exact")
    except NO_PLAN:
        return (start, False) if np.isfinite(start) else (None, False)
    if start < answer.cost:
        return start, False
    return float(answer.cost), answer.proven


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


def _play(
    env: gym.Env[Any, Any], choose: Choose, greedy: bool, observation: Any, info: dict[str, Any]
) -> float:
    """Play an episode to its end from its first observation; its return."""
    total, done = 0.0, False
    while not done:
        action = int(choose(observation, info["action_mask"].astype(bool), greedy))
        observation, reward, terminated, truncated, info = env.step(action)
        total += float(reward)
        done = terminated or truncated
    return total
