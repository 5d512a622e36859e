"""What training adds to the heuristic that an environment's action features begin with.

    python benchmarks/learners.py
    python benchmarks/learners.py --envs ElasticPlan-v2 --agents group --seeds 0 --first 20

An agent is trained by ``parenvs train`` with its defaults, kept in ``--runs``, and not trained
again. It decodes every problem of a set by its best actions, and by more copies, which begin
elsewhere or are drawn; one copy more follows the heuristic. Beside it stand the planners of
``environments.py``; ``learned`` is the network that ships, ``rule`` an untrained agent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.environments import PLACES, Place, solved
from benchmarks.framework import Case, Row, forked, main, measurement, table
from parenvs.agents.evaluation.statistics import bootstrap_interval
from parenvs.agents.learning.network import file_of, shipped
from parenvs.agents.names import LEARNED
from parenvs.core.game import Stream
from parenvs.core.registry import environments
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.machine import cores, counted, processor

UNTRAINED = "rule"
COPIES = (1, 8, 64)
"""Copies of a decode; the first of each start plays the best actions."""
PATIENCE = 100.0
"""Processor seconds of a set's decode, above which no more copies are tried."""
TIMED = 3
"""Problems after which the time of a set is estimated."""
NOISE = 1.1
"""Processor seconds that differ by less than this factor count as equal."""
FEWEST = 10
"""Problems of a set with fewer of which nothing is compared."""


def machine() -> str:
    """Return the processor and its cores, in words."""
    return f"{processor()}, {counted(cores())}"


def policy_of(env: str, agent: str, seed: int, steps: int, runs: Path) -> tuple[Any, float]:
    """Return an agent as a policy, and the processor seconds of its training."""
    if agent == LEARNED:
        about = json.loads(file_of(env).with_suffix(".json").read_text(encoding="utf-8"))
        return shipped(env), about["chosen"]["seconds"]
    import torch

    from benchmarks.ship import run_of
    from parenvs.agents.learning import trainer
    from parenvs.agents.learning.config import RESULT, TrainConfig

    torch.set_num_threads(1)  # small products are slower on more
    if agent == UNTRAINED:
        return trainer.untrained(TrainConfig(env_id=env, agent="group", steps=1)), 0.0
    folder = run_of(TrainConfig(env_id=env, agent=agent, steps=steps, seed=seed), runs)
    seconds = json.loads((folder / RESULT).read_text(encoding="utf-8"))["seconds"]
    return trainer.player(folder), seconds


def by_agent(place: Place, agent: str, seed: int, steps: int, first: int | None, runs: Path) -> Row:
    """Decode a set by an agent, which is trained if need be."""
    policy, training = policy_of(place.env, agent, seed, steps, runs)
    return {**decoded(policy, place, first), "training": training, "steps": steps}


def decoded(policy: Any, place: Place, first: int | None) -> Row:
    """Decode a set by a policy, with ever more copies."""
    from parenvs.agents.learning.network import decode

    game_class, played = late(environments()[place.env]), set_of(place.name)
    count = len(played.of(place.family or None)[:first])
    arguments = played.env_kwargs(place.family or None)
    row: Row = {"machine": machine(), "alone": {}, "with_rule": {}, "seconds": {}}
    game_class(1, **arguments).source.draw(Stream())  # files are read before time is taken
    for copies in COPIES if game_class.foreseen else COPIES[:1]:
        game, stream = game_class(copies + game_class.foreseen, **arguments), Stream()
        shares: dict[str, list[float]] = {"alone": [], "with_rule": []}
        seconds = 0.0
        for number in range(count):
            stream.number = number
            begin = time.process_time()
            problem = game.source.draw(stream)
            plans = decode(policy, game, problem, copies, game_class.foreseen, seed=number)
            known = np.nan_to_num(game.known[0] / plans.costs)
            seconds += time.process_time() - begin
            shares["alone"].append(round(float(known[:copies].max()), 5))
            shares["with_rule"].append(round(float(known.max()), 5))
            if copies > 1 and number + 1 == TIMED and seconds / TIMED * count > PATIENCE:
                return row
        for key, values in shares.items():
            row[key][str(copies)] = values
        row["seconds"][str(copies)] = seconds / count
    return row


def planned(place: Place, planner: str, first: int | None) -> Row:
    """Solve a set by a planner: shares of the best known costs."""
    shares, seconds = solved(place, planner, first)
    rounded = [round(float(x), 5) for x in shares]
    return {"shares": rounded, "seconds": seconds, "machine": machine()}


