"""The page of agents: what training adds to the rule that an environment of rows begins with.

    python benchmarks/learners.py                                # every environment of rows
    python benchmarks/learners.py --envs HybridPlan-v1 --agents group --seeds 0 --first 20

An agent is trained by ``parenvs train`` with its defaults, kept in ``--runs``, and not trained
again. It decodes every problem of a set by its best actions, and by more copies all at once, which
begin elsewhere where the environment has other starts, or are drawn; one copy more follows the rule
alone. Untrained it is that rule. Beside it stand the task's planners, those that take a limit at
several of them. ``learned`` is the network that ships, and ``learned+search`` a search from its
plan. Agents on bare rows, without the columns that look ahead, have the name of the agent and
``bare``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.framework import RESULTS, Case, Row, forked, main, measurement, percent, table
from benchmarks.rules import places, solved
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.agents.learning.network import file_of, shipped
from parenvs.agents.names import LEARNED, LEARNED_SEARCH
from parenvs.core.game import Stream
from parenvs.core.rows import AHEAD, BARE
from parenvs.core.sets import set_of
from parenvs.machine import cores, counted, processor

UNTRAINED = "rule"
SEARCHES: dict[str, dict[str, dict[str, Any]]] = {
    "PipelinePlan-v1": {"search/2.5 s": {"time_limit": 2.5}},
    "HybridPlan-v1": {
        "exact/0.3 s": {"time_limit": 0.3},
        **{f"{LEARNED_SEARCH}/{limit} s": {"time_limit": limit} for limit in (0.3, 1.0)},
    },
    "ElasticPlan-v1": {"fastest": {}},
}
"""Environment with a network that ships -> planners beside those of its task's ``rules``."""
_SERVERS: dict[str, dict[str, Any]] = {
    "swap-search": {},
    **{
        f"{planner}/{limit} s": {"time_limit": float(limit)}
        for planner in ("search",)
        for limit in (1, 5)
    },
}
WIDER: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "HybridPlan-v1": {f"hetero-{servers}-test": _SERVERS for servers in (32, 64)},
}
"""Environment -> sets whose agents are trained as the network that ships -> planners on them."""
DRAWS = (1, 8, 16, 64)
"""Copies of a decode; the first of each start plays the best actions."""
PATIENCE = 100.0
"""Processor seconds of a set's decode, above which no more copies are tried."""
LEVELS = (0.9, 0.95, 0.98, 0.99, 0.999)
"""Shares of the best known cost of the performance profile."""
NOISE = 1.1
"""Processor seconds that differ by less than this factor count as equal."""
FEWEST = 10
"""Problems of a set with fewer of which nothing is said of who is better."""
TIMED = 3
"""Problems after which it is seen how long a set takes."""


def places_of() -> dict[str, tuple[Any, list[Place]]]:
    """Return the games of environments, and where they are played."""
    result = {}
    for env_id, (game, sets, planners) in places().items():
        planners = {**planners, **SEARCHES.get(env_id, {})}
        found = [Place(name, family, planners) for name, family in sets]
        found += [Place(x, None, own, True) for x, own in WIDER.get(env_id, {}).items()]
        result[env_id] = game, found
    return result


class Place(NamedTuple):
    """A held-out set, or a family of one.

    Attributes:
        name: of the set.
        family: of its problems; None for all.
        planners: planners and their options.
        is_wider: whether its agents are trained as the network that ships.
    """

    name: str
    family: str | None
    planners: dict[str, dict[str, Any]]
    is_wider: bool = False

    @property
    def title(self) -> str:
        """The set and the family in words."""
        return f"{self.name} {self.family or ''}".strip()


