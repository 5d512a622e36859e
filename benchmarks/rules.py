"""The page of rules: what plays an environment of rows without learning, on its test sets.

    python benchmarks/rules.py                                   # every environment of rows
    python benchmarks/rules.py --envs HybridPlan-v1
    python benchmarks/rules.py --envs HybridPlan-v1 --only ppo

Rules are chance, constants, and the least and the largest of every column of the rows; the rule of
column 0 is the largest of it. Beside them stand the planners of the task, with the processor
seconds that they take. An environment is called *sanity* if a rule over bare rows, or column 0
alone, is within 2 % of the best known on most problems of a set.

What learns without knowing rows is MaskablePPO of sb3-contrib with all its defaults, its policy
``MultiInputPolicy`` too, trained in the environment as ``gym.make`` makes it. It plays the sets
whose problems have as many actions, by its best ones. An agent in ``--runs`` is not trained again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from benchmarks.trained import kept
from parenvs.agents.evaluation.rules import Choose, Played, play_rule, rules
from parenvs.agents.planners import solve
from parenvs.core.registry import environments
from parenvs.core.rows import RowGame
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.errors import NO_PLAN
from parenvs.tasks.elastic.load import MEASURED, TRACES, WINDOWS
from parenvs.tasks.hybrid.load import rules as hybrid

NEAR, MOST = 0.02, 0.5
"""Within this of the best known on more than this share of problems, a rule makes *sanity*."""
PPO = "PPO, seed "
"""Beginning of the method of an agent."""
ENVS, TURNS = 16, 2048
"""Environments of PPO side by side, and turns of an update in all, sb3-contrib's default."""


