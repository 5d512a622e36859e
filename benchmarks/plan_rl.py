"""MaskablePPO and Rainbow on ``PipelinePlan-v0``: the paper's repeated problems, and new ones.

Every run is one line of ``plan_rl.jsonl``; a second invocation runs only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from benchmarks.looks import FIRST, VALIDATION, Looks
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.learning.chain.extractor import DILATIONS, WIDTH
from parenvs.agents.learning.train import Config, train
from parenvs.agents.learning.train.learners import learner_of
from parenvs.bench.runs import append, read, run_all
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

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others."""
        return *asdict(self).values(), self.settings_hash


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """The key of the run that left a record."""
    return tuple(record[name] for name in ("agent", "way", "seed", "steps", "settings_hash"))


def perform(run: Run) -> dict[str, Any]:
    """Train and judge on the validation set; returns the record."""
    looks, repeat = Looks(run.steps), REPEATS[run.way]
    config = Config(ENV_ID, {"repeat": repeat}, run.agent, APART * run.seed, run.steps)
    result, model = train(config, callbacks=[looks])
    return {
        **asdict(run), "settings_hash": run.settings_hash, "done": result.steps,
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


def row(runs: list[dict[str, Any]]) -> list[str]:
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


def curve(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
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


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    options.add_argument("--ways", nargs="+", default=list(REPEATS), choices=REPEATS)
    options.add_argument("--seeds", type=int, default=2, help="seeds 0 to this less one")
    options.add_argument("--steps", type=int, default=STEPS, help="environment steps of a run")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    wanted = [
        Run(agent, way, seed, chosen.steps)
        for agent in chosen.agents
        for way in chosen.ways
        for seed in range(chosen.seeds)
    ]
    path = chosen.out / "plan_rl.jsonl"
    done = read(path, key_of)
    missing = [run for run in wanted if run.key not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, record)
        progress(
            f"{number}/{len(missing)} {record['agent']} {record['way']} seed {record['seed']}: "
            f"{cells([record['ratios']])[0]}, {record['seconds']:.0f} s"
        )
    done = read(path, key_of)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in wanted:
        groups.setdefault((run.agent, run.way), []).append(done[run.key])
    rows = [[name, *[""] * 3, *cells(found), "", ""] for name, found in yardsticks().items()]
    sections = [
        "L over that of the proven optimum over points, of the "
        f"{len(set_of(VALIDATION).problems)} problems of `{VALIDATION}`, none of which is trained "
        "on: median and 95th percentile of the plans of the best actions, of all seeds together, "
        "and the share of illegal plans (masks leave none; the even cut knows no memory). The "
        "network sees the bare observation (`agents/learning/chain/extractor.py`). Processor seconds of "
        "training alone, on one thread, median over seeds.",
        table(HEADER, [*rows, *map(row, groups.values())], left=2),
        f"The interquartile mean of the regrets on the first {FIRST} problems, after shares of the "
        "steps:",
        curve(groups),
    ]
    publish("plan_rl", sections, None, chosen.out)


if __name__ == "__main__":
    main()
