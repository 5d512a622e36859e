"""Plans on nodes that come and go: what moves, what rules and agents earn, and how fast it is.

    python benchmarks/elastic.py                                # all parts
    python benchmarks/elastic.py --only traces                  # of these parts

Published seconds are those of Tenplex (SOSP 2024), for GPT-3 on hosts of four devices. Parcae's
decisions on the p3 trace are replayed in our decision process: its prices of changes are others,
and it knows no checkpoints. Agents are on the page ``learners``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from benchmarks.framework import Case, Row, main, measurement, percent, table
from parenvs.agents.elastic.policies import RULES, optimal
from parenvs.agents.evaluation.statistics import bootstrap_interval, mean_known
from parenvs.instances import data_folder
from parenvs.tasks.elastic.movement import Costs, Degrees, State, fetched
from parenvs.tasks.elastic.problem import Course, Elastic, Moment, Policy, Run, follow, hindsight
from parenvs.tasks.elastic.problems import (
    ELASTIC_SETS,
    MEASURED,
    TRACES,
    elastic_rows,
    load_elastic,
)
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.shape import TransformerShape

PARTS = ("movement", "traces", "sets")
Known = dict[tuple[str, str], list[Row]]
"""Problem and method -> rows."""
GPT3 = {"1.3B": (24, 2048), "2.7B": (32, 2560), "6.7B": (32, 4096)}
"""Model -> layers and width; 2,048 tokens, 51,200 words."""
PUBLISHED = (
    ("data", Degrees(4, 2, 2), (8.5, 11.5, 24.2)),
    ("model", Degrees(8, 2, 1), (7.4, 10.5, 20.2)),
    ("pipeline", Degrees(4, 4, 1), (4.6, 5.9, 10.8)),
)
"""Axis, new degrees, and the seconds of Tenplex; all from T4 P2 D1."""
SEEDS = 16
"""Courses of each problem of the test set."""
DECISIONS = "gpt-1.5b-parcae-decisions.csv"
REPLAYED = {
    "throughput": "Parcae: highest throughput",
    "liveput_known": "Parcae: future known",
    "liveput_predicted": "Parcae: future predicted",
}


def gpt3(name: str) -> State:
    """The state of a GPT-3 model."""
    layers, hidden = GPT3[name]
    shape = TransformerShape(name, layers, hidden, 32, 2048, 51200, positions=2048)
    return State.of(HybridModel.of_shape(shape))


def movement(name: str, new: Degrees, published: float) -> Row:
    """The seconds of a change, published and predicted."""
    moved = fetched(gpt3(name), Degrees(4, 2, 1), new)
    return {"published": published, "seconds": Costs.fixed + Costs().moving(moved)}


def movement_cases() -> Iterator[Case]:
    """Published changes: predicted seconds."""
    for _, new, published in PUBLISHED:
        for name, seconds in zip(GPT3, published, strict=True):
            key = _key(f"GPT-3 {name} to {new}", "change")
            yield key, partial(movement, name, new, seconds)


def summary(run: Run) -> Row:
    """The figures of a run that are kept."""
    content = run.to_json()
    names = ("samples", "share_of_ideal", "changes", "stops", "state_lost", "change_seconds")
    return {key: content[key] for key in names}


def averaged(found: list[Row]) -> Row:
    """The means of some runs' figures."""
    means = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
    return means | {"courses": len(found)}


class Given:
    """Follows degrees that are given for each interval, such as another system's decisions.

    Degrees that are no candidate, or for which nodes are missing, are exchanged for the fastest
    plan with the same number of stages, or else the fastest of all.

    Args:
        degrees: of each interval.
        name: of the system.
    """

    def __init__(self, degrees: Sequence[Degrees], name: str) -> None:
        self.degrees, self.name = degrees, name

    def start(self, problem: Elastic) -> None:
        """See ``Policy``."""
        self.problem, self.exchanged = problem, 0
        self.number = {
            plan.degrees: k
            for k, plan in enumerate(problem.library.candidates, 1)
            if plan.spares == 0
        }

    def choose(self, moment: Moment, joined: int, left: int) -> int:
        """See ``Policy``."""
        fits, wanted = self.problem.fits(moment.nodes), self.degrees[moment.interval]
        if fits[self.number.get(wanted, -1)] and wanted in self.number:
            return self.number[wanted]
        self.exchanged += 1
        library = self.problem.library
        alike = [False, *(p.degrees.pipeline == wanted.pipeline for p in library.candidates)]
        allowed = fits & np.array(alike)
        return int(np.where(allowed if allowed.any() else fits, library.rate, -1.0).argmax())


def replayed() -> Iterator[Given]:
    """Parcae's decisions, minute by minute."""
    with (data_folder() / "measured" / DECISIONS).open(encoding="utf-8") as stream:
        minutes = list(csv.DictReader(stream))
    for key, name in REPLAYED.items():
        yield Given([Degrees(1, int(m[f"{key}_pp"]), int(m[f"{key}_dp"])) for m in minutes], name)


def _key(problem: str, method: str, seed: int = 0) -> Row:
    return {"problem": problem, "method": method, "seed": seed}


