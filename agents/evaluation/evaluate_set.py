"""``evaluate_set``: how agents and planners do on the problems of a shipped set."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from parenvs.agents.evaluation.evaluate import chooser
from parenvs.agents.evaluation.statistics import (
    bootstrap_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)
from parenvs.agents.planners import solve
from parenvs.core.game import regret_of
from parenvs.core.plan import ILLEGAL, OPTIMAL
from parenvs.core.sets import KINDS, BestValue, ProblemSet, family_named, set_of
from parenvs.errors import NO_PLAN, ParenvsError, one_line, shown
from parenvs.files import read_json, write_text

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Regrets at which performance profiles are printed; ``SetEvaluation.optimal`` comes before."""
_WORDS = ("optima", "best known plans", "certified bounds")
BATCH = 64
"""Episodes side by side."""


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """Returns of r runs of an agent on the k problems of a set, in the order of the set.

    Attributes:
        set_name: name of the set.
        problems: names of the problems.
        values: (r, k) float64, what each episode is worth, mostly its return
            (``parenvs.core.sets``); -1 for an illegal plan.
        references: what the returns on each problem are measured against.
        env_id: id of the environment that played it; None: the set's own.
        thresholds: regrets at which performance profiles are printed.
    """

    set_name: str
    problems: tuple[str, ...]
    values: np.ndarray
    references: tuple[BestValue, ...]
    env_id: str | None = None

    thresholds: ClassVar[tuple[float, ...]] = THRESHOLDS

    @property
    def optima(self) -> np.ndarray:
        """(k,) reference returns: proven optima, else best known, else certified bounds."""
        return np.array([reference.value for reference in self.references])

    @cached_property
    def regrets(self) -> np.ndarray:
        """(r, k) shares by which returns fall short of ``optima``, >= 0; 1 for an illegal plan."""
        return np.maximum(regret_of(self.values, self.optima), 0.0)

    @property
    def bound_regret(self) -> float:
        """Interquartile mean of shares by which returns fall short of certified bounds."""
        bounds = np.array([reference.bound for reference in self.references])
        return interquartile_mean(np.maximum(regret_of(self.values, bounds), 0.0))

    @property
    def reference(self) -> str:
        """What regrets are measured to, in words, like ``"20 optima, 80 best known plans"``."""
        counts = Counter(reference.kind for reference in self.references)
        known = [x for x in zip(KINDS, _WORDS, strict=True) if counts[x[0]]]
        if len(known) == 1:
            return known[0][1]
        return ", ".join(f"{counts[kind]} {words}" for kind, words in known)

    @property
    def proven(self) -> bool:
        """Whether all regrets are to proven optima."""
        return all(reference.kind == KINDS[0] for reference in self.references)

    @property
    def families(self) -> np.ndarray:
        """(k,) family of each problem."""
        return np.array([family_named(name) for name in self.problems])

    @property
    def regret(self) -> float:
        """Interquartile mean of the regrets."""
        return interquartile_mean(self.regrets)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``regret``, see ``bootstrap_interval``; problems by family."""
        return bootstrap_interval(interquartile_mean, self.regrets, strata=self.families)

    @property
    def over(self) -> str:
        """What ``interval`` is the spread over: ``"runs"`` or ``"problems"``."""
        return "runs" if len(self.values) > 1 else "problems"

    @property
    def optimal(self) -> float:
        """Share of the plans whose cost is within 0.1 % of the reference."""
        return float((self.regrets <= OPTIMAL).mean())

    @property
    def illegal(self) -> float:
        """Share of the episodes that ended with an illegal action or plan."""
        return float((self.values <= 0).mean())

    @property
    def profile(self) -> np.ndarray:
        """(t,) share of episodes whose regret is at most each of ``thresholds``."""
        return performance_profile(self.regrets, THRESHOLDS)

    def improvement_over(self, other: SetEvaluation) -> tuple[float, tuple[float, float]]:
        """Return how likely this agent's regret is smaller than another's, and its interval.

        Raises:
            ParenvsError: the other agent was evaluated on other problems.
        """
        mine, theirs = (set_of(x.set_name, x.env_id).kind.env_id for x in (self, other))
        if self.problems != other.problems or mine != theirs:
            raise ParenvsError(f"evaluated on {self.set_name} and on {other.set_name}: not alike")
        scores = self.regrets, other.regrets
        statistic = probability_of_improvement
        return statistic(*scores), bootstrap_interval(statistic, *scores, strata=self.families)

    def __str__(self) -> str:
        """Return the figures in a few lines."""
        low, high = self.interval
        runs = f"{len(self.values)} run{'s' if len(self.values) > 1 else ''}"
        shares = ", ".join(
            f"{share:.1%} <= {threshold:g}"
            for threshold, share in zip(THRESHOLDS, self.profile, strict=True)
        )
        return (
            f"{self.set_name}: {runs} of {len(self.problems):,} problems, regret to "
            f"{self.reference} {self.regret:.4f} (interquartile mean, 95 % interval "
            f"{low:.4f} to {high:.4f} over {self.over}), mean {self.regrets.mean():.4f}\n"
            f"  optimal {self.optimal:.1%}, illegal {self.illegal:.1%}\n"
            f"  regret: {shares}"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write names and returns as JSON; references are those of the set."""
        content = {
            "set": self.set_name, "problems": self.problems, "values": self.values.tolist(),
            "regret": self.regret, "interval": self.interval, "interval_over": self.over,
            "reference": self.reference, "env_id": self.env_id,
        }  # fmt: skip
        write_text(Path(path), json.dumps(content) + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SetEvaluation:
        """Read what ``save`` wrote.

        Raises:
            ParenvsError: the file is missing, damaged, or of problems that are not shipped.
        """
        content = read_json(path)
        try:
            problems = tuple(str(name) for name in content["problems"])
            values = np.array(content["values"], dtype=np.float64)
            if values.ndim != 2 or values.shape[1] != len(problems) or not values.size:
                raise ValueError(f"field 'values' has the shape {values.shape}")
            name, env_id = str(content["set"]), content.get("env_id")
            played = set_of(name, env_id)
            for problem in problems:
                if problem not in played.problems:
                    raise ValueError(f"{problem!r} is no problem of {name}")
            return SetEvaluation(name, problems, values, _references(played, problems), env_id)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ParenvsError(
                f"{os.fspath(path)}: not an evaluation ({one_line(error)})"
            ) from None


def play_set(
    policy: Any, played: ProblemSet, family: str | None, count: int, greedy: bool, **settings: Any
) -> list[float]:
    """Return the returns of a policy on the first ``count`` problems of a set.

    Args:
        policy: what ``parenvs.evaluate`` takes.
        played: the set.
        family: problems of this family only.
        count: number of problems.
        greedy: whether a model plays its best action; otherwise it samples.
        **settings: further arguments of the set's environment.

    Raises:
        ParenvsError: the agent has another number of actions.
    """
    choose = _batch_chooser(policy, greedy)
    batch = min(BATCH, count)
    # Environment i plays the problems i, i + batch, ... of a set in its order.
    mode = gym.vector.AutoresetMode.SAME_STEP
    kwargs = {**played.env_kwargs(family), **settings}
    env: Any = gym.make_vec(
        played.kind.env_id, batch, "vector_entry_point", autoreset_mode=mode, **kwargs
    )
    width = env.single_action_space.n
    trained = getattr(getattr(policy, "action_space", None), "n", width)
    if trained != width:
        raise ParenvsError(
            f"{played.name}: its environment has {width} actions, and the agent was trained with "
            f"{trained}; give the family that it was trained on (--family)"
        )
    observation, infos = env.reset(seed=0)
    number, totals, values = np.arange(batch), np.zeros(batch), np.full(count, np.nan)
    while (number < count).any():
        actions = choose(observation, infos["action_mask"].astype(bool))
        observation, rewards, terminated, _, infos = env.step(actions)
        totals += rewards
        ended = np.flatnonzero(terminated)
        # The last problems are dealt to some of the environments; what others play does not count.
        counted = ended[number[ended] < count]
        for row in counted.tolist():
            values[number[row]] = played.score(totals[row], _final_info(infos, row))
        number[ended] += batch
        totals[ended] = 0.0
    env.close()
    return values.tolist()


def _final_info(infos: Mapping[str, Any], row: int) -> dict[str, float]:
    last = infos["final_info"]
    return {
        name: float(value[row]) for name, value in last.items()
        if not name.startswith("_") and last[f"_{name}"][row] and value.dtype == np.float64
    }  # fmt: skip


def _batch_chooser(policy: Any, greedy: bool) -> Callable[[dict[str, Any], np.ndarray], np.ndarray]:
    choose = chooser(policy)
    if hasattr(policy, "predict"):
        return lambda seen, masks: np.asarray(choose(seen, masks, greedy))

    def each(seen: dict[str, Any], masks: np.ndarray) -> np.ndarray:
        rows = range(len(masks))
        return np.array(
            [choose({k: v[row] for k, v in seen.items()}, masks[row], greedy) for row in rows]
        )

    return each


def _references(played: ProblemSet, problems: Sequence[str]) -> tuple[BestValue, ...]:
    return tuple(played.kind.reference(problem) for problem in problems)


def evaluate_set(
    policies: Any,
    name: str = "plan-test",
    family: str | None = None,
    greedy: bool = True,
    seed: int = 0,
    first: int | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> SetEvaluation:
    """Play each problem of a shipped set once, in the order of the set, with masks.

    Args:
        policies: a policy, or a list of the policies of several runs. A policy is what
            ``parenvs.evaluate`` takes, or the name of a planner, which solves each problem.
            Policies with an attribute ``env_id`` play the set in that environment.
        name: of the set: ``"plan-test"``, ``"hybrid-test"``, ``"hetero-8-test"``,
            ``"elastic-test"``, ``"partition-test"``, ... (``parenvs.core.sets``).
        family: problems of this family only (of orders: of this tier).
        greedy: whether models play their best action; otherwise they sample.
        seed: seed of models that sample.
        first: number of problems, the first of the set (default: all).
        settings: further arguments of the environment, like ``{"rows": "bare"}``; planners
            do not take them.

    Raises:
        ParenvsError: the set or the family is unknown, or a policy is none.

    >>> import parenvs
    >>> evaluation = parenvs.evaluate_set(lambda seen, mask: mask.argmax(), "plan-outside", "cnn")
    >>> 0 < evaluation.interval[0] < evaluation.regret < 1
    True
    """
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    env_ids = dict.fromkeys(getattr(policy, "env_id", None) for policy in several)
    if len(env_ids) > 1:
        raise ParenvsError(f"{name}: policies of several environments: {shown(list(env_ids))}")
    env_id = next(iter(env_ids), None)
    played = set_of(name, env_id)
    problems = played.of(family)[:first]
    values: list[Any] = []
    for policy in several:
        if isinstance(policy, str):
            values.append([_planned(played, problem, policy) for problem in problems])
            continue
        if hasattr(policy, "set_random_seed"):
            policy.set_random_seed(seed)
        values.append(play_set(policy, played, family, len(problems), greedy, **settings))
    scores = np.array(values, dtype=np.float64)
    return SetEvaluation(name, problems, scores, _references(played, problems), env_id)


def _planned(played: ProblemSet, problem: str, planner: str) -> float:
    """Return what a planner's plan of a problem is worth; -1 if it finds none."""
    try:
        return played.kind.answer_score(solve(played.kind.load(problem), planner))
    except NO_PLAN:
        return float(ILLEGAL)
