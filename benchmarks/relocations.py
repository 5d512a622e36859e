"""``PipelineImprove-v0``: rules and networks at equal steps and at equal time, on fixed sets.

python benchmarks/relocations.py --networks runs/ppo-0 runs/ppo-1

Problems are played by one walk each, a relocation at a time, from the first plan that the
environment gives. Shares are the shortest length known over that of the plan; seconds are the
processor's, those of the first plan aside.
"""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, columns, main, measurement
from parenvs.agents.policies import load
from parenvs.core.game import EVERY
from parenvs.datasets.pipeline.problems import load_set, pipeline_of
from parenvs.tasks.pipeline.improve import Board, PipelineImprovement
from parenvs.tasks.pipeline.relocations import relocated

SETS = ("plan-s16-validation",)
STEPS, SECONDS = (2, 4, 8, 16, 32), (0.02, 0.05, 0.2)
"""Relocations, and seconds, after which plans are compared."""
LONGEST = 1_000
"""Relocations of a walk at most."""
Choice = Callable[["Walk", dict[str, np.ndarray]], int]
"""Takes a walk and what is seen; returns an action."""


class Walk:
    """An episode of one problem, and chance.

    Attributes:
        weights: of the rules that ``adaptive`` chooses from.
        used: the one that it chose last.
    """

    def __init__(self, problem: str, rows: str, seed: int) -> None:
        pipeline = pipeline_of(problem)
        self.game = PipelineImprovement(problem=pipeline, turns=LONGEST, rows=rows, pairs=False)
        self.board: Board = self.game.source.only
        self.rng = np.random.default_rng([zlib.crc32(problem.encode()), seed])
        self.weights, self.used = np.ones(3), 0
        self.game.put(EVERY, self.board)
        self.game.start(EVERY)


def best(score: np.ndarray, seen: dict[str, np.ndarray], rng: np.random.Generator) -> int:
    """Return the legal action of the greatest score; of equal ones any."""
    score = np.where(seen["action_mask"][0] != 0, score, -np.inf)
    return int(rng.choice(np.flatnonzero(score == score.max())))


def by_chance(walk: Walk, seen: dict[str, np.ndarray]) -> int:
    """Any relocation."""
    return best(np.zeros(walk.game.relocations), seen, walk.rng)


def costliest(walk: Walk, seen: dict[str, np.ndarray]) -> int:
    """The cut of the longest transfer goes; any other stage is parted."""
    column = list(walk.game.shown).index("link")
    return best(seen["actions"][0, :, column], seen, walk.rng)


def shortest(walk: Walk, seen: dict[str, np.ndarray]) -> int:
    """The relocation whose plan is shortest before it is mended."""
    return best(seen["actions"][0, :, 0], seen, walk.rng)


def adaptive(walk: Walk, seen: dict[str, np.ndarray]) -> int:
    """One of the three rules above, by weights that rise with what they gained (ALNS)."""
    walk.used = int(walk.rng.choice(3, p=walk.weights / walk.weights.sum()))
    return (by_chance, costliest, shortest)[walk.used](walk, seen)


def all_mended(walk: Walk, seen: dict[str, np.ndarray]) -> int:
    """The relocation whose plan is shortest once it is mended: a ceiling, of 225 times the time."""
    game, board, size = walk.game, walk.board, walk.game.others
    seconds = [
        relocated(
            board.tables, game.cuts[0].copy(), game.devices[0].copy(), number // size + 1,
            number % size, *board.modes, game.seconds[0],
        )
        for number in range(game.relocations)
    ]  # fmt: skip
    return best(-np.array(seconds), seen, walk.rng)


RULES: dict[str, Choice] = {
    "random": by_chance,
    "costliest cut": costliest,
    "adaptive weights": adaptive,
    "look-ahead": shortest,
    "all mended": all_mended,
}


def by_network(folder: str) -> Choice:
    """Return the choice of a run's network, or of one that ships."""
    policy = load(folder)

    def choose(walk: Walk, seen: dict[str, np.ndarray]) -> int:
        actions, _ = policy.predict(seen, seen["action_mask"] != 0)
        return int(actions[0])

    return choose


def play(problem: str, name: str, choose: Choice, steps: int, rows: str, seed: int) -> Row:
    """Play a walk; return the share after numbers of steps and after times."""
    walk = Walk(problem, rows, seed)
    game, known, spent = walk.game, walk.board.best, 0.0
    shares = [known / game.cost[0]]
    times = {str(limit): shares[0] for limit in SECONDS}
    while len(shares) <= max(STEPS) or (spent < max(SECONDS) and len(shares) <= steps):
        begin, before = process_time(), game.cost[0]
        if not game.over[0]:
            seen = game.observation(EVERY)
            game.play(EVERY, np.array([choose(walk, seen)]))
        spent += process_time() - begin
        gained = np.log(before / game.cost[0])
        walk.weights[walk.used] = 0.8 * walk.weights[walk.used] + 0.2 * (0.2 + 100 * gained)
        shares.append(known / game.cost[0])
        times.update({str(limit): shares[-1] for limit in SECONDS if spent <= limit})
    return {
        "start": shares[0], "shares": {f"{n} steps": shares[n] for n in STEPS}, "times": times,
        "milliseconds": 1e3 * spent / (len(shares) - 1),
    }  # fmt: skip


@measurement(key="set policy rows")
def relocations(
    sets: tuple[str, ...] = SETS,
    networks: tuple[str, ...] = (),
    rows: str = "ahead",
    seeds: int = 3,
    only_networks: bool = False,
) -> Iterator[Case]:
    """Play sets by the rules and by networks."""
    rules = {} if only_networks else RULES
    choices = {**rules, **{Path(path).name: by_network(path) for path in networks}}
    for name in sets:
        for policy, choose in choices.items():

            def played(name: str = name, policy: str = policy, choose: Choice = choose) -> Row:
                chance = policy in ("random", "costliest cut", "adaptive weights")
                results = [
                    play(problem.name, policy, choose, LONGEST, rows, seed)
                    for problem in load_set(name)
                    for seed in range(seeds if chance else 1)
                ]
                return {key: _means([x[key] for x in results]) for key in results[0]}

            yield {"set": name, "policy": policy, "rows": rows}, played


def _means(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _means([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


@relocations.page
def page(rows: list[Row]) -> list[str]:
    """Return the table of shares."""
    steps = [(f"{n} steps", f"{{shares[{n} steps]:.4f}}") for n in STEPS]
    times = [(f"{1e3 * x:.0f} ms", f"{{times[{x}]:.4f}}") for x in SECONDS]
    heads = [("set", "{set}"), ("choice", "{policy}"), ("start", "{start:.4f}"), *steps, *times]
    return [columns(rows, heads)]


if __name__ == "__main__":
    main(relocations)
