"""Policies on hundreds of windows of public traces, as shares of hindsight with intervals.

    python benchmarks/elastic_windows.py                         # all parts, some minutes
    python benchmarks/elastic_windows.py --only windows          # of these parts

``drawn`` are fresh courses of all families of chains and regimes, none of them of the bank;
``chains`` those of ``elastic-test``. ``out`` leaves one trace out: the two constants of the rule of
column 0 that are best on the windows of the other trace play this one's.
``prior`` and ``rule`` are the grids on the bank of training jobs by which the constants of
``look-ahead`` and of column 0 of ``ElasticPlan-v1`` are chosen; nothing is chosen on a trace.
Windows of a trace begin every ten minutes and are two hours long, so neighbours share events:
intervals resample blocks of twelve neighbours (a circular block bootstrap), and the shares of one
trace rest on few independent hours all the same. Hindsight may have checkpoints written by choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from parenvs.agents.elastic.rules import POLICIES, LookAhead, play
from parenvs.agents.elastic.trained import Trained
from parenvs.agents.names import LEARNED
from parenvs.agents.planners import solve
from parenvs.datasets.elastic.drawing import FAMILIES
from parenvs.datasets.elastic.named import COUNT, drawn_by, of_bank
from parenvs.tasks.elastic import choice
from parenvs.tasks.elastic.choice import CAUTION
from parenvs.tasks.elastic.course import Recorded
from parenvs.tasks.elastic.library import CHECKPOINT
from parenvs.tasks.elastic.load import (
    ELASTIC_SETS,
    MEASURED,
    STRIDE,
    TRACES,
    WINDOW,
    WINDOWS,
    elastic_rows,
    load_elastic,
    windows,
)
from parenvs.tasks.elastic.outlook import HORIZON
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.references import Known, hindsight, known_of

PARTS = ("prior", "rule", "windows", "drawn", "chains", "out")
RATES, WEIGHTS = (0.0015, 0.003, 0.006), (0, 300, 1200, 4800)
"""Priors of the grid: departures of a node in an interval, and intervals of a node that count."""
CAUTIONS, HORIZONS = (0.0, 0.3, 0.6, 1.0), (5, 10, 15, 20)
EACH = 8
"""Jobs of the bank of each family and model, for the prior."""
PLAYED = 1008
"""Jobs of the bank that the rule of column 0 plays, drawn by a seed."""
FORMER = {"ppo": "PPO of an older version", "taught": "taught network of an older version"}
"""Methods of rows that are kept, which were trained on chains in ``ElasticPlan-v0`` -> names."""
COLUMN, BARE = "column 0 of ElasticPlan-v1", "column 0, no checkpoints by choice"
ALONE = "hindsight, no checkpoints by choice"
SAMPLES = 2000
"""Resamples of a bootstrap."""


@cache
def trained_on() -> list[tuple[Elastic, Known]]:
    """The jobs of the bank on which the prior is chosen, equally spaced."""
    numbers = range(0, COUNT, COUNT // EACH)
    return [of_bank(n, family, model) for family in FAMILIES for model in MEASURED for n in numbers]


def looked(rate: float, weight: float) -> Row:
    """The mean share of hindsight of ``look-ahead`` with a prior, on the bank."""
    shares = [
        play(problem, problem.course(), LookAhead(prior=(rate * weight, weight))).total / known.best
        for problem, known in trained_on()
    ]
    return {"share": float(np.mean(shares)), "worst": min(shares), "jobs": len(shares)}


def by_column(count: int, save: bool = True, **arguments: Any) -> np.ndarray:
    """Shares of hindsight of the rule of column 0, (count,), one episode of each environment."""
    env: Any = gym.make_vec(
        "ElasticPlan-v1", count, "vector_entry_point", autoreset_mode="SameStep", **arguments
    )
    observation, _ = env.reset(seed=0)
    shares, done = np.zeros(count), np.zeros(count, dtype=bool)
    while not done.all():
        scores = np.where(observation["action_mask"], observation["actions"][..., 0], -np.inf)
        scores[:, -1] = scores[:, -1] if save else -np.inf
        observation, _, over, _, infos = env.step(scores.argmax(axis=1))
        new = over & ~done
        if new.any():
            last = infos["final_info"]
            shares[new] = np.where(last["_cost"], last["best_known"] / last["cost"], 0.0)[new]
        done |= over
    return shares


def ruled(caution: float, horizon: int) -> Row:
    """The mean share of hindsight of the rule of column 0, on the bank."""
    with patch.multiple(choice, CAUTION=caution, HORIZON=horizon):
        shares = by_column(PLAYED)
    return {"share": float(shares.mean()), "worst": float(shares.min()), "jobs": PLAYED}


@cache
def job(name: str) -> tuple[Elastic, Known]:
    """A window, and what is earned on it."""
    problem = load_elastic(f"{WINDOWS}/{name}")
    return problem, known_of(problem)


def earned(method: str) -> Callable[[Elastic], float]:
    """What a method earns on a window."""
    if method == ALONE:
        return lambda problem: (
            hindsight(replace(problem, checkpoints=False), problem.course()).total
        )
    if method == LEARNED:
        return lambda problem: solve(problem, LEARNED).report.total
    return lambda problem: play(problem, problem.course(), POLICIES[method]()).total


def on_windows(family: str, method: str) -> Row:
    """Shares of hindsight on the windows of a trace and model."""
    names = [name for name in windows() if name.startswith(f"{family}-")]
    if method in (COLUMN, BARE):
        settings = {"instance": WINDOWS, "family": family, "order": "sequential"}
        shares = by_column(len(names), method == COLUMN, **settings)
    else:
        earns = earned(method)
        shares = np.array([earns(job(name)[0]) / job(name)[1].best for name in names])
    return {"shares": [round(float(x), 6) for x in shares]}


METHODS = (*POLICIES, LEARNED, COLUMN, BARE, ALONE)
DRAWS, COURSES = 6, 1
"""Fresh courses of each family and model, and courses of each chain of ``elastic-test``."""


@cache
def fresh(family: str, model: str) -> list[tuple[Elastic, Known]]:
    """Fresh courses of a family, each with its hindsight."""
    rng = np.random.default_rng([FAMILIES.index(family), MEASURED.index(model)])
    drawn = (drawn_by(rng, family, model) for _ in range(DRAWS))
    problems = [replace(problem, checkpoints=True) for problem in drawn]
    return [(problem, known_of(problem)) for problem in problems]


@cache
def chained(model: str) -> list[tuple[Elastic, Known]]:
    """Courses of the chains of a model, each with its hindsight."""
    found = []
    for name, row in elastic_rows(ELASTIC_SETS[2]).items():
        chain = load_elastic(f"{ELASTIC_SETS[2]}/{name}")
        for seed in range(COURSES if row.model == model else 0):
            course = chain.drawn(seed)
            source = Recorded(name, course)
            problem = replace(chain, source=source, name="", checkpoints=True)
            found.append((problem, known_of(problem)))
    return found


def on_jobs(jobs: Sequence[tuple[Elastic, Known]], method: str) -> Row:
    """Shares of hindsight on jobs whose courses are recorded."""
    if method in (COLUMN, BARE):
        policy = Trained(COLUMN, partial(best_of_column, method == COLUMN))
        earns = lambda problem: play(problem, problem.course(), policy).total  # noqa: E731
    else:
        earns = earned(method)
    return {"shares": [round(earns(problem) / known.best, 6) for problem, known in jobs]}


def best_of_column(save: bool, observation: Any, mask: np.ndarray) -> int:
    """The action of the highest score in column 0."""
    mask = mask & (save | (np.arange(len(mask)) < CHECKPOINT))
    return int(np.where(mask, observation["actions"][:, 0], -np.inf).argmax())


def tried(trace: str, caution: float, horizon: int) -> Row:
    """Shares of hindsight on all windows of a trace by the rule of column 0, with constants."""
    shares: dict[str, list[float]] = {}
    with patch.multiple(choice, CAUTION=caution, HORIZON=horizon):
        for model in MEASURED:
            shares[model] = on_windows(f"{trace}-{model}", COLUMN)["shares"]
    return {"tried": shares}


@measurement(
    key="part family method",
    title="Windows of public traces",
    among={"only": PARTS},
    about={"only": "parts (default: all)"},
)
def elastic_windows(only: tuple[str, ...] = PARTS) -> Iterator[Case]:
    if "prior" in only:
        for weight in WEIGHTS:
            for rate in RATES if weight else RATES[:1]:
                key = {"part": "prior", "family": f"{rate:g}", "method": f"{weight}"}
                yield key, partial(looked, rate, weight)
    if "rule" in only:
        for horizon in HORIZONS:
            for caution in CAUTIONS:
                key = {"part": "rule", "family": f"{caution:g}", "method": f"{horizon}"}
                yield key, partial(ruled, caution, horizon)
    if "windows" in only:
        for trace in TRACES:
            for model in MEASURED:
                for method in METHODS:
                    key = {"part": "windows", "family": f"{trace}-{model}", "method": method}
                    yield key, partial(on_windows, f"{trace}-{model}", method)
    for model in MEASURED:
        for family in FAMILIES if "drawn" in only else ():
            for method in METHODS:
                key = {"part": "drawn", "family": f"{family}-{model}", "method": method}
                yield key, lambda f=family, m=model, x=method: on_jobs(fresh(f, m), x)
        for method in METHODS if "chains" in only else ():
            key = {"part": "chains", "family": f"chains-{model}", "method": method}
            yield key, lambda m=model, x=method: on_jobs(chained(m), x)
    for trace in TRACES if "out" in only else ():
        for horizon in HORIZONS:
            for caution in CAUTIONS:
                key = {"part": "out", "family": f"{trace} {caution:g}", "method": f"{horizon}"}
                yield key, partial(tried, trace, caution, horizon)


def resampled(
    shares: np.ndarray, rng: np.random.Generator, block: int = WINDOW // STRIDE
) -> np.ndarray:
    """Means of resamples of blocks of neighbours, round the end, (SAMPLES,)."""
    blocks = -(-len(shares) // block)
    first = rng.integers(len(shares), size=(SAMPLES, blocks))
    index = (first[:, :, None] + np.arange(block)).reshape(SAMPLES, -1)[:, : len(shares)]
    index %= len(shares)
    return np.asarray(shares[index].mean(axis=1))


def cell(shares: Sequence[np.ndarray], block: int = WINDOW // STRIDE) -> str:
    """The mean over some traces and models, with its 95 % interval."""
    rng = np.random.default_rng(0)
    means = np.mean([resampled(x, rng, block) for x in shares], axis=0)
    low, high = np.percentile(means, [2.5, 97.5])
    mean = np.mean([x.mean() for x in shares])
    return f"{percent(mean)} ({100 * low:.1f} to {100 * high:.1f})"


def overall(shares: dict[str, np.ndarray]) -> float:
    """The mean of the means of traces and models."""
    return float(np.mean([x.mean() for x in shares.values()]))


def grid(rows: list[Row], part: str, words: str) -> str:
    """Mean shares of a grid on the bank."""
    found = {(x["family"], x["method"]): x["share"] for x in rows if x["part"] == part}
    columns = list(dict.fromkeys(key[0] for key in found))
    lines = [
        [method, *(f"{found[c, method]:.4f}" if (c, method) in found else "" for c in columns)]
        for method in dict.fromkeys(key[1] for key in found)
    ]
    return table([words, *columns], lines)


def drawn_sections(rows: list[Row]) -> list[str]:
    """Shares of hindsight on fresh courses of chains and regimes, and on the test chains."""
    of: dict[str, dict[str, list[np.ndarray]]] = {}
    for row in rows:
        if row["part"] in ("drawn", "chains"):
            kind = next(x for x in (*FAMILIES, "chains") if row["family"].startswith(f"{x}-"))
            shares = of.setdefault(row["method"], {}).setdefault(kind, [])
            shares.append(np.array(row["shares"]))
    if not of:
        return []
    kinds = [x for x in (*FAMILIES, "chains") if any(x in found for found in of.values())]
    lines = [
        [method, *(cell(found[x], 1) for x in kinds),
         cell([x for kind in kinds for x in found[kind]], 1),
         f"{min(x.min() for shares in found.values() for x in shares):.3f}"]
        for method, found in sorted(of.items(), key=lambda pair: mean_of(pair[1]))
        if found.keys() >= set(kinds)
    ]  # fmt: skip
    return [
        "## Chains and regimes",
        f"Mean share of hindsight on {DRAWS} fresh courses of each family and model, none of them "
        f"of the bank, and on {COURSES} of each chain of elastic-test (`chains`), with 95 % "
        "intervals over courses; last the mean of all columns, and the worst course.",
        table(["policy", *kinds, "all", "worst"], lines),
    ]


def mean_of(found: dict[str, list[np.ndarray]]) -> float:
    """The mean of the means of families and models."""
    return float(np.mean([x.mean() for shares in found.values() for x in shares]))


def out_sections(rows: list[Row]) -> list[str]:
    """What the rule of column 0 earns on a trace with the constants that are best on the other."""
    of: dict[str, dict[tuple[str, str], list[np.ndarray]]] = {}
    for row in rows:
        if row["part"] == "out":
            trace, caution = row["family"].split()
            shares = [np.array(x) for x in row["tried"].values()]
            of.setdefault(trace, {})[caution, row["method"]] = shares
    if of.keys() < set(TRACES):
        return []

    def mean(trace: str, key: tuple[str, str]) -> float:
        return float(np.mean([x.mean() for x in of[trace][key]]))

    ours = f"{CAUTION:g}", f"{HORIZON}"
    lines = []
    for trace in TRACES:
        (other,) = (x for x in TRACES if x != trace)
        for words, key in (
            (f"the best on {other}", max(of[other], key=partial(mean, other))),
            ("those of the bank", ours),
            (f"the best on {trace} itself", max(of[trace], key=partial(mean, trace))),
        ):
            lines.append([trace, words, *key, cell(of[trace][key])])
    return [
        "## One trace left out",
        "Mean share of hindsight of the rule of column 0 on all windows of a trace, with the "
        "weight of the risk and the intervals in which a change has to pay off that are best "
        "elsewhere.",
        table(["windows of", "constants", "weight", "intervals", "share"], lines, 2),
    ]


@elastic_windows.page
def page(rows: list[Row]) -> list[str]:
    of: dict[str, dict[str, np.ndarray]] = {}
    for row in rows:
        if row["part"] == "windows":
            of.setdefault(row["method"], {})[row["family"]] = np.array(row["shares"])
    families = [f"{trace}-{model}" for trace in TRACES for model in MEASURED]
    lines = [
        [FORMER.get(method, method), *(cell([shares[x]]) for x in families),
         cell([shares[x] for x in families]),
         f"{min(shares[x].min() for x in families):.3f}"]
        for method, shares in sorted(of.items(), key=lambda pair: overall(pair[1]))
        if shares.keys() >= set(families)
    ]  # fmt: skip
    counts = {x: sum(name.startswith(f"{x}-") for name in windows()) for x in families}
    parts = [
        "## Share of hindsight",
        f"Mean over windows ({', '.join(f'{n} of {x}' for x, n in counts.items())}) of {WINDOW} "
        f"minutes, {STRIDE} minutes after each other, with 95 % intervals of {SAMPLES:,} resamples "
        "of blocks of twelve neighbours; last the mean of the four columns, and the worst window. "
        "Hindsight knows the window beforehand and may have checkpoints written by choice; what "
        "it earns without them is a line of its own. `varuna` and `bamboo` play "
        "with the costs of their systems. Networks were trained on chains and drawn courses alone; "
        f"`{LEARNED}` is the one that ships.",
        table(["policy", *families, "all", "worst"], lines),
    ]
    parts += drawn_sections(rows) + out_sections(rows)
    if any(row["part"] == "prior" for row in rows):
        parts += [
            "## The prior of look-ahead, on the bank",
            "Mean share of hindsight. Columns: departures of a node in a minute; rows: "
            "node-minutes that count before any are seen.",
            grid(rows, "prior", "node-minutes"),
        ]
    if any(row["part"] == "rule" for row in rows):
        parts += [
            "## The rule of column 0, on the bank",
            "Mean share of hindsight. Columns: weight of the risk; rows: intervals in which a "
            "change has to pay off.",
            grid(rows, "rule", "intervals"),
        ]
    return parts


if __name__ == "__main__":
    main(elastic_windows)