def policy_of(
    env_id: str, agent: str, seed: int, steps: int, runs: Path, is_wider: bool = False
) -> tuple[Any, float]:
    """Return an agent as a policy, and the processor seconds of its training."""
    if agent == LEARNED:
        told = json.loads(file_of(env_id).with_suffix(".json").read_text(encoding="utf-8"))
        return shipped(env_id), told["chosen"]["seconds"]
    import torch

    from parenvs.agents.learning import trainer
    from parenvs.agents.learning.config import RESULT, TrainConfig
    from parenvs.agents.learning.ship import TRAINED_ON, run_of

    torch.set_num_threads(1)  # so small products are slower on more
    name, _, bare = agent.partition(" ")
    env_kwargs: dict[str, Any] = dict(TRAINED_ON.get(env_id, {})) if is_wider else {}
    settings = {}
    if bare:
        env_kwargs, settings = {**env_kwargs, "rows": BARE}, {"sharpness": 0.0}
    if agent == UNTRAINED:
        return trainer.untrained(TrainConfig(env_id=env_id, agent="group", steps=1)), 0.0
    config = TrainConfig(
        env_id=env_id, env_kwargs=env_kwargs, agent=name, steps=steps, seed=seed, settings=settings
    )
    folder = run_of(config, runs / bare)
    seconds = json.loads((folder / RESULT).read_text(encoding="utf-8"))["seconds"]
    return trainer.player(folder), seconds


def machine() -> str:
    """The processor and its cores, in words."""
    return f"{processor()}, {counted(cores())}"


def planned(
    name: str, family: str | None, planner: str, options: dict[str, Any], first: int | None
) -> Row:
    """Solve a set by a planner: shares of the best known costs."""
    shares, seconds = solved(name, family, planner, options, first)
    return {
        "shares": [round(float(x), 5) for x in shares], "seconds": seconds, "machine": machine(),
    }  # fmt: skip


def by_agent(
    env_id: str, agent: str, seed: int, place: Place, steps: int, first: int | None, runs: Path
) -> Row:
    """Decode a set by an agent, which is trained if need be."""
    policy, training = policy_of(env_id, agent, seed, steps, runs, place.is_wider)
    rows = BARE if agent.endswith(BARE) else AHEAD
    found = decoded(policy, env_id, place.name, place.family, first, rows)
    return {**found, "training": training, "steps": steps}


def decoded(
    policy: Any, env_id: str, name: str, family: str | None, first: int | None, rows: str = AHEAD
) -> Row:
    """Decode a set by a policy, with ever more copies."""
    from parenvs.agents.learning.network import decode

    game_class, played = places()[env_id][0], set_of(name)
    count = len(played.of(family)[:first])
    arguments = {**played.env_kwargs(family), "rows": rows}
    row: Row = {"machine": machine(), "alone": {}, "with_rule": {}, "seconds": {}}
    game_class(1, **arguments).source.draw(Stream())  # files are read before time is taken
    problems: list[Any] = []
    preparing = 0.0  # start plans are found once, and count for every number of copies
    for copies in DRAWS if game_class.foreseen else DRAWS[:1]:
        has_rule = game_class.foreseen and rows != BARE
        game = game_class(copies + has_rule, **arguments)
        stream = Stream()
        shares: dict[str, list[float]] = {"alone": [], "with_rule": []}
        spent = 0.0
        for number in range(count):
            stream.number = number
            if number == len(problems):
                begin = time.process_time()
                problems.append(game.source.draw(stream))
                preparing += (time.process_time() - begin) / count
            found = decode(policy, game, problems[number], copies, has_rule, seed=number)
            known = np.nan_to_num(game.known[0] / found.costs)
            shares["alone"].append(round(float(known[:copies].max()), 5))
            shares["with_rule"].append(round(float(known.max()), 5))
            spent += found.seconds
            if copies > 1 and number + 1 == TIMED and spent / TIMED * count > PATIENCE:
                break
        if len(shares["alone"]) < count:
            break
        for key, values in shares.items():
            row[key][str(copies)] = values
        row["seconds"][str(copies)] = preparing + spent / count
    return {**row, "preparing": preparing}


