"""``IntraOpSharding-v1``: dead ends and speed; ``benchmarks/rules.py`` plays its rules.

    python benchmarks/iopddl_envs.py                    # everything
    python benchmarks/iopddl_envs.py --only dead        # or speed

The contest's problems are left out where ``PARENVS_IOPDDL`` holds none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Column,
    Row,
    columns,
    main,
    measurement,
    progress,
    spent,
    table,
)
from parenvs.bench.play import batch_play, make, rate, single_play
from parenvs.datasets.sharding.bank import numbered
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.sources import named
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct

EPISODES = 10_000
"""Random episodes in which dead ends are counted."""
CONTEST = ("B", "G")
ENV = "IntraOpSharding-v1"
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
            load = partial(numbered, family, number)
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
        "mesh": {},
        "mesh, bare": {"rows": "bare"},
        "one of classes": {"instance": "intra-op-test/classes-000"},
        **{letter: {"instance": letter} for letter, _ in contest("BGV")},
    }
    for name, kwargs in instances.items():
        for form in ("construct", "improve"):
            for count in (1, 16, 64, 256, 1024) if form == "construct" else (1, 16, 64):
                key = {"part": "speed", "problem": name, "form": form, "envs": count}
                yield key, partial(speed, {**kwargs, "form": form}, count)


def speed(kwargs: Row, count: int) -> Row:
    env = make((ENV, kwargs), count if count > 1 else 0)
    return {"rate": rate(*(batch_play(env) if count > 1 else single_play(env)), SECONDS)}


PARTS = ("dead", "speed")


def key_of(row: Row) -> tuple[Any, ...]:
    return (*map(row.get, ("part", "problem", "guarded", "form", "envs")),)


@measurement(
    title="IntraOpSharding-v1: dead ends and speed",
    key=key_of,
    among={"only": PARTS},
    about={"episodes": "to count dead ends in"},
)
def iopddl_envs(
    only: tuple[str, ...] = PARTS,
    episodes: int = EPISODES,
) -> Iterator[Case]:
    cases = {"dead": lambda: dead_cases(episodes), "speed": speed_cases}
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
        "Steps by second of processor time, random legal actions, masks and observations included. "
        "Rows of B, G and V, and of `classes` but for 1,024 at once, are from before episodes of "
        "any problems were played together."
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
    return sections


if __name__ == "__main__":
    main(iopddl_envs)
