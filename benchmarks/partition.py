"""Operator partitioning: proven optima, and how long they take."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.framework import INSTANCES, Column, Row, columns, main, measurement, progress
from parenvs import Graph, from_jax
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.shipped import data_folder, manifest
from parenvs.tasks.partition.classes import RULE_SETS
from parenvs.tasks.partition.problem import Partitioning, PartitionReport

SIX = "t5 6+6"
EXPECTED = {
    "vgg-19": (29, 27),
    "t5-base": (343, 218),
    "t5-3b": (679, 434),
    "t5-11b": (679, 434),
    "bert-48": (486, 484),
    SIX: (175, 110),
}
"""Partitioned variable dimensions of the prototype's optima, by rule set (design page, 4)."""
PAPER_HOURS = {"t5-11b": 1.45}


def loaders() -> dict[str, Callable[[], Graph]]:
    """Functions that read each training step; the T5 of 6 + 6 layers needs JAX."""
    shipped = manifest()["instances"]
    found: dict[str, Callable[[], Graph]] = {
        name: partial(Graph.load, data_folder() / shipped[name]["graphs"]["train"]["file"])
        for name in INSTANCES
    }
    try:
        from parenvs.datasets.models import t5, train_step
    except ImportError:
        return found
    progress(f"lower {SIX}")
    function, arguments = train_step(t5(6))
    six = from_jax(function, *arguments, name=SIX)
    # A new graph every time: what is found of one graph is kept.
    return {**found, SIX: partial(replace, six)}


def optimum(name: str, load: Callable[[], Graph], rules: str, repeats: int) -> Row:
    """Find the proven optimum; returns it and the seconds of each step, repeats from scratch."""
    cluster = choose_cluster()
    laps: list[tuple[float, ...]] = []
    for _ in range(repeats + 1):
        clock = [time.perf_counter()]
        graph = load()
        clock.append(time.perf_counter())
        problem = Partitioning.build(graph, cluster, rules)
        clock.append(time.perf_counter())
        answer = exact_partition(problem)
        clock.append(time.perf_counter())
        laps.append(tuple(np.diff(clock)))
    report = judged(problem, problem.partition(answer.report.chosen, "variables")).certified(answer)
    if not report.legal:
        raise AssertionError(f"{name}: {report.reasons}")
    classes = problem.decidable("variables")
    load_s, classes_s, solve_s = zip(*laps[1:], strict=True)  # the first one warms up
    return {
        "instance": name,
        "rules": rules,
        "variables": len(graph.variables),
        "dimensions": report.dimensions,
        "classes": len(classes),
        "conflicts": int(np.isin(problem.classes.conflicts, classes).all(axis=1).sum()),
        "partitioned_dimensions": report.partitioned_dimensions,
        "value": report.value,
        "status": answer.status,
        "bound": answer.bound,
        "gap": report.gap(answer),
        "nodes": answer.evaluations,
        "expected": EXPECTED[name][RULE_SETS.index(rules)],
        "load_s": None if name == SIX else load_s,
        "classes_s": classes_s,
        "solve_s": solve_s,
        "paper_hours": PAPER_HOURS.get(name),
        "partitions": kinds(report.plan.partition),
    }


def judged(problem: Partitioning, named: Mapping[str, int]) -> PartitionReport:
    """What the judge says of these variables together with what belongs to their classes."""
    plan = problem.plan(problem.chosen(named))
    return problem.report(replace(plan, partition={**named, **plan.partition, **named}))


def kinds(named: Mapping[str, int]) -> str:
    """Partitioned variables grouped over layers: ``encoder/layer_*/self/q 1 (48)``."""
    words = (re.sub(r"layer_\d+", "layer_*", f"{path} {d}") for path, d in named.items())
    return ", ".join(f"{w} ({n})" if n > 1 else w for w, n in sorted(Counter(words).items()))


def differs(raw: Mapping[str, Any]) -> str:
    """The expected number in words, if the optimum's is another; else an empty string."""
    found, expected = raw["partitioned_dimensions"], raw["expected"]
    return "" if found == expected else f"expected {expected}"


def milliseconds(values: Sequence[float] | None) -> str:
    """The median of ``values``, seconds, in milliseconds; empty for None."""
    return "" if values is None else f"{1e3 * median(values):.1f}"


@measurement(title="Optima of operator partitioning")
def partition(repeats: int = 5) -> Iterator[tuple[str, Row]]:
    for name, load in loaders().items():
        for rules in RULE_SETS:
            yield "optima", optimum(name, load, rules, repeats)


def seconds(row: Row) -> str:
    """From the file to the proof."""
    steps = (row[key] for key in ("load_s", "classes_s", "solve_s"))
    return f"{sum(median(step) for step in steps if step is not None):.3f}"


OPTIMA: list[Column] = [
    ("instance", "{instance}"),
    ("rules", "{rules}"),
    *((key, f"{{{key}}}") for key in ("variables", "dimensions", "classes", "conflicts")),
    ("partitioned", "{partitioned_dimensions}"),
    ("return", "{value:.1f}"),
    ("status", "{status}"),
    ("gap", "{gap:.4%}"),
    ("nodes", "{nodes}"),
    ("differs", differs),
]
TIMES: list[Column] = [
    ("instance", "{instance}"),
    ("rules", "{rules}"),
    ("load .npz (ms)", lambda row: milliseconds(row["load_s"])),
    ("classes (ms)", lambda row: milliseconds(row["classes_s"])),
    ("MILP (ms)", lambda row: milliseconds(row["solve_s"])),
    ("in all (s)", seconds),
    ("the paper", lambda row: f"{row['paper_hours']} h" if row["paper_hours"] else ""),
]


@partition.page
def page(data: dict[str, list[Row]], repeats: int) -> list[str]:
    optima = data["optima"]
    return [
        "Most dimensions of variables that can be partitioned together, hence the largest return "
        "of `OperatorPartition-v0` with the paper's reward. `classes`: those that hold dimensions "
        "of variables and can be partitioned; `conflicts`: pairs of them that exclude each other; "
        "`gap`: distance of the proven bound.",
        columns(optima, OPTIMA, left=2),
        f"{len(optima)} compared with the known optima, {sum(map(bool, map(differs, optima)))} "
        "differ.",
        f"From the file to the proof, in one process, medians of {repeats} repeats after one that "
        "does not count; nothing is kept between repeats. The paper (arXiv 2007.04069) reports "
        "1.45 hours of search for T5-11B and, in its abstract, optimal solutions in two hours.",
        columns(optima, TIMES, left=2),
    ]


if __name__ == "__main__":
    main(partition)