@measurement(
    key="env method seed set family",
    among={"only": ("planners", "agents")},
    title="Agents beside their rules",
    about={
        "envs": "environments (default: all of rows)", "first": "problems of each set",
        "sets": "of these sets (default: all)",
    },
)  # fmt: skip
def learners(
    envs: tuple[str, ...] = (),
    agents: tuple[str, ...] = (UNTRAINED, LEARNED, "group", "ppo", "rainbow", "imitate"),
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 65_536,
    sets: tuple[str, ...] = (),
    first: int | None = None,
    runs: Path = Path("runs/learners"),
    only: tuple[str, ...] = ("planners", "agents"),
) -> Iterator[Case]:
    chosen = {
        env_id: [x for x in own if not sets or x.name in sets or x.family in sets]
        for env_id, (_, own) in places_of().items()
        if not envs or env_id in envs
    }
    # All agents have their first seeds before any has its second one.
    for seed in seeds if "agents" in only else ():
        for env_id, own in chosen.items():
            for agent in agents:
                if agent in (UNTRAINED, LEARNED) and seed != seeds[0]:
                    continue
                if agent == LEARNED and not file_of(env_id).exists():
                    continue
                for place in own:
                    key = {"env": env_id, "method": agent, "seed": seed, "set": place.name}
                    work = partial(by_agent, env_id, agent, seed, place, steps, first, runs)
                    yield {**key, "family": place.family or ""}, partial(forked, work)
    for env_id, own in chosen.items():
        for place in own if "planners" in only else ():
            for planner, options in place.planners.items():
                key = {"env": env_id, "method": planner, "seed": 0, "set": place.name}
                work = partial(planned, place.name, place.family, planner, options, first)
                yield {**key, "family": place.family or ""}, work


HEAD = ("method", "training", "interquartile mean", "mean", "alone",
        *(f">= {level:g}" for level in LEVELS), "s")  # fmt: skip
"""Columns of ``Line.cells``."""


class Line:
    """A method at one number of copies on a set.

    Args:
        name: of the method.
        rows: of its seeds.
        shares: (r, k) of the best known costs.
        seconds: of a problem.
        alone: (r, k) without the copy that follows the rule; None if there is none.
    """

    def __init__(
        self, name: str, rows: list[Row], shares: Any, seconds: float, alone: Any = None
    ) -> None:
        self.name, self.rows, self.seconds = name, rows, seconds
        self.shares = np.array(shares, dtype=np.float64)
        self.alone = None if alone is None else np.array(alone, dtype=np.float64)
        self.machine = rows[0]["machine"]

    @property
    def learns(self) -> bool:
        """Whether it was trained."""
        own = "training" in self.rows[0] or self.name.startswith(LEARNED)
        return own and not self.name.startswith(UNTRAINED)

    def cells(self) -> list[str]:
        """Its row of the table."""
        low, high = bootstrap_interval(interquartile_mean, self.shares)
        training = [x["training"] for x in self.rows if "training" in x] if self.learns else []
        return [
            self.name, f"{len(training)} x {np.mean(training):.0f} s" if training else "",
            f"{interquartile_mean(self.shares):.4f} ({low:.4f} to {high:.4f})",
            f"{self.shares.mean():.4f}",
            "" if self.alone is None else f"{self.alone.mean():.4f}",
            *(percent(float((self.shares >= level - 1e-9).mean()), 0) for level in LEVELS),
            f"{self.seconds:.3g}",
        ]  # fmt: skip


def lines_of(rows: list[Row], planners: Any) -> list[Line]:
    """The lines of a set: planners, then agents by copies."""
    found = []
    by: dict[str, list[Row]] = {}
    for row in rows:
        by.setdefault(row["method"], []).append(row)
    for method in sorted(by, key=lambda x: (x not in planners, x != UNTRAINED)):
        mine = by[method]
        if "shares" in mine[0]:
            found.append(Line(method, mine, [x["shares"] for x in mine], mine[0]["seconds"]))
            continue
        for copies in mine[0]["alone"]:
            some = [row for row in mine if copies in row["alone"]]
            name = method if copies == "1" else f"{method}, best of {copies}"
            both, alone = ([row[key][copies] for row in some] for key in ("with_rule", "alone"))
            seconds = float(np.mean([row["seconds"][copies] for row in some]))
            found.append(Line(name, some, both, seconds, None if both == alone else alone))
    return found


