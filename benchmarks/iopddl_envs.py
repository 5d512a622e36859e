"""``IntraOpSharding-v0``: dead ends, speed, and how near rules come to the solver's bound.

    python benchmarks/iopddl_envs.py                    # everything
    python benchmarks/iopddl_envs.py --only dead        # or speed, solver, rules

The contest's problems are left out where ``PARENVS_IOPDDL`` holds none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.framework import (
    Case,
    Column,
    Row,
    columns,
    main,
    measurement,
    percent,
    progress,
    spent,
    table,
)
from parenvs.bench.play import batch_play, make, rate, single_play
from parenvs.core.game import EVERY
from parenvs.datasets.sharding.drawing import SETS, set_names
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.game import named, numbered
from parenvs.tasks.sharding.turns.advice import LEVELS
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct

EPISODES = 10_000
"""Random episodes in which dead ends are counted."""
CONTEST = ("B", "G")
ENV, SAMPLES = "IntraOpSharding-v0", 32
SECONDS = 2.0
"""Of a measurement of speed."""


def contest(letters: str = "".join(CONTEST)) -> Iterator[tuple[str, Board]]:
    """Yield boards of the contest's problems that are there."""
    listed = store.names()
    for letter in letters:
        if any(name.endswith(f"-{letter}") for name in listed):
            yield letter, named(letter)
        else:
            progress(f"{letter} is left out: it is not in {store.folder()}")


