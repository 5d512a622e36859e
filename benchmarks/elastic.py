"""Plans on nodes that come and go: what moves, what rules and agents earn, and how fast it is.

    python benchmarks/elastic.py                                # all but agents
    python benchmarks/elastic.py --only traces                  # of these parts
    python benchmarks/elastic.py --only agents --agents ppo rainbow --seeds 0 1 2 3 4

Rows go to ``elastic.jsonl`` as they are known; what is there already is not done again. Published
seconds are those of Tenplex (SOSP 2024), for GPT-3 on hosts of four devices. Parcae's decisions on
the p3 trace are replayed in our decision process: its prices of changes are others, and it knows no
checkpoints. Agents are trained on ``elastic-train``, never on a trace or on a problem of the test
set; a training and what it earns everywhere is one row. ``taught`` is no reinforcement learning: it
imitates the optimal policies of training chains. The weights of the PPO and of the taught network
that are best on ``elastic-validation`` go to ``elastic-ppo.npz`` and ``elastic-taught.npz``.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from benchmarks.packed_order import Row, Rows
from parenvs.agents.elastic.exact import hindsight, optimal
from parenvs.agents.elastic.rules import RULES, Given
from parenvs.agents.evaluation.statistics import bootstrap_interval, interquartile_mean
from parenvs.files import replacing
from parenvs.shipped import data_folder
from parenvs.tasks.elastic.course import Course
from parenvs.tasks.elastic.load import ELASTIC_SETS, MEASURED, TRACES, elastic_rows, load_elastic
from parenvs.tasks.elastic.movement import Degrees, move
from parenvs.tasks.elastic.run import Policy, Run, follow
from parenvs.tasks.elastic.state import State
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.shipped import shapes

PARTS = ("movement", "traces", "sets", "speed", "agents")
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
AGENTS = {"ppo": 150_000, "rainbow": 40_000, "recurrent-ppo": 60_000, "taught": 250_000}
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


def trace_rows(rows: Rows) -> None:
    """Rules, replays and the hindsight optimum on the traces."""
    for trace in TRACES:
        for model in MEASURED:
            problem = load_elastic(trace, model)
            others = list(replayed()) if (trace, model) == ("p3", MEASURED[0]) else []
            policies: list[Policy] = [*(rule() for rule in RULES.values()), *others]
            for seed in range(1 if not problem.is_random else SEEDS):
                course = problem.drawn(seed)
                for policy in policies:
                    row = {"problem": problem.name, "method": policy.name, "seed": seed}
                    rows.add(row, lambda p=problem, c=course, x=policy: summary(follow(p, c, x)))
                rows.add({"problem": problem.name, "method": "hindsight", "seed": seed},
                         lambda p=problem, c=course: summary(hindsight(p, c)))  # fmt: skip
            progress(f"{problem.name}: done")


def mean(rows: Rows, problem: str, method: str, key: str, seed: int | None = None) -> float:
    """Mean of a figure over seeds, or that of one seed; NaN if there is none."""
    found = [
        row[key]
        for row in rows.rows.values()
        if (row["problem"], row["method"]) == (problem, method) and seed in (None, row["seed"])
    ]
    return float(np.mean(found)) if found else float("nan")


def seeds_of(rows: Rows, agent: str) -> list[int]:
    """Seeds of the trainings of an agent."""
    return sorted(row["seed"] for row in trainings(rows) if row["method"] == agent)


def trainings(rows: Rows) -> list[Row]:
    """Rows of trained agents."""
    return [
        row
        for row in rows.rows.values()
        if row["problem"] == ELASTIC_SETS[0] and row["method"] in AGENTS
    ]


def spread(rows: Rows) -> Rows:
    """Add to the rows in memory what the agents earn on each problem, for ``mean``."""
    for row in trainings(rows):
        for name, (value, share) in row["earned"].items():
            key = {"problem": name, "method": row["method"], "seed": row["seed"]}
            ideal = (
                load_elastic(*name.removesuffix("-measured").split("/")).ideal
                if name.endswith("-measured")
                else 1.0
            )
            nothing = dict.fromkeys(("changes", "stops", "state_lost", "change_seconds"), np.nan)
            rows.rows[Rows.key(key)] = {
                **key, "value": value, "share_of_ideal": share, "samples": value * ideal, **nothing
            }  # fmt: skip
    return rows


def trace_sections(rows: Rows) -> list[str]:
    """One table for each trace and model."""
    parts = ["## Measured throughput on the traces"]
    for trace in TRACES:
        for model in MEASURED:
            name = f"{trace}/{model}-measured"
            methods = dict.fromkeys(
                row["method"] for row in rows.rows.values() if row["problem"] == name
            )
            best = mean(rows, name, "hindsight", "samples")
            lines = [
                [method, f"{mean(rows, name, method, 'samples'):,.0f}",
                 percent(mean(rows, name, method, "share_of_ideal")),
                 percent(mean(rows, name, method, "samples") / best),
                 *(_whole(mean(rows, name, method, key))
                   for key in ("changes", "stops", "state_lost")),
                 _whole(mean(rows, name, method, "change_seconds") / 60)]
                for method in sorted(methods, key=lambda m: mean(rows, name, m, "samples"))
            ]  # fmt: skip
            head = ["policy", "samples", "of the ideal", "of hindsight", "changes", "stops",
                    "state lost", "minutes of changes"]  # fmt: skip
            parts += [f"### {name}", table(head, lines)]
    return parts


def set_rows(rows: Rows) -> None:
    """The optimal policy, the hindsight optimum and the rules on the test set."""
    for member in elastic_rows(ELASTIC_SETS[2]):
        problem = load_elastic(f"{ELASTIC_SETS[2]}/{member}")
        wanted = [*RULES, "optimal", "hindsight"]
        if all((problem.name, method, 0) in rows.rows for method in wanted):
            continue
        begin = time.process_time()
        best = optimal(problem)
        seconds = time.process_time() - begin
        rows.add({"problem": problem.name, "method": "expected", "seed": 0},
                 lambda p=best, s=seconds: {"value": p.value, "seconds": s})  # fmt: skip
        courses = [problem.drawn(seed) for seed in range(SEEDS)]
        runs: dict[str, Callable[[Course], Run]] = {
            name: (lambda c, p=problem, r=rule: follow(p, c, r())) for name, rule in RULES.items()
        }
        runs["optimal"] = lambda c, p=problem, o=best: follow(p, c, o)
        runs["hindsight"] = lambda c, p=problem: hindsight(p, c)
        for name, make in runs.items():
            row = {"problem": problem.name, "method": name, "seed": 0}
            rows.add(row, lambda m=make, each=courses: averaged([summary(m(c)) for c in each]))
        progress(f"{problem.name}: expected {best.value:.4f}")


def set_sections(rows: Rows) -> list[str]:
    """Returns by family and model, and gaps to the optimal policy on the same courses."""
    trained = [agent for agent in AGENTS if seeds_of(rows, agent)]
    methods = [*RULES, *trained, "optimal", "hindsight"]
    members = elastic_rows(ELASTIC_SETS[2])
    names = {f"{ELASTIC_SETS[2]}/{member}": member.rsplit("-", 1)[0] for member in members}
    groups = dict.fromkeys(names.values())
    lines = []
    for group in groups:
        inside = [name for name, of in names.items() if of == group]
        line = [np.mean([mean(rows, name, m, "value") for name in inside]) for m in methods]
        told = np.mean([mean(rows, name, "expected", "value") for name in inside])
        lines.append([group, *(_four(x) for x in line), _four(told)])
    gaps = []
    families = np.array([group.split("-")[0] for group in names.values()])
    best = np.array([mean(rows, name, "optimal", "value") for name in names])
    for method in methods[:-2]:
        seeds: list[Any] = seeds_of(rows, method) if method in AGENTS else [None]
        values = [[mean(rows, name, method, "value", seed) for name in names] for seed in seeds]
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


def speed_rows(rows: Rows) -> None:
    """Steps a second of the native batch, processor time; measured anew."""
    for instance in SPEED:
        for count in (64, 1024):
            for copy in (True, False):
                row = {"problem": instance, "method": f"speed, copy={copy}", "seed": count}
                rows.rows.pop(Rows.key(row), None)
                rows.add(row, lambda i=instance, n=count, c=copy: {
                    "steps_per_s": round(speed(i, n, c))})  # fmt: skip


def speed(instance: str, count: int, copy: bool, steps: int = 480) -> float:
    """Steps a second, resets among them."""
    env: Any = gym.make_vec("ElasticPlan-v0", num_envs=count, instance=instance, copy=copy)
    info = env.reset(seed=0)[1]
    spent = 0.0
    for _ in range(steps):
        plans = (info["action_mask"] * np.arange(64)).argmax(axis=1)
        begin = time.process_time()
        info = env.step(plans)[4]
        spent += time.process_time() - begin
    return steps * count / spent


def speed_sections(rows: Rows) -> list[str]:
    """Steps a second of the native batch."""
    lines = [
        [row["problem"], row["seed"], "yes" if row["method"].endswith("True") else "no",
         f"{row['steps_per_s']:,}"]
        for row in rows.rows.values()
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


def learners(chains: int = TAUGHT) -> Callable[[str, int, int], tuple[Any, float]]:
    """Return what trains an agent by name, seed and steps; it tells the processor seconds, too."""
    from parenvs.agents.learning.elastic.learnt import Learnt
    from parenvs.agents.learning.elastic.teach import Lessons, teach
    from parenvs.agents.learning.elastic.train import train

    known: list[tuple[Lessons, float]] = []  # solved once for all seeds

    def make(agent: str, seed: int, steps: int) -> tuple[Any, float]:
        if agent == "taught" and not known:
            begin = time.process_time()
            members = list(elastic_rows(ELASTIC_SETS[0]))
            some = members[:: max(len(members) // chains, 1)]
            lessons = Lessons(
                [load_elastic(f"{ELASTIC_SETS[0]}/{x}") for x in some],
                lambda problem: progress(f"{problem.name}: solved"),
            )
            known.append((lessons, time.process_time() - begin))
        begin = time.process_time()
        if agent != "taught":
            return train(agent, seed, steps), time.process_time() - begin
        lessons, spent = known[0]
        found = Learnt(teach(lessons, seed, steps).arrays())
        return found, time.process_time() - begin + spent

    return make


def agent_rows(rows: Rows, agents: list[str], seeds: list[int], scale: float, out: Path) -> None:
    """Train agents for each seed, and play the test set and the traces with them."""
    from parenvs.agents.learning.elastic.train import all_returns, returns, weights

    missing = [(seed, agent) for seed in seeds for agent in agents
               if (ELASTIC_SETS[0], agent, seed) not in rows.rows]  # fmt: skip
    tests = [
        load_elastic(f"{ELASTIC_SETS[2]}/{member}") for member in elastic_rows(ELASTIC_SETS[2])
    ]
    groups = [tests, *([load_elastic(trace, model) for model in MEASURED] for trace in TRACES)]
    make = learners()
    for seed, agent in missing:
        steps = max(int(AGENTS[agent] * scale), 1)
        learner, seconds = make(agent, seed, steps)
        valid = float(returns(learner, range(VALIDATED), instance=ELASTIC_SETS[1])["value"].mean())
        earned = {}
        for problems in groups:
            courses = range(SEEDS if problems[0].is_random else 1)
            for problem, found in zip(
                problems, all_returns(learner, problems, courses), strict=True
            ):
                earned[problem.name] = [float(found[key].mean()) for key in ("value", "share")]
        if agent in KEPT:
            best = max((row["validation"] for row in trainings(rows) if row["method"] == agent),
                       default=-np.inf)  # fmt: skip
            if valid > best:
                with replacing(out / f"elastic-{agent}.npz") as stream:
                    np.savez(stream, **(weights(learner) if agent == "ppo" else learner.weights))
        row = {"problem": ELASTIC_SETS[0], "method": agent, "seed": seed}
        rows.add(row, lambda n=steps, s=seconds, v=valid, e=earned: {
            "steps": n, "seconds": round(s, 1), "validation": v, "earned": e})  # fmt: skip
        progress(f"{agent} seed {seed}: {steps:,} steps in {seconds:.0f} s, {valid:.4f}")


def agent_sections(rows: Rows) -> list[str]:
    """What was trained, and how far it is from rules, hindsight and the optimal policy."""
    found = trainings(rows)
    if not found:
        return []
    names = {
        "traces never trained on": [f"{t}/{m}-measured" for t in TRACES for m in MEASURED],
        "test chains": [f"{ELASTIC_SETS[2]}/{member}" for member in elastic_rows(ELASTIC_SETS[2])],
    }
    lines = []
    for agent in AGENTS:
        own = [row for row in found if row["method"] == agent]
        if own:
            lines.append([
                agent, len(own), f"{own[0]['steps']:,}",
                f"{np.mean([row['seconds'] for row in own]):.0f}",
                ", ".join(f"{row['validation']:.4f}" for row in sorted(own, key=_seed)),
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
        best = np.array([mean(rows, name, against, "value") for name in problems])
        kinds = np.array([name.removeprefix(f"{ELASTIC_SETS[2]}/").split("-")[0].split("/")[0]
                          for name in problems])  # fmt: skip
        ahead = np.array([mean(rows, name, RIVAL, "value") for name in problems])
        lines = []
        for method in (*RULES, *AGENTS):
            seeds: list[Any] = seeds_of(rows, method) if method in AGENTS else [None]
            if not seeds:
                continue
            values = np.array(
                [[mean(rows, n, method, "value", s) for n in problems] for s in seeds]
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


def _seed(row: Row) -> int:
    return int(row["seed"])


def main() -> None:
    """Run the parts, and write the page."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS[:-1]))
    options.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    options.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    options.add_argument("--scale", type=float, default=1.0, help="factor of the steps, for a try")
    chosen = options.parse_args()
    rows = Rows(chosen.out / "elastic.jsonl")
    if "traces" in chosen.only:
        trace_rows(rows)
    if "sets" in chosen.only:
        set_rows(rows)
    if "agents" in chosen.only:
        agent_rows(rows, chosen.agents, chosen.seeds, chosen.scale, chosen.out)
    spread(rows)
    if "speed" in chosen.only:
        speed_rows(rows)
    sections = movement_sections() + trace_sections(rows) + set_sections(rows)
    publish("elastic", [*sections, *agent_sections(rows), *speed_sections(rows)], None, chosen.out)


if __name__ == "__main__":
    main()