def outdone(lines: list[Line]) -> str:
    """Make shares those of the best cost that any line has, and say where it is a new one."""
    count = max(line.shares.shape[1] for line in lines)
    whole = [line for line in lines if line.shares.shape[1] == count]
    best = np.max([line.shares.max(axis=0) for line in whole], axis=0)
    better = best > 1 + 1e-4
    if not better.any():
        return ""
    for line in whole:
        line.shares /= np.maximum(best, 1.0)
        if line.alone is not None:
            line.alone /= np.maximum(best, 1.0)
    return (
        f"On {better.sum()} problems a plan of this page takes less than the best one that the set "
        f"knows, up to {best.max() - 1:.1%} less, and shares are of that plan. "
    )


def verdict(lines: list[Line], foreseen: bool = True) -> str:
    """Whether learning beats all that does not learn and takes no longer, in a sentence.

    Compared is what one machine measured; nothing is said where it measured no planner.

    Args:
        lines: of a set.
        foreseen: whether what happens is known beforehand; else the exact planner knows more than
            others, and is not compared.
    """
    if lines[0].shares.shape[1] < FEWEST:
        return "Too few problems for a verdict."
    learnt = [line for line in lines if line.learns and not line.name.split(",")[0].endswith(BARE)]
    wins, losses, is_known = [], [], False
    for line in sorted(learnt, key=lambda x: x.seconds):
        rivals = [x for x in lines if not x.learns and x.machine == line.machine]
        rivals = [x for x in rivals if x.seconds <= NOISE * line.seconds]
        rivals = [x for x in rivals if x.shares.shape[1] == line.shares.shape[1]]
        rivals = [x for x in rivals if foreseen or not x.name.startswith("exact")]
        if all(x.name.startswith(UNTRAINED) for x in rivals):  # no planner was measured there
            continue
        is_known, best = True, max(rivals, key=lambda x: float(x.shares.mean()))
        # Paired by problem, which tells more than two intervals apart.
        gain = line.shares.mean(axis=0) - best.shares.mean(axis=0)
        low, high = bootstrap_interval(np.mean, gain[None])
        if low > 0:
            wins.append(_compared(line, best, gain.mean(), low, high))
        elif high < 0:
            losses.append(_compared(best, line, -gain.mean(), -high, -low))
    if not is_known:
        return ""
    none = "Learning beats no method that does not learn and takes no longer"
    words = f"In mean share, paired by problem: {'; '.join(wins)}" if wins else none
    return words + (f". And {'; '.join(losses)}." if losses else ".")


def _compared(better: Line, worse: Line, gain: float, low: float, high: float) -> str:
    return (
        f"{better.name} ({better.seconds:.2g} s) beats {worse.name} ({worse.seconds:.2g} s) by "
        f"{gain:.4f} ({low:.4f} to {high:.4f})"
    )


WHY = {
    "PipelinePlan-v1": "A turn moves a cut or two. A corridor search moves all of them at once, "
    "and is far ahead once it has a third of a second.",
    "PartitionPlan-v1": "The exact search proves the optimum sooner than any network decides.",
    "HybridPlan-v1": "Judging the neighbours takes most of the time, so a walk that is led well "
    "beats a search of as long. Of unequal servers a longer search is better.",
    "ElasticPlan-v1": "The rule has the same rows and takes what they promise. What is lost to "
    "hindsight, is lost at departures that no row announces.",
}
"""Environment -> why learning is ahead, or is not."""


def answered(
    lines: list[Line], others: list[tuple[str, float, float]], foreseen: bool = True
) -> list[str] | None:
    """Return where learning is furthest ahead of all that does not learn and takes no longer.

    Args:
        lines: of a set.
        others: name, mean share and seconds of planners on the same problems, of another machine.
        foreseen: see ``verdict``.

    Returns:
        cells of a row; None if nothing has learnt.
    """
    learnt = [x for x in lines if x.learns and not x.name.split(",")[0].endswith(BARE)]
    plain = [(x.name, float(x.shares.mean()), x.seconds) for x in lines if not x.learns]
    plain += [other for other in others if other[0] not in {name for name, _, _ in plain}]
    plain = [x for x in plain if foreseen or not x[0].startswith("exact")]
    found = []
    for line in learnt:
        # The rule judges the same rows, so that it takes no longer, whatever the clock says.
        rivals = [x for x in plain if x[2] <= NOISE * line.seconds or x[0] == UNTRAINED]
        if rivals:
            best = max(rivals, key=lambda x: x[1])
            found.append((float(line.shares.mean()) - best[1], line, best))
    if not found:
        return None
    gain, line, best = max(found, key=lambda x: x[0])
    longest = max(plain, key=lambda x: x[1])
    told = [f"{name} {share:.4f} in {seconds:.2g} s" for name, share, seconds in (
        (line.name, float(line.shares.mean()), line.seconds), best, longest
    )]  # fmt: skip
    return [*told, f"{gain:+.4f}"]