Places = list[tuple[str, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]
"""Environments of rows, the sets that they are tested on, and planners beside them."""


def _elastic() -> Places:
    sets: Any = [(WINDOWS, f"{trace}-{model}") for trace in TRACES for model in MEASURED]
    return [("ElasticPlan-v1", sets, {"hysteresis": {}, "look-ahead": {}, "exact": {}})]


def partition() -> Places:
    sets: Any = [(name, None) for name in ("partition-validation", "partition-test")]
    return [("PartitionPlan-v1", sets, {"greedy": {}, "exact": {"time_limit": 20.0}})]


def _pipeline() -> Places:
    sets: Any = [(f"plan-{tier}-test", None) for tier in ("s16", "s32", "s64")]
    planners: dict[str, dict[str, Any]] = {
        "even": {}, "exact": {"time_limit": 0.5}, "search": {"time_limit": 0.5},
        "search/5 s": {"time_limit": 5.0},
    }  # fmt: skip
    return [("PipelinePlan-v1", sets, planners)]


def _sharding() -> Places:
    names, families = ("intra-op-test", "intra-op-outside"), ("mesh", "classes")
    sets: Any = [(name, family) for name in names for family in families]
    planners = {"greedy": {}, "exact": {"time_limit": 5.0}}
    return [("IntraOpSharding-v1", sets, planners)]


def places() -> dict[str, tuple[Any, list[tuple[str, str | None]], dict[str, dict[str, Any]]]]:
    """Environment of rows -> its game; sets and families; planners and their options."""
    result = {}
    for rules_of in (partition, _pipeline, hybrid, _sharding, _elastic):
        for env_id, sets, planners in rules_of():
            result[env_id] = late(environments()[env_id]), sets, planners
    return result


def figures(played: Played) -> Row:
    """What the page keeps of a rule."""
    shares = played.shares
    return {
        "share": float(shares.mean()),
        "near": float((shares >= 1 - NEAR).mean()),
        "start": float((played.best / played.start).mean()),
        "seconds": played.seconds / len(shares),
        "turns": float(played.turns.mean()),
        "problems": len(shares),
    }


def ruled(env_id: str, name: str, family: str | None, rule: str, first: int | None) -> Row:
    """Play a rule."""
    game: type[RowGame] = places()[env_id][0]
    bare = rules(game, "bare")
    rows = "bare" if rule in bare else "ahead"
    choose = bare[rule] if rule in bare else rules(game)[rule]
    return figures(play_rule(env_id, name, choose, family, rows, first))


def solved(
    name: str, family: str | None, planner: str, options: dict[str, Any], first: int | None
) -> tuple[list[float], float]:
    """Solve a set by a planner: shares of the best known costs, and processor seconds of each."""
    played = set_of(name)
    shares, seconds = [], 0.0
    for problem in played.of(family)[:first]:
        loaded = played.load(problem)
        begin = time.process_time()
        try:
            answer = solve(loaded, planner.split("/")[0], **options)
        except NO_PLAN:
            answer = None
        seconds += time.process_time() - begin
        known = played.reference(problem)
        worth = 0.0 if answer is None else max(played.answered(answer), 0.0)
        shares.append(worth / known.value)
    return shares, seconds / len(shares)


def planned(
    name: str, family: str | None, planner: str, options: dict[str, Any], first: int | None
) -> Row:
    """Solve by a planner, against the best costs known."""
    shares, seconds = solved(name, family, planner, options, first)
    return {
        "share": float(np.mean(shares)),
        "near": float(np.mean(np.array(shares) >= 1 - NEAR)),
        "seconds": seconds,
        "problems": len(shares),
    }


def trained(env_id: str, seed: int, steps: int, runs: Path) -> tuple[Any, float]:
    """Return MaskablePPO of sb3-contrib, and the processor seconds of its training."""
    from sb3_contrib import MaskablePPO

    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.sb3 import NativeVecEnv

    def learnt() -> Any:
        batch: Any = gym.make_vec(
            env_id,
            num_envs=ENVS,
            vectorization_mode="vector_entry_point",
            autoreset_mode="SameStep",
        )
        env = NativeVecEnv(batch)
        env.seed(seed)
        options: dict[str, Any] = {"n_steps": TURNS // ENVS, "seed": seed, "device": "cpu"}
        with one_thread():
            return MaskablePPO("MultiInputPolicy", env, **options).learn(steps)

    return kept(runs / f"{env_id}-{steps}-{seed}.zip", learnt, MaskablePPO.load)


def by_ppo(
    env_id: str, seed: int, name: str, family: str | None, steps: int, first: int | None, runs: Path
) -> Row:
    """Play a set by the best actions of an agent, trained if need be."""
    model, seconds = trained(env_id, seed, steps, runs)

    def choose(seen: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
        masks = seen["action_mask"] > 0
        return np.asarray(model.predict(seen, action_masks=masks, deterministic=True)[0])

    chosen: Choose = choose
    played = play_rule(env_id, name, chosen, family, first=first)
    return {**figures(played), "training": seconds, "steps": steps}


def alike(env_id: str, sets: list[tuple[str, str | None]]) -> Iterator[tuple[str, str | None]]:
    """Yield the sets whose problems have as many actions as the environment by default."""
    own = gym.make(env_id).action_space
    for name, family in sets:
        kwargs = set_of(name, env_id).env_kwargs(family)
        if gym.make(env_id, **kwargs).action_space == own:
            yield name, family


@measurement(
    key="env set family method",
    title="Rules of one line",
    among={"only": ("rules", "planners", "ppo")},
    about={
        "envs": "environments (default: all)", "first": "problems of each set",
        "seeds": "of PPO", "steps": "turns of a training", "runs": "folder of agents",
    },
)  # fmt: skip
def rules_(
    envs: tuple[str, ...] = (),
    first: int | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 100_000,
    runs: Path = Path("runs/rules"),
    only: tuple[str, ...] = ("rules", "planners"),
) -> Iterator[Case]:
    for env_id, (game, sets, planners) in places().items():
        if envs and env_id not in envs:
            continue
        for name, family in sets:
            key = {"env": env_id, "set": name, "family": family or ""}
            for rule in rules(game) if "rules" in only else ():
                yield {**key, "method": rule}, partial(ruled, env_id, name, family, rule, first)
            for planner, options in planners.items() if "planners" in only else ():
                work = partial(planned, name, family, planner, options, first)
                yield {**key, "method": f"planner {planner}"}, work
        for seed in seeds if "ppo" in only else ():
            for name, family in alike(env_id, sets):
                key = {"env": env_id, "set": name, "family": family or ""}
                work = partial(by_ppo, env_id, seed, name, family, steps, first, runs)
                yield {**key, "method": f"{PPO}{seed}"}, work


@rules_.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        "Mean share of the best known cost, the share of problems within 2 % of it, and processor "
        "seconds a problem. Constants and chance are of legal actions; ties go to the first. PPO "
        "is MaskablePPO of sb3-contrib with its defaults in the environment as it is by default: "
        "the mean of its seeds, and the least and the largest of them."
    ]
    for env_id, (game, sets, _) in places().items():
        mine = [row for row in rows if row["env"] == env_id]
        if not mine:
            continue
        bare = rules(game, "bare")
        sane = {
            (row["method"], row["set"], row["family"])
            for row in mine
            if row["near"] > MOST and (row["method"] in bare or row["method"] == "largest rule")
        }
        of = {f"{name} {family}".strip() for _, name, family in sane}
        words = f"sanity on {', '.join(sorted(of))}" if of else "no set is sanity"
        sections.append(f"## {env_id}")
        sections.append(f"The rule of column 0: {game.rule}. {words.capitalize()}.")
        columns = [(name, family or "") for name, family in sets]
        agents = [row for row in mine if row["method"].startswith(PPO)]
        methods = dict.fromkeys(row["method"] for row in mine if row not in agents)
        by = {(row["method"], row["set"], row["family"]): row for row in mine}
        lines = []
        for method in methods:
            found = [by.get((method, *column)) for column in columns]
            lines.append([method, *(_cell(row) for row in found)])
        if agents:
            each = [
                [row for row in agents if (row["set"], row["family"]) == column]
                for column in columns
            ]
            spent = {row["method"]: row["training"] for row in agents}
            steps = max(row["steps"] for row in agents)
            words = f"{len(spent)} seeds of {steps:,} turns, {np.mean(list(spent.values())):.0f} s"
            lines.append([f"PPO, {words} each", *map(_seeds, each)])
            best = [
                max((row["share"] for row in found if row), default=np.nan)
                for found in (
                    [by.get((rule, *column)) for rule in rules(game)] for column in columns
                )
            ]
            sections.append(_beaten(columns, each, best))
        heads = [f"{name} {family}".strip() for name, family in columns]
        sections.append(table(["method", *heads], lines))
    return sections


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row['share']:.4f}, {percent(row['near'], 0)}, {row['seconds']:.3g} s"


def _seeds(rows: list[Row]) -> str:
    """The mean of seeds, the least and the largest."""
    if not rows:
        return ""
    shares = [row["share"] for row in rows]
    means = {key: float(np.mean([row[key] for row in rows])) for key in ("near", "seconds")}
    spread = f" ({min(shares):.4f} to {max(shares):.4f})"
    return _cell({"share": float(np.mean(shares)), **means}).replace(",", f"{spread},", 1)


def _beaten(columns: list[tuple[str, str]], agents: list[list[Row]], best: list[float]) -> str:
    """Say on which sets the mean of PPO's seeds is above the best rule of one line."""
    played = [
        (" ".join(column).strip(), float(np.mean([row["share"] for row in rows])), rule)
        for column, rows, rule in zip(columns, agents, best, strict=True)
        if rows
    ]
    above = [f"{name} ({own:.4f} to {rule:.4f})" for name, own, rule in played if own > rule]
    below = [f"{name} ({own:.4f} to {rule:.4f})" for name, own, rule in played if own <= rule]
    parts = (("PPO beats the best rule on", above), ("It does not on", below))
    return " ".join(f"{words} {', '.join(names)}." for words, names in parts if names)


if __name__ == "__main__":
    main(rules_)
