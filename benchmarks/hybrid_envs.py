"""Agents and planners on ``HybridPlan-v0``: how near they come to the best plan known.

    python benchmarks/hybrid_envs.py                        # planners, and agents
    python benchmarks/hybrid_envs.py --only planners        # or agents, or one agent
    python benchmarks/hybrid_envs.py --share 0.125          # an eighth of each training

Trained policies and the lessons of their teachers are kept in ``build/hybrid_envs``. Agents are
trained on problems that the generator draws, never on those of a test set; see
``parenvs.agents.learning.hybrid.train`` for what they are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    Rows,
    main,
    measurement,
    percent,
    progress,
    spent,
    table,
)
from benchmarks.trained import kept
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.agents.hybrid import exact_hybrid, exact_uniform
from parenvs.agents.hybrid.episodes import local_search, random_play
from parenvs.agents.hybrid.heuristics import megatron
from parenvs.agents.hybrid.servers.heuristics import sorted_orders, swap_search
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.shipped import problem_sets
from parenvs.tasks.hybrid.turns.rules import rules_of

SETS = {"hybrid-test": 30, "hybrid-outside": 15, "hetero-8-test": 16, "hetero-32-test": 16}
"""Set -> its first problems, on which everything is measured."""
TRAINED_ON = {"hybrid": ("hybrid-test", "hybrid-outside"),
              "hetero-8": ("hetero-8-test",), "hetero-32": ("hetero-32-test",)}  # fmt: skip
"""Generator -> the sets on which policies trained on it are measured."""
STEPS = {"hybrid": 400_000, "hetero-8": 400_000, "hetero-32": 1_000_000}
"""Environment steps of a training."""
SEEDS = 5
LABELS = {"ppo": "PPO", "shared-ppo": "PPO, three agents, shared weights",
          "independent-ppo": "PPO, three agents, own weights", "rainbow": "Rainbow",
          "imitation": "imitation", "imitation-ppo": "imitation, then PPO"}  # fmt: skip
"""Agent -> its name on the page."""
EXPLORE = 0.1
"""Share of drawn actions where plans of Rainbow are sampled."""
LESSONS = {"hybrid": ("hybrid", 400), "hetero-8": ("hetero-8", 200), "hetero-32": ("hetero-8", 200)}
"""Generator -> the generator of its lessons, and their number; 32 servers are too many to prove."""
SAMPLES = 60
"""Plans that sampling agents and small searches judge."""
LIMIT, MORE = 60.0, 600.0
"""Wall seconds of the exact search of a problem, and where these leave it open."""
EXACT = "exact, a minute"
BUILD = Path("build/hybrid_envs")


def planners(problem: Hybrid, set_name: str) -> Iterator[tuple[str, Any]]:
    """Yield planners of a problem by name; those of the hetero sets keep to their rules."""
    rules = rules_of(set_name)
    for name, plays, mask in (
        ("random", 1, "legal"),
        ("random, completable", 1, "completable"),
        (f"random, completable, best of {SAMPLES}", SAMPLES, "completable"),
    ):
        yield (
            name,
            lambda plays=plays, mask=mask: random_play(
                problem, np.random.default_rng(0), plays, mask, rules
            ),
        )
    for count in (SAMPLES, 600):
        yield (
            f"local search, {count} plans",
            lambda count=count: local_search(problem, np.random.default_rng(0), count, rules),
        )
    if set_name.startswith("hybrid"):
        yield "Megatron's rule", lambda: megatron(problem)
        yield "all uniform plans", lambda: exact_uniform(problem)
        yield EXACT, lambda: exact_hybrid(problem, time_limit=LIMIT)
        return
    yield "servers by speed", lambda: sorted_orders(problem)
    for count in (SAMPLES, 600):
        yield (
            f"swap search, {count} plans",
            lambda count=count: swap_search(problem, np.random.default_rng(0), None, count),
        )


def planner_cases(rows: Rows) -> Iterator[Case]:
    """Plan every problem by every planner, and longer what a minute leaves open."""
    for set_name, count in SETS.items():
        for problem in problem_sets()[set_name][:count]:
            for name, plan in planners(problem, set_name):
                yield _key(set_name, name, problem), partial(planned, name, plan)
            if rows.of(problem=problem.instance, method=EXACT, proven=False):
                plan = partial(exact_hybrid, problem, time_limit=MORE)
                name = "exact, ten minutes, of what is open"
                yield _key(set_name, name, problem), partial(planned, name, plan)


def _key(set_name: str, method: str, problem: Hybrid, steps: int = 0, seed: int = 0) -> Row:
    return {"set": set_name, "method": method, "steps": steps, "seed": seed,
            "problem": problem.instance}  # fmt: skip


def planned(name: str, plan: Callable[[], Any]) -> Row:
    row: Row = {"length": None, "proven": False, "bound": None}
    with spent(row), suppress(InfeasibleError, TimeLimitError):
        answer = plan()
        assert answer.report.legal
        row |= {"length": answer.cost, "proven": bool(answer.proven),
                "bound": answer.bound if name.startswith("exact") else None}  # fmt: skip
    return row


@cache
def trained(agent: str, generator: str, seed: int, steps: int) -> tuple[Any, float]:
    """Return an agent trained on a generator's problems, and the processor seconds it took."""
    from parenvs.agents.learning.hybrid.imitation import Lesson, lessons
    from parenvs.agents.learning.hybrid.train import load, save, train

    def make() -> Any:
        given: list[Lesson] = []
        if agent.startswith("imitation"):
            source, count = LESSONS[generator]
            given = lessons(source, count, BUILD / f"lessons-{source}.json", report=progress)
        return train(agent, generator, seed, steps, given)

    path = BUILD / f"{agent}-{generator}-{steps}-{seed}.zip"
    model, seconds = kept(path, make, partial(load, agent, generator, seed), save)
    model.set_random_seed(seed)
    if agent == "rainbow":
        model.exploration_rate = EXPLORE
    return model, seconds


