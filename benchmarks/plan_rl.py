"""MaskablePPO and Rainbow on ``PipelinePlan-v0``: the paper's repeated problems, and new ones."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from benchmarks.trained import FIRST, VALIDATION, Looks
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.learning.chain.extractor import DILATIONS, WIDTH
from parenvs.agents.learning.train import Config, train
from parenvs.agents.learning.train.learners import learner_of
from parenvs.core.sets import set_of

ENV_ID = "PipelinePlan-v0"
STEPS = 80_000
AGENTS = ("ppo", "rainbow")
REPEATS = {"repeat": 50, "new": 1}
"""Way to draw -> episodes of each problem; the first is that of arXiv 2007.04069, section 4.5."""
WORDS = {"repeat": "50 episodes of each", "new": "new in each episode"}
RANDOM = 20
"""Number of random plans of each problem."""
APART = 10_000
"""Between the seeds of two runs, whose environments take those between."""
HEADER = (
    "agent", "problems", "seeds", "steps", "median", "95 %", "illegal", "median, by seed",
    "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """An agent, a way to draw problems, a seed and the environment steps."""

    agent: str
    way: str
    seed: int
    steps: int

    @property
    def settings_hash(self) -> str:
        """A hash of the settings, which decide a run besides its own fields."""
        learner = learner_of(self.agent)
        made = learner.settings(ENV_ID, 1), learner.side_by_side(ENV_ID), REPEATS[self.way]
        raw = json.dumps([*made, WIDTH, DILATIONS], default=repr)
        raw = re.sub(" at 0x[0-9a-f]+", "", raw)  # addresses are none of the settings
        return hashlib.sha256(raw.encode()).hexdigest()[:16]


def perform(run: Run) -> Row:
    """Train and judge on the validation set."""
    looks, repeat = Looks(run.steps), REPEATS[run.way]
    config = Config(ENV_ID, {"repeat": repeat}, run.agent, APART * run.seed, run.steps)
    result, model = train(config, callbacks=[looks])
    return {
        "done": result.steps,
        "seconds": round(result.seconds - looks.spent, 1), "points": looks.points,
        "ratios": ratios(model),
    }  # fmt: skip


def ratios(policy: Any) -> list[float | None]:
    """L over the optimum's of each problem of the validation set; None of an illegal plan."""
    shares = 1 - evaluate_set(policy, VALIDATION).regrets[0]
    return [float(f"{1 / share:.6g}") if share > 0 else None for share in shares]


def cells(found: list[list[float | None]]) -> list[str]:
    """Median and 95th percentile of the legal plans of some runs, and the share of the others."""
    flat = [ratio for one in found for ratio in one]
    legal = [ratio for ratio in flat if ratio is not None]
    middle, late = np.percentile(legal, (50, 95))
    return [f"{middle:.3f}", f"{late:.3f}", percent(1 - len(legal) / len(flat), 1)]


def row(runs: list[Row]) -> list[str]:
    """The table's row of the seeds of an agent and a way."""
    one, found = runs[0], [run["ratios"] for run in runs]
    return [
        one["agent"], WORDS[one["way"]], str(len(runs)), f"{one['done']:,}", *cells(found),
        ", ".join(cells([ratio])[0] for ratio in found),
        f"{median(run['seconds'] for run in runs):,.0f}",
    ]  # fmt: skip


def yardsticks() -> dict[str, list[list[float | None]]]:
    """The ratios of random legal plans and of the even cut."""
    rng = np.random.default_rng(0)

    def choose(_: Any, mask: np.ndarray) -> int:
        return int(rng.choice(np.flatnonzero(mask)))

    return {
        "random legal plans": [ratios(choose) for _ in range(RANDOM)],
        "even cut": [ratios("even")],
    }


def curve(groups: dict[tuple[str, str], list[Row]]) -> str:
    """A table of regrets in the course of the training; of several seeds the middle one."""
    looks = len(next(iter(groups.values()))[0]["points"])
    rows = [
        [
            agent,
            WORDS[way],
            *(f"{median(run['points'][i][1] for run in runs):.3f}" for i in range(looks)),
        ]
        for (agent, way), runs in groups.items()
    ]
    shares = [percent(i / (looks - 1), 0) for i in range(looks)]
    return table(["agent", "problems", *shares], rows, left=2)


@measurement(
    key="agent way seed steps settings_hash",
    among={"agents": AGENTS, "ways": REPEATS},
    about={"seeds": "seeds 0 to this less one", "steps": "environment steps of a run"},
)
def plan_rl(
    agents: tuple[str, ...] = AGENTS,
    ways: tuple[str, ...] = tuple(REPEATS),
    seeds: int = 2,
    steps: int = STEPS,
) -> list[Case]:
    runs = [Run(agent, way, seed, steps) for agent in agents for way in ways
            for seed in range(seeds)]  # fmt: skip
    return [
        ({**asdict(run), "settings_hash": run.settings_hash}, partial(perform, run)) for run in runs
    ]


@plan_rl.page
def page(records: list[Row]) -> list[str]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for record in records:
        groups.setdefault((record["agent"], record["way"]), []).append(record)
    rows = [[name, *[""] * 3, *cells(found), "", ""] for name, found in yardsticks().items()]
    return [
        "L over that of the proven optimum over points, of the "
        f"{len(set_of(VALIDATION).problems)} problems of `{VALIDATION}`, none of which is trained "
        "on: median and 95th percentile of the plans of the best actions, of all seeds together, "
        "and the share of illegal plans (masks leave none; the even cut knows no memory). The "
        "network sees the bare observation (`agents/learning/chain/extractor.py`). Processor "
        "seconds of training alone, on one thread, median over seeds.",
        table(HEADER, [*rows, *map(row, groups.values())], left=2),
        f"The interquartile mean of the regrets on the first {FIRST} problems, after shares of the "
        "steps:",
        curve(groups),
    ]


if __name__ == "__main__":
    main(plan_rl)
