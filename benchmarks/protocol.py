"""Agents on drawn problems of ``PipelinePlan-v0``, judged on ``plan-test`` by the protocol.

    python benchmarks/protocol.py                              # all rows that are missing
    python benchmarks/protocol.py --agents even random ppo-100k --seeds 2
    python benchmarks/protocol.py --scale 0.001 --seeds 2 --out /tmp/try    # a quick try

A training that is stopped goes on from its last checkpoint in ``build/protocol``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import trim_mean

from benchmarks.framework import Case, Row, main, measurement, percent, table
from benchmarks.trained import VALIDATION, Looks
from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.evaluation.set_evaluation import THRESHOLDS, SetEvaluation, references_of
from parenvs.agents.learning.fused import PPOSettings, RainbowSettings
from parenvs.agents.learning.fused import train as train_fused
from parenvs.agents.learning.fused.checkpoint import CHECKPOINT
from parenvs.agents.learning.fused.run import WEIGHTS
from parenvs.agents.learning.pretrained.policy import PlanPolicy
from parenvs.agents.learning.train import Config, train
from parenvs.bench.curves import spread
from parenvs.core.sets import set_of
from parenvs.view.page import INK, QUIET, TRACK, WIDTH, blank_figure, stage_colour

SET = "plan-test"
"""What rows are judged on."""
TICKS = (1, 2, 5, 10, 20)
"""Labels of an axis of lengths."""
TRAINED = {
    "ppo-100k": 100_000,
    "ppo-1m": 1_000_000,
    "fused-100k": 100_000,
    "fused-rainbow-100k": 100_000,
    "fused-1m": 1_000_000,
    "fused-rainbow-1m": 1_000_000,
    "fused-10m": 10_000_000,
}
"""Agent that trains -> environment steps."""
OBJECTIVE = "log"
"""What the fused loop maximises: it counts a per cent of each length for as much."""
AGENTS = ("random", "even", "pretrained", *TRAINED)
WORDS = {
    "random": "random legal actions",
    "even": "even cut",
    "pretrained": "the network that ships (imitates optima)",
    "ppo-100k": "MaskablePPO, bare observation",
    "ppo-1m": "MaskablePPO, bare observation",
    "fused-100k": "PPO in the fused loop, look-ahead features",
    "fused-rainbow-100k": "Rainbow in the fused loop, look-ahead features",
    "fused-1m": "PPO in the fused loop, look-ahead features",
    "fused-rainbow-1m": "Rainbow in the fused loop, look-ahead features",
    "fused-10m": "PPO in the fused loop, look-ahead features",
}
BUILD = Path("build/protocol")


@dataclass(frozen=True)
class Run:
    """A row: an agent, a seed, and its environment steps (0: it does not train)."""

    agent: str
    seed: int
    steps: int
    build: str


def perform(run: Run) -> Row:
    ways: dict[str, Callable[[Run], tuple[np.ndarray, float, list[list[float]]]]] = {
        "random": at_random, "even": planned, "pretrained": planned, "ppo": ppo, "fused": fused,
    }  # fmt: skip
    values, seconds, points = ways[run.agent.split("-")[0]](run)
    rounded = [float(f"{value:.6g}") for value in values]
    return {"seconds": round(seconds, 1), "points": points, "values": rounded}


def at_random(run: Run) -> tuple[np.ndarray, float, list[list[float]]]:
    """Random legal actions."""
    rng = np.random.default_rng(run.seed)

    def choose(_: Any, mask: np.ndarray) -> int:
        return int(rng.choice(np.flatnonzero(mask)))

    return evaluate_set(choose, SET).values[0], 0.0, []


def planned(run: Run) -> tuple[np.ndarray, float, list[list[float]]]:
    """Plans of a planner; its seconds are those of planning."""
    begin = time.process_time()
    values = evaluate_set(run.agent, SET).values[0]
    return values, time.process_time() - begin, []


def ppo(run: Run) -> tuple[np.ndarray, float, list[list[float]]]:
    """MaskablePPO on numbered problems; seeds are far apart, as environments take those between."""
    folder = Path(run.build) / f"{run.agent}-{run.steps}-{run.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    config = Config("PipelinePlan-v0", {"draw": 2}, "ppo", 10_000 * run.seed, run.steps)
    looks = Looks(run.steps, folder / "curve.json")
    result, model = train(config, folder / "run", resume=True, callbacks=[looks])
    values = evaluate_set(model, SET).values[0]
    return values, result.seconds - looks.spent, looks.points


def fused(run: Run) -> tuple[np.ndarray, float, list[list[float]]]:
    """The fused loop on one core; its curve is the mean length on problems held out."""
    folder = Path(run.build) / f"{run.agent}-{run.steps}-{run.seed}"
    kind = RainbowSettings if "rainbow" in run.agent else PPOSettings
    samples = kind().samples
    iterations = max(run.steps // samples, 1)
    settings = kind(seed=run.seed, iterations=iterations, objective=OBJECTIVE)
    folder.mkdir(parents=True, exist_ok=True)
    begin, resume = time.process_time(), (folder / CHECKPOINT).exists()
    log = train_fused(settings, folder, workers=0, resume=resume)
    seconds = log["seconds"] if resume else time.process_time() - begin
    values = evaluate_set(PlanPolicy.load(folder / WEIGHTS), SET).values[0]
    points = [[p["iteration"] * samples, p["held_out"]] for p in log["points"] if "held_out" in p]
    return values, seconds, points


@measurement(
    key="agent seed steps",
    among={"agents": AGENTS},
    about={
        "seeds": "seeds 0 to this less one",
        "scale": "factor of the steps, for a try",
        "build": "folder of the trainings",
    },
)
def protocol(
    agents: tuple[str, ...] = AGENTS, seeds: int = 10, scale: float = 1.0, build: Path = BUILD
) -> list[Case]:
    cases: list[Case] = []
    for agent in agents:
        steps = max(int(TRAINED.get(agent, 0) * scale), agent in TRAINED)
        for seed in range(1 if agent in ("even", "pretrained") else seeds):
            key = {"agent": agent, "seed": seed, "steps": steps}
            cases.append((key, partial(perform, Run(**key, build=str(build)))))
    return cases


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["agent"], []).append(row)
    return groups


@protocol.page
def page(rows: list[Row], agents: Sequence[str]) -> list[str]:
    groups = grouped(rows)
    names = set_of(SET).problems
    references = references_of(SET, names)
    found = {
        agent: SetEvaluation(SET, names, np.array([run["values"] for run in runs]), references)
        for agent, runs in groups.items()
    }
    lines, profiles = [], []
    for agent, one in found.items():
        runs, (low, high) = groups[agent], one.interval
        lines.append([
            agent, WORDS[agent], f"{runs[0]['steps']:,}" if runs[0]["steps"] else "", len(runs),
            f"{one.regret:.4f}", f"{low:.4f} to {high:.4f}", one.over, f"{one.regrets.mean():.4f}",
            f"{lengths_over(one):.3f}",
            percent(one.optimal, 1), percent(one.illegal, 1),
            f"{np.median([run['seconds'] for run in runs]) / 60:,.1f}",
        ])  # fmt: skip
        profiles.append([agent, *(percent(share, 1) for share in one.profile())])
    better = []
    for agent, one in found.items():
        cells = []
        for other, rival in found.items():
            if agent == other:
                cells.append("")
                continue
            share, (low, high) = one.improvement_over(rival)
            cells.append(f"{percent(share, 1)} ({percent(low, 1)} to {percent(high, 1)})")
        better.append([agent, *cells])
    idle = [
        f"`{agent}` ({TRAINED[agent]:,} steps)"
        for agent in agents
        if agent in TRAINED and agent not in groups
    ]
    return [
        f"Regret on the {len(names):,} problems of `{SET}`, none of which is trained on: the share "
        "of the proven optimum's return that a plan falls short of. Interquartile mean, with the "
        "95 % interval of a stratified bootstrap over what the next column says. Each problem is "
        "played once, by the best actions. `L / optimum`: the same interquartile mean of the "
        "lengths of legal plans over the optimum. `minutes`: of processor time of a training "
        "(median; of the fused loop with the problems that it draws), of the planners for all "
        "problems. `docs/reporting.md` has the protocol.",
        table(["agent", "what", "steps", "seeds", "regret", "95 % interval", "over", "mean",
               "L / optimum", "optimal", "illegal", "minutes"], lines, left=2),
        *([f"Not run: {', '.join(idle)}."] if idle else []),
        "## Performance profile\n\nShare of the episodes with at most a given regret.",
        table(["agent", *(f"{x:g}" for x in THRESHOLDS)], profiles, left=1),
        "## Probability of improvement\n\nHow likely a run of the row has a smaller regret on a "
        "problem than one of the column.",
        table(["agent", *found], better, left=1),
    ]  # fmt: skip


def lengths_over(one: SetEvaluation) -> float:
    """Interquartile mean of L over that of the optimum, of all legal plans."""
    shares = 1 - one.regrets[one.regrets < 1]
    return float(trim_mean(1 / shares, 0.25))


@protocol.picture()
def picture(rows: list[Row]) -> Figure:
    """Draw learning curves of PPO and of the fused loop, and performance profiles."""
    groups = grouped(rows)
    kinds = {"ppo": f"regret on {VALIDATION}", "fused": "fused loop: length, bubble-free = 1"}
    drawn = {k: {a: x for a, x in groups.items() if a.startswith(k)} for k in kinds}
    drawn = {k: x for k, x in drawn.items() if x}
    count = len(drawn) + 1
    figure = blank_figure(4.8)
    *left, right = (
        figure.add_axes((x / WIDTH, 0.25, (WIDTH / count - 0.75) / WIDTH, 0.67))
        for x in (0.6 + k * WIDTH / count for k in range(count))
    )
    for axes, (kind, own) in zip(left, drawn.items(), strict=True):
        curves(axes, own)
        axes.set_title(kinds[kind], color=INK, size=11)
        axes.set_ylim(bottom=0 if kind == "ppo" else 1)
    references = references_of(SET, set_of(SET).problems)
    grid = np.geomspace(1e-3, 1, 60)
    for agent, runs in groups.items():
        values = np.array([run["values"] for run in runs])
        one = SetEvaluation(SET, set_of(SET).problems, values, references)
        right.plot(
            grid, one.profile(grid.tolist()), color=colour(agent), label=agent,
            linestyle="--" if agent == "even" else "-",
        )  # fmt: skip
    right.set_title(f"share of {SET} with at most this regret", color=INK, size=11)
    framed(right, "regret")
    right.set_ylim(0, 1.02)
    figure.legend(
        *right.get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False,
        fontsize=9, labelcolor=INK,
    )  # fmt: skip
    return figure


def curves(axes: Axes, groups: dict[str, list[Row]]) -> None:
    """Draw the median and the range of the curves of each agent's seeds."""
    found = {
        agent: spread([np.array(row["points"], dtype=float) for row in rows if row["points"]])
        for agent, rows in groups.items() if any(row["points"] for row in rows)
    }  # fmt: skip
    # The start, on a log axis: the same place for all.
    start = min((steps[steps > 0].min() for steps, *_ in found.values()), default=3.0) / 3
    for agent, (steps, middle, low, high) in found.items():
        steps = np.maximum(steps, start)
        axes.fill_between(steps, low, high, color=colour(agent), alpha=0.18, linewidth=0)
        axes.plot(steps, middle, color=colour(agent))
    framed(axes, "environment steps")
    if axes.get_ylim()[1] > 2:  # lengths
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.set_yticks(TICKS, [f"{x:g}" for x in TICKS])


def framed(axes: Axes, words: str) -> None:
    """Set up logarithmic axes."""
    axes.set_facecolor(TRACK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.set_xlabel(words, color=QUIET)
    axes.tick_params(color=QUIET, labelcolor=QUIET, labelsize=8.5)


def short(value: float) -> str:
    """Return a power of ten in few letters."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def colour(agent: str) -> str:
    """Return the colour of an agent: grey for what does not learn."""
    quiet = ("random", "even")
    return QUIET if agent in quiet else stage_colour(AGENTS.index(agent) - len(quiet))


if __name__ == "__main__":
    main(protocol)
