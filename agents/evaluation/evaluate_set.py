"""``evaluate_set``: how agents and planners do on the problems of a shipped set."""

from __future__ import annotations

import json
import math
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

from parenvs.agents import planners
from parenvs.agents.evaluation.evaluate import chooser
from parenvs.agents.evaluation.statistics import (
    bootstrap_interval,
    mean_known,
    performance_profile,
    probability_of_improvement,
)
from parenvs.compiled import Array
from parenvs.core.plan import OPTIMAL
from parenvs.core.sets import BOUND, KINDS, ProblemSet, family_named, score_of, set_of
from parenvs.errors import NO_PLAN, ParenvsError, one_line, shown
from parenvs.fields import Count, Index, checked
from parenvs.files import StrPath, read_json, write_text

THRESHOLDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Gaps at which performance profiles are printed; ``SetEvaluation.optimal`` comes before."""
_WORDS = ("optima", "best known plans", "certified bounds")
BATCH = 64
"""Episodes side by side."""


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """Scores of r runs of an agent on the k problems of a set, in the order of the set.

    Attributes:
        set_name: name of the set.
        problems: names of the problems.
        scores: (r, k) float64, reference / cost of each plan; NaN without a legal plan.
        kinds: what the references are, each one of ``parenvs.core.sets.KINDS``.
        env_id: id of the environment that played it; None: the set's own.
        thresholds: gaps at which performance profiles are printed.
    """

    set_name: str
    problems: tuple[str, ...]
    scores: Array
    kinds: tuple[str, ...]
    env_id: str | None = None

    thresholds: ClassVar[tuple[float, ...]] = THRESHOLDS

    @cached_property
    def gaps(self) -> Array:
        """(r, k) shares by which costs exceed the references, inf without a legal plan."""
        with np.errstate(divide="ignore"):  # a legal run that trains nothing has the score 0
            return np.nan_to_num(1.0 / self.scores - 1.0, nan=np.inf, posinf=np.inf)

    @property
    def reference(self) -> str:
        """What scores are relative to, in words, like ``"20 optima, 80 best known plans"``."""
        counts = Counter(self.kinds)
        known = [x for x in zip(KINDS, _WORDS, strict=True) if counts[x[0]]]
        if len(known) == 1:
            return known[0][1]
        return ", ".join(f"{counts[kind]} {words}" for kind, words in known)

    @property
    def families(self) -> Array:
        """(k,) family of each problem."""
        return np.array([family_named(name) for name in self.problems])

    @property
    def score(self) -> float:
        """Mean of the scores of the plans; problems without one count in ``coverage`` alone."""
        return mean_known(self.scores)

    @property
    def coverage(self) -> float:
        """Share of the episodes that ended with a legal plan."""
        return float(np.isfinite(self.scores).mean())

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of ``score``, see ``bootstrap_interval``; problems by family."""
        return bootstrap_interval(mean_known, self.scores, strata=self.families)

    @property
    def over(self) -> str:
        """What ``interval`` is the spread over: ``"runs"`` or ``"problems"``."""
        return "runs" if len(self.scores) > 1 else "problems"

    @property
    def optimal(self) -> float:
        """Share of the episodes whose cost is within 0.1 % of the reference."""
        return float((self.gaps <= OPTIMAL).mean())

    @property
    def profile(self) -> Array:
        """(t,) share of episodes whose gap is at most each of ``thresholds``."""
        return performance_profile(self.gaps, THRESHOLDS)

    def improvement_over(self, other: SetEvaluation) -> tuple[float, tuple[float, float]]:
        """Return how likely this agent's gap is smaller than another's, and its interval.

        Raises:
            ParenvsError: the other agent was evaluated on other problems.
        """
        own_env, other_env = (set_of(x.set_name, x.env_id).kind.env_id for x in (self, other))
        if self.problems != other.problems or own_env != other_env:
            raise ParenvsError(f"evaluated on {self.set_name} and on {other.set_name}: not alike")
        gaps = self.gaps, other.gaps
        statistic = probability_of_improvement
        return statistic(*gaps), bootstrap_interval(statistic, *gaps, strata=self.families)

    def __str__(self) -> str:
        """Return the figures in a few lines."""
        low, high = self.interval
        runs = f"{len(self.scores)} run{'s' if len(self.scores) > 1 else ''}"
        shares = ", ".join(
            f"{share:.1%} <= {threshold:g}"
            for threshold, share in zip(THRESHOLDS, self.profile, strict=True)
        )
        return (
            f"{self.set_name}: {runs} of {len(self.problems):,} problems, score {self.score:.4f} "
            f"(mean of reference / cost, 95 % interval {low:.4f} to {high:.4f} over {self.over}); "
            f"references: {self.reference}\n"
            f"  legal plans {self.coverage:.1%}, optimal {self.optimal:.1%}\n"
            f"  gap: {shares}"
        )

    def save(self, path: StrPath) -> None:
        """Write names and scores as JSON, null without a legal plan."""
        scores = [[x if math.isfinite(x) else None for x in row] for row in self.scores.tolist()]
        content = {
            "set": self.set_name, "problems": self.problems, "scores": scores,
            "score": self.score, "coverage": self.coverage, "interval": self.interval,
            "interval_over": self.over, "reference": self.reference, "env_id": self.env_id,
        }  # fmt: skip
        write_text(Path(path), json.dumps(content) + "\n")

    @staticmethod
    def load(path: StrPath) -> SetEvaluation:
        """Read what ``save`` wrote.

        Raises:
            ParenvsError: the file is missing, damaged, or of problems that are not shipped.
        """
        content = read_json(path)
        try:
            problems = tuple(str(name) for name in content["problems"])
            scores = np.array(content["scores"], np.float64)  # None becomes NaN
            if scores.ndim != 2 or scores.shape[1] != len(problems) or not scores.size:
                raise ValueError(f"field 'scores' has the shape {scores.shape}")
            name, env_id = str(content["set"]), content.get("env_id")
            played = set_of(name, env_id)
            for problem in problems:
                if problem not in played.problems:
                    raise ValueError(f"{problem!r} is no problem of {name}")
            return SetEvaluation(name, problems, scores, _kinds(played, problems), env_id)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ParenvsError(
                f"{os.fspath(path)}: not an evaluation ({one_line(error)})"
            ) from None


