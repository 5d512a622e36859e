"""MaskablePPO and Rainbow on ``PipelinePlan-v0``: the paper's repeated problems, and new ones.

Every run is one line of ``plan_rl.jsonl``; a second invocation runs only what is missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
from common import parser, percent, progress, publish, table

from parenvs.agents.chain import train as plan_rl
from parenvs.agents.chain.extractor import DILATIONS, WIDTH
from parenvs.agents.chain.train import AGENTS, WAYS, ChainRun
from parenvs.agents.pretrained.exam import VALIDATION, at_random, exam, summary
from parenvs.bench.runs import append, read, run_all

STEPS = 80_000
RANDOM = 20
"""Number of random plans of each problem."""
WORDS = {
    "repeat": f"{plan_rl.REPEAT} episodes of each",
    "new": "new in each episode",
}
HEADER = (
    "agent", "problems", "seeds", "steps", "median", "95 %", "refused", "median, by seed",
    "wall s", "processor s",
)  # fmt: skip


def perform(run: ChainRun) -> dict[str, Any]:
    """Train and evaluate on the validation set; returns the record."""
    points, _ = plan_rl.train(run)
    return {**asdict(run), "settings_hash": settings(run), "points": points}


def settings(run: ChainRun) -> str:
    """A hash of the settings, which decide a run besides its own fields."""
    made = plan_rl.ppo_settings() if run.agent == "ppo" else plan_rl.rainbow_settings()
    raw = json.dumps([made, plan_rl.ENVS, plan_rl.REPEAT, WIDTH, DILATIONS], default=repr)
    raw = re.sub(" at 0x[0-9a-f]+", "", raw)  # addresses are none of the settings
    return hashlib.sha256(raw.encode()).hexdigest()[:16]


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """The key of the run that left a record."""
    names = ("agent", "way", "seed", "steps", "looks", "family", "settings_hash")
    return tuple(record[name] for name in names)


def row(records: list[dict[str, Any]]) -> list[str]:
    """The table's row of the seeds of an agent and a way."""
    last = [record["points"][-1] for record in records]
    one = records[0]

    def middle(name: str) -> float:
        return median(point[name] for point in last)

    return [
        one["agent"], WORDS[one["way"]], str(len(records)), f"{middle('steps'):,.0f}",
        f"{middle('median'):.3f}", f"{middle('p95'):.3f}", percent(middle("illegal"), 1),
        ", ".join(f"{point['median']:.3f}" for point in last),
        f"{middle('wall_seconds'):,.0f}", f"{middle('seconds'):,.0f}",
    ]  # fmt: skip


def yardsticks() -> dict[str, dict[str, float]]:
    """The summaries of random legal plans and of the even cut."""
    solved, rng = exam(), np.random.default_rng(0)
    plans = np.concatenate([solved.ratios(at_random(rng)) for _ in range(RANDOM)])
    return {"random legal plans": summary(plans), "even cut": summary(solved.even())}


def curve(groups: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """A table of medians in the course of the training; of several seeds the middle one."""
    looks = len(next(iter(groups.values()))[0]["points"])
    some = range(0, looks, max((looks - 1) // 5, 1))
    header = ["agent", "problems", *(percent(i / (looks - 1), 0) for i in some)]
    rows = [
        [
            agent,
            WORDS[way],
            *(f"{median(x['points'][i]['median'] for x in found):.3f}" for i in some),
        ]
        for (agent, way), found in groups.items()
    ]
    return table(header, rows, left=2)


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    options.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    options.add_argument("--seeds", type=int, default=2, help="seeds 0 to this less one")
    options.add_argument("--steps", type=int, default=STEPS, help="environment steps of a run")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    wanted = [
        ChainRun(agent, way, seed, chosen.steps)
        for seed in range(chosen.seeds)
        for way in chosen.ways
        for agent in chosen.agents
    ]
    keys = {run: key({**asdict(run), "settings_hash": settings(run)}) for run in wanted}
    path = chosen.out / "plan_rl.jsonl"
    done = read(path, key)
    missing = [run for run in wanted if keys[run] not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, {**record, "jobs": chosen.jobs})
        last = record["points"][-1]
        progress(
            f"{number}/{len(missing)} {record['agent']} {record['way']} seed {record['seed']}: "
            f"{last['median']:.3f}, {last['seconds']:.0f} s"
        )
    done = read(path, key)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in sorted(wanted, key=lambda run: AGENTS.index(run.agent)):
        groups.setdefault((run.agent, run.way), []).append(done[keys[run]])
    found = yardsticks()
    rows = [
        [
            name,
            "",
            "",
            "",
            f"{x['median']:.3f}",
            f"{x['p95']:.3f}",
            percent(x["illegal"], 1),
            *[""] * 3,
        ]
        for name, x in found.items()
    ]
    sections = [
        f"L over that of the proven optimum over points, of the {len(exam().spaces)} problems of "
        f"`{VALIDATION}`, none of which is trained on: median and 95th percentile of the best "
        "rated plans that fit the memory, and the share of those that do not (masks leave none; "
        "the even cut knows no memory). The network sees the bare observation "
        "(`agents/chain/extractor.py`). Seconds are of training alone, on one thread, medians over "
        "seeds; wall seconds beside whatever else ran.",
        table(HEADER, [*rows, *map(row, groups.values())], left=2),
        "The median after shares of the steps:",
        curve(groups),
    ]
    data = {"yardsticks": found, "runs": [x for found in groups.values() for x in found]}
    publish("plan_rl", sections, data, chosen.out)


if __name__ == "__main__":
    main()