@learners.page
def page(rows: list[Row]) -> list[str]:
    sections = [
        "Share of the best known cost, 1 if a plan is as good. Interquartile mean with its 95 % "
        "interval (over seeds for agents with several, else over problems) and mean, with the copy "
        "that follows the rule; then the mean of the policy without that copy, and the performance "
        "profile: on how many problems (and seeds) the share is at least so high. Last, processor "
        "seconds a problem, one at a time. Agents have their defaults and "
        f"{max((x['steps'] for x in rows if 'steps' in x), default=0):,} steps; *training* has "
        "the seeds, and processor seconds of each. No more copies are tried where a set would take "
        "more than "
        f"{PATIENCE:g} s. What happens in ElasticPlan-v1 is not known beforehand, so no copies are "
        "drawn, and none follows the rule beside the agent; its *exact* is hindsight.",
    ]
    ruled = [json.loads(x) for x in (RESULTS / "rules.jsonl").read_text("utf-8").splitlines()]
    missing, answers = [], []
    for env_id, (game, own) in places_of().items():
        mine = [row for row in rows if row["env"] == env_id]
        if not mine:
            missing.append(env_id)
            continue
        sections += [
            f"## {env_id}", f"The rule, which an untrained agent plays: {game.rule}.",
        ]  # fmt: skip
        for place in own:
            some = [x for x in mine if (x["set"], x["family"]) == (place.name, place.family or "")]
            if not any("training" in row for row in some):
                missing.append(place.title)
                continue
            lines = lines_of(some, place.planners)
            words = outdone(lines)
            count = max(line.shares.shape[1] for line in lines)
            others = [
                (x["method"].removeprefix("planner "), x["share"], x["seconds"])
                for x in ruled
                if (x["set"], x["family"], x["problems"]) == (place.name, place.family or "", count)
                and x["method"].startswith("planner ")
            ]
            answer = answered(lines, others, game.foreseen)
            if answer is not None:
                answers.append([env_id, place.title, *answer])
            machines = dict.fromkeys(line.machine for line in lines)
            if len(machines) > 1:
                for line in lines:
                    line.name += f" [{list(machines).index(line.machine) + 1}]"
            where = ", ".join(f"[{i}] {x}" for i, x in enumerate(machines, 1))
            preparing = [row["preparing"] for row in some if row.get("preparing", 0) > 0.001]
            if preparing:
                words = f"Start plans are {np.mean(preparing):.2g} s of an agent's time. {words}"
            sections += [
                f"**{place.title}**, {count} problems, on {where}. {words}"
                + verdict(lines, game.foreseen),
                table(HEAD, [line.cells() for line in lines]),
            ]  # fmt: skip
    sections[2:2] = [
        "## Does learning beat what does not learn?",
        "Mean shares of the best line that learns, by the lead over all that does not learn and "
        "takes no longer, and of the best that does not learn in any time. Planners that were not "
        "measured for this page are those of `rules.jsonl`, on the same problems and another "
        "machine, so that their seconds are good to a factor of two. Hindsight is left out. A lead "
        "alone says nothing of chance: intervals are below, and where they overlap there is none.",
        table(
            ["environment", "set", "learnt", "not learnt, no longer", "not learnt", "lead"],
            answers,
            5,
        ),
        "\n".join(f"- {env_id}: {why}" for env_id, why in WHY.items()),
    ]
    if missing:
        sections.append(f"Not measured for this page: {', '.join(missing)}.")
    return sections


if __name__ == "__main__":
    main(learners)