def tested(most: int) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of problems that rules plan, at most ``most`` of a group."""
    for name in SETS:
        for member in set_names(name):
            family, _, number = member.split("/")[1].partition("-")
            if name != "intra-op-validation" and int(number) < most:
                yield f"{name}, {family}", member
    for letter, _ in contest():
        yield letter, letter


# Dead ends and speed


def random_episodes(board: Board, count: int, guarded: bool, seed: int = 0) -> tuple[int, int]:
    """Play random legal episodes; the numbers of dead ends, and of plans that are not legal."""
    rng, dead, wrong, side = np.random.default_rng(seed), 0, 0, min(count, 500)
    for begin in range(0, count, side):
        rows = np.arange(min(side, count - begin))
        episodes = Construct(len(rows), int(board.sizes.max()), guarded=guarded)
        for row in rows.tolist():
            episodes.put(row, board)
        episodes.start(rows)
        while len(left := np.flatnonzero(~episodes.over)):
            legal = episodes.legal[left]
            episodes.play(left, (rng.random(legal.shape) * legal).argmax(axis=1))
        dead += int(episodes.dead.sum())
        whole = episodes.chosen[~episodes.dead, : len(board)]
        wrong += sum(not board.reduced.legal(chosen) for chosen in whole)
        report = board.problem.report(episodes.plan(int(np.argmin(episodes.dead))))
        assert not whole.size or report.legal
    return dead, wrong


def dead_cases(episodes: int) -> Iterator[Case]:
    """Count dead ends with the witness, and without it where it is what prevents them."""
    boards = {letter: (partial(named, letter), episodes) for letter, _ in contest("BGV")}
    boards |= {letter: (partial(named, letter), 20) for letter, _ in contest("PLK")}
    for family, count in (("mesh", 1000), ("classes", 100)):
        for number in range(10):
            load = partial(numbered, family, number, "inside")
            boards[f"{family}-{number}"] = load, count
    for name, (load, count) in boards.items():
        yield _dead(name, True), partial(count_dead, load, count, True)
        if not load().is_free:
            yield _dead(name, False), partial(count_dead, load, count, False)


def _dead(name: str, guarded: bool) -> Row:
    return {"part": "dead", "problem": name, "guarded": guarded}


def count_dead(load: Callable[[], Board], count: int, guarded: bool) -> Row:
    board, row = load(), {"episodes": count}
    with spent(row):
        row["dead"], row["wrong"] = random_episodes(board, count, guarded)
    return {**row, "free": board.is_free, "nodes": len(board)}


def speed_cases() -> Iterator[Case]:
    """Steps by second of processor time, single and batched."""
    instances = {
        "mesh (pool of 16)": {"pool": 16},
        "classes": {"instance": "intra-op-test/classes-000"},
        **{letter: {"instance": letter} for letter, _ in contest("BGV")},
    }
    for number in range(16):
        numbered("mesh", number, "inside")  # drawn once, whoever plays them
    for name, kwargs in instances.items():
        for form in ("construct", "improve"):
            for count in (1, 16, 64, 256) if form == "construct" else (1, 16, 64):
                key = {"part": "speed", "problem": name, "form": form, "envs": count}
                yield key, partial(speed, {**kwargs, "form": form}, count)


def speed(kwargs: Row, count: int) -> Row:
    env = make((ENV, kwargs), count if count > 1 else 0)
    return {"rate": rate(*(batch_play(env) if count > 1 else single_play(env)), SECONDS)}


# Planners


def solver_cases(most: int, seconds: float) -> Iterator[Case]:
    """Bound every problem by the solver."""
    for group, name in tested(most):
        yield _plan(group, name, "solver"), partial(bounded, name, seconds)


def _plan(group: str, name: str, method: str) -> Row:
    return {"part": "plan", "group": group, "problem": name, "method": method}


def bounded(name: str, seconds: float) -> Row:
    from parenvs.agents.sharding import solve_iopddl

    answer = solve_iopddl(named(name).problem, seconds, processor=True)
    return {"cost": answer.cost, "bound": answer.bound, "seconds": answer.seconds}


def rule_cases(most: int) -> Iterator[Case]:
    """Plan every problem by the rules that do not learn."""
    methods: dict[str, Callable[[Board], int]] = {
        f"greedy, advice {level}": lambda board, level=level: greedy(board, advice=level)
        for level in LEVELS
    }
    methods["random"] = lambda board: random_plan(board, 0, 1)
    methods[f"random, best of {SAMPLES}"] = lambda board: random_plan(board, 0, SAMPLES)
    methods["improving, greedy"] = lambda board: greedy(board, form="improve")
    methods["improving, random"] = lambda board: random_improving(board)
    for group, name in tested(most):
        for method, run in methods.items():
            yield _plan(group, name, method), partial(costed, run, name)


def greedy(board: Board, **env_kwargs: Any) -> int:
    """Return the cost of the plan that takes what the observation rates best, with its advice."""
    env: Any = gym.make(ENV, problem=board.problem, **env_kwargs).unwrapped
    env.reset()
    over = False
    while not over:
        _, _, over, _, info = env.step(env.game.greedy(EVERY)[0])
    return int(info["cost"])


def costed(run: Callable[[Board], int], name: str) -> Row:
    row: Row = {}
    with spent(row):
        row["cost"] = run(named(name))
    return row


def random_plan(board: Board, seed: int, count: int) -> int:
    """Return the least cost of random legal plans."""
    rng, rows = np.random.default_rng(seed), np.arange(count)
    episodes = Construct(count, int(board.sizes.max()))
    for row in rows.tolist():
        episodes.put(row, board)
    episodes.start(rows)
    while not episodes.over.all():
        episodes.play(rows, (rng.random(episodes.legal.shape) * episodes.legal).argmax(axis=1))
    return int(episodes.cost.min())


def random_improving(board: Board) -> int:
    """Return the cost after moves of random blocks."""
    env: Any = gym.make(ENV, problem=board.problem, form="improve").unwrapped
    rng, over = np.random.default_rng(0), False
    env.reset()
    while not over:
        _, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
    return int(info["cost"])


PARTS = ("dead", "speed", "solver", "rules")


def key_of(row: Row) -> tuple[Any, ...]:
    return (*map(row.get, ("part", "problem", "guarded", "form", "envs", "method")),)


@measurement(
    key=key_of,
    among={"only": PARTS},
    about={
        "episodes": "to count dead ends in",
        "problems": "most of a group",
        "seconds": "of the solver for each problem",
    },
)
def iopddl_envs(
    only: tuple[str, ...] = PARTS,
    episodes: int = EPISODES,
    problems: int = 1000,
    seconds: float = 10.0,
) -> Iterator[Case]:
    cases = {
        "dead": lambda: dead_cases(episodes),
        "speed": speed_cases,
        "solver": lambda: solver_cases(problems, seconds),
        "rules": lambda: rule_cases(problems),
    }
    for part in only:
        yield from cases[part]()


# The page


DEAD: list[Column] = [
    ("problem", "{problem}"),
    ("nodes", "{nodes:,}"),
    ("free", lambda row: "yes" if row["free"] else "no"),
    ("episodes", "{episodes:,}"),
    ("dead ends", "{dead}"),
    ("illegal plans", "{wrong}"),
    ("without", "{without}"),
]


@iopddl_envs.page
def page(rows: list[Row]) -> list[str]:
    parts: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        parts[row["part"]].append(row)
    without = {row["problem"]: f"{row['dead']:,} of {row['episodes']:,}"
               for row in parts["dead"] if not row["guarded"]}  # fmt: skip
    guarded = [row | {"without": without.get(row["problem"], "")}
               for row in parts["dead"] if row["guarded"]]  # fmt: skip
    sections = ["## Dead ends", (
        "Random legal episodes. On free problems the mask is exact: a strategy is legal if and "
        "only if the plan can be completed with it. On the others a witness is kept; `without` is "
        "what would happen there with the mask of arc consistency and least usage alone."
    )]  # fmt: skip
    sections += [columns(guarded, DEAD), "## Speed", (
        "Steps by second of processor time, random legal actions, masks and observations included."
    )]  # fmt: skip
    rates: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in parts["speed"]:
        rates[row["problem"], row["form"]][row["envs"]] = row["rate"]
    counts = sorted({row["envs"] for row in parts["speed"]})
    sections.append(table(
        ["problem", "form", *(f"{count} at once" if count > 1 else "single" for count in counts)],
        [[*key, *(f"{found[n]:,.0f}" if n in found else "" for n in counts)]
         for key, found in rates.items()],
    ))  # fmt: skip
    sections += ["## Plans", (
        "Cost over the solver's proven bound, less 1: median over problems, and the geometric "
        "mean; `beats greedy` is the share of plans that cost less than those of greedy without "
        "advice, `ties` of those that cost the same. `seconds`: of processor time for a problem, "
        "median."
    )]  # fmt: skip
    plans = parts["plan"]
    bound = {x["problem"]: max(x["bound"], 1.0) for x in plans if x["method"] == "solver"}
    base = {x["problem"]: x["cost"] for x in plans if x["method"] == "greedy, advice none"}
    for group in dict.fromkeys(row["group"] for row in plans):
        lines = []
        for method in dict.fromkeys(row["method"] for row in plans):
            mine = [x for x in plans if (x["group"], x["method"]) == (group, method)]
            mine = [x for x in mine if x["problem"] in bound and x["problem"] in base]
            if not mine:
                continue
            every = np.array([x["cost"] / bound[x["problem"]] - 1 for x in mine])
            less = np.mean([x["cost"] < base[x["problem"]] for x in mine])
            same = np.mean([x["cost"] == base[x["problem"]] for x in mine])
            lines.append([
                method, len(mine), percent(float(np.median(every))),
                percent(float(np.exp(np.log1p(np.maximum(every, 0)).mean()) - 1)),
                percent(float(less), 0), percent(float(same), 0),
                f"{np.median([x['seconds'] for x in mine]):.2f}",
            ])  # fmt: skip
        head = ["method", "problems", "gap, median", "geometric mean", "beats greedy", "ties",
                "seconds"]  # fmt: skip
        sections += [f"### {group}", table(head, lines)] if lines else []
    return sections


if __name__ == "__main__":
    main(iopddl_envs)
