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
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    main,
    measurement,
    percent,
    table,
)
from parenvs.agents.elastic.policies import RULES, Given, optimal
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.shipped import data_folder
from parenvs.tasks.elastic.movement import Degrees, State, move
from parenvs.tasks.elastic.problem import Course, Policy, Run, follow, hindsight
from parenvs.tasks.elastic.problems import (
    ELASTIC_SETS,
    MEASURED,
    TRACES,
    elastic_rows,
    load_elastic,
)
from parenvs.tasks.hybrid.model import HybridModel, shapes
from parenvs.tasks.hybrid.shape import TransformerShape

PARTS = ("movement", "traces", "sets")
Known = dict[tuple[str, str], list[Row]]
"""Problem and method -> rows."""
GPT3 = {"1.3B": (24, 2048), "2.7B": (32, 2560), "6.7B": (32, 4096)}
"""Model -> layers and width; 2,048 tokens, 51,200 words."""
PUBLISHED = (
    ("data", Degrees(4, 2, 2), (8.5, 11.5, 24.2), (27.2, 39.0, 96.1)),
    ("model", Degrees(8, 2, 1), (7.4, 10.5, 20.2), (20.4, 28.5, 74.0)),
    ("pipeline", Degrees(4, 4, 1), (4.6, 5.9, 10.8), (None, None, None)),
)
"""Axis, new degrees, and the seconds of Tenplex and of a central change; all from T4 P2 D1."""
SCHEDULES = {
    "BERT-large": ((4, 2, 2), (2, 2, 2), (2, 4, 1), (2, 6, 1)),
    "GPT-3 6.7B": ((2, 3, 2), (2, 6, 1), (4, 2, 1), (2, 4, 1)),
}
"""Published schedules on 20 devices: T, P, D."""
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


def movement_sections() -> list[str]:
    """Published changes: seconds and bytes."""
    rows = []
    for axis, new, seconds, central in PUBLISHED:
        for name, told, by_host in zip(GPT3, seconds, central, strict=True):
            ours = [move(gpt3(name), Degrees(4, 2, 1), new, way).seconds()
                    for way in ("tenplex", "central", "minimal")]  # fmt: skip
            error = percent(ours[0] / told - 1, 0)
            rows.append([axis, name, str(new), told, f"{ours[0]:.1f}", error, by_host or "",
                         f"{ours[1]:.1f}", f"{ours[2]:.1f}"])  # fmt: skip
    seconds_table = table(
        ["axis", "GPT-3", "to", "published s", "ours s", "error", "published central s",
         "ours central s", "ours minimal s"], rows, 3,
    )  # fmt: skip
    bert = State.of(HybridModel.of_shape(replace(shapes()["bert-large"], tied=False)))
    rows = []
    for model, schedule in SCHEDULES.items():
        state = bert if model == "BERT-large" else gpt3("6.7B")
        for old, new in pairwise(schedule):
            pair = Degrees(*old), Degrees(*new)
            fetched, sources, free = (
                move(state, *pair, way, 4, 5, fixed_hosts=fixed)
                for way, fixed in (("tenplex", False), ("minimal", True), ("minimal", False))
            )
            figures = (fetched.bytes, fetched.network_bytes, fetched.egress_bytes,
                       sources.egress_bytes, free.network_bytes, free.egress_bytes)  # fmt: skip
            rows.append([model, *map(str, pair), *(f"{x / 1e9:.2f}" for x in figures)])
    bytes_table = table(
        ["model", "from", "to", "all", "network", "egress", "egress, best sources",
         "network, best hosts", "egress, best hosts"], rows, 3,
    )  # fmt: skip
    return [
        "## Seconds of Tenplex's changes, from T4 P2 D1",
        "The three constants were fitted to the nine published seconds, so these errors are in "
        "sample. A central change is priced by the same constants, which were not fitted to it: it "
        "takes two to three times as long as they say.",
        seconds_table,
        "## GB of the published schedules, 20 devices on 5 hosts",
        "Every rank fetches its shard from replica 0 (all, network, egress of the busiest host); "
        "then with the best replicas to read from, ranks in order on the hosts; then with the best "
        "hosts, too. Of 32 layers 3 stages have 10, 12 and 10, and 6 have 5, 5, 6, 6, 5 and 5: "
        "embedding and head count as a layer each.",
        bytes_table,
    ]


