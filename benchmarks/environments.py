"""Each environment in a row: chance, the best heuristic of one line, trained agents, planners.

    python benchmarks/environments.py
    python benchmarks/environments.py --envs ElasticPlan-v2 --first 10

Heuristics take the least or the largest value of one action feature. Agents are those of
``learners.jsonl``. README shows the scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

import parenvs
from benchmarks.framework import RESULTS, Case, Row, main, measurement, read_rows, spent, table
from parenvs.core.game import RowGame
from parenvs.core.registry import environments as registered
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.errors import NO_PLAN

AGENTS = ("ppo", "imitate")
"""Methods of ``learners.jsonl`` that have a column."""
Planners = dict[str, dict[str, Any]]
"""Planner, with a slash and a word where its options differ -> its options."""
BATCH = 64
"""Episodes that are played at once."""
Choose = Callable[[dict[str, np.ndarray], np.random.Generator], np.ndarray]
"""Batched observations, and a generator -> (n,) actions."""
_ELASTIC = [f"{trace}-{model}" for trace in ("p3", "g4dn") for model in ("gpt-1.5b", "bert-large")]


class Place(NamedTuple):
    """A held-out set, or a family of one, on which an environment is tested."""

    env: str
    name: str
    family: str
    planners: Planners


def _places() -> Iterator[Place]:
    tests: dict[str, tuple[list[tuple[str, str]], Planners]] = {
        "PipelineImprove-v0": ([("plan-s16-test", "")], {"search/1 s": {"time_limit": 1.0}}),
        "PartitionPlan-v2": (
            [("partition-validation", ""), ("partition-test", "")],
            {"greedy": {}, "exact": {"time_limit": 20.0}},
        ),
        "HybridPlan-v2": (
            [("hybrid-test", "")],
            {"uniform": {}, "search/0.3 s": {"time_limit": 0.3}},
        ),
        "IntraOpSharding-v2": (
            [(f"intra-op-{n}", kind) for n in ("test", "outside") for kind in ("mesh", "classes")],
            {"greedy": {}, "exact": {"time_limit": 5.0}},
        ),
        "ElasticPlan-v2": (
            [("elastic-windows", family) for family in _ELASTIC],
            {"hysteresis": {}, "look-ahead": {}, "exact": {}},
        ),
    }
    for env, (sets, planners) in tests.items():
        yield from (Place(env, name, family, planners) for name, family in sets)


PLACES = tuple(_places())


def rules(game: type[RowGame]) -> dict[str, Choose]:
    """Return every rule of one line: chance, least and largest of each column."""
    found: dict[str, Choose] = {"random": _random}
    for index, name in enumerate(game.columns):
        found[f"largest {name}"] = partial(_largest, index, 1.0)
        found[f"least {name}"] = partial(_largest, index, -1.0)
    return found


def play_rule(place: Place, choose: Choose, first: int | None) -> Row:
    """Play the problems of a set by a rule, each once: share of the best known cost.

    Where no cost is known, the bound stands for it; an episode without a plan has the share 0.
    """
    played, family = set_of(place.name), place.family or None
    count = len(played.of(family)[:first])
    env: Any = gym.make_vec(
        place.env,
        num_envs=min(BATCH, count),
        vectorization_mode="vector_entry_point",
        autoreset_mode="SameStep",
        **played.env_kwargs(family),
    )
    rng, begin = np.random.default_rng(0), time.process_time()
    observation, _ = env.reset(seed=0)
    number = np.arange(env.num_envs)
    figures = np.full((3, count), np.nan)
    while (number < count).any():
        observation, _, ended, _, infos = env.step(choose(observation, rng))
        for row in np.flatnonzero(ended & (number < count)).tolist():
            last = infos["final_info"]
            for index, key in enumerate(("cost", "reference", "bound")):
                if key in last and last[f"_{key}"][row]:
                    figures[index, number[row]] = last[key][row]
        number[ended] += env.num_envs
    costs, best, bound = figures
    seconds = time.process_time() - begin
    env.close()
    shares = np.nan_to_num(np.where(np.isnan(best), bound, best) / costs, nan=0.0)
    return {"share": float(shares.mean()), "seconds": seconds / count, "problems": count}


def _random(observation: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    mask = observation["action_mask"]
    return np.asarray((rng.random(mask.shape) * mask).argmax(axis=1))


def _largest(
    column: int, sign: float, observation: dict[str, np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    values = sign * observation["actions"][..., column]
    return np.asarray(np.where(observation["action_mask"], values, -np.inf).argmax(axis=1))


def planned(place: Place, planner: str, first: int | None) -> Row:
    """Solve a set by a planner; a problem without a plan has the share 0."""
    played, shares, row = set_of(place.name), [], {}
    problems = played.of(place.family or None)[:first]
    with spent(row):
        for problem in problems:
            loaded, share = played.kind.load(problem), math.nan
            with suppress(*NO_PLAN):
                answer = parenvs.plan(loaded, planner.split("/")[0], **place.planners[planner])
                share = played.answer_score(problem, answer)
            shares.append(np.nan_to_num(share))
    seconds = row["seconds"] / len(problems)
    return {"share": float(np.mean(shares)), "seconds": seconds, "problems": len(shares)}


@measurement(
    key="env set family method",
    title="Environments beside heuristics and planners",
    about={"envs": "environments (default: all)", "first": "problems of each set"},
)
def environments(envs: tuple[str, ...] = (), first: int | None = None) -> Iterator[Case]:
    for place in PLACES:
        if envs and place.env not in envs:
            continue
        key = {"env": place.env, "set": place.name, "family": place.family}
        for rule, choose in rules(late(registered()[place.env])).items():
            yield {**key, "method": rule}, partial(play_rule, place, choose, first)
        for planner in place.planners:
            yield {**key, "method": f"planner {planner}"}, partial(planned, place, planner, first)


def mean(chosen: Sequence[Row], places: set[tuple[str, str]]) -> float | None:
    """Return the mean share over the problems of some sets; None if one is missing."""
    shares = {(row["set"], row["family"]): row for row in chosen}
    if not places <= set(shares):
        return None
    counts = [shares[place]["problems"] for place in places]
    return float(np.average([shares[place]["share"] for place in places], weights=counts))


def trained(chosen: Sequence[Row], places: set[tuple[str, str]]) -> str:
    """Return the mean share of an agent over its seeds, in words."""
    seeds: dict[int, dict[tuple[str, str], list[float]]] = {}
    for row in chosen:
        seeds.setdefault(row["seed"], {})[row["set"], row["family"]] = row["shares"]
    whole = [shares for shares in seeds.values() if places <= set(shares)]
    return by_seed([float(np.mean([x for p in places for x in shares[p]])) for shares in whole])


def by_seed(means: Sequence[float]) -> str:
    """Return the mean of an agent's seeds, the least and the largest, and their number."""
    if len(means) < 2:
        return "".join(f"{x:.3f}" for x in means)
    return f"{np.mean(means):.3f} ({min(means):.3f} to {max(means):.3f}, {len(means)} seeds)"