def play_set(
    policy: Any, played: ProblemSet, family: str | None, count: int, greedy: bool, **settings: Any
) -> list[float]:
    """Return the scores of a policy on the first ``count`` problems of a set, or a family of it.

    The other arguments are as of ``evaluate_set``.

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
    number, scores = np.arange(batch), np.full(count, np.nan)
    while (number < count).any():
        actions = choose(observation, infos["action_mask"].astype(bool))
        observation, _, terminated, _, infos = env.step(actions)
        ended = np.flatnonzero(terminated)
        # The last problems are dealt to some of the environments; what others play does not count.
        counted = ended[number[ended] < count]
        for row in counted.tolist():
            scores[number[row]] = score_of(_final_info(infos, row))
        number[ended] += batch
    env.close()
    return scores.tolist()


def _final_info(infos: Mapping[str, Any], row: int) -> dict[str, float]:
    last = infos["final_info"]
    return {
        name: float(value[row]) for name, value in last.items()
        if not name.startswith("_") and last[f"_{name}"][row] and value.dtype == np.float64
    }  # fmt: skip


def _batch_chooser(policy: Any, greedy: bool) -> Callable[[dict[str, Any], Array], Array]:
    choose = chooser(policy)
    if hasattr(policy, "predict"):
        return lambda seen, masks: np.asarray(choose(seen, masks, greedy))

    def each(seen: dict[str, Any], masks: Array) -> Array:
        rows = range(len(masks))
        return np.array(
            [choose({k: v[row] for k, v in seen.items()}, masks[row], greedy) for row in rows]
        )

    return each


def _kinds(played: ProblemSet, problems: Sequence[str]) -> tuple[str, ...]:
    known = map(played.kind.costs, problems)
    return tuple(BOUND if costs is None else costs.kind for costs in known)


def evaluate_set(
    policies: Any,
    name: str = "plan-test",
    family: str | None = None,
    greedy: bool = True,
    seed: Index = 0,
    first: Count | None = None,
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
    >>> 0 < evaluation.interval[0] < evaluation.score < 1
    True
    """
    given = {"name": name, "greedy": greedy, "seed": seed, "first": first}
    name, greedy, seed, first = checked(evaluate_set, given).values()
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    if not several or not isinstance(settings, Mapping):
        raise ParenvsError("evaluate_set takes at least one policy, and settings by name")
    env_ids = dict.fromkeys(getattr(policy, "env_id", None) for policy in several)
    if len(env_ids) > 1:
        raise ParenvsError(f"{name}: policies of several environments: {shown(list(env_ids))}")
    env_id = next(iter(env_ids), None)
    played = set_of(name, env_id)
    problems = played.of(family)[:first]
    rows: list[Any] = []
    for policy in several:
        if isinstance(policy, str):
            rows.append([_planned(played, problem, policy) for problem in problems])
            continue
        if hasattr(policy, "set_random_seed"):
            policy.set_random_seed(seed)
        given = {**getattr(policy, "settings", {}), **settings}
        rows.append(play_set(policy, played, family, len(problems), greedy, **given))
    scores = np.array(rows, np.float64)
    return SetEvaluation(name, problems, scores, _kinds(played, problems), env_id)


def _planned(played: ProblemSet, problem: str, planner: str) -> float:
    """Return the score of a planner's plan of a problem; NaN if it finds none."""
    try:
        return played.answer_score(problem, planners.plan(played.kind.load(problem), planner))
    except NO_PLAN:
        return math.nan
