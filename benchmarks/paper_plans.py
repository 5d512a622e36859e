"""The paper's own partition plans, Tables 3, 4 and 6, against the rules and the optima."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.common import parser, progress, publish, table
from benchmarks.partition import SIX, Row, judged, kinds, loaders
from parenvs import Graph
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import expert
from parenvs.cluster import choose_cluster
from parenvs.tasks.partition.plan import RULE_SETS
from parenvs.tasks.partition.problem import Partitioning, PartitionReport
from parenvs.tasks.partition.space import PartitionSpace

"""arXiv 2007.04069: the search for an operator partitioning."""
PAPER_VARIABLES = {"t5-3b": "432", "t5-11b": "432", SIX: "108, of a target of 111"}
"""arXiv 2007.04069: partitioned variables of the expert plan."""
TABLE_3 = (
    *((f"{block}/{key}", 1) for block in ("self", "cross") for key in "qkv"),
    ("self/o", 0),
    ("cross/o", 0),
    ("conv1/kernel", 1),
    ("conv1/bias", 0),
    ("conv2/kernel", 0),
)
"""arXiv 2007.04069, Table 3: T5's layers; everything else of a layer is replicated."""
TABLE_4 = (
    ("fc1/kernel", 1),
    ("fc1/bias", 0),
    ("fc2/kernel", 0),
    ("fc2/bias", 0),
    ("predictions/kernel", 1),
    ("predictions/bias", 0),
)
"""arXiv 2007.04069, Table 4: VGG-19's dense layers."""
DOUBTFUL = "fc2/bias"
"""The row of Table 4 that contradicts the others."""