def trained_rows(rows: list[Row]) -> Iterator[list[str]]:
    """Yield a row of the table for each environment whose agents are trained on drawn problems."""
    learned = read_rows(RESULTS / "learners.jsonl")
    for env in dict.fromkeys(row["env"] for row in rows):
        mine = [row for row in rows if row["env"] == env]
        agents = [row for row in learned if row["env"] == env and row["method"] in AGENTS]
        of_agents = {(row["set"], row["family"]) for row in agents}
        places = {(row["set"], row["family"]) for row in mine if row["method"] == "random"}
        places = places & of_agents or places
        methods = dict.fromkeys(row["method"] for row in mine)
        means = {name: mean([r for r in mine if r["method"] == name], places) for name in methods}
        known = {name: value for name, value in means.items() if value is not None}
        planners = {k: v for k, v in known.items() if k.startswith("planner ")}
        heuristics = {k: v for k, v in known.items() if k not in {*planners, "random"}}
        best = max(heuristics, key=heuristics.__getitem__)
        planner = max(planners, key=planners.__getitem__)
        yield [
            f"`{env}`",
            ", ".join(dict.fromkeys(name for name, _ in sorted(places))),
            f"{known['random']:.3f}",
            f"{best} {heuristics[best]:.3f}",
            *(trained([r for r in agents if r["method"] == name], places) for name in AGENTS),
            f"{planner.removeprefix('planner ')} {planners[planner]:.3f}",
        ]


@environments.page
def page(rows: list[Row]) -> list[str]:
    return [
        "Mean of the best known cost over the plan's cost: 1 matches the best known plan. A "
        "heuristic takes the action with the largest or the least value of one feature; agents "
        "were trained for 65,536 steps and play their best actions (mean, least and largest of "
        "their seeds); the planner is the best of a few.",
        table(
            ["environment", "set", "random", "best heuristic", "PPO", "imitation", "planner"],
            sorted(trained_rows(rows)),
            2,
        ),
    ]


DECIDES = {
    "PipelineImprove-v0": "which stages of a pipeline to relocate, of 8 to 64",
    "HybridPlan-v2": "pipeline, tensor, data, context and expert parallelism together",
    "PartitionPlan-v2": "which dimensions of tensors to split within a device's memory",
    "IntraOpSharding-v2": "a sharding of every operator (ASPLOS 2025 contest)",
    "ElasticPlan-v2": "when to plan anew on nodes that come and go",
}
"""Environment of the table in README -> what its agent decides."""


def summary(rows: list[Row]) -> str:
    """Return the table in README: scores alone."""
    cells = {env.strip("`"): cells for env, *cells in trained_rows(rows)}
    lines = []
    for env, words in DECIDES.items():
        _, chance, rule, *agents, planner = cells[env]
        best = max(agent.split(" ")[0] for agent in agents)
        lines.append([f"`{env}`", words, chance, rule.split()[-1], best, planner.split()[-1]])
    return table(["environment", "decides", "random", "rule", "learned", "planner"], lines, 2)


if __name__ == "__main__":
    main(environments)
