"""Auto-MAP's experiments (arXiv 2007.04069) beside ours: agents on its three tasks, exact answers.

    python benchmarks/paper.py            # at most three processor hours
    python benchmarks/paper.py --quick    # one seed on three problems, five minutes

Every agent plays the environments with ``paper=True`` until it has an episode within 0.1 % of the
best that any episode can be, or until its steps are over. ``docs/results/paper.md`` has the tables.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Column, Row, columns, main, measurement, spent
from parenvs.agents import planners
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.options import ALGORITHMS
from parenvs.agents.learning.play import Player
from parenvs.agents.learning.trainer import train
from parenvs.core.registry import problem
from parenvs.core.task import late
from parenvs.errors import InfeasibleError

CLOSE = 1e-3
"""Share of the optimum that an episode may miss to count as optimal."""
AGENTS = {"rainbow-paper": 5, "rainbow": 5, "ppo": 3, "maskable-ppo": 3, "random": 3}
"""Agent -> seeds."""
STEPS = {"PipelineCut-v0": 10_000, "OperatorPartition-v0": 10_000, "DataParallel-v0": 2_000}


class Search(NamedTuple):
    """An environment and its arguments, in which agents search."""

    env_id: str
    instance: str
    where: dict[str, Any]

    @property
    def name(self) -> str:
        """What it is called in rows."""
        return " ".join([self.instance, *map(str, self.where.values())])

    @property
    def env_kwargs(self) -> dict[str, Any]:
        """The arguments of the environment."""
        return {"instance": self.instance, "paper": True, **self.where}


PARTITIONED = ("vgg-19", "t5-base", "t5-3b", "t5-11b", "bert-48")
PIPELINES = (
    ("vgg-19", "ABC"), ("t5-base", "ABC"), ("bert-48", "ABC"), ("t5-3b", "BC"), ("t5-11b", "C"),
)  # fmt: skip
SEARCHES = (
    *(Search("OperatorPartition-v0", name, {"rules": "automap"}) for name in PARTITIONED),
    *(Search("DataParallel-v0", name, {}) for name in ("vgg-19", "t5-base", "bert-48")),
    *(
        Search("PipelineCut-v0", name, {"cluster": cluster})
        for name, clusters in PIPELINES
        for cluster in clusters
    ),
)
QUICK = ("vgg-19 automap", "t5-base", "t5-base B")
ANSWERED = ("t5-11b automap", "vgg-19 B", "vgg-19 C", "bert-48 A", "t5-3b B", "t5-11b C")
"""Answered alone, to save hours: T5-11B asks the questions of T5-3B, bert-48 on A has one cut."""
SLOW = {"bert-48 B": 3, "bert-48 C": 2, "t5-3b C": 2}
"""Seeds of ``rainbow-paper`` where one takes ten processor minutes."""
SETS = ("plan-test", "plan-outside")
FIRST = 200
"""Problems of each set, the first, that networks and planners plan by inference."""
TWO_STAGES = "two stages"
"""``rainbow-paper`` with half of the steps, then the rest on what its plan replicates (5.2.1)."""


def exact(search: Search) -> Row:
    """The best episode's return, its plan in figures, and seconds of finding it."""
    game = _game(search)
    row: Row = {}
    with spent(row):
        answer = late(game.exact)(game, 0) if game.exact else planners.plan(game.problem(0))
    if answer.plan is None or not answer.report.legal:
        raise InfeasibleError(f"{search.name}: no plan fits")
    row["value"] = answer.report.value
    if search.env_id == "PipelineCut-v0":
        return row | _stages(answer, game.problem(0)) | {"length": answer.cost}
    report = answer.report
    return row | {"variables": report.variables, "dimensions": report.partitioned_dimensions,
                  "all": report.dimensions}  # fmt: skip


def planned(search: Search, agent: str) -> Row:
    """A planner's plan over all pivots and device cuts."""
    of = problem(search.instance, search.where["cluster"])
    row: Row = {}
    with spent(row):
        answer = planners.plan(of, agent=agent)
    return row | _stages(answer, of) | {"length": answer.cost}


def learned(search: Search, agent: str, seed: int, best: float) -> Row:
    """Train an agent until it has the best episode."""
    steps, target = STEPS[search.env_id], best - CLOSE * abs(best)
    if agent == "random":
        return _random(search, seed, steps, target)
    config = TrainConfig(
        env_id=search.env_id, env_kwargs=search.env_kwargs, agent=agent, steps=steps, seed=seed
    )
    return _row(train(config, target=target, stop_at_target=True).result, best)


