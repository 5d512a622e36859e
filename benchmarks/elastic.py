"""Plans on nodes that come and go: what moves, what rules and agents earn, and how fast it is.

    python benchmarks/elastic.py                                # all but agents
    python benchmarks/elastic.py --only traces                  # of these parts
    python benchmarks/elastic.py --only agents --agents ppo taught --seeds 0 1 2 3 4
    python benchmarks/elastic.py --only speed --again

Published seconds are those of Tenplex (SOSP 2024), for GPT-3 on hosts of four devices. Parcae's
decisions on the p3 trace are replayed in our decision process: its prices of changes are others,
and it knows no checkpoints. Agents are trained on ``elastic-train``, never on a trace or on a
problem of the test set; a training and what it earns everywhere is one row. ``taught`` is no
reinforcement learning: it imitates the optimal policies of training chains. The weights of the PPO
and of the taught network that are best on ``elastic-validation`` go to ``elastic-ppo.npz`` and
``elastic-taught.npz``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import (
    Case,
    Row,
    Rows,
    main,
    measurement,
    percent,
    progress,
    table,
)
from parenvs.agents.elastic.exact import optimal
from parenvs.agents.elastic.rules import RULES, Given
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.bench.play import batch_play, make, rate
from parenvs.files import replacing
from parenvs.shipped import data_folder
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.load import ELASTIC_SETS, MEASURED, TRACES, elastic_rows, load_elastic
from parenvs.tasks.elastic.movement import Degrees, move
from parenvs.tasks.elastic.references import hindsight
from parenvs.tasks.elastic.run import Policy, Run, follow
from parenvs.tasks.elastic.state import State
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.shipped import shapes

PARTS = ("movement", "traces", "sets", "speed", "agents")
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
SPEED = (f"{ELASTIC_SETS[2]}/bulk-gpt-1.5b-000", ELASTIC_SETS[0], "p3")
"""Whose steps a second are measured."""
DECISIONS = "gpt-1.5b-parcae-decisions.csv"
REPLAYED = {
    "throughput": "Parcae: highest throughput",
    "liveput_known": "Parcae: future known",
    "liveput_predicted": "Parcae: future predicted",
}
AGENTS = {"ppo": 150_000, "recurrent-ppo": 60_000, "taught": 250_000}
"""Agents, and the environment steps of a training."""
TAUGHT = 32
"""Chains of the training set whose optimal policies teach."""
KEPT = ("ppo", "taught")
"""Agents whose weights are kept: of the seed that is best on the validation set."""
RIVAL = "look-ahead"
VALIDATED = 64
"""Episodes on ``elastic-validation`` that choose the weights that are kept."""


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


def mean(known: Known, problem: str, method: str, key: str, seed: int | None = None) -> float:
    """Mean of a figure over seeds, or that of one seed; NaN if there is none."""
    found = [row[key] for row in known.get((problem, method), []) if seed in (None, row["seed"])]
    return float(np.mean(found)) if found else float("nan")


def seeds_of(known: Known, agent: str) -> list[int]:
    """Seeds of the trainings of an agent."""
    return sorted(row["seed"] for row in known.get((ELASTIC_SETS[0], agent), []))


def known_of(rows: list[Row]) -> Known:
    """The rows, and what trained agents earn on each problem."""
    known: Known = {}
    for row in rows:
        known.setdefault((row["problem"], row["method"]), []).append(row)
        for name, (value, share) in row.get("earned", {}).items():
            ideal = (
                load_elastic(*name.removesuffix("-measured").split("/")).ideal
                if name.endswith("-measured")
                else 1.0
            )
            nothing = dict.fromkeys(("changes", "stops", "state_lost", "change_seconds"), np.nan)
            found = {"value": value, "share_of_ideal": share, "samples": value * ideal}
            earned = {**_key(name, row["method"], row["seed"]), **found, **nothing}
            known.setdefault((name, row["method"]), []).append(earned)
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
    trained = [agent for agent in AGENTS if seeds_of(known, agent)]
    methods = [*RULES, *trained, "optimal", "hindsight"]
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
        seeds: list[Any] = seeds_of(known, method) if method in AGENTS else [None]
        values = [[mean(known, name, method, "value", seed) for name in names] for seed in seeds]
        found = 1.0 - np.array(values).reshape(len(seeds), len(names)) / best
        if found.size and not np.isnan(found).any():
            low, high = bootstrap_interval(interquartile_mean, found, strata=families)
            over = "seeds" if len(found) > 1 else "problems"
            gaps.append([method, percent(interquartile_mean(found)),
                         f"{percent(low)} to {percent(high)}", over,
                         percent(found.mean(axis=0).max())])  # fmt: skip
    return [
        f"## Chains of {ELASTIC_SETS[2]}",
        f"Mean returns over {SEEDS} courses of each problem, all policies on the same; last what "
        "value iteration says that the optimal policy earns.",
        table(["family and model", *methods, "optimal, expected"], lines),
        "Gap to the optimal policy on the same courses: interquartile mean, 95 % interval over "
        "problems or seeds, worst problem.",
        table(["policy", "gap", "interval", "over", "worst"], gaps, (0, 3)),
    ]


def _whole(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0f}"


def _four(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4f}"


def speed_cases() -> Iterator[Case]:
    """Steps a second of the native batch, processor time."""
    for instance in SPEED:
        for count in (64, 1024):
            for copy in (True, False):
                key = _key(instance, f"speed, copy={copy}", count)
                yield key, partial(speed, {"instance": instance, "copy": copy}, count)


def speed(kwargs: Row, count: int) -> Row:
    """Steps a second, resets among them."""
    return {"steps_per_s": round(rate(*batch_play(make(("ElasticPlan-v0", kwargs), count)), 1.0))}


def speed_sections(rows: list[Row]) -> list[str]:
    """Steps a second of the native batch."""
    lines = [
        [row["problem"], row["seed"], "yes" if row["method"].endswith("True") else "no",
         f"{row['steps_per_s']:,}"]
        for row in rows
        if row["method"].startswith("speed")
    ]  # fmt: skip
    if not lines:
        return []
    return [
        "## Steps a second of the native batch",
        "Processor time of one core, resets among them; on a busy machine a step takes up to twice "
        "as long.",
        table(["instance", "environments", "copies", "steps/s"], lines),
    ]


@cache
def lessons() -> tuple[Any, float]:
    """Optimal policies of training chains, solved once for all seeds, and the seconds of it."""
    from parenvs.agents.learning.elastic.teach import Lessons

    begin = time.process_time()
    members = list(elastic_rows(ELASTIC_SETS[0]))
    some = members[:: max(len(members) // TAUGHT, 1)]
    found = Lessons(
        [load_elastic(f"{ELASTIC_SETS[0]}/{x}") for x in some],
        lambda problem: progress(f"{problem.name}: solved"),
    )
    return found, time.process_time() - begin


def learner_of(agent: str, seed: int, steps: int) -> tuple[Any, float]:
    """Train an agent; the processor seconds that it took, lessons among them."""
    from parenvs.agents.learning.elastic.learnt import Learnt
    from parenvs.agents.learning.elastic.teach import teach
    from parenvs.agents.learning.elastic.train import train

    before = lessons()[1] if agent == "taught" else 0.0
    begin = time.process_time()
    if agent == "taught":
        found: Any = Learnt(teach(lessons()[0], seed, steps).arrays())
    else:
        found = train(agent, seed, steps)
    return found, time.process_time() - begin + before


def trained(rows: Rows, folder: Path, agent: str, seed: int, steps: int) -> Row:
    """Train an agent, and play the test set and the traces with it; the best weights are kept."""
    from parenvs.agents.learning.elastic.train import all_returns, returns, weights

    tests = [load_elastic(f"{ELASTIC_SETS[2]}/{x}") for x in elastic_rows(ELASTIC_SETS[2])]
    groups = [tests, *([load_elastic(trace, model) for model in MEASURED] for trace in TRACES)]
    learner, seconds = learner_of(agent, seed, steps)
    valid = float(returns(learner, range(VALIDATED), instance=ELASTIC_SETS[1])["value"].mean())
    earned = {}
    for problems in groups:
        courses = range(SEEDS if problems[0].is_random else 1)
        found = all_returns(learner, problems, courses)
        for problem, figures in zip(problems, found, strict=True):
            earned[problem.name] = [float(figures[key].mean()) for key in ("value", "share")]
    others = rows.of(problem=ELASTIC_SETS[0], method=agent)
    if agent in KEPT and valid > max((row["validation"] for row in others), default=-np.inf):
        with replacing(folder / f"elastic-{agent}.npz") as stream:
            np.savez(stream, **(weights(learner) if agent == "ppo" else learner.weights))
    return {"steps": steps, "seconds": round(seconds, 1), "validation": valid, "earned": earned}


def agent_sections(known: Known) -> list[str]:
    """What was trained, and how far it is from rules, hindsight and the optimal policy."""
    if not any(seeds_of(known, agent) for agent in AGENTS):
        return []
    names = {
        "traces never trained on": [f"{t}/{m}-measured" for t in TRACES for m in MEASURED],
        "test chains": [f"{ELASTIC_SETS[2]}/{member}" for member in elastic_rows(ELASTIC_SETS[2])],
    }
    lines = []
    for agent in AGENTS:
        own = known.get((ELASTIC_SETS[0], agent), [])
        if own:
            lines.append([
                agent, len(own), f"{own[0]['steps']:,}",
                f"{np.mean([row['seconds'] for row in own]):.0f}",
                ", ".join(f"{x['validation']:.4f}" for x in sorted(own, key=itemgetter("seed"))),
            ])  # fmt: skip
    parts = [
        "## Agents",
        f"Trained on {ELASTIC_SETS[0]}, which has none of the test chains and no trace; "
        "environment steps, processor seconds of a training, and the mean return on "
        f"{ELASTIC_SETS[1]} by seed.",
        table(["agent", "seeds", "steps", "seconds", "validation"], lines, 1),
    ]
    for where, problems in names.items():
        against = "optimal" if where == "test chains" else "hindsight"
        best = np.array([mean(known, name, against, "value") for name in problems])
        kinds = np.array([name.removeprefix(f"{ELASTIC_SETS[2]}/").split("-")[0].split("/")[0]
                          for name in problems])  # fmt: skip
        ahead = np.array([mean(known, name, RIVAL, "value") for name in problems])
        lines = []
        for method in (*RULES, *AGENTS):
            seeds: list[Any] = seeds_of(known, method) if method in AGENTS else [None]
            if not seeds:
                continue
            values = np.array(
                [[mean(known, n, method, "value", s) for n in problems] for s in seeds]
            )
            gaps, more = 1.0 - values / best, values / ahead - 1.0
            low, high = bootstrap_interval(interquartile_mean, gaps, strata=kinds)
            lines.append([
                method, len(seeds), percent(interquartile_mean(gaps)),
                f"{percent(low)} to {percent(high)}", percent(gaps.mean()),
                percent(gaps.mean(axis=0).max()), percent(more.mean()),
                f"{(more.mean(axis=0) > 0).sum()} of {len(problems)}",
            ])  # fmt: skip
        parts += [
            f"Gap on {where} to {'the optimal policy' if against == 'optimal' else 'hindsight'} on "
            "the same courses: interquartile mean with its 95 % interval (over seeds; of one seed, "
            f"over problems), mean, worst problem; mean return more than that of {RIVAL}, and on "
            "how many problems.",
            table(["policy", "seeds", "gap", "interval", "mean", "worst", f"over {RIVAL}",
                   "better on"], lines, 1),
        ]  # fmt: skip
    return parts


@measurement(
    key="problem method seed",
    among={"only": PARTS, "agents": AGENTS},
    about={"scale": "factor of the steps, for a try"},
)
def elastic(
    rows: Rows,
    folder: Path,
    only: tuple[str, ...] = PARTS[:-1],
    agents: tuple[str, ...] = tuple(AGENTS),
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    scale: float = 1.0,
) -> Iterator[Case]:
    parts = {"traces": trace_cases, "sets": set_cases, "speed": speed_cases}
    for part in only:
        yield from parts[part]() if part in parts else ()
    for seed in seeds if "agents" in only else ():
        for agent in agents:
            steps = max(int(AGENTS[agent] * scale), 1)
            key = _key(ELASTIC_SETS[0], agent, seed)
            yield key, partial(trained, rows, folder, agent, seed, steps)


@elastic.page
def page(rows: list[Row]) -> list[str]:
    known = known_of(rows)
    return [
        *movement_sections(),
        *trace_sections(known),
        *set_sections(known),
        *agent_sections(known),
        *speed_sections(rows),
    ]


if __name__ == "__main__":
    main(elastic)