def trace_cases() -> Iterator[Case]:
    """Rules, replays and the hindsight optimum on the traces."""
    for trace in TRACES:
        for model in MEASURED:
            problem = load_elastic(trace, model)
            others = list(replayed()) if (trace, model) == ("p3", MEASURED[0]) else []
            policies: list[Policy] = [*(rule() for rule in RULES.values()), *others]
            for seed in range(1 if not problem.is_random else SEEDS):
                course = problem.drawn(seed)
                for policy in policies:
                    key = _key(problem.name, policy.name, seed)
                    yield key, lambda p=problem, c=course, x=policy: summary(follow(p, c, x))
                key = _key(problem.name, "hindsight", seed)
                yield key, lambda p=problem, c=course: summary(hindsight(p, c))


def mean(known: Known, problem: str, method: str, key: str) -> float:
    """Mean of a figure over courses; NaN if there is none."""
    found = [row[key] for row in known.get((problem, method), [])]
    return float(np.mean(found)) if found else float("nan")


def known_of(rows: list[Row]) -> Known:
    """The rows by problem and method."""
    known: Known = {}
    for row in rows:
        known.setdefault((row["problem"], row["method"]), []).append(row)
    return known


def trace_sections(known: Known) -> list[str]:
    """Return the share of hindsight of each policy on each trace and model."""
    names = [f"{trace}/{model}-measured" for trace in TRACES for model in MEASURED]
    methods = dict.fromkeys(method for problem, method in known if problem in names)
    lines = []
    for method in methods:
        shares = [
            mean(known, name, method, "samples") / mean(known, name, "hindsight", "samples")
            for name in names
        ]
        lines.append([method, *map(percent, shares)])
    return [
        "**Measured throughput on the traces.** Samples over those of hindsight, the best that "
        "anybody could earn who knew the whole trace.",
        table(["policy", *(name.removesuffix("-measured") for name in names)], lines),
    ]


@cache
def best_of(name: str) -> tuple[Any, float]:
    """The optimal policy of a problem, and the processor seconds it takes."""
    begin = time.process_time()
    return optimal(load_elastic(name)), time.process_time() - begin


def expected(name: str) -> Row:
    best, seconds = best_of(name)
    return {"value": best.value, "seconds": seconds}


def on_courses(name: str, run: Callable[[Any, Course], Run]) -> Row:
    """The mean figures of runs on the courses of a problem."""
    problem = load_elastic(name)
    return averaged([summary(run(problem, problem.drawn(seed))) for seed in range(SEEDS)])


def set_cases() -> Iterator[Case]:
    """The optimal policy, the hindsight optimum and the rules on the test set."""
    for member in elastic_rows(ELASTIC_SETS[2]):
        name = f"{ELASTIC_SETS[2]}/{member}"
        yield _key(name, "expected"), partial(expected, name)
        runs: dict[str, Callable[[Any, Course], Run]] = {
            rule: (lambda p, c, make=make: follow(p, c, make())) for rule, make in RULES.items()
        }
        runs["optimal"] = lambda p, c, name=name: follow(p, c, best_of(name)[0])
        runs["hindsight"] = hindsight
        for method, run in runs.items():
            yield _key(name, method), partial(on_courses, name, run)


def set_sections(known: Known) -> list[str]:
    """Return the gaps to the optimal policy on the same courses."""
    names = [f"{ELASTIC_SETS[2]}/{member}" for member in elastic_rows(ELASTIC_SETS[2])]
    families = np.array([name.split("/")[1].split("-")[0] for name in names])
    best = np.array([mean(known, name, "optimal", "samples") for name in names])
    lines = []
    for method in RULES:
        values = [mean(known, name, method, "samples") for name in names]
        gaps = (1.0 - np.array(values) / best)[None]
        if not np.isnan(gaps).any():
            low, high = bootstrap_interval(mean_known, gaps, strata=families)
            lines.append([method, percent(mean_known(gaps)),
                          f"{percent(low)} to {percent(high)}", percent(gaps.max())])  # fmt: skip
    return [
        f"**Gap to the optimal policy on the {len(names)} chains of {ELASTIC_SETS[2]}**, on the "
        f"same {SEEDS} courses of each: mean, 95 % interval over problems, worst.",
        table(["policy", "gap", "interval", "worst"], lines),
    ]


@measurement(
    title="Plans on nodes that come and go",
    key="problem method seed",
    among={"only": PARTS},
)
def elastic(only: tuple[str, ...] = PARTS) -> Iterator[Case]:
    parts = {"movement": movement_cases, "traces": trace_cases, "sets": set_cases}
    for part in only:
        yield from parts[part]()


@elastic.page
def page(rows: list[Row]) -> list[str]:
    known = known_of(rows)
    off = [row["seconds"] / row["published"] - 1 for row in rows if row["method"] == "change"]
    return [
        f"Predicted seconds of the {len(off)} changes that Tenplex publishes are {min(off):+.0%} "
        f"to {max(off):+.0%} off; three constants were fitted to them.",
        *trace_sections(known),
        *set_sections(known),
    ]


if __name__ == "__main__":
    main(elastic)
