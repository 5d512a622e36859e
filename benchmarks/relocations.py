"""Relocations of pipeline stages: rules and networks at equal steps and at equal time.

python benchmarks/relocations.py --networks PipelineImprove-v0 runs/ppo-1

A problem is played by one walk from the first plan of the environment. Shares are the least seconds
known over the plan's; times are the processor's, without those of the first plan.
"""

import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, table
from benchmarks.ship import network_of
from parenvs.agents.evaluation.statistics import bootstrap_interval
from parenvs.agents.learning.network import Network, shipped
from parenvs.core.game import EVERY
from parenvs.datasets.pipeline.problems import load_set, pipeline_of
from parenvs.tasks.pipeline.improve import Board, PipelineImprovement
from parenvs.tasks.pipeline.relocations import relocated

STEPS, SECONDS = (2, 4, 8, 16, 32), (0.02, 0.05, 0.2)
"""Relocations and seconds after which plans are compared."""
MOVED, LOOKED, CUT = 1_000, 0, 2
"""Relocations of a walk at most; columns of the look-ahead rule and of the cut's transfer."""
ARMS = ("random", "costliest cut", "look-ahead")
"""Rules that adaptive weights choose from (ALNS)."""
CEILING = "all mended"
"""The relocation whose plan is shortest once it is mended: what none of one look can pass."""
RULES = (*ARMS, "adaptive weights", CEILING)


class Walk:
    """An episode of a problem that a rule or a network plays."""

    def __init__(self, problem: str, policy: str, seed: int) -> None:
        self.game = PipelineImprovement(problem=pipeline_of(problem), turns=MOVED, pairs=False)
        self.board: Board = self.game.source.only
        self.rng = np.random.default_rng([zlib.crc32(problem.encode()), seed])
        self.policy, self.weights, self.arm = policy, np.ones(len(ARMS)), 0
        self.network: Network | None = None
        self.game.put(EVERY, self.board)
        self.game.start(EVERY)

    def scores(self, seen: dict[str, np.ndarray]) -> np.ndarray:
        """Return what the policy gives each relocation."""
        name, actions = self.policy, seen["actions"][0]
        if self.network is not None:
            return self.network.rate(seen)[0]
        if name == CEILING:
            return self.mended()
        if name == "adaptive weights":
            self.arm = int(self.rng.choice(len(ARMS), p=self.weights / self.weights.sum()))
            name = ARMS[self.arm]
        columns = {"random": np.zeros(len(actions)), "costliest cut": actions[:, CUT]}
        return columns.get(name, actions[:, LOOKED])

    def mended(self) -> np.ndarray:
        """Return the seconds behind all relocations, mended, less than 0."""
        game, board, seconds = self.game, self.board, []
        for s, t in np.ndindex(game.others, game.others):
            plan = game.cuts[0].copy(), game.devices[0].copy(), s + 1, t
            seconds.append(relocated(board.tables, *plan, *board.modes, game.seconds[0]))
        return -np.array(seconds)

    def step(self) -> None:
        """Relocate a stage by the best score; of equal ones any."""
        seen, before = self.game.observation(EVERY), self.game.cost[0]
        scores = np.where(seen["action_mask"][0] != 0, self.scores(seen), -np.inf)
        action = self.rng.choice(np.flatnonzero(scores == scores.max()))
        self.game.play(EVERY, np.array([action]))
        gained = 100 * np.log(before / self.game.cost[0])
        self.weights[self.arm] = 0.8 * self.weights[self.arm] + 0.2 * (0.2 + gained)


def play(problem: str, policy: str, seed: int) -> list[float]:
    """Return the shares after ``STEPS`` and ``SECONDS``."""
    walk = Walk(problem, policy, seed)
    if policy not in RULES:
        walk.network = network_of(Path(policy)) if Path(policy).is_dir() else shipped(policy)
    game, known, spent = walk.game, walk.board.best, 0.0
    shares = [known / game.cost[0]]
    timed = shares * len(SECONDS)
    # The ceiling takes seconds a relocation: it has its steps alone.
    last = max(STEPS) if policy == CEILING else MOVED
    while len(shares) <= max(STEPS) or (spent < max(SECONDS) and len(shares) <= last):
        begin = process_time()
        if not game.over[0]:
            walk.step()
        spent += process_time() - begin
        shares.append(known / game.cost[0])
        timed = [shares[-1] if spent <= t else x for t, x in zip(SECONDS, timed, strict=True)]
    return [*(shares[number] for number in STEPS), *timed]


def played(name: str, policy: str, seeds: int) -> Row:
    """Play a set; return the mean shares of the seeds of each problem."""
    count = seeds if policy in ("random", "costliest cut", "adaptive weights") else 1
    return {
        "shares": [
            np.round(np.mean([play(x.name, policy, seed) for seed in range(count)], axis=0), 6)
            for x in load_set(name)
        ]
    }


@measurement(key="set policy", title="Relocations at equal steps and at equal time")
def relocations(
    sets: tuple[str, ...] = ("plan-s16-validation",),
    policies: tuple[str, ...] = RULES,
    networks: tuple[str, ...] = (),
    seeds: int = 3,
) -> Iterator[Case]:
    """Play sets by rules, and by networks that ship or of runs."""
    for name in sets:
        for policy in (*policies, *networks):
            yield {"set": name, "policy": policy}, partial(played, name, policy, seeds)


@relocations.page
def page(rows: list[Row]) -> list[str]:
    """Return a table of each set; the lead is over the best rule of each column."""
    heads = [*(f"{n} steps" for n in STEPS), *(f"{1e3 * x:.0f} ms" for x in SECONDS)]
    sections = [
        "Mean share of the least seconds known; leads are over the best rule of the column, with "
        "95 % intervals, paired by problem."
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = {row["policy"]: np.array(row["shares"]) for row in rows if row["set"] == name}
        rules = [mine[rule] for rule in RULES[:-1] if rule in mine]
        lines = [[policy, *(f"{x:.4f}" for x in shares.mean(axis=0))]
                 for policy, shares in mine.items()]  # fmt: skip
        for policy in mine.keys() - set(RULES):
            cells = []
            for column in range(len(heads)):
                best = max((rule[:, column] for rule in rules), key=np.mean)
                lead = mine[policy][:, column] - best
                low, high = bootstrap_interval(np.mean, lead[None])
                cells.append(f"{lead.mean():+.4f} ({low:+.4f} to {high:+.4f})")
            lines.append([f"{policy}, lead", *cells])
        sections.append(f"## {name}\n\n" + table(["choice", *heads], lines, 1))
    return sections


if __name__ == "__main__":
    main(relocations)