def summary(run: Run) -> Row:
    """The figures of a run that are kept."""
    content = run.to_json()
    names = ("samples", "share_of_ideal", "changes", "stops", "state_lost", "change_seconds")
    return {key: content[key] for key in names} | {"value": run.value}


def averaged(found: list[Row]) -> Row:
    """The means of some runs' figures."""
    means = {key: float(np.mean([row[key] for row in found])) for key in found[0]}
    return means | {"courses": len(found)}


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
                yield (
                    _key(problem.name, "hindsight", seed),
                    lambda p=problem, c=course: summary(hindsight(p, c)),
                )


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
    """One table for each trace and model."""
    parts = ["## Measured throughput on the traces"]
    for trace in TRACES:
        for model in MEASURED:
            name = f"{trace}/{model}-measured"
            methods = [method for problem, method in known if problem == name]
            best = mean(known, name, "hindsight", "samples")
            lines = [
                [method, f"{mean(known, name, method, 'samples'):,.0f}",
                 percent(mean(known, name, method, "share_of_ideal")),
                 percent(mean(known, name, method, "samples") / best),
                 *(_whole(mean(known, name, method, key))
                   for key in ("changes", "stops", "state_lost")),
                 _whole(mean(known, name, method, "change_seconds") / 60)]
                for method in sorted(methods, key=lambda m: mean(known, name, m, "samples"))
            ]  # fmt: skip
            head = ["policy", "samples", "of the ideal", "of hindsight", "changes", "stops",
                    "state lost", "minutes of changes"]  # fmt: skip
            parts += [f"### {name}", table(head, lines)]
    return parts


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
    """Returns by family and model, and gaps to the optimal policy on the same courses."""
    methods = [*RULES, "optimal", "hindsight"]
    members = elastic_rows(ELASTIC_SETS[2])
    names = {f"{ELASTIC_SETS[2]}/{member}": member.rsplit("-", 1)[0] for member in members}
    groups = dict.fromkeys(names.values())
    lines = []
    for group in groups:
        inside = [name for name, of in names.items() if of == group]
        line = [np.mean([mean(known, name, m, "value") for name in inside]) for m in methods]
        told = np.mean([mean(known, name, "expected", "value") for name in inside])
        lines.append([group, *(_four(x) for x in line), _four(told)])
    gaps = []
    families = np.array([group.split("-")[0] for group in names.values()])
    best = np.array([mean(known, name, "optimal", "value") for name in names])
    for method in methods[:-2]:
        values = [mean(known, name, method, "value") for name in names]
        found = (1.0 - np.array(values) / best)[None]
        if not np.isnan(found).any():
            low, high = bootstrap_interval(interquartile_mean, found, strata=families)
            gaps.append([method, percent(interquartile_mean(found)),
                         f"{percent(low)} to {percent(high)}", percent(found.max())])  # fmt: skip
    return [
        f"## Chains of {ELASTIC_SETS[2]}",
        f"Mean returns over {SEEDS} courses of each problem, all policies on the same; last what "
        "value iteration says that the optimal policy earns.",
        table(["family and model", *methods, "optimal, expected"], lines),
        "Gap to the optimal policy on the same courses: interquartile mean, 95 % interval over "
        "problems, worst problem.",
        table(["policy", "gap", "interval", "worst"], gaps),
    ]


def _whole(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0f}"


def _four(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}"


@measurement(
    title="Plans on nodes that come and go",
    key="problem method seed",
    among={"only": PARTS},
)
def elastic(
    only: tuple[str, ...] = PARTS,
) -> Iterator[Case]:
    parts = {"traces": trace_cases, "sets": set_cases}
    for part in only:
        yield from parts[part]() if part in parts else ()


@elastic.page
def page(rows: list[Row]) -> list[str]:
    known = known_of(rows)
    return [
        *movement_sections(),
        *trace_sections(known),
        *set_sections(known),
    ]


if __name__ == "__main__":
    main(elastic)
