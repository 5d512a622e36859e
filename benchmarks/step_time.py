"""The shortest steps: exact, fixed and greedy plans, and the effect of memory limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.framework import INSTANCES, Column, columns, main, measurement, percent, table
from benchmarks.pipelines import CLUSTERS
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import data_parallel, expert, greedy, replicate
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError
from parenvs.tasks.partition.load import load_partitioning
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.space import PartitionSpace

SERVER = "1x8:v100"
WHERE = (SERVER, *CLUSTERS)
OTHERS: dict[str, Callable[[PartitionSpace], Answer]] = {
    "replicate": replicate,
    "data-parallel": data_parallel,
    "expert": expert,
    "greedy": greedy,
}
LIMITED = (
    ("t5-base", SERVER, "all"),
    ("t5-base", "A", "variables"),
    ("bert-48", "C", "all"),
    ("bert-48", "C", "variables"),
    ("vgg-19", SERVER, "all"),
    ("vgg-19", SERVER, "variables"),
    ("vgg-19", "C", "all"),
)
"""Instance, cluster, and which classes are decided, of the table of memory limits."""
STEP = 0.05
MARGIN = 1e-5
"""Share that is added to the least memory, because of the solver's tolerance."""

Row = list[object]


def judged(problem: Partitioning, answer: Answer) -> PartitionReport:
    """The judge's report on an answer, which has to be legal."""
    report = answer.report
    if not report.legal:
        raise AssertionError(f"{answer.method}: {report.reasons}")
    return report


def figures(report: PartitionReport) -> dict[str, Any]:
    """A report, as JSON types, without the plan's long list."""
    names = report.plan.partition
    problem = report.problem
    inputs = {problem.graph.paths[i] for i in problem.inputs.tolist()}
    return {**report.to_json(), "partitioned_inputs": len(inputs & set(names))}


def within(problem: Partitioning, scope: str, limit: float) -> PartitionReport | float:
    """The exact plan under a memory limit, or the bytes of the smallest plan that was found."""
    try:
        return judged(problem, exact_partition(problem, limit, scope))
    except InfeasibleError as error:
        found = re.search(r"needs ([\d,]+)", str(error))
        if found is None:
            raise
        return float(found[1].replace(",", ""))


def case(instance: str, cluster: str) -> dict[str, Any]:
    """Run every planner on one problem; returns their reports."""
    problem = load_partitioning(instance, cluster, reward="step_time")
    space = PartitionSpace.of(problem)
    exact = exact_partition(problem)
    plans = {
        "exact": exact,
        "exact, variables only": exact_partition(problem, scope="variables"),
    }
    plans |= {name: planner(space) for name, planner in OTHERS.items()}
    limited = within(problem, "all", problem.memory_limit)
    return {
        "instance": instance,
        "cluster": cluster,
        "limit_bytes": problem.memory_limit,
        "seconds": exact.seconds,
        "plans": {name: figures(judged(problem, answer)) for name, answer in plans.items()},
        "same_as_exact": [
            name
            for name, answer in plans.items()
            if (answer.report.chosen == exact.report.chosen).all()
        ][1:],
        "within_memory": figures(limited) if isinstance(limited, PartitionReport) else None,
        "excess_bytes": None
        if isinstance(limited, PartitionReport)
        else limited - problem.memory_limit,
    }


def over(raw: dict[str, Any], plan: dict[str, Any] | None) -> str:
    """By how much a plan's step is longer than the exact one's."""
    best = raw["plans"]["exact"]["step_seconds"]
    return "" if plan is None else percent(plan["step_seconds"] / best - 1)


def summary_row(raw: dict[str, Any]) -> Row:
    """The exact plan's step, and by how much the others' are longer."""
    plans, limited = raw["plans"], raw["within_memory"]
    exact = plans["exact"]
    row: Row = [raw["instance"], raw["cluster"], f"{exact['step_seconds']:.4f}"]
    row += [over(raw, plans[name]) for name in ("exact, variables only", *OTHERS)]
    row += [f"{exact['memory_bytes']['peak'] / 1e9:.2f}"]
    if limited is None:
        row += [f"misses by {raw['excess_bytes'] / 1e9:.3f} GB"]
    else:
        row += [f"{limited['step_seconds']:.4f}"]
    return [*row, ", ".join(raw["same_as_exact"])]