@measurement(
    key="env method seed set family",
    title="What learning adds",
    among={"only": ("planners", "agents")},
    about={"envs": "environments (default: all)", "first": "problems of each set"},
)
def learners(
    envs: tuple[str, ...] = (),
    agents: tuple[str, ...] = (UNTRAINED, LEARNED, "group", "ppo", "rainbow", "imitate"),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 65_536,
    first: int | None = None,
    runs: Path = Path("runs/learners"),
    only: tuple[str, ...] = ("planners", "agents"),
) -> Iterator[Case]:
    places = [place for place in PLACES if not envs or place.env in envs]
    for seed in seeds if "agents" in only else ():  # all agents once, before the next seed
        for place in places:
            for agent in agents:
                if agent in (UNTRAINED, LEARNED) and seed != seeds[0]:
                    continue
                if agent == LEARNED and not file_of(place.env).exists():
                    continue
                work = partial(by_agent, place, agent, seed, steps, first, runs)
                yield key_of(place, agent, seed), partial(forked, work)
    for place in places if "planners" in only else ():
        for planner in place.planners:
            yield key_of(place, planner, 0), partial(planned, place, planner, first)


def key_of(place: Place, method: str, seed: int) -> Row:
    """Return the key of a row."""
    return {
        "env": place.env, "method": method, "seed": seed, "set": place.name,
        "family": place.family,
    }  # fmt: skip


class Line(NamedTuple):
    """A method, at one number of copies, on a set: (seeds, problems) shares, seconds a problem."""

    name: str
    shares: np.ndarray
    seconds: float
    machine: str
    learns: bool


def lines_of(rows: list[Row]) -> list[Line]:
    """Return the lines of a set."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        where = mine[0]["machine"]
        if "shares" in mine[0]:
            shares = np.array([row["shares"] for row in mine])
            learns = method.startswith(LEARNED)
            lines.append(Line(method, shares, mine[0]["seconds"], where, learns))
            continue
        for copies in mine[0]["with_rule"]:
            some = [row for row in mine if copies in row["with_rule"]]
            shares = np.array([row["with_rule"][copies] for row in some])
            seconds = float(np.mean([row["seconds"][copies] for row in some]))
            name = method if copies == "1" else f"{method}, best of {copies}"
            lines.append(Line(name, shares, seconds, where, method != UNTRAINED))
    most = max(line.shares.shape[1] for line in lines)
    return [line for line in lines if line.shares.shape[1] == most]


def leader(lines: list[Line]) -> list[str] | None:
    """Return cells: the line that learns with the largest lead over all that takes no longer.

    Compared is what one machine measured. Hindsight, planners ``exact`` where nothing is foreseen,
    is left out by the caller. None if there are too few problems, or nothing to compare.
    """
    best: tuple[float, Line, Line] | None = None
    for line in (line for line in lines if line.learns):
        rivals = [
            x for x in lines
            if not x.learns and x.machine == line.machine
            and (x.seconds <= NOISE * line.seconds or x.name == UNTRAINED)
        ]  # fmt: skip
        if rivals:
            rival = max(rivals, key=lambda x: float(x.shares.mean()))
            lead = float(line.shares.mean() - rival.shares.mean())
            if best is None or lead > best[0]:
                best = lead, line, rival
    if best is None or lines[0].shares.shape[1] < FEWEST:
        return None
    lead, line, rival = best
    gain = line.shares.mean(axis=0) - rival.shares.mean(axis=0)  # paired by problem
    low, high = bootstrap_interval(np.mean, gain[None])
    longest = max((x for x in lines if not x.learns), key=lambda x: float(x.shares.mean()))
    cells = [f"{x.name} {x.shares.mean():.4f}, {x.seconds:.2g} s" for x in (line, rival, longest)]
    return [*cells, f"{lead:+.4f} ({low:+.4f} to {high:+.4f})"]


@learners.page
def page(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if not row["method"].endswith("bare")]
    lines = []
    for env in dict.fromkeys(row["env"] for row in rows):
        places = dict.fromkeys((x["set"], x["family"]) for x in rows if x["env"] == env)
        for place in places:
            mine = [x for x in rows if (x["env"], x["set"], x["family"]) == (env, *place)]
            if env.startswith("Elastic"):
                mine = [row for row in mine if row["method"] != "exact"]
            cells = leader(lines_of(mine))
            if cells is not None:
                lines.append([env, " ".join(place).strip(), *cells])
    heads = ["environment", "set", "learned", "not learned, no longer", "not learned", "lead"]
    steps = max((x["steps"] for x in rows if "steps" in x), default=0)
    return [
        "Mean share of the best known cost and processor seconds per problem: the agent with the "
        "largest lead over all that does not learn and takes no longer on the same machine, that "
        "rival, and the best that does not learn in any time. The lead has its 95 % interval, "
        "paired by problem: where it holds 0, there is none. Agents have their defaults and "
        f"{steps:,} steps; `rule` is the heuristic that an untrained agent follows. Sets with "
        f"fewer than {FEWEST} problems are left out, and so is the hindsight of `exact` in "
        "ElasticPlan.",
        table(heads, lines, 5),
    ]


if __name__ == "__main__":
    main(learners)