def inferred(agent: str, seed: int) -> Row:
    """Scores on generated problems of up to eight stages, of a planner or of a trained network.

    The planner ``learned`` decodes by a beam, about 300 plans a problem; a network plays once.
    """
    row: Row = {}
    policy: Any = agent
    rows = {"rows": "ahead"}
    with spent(row):
        if agent in ALGORITHMS:
            config = TrainConfig(
                env_id="PipelinePlan-v0", env_kwargs=rows, agent=agent, steps=65_536, seed=seed
            )
            policy = Player(train(config).algorithm, "PipelinePlan-v0")
    for name in SETS:
        settings = {} if policy == agent else rows
        found = evaluate_set(policy, name, first=FIRST, settings=settings)
        row[name] = {
            "score": found.score, "interval": found.interval, "optimal": found.optimal,
            "coverage": found.coverage,
        }  # fmt: skip
    return row


def two_stages(search: Search, seed: int, best: float) -> Row:
    """Search, then search on among what the first plan replicates."""
    steps, target = STEPS[search.env_id] // 2, best - CLOSE * abs(best)
    arguments: dict[str, Any] = search.env_kwargs
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("first", "second"):
            config = TrainConfig(
                env_id=search.env_id, env_kwargs=arguments, agent="rainbow-paper", steps=steps,
                seed=seed,
            )  # fmt: skip
            place = Path(folder) / stage
            result = train(config, place, target=target, stop_at_target=True).result
            rows.append(_row(result, best))
            if result.target_steps is not None:
                break
            arguments = search.env_kwargs | {"first_plan": str(place / "plan.json")}
    last = max(rows, key=lambda row: row["share"])
    found = rows[-1]["found"]
    return last | {
        "found": None if found is None else sum(row["steps"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
        "steps": sum(row["steps"] for row in rows),
    }


def _row(result: Any, best: float) -> Row:
    return {
        "share": None if result.value is None else result.value / best,
        "found": result.target_steps,
        "seconds": result.target_seconds or result.seconds,
        "steps": result.steps,
    }


def _random(search: Search, seed: int, steps: int, target: float) -> Row:
    """Episodes at random, as many steps as an agent's."""
    env, rng, best, taken = _made(search), np.random.default_rng(seed), -np.inf, 0
    row: Row = {}
    with spent(row):
        while taken < steps and best < target:
            (_, info), ended, value = env.reset(), False, 0.0
            while not ended:
                action = rng.choice(np.flatnonzero(info["action_mask"]))
                _, reward, ended, _, info = env.step(int(action))
                value, taken = value + float(reward), taken + 1
            best = max(best, value)
    optimum = target / (1 - CLOSE)
    return row | {
        "share": best / optimum,
        "found": taken if best >= target else None,
        "steps": taken,
    }


def _made(search: Search) -> Any:
    return gym.make(search.env_id, **search.env_kwargs)


def _game(search: Search) -> Any:
    return _made(search).unwrapped.game


def _stages(answer: Any, of: Any) -> Row:
    """Device cuts, and the name of the last pivot of each stage but the last."""
    names, plan = of.profile.names, answer.plan
    return {
        "devices": list(plan.device_cuts),
        "after": [names[cut - 1] for cut in plan.cuts],
    }


@measurement(key="env problem agent seed", title="Auto-MAP")
def paper(quick: bool = False, known: Iterable[Row] = ()) -> Iterator[Case]:
    """Yield what is measured of each search: the exact answer, planners, agents."""
    warnings.filterwarnings("ignore", "no plan fits")
    values = {(row["env"], row["problem"]): row["value"] for row in known if "value" in row}
    for search in SEARCHES:
        if quick and search.name not in QUICK:
            continue
        key = {"env": search.env_id, "problem": search.name}
        if tuple(key.values()) not in values:
            values[tuple(key.values())] = exact(search)["value"]
        yield key | {"agent": "exact", "seed": 0}, partial(exact, search)
        if search.env_id == "PipelineCut-v0":
            for agent in ("exact", "learned"):
                named = key | {"agent": f"{agent}, all pivots", "seed": 0}
                yield named, partial(planned, search, agent)
        if search.name in ANSWERED:
            continue
        best = values[tuple(key.values())]
        for agent, seeds in AGENTS.items():
            if agent == "rainbow-paper":
                seeds = SLOW.get(search.name, seeds)
            for seed in range(1 if quick else seeds):
                case = partial(learned, search, agent, seed, best)
                yield key | {"agent": agent, "seed": seed}, case
        if search.name == "t5-3b automap":
            for seed in range(AGENTS["rainbow-paper"]):
                case = partial(two_stages, search, seed, best)
                yield key | {"agent": TWO_STAGES, "seed": seed}, case
    if not quick:
        for agent in ("learned", "ppo", "rainbow", "even", "random"):
            key = {"env": "PipelinePlan-v0", "problem": "sets", "agent": agent, "seed": 0}
            yield key, partial(inferred, agent, 0)


PAPER_CUTS = {
    "bert-48 A": "8 · layer 24",
    "bert-48 B": "8, 16 · layers 17, 32",
    "bert-48 C": "8, 16, 24 · layers 14, 27, 40",
    "t5-3b B": "8, 16 · encoder 19, decoder 11",
    "t5-3b C": "8, 16, 24 · decoder 5, 17",
    "t5-11b C": "8, 16, 24 · encoder 13, decoder 3, 15",
    "t5-base C": "8, 16, 22 · a model half as deep",
}
"""Table 7 of the paper: device cuts, and the layers after which it cuts, where they are known."""


@paper.page
def page(rows: list[Row]) -> list[str]:
    """Return the sections of docs/results/paper.md."""
    by_agent: dict[tuple[str, str], dict[str, list[Row]]] = {}
    networks = [row for row in rows if row["problem"] == "sets"]
    for row in rows:
        if row in networks:
            continue
        agents = by_agent.setdefault((row["env"], row["problem"]), {})
        agents.setdefault(row["agent"], []).append(row)
    searches = [
        {"env": env, "problem": name, "exact": agents["exact"][0],
         **{agent: agents.get(agent, []) for agent in (*AGENTS, TWO_STAGES)},
         "free": agents.get("exact, all pivots", [None])[0],
         "learned": agents.get("learned, all pivots", [None])[0]}
        for (env, name), agents in by_agent.items()
    ]  # fmt: skip
    pipelines = [row for row in searches if row["env"] == "PipelineCut-v0"]
    partitions = [row for row in searches if row["env"] != "PipelineCut-v0"]
    shown: list[Column] = [("problem", "{problem}"), ("exact, s", "{exact[seconds]:.2f}")]
    shown += [(agent, partial(_found, agent)) for agent in (*AGENTS, TWO_STAGES)]
    return [
        "## Exact answers: partitions (tables 3 to 6)",
        columns(partitions, [
            ("environment", "{env}"), ("problem", "{problem}"),
            ("partitioned dimensions", "{exact[dimensions]:,}"), ("of", "{exact[all]:,}"),
            ("in variables", "{exact[variables]:,}"), ("return", "{exact[value]:.1f}"),
            ("seconds", "{exact[seconds]:.2f}"),
        ], 2),
        "## Pipelines: the paper's cuts, ours online and by inference (tables 7 and 8)",
        columns(pipelines, [
            ("problem", "{problem}"),
            ("the paper's", lambda row: PAPER_CUTS.get(row["problem"], "")),
            ("best of PipelineCut-v0", lambda row: _cuts(row["exact"])),
            ("step time, s", "{exact[length]:.4g}"),
            ("network of PipelinePlan-v0, s", "{learned[length]:.4g}"),
            ("exact over all pivots and devices, s", "{free[length]:.4g}"),
        ], 3),
        "## Networks by inference: generated problems of up to eight stages",
        f"Mean score (optimum over points / step time) on the first {FIRST} problems of each set "
        "with its 95 % interval over problems, and the share within 0.1 % of the optimum. "
        "`learned` is the shipped network, decoded by a beam of about 300 plans; `ppo` and "
        "`rainbow` are trained from scratch for 65,536 steps and play once.",
        columns(networks, [
            ("agent", "{agent}"), ("training, s", "{seconds:.0f}"),
            *((name, partial(_score, name)) for name in SETS),
        ]),
        "## Agents: steps and seconds to the solution",
        "Seeds that found an episode within 0.1 % of the best, their median environment steps and "
        "processor seconds; or the mean share of the best return that was found. Empty cells were "
        f"not run. `rainbow-paper` has fewer seeds on {', '.join(SLOW)}, else five.",
        *(
            part
            for env in STEPS
            for part in (
                f"`{env}`, {STEPS[env]:,} steps:",
                columns([row for row in searches if row["env"] == env], shown),
            )
        ),
    ]  # fmt: skip


def _cuts(row: Row) -> str:
    """Device cuts, and the layers after which the chain is cut."""
    layers = [re.sub(r"jit\(\w+\)/|/[^/]*$", "", name) for name in row["after"]]
    return f"{', '.join(map(str, row['devices']))} · {', '.join(layers)}"


def _score(name: str, row: Row) -> str:
    found = row[name]
    low, high = found["interval"]
    return f"{found['score']:.4f} ({low:.4f} to {high:.4f}), {found['optimal']:.0%}"


def _found(agent: str, row: Row) -> str:
    seeds = row[agent]
    found = [one for one in seeds if one["found"] is not None]
    if not seeds:
        return ""
    if not found:
        return f"share {np.mean([one['share'] or 0.0 for one in seeds]):.3f}"
    steps, seconds = (np.median([one[key] for one in found]) for key in ("found", "seconds"))
    return f"{len(found)} of {len(seeds)}: {steps:,.0f}, {seconds:.1f} s"


if __name__ == "__main__":
    main(paper)