def plans_of(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for every plan of a problem."""
    plans = dict(raw["plans"])
    if raw["within_memory"] not in (None, plans["exact"]):
        plans["exact within memory"] = raw["within_memory"]
    for name, plan in plans.items():
        yield {"cluster": raw["cluster"], "plan": name, "over": over(raw, plan), **plan}


PLAN: list[Column] = [
    ("cluster", "{cluster}"),
    ("plan", "{plan}"),
    ("step (s)", "{step_seconds:.4f}"),
    ("communication (s)", "{communication_seconds:.4f}"),
    ("over exact", "{over}"),
    ("utilisation", "{utilisation:.1%}"),
    ("variables", "{partitioned_variables}"),
    ("inputs", "{partitioned_inputs}"),
    ("peak (GB)", "{memory_bytes[peak]:.2f/1e9}"),
    ("fits", lambda row: "yes" if row["fits"] else "no"),
]


def limits(instance: str, cluster: str, scope: str) -> list[dict[str, Any]]:
    """Exact plans under tighter and tighter limits, as shares of the unrestricted optimum's peak.

    The last ones are the least memory that was found, and the first limit that no plan keeps.
    """
    problem = load_partitioning(instance, cluster, reward="step_time")
    free = judged(problem, exact_partition(problem, scope=scope))
    peak = free.memory.peak
    head = {"instance": instance, "cluster": cluster, "scope": scope}
    raws = []
    share = 1.0
    while True:
        found = within(problem, scope, share * peak)
        if not isinstance(found, PartitionReport):
            break
        raws.append({**head, "limit": share, "plan": figures(found)})
        share = round(share - STEP, 6)
    least = within(problem, scope, (1 + MARGIN) * found)
    assert isinstance(least, PartitionReport)
    raws.append({**head, "limit": found / peak, "plan": figures(least)})
    return [*raws, {**head, "limit": share, "plan": None, "least_bytes": found}]


def limit_rows(raws: list[dict[str, Any]]) -> list[Row]:
    """A row for every limit whose plan differs from that of the limit before it."""
    rows: list[Row] = []
    best = raws[0]["plan"]["step_seconds"]
    before = None
    for raw in raws:
        row: Row = [raw["instance"], raw["cluster"], raw["scope"], percent(raw["limit"], 1)]
        plan = raw["plan"]
        if plan is None:
            rows.append([*row, "none", "", "", "", "", ""])
            continue
        key = plan["step_seconds"], plan["memory_bytes"]["peak"]
        if key == before:
            continue
        before = key
        row += [f"{plan['step_seconds']:.4f}", percent(plan["step_seconds"] / best - 1)]
        row += [f"{plan['communication_seconds']:.4f}"]
        row += [plan["partitioned_variables"], plan["partitioned_inputs"]]
        rows.append([*row, f"{plan['memory_bytes']['peak'] / 1e9:.3f}"])
    return rows


def plan_sections(instances: Sequence[str], cases: Sequence[dict[str, Any]]) -> list[str]:
    """A section for every plan, in full."""
    sections = [
        "`variables` and `inputs` are those partitioned, `peak` is of one device, `fits` says "
        "whether it is within 0.9 of the device's memory."
    ]
    for instance in instances:
        rows = [row for raw in cases if raw["instance"] == instance for row in plans_of(raw)]
        sections += [f"## {instance}", columns(rows, PLAN, left=2)]
    return sections


@measurement(title="Step time of partitions", among={"instances": INSTANCES})
def step_time(instances: tuple[str, ...] = INSTANCES) -> Iterator[tuple[str, Any]]:
    case("vgg-19", SERVER)  # pays for the first use of everything
    for instance in instances:
        for cluster in WHERE:
            yield "cases", case(instance, cluster)
    for instance, cluster, scope in LIMITED:
        if instance in instances:
            yield "limits", limits(instance, cluster, scope)


@step_time.page
def page(data: dict[str, list[Any]], instances: tuple[str, ...]) -> dict[str, list[str]]:
    cases = data["cases"]
    names = ["variables only", *OTHERS]
    sections = [
        "`exact`: the proven shortest step over all dimension classes, the batch among them; "
        "`variables only`: the same without those that hold dimensions of batch inputs alone. "
        "Columns 4 to 8 say by how much other plans are longer. `within memory`: the proven "
        "shortest step of plans that keep 0.9 of the device memory, in seconds, or by how much "
        "the smallest plan that was found misses it.",
        table(
            ["instance", "cluster", "exact (s)", *names, "peak (GB)", "within memory", "equal"],
            map(summary_row, cases),
            left=2,
        ),
        f"`equal`: planners that find the very same plan. Exact plans took at most "
        f"{1e3 * max(row['seconds'] for row in cases):.0f} ms. `expert` is Megatron's plan, or the "
        "dense layers of VGG-19.",
    ]
    if "limits" in data:
        header = ["instance", "cluster", "decided", "limit", "step (s)", "over no limit"]
        header += ["communication (s)", "variables", "inputs", "peak (GB)"]
        sections += [
            "## What memory limits do\n\nThe proven shortest step under a limit on every device's "
            f"memory, from the peak of the unrestricted optimum down by {percent(STEP, 0)} of it; "
            "limits that change nothing are left out. The row before `none` is the least memory "
            "that was found; `none` is the first of these limits that no plan keeps.",
            table(header, [row for raws in data["limits"] for row in limit_rows(raws)], left=3),
        ]
    return {"step_time": sections, "step_time_plans": plan_sections(instances, cases)}


if __name__ == "__main__":
    main(step_time)