def agent_cases(agent: str, seeds: int, share: float) -> Iterator[Case]:
    """Train an agent, and let it plan every problem: its best actions, and by sampling."""
    label = LABELS[agent]
    for seed in range(seeds):
        for generator, sets in TRAINED_ON.items():
            steps = 0 if agent == "imitation" else int(STEPS[generator] * share)
            given = (agent, generator, seed, steps)
            for set_name in sets:
                for problem in problem_sets()[set_name][: SETS[set_name]]:
                    for name, count in ((label, 1), (f"{label}, best of {SAMPLES}", SAMPLES)):
                        key = _key(set_name, name, problem, steps, seed)
                        yield key, partial(learned, given, problem, count)


def learned(given: Any, problem: Hybrid, count: int) -> Row:
    model, seconds = trained(*given)
    row: Row = {"proven": False, "training": seconds}
    with spent(row):
        row["length"] = played(model, problem, count)
    return row


def played(model: Any, problem: Hybrid, count: int) -> float | None:
    """Return the seconds of a step of the best of some plans of a policy, None if none fits.

    Args:
        model: the policy.
        problem: the problem.
        count: number of plans; one is made of the best actions, several are sampled.
    """
    env: Any = gym.make_vec(
        "HybridPlan-v0", num_envs=count, vectorization_mode="vector_entry_point",
        instance=problem.instance, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP,
    )  # fmt: skip
    observation, infos = env.reset(seed=0)
    best, done = np.full(count, np.inf), np.zeros(count, dtype=bool)
    while not done.all():
        masks = infos["action_mask"].astype(bool)
        actions, _ = model.predict(observation, action_masks=masks, deterministic=count == 1)
        observation, rewards, ended, _, infos = env.step(actions)
        new = ended & ~done
        fits = new & (rewards > 0)
        if fits.any():
            best[fits] = infos["length_seconds"][fits]
        done |= ended
    return float(best.min()) if np.isfinite(best.min()) else None