def matching(graph: Graph, rows: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Path -> dimension of the variables, in any layer, that rows of a table name."""
    paths = [graph.paths[i] for i in graph.variables]
    return {
        path: dimension
        for name, dimension in rows
        for path in paths
        if re.fullmatch(rf"((encoder|decoder)/layer_\d+/)?{name}", path)
    }


def added(report: PartitionReport, named: Mapping[str, int]) -> dict[str, int]:
    """The variables that a plan partitions besides those that were named."""
    return {path: d for path, d in report.plan.partition.items() if path not in named}


def verdict(report: PartitionReport) -> str:
    """``yes``, or the reason why a plan is refused."""
    return "yes" if report.legal else f"no: {report.reasons[0]}"


def table_3(problems: Mapping[tuple[str, str], Partitioning]) -> tuple[list[Row], dict[str, Any]]:
    """Whether each row can be partitioned by itself in every T5, under both rule sets."""
    names = list(dict.fromkeys(name for name, _ in problems))
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    for entry in TABLE_3:
        row: Row = [*entry]
        row += [len(matching(problems[name, "shardy"].graph, [entry])) for name in names]
        for rules in RULE_SETS:
            said = {
                name: verdict(
                    judged(problems[name, rules], matching(problems[name, rules].graph, [entry]))
                )
                for name in names
            }
            raw[f"{entry[0]}, {rules}"] = said
            row.append("; ".join(sorted(set(said.values()))))
        rows.append(row)
    return rows, raw


def expert_of_t5(problem: Partitioning, best: Mapping[str, int]) -> tuple[Row, dict[str, Any]]:
    """Compare the plan of all rows of Table 3 with the optimum."""
    named = matching(problem.graph, TABLE_3)
    report = judged(problem, named)
    alone = problem.report(replace(report.plan, partition=named))
    kept = sum(best.get(path) == dimension for path, dimension in named.items())
    more = {path: d for path, d in best.items() if path not in named}
    label = problem.graph.name
    raw = {
        "instance": label,
        "rules": problem.rules,
        "named": len(named),
        "paper": PAPER_VARIABLES.get(label, ""),
        "legal": report.legal,
        "reasons": report.reasons,
        "without_their_classes": alone.reasons,
        "added": added(report, named),
        "partitioned_dimensions": report.partitioned_dimensions,
        "optimum_partitioned_dimensions": len(best),
        "value": report.value,
        "in_optimum": kept,
        "more_in_optimum": kinds(more),
    }
    row: Row = [label, problem.rules, len(named), raw["paper"], verdict(report)]
    row += [kinds(raw["added"]), len(report.plan.partition), len(best), kept]
    return row, raw


def table_4(problems: Mapping[str, Partitioning]) -> tuple[list[Row], dict[str, Any]]:
    """VGG-19's dense layers: each row by itself, and those before it."""
    rows: list[Row] = []
    raw: dict[str, Any] = {}
    for entry in TABLE_4:
        row: Row = [*entry]
        for rules in RULE_SETS:
            said = verdict(judged(problems[rules], dict([entry])))
            raw[f"{entry[0]}, {rules}"] = said
            row.append(said)
        rows.append(row)
    for label, entries in (
        ("fc1/*, fc2/kernel", list(TABLE_4[:3])),
        (f"all but {DOUBTFUL}", [e for e in TABLE_4 if e[0] != DOUBTFUL]),
        ("all", list(TABLE_4)),
    ):
        row = [label, ""]
        for rules in RULE_SETS:
            report = judged(problems[rules], dict(entries))
            raw[f"{label}, {rules}"] = {
                "variables": report.variables,
                "added": added(report, dict(entries)),
                "legal": report.legal,
                "reasons": report.reasons,
            }
            said = f"yes, {report.variables} variables" if report.legal else verdict(report)
            row.append(said)
        rows.append(row)
    return rows, raw


def megatron(problem: Partitioning, best: Mapping[str, int]) -> tuple[Row, dict[str, Any]]:
    """The share of the expert plan that the optimum contains."""
    named = problem.partition(expert(PartitionSpace.of(problem)).report.chosen)
    same = {path for path, d in named.items() if best.get(path) == d}
    more = {path: d for path, d in best.items() if path not in named}
    row: Row = [problem.rules, kinds(more), len(named), len(same), len(best)]
    raw = {"rules": problem.rules, "named": len(named), "same": len(same), "more": more}
    return row, {**raw, "missing": sorted(set(named) - same), "partitions": len(best)}


def table_6(problem: Partitioning) -> tuple[Row, dict[str, Any]]:
    """The optimum of ``DataParallel-v0``, against the first dimension of every batch input."""
    graph = problem.graph
    answer = exact_partition(replace(problem, scope="inputs"))
    best = problem.partition(answer.report.chosen, "inputs")
    batch = {graph.paths[i]: 0 for i in problem.inputs.tolist()}
    row: Row = [graph.name, problem.rules, len(batch), kinds(best) or "nothing"]
    row += ["yes" if best == batch else "no"]
    raw = {"instance": graph.name, "rules": problem.rules, "optimum": best}
    return row, {**raw, "status": answer.status, "is_batch": best == batch}


def main() -> None:
    """Judge, print and write."""
    chosen = parser(__doc__).parse_args()
    problems: dict[tuple[str, str], Partitioning] = {}
    for name, load in loaders().items():
        for rules in RULE_SETS:
            problems[name, rules] = Partitioning.build(load(), choose_cluster(), rules)
    progress("the optima")
    best = {
        key: problem.partition(exact_partition(problem).report.chosen, "variables")
        for key, problem in problems.items()
    }
    t5 = {key: problem for key, problem in problems.items() if key[0].startswith("t5")}
    names = list(dict.fromkeys(name for name, _ in t5))
    experts = [expert_of_t5(problem, best[key]) for key, problem in t5.items()]
    rows_3, raw_3 = table_3(t5)
    rows_4, raw_4 = table_4({rules: problems["vgg-19", rules] for rules in RULE_SETS})
    bert = [megatron(problems["bert-48", r], best["bert-48", r]) for r in RULE_SETS]
    batches = [table_6(problem) for problem in problems.values()]
    sections = [
        "Table 3, T5: attention and feed-forward variables of every layer. "
        "The plan is made of exactly these and of what belongs to their classes (`with them`).",
        table(
            ["instance", "rules", "variables", "the paper's", "legal", "with them",
             "partitions", "optimum partitions", "of Table 3 in the optimum"],
            [row for row, _ in experts],
            left=2,
        ),
        "Table 3 row by row: number of variables, and whether the row can be partitioned by "
        "itself, in all of these models.",
        table(["row", "dimension", *names, *RULE_SETS], rows_3),
        "Table 4, VGG-19: each row by itself with its class, then together.",
        table(["row", "dimension", *RULE_SETS], rows_4, left=4),
        f"All that the judge says of {DOUBTFUL} with the others under `shardy`:\n\n"
        + "\n".join(f"* {reason}" for reason in raw_4["all, shardy"]["reasons"]),
        "BERT-48: variables that Megatron's plan names (`expert` in the package), those of them "
        "that the optimum partitions on the same dimension, and what else it partitions.",
        table(["rules", "besides", "Megatron", "in the optimum", "optimum partitions"],
              [row for row, _ in bert], left=2),
        "Table 6, data-parallel detection: the optimum of `DataParallel-v0`, and whether it is "
        "dimension 0 of every batch input and nothing else. Under `automap` a mean over the batch "
        "is a conflict, so that the batch cannot be partitioned.",
        table(["instance", "rules", "batch inputs", "optimum", "the batch"],
              [row for row, _ in batches], left=2),
    ]  # fmt: skip
    if SIX not in names:
        sections.append(f"{SIX} was left out: it needs the extra `jax`.")
    plans: dict[str, Any] = {"table_3": raw_3, "table_4": raw_4}
    plans |= {"expert_t5": [r for _, r in experts], "megatron": [r for _, r in bert]}
    plans |= {"table_6": [r for _, r in batches]}
    publish("paper_plans", sections, plans, chosen.out)


if __name__ == "__main__":
    main()