def bounds(rows: list[Row], folder: Path) -> tuple[dict[str, float], list[str]]:
    """Return what no plan is faster than, by problem, and the problems where nobody knows.

    It is a proven optimum or a certified bound, in seconds of a step; the fastest plan known stands
    in where there is neither.
    """
    best, proven, certified = {}, set(), {}  # type: ignore[var-annotated]
    for row in rows:
        if row["length"] is not None:
            best[row["problem"]] = min(best.get(row["problem"], np.inf), row["length"])
        if row["proven"] and row["method"].startswith("exact"):
            proven.add(row["problem"])
        elif row.get("bound"):
            certified[row["problem"]] = max(row["bound"], certified.get(row["problem"], 0.0))
    hetero = folder / "hetero.jsonl"
    if hetero.exists():
        for line in hetero.read_text().splitlines():
            row = json.loads(line)
            if row["kind"] == "whole":
                certified[row["row"]["instance"]] = row["row"]["bound"]
    for problem, bound in certified.items():
        if problem in best:
            assert bound <= best[problem] * (1 + 1e-9), f"{problem}: a plan is below its bound"
    unknown = sorted(set(best) - proven - set(certified))
    return {
        problem: best[problem] if problem in proven else certified.get(problem, best[problem])
        for problem in best
    }, unknown


@measurement(
    key="set method steps seed problem",
    among={"only": ("planners", "agents", *LABELS)},
    about={"share": "of the steps of each training"},
)
def hybrid_envs(
    rows: Rows,
    only: tuple[str, ...] = ("planners", "agents"),
    seeds: int = SEEDS,
    share: float = 1.0,
) -> Iterator[Case]:
    if "planners" in only:
        yield from planner_cases(rows)
    for agent in LABELS:
        if {"agents", agent} & set(only):
            yield from agent_cases(agent, seeds, share)


@hybrid_envs.page
def page(rows: list[Row], folder: Path) -> list[str]:
    bound, unknown = bounds(rows, folder)
    instead = f"; of {', '.join(unknown)}, the fastest plan known" if unknown else ""
    sections = [
        "Share of the speed that no plan exceeds, 0 if a plan does not fit: the bound of a problem "
        "over a method's seconds of a step. Interquartile mean over problems and seeds, "
        "with the 95 % interval of a stratified bootstrap (over seeds where there are several, "
        "else over problems). The bound is the proven optimum of the exact search, on unequal "
        f"servers the certified bound of `hetero.md`{instead}. `gap`: seconds over the "
        "bound, median of the plans that fit. `no plan`: share of the problems "
        "without a plan that fits. `seconds`: of processor time for a problem, median; "
        "of a training apart. Agents are trained on problems that the generator draws, imitators "
        "on "
        + ", ".join(
            f"{count} lessons of `{source}`" for source, count in dict.fromkeys(LESSONS.values())
        )
        + "; several plans of one are sampled, Rainbow's with a tenth of its actions drawn."
    ]
    for set_name in SETS:
        found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["set"] == set_name:
                found[row["method"], row["steps"]].append(row)
        lines = []
        for (method, steps), own in found.items():
            scores: dict[int, dict[str, float]] = defaultdict(dict)
            for row in own:
                length = row["length"]
                score = 0.0 if length is None else bound[row["problem"]] / length
                scores[row["seed"]][row["problem"]] = score
            names = sorted(set.intersection(*(set(by_name) for by_name in scores.values())))
            matrix = np.array([[by_name[name] for name in names] for by_name in scores.values()])
            low, high = bootstrap_interval(interquartile_mean, matrix)
            training = [row["training"] for row in own if "training" in row]
            fits = matrix[matrix > 0]
            lines.append([
                method, f"{steps:,}" if steps else "", len(matrix), len(names),
                f"{interquartile_mean(matrix):.3f}", f"{low:.3f} to {high:.3f}",
                f"{matrix.mean():.3f}",
                percent(float(np.median(1 / fits - 1)), 1) if len(fits) else "",
                percent((matrix == 0).mean(), 0),
                sum(bool(row["proven"]) for row in own) or "",
                f"{np.median([row['seconds'] for row in own]):.2f}",
                f"{np.median(training):,.0f}" if training else "",
            ])  # fmt: skip
        if lines:
            head = ["method", "steps", "seeds", "problems", "share", "95 % interval", "mean", "gap",
                    "no plan", "proven", "seconds", "training, s"]  # fmt: skip
            sections += [f"## {set_name}", table(head, lines)]
    return sections


if __name__ == "__main__":
    main(hybrid_envs)
